#!/usr/bin/env bash
# Lines and branches of the engine that `assay run` alone executes, per file of gpu/ops, gpu/parallel and gpu; fails when a line is
# neither executed nor listed in docs/DETECTION.md, or when a row of that list became wrong.  Arguments go to `assay run`;
# --missing prints rows for the lines that are not listed.  About five minutes on two cores, so ci/test.sh does not run it.
set -euo pipefail
cd "$(dirname "$0")/.."
missing=() arguments=()
for a in "$@"; do
    if [[ $a == --missing ]]; then missing=(--missing); else arguments+=("$a"); fi
done
command -v gcovr >/dev/null || { echo "coverage: gcovr is missing: ci/setup.sh installs it" >&2; exit 2; }
ci/build.sh coverage assay assay-sim
build=build/coverage
find "$build" -name '*.gcda' -delete
OPENBLAS_NUM_THREADS=1 "$build/bin/assay" run --engine sim --report "$build/report" "${arguments[@]}" | tail -n 2
gcovr --root . --object-directory "$build" --filter 'gpu/(ops|parallel)/' --filter 'gpu/[^/]*$' --json "$build/coverage.json" "$build" >/dev/null
python3 ci/coverage.py "$build/coverage.json" docs/DETECTION.md "${missing[@]}"
