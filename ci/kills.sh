#!/usr/bin/env bash
# Kills `assay step` and `assay run` at random moments, as a time limit of CI does (SIGTERM or SIGKILL of the program alone), and looks
# after every kill: no process of it is left and nothing half-written, and the same command in the
# same folder then ends as if nothing had been.  A whole file beside --out, killed between the two calls that replace an older one, is
# counted and is no complaint.
#
#   ci/kills.sh [--build DIR] [--steps N] [--runs N] [--seed N]     defaults: build/release, 300, 100, the time
#
# ci/test.sh does ten; all of them take some 20 minutes.  The last line says how many kills; exit 1 when one left something.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
build=build/release steps=300 runs=100 seed=$(date +%s)
while (($#)); do
    case $1 in
    --build) build=$2 ;;
    --steps) steps=$2 ;;
    --runs) runs=$2 ;;
    --seed) seed=$2 ;;
    *) echo "kills: expected --build DIR, --steps N, --runs N or --seed N, found $1" >&2; exit 2 ;;
    esac
    (($# >= 2)) || { echo "kills: $1: expected a value" >&2; exit 2; }
    shift 2
done
bin=$(realpath "$build")/bin
[[ -x $bin/assay && -x $bin/assay-sim ]] || { echo "kills: $bin: expected assay and assay-sim (ci/build.sh release)" >&2; exit 2; }
room=$(mktemp -d /tmp/assay-kills-XXXXXX)
# A child that is killed before it has become the program still has these traps: they are the first shell's alone.
trap '[[ $BASHPID != "$$" ]] || rm -rf "$room"' EXIT
trap '[[ $BASHPID != "$$" ]] || echo "kills: stopped after $((all + killed)) kills, $bad left something" >&2; exit 2' INT TERM
export ASSAY_KILLS=$room OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
RANDOM=$seed
bad=0 killed=0 ended=0 all=0 unnamed=0
model=golden/models/qwen3_moe
step=("$bin/assay" step --engine sim --layout dp2 --model "$model" --batch "$model/train_batch.safetensors" --out "$room/step/out.safetensors"
    --save "$room/step/checkpoint")
run=("$bin/assay" run --engine sim --case llama --layout tp2 --layout 1 --precision bf16 --jobs 2 --quiet --report "$room/run")

complain() { echo "kills: seed $seed: $*"; bad=$((bad + 1)); }
# Processes of this test, by a word of their environment; the shell's own children are not among them.  With them the sockets and the
# memory by which ranks meet are gone: neither has a name that outlives them.
ours() {
    local p
    for p in /proc/[0-9]*; do
        [[ ${p#/proc/} == "$$" || ${p#/proc/} == "$BASHPID" ]] && continue
        [[ $(readlink "$p/exe" 2>/dev/null) == "$bin"/assay* ]] && tr '\0' '\n' <"$p/environ" 2>/dev/null | grep -cx "ASSAY_KILLS=$room" >/dev/null &&
            echo "${p#/proc/}"
    done
}

# attempt WHAT MOST-MILLISECONDS COMMAND...: starts it, kills it, looks what is left.
attempt() {
    local what=$1 most=$2 signal=TERM wait pid left
    shift 2
    ((RANDOM % 2)) && signal=KILL
    wait=$(((RANDOM * 32768 + RANDOM) % most))
    "$@" >"$room/log" 2>&1 &
    pid=$!
    sleep "$(printf '%d.%03d' $((wait / 1000)) $((wait % 1000)))"
    if kill -s "$signal" "$pid" 2>/dev/null; then killed=$((killed + 1)); else ended=$((ended + 1)); fi
    wait "$pid" 2>/dev/null
    for _ in {1..40}; do
        left=$(ours)
        [[ -z $left ]] && break
        sleep 0.05
    done
    [[ -z $left ]] || { complain "$what: SIG$signal after $wait ms: processes left: $left"; kill -9 $left; }
    said="$what: SIG$signal after $wait ms"
}

# whole COMMAND...: it runs at all; `most` is how long that took, in milliseconds.
whole() {
    local begin
    begin=$(date +%s%N)
    "$@" >"$room/log" 2>&1 || { cat "$room/log"; echo "kills: $2 does not run at all" >&2; exit 2; }
    most=$((($(date +%s%N) - begin) / 1000000))
}

# report WHAT N: N were to be killed.
report() {
    echo "$1: $killed killed, $ended had ended before"
    ((killed == $2)) || complain "$1: expected $2 kills: the program ends too soon"
    all=$((all + killed)) killed=0 ended=0
}

mkdir -p "$room/step"
whole "${step[@]}"
good=$(sha256sum <"$room/step/out.safetensors")
for ((i = 0; killed < steps && i < 20 * steps; i++)); do
    # A killed save leaves its staging folder, which enters no checkpoint (docs/CHECKPOINT.md).
    # Half of them find the files of the run before, half an empty folder.
    ((i % 2)) || { rm -rf "$room/step"; mkdir "$room/step"; }
    attempt "step $i" "$most" "${step[@]}"
    [[ ! -e $room/step/out.safetensors || $(sha256sum <"$room/step/out.safetensors") == "$good" ]] || complain "$said: half of --out"
    rm -rf "$room/step/checkpoint" # a finished one is not written over
    "${step[@]}" >"$room/log" 2>&1 || { complain "$said: the next step failed"; cat "$room/log"; }
    [[ $(sha256sum <"$room/step/out.safetensors") == "$good" ]] || complain "$said: the next step has other bits"
    for file in "$room"/step/.out.safetensors.tmp-*; do
        [[ -f $file && $(sha256sum <"$file") == "$good" ]] && rm "$file" && unnamed=$((unnamed + 1))
    done
    left=$(find "$room/step" -mindepth 1 -maxdepth 1 ! -name out.safetensors ! -name checkpoint ! -name 'checkpoint.tmp-*')
    [[ -z $left ]] || complain "$said: left: $left"
done
report step "$steps"
echo "step: $unnamed whole files under their temporary name"

if ((runs > 0)); then
    whole "${run[@]}"
    good=$(tail -n 1 "$room/log")
fi
for ((i = 0; killed < runs && i < 20 * runs; i++)); do
    attempt "run $i" "$most" "${run[@]}"
    "${run[@]}" >"$room/log" 2>&1 || { complain "$said: the next run failed"; cat "$room/log"; }
    [[ $(tail -n 1 "$room/log") == "$good" ]] || complain "$said: the next run says $(tail -n 1 "$room/log"), expected $good"
    left=$(find "$room/run" -name '*.tmp*')
    [[ -z $left ]] || complain "$said: left after the next run: $left"
done
report run "$runs"
echo "kills: $all kills, $bad left something"
((bad == 0))
