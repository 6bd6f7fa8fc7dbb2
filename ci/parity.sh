#!/usr/bin/env bash
# The main job on a fresh Debian machine: installs what is missing, builds, runs `assay run`.
# Arguments go to `assay run` (see `build/release/bin/assay run --help`).
set -euo pipefail
cd "$(dirname "$0")/.."
ci/setup.sh --minimal
ci/build.sh release assay assay-sim $(command -v nvcc >/dev/null && echo all)
exec build/release/bin/assay run "$@"
