/* Gradients that were cleared before the step ended, as the optimizer took them: behind a clip. */
#include "parity/run/check.h"

#include <math.h>
#include <string.h>

/* "X.grad" as the optimizer took it, where the parameter's own was cleared: the entry as if it were the gradient. */
bool check_as_gradient(const check_state *c, const parity_entry *e, parity_entry *out)
{
    const size_t n = strlen(e->name), suffix = strlen(".grad");
    *out = *e;
    out->step = 0; /* the reference's only one */
    if (e->phase != ASSAY_PHASE_OPTIMIZER)
        return true;
    out->phase = ASSAY_PHASE_GRAD;
    return c->optimizer_gradients && n > suffix && strcmp(e->name + n - suffix, ".grad") == 0;
}

/* <found, expected> and <expected, expected> of one gradient, <found, found> as well. */
static assay_status add_products(const check_state *c, const parity_entry *e, double sums[3])
{
    parity_entry gradient;
    const assay_name_row *row;
    parity_global found = {0}, expected = {0}, a = {0}, b = {0};
    parity_result finding;
    assay_status st = ASSAY_OK;
    if (!check_as_gradient(c, e, &gradient))
        return ASSAY_OK;
    const parity_entry *o = parity_aligner_find(c->names, c->reference->truth_index, &gradient, &row);
    if (o == NULL || !parity_entry_assembles(e))
        return ASSAY_OK;
    parity_result_init(&finding);
    ASSAY_TRY_GOTO(parity_entry_assemble(c->index, e, &found, &finding), st, done);
    ASSAY_TRY_GOTO(parity_entry_assemble(c->reference->truth_index, o, &expected, &finding), st, done);
    if (!found.complete || !expected.complete ||
        parity_align(row, &found, &expected, 0, &a, &b) != ASSAY_OK) {
        assay_error_clear(); /* the comparison says so */
        goto done;
    }
    for (int64_t i = 0; i < a.count; i++) {
        const double x = parity_decode(a.data, i, a.dtype), y = parity_decode(b.data, i, b.dtype);
        sums[0] += x * y;
        sums[1] += y * y;
        sums[2] += x * x;
    }
done:
    parity_global_free(&b);
    parity_global_free(&a);
    parity_global_free(&expected);
    parity_global_free(&found);
    return st;
}

/* A clip multiplies all gradients by one number below 1; anything else is compared as it is. */
assay_status check_clip(check_state *c, double *clip)
{
    double sums[3] = {0.0};
    *clip = 1.0;
    for (int64_t i = 0; i < c->index->n && c->optimizer_gradients; i++) {
        const parity_entry *e = &c->index->entries[i];
        if (e->phase == ASSAY_PHASE_OPTIMIZER && e->step == c->reference->step)
            ASSAY_TRY(add_products(c, e, sums));
    }
    const double factor = sums[0] / sums[1], square = sums[0] * factor / sums[2];
    /* one direction, and shorter by more than what makes it another: rounding alone is no clip */
    const double noise = sqrt(fmax(0.0, 1.0 - square));
    if (!(noise < 0.1 && factor > 0.0 && 1.0 - factor > fmax(1e-3, noise)))
        return ASSAY_OK;
    *clip = factor;
    if (!c->clip_noted)
        check_note(
            c,
            "the gradients that the optimizer took in step %lld are %.6g times the reference's, their norm "
            "%.6g: taken for a clip of the norm",
            (long long)c->reference->step, factor, sqrt(sums[2]));
    c->clip_noted = true;
    return ASSAY_OK;
}
