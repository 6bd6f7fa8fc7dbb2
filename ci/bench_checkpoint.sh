#!/usr/bin/env bash
# Save, load and verify of a checkpoint of 0.9 GB beside cp and sha256sum of its files on the same disk, in one run: wall seconds and GB/s, and
# processor seconds, which a loaded machine does not change.  A benchmark, no test.
#   ci/bench_checkpoint.sh [--build DIR] [--dir DIR] [--ranks N]      defaults: build/release, TMPDIR, 1
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/release dir=${TMPDIR:-/tmp} ranks=1
while (($#)); do
    (($# >= 2)) || { echo "bench_checkpoint: $1: expected a value" >&2; exit 2; }
    case $1 in
    --build) build=$2 ;;
    --dir) dir=$2 ;;
    --ranks) ranks=$2 ;;
    *) echo "bench_checkpoint: expected --build DIR, --dir DIR or --ranks N, found $1" >&2; exit 2 ;;
    esac
    shift 2
done
cmake --build "$build" --target bench_checkpoint >/dev/null
room=$(mktemp -d "$dir/assay-bench-checkpoint-XXXXXX")
trap 'rm -rf "$room"' EXIT
"$build/bin/bench_checkpoint" "$room/c" "$ranks" >"$room/said"
bytes=$(du -sb "$room/c" | cut -f 1)
timed() { # WORD COMMAND...: as bench_checkpoint says it
    local TIMEFORMAT='%R %U %S' word=$1
    shift
    { time "$@" >/dev/null; } 2>"$room/time"
    awk -v word="$word" '{ printf "%s %.3f %.3f\n", word, $1, $2 + $3 }' "$room/time" >>"$room/said"
}
copy() { cp -r "$room/c" "$room/copy" && sync -f "$room/copy"; }
timed cp copy
timed sha256sum sha256sum "$room"/c/*
printf '%-10s %10s %10s %12s\n' what seconds GB/s "CPU seconds"
awk -v bytes="$bytes" '{ printf "%-10s %10.2f %10.2f %12.2f\n", $1, $2, bytes / 1e9 / $2, $3 }' "$room/said"
echo "$bytes bytes, $ranks ranks, load of the machine: $(cut -d ' ' -f 1-3 /proc/loadavg)"
