/* A recorded loss as a mean: what its cross entropy says that it did. */
#include "parity/run/diff.h"

#include <string.h>

static const assay_trace_op *maker_of(const assay_trace *t, const assay_trace_tensor *record)
{
    for (int64_t i = 0; i < assay_trace_n_ops(t, record->rank); i++) {
        const assay_trace_op *op = assay_trace_op_at(t, record->rank, i);
        if (strcmp(op->op, "cross_entropy_fwd") == 0 && op->step == record->step &&
            assay_trace_op_tensor(t, op, "loss") == record)
            return op;
    }
    return NULL;
}

static assay_status count_targets(const assay_trace *t, const assay_trace_op *op, int64_t *count)
{
    const assay_trace_tensor *targets = op != NULL ? assay_trace_op_tensor(t, op, "targets") : NULL;
    ref_value v = {0};
    *count = 0;
    if (targets == NULL || targets->data == NULL)
        return ASSAY_OK;
    ASSAY_TRY(parity_value_of("targets", targets, &v));
    for (int64_t i = 0; i < v.count; i++)
        *count += v.ivalue[i] != ASSAY_IGNORE_INDEX;
    parity_value_free(&v);
    return ASSAY_OK;
}

assay_status diff_loss_factor(const assay_trace *t, const parity_entry *e, double *factor, int64_t *targets)
{
    const assay_trace_op *op = maker_of(t, e->pieces[0].record);
    const char *reduction = op != NULL ? json_string_value(json_object_get(op->attrs, "reduction")) : NULL;
    ASSAY_TRY(count_targets(t, op, targets));
    const double one_of = *targets > 0 ? 1.0 / (double)*targets : 0.0;
    if (e->n > 1)
        *targets = 0;
    *factor = 1.0;
    if (reduction != NULL && strcmp(reduction, "mean") != 0)
        *factor = strcmp(reduction, "sum") == 0 ? one_of : 0.0;
    return ASSAY_OK;
}
