#!/usr/bin/env bash
set -euo pipefail
planted=$(cd "$(dirname "$0")/../../golden/planted" && pwd)

# sentence TRACE MODEL EXIT-CODE WORDS: the last line of the verdict holds the words.
sentence() {
    local said code=0
    said=$(assay check --trace "$planted/$1" --model "$planted/models/$2") || code=$?
    said=${said##*$'\n'}
    printf '%s\n    %s\n' "$1" "${said%%  (What else*}"
    [[ $code == "$3" && $said == *"$4"* ]] || { echo "expected exit code $3 and: $4" >&2; exit 1; }
}
sentence honest_llama llama 0 RIGHT
sentence theta llama 1 'theta is 500000 where 10000 is expected'
sentence gqa llama 1 'query head h reads key group h mod 2 where h / 2 is expected'
sentence labels llama 1 'the labels are not shifted'
sentence tied tied 1 'lm_head.weight is a parameter of its own'
sentence norm_topk_prob moe 1 'norm_topk_prob is false where true is expected'
