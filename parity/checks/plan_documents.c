/* Documents packed in the rows of a batch: docs/OPS.md 9.8. */
#include "parity/checks/plan.h"

bool plan_is_packed(const plan *p)
{
    return p->job->batches->position_ids != NULL;
}

/* I64 [S,B] of this rank's rows of the microbatch, at the positions of a sequence: where a token stands in its document, or
 * where in the row that begins. */
static plan_tensor leaf(plan *p, const char *name, const assay_sequence *sequence, bool start)
{
    const plan_tensor t = {
        .name = name, .phase = ASSAY_PHASE_FORWARD, .microbatch = p->microbatch, .dtype = ASSAY_I64};
    const int64_t *in_document = assay_batches_positions(p->job->batches, p->step, p->microbatch);
    const int64_t n = sequence->length * p->B;
    int64_t *value = plan_integers(p, n);
    for (int64_t i = 0; value != NULL && i < n; i++) {
        const int64_t s = assay_sequence_position(sequence, i / p->B);
        const int64_t at = in_document[(p->share.first_row + i % p->B) * p->S + s];
        value[i] = start ? s - at : at;
    }
    return plan_with_integers(t, value, n);
}

plan_tensor plan_document_positions(plan *p)
{
    return leaf(p, "position_ids", &p->sequence.region, false);
}

plan_tensor plan_document_start(plan *p, bool gathered)
{
    if (!plan_is_packed(p))
        return (plan_tensor){0};
    return gathered ? leaf(p, "key_document_start", &p->gathered, true)
                    : leaf(p, "document_start", &p->sequence.region, true);
}
