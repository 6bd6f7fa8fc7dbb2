/* Jitter of a router's input: counter-based, by global indices.  docs/OPS.md 7. */
#include "core/base/philox.h"
#include "ref/ops.h"

/* Every step is exact but the sum and the rounding to F32: no compiler can make another number of it. */
double ref_jitter_factor(const ref_jitter *j, int64_t token, int64_t h, int64_t column)
{
    uint32_t words[4];
    const uint64_t element = (uint64_t)((j->draw * j->tokens + token) * h + column);
    assay_philox(REF_RANDOM_LOGITS_SEED, ((uint64_t)1 << 30) + (uint64_t)j->layer, element / 4, words);
    const double u = (double)(2 * (int64_t)(words[element % 4] >> 8) + 1 - (1 << 24)) * 0x1p-24;
    return (double)(float)(1.0 + j->eps * u);
}

void ref_input_jitter(double *y, const double *x, const int64_t *token, int64_t t, int64_t h,
                      const ref_jitter *j)
{
    for (int64_t i = 0; i < t; i++)
        for (int64_t c = 0; c < h; c++)
            y[i * h + c] = x[i * h + c] * ref_jitter_factor(j, token[i], h, c);
}
