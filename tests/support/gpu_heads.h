/* Calls of what splits, normalizes and rotates heads: d = tokens, query heads, groups, head dimension, R/2. */
#ifndef TESTS_SUPPORT_GPU_HEADS_H
#define TESTS_SUPPORT_GPU_HEADS_H

#include "tests/support/gpu_judge.h"

enum { POSITIONS = 13 };

static inline void angles(op_call *c, const int64_t *d)
{
    double *cosine = put(c, "cos", ASSAY_F32, -1, 1, 2, (int64_t)POSITIONS, d[4]);
    const double *kept = cosine;
    double *sine = malloc((size_t)(POSITIONS * d[4]) * sizeof *sine + 8);
    for (int64_t i = 0; i < POSITIONS * d[4]; i++)
        sine[i] = (i % 2 ? -1.0 : 1.0) * sqrt(1.0 - kept[i] * kept[i]);
    put_values(c, "sin", ASSAY_F32, sine, POSITIONS, d[4]);
    free(sine);
    put(c, "position", ASSAY_I64, 0, POSITIONS, 1, d[0]);
}

static inline void split_attrs(op_call *c, const int64_t *d)
{
    attr_i(c, "heads", d[1]);
    attr_i(c, "groups", d[2]);
    attr_i(c, "head_dim", d[3]);
}

static inline void is_highest(const op_call *c, const char *op)
{
    cr_expect_null(gpu_ladder_find(op, c->declared.variant + 1), "%s ran k%d", op, c->declared.variant);
}

/* An input of another call. */
static inline void copy_in(op_call *c, const op_call *whole, const char *slot, const char *as)
{
    for (int i = 0; i < whole->n_in; i++)
        if (strcmp(whole->in[i].slot, slot) == 0) {
            gpu_slot *s = new_slot(c, as, whole->in[i].dtype, whole->in[i].ndim, whole->in[i].shape);
            memcpy(c->value[c->n_in - 1], whole->value[i], (size_t)slot_count(s) * sizeof(double));
            store_slot(c);
            return;
        }
    cr_assert_fail("no input %s", slot);
}

static inline gpu_tensor heads(float *data, assay_dtype dtype, int64_t t, int64_t n, int64_t d)
{
    const int64_t shape[3] = {t, n, d};
    return gpu_tensor_make(data, dtype, 3, shape);
}

#endif
