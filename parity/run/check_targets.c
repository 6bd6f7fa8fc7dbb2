/* Whether what positions are asked for stands where the model is asked for it. */
#include "parity/run/check.h"

/* Positions whose target is the token `ahead` of them. */
static int64_t count_ahead(const check_state *c, int64_t microbatch, int64_t ahead)
{
    const assay_batches *b = &c->reference->batches;
    const int64_t *ids = assay_batches_ids(b, 0, microbatch),
                  *labels = assay_batches_labels(b, 0, microbatch);
    int64_t same = 0;
    for (int64_t i = 0; i < b->b * b->s; i++) {
        const int64_t s = i % b->s, at = b->shifted ? i : i + 1;
        const int64_t target = b->shifted || s + 1 < b->s ? labels[at] : ASSAY_IGNORE_INDEX;
        if (target == ASSAY_IGNORE_INDEX)
            continue;
        same += s + ahead < b->s && target == ids[i + ahead];
    }
    return same;
}

/* Nobody but the ids can say whether targets from outside of the model's call stand where they should. */
void check_targets(check_state *c)
{
    const parity_reference *r = c->reference;
    int64_t counted = 0, call = 0, same[3] = {0};
    for (int64_t m = 0; m < r->batches.microbatches; m++) {
        if (r->microbatches[m].targets == 0 || !r->microbatches[m].known)
            continue;
        for (int k = 0; k < 3; k++)
            same[k] += count_ahead(c, m, k);
        counted += r->microbatches[m].targets;
        call += r->microbatches[m].from_call;
    }
    if (counted == 0 || same[1] == counted)
        return;
    if (same[0] == counted && call == 0)
        check_fail(
            c, CHECK_WHOLE,
            "the targets of the recorded cross entropy (step %lld) are the tokens at their own positions "
            "(%lld of %lld): the labels are not shifted",
            (long long)r->step, (long long)same[0], (long long)counted);
    else if (same[2] == counted)
        check_note(c, "all %lld targets of step %lld are the tokens after the next: %s", (long long)counted,
                   (long long)r->step,
                   call > 0
                       ? "the labels of the model's call are input_ids moved by one already, and the model "
                         "moves them once more"
                       : "the labels are shifted twice");
}
