#!/usr/bin/env bash
# Configures and builds one preset: ci/build.sh [release|asan|tsan|clang|cuda] [target...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset="${1:-release}"
shift || true
generator=() launcher=()
command -v ninja >/dev/null && [[ ! -f "build/$preset/CMakeCache.txt" ]] && generator=(-G Ninja)
# figures of kernels beside their objects, for ci/kernels.sh
[[ -z ${ASSAY_KERNEL_FIGURES:-} ]] || launcher=("-DCMAKE_CUDA_COMPILER_LAUNCHER=$PWD/ci/nvcc_figures.sh")
cmake --preset "$preset" "${generator[@]}" "${launcher[@]}" >"/tmp/assay-configure-$preset.log" 2>&1 || {
    cat "/tmp/assay-configure-$preset.log" >&2
    exit 1
}
grep -- '-- assay-gpu' "/tmp/assay-configure-$preset.log" || true
targets=()
for t in "$@"; do targets+=(--target "$t"); done
cmake --build --preset "$preset" "${targets[@]}" -j "$(nproc)"
