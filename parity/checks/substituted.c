/* Results that are not the engine's own. */
#include "parity/judge/judge.h"

assay_status parity_check_substituted(const assay_trace *trace, parity_report *report)
{
    parity_result r;
    int64_t outputs = 0, operations = 0;
    parity_result_init(&r);
    r.check = PARITY_CHECK_PLAN;
    parity_result_from_trace(&r, trace);
    for (int rank = 0; rank < assay_trace_world(trace); rank++)
        for (int64_t i = 0; i < assay_trace_n_ops(trace, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(trace, rank, i);
            const int64_t before = outputs;
            for (int k = 0; k < op->n_outputs; k++)
                outputs += op->substituted[k];
            if (outputs > 0 && operations == 0)
                parity_result_from_op(&r, op);
            operations += outputs > before;
        }
    if (outputs == 0)
        return ASSAY_OK;
    parity_result_skip(
        &r,
        "%lld outputs of %lld operations are not the engine's own, the first of %s %.100s: something "
        "put others in their place (--substitute), and this run is not certified",
        (long long)outputs, (long long)operations, r.op, r.instance);
    return parity_report_add(report, &r);
}
