#!/usr/bin/env bash
# Readers of files from outside under libFuzzer with the address and undefined-behaviour sanitizers (tests/fuzz): no input may crash
# them, break a law, take more than 5 s or 2 GB, or ask for 256 MB at once.
#   ci/fuzz.sh                 a fixed number of inputs for each target of core from one seed, so that green is green again
#   ci/fuzz.sh SECONDS [TARGET...]   so many seconds for each target, those of the judge, too (or those named), from a seed of its own; what
#                                    it finds that is new stays in build/fuzz/corpus, and is used again
# An input that fails lies in build/fuzz/failed; ASSAY_FUZZ_SAY=1 ASSAY_FUZZ_TARGET=... build/fuzz/bin/assay-fuzz FILE runs it alone.
# It then belongs into tests/fuzz/corpus/TARGET, which tests/parity/test_corpus.c runs in every build.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
seconds=${1:-}
shift || true
program=assay-fuzz
[[ -z $seconds ]] || program=assay-fuzz-judge
declare -A runs # inputs of the short run: each takes about two seconds of one core
runs=([safetensors]=20000 [folder]=6000 [batches]=10000 [checkpoint]=800 [paddle]=1500 [trace]=2500 [record]=40000 [config]=10000
      [layout]=60000 [options]=15000 [map]=6000 [tokenizer]=1500 [text]=10000 [dataset]=15000 [adapter]=8000 [pattern]=20000 [quantized]=10000)
# A target that the pattern below misses, or that has no seeds or no number of runs, would be left out unseen.
named() { sed -nE "$1"' s/^ *\{"([^"]+)",.*/\1/p' tests/fuzz/targets.c; }
agree() { # agree WHAT FOUND EXPECTED: lists of lines
    local differs
    differs=$(diff <(LC_ALL=C sort <<<"$2") <(LC_ALL=C sort <<<"$3") | sed -nE 's/^</  there is:/p; s/^>/  expected:/p')
    [[ -z $differs ]] || { printf 'fuzz: %s are not the targets of tests/fuzz/targets.c\n%s\n' "$1" "$differs" >&2; exit 2; }
}
mapfile -t core < <(named '/FUZZ_JUDGE$/q;')
mapfile -t all < <(named '')
agree "the numbers of runs" "$(printf '%s\n' "${!runs[@]}")" "$(printf '%s\n' "${core[@]}")"
agree "the folders of tests/fuzz/corpus" "$(ls tests/fuzz/corpus)" "$(printf '%s\n' "${all[@]}")"
targets=("$@")
((${#targets[@]})) || if [[ -n $seconds ]]; then targets=("${all[@]}"); else targets=("${core[@]}"); fi
ci/build.sh fuzz "$program" >/tmp/assay-build-fuzz.log 2>&1 || { tail -20 /tmp/assay-build-fuzz.log >&2; exit 2; }
mkdir -p build/fuzz/failed
# Words that the readers know, from their own source.
grep -ohE '"[A-Za-z_.]{2,40}"' core/*/*.c | LC_ALL=C sort -u >build/fuzz/words.dict
bad=0 total=0 same=()
for target in "${targets[@]}"; do
    seeds=tests/fuzz/corpus/$target
    [[ -d $seeds && ( -n $seconds || -n ${runs[$target]:-} ) ]] || { echo "fuzz: $target: no corpus or no number of runs" >&2; exit 2; }
    kept=build/fuzz/corpus/$target
    if [[ -n $seconds ]]; then
        how=(-max_total_time="$seconds")
    else
        how=(-runs="${runs[$target]}" -seed=1 -reload=0)
        # libFuzzer learns from compared addresses, too; a container may forbid this.
        setarch "$(uname -m)" -R true 2>/dev/null && same=(setarch "$(uname -m)" -R)
        kept=build/fuzz/short
        rm -rf "$kept"
    fi
    mkdir -p "$kept"
    log=build/fuzz/$target.log
    OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 ASSAY_FUZZ_TARGET=$target "${same[@]}" build/fuzz/bin/"$program" "${how[@]}" -max_len=32000 -len_control=20 -timeout=5 -rss_limit_mb=2048 -malloc_limit_mb=256 \
        -dict=build/fuzz/words.dict -artifact_prefix="build/fuzz/failed/$target-" -print_final_stats=1 "$kept" "$seeds" >"$log" 2>&1
    code=$?
    n=$(sed -nE 's/^stat::number_of_executed_units: *([0-9]+)/\1/p' "$log")
    cov=$(sed -nE 's/.* cov: ([0-9]+) .*/\1/p' "$log" | tail -1)
    total=$((total + ${n:-0}))
    printf '%-12s %9d inputs, %5d edges%s\n' "$target" "${n:-0}" "${cov:-0}" "$( ((code == 0)) || echo ", FAILED: $log")"
    if ((code != 0 || ${n:-0} == 0)); then
        bad=1
        grep -vE '^#|^INFO|^DICT' "$log" | head -40
    fi
done
((total > 0)) || bad=1
echo "fuzz: $total inputs, $( ((bad)) && echo "some FAILED: build/fuzz/failed" || echo "none failed")"
exit $bad
