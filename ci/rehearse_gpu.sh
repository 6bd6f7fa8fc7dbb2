#!/usr/bin/env bash
# Rehearses ci/gpu.sh where there is no GPU: a bare root with the tracked tree at another path, the stripped programs of
# build/cuda, a stub nvidia-smi, the CUDA libraries only inside a Python package, no /usr/local/cuda, no network but lo, no
# compiler, no git.  Needs root (mounts of its own: unshare, chroot) and libcublasLt.so.13 and libnccl.so.2 somewhere.
#
#   ci/rehearse_gpu.sh [--build DIR] [--sim PROGRAM] [ARGUMENTS OF ci/gpu.sh for part 3]
#
# 1 without NCCL: nothing runs, exit 2.  2 assay-gpu itself: no device answers, exit 2.  3 assay-sim where assay-gpu is, with a
# compute-sanitizer that runs its program unwatched: the slices (all, or those of the arguments), twice, then from the pack.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.." || exit 2
. ci/gpu_libraries.sh
build=build/cuda sim=build/release/bin/assay-sim
while [[ ${1:-} == --build || ${1:-} == --sim ]]; do
    if [[ $1 == --build ]]; then build=$2; else sim=$2; fi
    shift 2
done
for program in "$build/bin/assay" "$build/bin/assay-gpu" "$sim"; do
    [[ -x $program ]] || { echo "rehearse: $program is missing" >&2; exit 2; }
done
if ! blas=$(gpu_find_library libcublasLt.so.13) || ! nccl=$(gpu_find_library libnccl.so.2); then
    echo "rehearse: libcublasLt.so.13 or libnccl.so.2 is nowhere" >&2
    exit 2
fi
root=$(mktemp -d /tmp/assay-rehearsal-XXXXXX)
trap 'rm -rf --one-file-system "$root"' EXIT
site=$root/opt/venv/lib/python3.12/site-packages
tree=$root/home/ci/assay

with_libraries() { # copies a program or library and what it is linked with
    local file
    for file in "$@"; do
        cp -L --parents "$file" "$root" 2>/dev/null
        ldd "$file" 2>/dev/null | grep -oE '/[^ ]+' | grep -v cuda | while read -r file; do
            [[ -e $root$file ]] || cp -L --parents "$file" "$root"
        done
    done
}
mkdir -p "$root"/{proc,dev,tmp,etc,usr/bin,usr/sbin,stubs,opt/venv/bin} "$site/nvidia/"{cu13,nccl}/lib "$tree"
ln -s usr/bin "$root/bin"
for name in bash sh env cat head tail sed grep awk mktemp mkdir rm mv cp ls sort cut tr wc date stat find tar gzip timeout sleep \
    flock readlink dirname basename sha256sum nproc ldd touch ln xargs; do
    with_libraries "$(readlink -f "$(command -v "$name")")"
    [[ -e $root/usr/bin/$name ]] || cp -L "$(command -v "$name")" "$root/usr/bin/$name"
done
with_libraries "$build/bin/assay" "$build/bin/assay-gpu" "$sim"
cp -L --parents /lib64/ld-linux-x86-64.so.2 "$root"
rm -rf "${root:?}/build" "${root:?}/work"
git ls-files -z ci parity/cases golden | xargs -0 cp --parents -t "$tree"
mkdir -p "$tree/build/cuda/bin" "$tree/build/sim/bin"
cp "$build/bin/assay" "$build/bin/assay-gpu" "$tree/build/cuda/bin/"
strip "$tree/build/cuda/bin/"*
cp "$tree/build/cuda/bin/assay" "$tree/build/sim/bin/"
cp "$sim" "$tree/build/sim/bin/assay-gpu"
printf '#!/bin/sh\necho "stub: no NVIDIA driver"\nexit 9\n' >"$root/stubs/nvidia-smi"
printf '#!/bin/sh\necho /opt/venv/lib/python3.12/site-packages\n' >"$root/opt/venv/bin/python3"
# compute-sanitizer OPTION... PROGRAM ARGUMENT...
cat >"$root/stubs/compute-sanitizer" <<'STUB'
#!/bin/bash
while [[ $1 == --* ]]; do shift 2; done
exec "$@"
STUB
chmod +x "$root"/stubs/* "$root/opt/venv/bin/python3"
du -sh "$tree/build/cuda/bin" | sed 's/^/rehearse: carried programs: /'

inside() { # inside COMMAND: mounts of its own, lo alone, a bare environment
    # shellcheck disable=SC2016 # expanded by the shell inside
    unshare --mount --net --pid --fork bash -c '
        root=$1 site=$2 blas=$3 nccl=$4 command=$5
        ip link set lo up
        mount -t proc proc "$root/proc" && mount --bind /dev "$root/dev" || exit 2
        touch "$site/nvidia/cu13/lib/libcublasLt.so.13"
        mount --bind "$blas" "$site/nvidia/cu13/lib/libcublasLt.so.13"
        if [[ -n $nccl ]]; then
            touch "$site/nvidia/nccl/lib/libnccl.so.2"
            mount --bind "$nccl" "$site/nvidia/nccl/lib/libnccl.so.2"
        fi
        exec chroot "$root" /usr/bin/env -i PATH=/stubs:/opt/venv/bin:/usr/bin HOME=/home/ci TMPDIR=/tmp \
            bash -c "cd /home/ci/assay && $command"' _ "$root" "$site" "$(readlink -f "$blas")" "$1" "$2"
}
part() { # part TITLE EXIT NCCL COMMAND
    local code=0 t=$SECONDS
    echo "rehearse: --- $1"
    inside "$3" "$4" || code=$?
    ((code == $2)) || { echo "rehearse: FAIL: expected exit $2, found $code"; exit 1; }
    echo "rehearse: exit $code as expected, $((SECONDS - t)) s"
}
wheel=$(readlink -f "$nccl")
run="ci/gpu.sh --rehearse --build build/sim --out /tmp/sim"
part "a library is missing" 2 '' "ci/gpu.sh --out /tmp/missing"
part "assay-gpu, no device" 2 "$wheel" "ci/gpu.sh --out /tmp/gpu"
# All slices without the verb bench: one could not run, and that is said.
wanted=0
if [[ " $* " != *" --slice "* || " $* " == *" rates "* ]] && ! "$build/bin/assay" help | grep -E '^ +bench ' >/dev/null; then wanted=2; fi
part "assay-sim where assay-gpu is" "$wanted" "$wheel" "$run $*"
part "again: nothing is left to do" "$wanted" "$wheel" "$run $*"
part "a fresh machine with the pack" "$wanted" "$wheel" "mv /tmp/sim /tmp/old && $run --resume /tmp/old/gpu-rehearsal.tar.gz $*"
cp "$root/tmp/sim/gpu-rehearsal.tar.gz" "$build/" && echo "rehearse: the pack is $build/gpu-rehearsal.tar.gz"
tar -tzf "$build/gpu-rehearsal.tar.gz" | grep -E 'marks/|summary|results' | sort | head -n 40
