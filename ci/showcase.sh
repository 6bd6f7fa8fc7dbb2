#!/usr/bin/env bash
# docs/SHOWCASE.md: the real Megatron core in pairs of layouts on the CPU, traced, and what `assay diff` says of each.
#   ci/showcase.sh [PYTHON] [NAME...]   ASSAY: the program that judges; DIR: where traces go (kept then)
# Exit code 0: every sentence is the expected one; 1: not; 2: could not run; 3: Python has no torch or not the pinned megatron-core.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
shift || true
version=0.16.1
found=$("$python" -c 'import torch; from importlib.metadata import version; print(version("megatron-core"))' 2>/dev/null || true)
if [ "$found" != "$version" ]; then
    echo "ci/showcase.sh: SKIPPED: expected torch and megatron-core $version in $python, found ${found:-none}" \
        "(pip install --no-deps megatron-core==$version, next to torch, numpy, safetensors, absl-py); nothing was run" >&2
    exit 3
fi
for program in build/release/bin/assay build/dev/bin/assay; do
    [ -x "$program" ] && ASSAY=${ASSAY:-$PWD/$program}
done
[ -x "${ASSAY:-}" ] || { echo "ci/showcase.sh: no assay program: set ASSAY" >&2; exit 2; }
if [ -z "${DIR:-}" ]; then
    DIR=$(mktemp -d)
    trap 'rm -rf "$DIR"' EXIT
fi
PYTHONPATH=golden "$python" golden/showcase.py "$DIR" "$@" || { echo "ci/showcase.sh: a run of the Megatron core failed" >&2; exit 2; }
PYTHONPATH=golden "$python" golden/showcase.py --judge "$ASSAY" "$DIR" "$@"
