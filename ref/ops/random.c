/* Random logits: counter-based, by global indices. */
#include "core/base/philox.h"
#include "ref/ops.h"

void ref_random_logits(double *y, const int64_t *token, int64_t t, int64_t e, int64_t layer, int64_t draw,
                       int64_t tokens)
{
    for (int64_t i = 0; i < t; i++)
        for (int64_t j = 0; j < e; j++) {
            const int64_t index = (draw * tokens + token[i]) * e + j;
            const int64_t z = assay_philox_normal4(REF_RANDOM_LOGITS_SEED, (uint64_t)layer, (uint64_t)index);
            y[i * e + j] = (double)(float)((double)z * ASSAY_PHILOX_UNIT);
        }
}
