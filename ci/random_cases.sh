#!/usr/bin/env bash
# Cases that nobody thought of, drawn from numbers by `assay draw-case`, through `assay run`:
#   ci/random_cases.sh [FIRST [COUNT]]      default: 0 12
# Every layout, precision and kernel selection of each.  A case that does not pass stays in build/release/random/ (BUILD: in place of build/release), and its number is printed.
set -euo pipefail
cd "$(dirname "$0")/.."
first=${1:-0} count=${2:-12} build=${BUILD:-build/release}
out=$build/random failed=()
[[ $first =~ ^[0-9]+$ && $count =~ ^[1-9][0-9]*$ ]] || {
    echo "ci/random_cases.sh: expected [FIRST [COUNT]], found $*" >&2
    exit 2
}
[[ -x $build/bin/assay ]] || ci/build.sh release assay assay-sim
rm -rf "$out"
mkdir -p "$out"
tasks=0
for ((at = first; at < first + count; at++)); do
    "$build/bin/assay" draw-case "$at" --out "$out/$at.json"
    if "$build/bin/assay" run --engine sim --quiet --matrix full --report "$out/$at.report" "$out/$at.json" >"$out/$at.log" 2>&1; then
        tasks=$((tasks + $(sed -nE 's/^([0-9]+) tasks in .*/\1/p' "$out/$at.log")))
        rm -r "$out/$at.report" "$out/$at.log" "$out/$at.json"
    else
        failed+=("$at")
        tail -n 25 "$out/$at.log" >&2
        echo "random_cases: case $at did not pass; again with: assay draw-case $at --out $at.json && assay run $at.json" >&2
    fi
    [[ ! -t 2 ]] || printf '\rrandom_cases: %d of %d' $((at - first + 1)) "$count" >&2
done
[[ ! -t 2 ]] || printf '\n' >&2
echo "random_cases: $count cases from $first, $tasks tasks passed, ${#failed[@]} cases failed${failed[*]:+: ${failed[*]}}"
[[ ${#failed[@]} -eq 0 ]]
