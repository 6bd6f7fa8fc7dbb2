#!/usr/bin/env bash
# Bugs of real training stacks, planted in the engine's source (tests/mutants/*.mutant), each alone: the judge has to fail, and to
# name the check and the operation that the mutant's file says.  Without a mutant the same cells have to pass.
#   ci/mutants.sh [--fast] [--all] [--table] [--measure] [NAME ...]
# A mutant is judged by the one check that its file expects, which is enough to see that it is still caught and named; --all asks
# every check, and the expected one still has to speak first.  --fast: the mutants marked `fast`; --table: the table of
# docs/DETECTION.md; --measure: prints what was found and compares nothing.
# JUDGE (default build/release/bin/assay) is a build without mutants; the engine is built here, in build/mutants.
set -uo pipefail
cd "$(dirname "$0")/.."
fast='' all='' table='' measure='' names=()
for a in "$@"; do
    case $a in
    --fast) fast=1 ;;
    --all) all=1 ;;
    --table) table=1 ;;
    --measure) measure=1 ;;
    -*) echo "mutants: unknown option $a" >&2; exit 2 ;;
    *) names+=("$a") ;;
    esac
done
judge=${JUDGE:-build/release/bin/assay}
[[ -x $judge ]] || { echo "mutants: $judge is not built (ci/build.sh release, or JUDGE=PATH)" >&2; exit 2; }
started=$SECONDS
ci/build.sh mutants assay-sim >/tmp/assay-build-mutants.log 2>&1 || { tail -n 40 /tmp/assay-build-mutants.log; echo "mutants: not built" >&2; exit 2; }
built=$((SECONDS - started))
work=build/mutants/report
rm -rf "$work"
mkdir -p "$work"

field() { sed -nE "s/^$1 (.*)/\1/p" "tests/mutants/$2.mutant" | head -1; }

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
    # shellcheck disable=SC2086 # words
    ASSAY_MUTANT=$name ASSAY_COLLECTIVE_TIMEOUT_S=60 OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 \
        "$judge" run --engine-program build/mutants/bin/assay-sim-mutants --variant fastest \
        $options --precision "$precision" --jobs 1 --quiet --report "$dir" >"$dir.log" 2>&1
    local code=$?
    # "FAIL  context fp32 cp2 fastest, plan: loss cross_entropy_bwd scale, step 0, ..."
    first=$(sed -nE 's/^FAIL  [^:]*, ([a-z]+): (.*)$/\1: \2/p' "$dir.log" | head -1)
    all_failed=$(sed -nE 's/^FAIL  [^:]*, ([a-z]+): .*$/\1/p' "$dir.log" | awk '!seen[$0]++' | paste -sd' ')
    case $code in
    0) echo "passed|" ;;
    1) echo "$(sed -E 's/, (step|microbatch|rank) .*//; s/\[[0-9,]*\]//g' <<<"$first")|$all_failed" ;;
    *) echo "no verdict: $({ grep -A1 '^skip  ' "$dir.log" || tail -n 2 "$dir.log"; } | sed -n 2p | tr -d '|' | cut -c1-400)|" ;;
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
tasks=()
for n in "${names[@]}"; do
    [[ -f tests/mutants/$n.mutant ]] || { echo "mutants: there is no $n" >&2; exit 2; }
    for p in fp32 bf16; do [[ -z $(field "$p" "$n") ]] || tasks+=("$n" "$p"); done
done
# Every cell once without a mutant.
cells=()
while read -r p run; do cells+=("$p" "$run"); done < <(for ((i = 0; i < ${#tasks[@]}; i += 2)); do
    echo "${tasks[i + 1]} $(field run "${tasks[i]}") $(asks "${tasks[i + 1]}" "${tasks[i]}")"
done | sort -u)

failed=0
complain() { failed=$((failed + 1)); echo "FAIL  $*"; }
[[ -n $measure ]] || printf '%s\0' "${cells[@]}" | xargs -0 -P 2 -n 2 bash -c 'clean "$0" "$1"' >"$work/clean.txt"
[[ -z $measure ]] || : >"$work/clean.txt"
while IFS='|' read -r run p found _; do
    [[ $found == passed ]] || complain "without a mutant: $run $p: $found"
done <"$work/clean.txt"
printf '%s\0' "${tasks[@]}" | xargs -0 -P 2 -n 2 bash -c 'one "$0" "$1"' >"$work/found.tmp"
sort "$work/found.tmp" >"$work/found.txt"
while IFS='|' read -r n p expected found checks; do
    if [[ -n $measure ]]; then
        printf '%s|%s|%s|%s\n' "$n" "$p" "$found" "$checks"
    elif [[ $found != "$expected"* ]]; then
        complain "$n $p: expected \"$expected\", found \"$found\""
    elif [[ -z $table ]]; then
        printf 'caught  %-32s %s  %s\n' "$n" "$p" "$found"
    fi
done <"$work/found.txt"
if [[ -n $table ]]; then
    echo '| bug | mutant | layout | fp32 | bf16 |'
    echo '|---|---|---|---|---|'
    for n in "${names[@]}"; do
        row() { awk -F'|' -v n="$n" -v p="$1" '$1 == n && $2 == p {print $4; found = 1} END {if (!found) print "-"}' "$work/found.txt"; }
        printf '| %s | %s | %s | %s | %s |\n' "$(field bugs "$n")" "$(field planted "$n")" "$(field run "$n" | sed 's/--case //; s/--layout //')" "$(row fp32)" "$(row bf16)"
    done
fi
lines=$(wc -l <"$work/found.txt")
((lines == ${#tasks[@]} / 2)) || complain "$lines answers to ${#tasks[@]} / 2 questions"
echo "${#names[@]} mutants, $lines runs, $((${#cells[@]} / 2)) without a mutant: $failed not as expected; built in $built s, judged in $((SECONDS - started - built)) s"
((failed == 0))
