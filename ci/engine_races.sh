#!/usr/bin/env bash
# The engine's own kernels under the race checker (docs/SIMULATOR.md), and what they move between global memory and the chip, beside
# gpu/ops/traffic.json.  Needs no device and no nvcc.
#   ci/engine_races.sh [--build DIR] [--update | --self-test] [CASE...]
# Cases of `assay run` (default: those below) under every check of the simulator: a finding fails.  Then a step of tests/kernels/dense and
# moe: of every kernel the 32-byte sectors that its warps' instructions ask for and the bytes that it has to touch.  A kernel that asks
# for more than the table says fails; with the g++ that made the table any difference does.  --update writes the table;
# --self-test shows that the comparison fails where it must.
set -euo pipefail
cd "$(dirname "$0")/.."
table=gpu/ops/traffic.json build=build/release update=0
# every family of kernels: attention (k1, k2, k3 forward and backward, heads above 128, context parallel, documents), experts (k2, k3, capacity, padding), norms,
# balancing, dropout; splits of the tokens over tp (every cell with tp)
cases=(llama/1 wide_heads tiled_heads/1 context/cp2,a2a context/cp3,p2p olmoe/tp2 packed/1 dropout/tp2,sp qwen3_moe/1 qwen3_moe/pp2 capacity/1 padding/1 balancing/1 sigmoid_router/1 overlap shared_expert/ep2,dp2 shared_expert/tp2)
picked=()

self_test() {
    local folder line='{"model": "m", "kernel": "k", "launches": 2, "read": 128, "least_read": 64, "written": 32, "least_written": 8}'
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' RETURN
    echo "$line" >"$folder/found"
    compare() { # EXIT WORDS SED-SCRIPT [SAME]
        local code=0 out
        sed -E "$3" "$folder/found" >"$folder/table"
        out=$(awk -v same="${4:-0}" -f ci/field.awk -f ci/traffic.awk "$folder/table" "$folder/found") || code=$?
        if [[ $code != "$1" ]] || ! grep -qE -- "$2" <<<"$out"; then
            printf 'traffic: self-test: expected exit %s and "%s", found exit %s and\n%s\n' "$1" "$2" "$code" "$out" >&2
            exit 1
        fi
    }
    compare 0 '1 kernels, 1 in the table, 0 complaints' '' 1
    compare 0 '1 kernels, 1 in the table, 0 complaints' 's/"read": [0-9]+/"read": 256/'
    compare 1 'm: k: expected 64 bytes read of 64 at least in 2 launches, found 128' 's/"read": [0-9]+/"read": 64/'
    compare 1 'm: k: expected 16 bytes written' 's/"written": [0-9]+/"written": 16/'
    compare 1 'm: k: differs from the table' 's/"read": [0-9]+/"read": 256/' 1
    compare 1 'm: other: in the table and not in the run' 's/"kernel": "k"/"kernel": "other"/'
    compare 1 'm: k: not in the table' 's/"kernel": "k"/"kernel": "other"/'
    compare 1 'the table is empty' 'd'
    echo "traffic: self-test passed"
}

while (($#)); do
    case $1 in
    --build) build=$2 && shift 2 ;;
    --update) update=1 && shift ;;
    --self-test) self_test && exit ;;
    -*) sed -n 2,9p "$0" >&2 && exit 2 ;;
    *) picked+=("$1") && shift ;;
    esac
done
if ! cmake --build "$build" --target assay assay-sim-races; then
    echo "engine_races: assay-sim-races was not built: it needs g++ and a build without sanitizers" >&2
    exit 2
fi
assay=$build/bin/assay engine=$PWD/$build/bin/assay-sim-races
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

bad=0
for c in "${picked[@]:-${cases[@]}}"; do
    layout=()
    [[ $c == */* ]] && layout=(--layout "${c#*/}")
    command=("$assay" sanitize "$assay" run --case "${c%%/*}" "${layout[@]}" --engine-program "$engine" --report "$folder/run")
    if ASSAY_SIM_TRAFFIC=$folder/seen "${command[@]}" >"$folder/log" 2>&1; then
        printf 'races: %-20s %s\n' "$c" "$(tail -n 1 "$folder/log" | sed 's/^ *//')"
    else
        bad=1
        cat "$folder/log"
        echo "races: FAIL $c, again with: ${command[*]}"
    fi
done
((${#picked[@]} == 0)) || exit $bad

for model in dense moe; do
    ASSAY_SIM_TRAFFIC=$folder/moved.$model "$assay" bench --engine-program "$engine" --model tests/kernels/$model --draw-weights 1 --precision bf16 \
        --micro-batch-size 1 --seq-length 256 --steps 1 --warmup 1 --report "$folder/bench" >"$folder/log" 2>&1 || { cat "$folder/log" && exit 2; }
    sed "s/^{/{\"model\": \"$model\", /" "$folder/moved.$model" | LC_ALL=C sort >>"$folder/found"
done
# which of the kernels in gpu/ops have run
sed -E 's/^\{"kernel": "//; s/",.*//; s/^\(//; s/[<)].*//' "$folder/seen" "$folder"/moved.* | sort -u >"$folder/ran"
cat gpu/ops/*.cu gpu/ops/*.cuh | tr '\n' ' ' | grep -oE '__global__ [^;{(]*(__launch_bounds__\([^)]*\)[^;{(]*)?\(' |
    sed -E 's/ *\($//; s/.* //' | sort -u >"$folder/kernels"
echo "races: $(comm -12 "$folder/ran" "$folder/kernels" | wc -l) of $(wc -l <"$folder/kernels") kernels have run; not: $(comm -13 "$folder/ran" "$folder/kernels" | xargs)"
compiler=$(sed -nE 's/^CMAKE_CXX_COMPILER:[A-Z]*=(.*)/\1/p' "$build/CMakeCache.txt")
version=$("$compiler" -dumpfullversion)
if ((update)); then
    {
        printf '{"g++": "%s", "kernels": [\n' "$version"
        sed '$!s/$/,/' "$folder/found"
        printf ']}\n'
    } >"$table"
    echo "traffic: $(wc -l <"$folder/found") written to $table"
    exit $bad
fi
same=0
grep -qF "{\"g++\": \"$version\"," "$table" && same=1
awk -v same="$same" -f ci/field.awk -f ci/traffic.awk "$table" "$folder/found" || bad=1
exit $bad
