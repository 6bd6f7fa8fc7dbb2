#!/usr/bin/env bash
set -euo pipefail
case=$(cd "$(dirname "$0")" && pwd)/case.json
dir=${1:-$(mktemp -d)}
[[ -n ${1:-} ]] || trap 'rm -rf "$dir"' EXIT

for part in 1 2; do
    assay run "$case" --quiet --shard $part/2 --report "$dir/part$part"
done
assay report merge "$dir/part1" "$dir/part2" --report "$dir/whole" --summary "$dir/summary.md"

# A wrong engine: exit code 1, and the report says which operation.
code=0
assay run "$case" --quiet --layout tp2,sp --precision fp32 --fault skip:decoder.layers.1.mlp.residual --report "$dir/wrong" >"$dir/wrong.txt" || code=$?
grep -m1 '^FAIL .*decoder.layers.1.mlp' "$dir/wrong.txt"
((code == 1))
