/* The zeros in the gradients that a run reports are those of its assembled gradients, whoever counted them. */
#include "parity/checks/whole.h"

#include <stdio.h>
#include <stdlib.h>

/* Adds the zeros of one tensor; what cannot be assembled fails *r. */
static assay_status add_zeros(const parity_index *x, const char *name, int64_t step, int64_t *zeros,
                              parity_result *r)
{
    const parity_entry *e = parity_index_find(x, name, ASSAY_PHASE_REDUCED_GRAD, step, -1);
    parity_global g = {0};
    parity_result finding;
    double *values = NULL;
    assay_status st = ASSAY_OK;
    parity_result_init(&finding);
    if (e)
        ASSAY_TRY_GOTO(parity_entry_assemble(x, e, &g, &finding), st, done);
    if (!e || !g.complete) {
        parity_result_fail(r, "%s of step %lld cannot be assembled: %.300s", name, (long long)step,
                           e ? finding.message : "it is not in the trace");
        goto done;
    }
    ASSAY_TRY_GOTO(parity_decode_all(g.data, g.count, g.dtype, &values), st, done);
    for (int64_t i = 0; i < g.count; i++)
        *zeros += values[i] == 0.0;
done:
    free(values);
    parity_global_free(&g);
    return st;
}

assay_status parity_whole_zeros(const parity_index *x, const assay_model_spec *spec, int64_t step,
                                parity_result *r)
{
    const parity_entry *e = parity_index_find(x, "num_zeros_in_grad", ASSAY_PHASE_OPTIMIZER, step, -1);
    int64_t zeros = 0;
    for (int64_t i = 0; i < spec->n_params && r->verdict == PARITY_PASS; i++) {
        char name[ASSAY_NAME + 16];
        snprintf(name, sizeof name, "%s.main_grad", spec->params[i].name);
        if (assay_param_needs_grad(&spec->params[i]))
            ASSAY_TRY(add_zeros(x, name, step, &zeros, r));
    }
    r->count = 1;
    r->expected = (double)zeros;
    if (e == NULL && r->verdict == PARITY_PASS)
        parity_result_fail(r, "the trace has no num_zeros_in_grad of step %lld", (long long)step);
    for (int64_t i = 0; e && i < e->n && r->verdict == PARITY_PASS; i++) {
        const assay_trace_tensor *t = e->pieces[i].record;
        const bool number = t->data != NULL && t->dtype == ASSAY_I64 && assay_shard_count(&t->shard) == 1;
        const int64_t found = number ? parity_decode_integer(t->data, 0, ASSAY_I64) : -1;
        r->found = (double)found;
        if (found != zeros)
            parity_result_fail(r, "expected the %lld zeros of the assembled gradients, found %lld of rank %d",
                               (long long)zeros, (long long)found, t->rank);
    }
    return ASSAY_OK;
}
