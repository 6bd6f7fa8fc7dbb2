#!/usr/bin/env bash
# Style that a compiler does not see: formatting, verdicts that a NaN would pass, forbidden words, file sizes.
set -uo pipefail
cd "$(dirname "$0")/.."
bad=0
complain() { echo "lint: $*"; bad=1; }

mapfile -t sources < <(git ls-files --cached --others --exclude-standard -- '*.c' '*.h' '*.cu' '*.cuh' '*.cpp')
((${#sources[@]})) || { echo "lint: git lists no sources" >&2; exit 2; }
if command -v clang-format >/dev/null; then
    clang-format --dry-run -Werror "${sources[@]}" || complain "clang-format -i the files above"
else
    complain "clang-format is missing: ci/setup.sh installs it"
fi
# A verdict is `pass = (error <= bound)`; `if (error > bound) fail` lets a NaN pass.
verdict='if *\([^;]*\b(err|error|diff|ratio|dist|distance)[a-z_]* *>=? *[^;]*(bound|tol|allow|limit|thresh)'
grep -nE "$verdict" "${sources[@]}" && complain "write verdicts as pass = (error <= bound)"
# Engines: no global switches for arithmetic, no random numbers, no clock in results.
grep -nE '\b(rand|srand|drand48|random)\(' "${sources[@]}" && complain "no rand(): draws are counter-based (core/base/philox.h)"
grep -nE -- '-ffast-math|-Ofast|use_fast_math' CMakeLists.txt cmake/*.cmake gpu/cuda/CMakeLists.txt gpu/sim/CMakeLists.txt && complain "no fast-math"
grep -nE '\b(TODO|FIXME|XXX)\b' "${sources[@]}" | grep -vE '#[0-9]+|XXXXXX' && complain "a TODO names an issue number"
git grep -nE '^(<<<<<<<|>>>>>>>)( |$)' && complain "a conflict marker"
for f in "${sources[@]}"; do
    [[ $f == parity/assay_kernel_ops.h ]] && continue # nobody writes it: assay certify --abi-header, as long as the table of operations
    n=$(wc -l <"$f")
    ((n <= 800)) || complain "$f: $n lines (ceiling 800)"
done
# Kernels are launched in one place only.
grep -nE '<<<' gpu/ops/*.cu gpu/*.c gpu/parallel/*.c 2>/dev/null && complain "launch through GPU_LAUNCH"
# Planted bugs name their places by text: ci/mutants.sh builds them, minutes later.
while read -r f; do
    mapfile -t mutants < <(grep -lxF "in $f" tests/mutants/*.mutant)
    ((${#mutants[@]} > 0)) || complain "$f: no planted bug names it exactly so"
    awk -v source="$f" -v path="$f" -f tests/mutants/plant.awk "${mutants[@]}" </dev/null >/dev/null || complain "$f: the planted bugs above"
done < <(sed -n 's/^in //p' tests/mutants/*.mutant | sort -u)
((bad == 0)) && echo "lint: ${#sources[@]} files clean"
exit $bad
