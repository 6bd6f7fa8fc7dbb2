/* Replay of the split of attention's fused projection, and of split, norm and rope in one launch, in both directions. */
#include "ref/replay_context.h"

#include <stdlib.h>
#include <string.h>

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

/* Tables and positions, of c->t tokens in heads of c->dim. */
static assay_status rotation(const replay *r, qkv_call *c)
{
    int64_t table_rows;
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

static assay_status qkv_call_of(const replay *r, qkv_call *c)
{
    ASSAY_TRY(replay_real(r, "qkv", -1, &c->qkv));
    ASSAY_TRY(
        split_sizes(r, replay_candidate(r, "q"), replay_candidate(r, "k"), &c->heads, &c->groups, &c->dim));
    ASSAY_TRY(replay_divide(r, c->qkv, (c->heads + 2 * c->groups) * c->dim, &c->t));
    if (c->dim == 0)
        c->t = 0;
    return rotation(r, c);
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

/* --- the way back ------------------------------------------------------------------------------------------- */
/* Gradients of queries, keys and values behind the turn; of each of the first two: before it, in the format of the output and as the
 * norm reads it, and of what the split made.  Room for values and bounds. */
typedef struct qkv_back {
    qkv_call c;
    const ref_value *dy[3];
    ref_pair turned[2], raw[2];
} qkv_back;

static assay_status qkv_back_of(const replay *r, qkv_back *b)
{
    static const char *const slot[] = {"dq", "dk", "dv"};
    qkv_call *c = &b->c;
    int64_t count;
    ASSAY_TRY(replay_real(r, "dq", -1, &b->dy[0]));
    ASSAY_TRY(replay_real(r, "dk", -1, &b->dy[1]));
    ASSAY_TRY(split_sizes(r, b->dy[0], b->dy[1], &c->heads, &c->groups, &c->dim));
    ASSAY_TRY(replay_divide(r, b->dy[0], c->heads * c->dim, &c->t));
    if (c->dim == 0)
        c->t = 0;
    for (int i = 0; i < 3; i++) {
        ASSAY_TRY(replay_product(r, c->t, i == 0 ? c->heads : c->groups, c->dim, &count));
        ASSAY_TRY(replay_real(r, slot[i], count, &b->dy[i]));
    }
    return rotation(r, c);
}

/* A gradient with its bound: an output where the candidate has it. */
static assay_status pair_out(const replay *r, const char *slot, ref_pair x, int64_t count, assay_dtype dtype,
                             const char *dominant)
{
    ref_pair out;
    if (replay_candidate(r, slot) == NULL)
        return ASSAY_OK;
    ASSAY_TRY(replay_out_real(r, slot, count, dtype, dominant, &out));
    for (int64_t i = 0; i < count; i++) {
        out.y[i] = x.y[i];
        out.b[i] = x.b[i];
    }
    return ASSAY_OK;
}

/* x becomes the candidate's own numbers where it has that output: what is stored is read, or copied, as it is. */
static void take_stored(const replay *r, const char *slot, ref_pair x, int64_t count)
{
    const ref_value *stored = replay_candidate(r, slot);
    if (stored == NULL || stored->value == NULL || stored->count != count)
        return;
    for (int64_t i = 0; i < count; i++) {
        x.y[i] = stored->value[i];
        x.b[i] = 0.0;
    }
}

/* which: 0 queries, 1 keys.  Without a norm what turned back is what the split made. */
static assay_status turned_back(const replay *r, qkv_back *b, int which, bool norm)
{
    static const char *const slot[2][2] = {{"dq_raw", "dk_raw"}, {"dq_norm", "dk_norm"}};
    const qkv_call *c = &b->c;
    const int64_t heads = which == 0 ? c->heads : c->groups, count = c->t * heads * c->dim;
    const char *name = slot[norm][which];
    const ref_pair x = norm ? b->turned[which] : b->raw[which];
    ref_bound_rope(x, b->dy[which]->value, c->cos->value, c->sin->value, c->position->ivalue, 2 * c->half,
                   c->t, heads, c->dim, -1.0, &r->d);
    return pair_out(r, name, x, count, b->dy[0]->dtype, "rotation");
}

/* The norm reads what turned back: the candidate's own numbers where it is declared to be stored first and is there, else as it is
 * before it is stored, or with the rounding of being stored. */
static assay_status norm_back(const replay *r, qkv_back *b, int which)
{
    static const char *const slot[2][7] = {
        {"q_raw", "q_gamma", "q_rstd", "q_dgamma_in", "q_dgamma", "dq_norm", "dq_raw"},
        {"k_raw", "k_gamma", "k_rstd", "k_dgamma_in", "k_dgamma", "dk_norm", "dk_raw"}};
    const char *const *name = slot[which];
    const qkv_call *c = &b->c;
    const int64_t heads = which == 0 ? c->heads : c->groups, rows = c->t * heads, count = rows * c->dim;
    const ref_value *x, *gamma, *rstd, *old;
    ref_pair dgamma = {NULL, NULL, false}, dy = b->turned[which];
    ASSAY_TRY(replay_real(r, name[0], count, &x));
    ASSAY_TRY(replay_real(r, name[1], c->dim, &gamma));
    ASSAY_TRY(replay_real(r, name[2], rows, &rstd));
    ASSAY_TRY(replay_real_optional(r, name[3], c->dim, &old)); /* absent: gamma is frozen */
    if (old)
        ASSAY_TRY(replay_out_real(r, name[4], c->dim, ASSAY_F32, "sum over tokens", &dgamma));
    dy.same = false;
    ref_bound_rope(dy, b->dy[which]->value, c->cos->value, c->sin->value, c->position->ivalue, 2 * c->half,
                   c->t, heads, c->dim, -1.0, &r->d);
    for (int64_t i = 0; i < count; i++) {
        const ref_iv stored = ref_stored(&r->d, ASSAY_ROUND_NORM, (ref_iv){dy.y[i], dy.b[i]});
        dy.b[i] = stored.b;
    }
    if (r->arith->rounding & ASSAY_ROUND_NORM)
        take_stored(r, name[5], dy, count);
    ASSAY_TRY(ref_bound_rmsnorm_bwd_of(b->raw[which], dgamma, dy.y, dy.b, x->value, gamma->value, rstd->value,
                                       old ? old->value : NULL, rows, c->dim, &r->d));
    return pair_out(r, name[6], b->raw[which], count, b->dy[0]->dtype, "row sum");
}

/* Copies of what the split made, as it is stored where it is, and of dv; none: room for as many zeros as dv has. */
static void packed_back(const replay *r, qkv_back *b, ref_pair dqkv, const double *none)
{
    static const char *const slot[] = {"dq_raw", "dk_raw"};
    const qkv_call *c = &b->c;
    for (int which = 0; which < 2; which++)
        take_stored(r, slot[which], b->raw[which], c->t * (which == 0 ? c->heads : c->groups) * c->dim);
    ref_qkv_split_bwd(dqkv.y, b->raw[0].y, b->raw[1].y, b->dy[2]->value, c->t, c->heads, c->groups, c->dim);
    ref_qkv_split_bwd(dqkv.b, b->raw[0].b, b->raw[1].b, none, c->t, c->heads, c->groups, c->dim);
}

/* What is stored inside has the type of the gradients, whatever the first output is. */
static assay_status qkv_rope_back(const replay *call, bool norm)
{
    replay own = *call;
    const replay *r = &own;
    qkv_back b = {.c = {.qkv = NULL}};
    const qkv_call *c = &b.c;
    assay_status st = ASSAY_OK;
    int64_t count;
    ref_pair dqkv;
    ASSAY_TRY(qkv_back_of(r, &b));
    ref_declared_store(&own.d, own.arith, b.dy[0]->dtype);
    ASSAY_TRY(replay_product(r, c->t, c->heads + 2 * c->groups, c->dim, &count));
    ASSAY_TRY(replay_out_real(r, "dqkv", count, b.dy[0]->dtype, norm ? "row sum" : "rotation", &dqkv));
    const int64_t nq = c->t * c->heads * c->dim, nk = c->t * c->groups * c->dim;
    double *room = calloc((size_t)(4 * (nq + nk) + nk + 1), sizeof *room), *at = room;
    ASSAY_CHECK(room, ASSAY_OUT_OF_MEMORY, "%s: %lld rows", r->op, (long long)c->t);
    for (int which = 0; which < 2; which++) {
        const int64_t n = which == 0 ? nq : nk;
        b.turned[which] = (ref_pair){at, at + n, dqkv.same};
        b.raw[which] = (ref_pair){at + 2 * n, at + 3 * n, dqkv.same};
        at += 4 * n;
        ASSAY_TRY_GOTO(turned_back(r, &b, which, norm), st, done);
        if (norm)
            ASSAY_TRY_GOTO(norm_back(r, &b, which), st, done);
    }
    packed_back(r, &b, dqkv, at);
done:
    free(room);
    return st;
}

static assay_status qkv_rope_bwd(const replay *r)
{
    return qkv_rope_back(r, false);
}

static assay_status qkv_norm_rope_bwd(const replay *r)
{
    return qkv_rope_back(r, true);
}

const replay_row replay_qkv_table[] = {
    {"qkv_split_fwd", qkv_split_fwd},
    {"qkv_split_bwd", qkv_split_bwd},
    {"qkv_rope_fwd", qkv_rope_fwd},
    {"qkv_norm_rope_fwd", qkv_norm_rope_fwd},
    {"qkv_rope_bwd", qkv_rope_bwd},
    {"qkv_norm_rope_bwd", qkv_norm_rope_bwd},
    {NULL, NULL},
};
