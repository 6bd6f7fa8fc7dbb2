/* Calls of attention for the laws of its tests: batch, seq_q, seq_k, heads, groups, D, Dv, window, 1 with documents + 2 with dropout. */
#ifndef TESTS_GPU_ATTENTION_SUPPORT_H
#define TESTS_GPU_ATTENTION_SUPPORT_H

#include "tests/support/gpu_judge.h"

static inline void positions(op_call *c, const int64_t *d)
{
    const int64_t tq = d[0] * d[1], tk = d[0] * d[2];
    double *p = calloc((size_t)(tq + tk + 1), sizeof *p);
    for (int64_t i = 0; i < tq; ++i)
        p[i] = (double)(i / d[0] + (d[2] - d[1])); /* the queries are the last ones */
    put_values(c, "q_position", ASSAY_I64, p, tq, -1);
    for (int64_t i = 0; i < tk; ++i)
        p[i] = (double)(i / d[0]);
    put_values(c, "k_position", ASSAY_I64, p, tk, -1);
    for (int64_t i = 0; i < tq; ++i) /* documents of 4; one row sees nothing */
        p[i] = i / d[0] == 1 ? 99 : (double)(i / d[0] / 4 * 4);
    if (d[8] & 1)
        put_values(c, "first_key", ASSAY_I64, p, tq, -1);
    free(p);
}

static inline void attention_attrs(op_call *c, const int64_t *d)
{
    static const char *const names[] = {"batch",  "seq_q",    "seq_k",      "heads",
                                        "groups", "head_dim", "head_dim_v", "window"};
    for (int i = 0; i < 8; ++i)
        attr_i(c, names[i], d[i]);
    attr_d(c, "scale", (double)(float)(1 / sqrt((double)d[5])));
    if (!(d[8] & 2))
        return;
    attr_d(c, "dropout_p", 0.3);
    const struct {
        const char *name;
        int64_t value;
    } mask[] = {{"seed", 77},
                {"stream", 4},
                {"draw", 5},
                {"first_row", 1},
                {"all_rows", d[0] + 3},
                {"first_head", 2},
                {"all_heads", 2 * d[3]},
                {"all_keys", d[2] + 9}};
    for (size_t i = 0; i < sizeof mask / sizeof mask[0]; ++i)
        attr_i(c, mask[i].name, mask[i].value);
}

static inline void attention_fwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    attention_attrs(c, d);
    positions(c, d);
    DRAW(c, "q", act, mode, 2.0, 3, d[0] * d[1], d[3], d[5]);
    DRAW(c, "k", act, mode, 2.0, 3, d[0] * d[2], d[4], d[5]);
    DRAW(c, "v", act, mode, 1.0, 3, d[0] * d[2], d[4], d[6]);
}

/* Of what the forward has found. */
static inline void attention_bwd(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    op_call f;
    call_begin(&f, c->ctx, c->seed);
    attention_fwd(&f, act, mode, d);
    run_op(&f, "attention_fwd", act);
    c->seed = f.seed;
    DRAW(c, "do", act, mode, 1.0, 3, d[0] * d[1], d[3], d[6]);
    for (int i = 0; i < f.n_in; ++i) {
        gpu_slot *s = new_slot(c, f.in[i].slot, f.in[i].dtype, f.in[i].ndim, f.in[i].shape);
        memcpy(c->value[c->n_in - 1], f.value[i], (size_t)slot_count(s) * sizeof(double));
        store_slot(c);
    }
    feed(c, "o", &f, "o");
    feed(c, "lse", &f, "lse");
    attention_attrs(c, d);
    call_end(&f);
}

#endif
