#!/usr/bin/env bash
# The engine's own kernels under the race checker (docs/SIMULATOR.md), and what they move between global memory and the chip, beside
# gpu/ops/traffic.json.  Needs no device and no nvcc.
#   ci/engine_races.sh [--build DIR] [--update | --self-test] [CASE...]
# Cases of `assay run` (default: those below) under every check of the simulator: a finding fails.  Then single rungs, the probe and steps
# of tests/kernels/dense, mla and moe likewise.  Every kernel of gpu/ops has to run somewhere here, or ci/engine_races.txt says why it does not:
# a kernel that is in neither fails, and one that is in both.
# Of every kernel the 32-byte sectors that its warps' instructions ask for and the bytes that it has to touch.  A kernel that asks
# for more than the table says fails; with the g++ that made the table any difference does.  --update writes the table;
# --self-test shows that both comparisons fail where they must.
set -euo pipefail
cd "$(dirname "$0")/.."
table=gpu/ops/traffic.json build=build/release update=0
# every family of kernels: attention (k2, k3 forward and backward, heads above 128, context parallel, documents), experts (k2, k3, capacity, padding), norms,
# balancing, dropout, stages; splits of the tokens over tp (every cell with tp).  CASE/LAYOUT/STEPS: the longest take one step, whose kernels
# are those of the next
cases=(wide_heads mla_wide deepseek_v3/1/1 tiled_heads/1 context/cp2,a2a context/cp3,p2p olmoe/tp2 packed/1 dropout/tp2,sp qwen3_moe/1/1 unfused/pp2 capacity/1 padding/1 balancing/1 sigmoid_router/1/1 overlap shared_expert/ep2,dp2 shared_expert/tp2)
# rungs that no case comes to, or not with every width of a head, OPERATION/kN: a seed of `assay certify --campaign`, whose number is the rung's
rungs=(clamp_fwd/k0 clamp_bwd/k0 attention_bwd/k3 attention_bwd/k2 attention_fwd/k3 attention_fwd/k2 add_rmsnorm_fwd/k0 rmsnorm_bwd_add/k0 rmsnorm_bwd/k2 qkv_rope_fwd/k0 qkv_rope_bwd/k0 qkv_norm_rope_bwd/k0 router_balanced_fwd/k0
    qkv_norm_rope_fwd/k0 router_balanced_bwd/k0 cross_entropy_stats/k2 router_aux_fwd/k2 router_seq_aux_fwd/k1 router_seq_aux_fwd/k2 permute_plan/k1 embedding_bwd/k1 embedding_bwd/k2 random_logits/k0 linear_fwd/k1 linear_bwd_weight/k1)
# what kernels move, at widths like those of models
balanced="--seq-length 128 --moe-aux-loss-coeff 0.01 --moe-z-loss-coeff 0.001 --hidden-dropout 0.1 --moe-input-jitter-eps 0.01 --moe-expert-capacity-factor 1.25 --log-num-zeros-in-grad"
declare -A steps=(
    [dense]="--model tests/kernels/dense --seq-length 256"
    [mla]="--model tests/kernels/mla --seq-length 256"
    [moe]="--model tests/kernels/moe --seq-length 256"
    [moe.k1]="--model tests/kernels/moe $balanced --variant k1"
    [moe.k2]="--model tests/kernels/moe $balanced --variant attention=k2,linear=k2"
)
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
    compare 1 'm: k: expected 3 launches, found 2' 's/"launches": 2/"launches": 3/'
    compare 1 'table: twice: m: k' 'p'
    echo "$line" >>"$folder/found"
    compare 1 'found: twice: m: k' '1d'
    echo "$line" >"$folder/found"
    compare 1 'm: other: in the table and not in the run' 's/"kernel": "k"/"kernel": "other"/'
    compare 1 'm: k: not in the table' 's/"kernel": "k"/"kernel": "other"/'
    compare 1 'the table is empty' 'd'
    # kernels of the sources, those that ran, the list: FOLDER holds all three
    runs() { # EXIT WORDS KERNELS RAN LISTED
        local code=0 out
        printf '%b' "$3" >"$folder/kernels"
        printf '%b' "$4" >"$folder/ran"
        printf '%b' "$5" >"$folder/listed"
        out=$(awk -f ci/races.awk "$folder/kernels" "$folder/ran" "$folder/listed") || code=$?
        if [[ $code != "$1" ]] || ! grep -qE -- "$2" <<<"$out"; then
            printf 'races: self-test: expected exit %s and "%s", found exit %s and\n%s\n' "$1" "$2" "$code" "$out" >&2
            exit 1
        fi
    }
    runs 0 '2 of 2 kernels have run, 0 are listed, 0 complaints' 'a\nb\n' 'a\nb\n' '# nobody\n'
    runs 0 '1 of 2 kernels have run, 1 are listed, 0 complaints' 'a\nb\n' 'a\n' 'b: needs two devices\n'
    runs 1 'b: has not run, and ci/engine_races.txt does not say why' 'a\nb\n' 'a\n' ''
    runs 1 'b: has run, and ci/engine_races.txt lists it' 'a\nb\n' 'a\nb\n' 'b: needs two devices\n'
    runs 1 'c: listed, and no kernel of gpu/ops' 'a\n' 'a\n' 'c: needs two devices\n'
    runs 1 'b: listed without a reason' 'a\nb\n' 'a\n' 'b:\n'
    runs 1 'b: listed twice' 'a\nb\n' 'a\n' 'b: one\nb: two\n'
    runs 1 'c: has run, and is not among the kernels of gpu/ops' 'a\n' 'a\nc\n' ''
    runs 1 'a<X>: has not run' 'a<T>\na<X>\n' 'a<T>\n' ''
    runs 1 'no kernel has run' 'a\n' '' 'a: needs two devices\n'
    runs 1 'no kernels in gpu/ops' '' 'a\n' ''
    launched=$(printf 'e = GPU_LAUNCH((f<N, T>), g(n, 1), b, 0, s, x);\nGPU_LAUNCH_NO_BARRIER(\n  h, dim3(1), b, 0, s);\nGPU_LAUNCH(k<T>, g, b, 0, s);' | awk -f ci/launches.awk | paste -sd' ')
    [[ $launched == "f<N,T> h k<T>" ]] || { echo "races: self-test: expected f<N,T> h k<T>, found $launched" >&2 && exit 1; }
    echo "races: self-test passed"
    echo "traffic: self-test passed"
}

while (($#)); do
    case $1 in
    --build) build=$2 && shift 2 ;;
    --update) update=1 && shift ;;
    --self-test) self_test && exit ;;
    -*) sed -n 2,12p "$0" >&2 && exit 2 ;;
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

bad=0 jobs=0
# NAME TRAFFIC COMMAND...: a program under every check of the simulator, as many side by side as there are processors; what its kernels move goes
# to the file TRAFFIC.
checked() {
    ((jobs < $(nproc))) || one_ends
    jobs=$((jobs + 1))
    watched "$@" &
}
one_ends() {
    wait -n || bad=1
    jobs=$((jobs - 1))
}
watched() {
    local name=$1 moved=$2 log
    shift 2
    log=$(mktemp "$folder/log-XXXXXX")
    if ASSAY_SIM_TRAFFIC=$moved "$assay" sanitize "$@" >"$log" 2>&1; then
        printf 'races: %-24s %s\n' "$name" "$(tail -n 1 "$log" | sed 's/^ *//')"
    else
        printf '%s\nraces: FAIL %s, again with: %s\n' "$(<"$log")" "$name" "$assay sanitize $*"
        return 1
    fi
}
finished() {
    while ((jobs > 0)); do one_ends; done
}

if ((${#picked[@]} == 0)); then # the longest first
    mapfile -t models < <(printf '%s\n' "${!steps[@]}" | LC_ALL=C sort)
    for model in "${models[@]}"; do
        read -ra options <<<"${steps[$model]}"
        checked "a step of $model" "$folder/moved.$model" "$assay" bench --engine-program "$engine" "${options[@]}" --draw-weights 1 --precision bf16 \
            --micro-batch-size 1 --steps 1 --warmup 1 --report "$folder/bench.$model"
    done
fi
for c in "${picked[@]:-${cases[@]}}"; do
    IFS=/ read -r name layout iters <<<"$c"
    options=(--case "$name" ${layout:+--layout "$layout"} ${iters:+--train-iters "$iters"})
    checked "$c" "$folder/seen" "$assay" run "${options[@]}" --engine-program "$engine" --report "$folder/run.${c//\//.}"
done
if ((${#picked[@]} != 0)); then
    finished
    exit $bad
fi
for r in "${rungs[@]}"; do
    seed=${r##*/k}
    checked "$r" "$folder/seen" "$assay" certify --engine sim --program "$engine" --operation "${r%/*}" --campaign "$seed-$seed"
done
checked probe "$folder/seen" "$assay" probe --engine sim --program "$engine" --stride 6553700
finished

# MODEL FILE: lines of the table, of all processes that wrote to the file.
moved() {
    awk -v model="$1" -f ci/field.awk -f ci/traffic_sum.awk "$2" | LC_ALL=C sort
}
for model in "${models[@]}"; do
    moved "$model" "$folder/moved.$model" >>"$folder/found"
done
moved small "$folder/seen" >>"$folder/found" # cases and single rungs: odd sizes, rows of a few sectors
sed -E 's/^\{"kernel": "//; s/",.*//; s/[() ]//g' "$folder/seen" "$folder"/moved.* | sort -u >"$folder/ran"
cat gpu/ops/*.cu gpu/ops/*.cuh | awk -f ci/launches.awk | sort -u >"$folder/kernels"
# and what nobody launches in this spelling, by its name alone
sed 's/<.*//' "$folder/kernels" | sort -u >"$folder/launched"
{
    cat gpu/ops/*.cu gpu/ops/*.cuh | tr '\n' ' ' | grep -oE '__global__ [^;{(]*(__launch_bounds__\([^)]*\)[^;{(]*)?\(' | sed -E 's/ *\($//; s/.* //'
    sed -nE 's/^\{"kernel": "([A-Za-z0-9_]+).*/\1/p' gpu/ops/kernels.json # what nvcc compiled: a declaration that the pattern misses
} | sort -u | comm -23 - "$folder/launched" >>"$folder/kernels"
awk -f ci/races.awk "$folder/kernels" "$folder/ran" ci/engine_races.txt || bad=1
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
