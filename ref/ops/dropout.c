/* Dropout: counter-based masks by global indices.  docs/OPS.md 6 and 9.12. */
#include "core/base/philox.h"
#include "ref/ops.h"

#include <assert.h>
#include <math.h>

double ref_dropout_factor(const ref_dropout *d, uint64_t element)
{
    assert(d->p >= 0.0 && d->p < 1.0);
    uint32_t words[4];
    const uint64_t stream = (uint64_t)d->draw << 32 | (uint64_t)1 << 31 | (uint64_t)d->stream;
    assay_philox((uint64_t)d->seed, stream, element / 4, words);
    return words[element % 4] >= (uint32_t)floor(d->p * 0x1p32) ? 1.0 / (1.0 - d->p) : 0.0;
}

/* The mask is linear and its own transpose. */
static void apply(double *y, const double *x, const int64_t *token, int64_t t, int64_t h,
                  const ref_dropout *d)
{
    for (int64_t i = 0; i < t; i++)
        for (int64_t c = 0; c < h; c++)
            y[i * h + c] =
                x[i * h + c] * ref_dropout_factor(d, (uint64_t)token[i] * (uint64_t)h + (uint64_t)c);
}

void ref_dropout_fwd(double *y, const double *x, const int64_t *token, int64_t t, int64_t h,
                     const ref_dropout *d)
{
    apply(y, x, token, t, h, d);
}

void ref_dropout_bwd(double *dx, const double *dy, const int64_t *token, int64_t t, int64_t h,
                     const ref_dropout *d)
{
    apply(dx, dy, token, t, h, d);
}

double ref_attention_factor(const ref_attention_desc *d, int64_t query_row, int64_t head, int64_t key_row)
{
    const uint64_t row = (uint64_t)d->q_position[query_row] * (uint64_t)d->all_rows + (uint64_t)d->first_row +
                         (uint64_t)(query_row % d->batch);
    const uint64_t of_head = row * (uint64_t)d->all_heads + (uint64_t)d->first_head + (uint64_t)head;
    return ref_dropout_factor(&d->dropout,
                              of_head * (uint64_t)d->all_keys + (uint64_t)d->k_position[key_row]);
}
