#!/usr/bin/env bash
# A matrix as an array job of Slurm, and its report: ./slurm.sh submit, in a folder that all nodes see.
#   CASES: case files, PARTS: how many tasks (2), REPORT: where it goes (report)
set -euo pipefail
: "${CASES:=examples/parity/case.json}" "${PARTS:=2}" "${REPORT:=report}"
case ${1:-} in
submit)
    array=$(sbatch --parsable --array=1-"$PARTS" "$0" part)
    sbatch --dependency=afterany:"$array" "$0" join
    ;;
part)
    # A part with failures still has a report; the join judges.  An older one is not taken for it.
    rm -rf "$REPORT.part$SLURM_ARRAY_TASK_ID"
    # shellcheck disable=SC2086 # several cases are several words
    assay run $CASES --quiet --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" --report "$REPORT.part$SLURM_ARRAY_TASK_ID" ||
        test -f "$REPORT.part$SLURM_ARRAY_TASK_ID/results.jsonl"
    ;;
join)
    assay report merge "$REPORT".part* --report "$REPORT" --summary "$REPORT.md"
    ;;
*)
    echo "usage: slurm.sh submit" >&2
    exit 2
    ;;
esac
