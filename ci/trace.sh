#!/usr/bin/env bash
# Tests of the trace package (golden/assay_trace) on real PyTorch, on the CPU: not part of ci/test.sh, which needs no Python.
#   ci/trace.sh [PYTHON]   ASSAY: the program that replays (build/dev/bin/assay or build/release/bin/assay)
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
if ! "$python" -c 'import torch, transformers' 2>/dev/null; then
    echo "ci/trace.sh: SKIPPED: no torch and transformers in $python; 1 suite was not run" >&2
    exit 2 # could not be checked
fi
for program in build/release/bin/assay build/dev/bin/assay; do
    [ -x "$program" ] && ASSAY=${ASSAY:-$PWD/$program}
done
[ -x "${ASSAY:-}" ] || { echo "ci/trace.sh: no assay program: set ASSAY" >&2; exit 1; }
export ASSAY
exec "$python" -m unittest discover -s golden/tests -v
