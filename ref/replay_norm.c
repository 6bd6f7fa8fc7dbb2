/* Replay of the norms. */
#include "ref/bounds/foreign.h"
#include "ref/bounds/layernorm.h"
#include "ref/replay_context.h"

#include <stdlib.h>

static assay_status rmsnorm_fwd(const replay *r)
{
    const ref_value *x, *gamma;
    double eps;
    int64_t t;
    ref_pair y, rstd;
    ASSAY_TRY(replay_attr_double(r, "eps", &eps));
    ASSAY_TRY(replay_real(r, "gamma", -1, &gamma));
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_divide(r, x, gamma->count, &t));
    ASSAY_TRY(replay_out_real(r, "y", x->count, x->dtype, "sum of squares", &y));
    ASSAY_TRY(replay_out_real(r, "rstd", t, ASSAY_F32, "sum of squares", &rstd));
    ref_bound_rmsnorm_fwd(y, rstd, x->value, gamma->value, eps, t, gamma->count, &r->d);
    return ASSAY_OK;
}

/* add, then rmsnorm_fwd.  What the norm reads is the candidate's own residual where it is declared to be stored first, and the sum
 * with its bound where it is not. */
static assay_status add_rmsnorm_fwd(const replay *r)
{
    const ref_value *a, *b, *gamma;
    double eps;
    int64_t t;
    ref_pair sum, y, rstd;
    ASSAY_TRY(replay_attr_double(r, "eps", &eps));
    ASSAY_TRY(replay_real(r, "gamma", -1, &gamma));
    ASSAY_TRY(replay_real(r, "a", -1, &a));
    ASSAY_TRY(replay_real(r, "b", a->count, &b));
    ASSAY_TRY(replay_divide(r, a, gamma->count, &t));
    ASSAY_TRY(replay_out_real(r, "residual", a->count, a->dtype, "addition", &sum));
    ASSAY_TRY(replay_out_real(r, "y", a->count, a->dtype, "sum of squares", &y));
    ASSAY_TRY(replay_out_real(r, "rstd", t, ASSAY_F32, "sum of squares", &rstd));
    ref_bound_add(sum, a->value, b->value, a->count, &r->d);
    if ((r->arith->rounding & ASSAY_ROUND_RESIDUAL) == 0)
        return ref_bound_rmsnorm_fwd_of(y, rstd, a->value, b->value, gamma->value, eps, t, gamma->count,
                                        &r->d);
    const ref_value *stored = replay_candidate(r, "residual");
    ASSAY_CHECK(
        stored && stored->count == a->count && stored->value, ASSAY_INVALID_ARGUMENT,
        "add_rmsnorm_fwd: the norm is declared to read the residual as it is stored: expected an output "
        "residual of %lld elements, found %s",
        (long long)a->count, stored ? "another size" : "none");
    ref_bound_rmsnorm_fwd(y, rstd, stored->value, gamma->value, eps, t, gamma->count, &r->d);
    return ASSAY_OK;
}

static assay_status rmsnorm_bwd(const replay *r)
{
    const ref_value *dy, *x, *gamma, *rstd, *old;
    int64_t t;
    ref_pair dx, dgamma = {NULL, NULL, false};
    ASSAY_TRY(replay_real(r, "gamma", -1, &gamma));
    const int64_t h = gamma->count;
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_divide(r, x, h, &t));
    ASSAY_TRY(replay_real(r, "dy", x->count, &dy));
    ASSAY_TRY(replay_real_optional(r, "rstd", t, &rstd));
    ASSAY_TRY(replay_real_optional(r, "dgamma_in", h, &old)); /* absent: gamma is frozen */
    ASSAY_TRY(replay_out_real(r, "dx", x->count, x->dtype, "row sum", &dx));
    if (old)
        ASSAY_TRY(replay_out_real(r, "dgamma", h, ASSAY_F32, "sum over tokens", &dgamma));
    if (!rstd) { /* kept by nobody: docs/TRACE.md, internal */
        double eps;
        ASSAY_TRY(replay_attr_double(r, "eps", &eps));
        return ref_bound_rmsnorm_bwd_alone(dx, dgamma, dy->value, x->value, gamma->value, eps,
                                           old ? old->value : NULL, t, h, &r->d);
    }
    return ref_bound_rmsnorm_bwd(dx, dgamma, dy->value, x->value, gamma->value, rstd->value,
                                 old ? old->value : NULL, t, h, &r->d);
}

typedef struct norm_inputs {
    const ref_value *dy, *x, *gamma, *rstd;
    int64_t t, h;
} norm_inputs;

static assay_status norm_bwd_inputs(const replay *r, norm_inputs *in)
{
    ASSAY_TRY(replay_real(r, "gamma", -1, &in->gamma));
    in->h = in->gamma->count;
    ASSAY_TRY(replay_real(r, "x", -1, &in->x));
    ASSAY_TRY(replay_divide(r, in->x, in->h, &in->t));
    ASSAY_TRY(replay_real(r, "dy", in->x->count, &in->dy));
    return replay_real(r, "rstd", in->t, &in->rstd);
}

/* rmsnorm_bwd, then add.  What is added is the candidate's own dx where it is declared to be stored first and is there, else dx with
 * its bound; room [2 T H]: those. */
static assay_status bwd_add(const replay *r, const norm_inputs *in, double *room)
{
    const int64_t n = in->x->count;
    const ref_value *dresidual, *old, *stored = replay_candidate(r, "dx");
    const ref_pair bounded = {room, room + n, false}; /* dx itself may end with a rounding less */
    ref_pair y, dx, dgamma = {NULL, NULL, false};
    ASSAY_TRY(replay_real(r, "dresidual", n, &dresidual));
    ASSAY_TRY(replay_real_optional(r, "dgamma_in", in->h, &old)); /* absent: gamma is frozen */
    if (old)
        ASSAY_TRY(replay_out_real(r, "dgamma", in->h, ASSAY_F32, "sum over tokens", &dgamma));
    ASSAY_TRY(replay_out_real(r, "y", n, in->x->dtype, "row sum", &y));
    ASSAY_TRY(ref_bound_rmsnorm_bwd(bounded, dgamma, in->dy->value, in->x->value, in->gamma->value,
                                    in->rstd->value, old ? old->value : NULL, in->t, in->h, &r->d));
    if (stored)
        ASSAY_TRY(replay_out_real(r, "dx", n, in->x->dtype, "row sum", &dx));
    for (int64_t i = 0; i < n && stored; i++)
        ref_pair_set(dx, i, (ref_iv){bounded.y[i], bounded.b[i]}, &r->d.num);
    if (stored && stored->value && (r->arith->rounding & ASSAY_ROUND_RESIDUAL))
        ref_bound_add(y, dresidual->value, stored->value, n, &r->d);
    else
        ref_bound_rmsnorm_bwd_add(y, dresidual->value, bounded, n, &r->d);
    return ASSAY_OK;
}

static assay_status rmsnorm_bwd_add(const replay *r)
{
    norm_inputs in;
    ASSAY_TRY(norm_bwd_inputs(r, &in));
    double *room = malloc((size_t)(2 * in.x->count + 1) * sizeof *room);
    ASSAY_CHECK(room, ASSAY_OUT_OF_MEMORY, "rmsnorm_bwd_add: %lld elements", (long long)in.x->count);
    const assay_status st = bwd_add(r, &in, room);
    free(room);
    return st;
}

static assay_status rmsnorm_sumsq(const replay *r)
{
    const ref_value *x;
    int64_t h, t;
    ref_pair y;
    ASSAY_TRY(replay_attr_i64(r, "columns", 1, ASSAY_CONFIG_MAX_DIM, &h));
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_divide(r, x, h, &t));
    ASSAY_TRY(replay_out_real(r, "y", t, ASSAY_F32, "sum of squares", &y));
    ref_bound_rmsnorm_sumsq(y, x->value, t, h, &r->d);
    return ASSAY_OK;
}

static assay_status rmsnorm_apply(const replay *r)
{
    const ref_value *x, *gamma, *sumsq;
    double eps;
    int64_t t, width;
    ref_pair y, rstd;
    ASSAY_TRY(replay_attr_double(r, "eps", &eps));
    ASSAY_TRY(replay_real(r, "gamma", -1, &gamma));
    ASSAY_TRY(replay_attr_i64(r, "width", gamma->count > 1 ? gamma->count : 1, INT32_MAX, &width));
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_divide(r, x, gamma->count, &t));
    ASSAY_TRY(replay_real(r, "sumsq", t, &sumsq));
    ASSAY_TRY(replay_out_real(r, "y", x->count, x->dtype, "norm of a row", &y));
    ASSAY_TRY(replay_out_real(r, "rstd", t, ASSAY_F32, "root of the mean square", &rstd));
    ref_bound_rmsnorm_apply(y, rstd, x->value, gamma->value, sumsq->value, eps, width, t, gamma->count,
                            &r->d);
    return ASSAY_OK;
}

static assay_status rmsnorm_bwd_dot(const replay *r)
{
    norm_inputs in;
    ref_pair y;
    ASSAY_TRY(norm_bwd_inputs(r, &in));
    ASSAY_TRY(replay_out_real(r, "y", in.t, ASSAY_F32, "row sum", &y));
    return ref_bound_rmsnorm_bwd_dot(y, in.dy->value, in.x->value, in.gamma->value, in.rstd->value, in.t,
                                     in.h, &r->d);
}

static assay_status rmsnorm_bwd_apply(const replay *r)
{
    norm_inputs in;
    const ref_value *dot, *old;
    int64_t width;
    ref_pair dx, dgamma = {NULL, NULL, false};
    ASSAY_TRY(norm_bwd_inputs(r, &in));
    ASSAY_TRY(replay_attr_i64(r, "width", in.h > 1 ? in.h : 1, INT32_MAX, &width));
    ASSAY_TRY(replay_real(r, "dot", in.t, &dot));
    ASSAY_TRY(replay_real_optional(r, "dgamma_in", in.h, &old)); /* absent: gamma is frozen */
    ASSAY_TRY(replay_out_real(r, "dx", in.x->count, in.x->dtype, "gradient of a row", &dx));
    if (old)
        ASSAY_TRY(replay_out_real(r, "dgamma", in.h, ASSAY_F32, "sum over tokens", &dgamma));
    return ref_bound_rmsnorm_bwd_apply(dx, dgamma, in.dy->value, in.x->value, in.gamma->value, in.rstd->value,
                                       dot->value, old ? old->value : NULL, width, in.t, in.h, &r->d);
}

static assay_status layernorm_fwd(const replay *r)
{
    const ref_value *x, *gamma, *beta;
    double eps;
    int64_t t;
    ref_pair y, mean, rstd;
    ASSAY_TRY(replay_attr_double(r, "eps", &eps));
    ASSAY_TRY(replay_real(r, "gamma", -1, &gamma));
    ASSAY_TRY(replay_real_optional(r, "beta", gamma->count, &beta));
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_divide(r, x, gamma->count, &t));
    ASSAY_TRY(replay_out_real(r, "y", x->count, x->dtype, "row sum", &y));
    ASSAY_TRY(replay_out_real(r, "mean", t, ASSAY_F32, "row sum", &mean));
    ASSAY_TRY(replay_out_real(r, "rstd", t, ASSAY_F32, "row sum", &rstd));
    return ref_bound_layernorm_fwd(y, mean, rstd, x->value, gamma->value, beta ? beta->value : NULL, eps, t,
                                   gamma->count, &r->d);
}

/* Mean and rstd of every row [t]: as recorded, or of x where nobody kept them (docs/TRACE.md, internal), stored where that is
 * declared. */
static assay_status row_statistics(const replay *r, const ref_value *x, int64_t t, int64_t h,
                                   ref_row_statistics *s)
{
    const ref_value *mean, *rstd;
    double eps;
    ASSAY_TRY(replay_real_optional(r, "mean", t, &mean));
    ASSAY_TRY(replay_real_optional(r, "rstd", t, &rstd));
    ASSAY_CHECK((mean == NULL) == (rstd == NULL), ASSAY_INVALID_ARGUMENT,
                "layernorm_bwd: expected mean and rstd, or neither");
    for (int64_t i = 0; i < t && mean; i++)
        s[i] = (ref_row_statistics){{mean->value[i], 0.0}, {rstd->value[i], 0.0}};
    if (mean)
        return ASSAY_OK;
    ASSAY_TRY(replay_attr_double(r, "eps", &eps));
    double *terms = malloc((size_t)(2 * h + 1) * sizeof *terms);
    ASSAY_CHECK(terms, ASSAY_OUT_OF_MEMORY, "layernorm_bwd: rows of %lld", (long long)h);
    for (int64_t i = 0; i < t; i++) {
        s[i] = ref_bound_row_statistics(x->value + i * h, terms, eps, h, &r->d);
        s[i].mean = ref_stored(&r->d, ASSAY_ROUND_STATISTICS, s[i].mean);
        s[i].rstd = ref_stored(&r->d, ASSAY_ROUND_STATISTICS, s[i].rstd);
    }
    free(terms);
    return ASSAY_OK;
}

static assay_status layernorm_bwd(const replay *r)
{
    const ref_value *dy, *x, *gamma, *old_gamma, *old_beta;
    int64_t t;
    ref_pair dx, dgamma, dbeta = {NULL, NULL, false};
    ASSAY_TRY(replay_real(r, "gamma", -1, &gamma));
    const int64_t h = gamma->count;
    ASSAY_TRY(replay_real(r, "x", -1, &x));
    ASSAY_TRY(replay_divide(r, x, h, &t));
    ASSAY_TRY(replay_real(r, "dy", x->count, &dy));
    ASSAY_TRY(replay_real(r, "dgamma_in", h, &old_gamma));
    ASSAY_TRY(replay_real_optional(r, "dbeta_in", h, &old_beta));
    ASSAY_TRY(replay_out_real(r, "dx", x->count, x->dtype, "row sum", &dx));
    ASSAY_TRY(replay_out_real(r, "dgamma", h, ASSAY_F32, "sum over tokens", &dgamma));
    if (old_beta)
        ASSAY_TRY(replay_out_real(r, "dbeta", h, ASSAY_F32, "sum over tokens", &dbeta));
    ref_row_statistics *s = calloc((size_t)t + 1, sizeof *s);
    ASSAY_CHECK(s, ASSAY_OUT_OF_MEMORY, "layernorm_bwd: %lld rows", (long long)t);
    assay_status st = row_statistics(r, x, t, h, s);
    if (st == ASSAY_OK)
        st = ref_bound_layernorm_bwd(dx, dgamma, dbeta, dy->value, x->value, gamma->value, s,
                                     old_gamma->value, old_beta ? old_beta->value : NULL, t, h, &r->d);
    free(s);
    return st;
}

const replay_row replay_norm_table[] = {
    {"rmsnorm_fwd", rmsnorm_fwd},
    {"add_rmsnorm_fwd", add_rmsnorm_fwd},
    {"rmsnorm_bwd", rmsnorm_bwd},
    {"rmsnorm_bwd_add", rmsnorm_bwd_add},
    {"rmsnorm_sumsq", rmsnorm_sumsq},
    {"rmsnorm_apply", rmsnorm_apply},
    {"rmsnorm_bwd_dot", rmsnorm_bwd_dot},
    {"rmsnorm_bwd_apply", rmsnorm_bwd_apply},
    {"layernorm_fwd", layernorm_fwd},
    {"layernorm_bwd", layernorm_bwd},
    {NULL, NULL},
};
