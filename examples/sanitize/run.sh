#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-}
[[ $out ]] || { out=$(mktemp -d); trap 'rm -rf "$out"' EXIT; }

# says EXIT-CODE WORDS COMMAND...: it ends so, and prints a line that holds the words.
says() {
    local code=$1 words=$2 said got=0
    shift 2
    said=$("$@" 2>&1) || got=$?
    printf '%s\n' "$said"
    [[ $got == "$code" && $said == *"$words"* ]] || { echo "expected exit code $code and: $words" >&2; exit 1; }
}
assay-cc -arch=sm_90 -O2 -o "$out/histogram" "$here/histogram.cu"
# Shared memory that nobody wrote: a GPU often gives 0, the simulator -1.
says 1 'row 0 bin 0: 86, expected 87' "$out/histogram"
# A missing barrier: a thread reads what its neighbour has not written yet, a NaN.
says 1 'sum of squares -nan, expected 164800' "$out/histogram"
assay-cc -DFIXED -o "$out/fixed" "$here/histogram.cu"
for order in forward reverse random:1 random:2; do
    says 0 RIGHT env ASSAY_SIM_ORDER=$order "$out/fixed"
done
