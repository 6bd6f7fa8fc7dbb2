#!/usr/bin/env bash
# Kills `assay ckpt merge` and `lora-merge` in front of every system call that changes something in the folder they write to (tests/tools/kill_at.c),
# and looks after each: the folder to be made is there whole, byte for byte what an undisturbed run makes, or not at all; and the same command
# then succeeds beside what was left behind.
#   ci/kill_tools.sh [--build DIR]      default: build/release
# The last line says how many points and how many losses; exit 1 when there is one, 2 when it could not be tried.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
build=build/release
[[ ${1:-} != --build ]] || build=${2:?}
bin=$(realpath "$build")/bin
[[ -x $bin/assay ]] || { echo "kill_tools: $bin: expected assay" >&2; exit 2; }
room=$(realpath "$(mktemp -d /tmp/assay-kill-tools-XXXXXX)")
trap 'rm -rf "$room"' EXIT
"${CC:-cc}" -O1 -std=c17 -D_GNU_SOURCE -o "$room/kill_at" tests/tools/kill_at.c || exit 2
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
tried=0 lost=0 absent=0 whole=0
# kills VERB ARGUMENTS...; @ is the folder to be made
kills() {
    local n points command=("$bin/assay" ckpt "${@/#@/$room/run/out}")
    rm -rf "$room/run" "$room/good"
    mkdir "$room/run"
    "$room/kill_at" 0 all "$room/run" "${command[@]}" >"$room/log" 2>&1
    points=$(tail -n 1 "$room/log" | cut -d ' ' -f 2)
    [[ $points =~ ^[0-9]+$ ]] && ((points > 0)) || { cat "$room/log"; echo "kill_tools: $1 cannot be traced" >&2; exit 2; }
    mv "$room/run/out" "$room/good"
    for ((n = 1; n <= points; n++)); do
        rm -rf "$room/run"
        mkdir "$room/run"
        "$room/kill_at" "$n" all "$room/run" "${command[@]}" >"$room/log" 2>&1
        case $? in
        0) tried=$((tried + 1)) ;;
        1) continue ;;
        *) cat "$room/log"; exit 2 ;;
        esac
        if [[ -e $room/run/out ]]; then
            if diff -r "$room/good" "$room/run/out" >"$room/said"; then whole=$((whole + 1)); else lost=$((lost + 1)); cat "$room/said"; fi
        elif "${command[@]}" >"$room/said" 2>&1 && diff -r "$room/good" "$room/run/out" >>"$room/said"; then
            absent=$((absent + 1))
        else
            lost=$((lost + 1))
            echo "kill_tools: $1: point $n of $points:"
            cat "$room/said"
        fi
    done
}
kills merge golden/merge/a golden/merge/b @ --method ties --base golden/merge/base --density 0.5 --max-shard-size 400
kills lora-merge golden/models/qwen2 golden/adapters/qwen2_dora @ --max-shard-size 20000
echo "kill_tools: $tried points: no folder behind $absent, the whole one behind $whole, lost: $lost"
((lost == 0 && tried > 0))
