/* Replay of attention. */
#include "ref/bounds/foreign.h"
#include "ref/replay_context.h"

#include <stdlib.h>
#include <string.h>

typedef struct attention_inputs {
    ref_attention_desc desc;
    const ref_value *q, *k, *v;
    int64_t tq, tk;
    assay_dtype p_dtype;
} attention_inputs;

/* Positions are compared, never used as an index: any value is legal, but a difference must not overflow. */
static assay_status positions(const replay *r, attention_inputs *x)
{
    const ref_value *q, *k, *first;
    const int64_t limit = INT64_MAX / 4;
    ASSAY_TRY(replay_integer(r, "q_position", x->tq, &q));
    ASSAY_TRY(replay_integer(r, "k_position", x->tk, &k));
    ASSAY_TRY(replay_integer_optional(r, "first_key", x->tq, &first));
    ASSAY_TRY(replay_range(r, q, -limit, limit));
    ASSAY_TRY(replay_range(r, k, -limit, limit));
    x->desc.q_position = q->ivalue;
    x->desc.k_position = k->ivalue;
    x->desc.first_key = first ? first->ivalue : NULL;
    return ASSAY_OK;
}

/* An absent dropout_p is 0, and nothing else is read then. */
static assay_status dropout(const replay *r, ref_attention_desc *d)
{
    if (!replay_has_attr(r, "dropout_p"))
        return ASSAY_OK;
    ASSAY_TRY(replay_dropout(r, "dropout_p", &d->dropout));
    ASSAY_TRY(replay_attr_i64(r, "first_row", 0, (int64_t)1 << 30, &d->first_row));
    ASSAY_TRY(replay_attr_i64(r, "all_rows", 0, (int64_t)1 << 30, &d->all_rows));
    ASSAY_TRY(replay_attr_i64(r, "first_head", 0, (int64_t)1 << 30, &d->first_head));
    ASSAY_TRY(replay_attr_i64(r, "all_heads", 0, (int64_t)1 << 30, &d->all_heads));
    return replay_attr_i64(r, "all_keys", 0, (int64_t)1 << 30, &d->all_keys);
}

static assay_status attention_inputs_read(const replay *r, attention_inputs *x)
{
    ref_attention_desc *d = &x->desc;
    const int64_t max = ASSAY_CONFIG_MAX_DIM;
    int64_t count;
    *x = (attention_inputs){.p_dtype = ASSAY_F64};
    ASSAY_TRY(replay_attr_i64(r, "batch", 0, max, &d->batch));
    ASSAY_TRY(replay_attr_i64(r, "seq_q", 0, max, &d->seq_q));
    ASSAY_TRY(replay_attr_i64(r, "seq_k", 0, max, &d->seq_k));
    ASSAY_TRY(replay_attr_i64(r, "heads", 1, max, &d->heads));
    ASSAY_TRY(replay_attr_i64(r, "groups", 1, max, &d->groups));
    ASSAY_TRY(replay_attr_i64(r, "head_dim", 0, max, &d->head_dim));
    ASSAY_TRY(replay_attr_i64(r, "head_dim_v", 0, max, &d->head_dim_v));
    ASSAY_TRY(replay_attr_double(r, "scale", &d->scale));
    ASSAY_TRY(replay_attr_i64(r, "window", 0, INT64_MAX / 4, &d->window));
    ASSAY_CHECK(d->heads % d->groups == 0, ASSAY_INVALID_ARGUMENT,
                "%s: %lld heads do not divide into %lld groups", r->op, (long long)d->heads,
                (long long)d->groups);
    ASSAY_TRY(dropout(r, d));
    if (replay_has_attr(r, "p_dtype")) {
        char name[16];
        ASSAY_TRY(replay_attr_string(r, "p_dtype", name, sizeof name));
        ASSAY_TRY(assay_dtype_from_name(name, &x->p_dtype));
    }
    ASSAY_TRY(replay_product(r, d->seq_q, d->batch, 1, &x->tq));
    ASSAY_TRY(replay_product(r, d->seq_k, d->batch, 1, &x->tk));
    ASSAY_TRY(replay_product(r, x->tq, d->heads, d->head_dim, &count));
    ASSAY_TRY(replay_real(r, "q", count, &x->q));
    /* The same said by a kernel's declaration, which has no attributes. */
    if (r->arith->rounding & ASSAY_ROUND_PROBS && assay_dtype_precision(x->q->dtype) < 24)
        x->p_dtype = x->q->dtype;
    ASSAY_TRY(replay_product(r, x->tk, d->groups, d->head_dim, &count));
    ASSAY_TRY(replay_real(r, "k", count, &x->k));
    ASSAY_TRY(replay_product(r, x->tk, d->groups, d->head_dim_v, &count));
    ASSAY_TRY(replay_real(r, "v", count, &x->v));
    return positions(r, x);
}

static assay_status attention_fwd(const replay *r)
{
    attention_inputs x;
    int64_t count;
    ref_pair o, lse;
    ASSAY_TRY(attention_inputs_read(r, &x));
    ASSAY_TRY(replay_product(r, x.tq, x.desc.heads, x.desc.head_dim_v, &count));
    ASSAY_TRY(replay_out_real(r, "o", count, x.q->dtype, "scores", &o));
    ASSAY_TRY(replay_out_real(r, "lse", x.tq * x.desc.heads, ASSAY_F32, "scores", &lse));
    return ref_bound_attention_fwd(o, lse, x.q->value, x.k->value, x.v->value, &x.desc, x.p_dtype, &r->d);
}

static assay_status attention_bwd(const replay *r)
{
    attention_inputs x;
    const ref_value *dout, *o, *lse;
    int64_t count;
    ref_pair dq, dk, dv;
    ASSAY_TRY(attention_inputs_read(r, &x));
    ASSAY_TRY(replay_product(r, x.tq, x.desc.heads, x.desc.head_dim_v, &count));
    ASSAY_TRY(replay_real(r, "do", count, &dout));
    ASSAY_TRY(replay_real(r, "o", count, &o));
    ASSAY_TRY(replay_real_optional(r, "lse", x.tq * x.desc.heads, &lse));
    ASSAY_TRY(replay_out_real(r, "dq", x.q->count, x.q->dtype, "scores", &dq));
    ASSAY_TRY(replay_out_real(r, "dk", x.k->count, x.k->dtype, "scores", &dk));
    ASSAY_TRY(replay_out_real(r, "dv", x.v->count, x.v->dtype, "scores", &dv));
    if (!lse) /* kept by nobody: docs/TRACE.md, internal */
        return ref_bound_attention_bwd_alone(dq, dk, dv, dout->value, x.q->value, x.k->value, x.v->value,
                                             o->value, &x.desc, x.p_dtype,
                                             (r->arith->rounding & ASSAY_ROUND_SCORES) != 0, &r->d);
    return ref_bound_attention_bwd(dq, dk, dv, dout->value, x.q->value, x.k->value, x.v->value, o->value,
                                   lse->value, &x.desc, x.p_dtype, &r->d);
}

static assay_status attention_merge(const replay *r)
{
    const ref_value *o_a, *lse_a, *o_b, *lse_b;
    int64_t heads, dim, rows;
    ref_pair o, lse;
    ASSAY_TRY(replay_attr_i64(r, "heads", 1, ASSAY_CONFIG_MAX_DIM, &heads));
    ASSAY_TRY(replay_attr_i64(r, "head_dim", 1, ASSAY_CONFIG_MAX_DIM, &dim));
    ASSAY_TRY(replay_real(r, "o_b", -1, &o_b));
    ASSAY_TRY(replay_divide(r, o_b, dim, &rows));
    ASSAY_TRY(replay_real(r, "o_a", o_b->count, &o_a));
    ASSAY_TRY(replay_real(r, "lse_a", rows, &lse_a));
    ASSAY_TRY(replay_real(r, "lse_b", rows, &lse_b));
    ASSAY_TRY(replay_out_real(r, "o", o_b->count, o_b->dtype, "merge", &o));
    ASSAY_TRY(replay_out_real(r, "lse", rows, ASSAY_F32, "merge", &lse));
    ref_bound_attention_merge(o, lse, o_a->value, lse_a->value, o_b->value, lse_b->value, rows, dim, &r->d);
    return ASSAY_OK;
}

static assay_status repack(const replay *r,
                           void (*copy)(double *, const double *, int64_t, int64_t, int64_t, int64_t))
{
    const ref_value *x;
    int64_t heads, dim, parts, t;
    double *y;
    ASSAY_TRY(replay_attr_i64(r, "heads", 1, ASSAY_CONFIG_MAX_DIM, &heads));
    ASSAY_TRY(replay_attr_i64(r, "head_dim", 1, ASSAY_CONFIG_MAX_DIM, &dim));
    ASSAY_TRY(replay_attr_i64(r, "parts", 1, ASSAY_CONFIG_MAX_DIM, &parts));
    ASSAY_CHECK(heads % parts == 0, ASSAY_INVALID_ARGUMENT, "%s: %lld parts do not divide %lld heads", r->op,
                (long long)parts, (long long)heads);
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_divide(r, x, heads * dim, &t));
    ASSAY_TRY(replay_out_exact(r, "y", x->count, x->dtype, &y));
    copy(y, x->value, t, heads, dim, parts);
    return ASSAY_OK;
}

static assay_status pack_heads(const replay *r)
{
    return repack(r, ref_pack_heads);
}

static assay_status unpack_heads(const replay *r)
{
    return repack(r, ref_unpack_heads);
}

const replay_row replay_attention_table[] = {
    {"attention_merge", attention_merge}, {"pack_heads", pack_heads},       {"unpack_heads", unpack_heads},
    {"attention_fwd", attention_fwd},     {"attention_bwd", attention_bwd}, {NULL, NULL},
};
