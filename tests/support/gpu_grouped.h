/* Calls of the grouped products for the laws of their tests: N, K, experts, rows of each. */
#ifndef TESTS_GPU_GROUPED_SUPPORT_H
#define TESTS_GPU_GROUPED_SUPPORT_H

#include "tests/support/gpu_judge.h"

static inline int64_t grouped_rows(op_call *c, const int64_t *d)
{
    double counts[MAX_SIZES];
    int64_t rows = 0;
    for (int64_t e = 0; e < d[2]; ++e) {
        counts[e] = (double)d[3 + e];
        rows += d[3 + e];
    }
    put_values(c, "tokens_per_expert", ASSAY_I64, counts, d[2], -1);
    return rows;
}

static inline void grouped_linear_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    const int64_t rows = grouped_rows(c, d);
    DRAW(c, "x", act, mode, 1.0, 2, rows, d[1]);
    DRAW(c, "weight", act, mode, 1.0, 3, d[2], d[0], d[1]);
}

static inline void grouped_linear_bwd_input(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    const int64_t rows = grouped_rows(c, d);
    DRAW(c, "dy", act, mode, 1.0, 2, rows, d[0]);
    DRAW(c, "weight", act, mode, 1.0, 3, d[2], d[0], d[1]);
}

static inline void grouped_linear_bwd_weight(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    const int64_t rows = grouped_rows(c, d);
    DRAW(c, "dy", act, mode, 1.0, 2, rows, d[0]);
    DRAW(c, "x", act, mode, 1.0, 2, rows, d[1]);
    DRAW(c, "dweight_in", ASSAY_F32, mode, 1.0, 3, d[2], d[0], d[1]);
}

/* Not to accumulate: what the target holds is NaN and is not read; an expert without rows gets zeros. */
static inline void op_unread(op_call *c)
{
    float *held = c->in[c->n_in - 1].data;
    for (int64_t i = 0; i < slot_count(&c->in[c->n_in - 1]); i++) {
        held[i] = NAN;
        c->value[c->n_in - 1][i] = (double)NAN;
    }
    attr_b(c, "accumulate", false);
}

#endif
