#!/usr/bin/env bash
# sanitize.sh ASSAY ASSAY_SIM_RACES: what `assay sanitize` says, and its exit code.
set -u
assay=$1 program=$2 failed=0
try() { # CODE TEXT COMMAND...
    local code=$1 text=$2 out
    shift 2
    out=$("$@" 2>&1)
    local found=$?
    if ((found != code)) || ! grep -q -e "$text" <<<"$out"; then
        echo "expected exit code $code and \"$text\", found exit code $found: $*"
        echo "$out"
        failed=1
    fi
}
try 0 '0  findings' "$assay" sanitize "$program" --alone tree_reduction
try 1 '1  race' "$assay" sanitize "$program" --alone halo
try 1 '1  out of bounds' "$assay" sanitize "$program" --alone read_just_behind
try 1 '1  uninitialized' "$assay" sanitize "$program" --alone shared_never_written
try 1 '1  leak' "$assay" sanitize "$program" --alone never_freed
try 0 '0  findings' "$assay" sanitize --no-leaks "$program" --alone never_freed
try 1 'device memory read by the host' "$assay" sanitize "$program" --alone host_reads_device
try 2 'nothing was checked' "$assay" sanitize /bin/true
try 2 'expected a program' "$assay" sanitize
exit $failed
