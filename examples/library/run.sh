#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-$(mktemp -d)}
[[ -n ${1:-} ]] || trap 'rm -rf "$dir"' EXIT

# The library lies beside the program.
prefix=$(cd "$(dirname "$(command -v assay)")/.." && pwd)
cmake -S "$here" -B "$dir/build" -DCMAKE_PREFIX_PATH="$prefix" >"$dir/cmake.txt"
cmake --build "$dir/build" >>"$dir/cmake.txt"
"$dir/build/record" "$dir/trace"
assay replay "$dir/trace"
assay replay --suggest "$dir/trace"

"$dir/build/record" "$dir/wrong" wrong
code=0
assay replay "$dir/wrong" >"$dir/wrong.txt" || code=$?
grep -m1 '^FAIL  .*mine' "$dir/wrong.txt"
((code == 1))
