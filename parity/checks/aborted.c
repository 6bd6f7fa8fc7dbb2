/* Ranks whose trace says that the run ended before it was done (docs/TRACE.md): what they recorded may be whole, the run is not. */
#include "parity/judge/judge.h"

assay_status parity_check_aborted(const assay_trace *trace, parity_report *report)
{
    for (int rank = 0; rank < assay_trace_world(trace); rank++) {
        const char *why = assay_trace_aborted(trace, rank);
        parity_result r;
        if (why == NULL)
            continue;
        parity_result_init(&r);
        parity_result_from_trace(&r, trace);
        r.check = PARITY_CHECK_PLAN;
        r.rank = rank;
        snprintf(r.instance, sizeof r.instance, "trace");
        parity_result_fail(
            &r,
            "rank %d: the trace says that its run was aborted, and the engine ended with exit code 0: %.300s",
            rank, why);
        ASSAY_TRY(parity_report_add(report, &r));
    }
    return ASSAY_OK;
}
