# shellcheck shell=bash
# Sourced by ci/gpu.sh: finds what assay-gpu is linked with where a machine has it only inside Python wheels
# (site-packages/nvidia/**/lib), and sets LD_LIBRARY_PATH.  ASSAY_SYSTEM_ROOT: "" or the folder that stands for / (self-test).

# Folders of Python packages: of every python3 on PATH, of the virtual environment, of the user, of the system.
gpu_site_packages() {
    local root=${ASSAY_SYSTEM_ROOT:-} directory python
    {
        [[ -n ${VIRTUAL_ENV:-} ]] && printf '%s\n' "$VIRTUAL_ENV"/lib/python3*/site-packages
        while IFS= read -r directory; do
            for python in "$directory"/python3 "$directory"/python3.[0-9] "$directory"/python3.[0-9][0-9]; do
                [[ -x $python ]] || continue
                timeout 10 "$python" -c 'import site, sys
for p in site.getsitepackages() + [site.getusersitepackages()] + sys.path: print(p)' 2>/dev/null </dev/null
                printf '%s\n' "$directory"/../lib/python3*/{site,dist}-packages
            done
        done < <(tr ':' '\n' <<<"$PATH")
        printf '%s\n' "${HOME:-/root}"/.local/lib/python3*/site-packages "$root"/usr/lib/python3*/dist-packages \
            "$root"/usr/local/lib/python3*/{site,dist}-packages "$root"/opt/*/lib/python3*/site-packages \
            "$root"/opt/*/*/lib/python3*/site-packages
    } | while IFS= read -r directory; do [[ -d $directory/nvidia ]] && readlink -f "$directory"; done | awk '!seen[$0]++'
}

# Path of one library, from wheels first (they come as a set), then CUDA's own folders; 1: nowhere.
gpu_find_library() {
    local name=$1 root=${ASSAY_SYSTEM_ROOT:-} site found
    while IFS= read -r site; do
        found=$(find -L "$site/nvidia" -maxdepth 5 -path '*/lib*/*' -name "$name" 2>/dev/null | sort | head -n 1)
        [[ -z $found ]] || { echo "$found"; return 0; }
    done < <(gpu_site_packages)
    for site in "$root"/usr/local/cuda*/{lib64,lib,targets/x86_64-linux/lib} "$root"/usr/local/{nvidia/lib64,lib} "$root"/usr/lib/x86_64-linux-gnu; do
        [[ -e $site/$name ]] && { echo "$site/$name"; return 0; }
    done
    return 1
}

# gpu_libraries ENGINE PROGRAM...: says where every CUDA library of the engine is, and every other that the loader does not find;
# extends LD_LIBRARY_PATH by the folders that it has to know.  1: a library is nowhere.
gpu_libraries() {
    local names name path resolved missing=0
    resolved=$(ldd "$@" 2>/dev/null | sort -u)
    names=$(awk '$1 ~ /^lib(cudart|cublas|nccl|nvrtc|nvJitLink|cuda)/ || / not found$/ {print $1}' <<<"$resolved")
    for name in ${names:-libcublasLt.so.13 libnccl.so.2}; do
        path=$(awk -v n="$name" '$1 == n && $3 ~ /^\// {print $3}' <<<"$resolved")
        if [[ -n $path ]]; then
            echo "library $name: the loader finds $path"
        elif path=$(gpu_find_library "$name"); then
            echo "library $name: found $path"
            LD_LIBRARY_PATH=${path%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        else
            echo "library $name: MISSING: not in a Python package, not in /usr/local/cuda*, not known to the loader"
            missing=1
        fi
    done
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
    awk '/libcudart/ {found = 1} END {if (!found) print "library libcudart: not asked for (linked statically)"}' <<<"$resolved"
    return $missing
}

gpu_find_sanitizer() {
    local root=${ASSAY_SYSTEM_ROOT:-} site found
    command -v compute-sanitizer && return 0
    for found in "$root"/usr/local/cuda*/bin/compute-sanitizer "$root"/usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
        [[ -x $found ]] && { echo "$found"; return 0; }
    done
    while IFS= read -r site; do
        found=$(find -L "$site/nvidia" -maxdepth 5 -name compute-sanitizer -type f 2>/dev/null | head -n 1)
        [[ -x $found ]] && { echo "$found"; return 0; }
    done < <(gpu_site_packages)
    return 1
}
