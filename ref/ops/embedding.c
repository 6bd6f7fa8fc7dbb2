/* Table lookup in the piece of the vocabulary that starts at vocab_start. */
#include "ref/ops.h"
#include "ref/ops/vector.h"

void ref_embedding_fwd(double *y, const int64_t *ids, const double *w, int64_t vocab_start, int64_t t,
                       int64_t v, int64_t h)
{
    for (int64_t i = 0; i < t; i++) {
        if (ids[i] >= vocab_start && ids[i] - vocab_start < v)
            ref_vec_copy(y + i * h, w + (ids[i] - vocab_start) * h, h);
        else
            ref_vec_zero(y + i * h, h);
    }
}

void ref_embedding_bwd(double *dweight, const double *dy, const int64_t *ids, int64_t vocab_start,
                       int64_t padding_idx, int64_t t, int64_t v, int64_t h)
{
    for (int64_t i = 0; i < t; i++)
        if (ids[i] != padding_idx && ids[i] >= vocab_start && ids[i] - vocab_start < v)
            ref_vec_axpy(dweight + (ids[i] - vocab_start) * h, 1.0, dy + i * h, h);
}
