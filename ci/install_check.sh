#!/usr/bin/env bash
# `cmake --install` puts programs and cases where they can be used from.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install build/release --prefix "$prefix" >/dev/null
test -x "$prefix/bin/assay"
test -x "$prefix/bin/assay-sim"
"$prefix/bin/assay" doctor
