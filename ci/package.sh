#!/usr/bin/env bash
# The Debian package of a build: made by CPack, looked at, installed into a root of its own, run from there, removed again.
#   ci/package.sh [BUILD]     the package stays in BUILD/package
# lintian speaks where it is installed, and its errors count.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(cd "${1:-build/release}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
complain() { echo "package: $*" >&2; exit 1; }

rm -rf "$build/package"
cpack --config "$build/CPackConfig.cmake" >"$work/cpack.txt" 2>&1 || { cat "$work/cpack.txt" >&2; complain "cpack failed"; }
deb=$(echo "$build"/package/*.deb)
[[ -f $deb ]] || complain "cpack made no single package: $deb"

# What it says of itself.
version=$(sed -nE 's/^project\(assay VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
field() { dpkg-deb -f "$deb" "$1"; }
[[ $(field Package) == assay && $(field Version) == "$version-1" && $(field Architecture) == "$(dpkg --print-architecture)" ]] ||
    complain "$(dpkg-deb -f "$deb" Package Version Architecture)"
depends=$(field Depends)
for library in libc6 libjansson4 libsodium23 libutf8proc2 libopenblas0 libgomp1; do
    [[ $depends == *"$library"* ]] || complain "Depends lacks $library: $depends"
done

# What it holds.
dpkg-deb -c "$deb" >"$work/list.txt"
for path in usr/bin/assay usr/bin/assay-sim usr/bin/assay-cc usr/share/man/man1/assay-cc.1.gz usr/include/assay/cudasim/cuda_runtime.h usr/share/man/man1/assay.1.gz usr/share/man/man1/assay-sim.1.gz usr/share/doc/assay/copyright \
    usr/share/doc/assay/changelog.gz usr/share/bash-completion/completions/assay usr/include/assay/core/files/trace.h usr/lib/libassay_core.a \
    usr/share/assay/golden/assay_trace/__init__.py usr/share/assay/golden/pyproject.toml usr/share/assay/parity/cases/llama.json \
    usr/share/assay/examples/parity/run.sh usr/share/assay/docs/DEBUG.md; do
    grep -qE " \./${path/lib\/libassay/lib\/(.*\/)?libassay}( |\$)" "$work/list.txt" || complain "$path is missing"
done
grep -E '__pycache__|\.pyc|/core/.*_internal|/CMakeFiles/' "$work/list.txt" && complain "holds what no user needs"
awk '$1 !~ /^d/ && $2 != "root/root"' "$work/list.txt" | grep . && complain "files of another owner than root"

# Installed by dpkg into a root of its own; its libraries are this machine's.
root=$work/root
mkdir -p "$root"/var/lib/dpkg/{info,updates} "$root"/usr/bin
touch "$root"/var/lib/dpkg/{status,available}
dpkg_in() { dpkg --root="$root" --force-not-root --force-script-chrootless --force-depends --log="$work/dpkg.log" "$@"; }
dpkg_in -i "$deb" >"$work/dpkg.txt" 2>&1 || { cat "$work/dpkg.txt" >&2; complain "dpkg -i failed"; }
[[ -z $(dpkg_in -V assay) ]] || complain "installed files differ from the package's"
file -b "$root/usr/bin/assay" | grep -q ', stripped' || complain "the program is not stripped"
"$root/usr/bin/assay" doctor | grep -c "$root/usr/bin/assay-sim" >/dev/null || complain "doctor does not find the engine beside the program"
[[ $("$root/usr/bin/assay" --version) == "assay $version" ]] || complain "--version"
zcat "$root/usr/share/man/man1/assay.1.gz" | mandoc -Tlint -W warning || complain "the manual page"
bash -c "source '$root/usr/share/bash-completion/completions/assay' && complete -p assay" >/dev/null || complain "the completion"
"$root/usr/bin/assay" run --quiet --case llama --layout tp2,sp --precision bf16 --report "$work/report" >"$work/run.txt" || { tail -5 "$work/run.txt" >&2; complain "assay run"; }
tail -1 "$work/run.txt" | grep -q ' 0 failed, 0 skipped' || complain "$(tail -1 "$work/run.txt")"
dpkg_in -P assay >"$work/dpkg.txt" 2>&1 || { cat "$work/dpkg.txt" >&2; complain "dpkg -P failed"; }
[[ -z $(find "$root" -path "$root/var" -prune -o -name '*assay*' -print) ]] || complain "removed, and not gone"

lint="lintian is not installed, it was not asked"
if command -v lintian >/dev/null; then
    lintian --allow-root --tag-display-limit 0 "$deb" >"$work/lintian.txt" 2>&1 || true
    grep '^E: ' "$work/lintian.txt" && complain "lintian has errors"
    lint="lintian: no errors, $(grep -c '^W: ' "$work/lintian.txt" || true) warnings"
    cp "$work/lintian.txt" "$build/package/lintian.txt"
fi
echo "package: $(basename "$deb"), $(($(stat -c %s "$deb") / 1024)) KiB; $(tail -1 "$work/run.txt"); $lint"
