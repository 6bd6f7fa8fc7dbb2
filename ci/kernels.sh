#!/usr/bin/env bash
# What the compiler made of every kernel: registers, spills, shared memory, matrix, 128-bit and asynchronous instructions, beside
# gpu/ops/kernels.json.  A spill, a lost 128-bit access, a lost matrix instruction or asynchronous copy, registers that setmaxnreg has to share out, serialized wgmma fails; with the nvcc that made
# the table any difference does.  Needs nvcc and ptxas, no device.  Prints one line for each kernel, and what it moves beside the least that it could
# (gpu/ops/traffic.json): a kernel of which nobody has counted that, and ci/engine_races.txt does not say why, fails.
# Takes what build/release has compiled under ASSAY_KERNEL_FIGURES=1 (ci/build.sh), and compiles the rest.
#   ci/kernels.sh [--update | --table | --self-test]
# --update writes the table; --table prints the lines of the table as it is, without nvcc; --self-test shows, without nvcc, that the comparison and
# the lines fail where they must.
set -euo pipefail
cd "$(dirname "$0")/.."
table=gpu/ops/kernels.json

# LOG: whether ptxas has given up that wgmma runs beside other work (C7515, C7520 and their like), and why.
serialized() {
    grep -F 'Potential Performance Loss' "$1"
}
export -f serialized

# ARCH LOG: what ptxas -v said for one architecture, of a log of several.
log_of() {
    awk -v arch="$1" '/Compiling entry function/ { mine = index($0, "sm_" arch "\x27") > 0 } / bytes gmem/ { mine = 0 } mine || !/^ptxas info|^ /' "$2"
}

# ARCH FILE OUT: OUT.ptx and OUT.log from where a build has left them (ci/nvcc_figures.sh), unless a source is younger or nvcc another.
built() {
    local name kept ptx
    name=$(basename "$2" .cu)
    for kept in "$build"/gpu/cuda/CMakeFiles/*/__/ops/"$name".cu.o.figures; do
        ptx=$kept/$name.compute_$1.ptx
        [[ -f $ptx ]] || ptx=$kept/$name.ptx # of one architecture alone
        [[ -f $ptx && -f $kept/log ]] || continue
        [[ $ptx != "$kept/$name.ptx" || $(grep -F 'Compiling entry function' "$kept/log" | grep -cvF "'sm_$1'") == 0 ]] || continue
        cmp -s <("$nvcc" --version) "$kept/version" || continue
        [[ -z $(find gpu core -name '*.[ch]*' -newer "$kept/log" -print -quit) ]] || continue
        log_of "$1" "$kept/log" >"$3.log" && cp "$ptx" "$3.ptx" && return
    done
    return 1
}

# FIGURES: one line for each kernel; TRAFFIC and REASONS say what it moves, or why nobody knows.
print_table() {
    awk -f ci/field.awk -f ci/kernels_table.awk "${2:-gpu/ops/traffic.json}" "${3:-ci/engine_races.txt}" "$1"
}

# The comparison of an example with itself passes; each change of it fails with its words.
self_test() {
    local folder
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' RETURN
    awk -v arch=90 -v file=example.cu -f ci/field.awk -f ci/plain.awk -f ci/kernels.awk tests/kernels/example.ptx tests/kernels/example.log >"$folder/found"
    diff tests/kernels/expected.json "$folder/found"
    awk -f ci/plain.awk -f ci/loops.awk tests/kernels/example.sass | diff tests/kernels/expected.loops -
    # without the branch past what is rare, the way leads through it
    if ! sed 's/@!P0 BRA/@!P0 MOV/' tests/kernels/example.sass | awk -v kernel=wide -f ci/plain.awk -f ci/loops.awk | grep -c ' way 9 .* fp 2 other 3 ' >/dev/null; then
        echo "kernels: self-test: an instruction that is always on the way was not counted" >&2
        exit 1
    fi
    compare() { # EXIT WORDS SED-SCRIPT [SAME]
        local code=0 out
        sed -E "$3" "$folder/found" >"$folder/table"
        out=$(awk -v check=1 -v same="${4:-0}" -f ci/field.awk -f ci/plain.awk -f ci/kernels.awk "$folder/table" "$folder/found") || code=$?
        if [[ $code != "$1" ]] || ! grep -qE -- "$2" <<<"$out"; then
            printf 'kernels: self-test: expected exit %s and "%s", found exit %s and\n%s\n' "$1" "$2" "$code" "$out" >&2
            exit 1
        fi
    }
    compare 0 '2 in the table, 0 complaints' '' 1
    compare 0 '2 in the table, 0 complaints' 's/"registers": [0-9]+/"registers": 9/'
    compare 1 'differs from the table' 's/"registers": [0-9]+/"registers": 9/' 1
    compare 1 'wide<4>: 24 bytes are spilled, expected 0' 's/"spill": [0-9]+/"spill": 0/'
    compare 1 'wide<4>: expected 3 matrix instructions, found 2' 's/"matrix": 2/"matrix": 3/'
    compare 1 'wide<4>: expected 2 loads of 128 bits, found 1' 's/"load128": 1/"load128": 2/'
    compare 1 'wide<4>: expected 2 stores of 128 bits, found 1' 's/"store128": 1/"store128": 2/'
    compare 1 'wide<4>: expected 5 asynchronous copies, found 1' 's/"async": 1/"async": 5/'
    compare 0 ' 0 complaints' 's/"registers": 200/"registers": 201/'
    sed -i 's/wide<4>/attention_dq_k3<4>/' "$folder/found"
    compare 1 'expected 201 registers, which setmaxnreg shares out, found 200' 's/"registers": 200/"registers": 201/'
    sed -i 's/attention_dq_k3<4>/wide<4>/' "$folder/found"
    compare 1 'other: in the table and not in the build' 's/"kernel": "narrow"/"kernel": "other"/'
    compare 1 'narrow: not in the table' '/narrow/d'
    compare 1 'the table is empty' 'd'
    compare 1 'table: twice: sm_90 example.cu narrow' '/narrow/p'
    grep narrow "$folder/found" >"$folder/again" && cat "$folder/again" >>"$folder/found"
    compare 1 'found: twice: sm_90 example.cu narrow' '$d'
    sed -i '$d' "$folder/found"
    local move='{"model": "dense", "kernel": "(wide<N>)", "launches": 1, "read": 96, "least_read": 64, "written": 32, "least_written": 16}'
    lines() { # EXIT WORDS TRAFFIC REASONS FIGURES
        local code=0 out
        printf '%b' "$3" >"$folder/traffic"
        printf '%b' "$4" >"$folder/reasons"
        printf '%b' "$5" >"$folder/figures"
        out=$(print_table "$folder/figures" "$folder/traffic" "$folder/reasons") || code=$?
        if [[ $code != "$1" ]] || ! grep -qE -- "$2" <<<"$out"; then
            printf 'kernels: self-test: expected exit %s and "%s", found exit %s and\n%s\n' "$1" "$2" "$code" "$out" >&2
            exit 1
        fi
    }
    local both wide
    both=$(cat "$folder/found") wide=$(grep '"wide' "$folder/found")
    lines 0 '^wide<4> .* 2 +1 +1 +1 1.60 dense$' "$move" '' "$wide"
    lines 0 '^narrow .* - runs on no machine of ours$' "$move" '# a list\nnarrow: runs on no machine of ours\n' "$both"
    lines 1 'narrow: no row in gpu/ops/traffic.json' "$move" '' "$both"
    lines 1 'narrow: in gpu/ops/traffic.json, and nothing of that name was compiled' "$move\n${move/(wide<N>)/narrow}" '' "$wide"
    # the worst of the steps; small cases only where there is no step
    lines 0 '^wide<4> .* 2.80 moe$' "$move\n$(sed 's/dense/moe/; s/96/192/' <<<"$move")" '' "$wide"
    lines 0 '^wide<4> .* 1.60 dense$' "$move\n$(sed 's/dense/small/; s/96/192/' <<<"$move")" '' "$wide"
    lines 0 '^wide<4> .* 1.60 small$' "${move/dense/small}" '' "$wide"
    lines 1 'no compiled kernel' "$move" '' ''
    lines 1 'gpu/ops/traffic.json is empty' '' 'wide: nobody counts\n' "$wide"
    echo "ptxas info    : (C7515) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ill formed pipeline stage in the function 'wide'" >"$folder/log"
    if ! serialized "$folder/log" >/dev/null || serialized tests/kernels/example.log >/dev/null; then
        echo "kernels: self-test: a log of serialized wgmma was not told from one without" >&2
        exit 1
    fi
    # what a build has left: of the architecture that is asked for, and of no older source
    local kept
    nvcc=echo build=$folder/build kept=$folder/build/gpu/cuda/CMakeFiles/engine.dir/__/ops/example.cu.o.figures
    mkdir -p "$kept"
    cp tests/kernels/example.ptx "$kept/example.compute_80.ptx"
    { sed 's/sm_90/sm_80/' tests/kernels/example.log; sed 's/Used [0-9]* reg/Used 9 reg/' tests/kernels/example.log; } >"$kept/log"
    echo --version >"$kept/version"
    take() { # EXIT ARCH
        local code=0
        rm -f "$folder/taken".*
        built "$2" example.cu "$folder/taken" || code=$?
        [[ $code == "$1" ]] || { echo "kernels: self-test: expected exit $1 for sm_$2 of a build, found $code" >&2; exit 1; }
    }
    take 0 80
    cmp "$folder/taken.ptx" tests/kernels/example.ptx
    sed '/gmem/d; s/sm_90/sm_80/' tests/kernels/example.log | diff - "$folder/taken.log"
    take 1 90
    mv "$kept/example.compute_80.ptx" "$kept/example.ptx"
    take 1 80 # the log speaks of two, and nobody knows whose the one PTX is
    sed -i '/sm_90/,$d' "$kept/log"
    take 0 80
    echo another >"$kept/version"
    take 1 80
    echo --version >"$kept/version"
    touch -d 2000-01-01 "$kept/log"
    take 1 80
    echo "kernels: self-test passed"
}

if [[ ${1:-} == --self-test ]]; then
    self_test
    exit
fi
if [[ ${1:-} == --table ]]; then
    print_table "$table"
    exit
fi
build=build/release
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [[ ! -x $nvcc ]]; then
    echo "kernels: SKIPPED: no nvcc; the kernels of gpu/ops were not compiled" >&2
    exit 2 # could not be checked
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# ARCH FILE: the figures of its kernels.
figures() {
    local arch=$1 name
    name=$(basename "$2" .cu)
    local out=$folder/$arch.$name
    built "$arch" "$2" "$out" || compiled "$arch" "$2" "$out" || return 1
    ! serialized "$out.log" >&2 || { echo "kernels: $2: ptxas serializes wgmma" >&2; return 1; }
    awk -v arch="$arch" -v file="$name.cu" -f ci/field.awk -f ci/plain.awk -f ci/kernels.awk "$out.ptx" "$out.log" >"$out.json"
}

# ARCH FILE OUT: the same, compiled.
compiled() {
    local arch=$1 out=$3
    echo "$2 for $arch" >>"$folder/compiled"
    "$nvcc" -std=c++17 -O3 -DNDEBUG -DASSAY_SIM=0 -I. "-arch=compute_$arch" -ptx -o "$out.ptx" "$2" 2>"$out.errors" ||
        { cat "$out.errors" >&2; return 1; }
    "$(dirname "$nvcc")/ptxas" -v "-arch=sm_$arch" -o /dev/null "$out.ptx" 2>"$out.log" || { cat "$out.log" >&2; return 1; }
}
export -f figures built compiled log_of
export folder nvcc build
for f in gpu/ops/*.cu; do
    if [[ $f == *_sm90.cu ]]; then
        printf '90a %s\n' "$f" # for nothing else (gpu/cuda/CMakeLists.txt); "arch" in the table is 90
    else
        printf '80 %s\n90 %s\n' "$f" "$f"
    fi
done | xargs -P "$(nproc)" -L 1 bash -c 'set -euo pipefail; figures "$0" "$1"'
[[ ! -f $folder/compiled ]] || echo "kernels: compiled here, not in $build: $(wc -l <"$folder/compiled") of files and architectures" >&2
cat "$folder"/*.json | LC_ALL=C sort >"$folder/found"
version=$("$nvcc" --version | sed -nE 's/.*release [0-9.]+, V([0-9.]+).*/\1/p')
if [[ ${1:-} == --update ]]; then
    {
        printf '{"nvcc": "%s", "kernels": [\n' "$version"
        sed '$!s/$/,/' "$folder/found"
        printf ']}\n'
    } >"$table"
    echo "kernels: $(wc -l <"$folder/found") written to $table"
    exit
fi
bad=0 same=0
print_table "$folder/found" || bad=1
grep -qF "\"nvcc\": \"$version\"" "$table" && same=1
sed -E '/"kernel": /!d; s/,$//; s/^\{"nvcc".*//' "$table" >"$folder/table"
awk -v check=1 -v same="$same" -f ci/field.awk -f ci/plain.awk -f ci/kernels.awk "$folder/table" "$folder/found" || bad=1
exit $bad
