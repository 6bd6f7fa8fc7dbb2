#!/usr/bin/env bash
# Kills a saving run in front of every system call that changes something in its folder of checkpoints (tests/tools/kill_at.c), and looks
# after each: the newest published checkpoint is whole by its hashes, `latest` names one that is there, and nothing else has the
# name of a checkpoint.  The run goes on from one checkpoint, publishes the next, moves the pointers and removes the first (its loss is the greater).
#   ci/kill_saves.sh [--build DIR] [--shard BYTES] [--every N] [--who WHO]      defaults: build/release, 60000, 1, all
# WHO is killed: `all` processes of a run with plain saves; `async`: all, `writer`: the writer process that makes the call, `trainers`: all
# ranks but no writer, of a run with --async-save.  A run whose writer was killed must not end well unless all was published already; behind
# trainers that were killed the writers go on to their end: the checkpoint is published or given up, as a whole.
# The last line says how many points and how many losses; exit 1 when there is one, 2 when it could not be tried.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
build=build/release shard=60000 every=1 who=all
while (($#)); do
    case $1 in
    --build) build=$2 ;;
    --shard) shard=$2 ;;
    --every) every=$2 ;;
    --who) who=$2 ;;
    *) echo "kill_saves: expected --build DIR, --shard BYTES, --every N or --who WHO, found $1" >&2; exit 2 ;;
    esac
    (($# >= 2)) || { echo "kill_saves: $1: expected a value" >&2; exit 2; }
    shift 2
done
case $who in
all) victims=all async=() ;;
async) victims=all async=(--async-save) ;;
writer | trainers) victims=$who async=(--async-save) ;;
*) echo "kill_saves: --who: expected all, async, writer or trainers, found $who" >&2; exit 2 ;;
esac
bin=$(realpath "$build")/bin
[[ -x $bin/assay && -x $bin/assay-sim ]] || { echo "kill_saves: $bin: expected assay and assay-sim" >&2; exit 2; }
room=$(realpath "$(mktemp -d /tmp/assay-kill-saves-XXXXXX)")
trap 'rm -rf "$room"' EXIT
"${CC:-cc}" -O1 -std=c17 -D_GNU_SOURCE -o "$room/kill_at" tests/tools/kill_at.c || exit 2
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
model=golden/models/llama
step=("$bin/assay" step --engine sim --layout dp2,zero1 --precision bf16 --model "$model" --batch "$model/train_batch.safetensors" --out "$room/out"
    --save "$room/run" --save-interval 1 --save-total-limit 1 --max-shard-size "$shard" --lr 0.02 --lr-decay-iters 9)
begin() { rm -rf "$room/run" && cp -r "$room/base" "$room/run"; }
killed() { "$room/kill_at" "$1" "$victims" "$room/run" "${step[@]}" "${async[@]}" --train-iters 2 --load "$room/run/iter_0000001" >"$room/log" 2>&1; }

mkdir "$room/run"
"${step[@]}" --train-iters 1 >"$room/log" 2>&1 || { cat "$room/log"; echo "kill_saves: the run does not run at all" >&2; exit 2; }
mv "$room/run" "$room/base"
begin
killed 0
points=$(tail -n 1 "$room/log" | cut -d ' ' -f 2)
[[ $points =~ ^[0-9]+$ ]] && ((points > 0)) || { cat "$room/log"; echo "kill_saves: the run cannot be traced" >&2; exit 2; }
tried=0 lost=0 old=0 new=0
for ((n = 1; n <= points; n += every)); do
    begin
    killed "$n"
    case $? in
    0) tried=$((tried + 1)) ;;
    1) continue ;; # ranks take turns: this run made fewer calls
    *) cat "$room/log"; exit 2 ;;
    esac
    code=$(tail -n 1 "$room/log" | cut -d ' ' -f 1)
    if [[ $who == writer && $code == 0 ]]; then
        lost=$((lost + 1))
        echo "kill_saves: point $n of $points: the run ended well, its writer was killed"
    elif "$bin/assay" ckpt verify "$room/run" >"$room/said" 2>&1 && "$bin/assay" ckpt inspect "$room/run/latest" >"$room/latest" 2>&1; then
        if grep -q iter_0000002 "$room/said"; then new=$((new + 1)); else old=$((old + 1)); fi
    else
        lost=$((lost + 1))
        echo "kill_saves: point $n of $points:"
        cat "$room/said" "$room/latest"
        ls -la "$room/run"
    fi
done
echo "kill_saves: who $who: $tried points of $points: the old checkpoint was the newest behind $old, the new one behind $new, lost: $lost"
((lost == 0 && tried > 0))
