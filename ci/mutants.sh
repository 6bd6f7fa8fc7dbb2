#!/usr/bin/env bash
# Bugs of real training stacks, planted in the engine's source (tests/mutants/*.mutant), each alone: the judge has to fail, and to
# name the check and the operation that the mutant's file says.  Without a mutant the same cells have to pass.
#   ci/mutants.sh [--fast] [--all] [--table] [--measure] [--self-test] [NAME ...]
# A mutant is judged by the one check that its file expects, which is enough to see that it is still caught and named; --all asks
# every check, and the expected one still has to speak first.  --fast: the mutants marked `fast`; --table: prints the
# table of docs/DETECTION.md from the files; --measure: prints what was found and compares nothing; --self-test: shows that each
# complaint of this script is made, with a judge that only says what it is told.
# JUDGE (default build/release/bin/assay) is a build without mutants; the engine is built here, in build/mutants.
set -uo pipefail
self=$(readlink -f "$0")
cd "$(dirname "$0")/.."
fast='' all='' table='' measure='' self_test='' names=()
for a in "$@"; do
    case $a in
    --fast) fast=1 ;;
    --all) all=1 ;;
    --table) table=1 ;;
    --measure) measure=1 ;;
    --self-test) self_test=1 ;;
    -*) echo "mutants: unknown option $a" >&2; exit 2 ;;
    *) names+=("$a") ;;
    esac
done
field() { sed -nE "s/^$1 (.*)/\1/p" "tests/mutants/$2.mutant" | head -1; }

# What the files say, as a table; docs/DETECTION.md holds it.
table() {
    local f n
    echo '| bug | what is wrong | cell | fp32 | bf16 |'
    echo '|---|---|---|---|---|'
    for f in tests/mutants/*.mutant; do
        n=${f##*/} n=${n%.mutant}
        printf '| %s | %s | %s | %s | %s |\n' "$(field bugs "$n")" "$(field planted "$n")" "$(field run "$n" | sed 's/--case //; s/--layout //')" \
            "$(field fp32 "$n")" "$(x=$(field bf16 "$n"); [[ $x == "$(field fp32 "$n")" ]] && echo same || echo "${x:--}")"
    done
}
if [[ -n $table ]]; then
    table
    exit 0
fi

# A tree of its own with two mutants; the judge says what the variables of the environment tell it.
self_test() {
    local room says code=0
    room=$(mktemp -d)
    # shellcheck disable=SC2064 # now
    trap "rm -rf '$room'" EXIT
    mkdir -p "$room/ci" "$room/docs" "$room/tests/mutants"
    cp "$self" "$room/ci/mutants.sh"
    printf '#!/bin/sh\n' >"$room/ci/build.sh"
    cat >"$room/judge" <<'STUB'
#!/usr/bin/env bash
[[ $* == *--variant* && $* != *--variant*--variant* ]] || { echo "expected one --variant, found $*"; exit 2; }
case "$ASSAY_MUTANT $*" in
" "*"$DIES"*) kill -9 "$(ps -o ppid= -p $PPID | tr -d " ")" ;;
" "*"$WRONG"*) ;;
" "*) exit 0 ;;
"${UNSEEN:-none} "*) exit 0 ;;
esac
echo "FAIL  cell, plan: ${FOUND:-op.x y}, step 0, rank 0"
exit 1
STUB
    chmod +x "$room/ci/build.sh" "$room/judge"
    mutant() { printf 'bugs %s\nplanted a fault\nrun --case %s --layout 1%s\n%b' "$1" "$1" "${3:-}" "$2" >"$room/tests/mutants/$1.mutant"; }
    # expect CODE TEXT [VARIABLE=VALUE ...]: the script in that tree
    expect() {
        local wanted=$1 text=$2
        shift 2
        says=$(env JUDGE="$room/judge" DIES=nothing WRONG=nothing UNSEEN= "$@" "$room/ci/mutants.sh" 2>&1)
        code=$?
        [[ $code == "$wanted" && $says == *"$text"* ]] || { echo "mutants: expected '$text' and code $wanted, found code $code: $says" >&2; exit 1; }
    }
    mutant a 'fp32 plan: op.x y\nbf16 plan: op.x y\n' ' --variant k1'
    mutant b 'fp32 plan: op.x y\n'
    document() { # document WITHOUT MORE: the table without rows of that text, and with more
        { "$room/ci/mutants.sh" --table | grep -vF "$1" && printf '%b\n| another | table |\n' "$2"; } >"$room/docs/DETECTION.md"
    }
    document '| none |' ''
    expect 0 '2 mutants, 3 runs, 3 without a mutant: 0 not as expected'
    expect 1 'FAIL  b fp32: expected "plan: op.x y", found "passed"' UNSEEN=b
    mutant b 'fp32 plan: op\n'
    document '| none |' ''
    expect 1 'FAIL  b fp32: expected "plan: op", found "plan: op.x y"'
    mutant b 'fp32 plan: op.x\n'
    document '| none |' ''
    expect 0 '2 mutants, 3 runs, 3 without a mutant: 0 not as expected'
    expect 1 'caught  b                                fp32  plan: op.x.12 y' FOUND='op.x.12 y'
    mutant b 'fp32 plan: op.x y\n'
    document '| none |' ''
    expect 1 'FAIL  without a mutant: --case b --layout 1' WRONG='--case b'
    expect 1 'answers to 3 questions without a mutant' DIES='--case b'
    document '| none |' '| z | a bug without a file | a 1 | plan: op.x y | same |\n'
    expect 1 'a row of docs/DETECTION.md that no file makes: | z | a bug'
    document '| b |' ''
    expect 1 'docs/DETECTION.md lacks a row of ci/mutants.sh --table: | b |'
    mutant b ''
    document '| none |' ''
    expect 1 'FAIL  b: neither fp32 nor bf16 says what is expected: it is never run'
    echo "mutants: 10 outcomes said as they should be"
}
if [[ -n $self_test ]]; then
    self_test
    exit
fi

judge=${JUDGE:-build/release/bin/assay}
[[ -x $judge ]] || { echo "mutants: $judge is not built (ci/build.sh release, or JUDGE=PATH)" >&2; exit 2; }
started=$SECONDS
ci/build.sh mutants assay-sim >/tmp/assay-build-mutants.log 2>&1 || { tail -n 40 /tmp/assay-build-mutants.log; echo "mutants: not built" >&2; exit 2; }
built=$((SECONDS - started))
work=build/mutants/report
rm -rf "$work"
mkdir -p "$work"

# asks PRECISION NAME: the options for the checks of a mutant: the one that it expects, or that of its line `ask`, where a check
# finds something in the name of another (a restart compares checkpoints).
asks() {
    local check
    check=$(field ask "$2")
    [[ -n $check ]] || check=$(field "$1" "$2" | sed -E 's/:.*//')
    [[ -n $all ]] || echo "--check $check"
}

# judged NAME PRECISION OPTIONS: what the judge says of a cell with a mutant (NAME "": without one).  First the check that failed
# first and where, as `check: instance operation tensor`, or `passed`; then all checks that failed.
judged() {
    local name=$1 precision=$2 options=$3 dir first all_failed
    dir=$work/${name:-clean}-$precision-$(cksum <<<"$options" | cut -d' ' -f1)
    [[ " $options " == *" --variant "* ]] || options="--variant fastest $options" # given once, or refused
    # shellcheck disable=SC2086 # words
    ASSAY_MUTANT=$name ASSAY_COLLECTIVE_TIMEOUT_S=60 OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 \
        "$judge" run --engine-program build/mutants/bin/assay-sim-mutants \
        $options --precision "$precision" --jobs 1 --quiet --report "$dir" >"$dir.log" 2>&1
    local code=$?
    # "FAIL  context fp32 cp2 fastest, plan: loss cross_entropy_bwd scale, step 0, ..."
    first=$(sed -nE 's/^FAIL  [^:]*, ([a-z]+): (.*)$/\1: \2/p' "$dir.log" | head -1)
    all_failed=$(sed -nE 's/^FAIL  [^:]*, ([a-z]+): .*$/\1/p' "$dir.log" | awk '!seen[$0]++' | paste -sd' ')
    case $code in
    0) echo "passed|" ;;
    1) echo "$(sed -E 's/, (step|microbatch|rank) .*//; s/\[[0-9,]*\]//g' <<<"$first")|$all_failed" ;;
    *) echo "no verdict: $({ grep -A1 '^skip  ' "$dir.log" || tail -n 1 "$dir.log"; } | sed -n '1{$p}; 2p' | tr -d '|' | cut -c1-400)|" ;;
    esac
    rm -rf "$dir"
}

# one NAME PRECISION: a line `NAME|PRECISION|EXPECTED|FOUND|CHECKS THAT FAILED`.
one() { printf '%s|%s|%s|%s\n' "$1" "$2" "$(field "$2" "$1")" "$(judged "$1" "$2" "$(field run "$1") $(asks "$2" "$1")")"; }
clean() { printf '%s|%s|%s\n' "$2" "$1" "$(judged "" "$1" "$2")"; }
export -f field asks judged one clean
export work judge all

((${#names[@]})) || for f in tests/mutants/*.mutant; do
    [[ -z $fast ]] || grep -qx fast "$f" || continue
    f=${f##*/}
    names+=("${f%.mutant}")
done
failed=0
complain() { failed=$((failed + 1)); echo "FAIL  $*"; }
tasks=()
for n in "${names[@]}"; do
    [[ -f tests/mutants/$n.mutant ]] || { echo "mutants: there is no $n" >&2; exit 2; }
    for p in fp32 bf16; do [[ -z $(field "$p" "$n") ]] || tasks+=("$n" "$p"); done
    [[ -n $(field fp32 "$n")$(field bf16 "$n") ]] || complain "$n: neither fp32 nor bf16 says what is expected: it is never run"
done
((${#tasks[@]})) || { echo "mutants: nothing to run" >&2; exit 2; }
# Every cell once without a mutant.
cells=()
while read -r p run; do cells+=("$p" "$run"); done < <(for ((i = 0; i < ${#tasks[@]}; i += 2)); do
    echo "${tasks[i + 1]} $(field run "${tasks[i]}") $(asks "${tasks[i + 1]}" "${tasks[i]}")"
done | sort -u)

# The table of docs/DETECTION.md and the files, both ways.
table >"$work/table.txt"
sed -n '/^| bug | what is wrong | cell | fp32 | bf16 |$/,/^$/{/^$/d; p}' docs/DETECTION.md >"$work/rows.txt"
while IFS= read -r row; do
    complain "docs/DETECTION.md lacks a row of ci/mutants.sh --table: $row"
done < <(grep -vxFf "$work/rows.txt" "$work/table.txt")
while IFS= read -r row; do
    complain "a row of docs/DETECTION.md that no file makes: $row"
done < <(grep -vxFf "$work/table.txt" "$work/rows.txt")
[[ -n $measure ]] || printf '%s\0' "${cells[@]}" | xargs -0 -P 2 -n 2 bash -c 'clean "$0" "$1"' >"$work/clean.txt"
[[ -z $measure ]] || : >"$work/clean.txt"
while IFS='|' read -r run p found _; do
    [[ $found == passed ]] || complain "without a mutant: $run $p: $found"
done <"$work/clean.txt"
lines=$(wc -l <"$work/clean.txt")
[[ -n $measure ]] || ((lines == ${#cells[@]} / 2)) || complain "$lines answers to $((${#cells[@]} / 2)) questions without a mutant"
printf '%s\0' "${tasks[@]}" | xargs -0 -P 2 -n 2 bash -c 'one "$0" "$1"' >"$work/found.tmp"
sort "$work/found.tmp" >"$work/found.txt"
while IFS='|' read -r n p expected found checks; do
    if [[ -n $measure ]]; then
        printf '%s|%s|%s|%s\n' "$n" "$p" "$found" "$checks"
    # whole words, repeat+overlap is not repeat; the number of a request may follow: exact.router_fwd.245
    elif [[ $found != "$expected" && $found != "$expected "* && $found != "$expected".[0-9]* ]]; then
        complain "$n $p: expected \"$expected\", found \"$found\""
    else
        printf 'caught  %-32s %s  %s\n' "$n" "$p" "$found"
    fi
done <"$work/found.txt"
lines=$(wc -l <"$work/found.txt")
((lines == ${#tasks[@]} / 2)) || complain "$lines answers to $((${#tasks[@]} / 2)) questions"
echo "${#names[@]} mutants, $lines runs, $((${#cells[@]} / 2)) without a mutant: $failed not as expected; built in $built s, judged in $((SECONDS - started - built)) s"
((failed == 0))
