/* Replay of attention and of the split of its fused projection. */
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

/* heads, groups and head_dim from the attributes, else from [T,A,D] and [T,G,D] tensors. */
static assay_status split_sizes(const replay *r, const ref_value *q, const ref_value *k, int64_t *heads,
                                int64_t *groups, int64_t *dim)
{
    const bool given = replay_has_attr(r, "heads");
    if (given) {
        ASSAY_TRY(replay_attr_i64(r, "heads", 1, ASSAY_CONFIG_MAX_DIM, heads));
        ASSAY_TRY(replay_attr_i64(r, "groups", 1, ASSAY_CONFIG_MAX_DIM, groups));
        ASSAY_TRY(replay_attr_i64(r, "head_dim", 0, ASSAY_CONFIG_MAX_DIM, dim));
    } else {
        ASSAY_CHECK(q && k && q->ndim >= 3 && k->ndim >= 3, ASSAY_INVALID_ARGUMENT,
                    "%s: neither attribute 'heads' nor tensors q [T,A,D] and k [T,G,D] give the sizes",
                    r->op);
        *heads = q->shape[q->ndim - 2];
        *groups = k->shape[k->ndim - 2];
        *dim = q->shape[q->ndim - 1];
    }
    ASSAY_CHECK(*groups > 0 && *heads > 0 && *heads % *groups == 0 && *heads <= ASSAY_CONFIG_MAX_DIM &&
                    *dim <= ASSAY_CONFIG_MAX_DIM,
                ASSAY_INVALID_ARGUMENT, "%s: %lld heads do not divide into %lld groups", r->op,
                (long long)*heads, (long long)*groups);
    return ASSAY_OK;
}

static assay_status qkv_split_fwd(const replay *r)
{
    const ref_value *qkv;
    int64_t heads, groups, dim, t;
    double *q, *k, *v;
    ASSAY_TRY(replay_real(r, "qkv", -1, &qkv));
    ASSAY_TRY(split_sizes(r, replay_candidate(r, "q"), replay_candidate(r, "k"), &heads, &groups, &dim));
    ASSAY_TRY(replay_divide(r, qkv, (heads + 2 * groups) * dim, &t));
    if (dim == 0)
        t = 0;
    ASSAY_TRY(replay_out_exact(r, "q", t * heads * dim, qkv->dtype, &q));
    ASSAY_TRY(replay_out_exact(r, "k", t * groups * dim, qkv->dtype, &k));
    ASSAY_TRY(replay_out_exact(r, "v", t * groups * dim, qkv->dtype, &v));
    ref_qkv_split_fwd(q, k, v, qkv->value, t, heads, groups, dim);
    return ASSAY_OK;
}

static assay_status qkv_split_bwd(const replay *r)
{
    const ref_value *dq, *dk, *dv;
    int64_t heads, groups, dim, t, count;
    double *dqkv;
    ASSAY_TRY(replay_real(r, "dq", -1, &dq));
    ASSAY_TRY(replay_real(r, "dk", -1, &dk));
    ASSAY_TRY(split_sizes(r, dq, dk, &heads, &groups, &dim));
    ASSAY_TRY(replay_divide(r, dq, heads * dim, &t));
    if (dim == 0)
        t = 0;
    ASSAY_TRY(replay_product(r, t, groups, dim, &count));
    ASSAY_TRY(replay_real(r, "dk", count, &dk));
    ASSAY_TRY(replay_real(r, "dv", count, &dv));
    ASSAY_TRY(replay_product(r, t, heads + 2 * groups, dim, &count));
    ASSAY_TRY(replay_out_exact(r, "dqkv", count, dq->dtype, &dqkv));
    ref_qkv_split_bwd(dqkv, dq->value, dk->value, dv->value, t, heads, groups, dim);
    return ASSAY_OK;
}

/* --- split, norm and rope in one launch --------------------------------------------------------------------- */
typedef struct qkv_call {
    const ref_value *qkv, *cos, *sin, *position;
    int64_t t, heads, groups, dim, half;
    double *raw[2]; /* heads of q and of k before anything is done to them: exact */
} qkv_call;

static assay_status qkv_call_of(const replay *r, qkv_call *c)
{
    int64_t table_rows;
    ASSAY_TRY(replay_real(r, "qkv", -1, &c->qkv));
    ASSAY_TRY(
        split_sizes(r, replay_candidate(r, "q"), replay_candidate(r, "k"), &c->heads, &c->groups, &c->dim));
    ASSAY_TRY(replay_divide(r, c->qkv, (c->heads + 2 * c->groups) * c->dim, &c->t));
    if (c->dim == 0)
        c->t = 0;
    ASSAY_TRY(replay_real(r, "cos", -1, &c->cos));
    ASSAY_TRY(replay_real(r, "sin", c->cos->count, &c->sin));
    ASSAY_TRY(replay_integer(r, "position", c->t, &c->position));
    c->half = replay_columns(c->cos);
    ASSAY_TRY(replay_divide(r, c->cos, c->half, &table_rows));
    ASSAY_CHECK(c->half >= 0 && c->half <= c->dim / 2, ASSAY_INVALID_ARGUMENT,
                "%s: slot cos: %lld frequencies do not fit heads of %lld", r->op, (long long)c->half,
                (long long)c->dim);
    return replay_range(r, c->position, 0, table_rows - 1);
}

/* Heads before they turn: an output where the candidate has it. */
static assay_status raw_out(const replay *r, const char *slot, const double *raw, int64_t count,
                            assay_dtype dtype)
{
    double *out;
    if (replay_candidate(r, slot) == NULL)
        return ASSAY_OK;
    ASSAY_TRY(replay_out_exact(r, slot, count, dtype, &out));
    memcpy(out, raw, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

/* Needs room for t (heads + groups) dim numbers in c->raw[0]. */
static assay_status split(const replay *r, qkv_call *c)
{
    double *v;
    const int64_t nq = c->t * c->heads * c->dim, nk = c->t * c->groups * c->dim;
    c->raw[1] = c->raw[0] + nq;
    ASSAY_TRY(replay_out_exact(r, "v", nk, c->qkv->dtype, &v));
    ref_qkv_split_fwd(c->raw[0], c->raw[1], v, c->qkv->value, c->t, c->heads, c->groups, c->dim);
    ASSAY_TRY(raw_out(r, "q_raw", c->raw[0], nq, c->qkv->dtype));
    return raw_out(r, "k_raw", c->raw[1], nk, c->qkv->dtype);
}

static assay_status turned(const replay *r, const qkv_call *c, int which, const double *x, const double *xb)
{
    const int64_t n = which == 0 ? c->heads : c->groups;
    ref_pair y;
    ASSAY_TRY(replay_out_real(r, which == 0 ? "q" : "k", c->t * n * c->dim, c->qkv->dtype, "rotation", &y));
    if (xb)
        ref_bound_rope_of(y, x, xb, c->cos->value, c->sin->value, c->position->ivalue, 2 * c->half, c->t, n,
                          c->dim, &r->d);
    else
        ref_bound_rope(y, x, c->cos->value, c->sin->value, c->position->ivalue, 2 * c->half, c->t, n, c->dim,
                       1.0, &r->d);
    return ASSAY_OK;
}

/* What rope reads is the candidate's own norm where it is declared to be stored first, and the norm with its bound where it is not;
 * inside: room for values and bounds of a norm. */
static assay_status normed(const replay *r, const qkv_call *c, int which, double *inside)
{
    static const char *const gamma_slot[] = {"q_gamma", "k_gamma"}, *const norm_slot[] = {"q_norm", "k_norm"},
                             *const rstd_slot[] = {"q_rstd", "k_rstd"};
    const int64_t rows = c->t * (which == 0 ? c->heads : c->groups), count = rows * c->dim;
    const ref_value *gamma, *stored = replay_candidate(r, norm_slot[which]);
    const bool reads_stored = r->arith->rounding & ASSAY_ROUND_NORM;
    double eps;
    ref_pair y, rstd;
    ASSAY_TRY(replay_attr_double(r, "eps", &eps));
    ASSAY_TRY(replay_real(r, gamma_slot[which], c->dim, &gamma));
    ASSAY_TRY(replay_out_real(r, rstd_slot[which], rows, ASSAY_F32, "sum of squares", &rstd));
    if (stored) {
        ASSAY_TRY(replay_out_real(r, norm_slot[which], count, c->qkv->dtype, "sum of squares", &y));
        ref_bound_rmsnorm_fwd(y, rstd, c->raw[which], gamma->value, eps, rows, c->dim, &r->d);
    }
    if (!reads_stored) {
        const ref_pair unrounded = {inside, inside + count, false};
        ref_bound_rmsnorm_fwd(unrounded, rstd, c->raw[which], gamma->value, eps, rows, c->dim, &r->d);
        return turned(r, c, which, inside, inside + count);
    }
    ASSAY_CHECK(stored && stored->count == count && (stored->value || count == 0), ASSAY_INVALID_ARGUMENT,
                "%s: rope is declared to read the norm as it is stored: expected an output %s of %lld "
                "elements, found %s",
                r->op, norm_slot[which], (long long)count, stored ? "another size" : "none");
    return turned(r, c, which, stored->value, NULL);
}

static assay_status qkv_rope(const replay *r, bool norm)
{
    qkv_call c = {.qkv = NULL};
    assay_status st = ASSAY_OK;
    ASSAY_TRY(qkv_call_of(r, &c));
    const size_t numbers = (size_t)(c.t * (c.heads + c.groups) * c.dim),
                 widest = (size_t)(2 * c.t * (c.heads > c.groups ? c.heads : c.groups) * c.dim);
    double *room = malloc((numbers + widest + 1) * sizeof *room), *inside = room ? room + numbers : NULL;
    ASSAY_CHECK(room, ASSAY_OUT_OF_MEMORY, "%s: %lld rows", r->op, (long long)c.t);
    c.raw[0] = room;
    ASSAY_TRY_GOTO(split(r, &c), st, done);
    for (int which = 0; which < 2; which++)
        ASSAY_TRY_GOTO(norm ? normed(r, &c, which, inside) : turned(r, &c, which, c.raw[which], NULL), st,
                       done);
done:
    free(room);
    return st;
}

static assay_status qkv_rope_fwd(const replay *r)
{
    return qkv_rope(r, false);
}

static assay_status qkv_norm_rope_fwd(const replay *r)
{
    return qkv_rope(r, true);
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
    {"attention_merge", attention_merge},     {"pack_heads", pack_heads},
    {"unpack_heads", unpack_heads},           {"attention_fwd", attention_fwd},
    {"attention_bwd", attention_bwd},         {"qkv_split_fwd", qkv_split_fwd},
    {"qkv_split_bwd", qkv_split_bwd},         {"qkv_rope_fwd", qkv_rope_fwd},
    {"qkv_norm_rope_fwd", qkv_norm_rope_fwd}, {NULL, NULL},
};
