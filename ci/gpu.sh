#!/usr/bin/env bash
# On a machine with a GPU: what only a device can show, in slices of less than eight minutes, the worst risk first.
#
#   ci/gpu.sh [--build DIR] [--out DIR] [--slice NAME]... [--again] [--budget SECONDS] [--resume FILE] [--jobs N] [--beside N] [--rehearse]
#   ci/gpu.sh --list
#
# A finished slice leaves a mark with its exit code and is passed over when the script is called again with the same programs
# (--again: not).  --budget starts no slice that is not expected to end in what is left.  Marks, logs and results are packed
# into one file, gpu-evidence.tar.gz, in $OUT or in the out folder; --resume goes on from such a file on a fresh machine.
# --beside N runs up to N slices at the same time, but for doctor, merge and rates, which are alone.
# --rehearse accepts the simulator where the device should be, and the file is called gpu-rehearsal.tar.gz: it is no evidence.
# ASSAY_COMMIT: what the programs were built from, where the folder has no history.
# Exit code: 0 every slice asked for has passed, 1 something is wrong, 2 something could not run, or has not run yet.
# docs/GPU.md
# shellcheck disable=SC2317 # the slices are called by name
set -uo pipefail
self=$(readlink -f "$0")
cd "$(dirname "$self")/.." || exit 2
. ci/gpu_libraries.sh

build=build/cuda out=build/gpu inside='' again=false budget=0 resume='' jobs='' beside=1 rehearse=false list=false wanted=()
shards=8 rungs=4 # of the longest ladder: k0 to k3
need() { [[ -n ${2:-} ]] || { echo "gpu: $1 takes a value" >&2; exit 2; }; }
while (($#)); do
    case $1 in
    --build | --out | --slice | --budget | --resume | --jobs | --beside | --inside)
        need "$1" "${2:-}"
        case $1 in
        --build) build=$2 ;;
        --out) out=$2 ;;
        --slice) wanted+=("$2") ;;
        --budget) budget=$2 ;;
        --resume) resume=$2 ;;
        --jobs) jobs=$2 ;;
        --beside) beside=$2 ;;
        --inside) inside=$2 ;;
        esac
        shift
        ;;
    --again) again=true ;;
    --rehearse) rehearse=true ;;
    --list) list=true ;;
    -h | --help) sed -n '2,/^# docs/s/^# \{0,1\}//p' "$self"; exit 0 ;;
    *) echo "gpu: unknown argument '$1' (ci/gpu.sh --help)" >&2; exit 2 ;;
    esac
    shift
done
[[ $budget =~ ^[0-9]+$ ]] || { echo "gpu: --budget: expected seconds, found '$budget'" >&2; exit 2; }
[[ $jobs =~ ^[0-9]*$ ]] || { echo "gpu: --jobs: expected a number, found '$jobs'" >&2; exit 2; }
[[ $beside =~ ^[1-9][0-9]*$ ]] || { echo "gpu: --beside: expected a number of 1 or more, found '$beside'" >&2; exit 2; }

# name, expected seconds on one H100 with 16 cores (seen on an H200, or an estimate: docs/GPU.md), limit, what it shows
slices() {
    local i tool
    echo "doctor 10 90 the device, its libraries, every kernel variant and what it declares"
    echo "exact 40 300 every operation alone on one rank, all variants: exact on lattices, within bounds on random numbers"
    echo "local 80 460 every case at layout 1: each operation of real steps within its bound"
    echo "nccl 90 300 two and three ranks: collectives alone, then steps under dp2 and tp2"
    for ((i = 1; i <= shards; i++)); do
        echo "matrix-$i 200 460 part $i of $shards of the default matrix"
    done
    echo "merge 30 300 the parts of the matrix as one report"
    echo "probe 30 120 how the matrix units add, and functions against their documented error"
    for ((i = 1; i <= rungs; i++)); do
        echo "certify-$i 400 470 assay certify: every operation, variants up to k$((i - 1)), F32 and BF16; certificates"
    done
    for tool in memcheck racecheck initcheck synccheck; do
        echo "sanitizer-$tool 120 460 every operation alone, highest rungs and plain kernels, under compute-sanitizer --tool $tool"
    done
    echo "debug-memory 40 300 launches one by one (CUDA_LAUNCH_BLOCKING), a dense and an expert model"
    echo "rates 260 460 assay bench: Llama-3.2-1B at 4k and 16k tokens, a layer of Qwen3-30B-A3B, one by one and as CUDA graphs; cuBLASLt's first algorithms and the fastest; PyTorch beside"
}
if $list; then slices | awk '{n = $1; e = $2; l = $3; $1 = $2 = $3 = ""; printf "%-20s expected %3d s, at most %3d s:%s\n", n, e, l, $0}'; exit 0; fi
for name in ${wanted[@]+"${wanted[@]}"} $inside; do
    slices | grep "^$name " >/dev/null || { echo "gpu: no slice is called '$name': $(slices | cut -d' ' -f1 | tr '\n' ' ')" >&2; exit 2; }
done

out=$(readlink -m "$out")
bin=$(readlink -m "$build")/bin
assay=$bin/assay engine=$bin/assay-gpu
pack=$([[ $rehearse == true ]] && echo gpu-rehearsal || echo gpu-evidence).tar.gz
export ASSAY_CASES=${ASSAY_CASES:-$PWD/parity/cases} OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}
# One GPU for several ranks: rings of few blocks, nothing of NVLink or shared memory.  What differs from rank to rank
# (NCCL_HOSTID, NCCL_COMM_ID on 127.0.0.1) is set by assay where ranks outnumber devices, CUDA_MODULE_LOADING=EAGER where there are several.
export NCCL_SOCKET_IFNAME=lo NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=4 NCCL_CUMEM_HOST_ENABLE=0
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
# One hang must not eat the slice: seconds of a collective, of one engine run, of a doctor.
limits=(--collective-timeout 30 --timeout 90)
export ASSAY_DOCTOR_TIMEOUT=${ASSAY_DOCTOR_TIMEOUT:-60}

# --- inside a slice ---------------------------------------------------------------------------------------------------------
worst=0
# A failure outranks what could not run, which outranks success.
note() { if (($1 == 1)) || { (($1 != 0)) && ((worst == 0)); }; then worst=$(($1 == 1 ? 1 : 2)); fi; }
cannot() { echo "could not run: $*"; note 2; }
# judged NAME ARGUMENTS...: an `assay run` with a report folder of its own.
judged() {
    local folder=$here/$1 code=0
    shift
    echo "+ assay run --engine gpu ${limits[*]} $*"
    "$assay" run --engine gpu "${limits[@]}" --report "$folder" "$@" || code=$?
    note "$code"
    return "$code"
}
requests() { # every operation, its inputs and attributes, in the form that `assay-gpu ops` executes: of fp32 and of bf16
    local precision
    judged report --case operations --layout 1 --variant fastest --keep --jobs 2 || true
    for precision in fp32 bf16; do
        [[ -d $here/report/work/operations/request-$precision-1 ]] || { cannot "no request was written at $here/report/work/operations/request-$precision-1"; return 1; }
    done
}
slice_doctor() {
    local code=0
    nvidia-smi || echo "nvidia-smi: exit code $? (it is only looked at)"
    readelf -d "$engine" 2>/dev/null | grep NEEDED
    "$engine" doctor --ops >"$here/engine.json" || code=$?
    head -n 40 "$here/engine.json"
    ((code == 0)) || { cannot "$engine doctor: exit code $code"; return; }
    if ! $rehearse && grep -q '"simulated": true' "$here/engine.json"; then
        cannot "$engine is the simulator: nothing that it does is evidence of a GPU"
        return
    fi
    "$assay" doctor || note 2
}
slice_exact() { judged report --case operations --layout 1 --jobs "${jobs:-4}"; }
slice_local() {
    local file cases=()
    for file in "$ASSAY_CASES"/*.json; do # what overlaps the gather of sharded parameters has none at layout 1
        grep -q '"overlap_param_gather": true' "$file" || cases+=(--case "$(basename "$file" .json)")
    done
    judged report "${cases[@]}" --layout 1 --check local --jobs "${jobs:-4}"
}
slice_nccl() {
    echo "devices: $(grep -o '"devices": [0-9]*' "$out/slices/doctor/engine.json")"
    NCCL_DEBUG=INFO judged alone --case operations --layout dp3 --jobs 1 --keep
    judged dp2 --case llama --layout dp2 --precision fp32 --jobs 1
    judged tp2 --case llama --layout tp2 --precision bf16 --jobs 1
}
slice_matrix() { judged report --shard "$1/$shards" --jobs "${jobs:-2}"; }
slice_merge() {
    local i folders=() code=0
    for ((i = 1; i <= shards; i++)); do
        [[ -f $out/slices/matrix-$i/report/results.jsonl ]] || { cannot "matrix-$i has left no results"; continue; }
        folders+=("$out/slices/matrix-$i/report")
    done
    ((worst == 0)) || return
    "$assay" report merge --report "$here/report" "${folders[@]}" || code=$?
    note "$code"
}
slice_probe() {
    local code=0
    "$assay" probe --engine gpu --json "$here/probe.json" || code=$?
    note "$code"
}
slice_certify() {
    local variant=k$(($1 - 1)) code=0 key=${ASSAY_CERTIFY_KEY:-} room
    room=$(mktemp -d) # keygen makes no key inside a git tree
    trap 'rm -rf "$room"' RETURN
    if grep -q "\"k$rungs\"" "$out/slices/doctor/engine.json"; then
        cannot "a ladder has a k$rungs: ci/gpu.sh certifies up to k$((rungs - 1))"
    fi
    if [[ -z $key ]]; then # one of this slice alone: it holds together what it signs, no more
        key=$room/certify.key
        "$assay" keygen --key "$key" || { cannot "assay keygen: exit code $?"; return; }
    fi
    cp "$key.pub" "$here/certify.key.pub"
    echo "+ assay certify --engine gpu --operation all --variant $variant --seeds 1"
    "$assay" certify --engine gpu --operation all --variant "$variant" --seeds 1 --key "$key" --out "$here/certificates" || code=$?
    note "$code"
}
slice_sanitizer() { # four programs beside each other: both precisions, the highest rung that takes a call (small ones, too) and plain kernels
    local tool=$1 program precision variant code name
    local -A job=()
    program=$(gpu_find_sanitizer) || { cannot "compute-sanitizer is not on PATH, not below /usr/local/cuda*, in no Python package"; return; }
    requests || return
    for precision in fp32 bf16; do
        for variant in "k$((rungs - 1))" k0; do
            name=$precision-$variant
            rm -rf "$here/answer-$name"
            echo "+ $program --tool $tool assay-gpu ops --variant $variant of $precision"
            # NCCL asks for kernels that its build lacks: errors of calls are looked at by the engine, not here
            "$program" --tool "$tool" --report-api-errors no --error-exitcode 9 --print-limit 100 "$engine" ops \
                --request="$here/report/work/operations/request-$precision-1" --out="$here/answer-$name" \
                --variant="$variant" >"$here/$name.log" 2>&1 &
            job[$name]=$!
        done
    done
    for name in "${!job[@]}"; do
        code=0
        wait "${job[$name]}" || code=$?
        tail -n 20 "$here/$name.log"
        case $code in
        0) ;;
        9) echo "FAIL: $tool found errors in $name"; note 1 ;;
        *) cannot "$tool of $name: exit code $code" ;;
        esac
    done
}
slice_debug_memory() {
    CUDA_LAUNCH_BLOCKING=1 ASSAY_SIM_DEVICE_PRIVATE=1 judged report --case llama --case qwen3_moe --layout 1 --check local --jobs "${jobs:-4}"
}
timed() { # timed NAME ARGUMENTS...
    local folder=$here/$1 code=0
    shift
    echo "+ assay bench --engine gpu $*"
    "$assay" bench --engine gpu --timeout 240 --collective-timeout 30 --report "$folder" "$@" || code=$?
    note "$code"
    return "$code"
}
# The same with the library's first choice of every product, and what is the fastest kept in ASSAY_PRODUCT_PLANS for the runs behind it.
first_choices() { ASSAY_PRODUCT_PLANS_TIME=1 timed "$@"; }
slice_rates() {
    "$assay" help | grep -E '^ +bench ' >/dev/null || { cannot "this assay has no verb bench"; return; }
    export ASSAY_PRODUCT_PLANS=$here/plans
    if $rehearse; then
        first_choices llama-first --case llama --precision bf16
        timed llama --case llama
        timed qwen3_moe --case qwen3_moe
        timed qwen3_moe-graph --case qwen3_moe --enable-cuda-graph
        echo "a rehearsal times no model of real size"
        return
    fi
    mkdir -p "$here/llama" "$here/qwen3" # Llama-3.2-1B; Qwen3-30B-A3B with one of its 48 layers
    cat >"$here/llama/config.json" <<'CONFIG'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
 "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 8192,
 "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu", "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": true}
CONFIG
    cat >"$here/qwen3/config.json" <<'CONFIG'
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
 "num_hidden_layers": 1, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 8192,
 "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "rms_norm_eps": 1e-06,
 "rope_theta": 1000000.0, "hidden_act": "silu", "attention_bias": false, "tie_word_embeddings": false, "router_aux_loss_coef": 0.001}
CONFIG
    first_choices llama-4k-first --model "$here/llama" --draw-weights 1 || return
    timed llama-4k --model "$here/llama" --draw-weights 1 || return
    timed llama-16k --model "$here/llama" --draw-weights 1 --micro-batch-size 4
    timed qwen3-layer --model "$here/qwen3" --draw-weights 1
    timed qwen3-layer-graph --model "$here/qwen3" --draw-weights 1 --enable-cuda-graph
    if ! python3 -c 'import torch, transformers' 2>/dev/null; then
        cannot "python3 has no torch and transformers: nothing to put beside it"
        return
    fi
    in_torch llama-4k llama eager,compiled
    in_torch llama-16k llama eager,compiled
    in_torch qwen3-layer qwen3 eager
}
in_torch() { # in_torch NAME MODEL MODES: the batch of the run of that name
    local code=0
    python3 golden/bench_torch.py --model "$here/$2" --batch "$here/$1/batch.safetensors" --precision bf16 --modes "$3" --out "$here/torch-$1" || code=$?
    ((code == 0)) || cannot "golden/bench_torch.py of $1: exit code $code"
}
if [[ -n $inside ]]; then
    here=$out/slices/$inside
    case $inside in
    matrix-*) slice_matrix "${inside#matrix-}" ;;
    certify-*) slice_certify "${inside#certify-}" ;;
    sanitizer-*) slice_sanitizer "${inside#sanitizer-}" ;;
    *) "slice_${inside//-/_}" ;;
    esac
    exit $worst
fi

# --- around the slices ------------------------------------------------------------------------------------------------------
say() { echo "gpu: $*"; }
started=$SECONDS
mkdir -p "$out/marks" "$out/slices" || exit 2
exec 9>"$out/lock"
flock -n 9 || { echo "gpu: another run works in $out" >&2; exit 2; }
if [[ -n $resume ]]; then
    tar -xzf "$resume" -C "$out" || { echo "gpu: --resume $resume: cannot be unpacked" >&2; exit 2; }
fi
for program in "$assay" "$engine"; do
    [[ -x $program ]] || { echo "gpu: $program is missing: ci/build.sh cuda" >&2; exit 2; }
done
identity=$(cat "$assay" "$engine" | sha256sum | cut -c1-16)
passing=()
$rehearse && passing+=(--rehearse)
[[ -n $jobs ]] && passing+=(--jobs "$jobs")

mark_of() { # exit code of a finished slice of these programs, or nothing
    [[ -f $out/marks/$1 ]] && grep -q " build=$identity " "$out/marks/$1" && sed -nE 's/^exit=([0-9]+) .*/\1/p' "$out/marks/$1"
}
waits_for() { # the first part of the matrix without a mark
    local i
    for ((i = 1; i <= shards; i++)); do [[ -n $(mark_of "matrix-$i") ]] || { echo "matrix-$i"; return; }; done
}
# run_slice NAME LIMIT: in a group of its own, ended at the limit or at the end of the budget.
run_slice() {
    local name=$1 limit=$2 code=0 t=$SECONDS cut=false
    if ((budget > 0 && budget - (SECONDS - started) < limit)); then
        limit=$((budget - (SECONDS - started))) cut=true
        ((limit > 0)) || limit=1
    fi
    rm -rf "$out/slices/$name" "$out/marks/$name"
    [[ $name != matrix-* ]] || rm -f "$out/marks/merge"
    mkdir -p "$out/slices/$name"
    { cat "$out/libraries.txt"; timeout -k 10 "$limit" bash "$self" --inside "$name" --build "$build" --out "$out" \
        ${passing[@]+"${passing[@]}"} 9>&-; } </dev/null >"$out/slices/$name/log.txt" 2>&1 || code=$?
    if ((code == 124 || code == 137)); then
        echo "ended after $limit s" >>"$out/slices/$name/log.txt"
        if $cut; then
            say "$name: the budget was over after $limit s: not finished, runs again next time"
            return
        fi
        say "$name: FAIL: over its limit of $limit s"
        code=1
    elif ((code > 2)); then
        say "$name: FAIL: the slice itself ended with code $code"
        code=1
    fi
    echo "exit=$code seconds=$((SECONDS - t)) build=$identity rehearsal=$rehearse at=$(date -u +%Y-%m-%dT%H:%M:%SZ)" >"$out/marks/$name"
    grep -hE '^could not run: |^[0-9]+ passed, ' "$out/slices/$name/log.txt" | sed "s/^/gpu:     /"
    say "$name: $(verdict "$code") in $((SECONDS - t)) s"
}
verdict() { case $1 in 0) echo pass ;; 1) echo FAIL ;; *) echo "could not run" ;; esac; }

# One file with marks, logs and results.  Long logs keep both ends; long results every line that is no pass, and the counts.
pack_up() {
    local to=${OUT:-$out} file target size
    rm -rf "$out/pack"
    mkdir -p "$out/pack" "$to"
    cp -r "$out/marks" "$out/summary.txt" "$out/libraries.txt" "$out/pack/"
    while IFS= read -r file; do
        target=$out/pack/${file#"$out"/}
        size=$(stat -c %s "$file")
        mkdir -p "${target%/*}"
        if [[ $file == */results.jsonl ]] && ((size > 16 << 20)); then
            { echo "{\"left_out\":\"lines that pass, of $size bytes\"}"; grep -v '"verdict":"pass"' "$file"; } >"$target.cut"
        elif [[ $file != */results.jsonl ]] && ((size > 128 << 10)); then
            { head -c 65536 "$file"; printf '\n... %d bytes left out ...\n' $((size - 131072)); tail -c 65536 "$file"; } >"$target"
        else
            cp "$file" "$target"
        fi
    done < <(find "$out/slices" -type f \( -name log.txt -o -name '*.log' -o -name results.jsonl -o -name facts.json -o -name engine.json \
        -o -name bench.json -o -name 'torch-*.json' -o -name probe.json -o -name '*.key.pub' -o -path '*/certificates/*.json' \) -not -path '*/request-*/*' -not -path '*/answer-*/*')
    tar -czf "$to/$pack.tmp" -C "$out/pack" . || { say "could not pack $to/$pack"; return 1; }
    mv "$to/$pack.tmp" "$to/$pack" || return 1
    rm -rf "$out/pack"
    say "packed $to/$pack ($(stat -c %s "$to/$pack") bytes)"
}

gpu_libraries "$engine" "$assay" >"$out/libraries.txt" # not in a subshell: it sets LD_LIBRARY_PATH
found=$?
cat "$out/libraries.txt"
total=$(slices | wc -l)
ready=true number=0 result=0
if ((found != 0)); then
    say "a library of assay-gpu is missing: nothing can run"
    ready=false result=2
fi
while read -r name expected limit what; do
    number=$((number + 1))
    if [[ $name != doctor && ${#wanted[@]} -gt 0 && " ${wanted[*]} " != *" $name "* ]]; then continue; fi
    code=$(mark_of "$name")
    left=$((budget - (SECONDS - started)))
    if ! $ready; then
        [[ $name == doctor ]] || say "[$number/$total] $name: not run"
        rm -f "$out/marks/doctor"
    elif [[ $name != doctor && -n $code ]] && ! $again; then
        say "[$number/$total] $name: done before: $(verdict "$code")"
    elif [[ $name == merge ]] && { wait; [[ -n $(waits_for) ]]; }; then
        say "[$number/$total] merge: not started: $(waits_for) has not run"
    elif [[ $name != doctor ]] && ((budget > 0 && left < expected)); then
        say "[$number/$total] $name: not started: $((left > 0 ? left : 0)) s are left, about $expected are expected"
    else
        [[ $name != merge && $name != rates ]] || wait # those are alone
        while (($(jobs -rp | wc -l) >= beside)); do wait -n; done
        say "[$number/$total] $name: $what (about $expected s, at most $limit s)"
        if ((beside > 1)) && [[ $name != doctor && $name != merge && $name != rates ]]; then
            run_slice "$name" "$limit" &
            continue
        fi
        run_slice "$name" "$limit"
    fi
    code=$(mark_of "$name")
    if [[ $name == doctor && $code != 0 ]]; then
        if $ready; then say "no device that can be used: nothing else can run"; tail -n 5 "$out/slices/doctor/log.txt"; fi
        ready=false
    fi
done < <(slices)
wait
while read -r name _; do
    if [[ $name != doctor && ${#wanted[@]} -gt 0 && " ${wanted[*]} " != *" $name "* ]]; then continue; fi
    code=$(mark_of "$name")
    [[ ${code:-2} == 0 || $result == 1 ]] || result=$([[ $code == 1 ]] && echo 1 || echo 2)
done < <(slices)
{
    echo "commit ${ASSAY_COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}, programs $identity, rehearsal $rehearse"
    while read -r name _; do
        printf '%-20s %s\n' "$name" "$([[ -f $out/marks/$name ]] && cat "$out/marks/$name" || echo "not run")"
    done < <(slices)
} >"$out/summary.txt"
pack_up || result=$((result == 1 ? 1 : 2))
passed=$(while read -r name _; do [[ $(mark_of "$name") != 0 ]] || echo "$name"; done < <(slices) | wc -l)
say "$(verdict "$result") after $((SECONDS - started)) s; $passed of $total slices have passed"
exit "$result"
