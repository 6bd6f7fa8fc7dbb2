#!/usr/bin/env bash
# Public CUDA programs under the simulator: compiles every program of the checkouts that it is told of with assay-cc, runs it under
# `assay sanitize`, and says what became of each and the row of docs/FOREIGN.md.  Fetches nothing, writes into no checkout.
#   ci/foreign.sh [--races] [--seconds N] [--out DIR] [--option OPTION]... CHECKOUT...
#   ci/foreign.sh --self-test
# A program is a .cu file with a main; the files of its folder that have none, and are named nowhere with #include, are linked to it.
# --option: one of assay-cc's, for every program (-I DIR).  --seconds: how long a program may run (30).  ASSAY, ASSAY_CC: the programs.
# These are other people's programs: they run with the rights of whoever calls this.  Exit code: 0 every program was tried, 2 none was.
set -uo pipefail
self=$(readlink -f "$0")
root=$(dirname "$(dirname "$self")")
for build in release dev; do
    assay=${ASSAY:-$root/build/$build/bin/assay} cc=${ASSAY_CC:-$root/build/$build/bin/assay-cc}
    [[ -x $assay && -x $cc ]] && break
done
[[ -x $assay && -x $cc ]] || { echo "foreign: $cc is not built (ci/build.sh release, or ASSAY and ASSAY_CC)" >&2; exit 2; }

has_main() { grep -qE '(^|[^A-Za-z0-9_])main[[:space:]]*\(' "$1"; }

# Files of a program's folder that belong to it: sources without a main that no file of the folder includes.
parts_of() {
    local folder=$1 file
    for file in "$folder"/*.cu "$folder"/*.cpp "$folder"/*.c; do
        if [[ ! -f $file ]] || has_main "$file"; then continue; fi
        grep -qsE "#[[:space:]]*include[[:space:]]*\"(.*/)?$(basename "$file" | sed 's/[.[\*^$+?(){|]/\\&/g')\"" "$folder"/* || printf '%s\n' "$file"
    done
}

# try PROGRAM NAME: one line, its fate first
try() {
    local program=$1 name=$2 folder code parts place
    folder=$(dirname "$program") place=$out/$name
    mkdir -p "$place"
    mapfile -t parts < <(parts_of "$folder")
    if ! "$cc" -O1 ${races:+--races} -I "$folder" ${options[@]+"${options[@]}"} -o "$place/program" "$program" ${parts[@]+"${parts[@]}"} >"$place/compile.log" 2>&1; then
        printf 'refused\t%s\t%s\n' "$name" "$(grep -m1 -E 'error|refused|assay-cc:' "$place/compile.log" | cut -c1-160)"
        return
    fi
    cp -r "$folder/." "$place/run" 2>/dev/null || mkdir -p "$place/run" # what it reads lies there, what it writes stays there
    code=0
    (cd "$place/run" && timeout --kill-after=5 "$seconds" "$assay" sanitize --no-leaks ../program) >"$place/run.log" 2>&1 </dev/null || code=$?
    if grep -qE '^assay-sim: unsupported' "$place/run.log"; then
        printf 'unsupported\t%s\t%s\n' "$name" "$(grep -m1 -E '^assay-sim: unsupported' "$place/run.log" | cut -c1-160)"
    elif grep -qE '^assay-sim: ' "$place/run.log"; then
        printf 'named\t%s\t%s\n' "$name" "$(grep -m1 -E '^assay-sim: ' "$place/run.log" | cut -c1-160)"
    elif ((code == 124 || code == 137)); then
        printf 'too long\t%s\t%s s\n' "$name" "$seconds"
    elif ((code == 0)); then
        printf 'passed\t%s\t\n' "$name"
    else
        printf 'failed\t%s\texit code %d: %s\n' "$name" "$code" "$(sed '/^assay sanitize: /,$d' "$place/run.log" | tail -n 1 | cut -c1-120)"
    fi
}

count() { awk -F'\t' -v fate="$1" '$1 == fate { n++ } END { print n + 0 }' "$2"; }

checkout() {
    local folder=$1 name revision program table
    folder=$(readlink -f "$folder")
    name=$(basename "$folder") table=$out/$(basename "$folder").tsv
    revision=$(git -C "$folder" rev-parse --short HEAD 2>/dev/null || echo 'no revision')
    : >"$table"
    while IFS= read -r program; do
        has_main "$program" || continue
        try "$program" "$name/$(sed "s|^$folder/||; s|/|.|g; s|\.cu\$||" <<<"$program")" | tee -a "$table"
    done < <(find "$folder" -name '*.cu' -type f | LC_ALL=C sort)
    tried=$((tried + $(wc -l <"$table")))
    printf '| %s %s | programs %d | compiled %d | passed %d | named %d | too long %d | refused %d (%d when compiling) | failed %d |\n' "$name" "$revision" \
        "$(wc -l <"$table")" $(($(wc -l <"$table") - $(count refused "$table"))) "$(count passed "$table")" "$(count named "$table")" \
        "$(count 'too long' "$table")" $(($(count refused "$table") + $(count unsupported "$table"))) "$(count refused "$table")" "$(count failed "$table")"
}

# One program of every fate.
self_test() {
    local room found
    room=$(mktemp -d)
    trap 'rm -rf "$room"' RETURN
    mkdir -p "$room/some/a" "$room/some/b"
    printf '#include "part.cuh"\nint value(void);\n__global__ void put(int *x, int v) { x[threadIdx.x] = v; }\nint main() { int *d, h[4]; cudaMalloc(&d, 16); put<<<1, 4>>>(d, value()); cudaMemcpy(h, d, 16, cudaMemcpyDeviceToHost); cudaFree(d); return h[3] != NINE; }\n' >"$room/some/a/good.cu"
    printf 'int value(void) { return 9; }\n' >"$room/some/a/part.cpp"
    printf '#define NINE 9\n' >"$room/some/a/part.cuh"
    sed 's/threadIdx.x\]/threadIdx.x + 40]/' "$room/some/a/good.cu" >"$room/some/a/beyond.cu"
    printf 'int main() { return 3; }\n' >"$room/some/b/wrong.cu"
    printf 'int main() { for (;;) ; }\n' >"$room/some/b/endless.cu"
    printf '#include <curand.h>\nint main() { return 0; }\n' >"$room/some/b/library.cu"
    found=$("$self" --seconds 3 --out "$room/out" "$room/some" | cut -f1,2)
    if ! diff <(printf '%s\n' $'named\tsome/a.beyond' $'passed\tsome/a.good' $'too long\tsome/b.endless' $'refused\tsome/b.library' $'failed\tsome/b.wrong' \
        '| some no revision | programs 5 | compiled 4 | passed 1 | named 1 | too long 1 | refused 1 (1 when compiling) | failed 1 |') <(printf '%s\n' "$found"); then
        echo "foreign: self-test: the fates above differ (<: expected, >: found)" >&2
        return 1
    fi
    echo "foreign: self-test passed"
}

races='' seconds=30 out='' options=() folders=() tried=0
while (($#)); do
    case $1 in
    --self-test) self_test; exit ;;
    --races) races=1 ;;
    --seconds) seconds=${2:?foreign: --seconds takes a number}; shift ;;
    --out) out=${2:?foreign: --out takes a folder}; shift ;;
    --option) read -ra more <<<"${2:?foreign: --option takes an option of assay-cc}"; options+=("${more[@]}"); shift ;;
    -h | --help) sed -n '2,/^# These/s/^# \{0,1\}//p' "$self"; exit 0 ;;
    -*) echo "foreign: unknown argument '$1' (ci/foreign.sh --help)" >&2; exit 2 ;;
    *) [[ -d $1 ]] || { echo "foreign: $1: no folder" >&2; exit 2; }; folders+=("$1") ;;
    esac
    shift
done
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "foreign: --seconds: expected a number above 0, found '$seconds'" >&2; exit 2; }
((${#folders[@]})) || { echo "foreign: no checkout is named (ci/foreign.sh --help)" >&2; exit 2; }
out=$(readlink -m "${out:-$(mktemp -d)}")
mkdir -p "$out" || exit 2
for folder in "${folders[@]}"; do checkout "$folder"; done
echo "logs: $out" >&2
((tried > 0)) || { echo "foreign: no .cu file with a main" >&2; exit 2; }
