/* Labels that count in the loss. */
#include "gpu/targets.h"

int64_t gpu_microbatch_targets(const assay_batches *b, int64_t step, int64_t microbatch)
{
    const int64_t *labels = assay_batches_labels(b, step, microbatch);
    int64_t n = 0;
    for (int64_t row = 0; row < b->b; row++)
        for (int64_t s = b->shifted ? 0 : 1; s < b->s; s++)
            n += labels[row * b->s + s] != ASSAY_IGNORE_INDEX;
    return n;
}

int64_t gpu_step_targets(const assay_batches *b, int64_t step)
{
    int64_t n = 0;
    for (int64_t k = 0; k < b->microbatches; k++)
        n += gpu_microbatch_targets(b, step, k);
    return n;
}
