#!/usr/bin/env bash
# `cmake --install` puts programs, cases, headers and the library where they can be used from: a stranger's program is built
# through find_package, through pkg-config and as a parent project, and run; every example runs from there (ci/examples.sh).  The
# argument is the build folder.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
cmake --install "$build" --prefix "$prefix" >/dev/null
test -x "$prefix/bin/assay"
test -x "$prefix/bin/assay-sim"
test -x "$prefix/bin/assay-cc"
"$prefix/bin/assay" doctor
test -f "$prefix/share/assay/golden/assay_trace/__init__.py"
for page in assay assay-cc; do
    mandoc -Tlint -W warning <(zcat "$prefix/share/man/man1/$page.1.gz")
done

# consumer NAME PROGRAM: runs it in a folder of its own.
consumer() {
    mkdir "$prefix/$1-data"
    "$2" "$prefix/$1-data"
    echo "install: linked through $1"
}
cmake -S ci/consumer -B "$prefix/by-cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_FLAGS="-Wall -Wextra -Werror" >/dev/null
cmake --build "$prefix/by-cmake" >/dev/null
consumer find_package "$prefix/by-cmake/consumer"

pc=$(find "$prefix" -name assay.pc -printf '%h')
read -ra flags < <(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs assay)
"${CC:-cc}" -std=c17 -Wall -Wextra -Werror ci/consumer/main.c -o "$prefix/by-pkg-config" "${flags[@]}"
consumer pkg-config "$prefix/by-pkg-config"

cmake -S ci/consumer -B "$prefix/by-source" -DASSAY_SOURCE="$PWD" -DASSAY_CUDA=OFF >/dev/null
cmake --build "$prefix/by-source" --target consumer -j "$(nproc)" >/dev/null
grep -q 'ASSAY_WERROR:BOOL=OFF' "$prefix/by-source/CMakeCache.txt"
grep -q 'ASSAY_BUILD_TESTS:BOOL=OFF' "$prefix/by-source/CMakeCache.txt"
consumer add_subdirectory "$prefix/by-source/consumer"

ci/examples.sh "$prefix"
