#!/usr/bin/env bash
# Lines and branches of the readers that the inputs reach: tests/fuzz/corpus, and build/fuzz/corpus where ci/fuzz.sh SECONDS left one.
# By hand; the table of docs/CHECKPOINT.md.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/fuzz-coverage
flags='-fprofile-instr-generate -fcoverage-mapping'
cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DASSAY_FUZZ=ON -DASSAY_CUDA=OFF \
    -DASSAY_BUILD_TESTS=OFF -DCMAKE_C_FLAGS="$flags" -DCMAKE_EXE_LINKER_FLAGS="$flags" >/dev/null
ninja -C $build assay-fuzz >/dev/null
rm -rf $build/profiles
for seeds in tests/fuzz/corpus/*; do
    target=$(basename "$seeds")
    grep -q "^    {\"$target\"" <(sed '/FUZZ_JUDGE$/,$d' tests/fuzz/targets.c) || continue
    folders=("$seeds")
    [[ ! -d build/fuzz/corpus/$target ]] || folders+=("build/fuzz/corpus/$target")
    LLVM_PROFILE_FILE=$build/profiles/$target.profraw ASSAY_FUZZ_TARGET=$target $build/bin/assay-fuzz -runs=0 "${folders[@]}" >/dev/null 2>&1
done
llvm-profdata merge -sparse $build/profiles/*.profraw -o $build/all.profdata
llvm-cov report -instr-profile=$build/all.profdata $build/bin/assay-fuzz core/files/*.c core/base/json.c core/base/text.c core/model/config*.c \
    core/model/layout.c core/model/pipeline_layout.c core/model/names_file.c core/run/options.c core/run/options_argp.c |
    awk '$1 ~ /\.c$/ || $1 == "TOTAL" {printf "%-32s %6d lines %5s   %5d branches %5s\n", $1, $8, $10, $11, $13}'
