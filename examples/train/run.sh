#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-$(mktemp -d)}
[[ -n ${1:-} ]] || trap 'rm -rf "$dir"' EXIT

run=(assay train --engine sim --config "$here/config.json" --data "$here/../../golden/text/travels.txt" --seq-length 24
     --micro-batch-size 1 --global-batch-size 4 --lr 1e-2 --lr-decay-style cosine --lr-decay-iters 8 --log-interval 4)
"${run[@]}" --train-iters 8 --layout dp2 --metrics "$dir/whole.jsonl"
"${run[@]}" --train-iters 4 --layout dp2 --save "$dir/checkpoints"
"${run[@]}" --train-iters 8 --layout tp2,dp2,zero1 --load "$dir/checkpoints" --save "$dir/checkpoints" --metrics "$dir/resumed.jsonl" --export "$dir/model"

# losses FILE: of steps 5 to 8
losses() { sed -nE 's/.*"iteration": ?([0-9]+),.*"loss": ?([0-9.e-]+).*/\1 \2/p' "$1" | tail -n 4; }
echo "step, loss at once, loss continued in another layout:"
paste -d' ' <(losses "$dir/whole.jsonl") <(losses "$dir/resumed.jsonl") | awk '
    {print $1, $2, $4; d = $2 - $4; if (d < 0) d = -d; if ($1 != $3 || !(d <= 1e-5 * $2)) bad = 1}
    END {exit bad || NR != 4}'

assay batch --data "$here/../../golden/text/travels.txt" --seq-length 24 --micro-batch-size 2 --global-batch-size 2 --train-iters 1 --out "$dir/batch.safetensors"
assay step --engine ref --model "$dir/model" --batch "$dir/batch.safetensors" --out "$dir/out.safetensors"
