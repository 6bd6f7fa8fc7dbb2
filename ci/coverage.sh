#!/usr/bin/env bash
# What of the engine `assay run` alone executes: lines of gpu, gpu/parallel and gpu/ops, branches and template instances of gpu/ops.
# Fails when something is neither executed nor listed in docs/DETECTION.md, or when a row of that list became wrong (ci/coverage.awk has
# the rules).  Arguments go to `assay run`; --missing prints rows for what is not listed, --again judges the counters of the last run,
# --self-test shows on a small example that the tool fails where it must.  About five minutes on two cores, so ci/test.sh runs only
# the self-test.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/coverage missing=0 again=false arguments=()

# Passes or fails with this list, and says why: the example has a line, a branch and an instance that are not executed.
expect() {
    local wanted=$1 pattern=$2 list=$3 out code=0
    out=$(awk -f ci/coverage.awk <(printf '%s\n' "$list") tests/coverage/example.gcov) || code=$?
    if [[ $code != "$wanted" ]] || ! grep -qE -- "$pattern" <<<"$out"; then
        printf 'coverage: self-test: expected exit %s and "%s", found exit %s and\n%s\n' "$wanted" "$pattern" "$code" "$out" >&2
        exit 1
    fi
}

self_test() {
    local line='gpu/ops/example.cu: clip() `return limit` — never above' instance='gpu/ops/example.cu: launch() `<float, 8>` — no such head'
    local function='gpu/ops/other.cu: unused() — nobody calls it' branch='gpu/ops/example.cu: clip() `if (x > limit)` — never above'
    local good=$'```unexecuted\n'"$line"$'\n'"$instance"$'\n'"$function"$'\n```\n```untaken\n'"$branch"$'\n'
    good+=$'gpu/ops/*.cu: run() `variant == 8` — never above\n```'
    expect 0 'coverage: lines: 3 not executed are listed, 0 are not; instances of 2: 1 listed, 0 not; branches: 2 lines listed, 0 not' "$good"
    expect 1 'example.cu:6: clip: not executed by assay run and not listed' "${good/"$line"/}"
    expect 1 'other.cu:6: unused: not executed by assay run and not listed' "${good/"$function"/}"
    expect 1 'example.cu:5: clip: a branch is not taken by assay run and not listed' "${good/"$branch"/}"
    expect 1 'launch: an instance is not executed by assay run and not listed.*launch<float, 8>' "${good/"$instance"/}"
    expect 1 'stale.*executed now, or gone: remove the row' "${good/"$line"/"$line"$'\n''gpu/ops/example.cu: stale() `x` — once'}"
    expect 1 'return x.*executed now, or gone: remove the row' "${good/"$line"/"$line"$'\n''gpu/ops/example.cu: clip() `return x` — executed'}"
    expect 1 'clip.*executed now, or gone: remove the row' "${good/"$line"/"$line"$'\n''gpu/ops/example.cu: clip() — partly executed'}"
    expect 1 'expected .FILE: FUNCTION' "${good/"$line"/"$line"$'\n''gpu/ops/example.cu: clip() without a reason'}"
    expect 0 ', 0 are not' "${good/"$line"/"$line"$'\n''gpu/ops/example.cu: stale() `x` — chance: once'}"
    expect 1 'nothing to judge' ''
    echo "coverage: self-test passed"
}

for a in "$@"; do
    case $a in
    --missing) missing=1 ;;
    --again) again=true ;;
    --self-test)
        self_test
        exit
        ;;
    *) arguments+=("$a") ;;
    esac
done
if ! $again; then
    ci/build.sh coverage assay assay-sim
    find "$build" -name '*.gcda' -delete
    rm -rf "$build/report"
    OPENBLAS_NUM_THREADS=1 "$build/bin/assay" run --engine sim --report "$build/report" "${arguments[@]}" | tail -n 2
fi
# Objects that no process of the run reached have no counters: their notes alone say which lines were not executed.
find "$build/CMakeFiles/assay_engine_sim.dir" -name '*.gcno' -print0 | sort -z |
    xargs -0 gcov -t -b -c -m -s "$PWD" -r >"$build/coverage.gcov" 2>"$build/gcov.log"
awk -v missing="$missing" -f ci/coverage.awk docs/DETECTION.md "$build/coverage.gcov"
