#!/usr/bin/env bash
# nvcc as a compiler launcher calls it, which leaves what ci/kernels.sh reads beside the object: OBJECT.figures/NAME.compute_80.ptx and the
# rest, one for each architecture, OBJECT.figures/log, what ptxas says of registers, and OBJECT.figures/version, of nvcc.  So a kernel is compiled once where both are
# wanted (ci/test.sh):
#   ASSAY_KERNEL_FIGURES=1 ci/build.sh release      sets -DCMAKE_CUDA_COMPILER_LAUNCHER=ci/nvcc_figures.sh
set -euo pipefail
object='' before=''
for word in "$@"; do
    [[ $before != -o ]] || object=$word
    before=$word
done
if [[ $object != *.cu.o ]]; then
    exec "$@"
fi
kept=$object.figures
rm -rf "$kept"
mkdir -p "$kept"
"$1" --version >"$kept/version"
code=0
"$@" -Xptxas -v --keep --keep-dir "$kept" 2>"$kept/log" || code=$?
# what is no figure is the compiler's word to whoever builds
grep -vE '^ptxas info|^ +[0-9]+ bytes stack frame, ' "$kept/log" >&2 || true
find "$kept" -type f ! -name '*.ptx' ! -name log ! -name version -delete
exit "$code"
