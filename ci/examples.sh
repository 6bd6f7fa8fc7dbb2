#!/usr/bin/env bash
# Every example, and the workflows of examples/ci, as an installed tree has them: ci/examples.sh PREFIX
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(cd "$1" && pwd)
examples=$prefix/share/assay/examples
export PATH=$prefix/bin:$PATH
[[ $(command -v assay) == "$prefix/bin/assay" ]]
log=$(mktemp)
trap 'rm -f "$log"' EXIT
n=0
for run in "$examples"/*/run.sh; do
    name=$(basename "$(dirname "$run")")
    t=$SECONDS
    "$run" >"$log" 2>&1 || { cat "$log" >&2; echo "examples: $name failed" >&2; exit 1; }
    grep -q "^| \`$name/\` |" "$examples/README.md" || { echo "examples: README.md does not name $name" >&2; exit 1; }
    echo "examples: $name ran in $((SECONDS - t)) s"
    n=$((n + 1))
done
((n == $(git ls-files 'examples/*/run.sh' | wc -l) && n >= 4)) || { echo "examples: $n ran, the tree has another number" >&2; exit 1; }
ci/workflows.sh "$examples"
