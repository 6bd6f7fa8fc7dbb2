#!/usr/bin/env bash
# Passes the tests: installs what is missing, lints, builds with gcc and clang, runs clang-tidy, runs every test as released and
# under the address and undefined-behaviour sanitizers, the tests of core, ref, gpu and the simulator as clang compiles them,
# shared memory under the thread sanitizer, the judge's self-test, a few bugs planted in the source (all: ci/mutants.sh), the
# default matrix, twelve random cases, the engine's kernels under the race checker, all of them certified in the simulator, ten kills, programs that link the installed library, every example, the Debian package, and some seconds of
# fuzzing.  A test counts once for each preset that ran it.  ci/coverage.sh is not part of it (about five minutes more), but its self-test is.  Where nvcc is, ci/kernels.sh.
# The last line is `N passed, N failed, N skipped`.
set -uo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS
log=build/test-logs
passed=0 failed=0 skipped=0
mkdir -p "$log"

# step NAME COMMAND...: runs a stage that counts as one check.
step() {
    local name=$1 t=$SECONDS
    shift
    if "$@" >"$log/$name.log" 2>&1; then
        passed=$((passed + 1))
        printf 'pass  %-28s %4d s\n' "$name" $((SECONDS - t))
        return 0
    fi
    failed_step "$name" $((SECONDS - t)) "$*"
    return 1
}
failed_step() { # NAME SECONDS COMMAND
    failed=$((failed + 1))
    printf 'FAIL  %-28s %4d s   (log: %s; again with: %s)\n' "$1" "$2" "$log/$1.log" "$3"
    tail -n 40 "$log/$1.log"
}
# beside NAME COMMAND...: begins a stage that leaves a processor idle most of its time; `together` waits for all that were begun and counts them.
begun=()
beside() {
    local name=$1
    shift
    begun+=("$name")
    rm -f "$log/$name.code" # of an earlier run
    {
        local t=$SECONDS code=0
        "$@" >"$log/$name.log" 2>&1 || code=$?
        echo "$code $((SECONDS - t)) $*" >"$log/$name.code"
    } &
}
together() {
    local name code took command
    wait
    for name in "${begun[@]}"; do
        read -r code took command <"$log/$name.code" || code=none took=0 command="(it was not started)"
        if [[ $code == 0 ]]; then
            passed=$((passed + 1))
            printf 'pass  %-28s %4d s\n' "$name" "$took"
        else
            failed_step "$name" "$took" "$command"
        fi
    done
    begun=()
}
finish() {
    echo "tests took $((SECONDS - started)) s"
    echo "$passed passed, $failed failed, $skipped skipped"
    ((failed == 0)) || exit 1
    exit 0
}

ci/setup.sh || { echo "setup failed" >&2; exit 2; }
step lint ci/lint.sh
step coverage-tool ci/coverage.sh --self-test
step kernels-tool ci/kernels.sh --self-test
step kernels-table ci/kernels.sh --table
step traffic-tool ci/engine_races.sh --self-test
step gpu-script ci/gpu_test.sh
step evidence-tool ci/evidence.sh --self-test
step mutants-tool ci/mutants.sh --self-test
ci/evidence.sh
step build-release env ASSAY_KERNEL_FIGURES=1 ci/build.sh release || finish
step boundaries ci/boundaries.sh # includes, and the symbols of what was built
step foreign-tool ci/foreign.sh --self-test
# nvcc comes from no package: without it nobody compiled the kernels for a device
if command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; then
    step kernels ci/kernels.sh # of what build-release has compiled
else
    skipped=$((skipped + 1))
    echo "skip  kernels                      no nvcc: gpu/ops was compiled for the simulator alone"
fi
step build-asan ci/build.sh asan || finish
step build-clang ci/build.sh clang || finish
step tidy ci/tidy.sh

# execute PRESET EXECUTABLE: one Criterion executable, its output and exit code into the folder of logs.
execute() {
    local preset=$1 exe=$2 name rc
    name=$(basename "$exe")
    # Executables run side by side: a thread that spins while it waits takes the processor of another.
    OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive UBSAN_OPTIONS=print_stacktrace=1 \
        timeout 900 "$exe" --jobs 1 >"$log/$preset-$name.log" 2>&1
    rc=$?
    echo "$rc" >"$log/$preset-$name.code"
}
export log
export -f execute
# unit PRESET REGEX: Criterion executables, one more side by side than there are processors, because ranks wait for each other and for
# files; counts single tests, and demands that no sanitizer spoke.
unit() {
    local preset=$1 regex=$2 exe name line p f c rc before=$passed t=$SECONDS
    local -a executables=()
    for exe in build/"$preset"/bin/test_*; do
        [[ $(basename "$exe") =~ $regex ]] && executables+=("$exe")
    done
    if ((${#executables[@]} == 0)); then
        failed=$((failed + 1))
        echo "FAIL  $preset: no test matches $regex"
        return
    fi
    rm -f "$log/$preset"-test_*.code # of an earlier run
    printf '%s\0' "${executables[@]}" | xargs -0 -P $(($(nproc) + 1)) -n 1 bash -c 'execute "$0" "$1"' "$preset"
    for exe in "${executables[@]}"; do
        name=$(basename "$exe")
        rc=$(cat "$log/$preset-$name.code" 2>/dev/null || echo 'none: it was not started')
        # "[====] Synthesis: Tested: 12 | Passing: 12 | Failing: 0 | Crashing: 0"
        line=$(sed 's/\x1b\[[0-9;]*m//g' "$log/$preset-$name.log" | grep -E 'Synthesis: Tested:' | tail -1)
        p=$(sed -nE 's/.*Passing: ([0-9]+).*/\1/p' <<<"$line")
        f=$(sed -nE 's/.*Failing: ([0-9]+).*/\1/p' <<<"$line")
        c=$(sed -nE 's/.*Crashing: ([0-9]+).*/\1/p' <<<"$line")
        passed=$((passed + ${p:-0}))
        failed=$((failed + ${f:-0} + ${c:-0}))
        local bad=0
        # A leak does not change Criterion's exit code.
        if grep -qE 'LeakSanitizer|runtime error:|ERROR: AddressSanitizer|WARNING: ThreadSanitizer' "$log/$preset-$name.log"; then
            bad=1
            echo "FAIL  $preset/$name: a sanitizer reported something"
        elif [[ $rc != 0 || -z $line ]] || ((${p:-0} == 0)); then
            bad=1
            echo "FAIL  $preset/$name: exit code $rc, ${p:-0} passing"
        fi
        if ((bad)); then
            ((${f:-0} + ${c:-0} > 0)) || failed=$((failed + 1))
            sed 's/\x1b\[[0-9;]*m//g' "$log/$preset-$name.log" | grep -vE '^\[RUN |^\[----\] *$' | tail -n 60
            echo "      again with: $exe"
        fi
    done
    printf 'done  %-28s %4d s   %d executables, %d tests passed\n' "tests of $preset" $((SECONDS - t)) ${#executables[@]} $((passed - before))
}
unit release '^test_'
unit asan '^test_'
# The second compiler says what it thinks of arithmetic and memory; the judge and whole runs would only repeat it.
unit clang '^test_(core|ref|gpu|sim)_'
# Criterion itself does not run under the thread sanitizer; shared memory and streams have a program of their own.
step build-tsan ci/build.sh tsan assay_sim_threads && step tsan-shared-memory build/tsan/bin/assay_sim_threads
step races build/release/bin/assay_sim_races # instrumented: not for Criterion
step sanitize tests/sim/races/sanitize.sh build/release/bin/assay build/release/bin/assay_sim_races
step engine-races ci/engine_races.sh
beside selftest build/release/bin/assay selftest # a process or a compiler at a time each
beside mutants ci/mutants.sh --fast
together
step parity build/release/bin/assay run --report build/test-report
step random-cases ci/random_cases.sh # hundreds by hand
step kills ci/kills.sh --steps 8 --runs 2 # of the 300 and 100 that it does by itself; alone, because it kills within the time that a run took before
beside certify build/release/bin/assay certify --engine sim --seeds 1 # one process most of its time
beside install ci/install_check.sh
beside package ci/package.sh
beside fuzz ci/fuzz.sh # of hours by hand
together
finish
