#!/usr/bin/env bash
# CPU seconds of the bounds of one training step of a Llama beside one step of PyTorch in double, on one thread each, by turns, the
# least of several runs: what `assay replay` costs.  Goal: at most 2.5.  On a shared machine the ratio moves by a tenth.
# Argument: a build folder (default build/release).  PYTHON: a Python with torch and transformers.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release} python=${PYTHON:-python3} turns=${TURNS:-3}
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
cmake --build "$build" --target bench_bounds >/dev/null
# layers hidden ffn heads groups sequence batch vocabulary
while read -r -a size; do
    bounds='' torch=''
    for ((i = 0; i < turns; i++)); do
        line=$("$build/bin/bench_bounds" "${size[@]}")
        bounds+="$line"$'\n' torch+="$("$python" ci/bench/step.py "${size[@]}")"$'\n'
    done
    bounds=$(awk 'NF { t = $NF; if (best == "" || t < best) { best = t; line = $0 } } END { print line }' <<<"$bounds")
    torch=$(sort -g <<<"$torch" | awk 'NF { print; exit }')
    awk -v s="${size[*]}" -v b="$bounds" -v t="$torch" 'BEGIN { n = split(b, w, " "); printf "%s: %s; PyTorch %s; ratio %.2f\n", s, b, t, w[n] / t }'
done <<'SIZES'
4 256 688 8 4 256 2 2048
2 512 1376 8 4 256 2 4096
2 1024 2752 16 8 256 1 4096
SIZES
