/* What the gradients of the router and of its balancing losses do to one token: by one thread (k0), by one warp (k1).  router.cu,
 * router_aux.cu and router_balanced_bwd.cu share it.  Where two products meet in a sum it says which one is rounded: the compiler would
 * choose, and one launch and several would have other bits. */
#ifndef GPU_OPS_ROUTER_GRAD_CUH
#define GPU_OPS_ROUTER_GRAD_CUH

#include "gpu/ops/router_rows.cuh"
#include "gpu/ops/router_token.cuh"

/* --- the choice --------------------------------------------------------------------------------------------- */
/* Gradient of the weight by the score of one chosen expert: `dot` = sum over the chosen of dprobs * score,
 * `sum` of their scores. */
__device__ static __forceinline__ float router_dscore(const router_args &a, float dprob, float dot, float sum)
{
    if (!a.norm || (a.sigmoid && a.k <= 1))
        return dprob * a.factor;
    const float total = a.sigmoid ? sum + ROUTER_EPSILON : sum;
    return (dprob - dot / total) / total * a.factor;
}

__device__ static inline void router_bwd_thread_row(float *out, const float *dp, const int64_t *index,
                                                    const float *score, const router_args &a)
{
    const bool post = !a.sigmoid && !a.pre_softmax;
    float m = -INFINITY, sum = 0.0f, dot = 0.0f, jacobian = 0.0f;
    for (int64_t i = 0; i < a.k; ++i)
        m = fmaxf(m, score[index[i]]);
    for (int64_t i = 0; i < a.k; ++i) {
        const float value = post ? expf(score[index[i]] - m) : score[index[i]];
        sum += value;
        dot = fmaf(dp[i], value, dot);
    }
    if (!a.sigmoid && a.pre_softmax)
        for (int64_t i = 0; i < a.k; ++i)
            jacobian = fmaf(score[index[i]], router_dscore(a, dp[i], dot, sum), jacobian);
    for (int64_t e = 0; e < a.e; ++e)
        out[e] = !a.sigmoid && a.pre_softmax ? -score[e] * jacobian : 0.0f;
    for (int64_t i = 0; i < a.k; ++i) {
        const float s = score[index[i]];
        if (post)
            out[index[i]] = expf(s - m) / sum * a.factor * (dp[i] - dot / sum);
        else if (a.sigmoid)
            out[index[i]] = router_dscore(a, dp[i], dot, sum) * s * (1.0f - s);
        else
            out[index[i]] = s * (router_dscore(a, dp[i], dot, sum) - jacobian);
    }
}

/* Lane i < topk: the gradient by the logit of the i-th chosen expert.  The others get -score * jacobian, 0 without. */
typedef struct router_chosen {
    int64_t index;
    float gradient, jacobian;
} router_chosen;

/* All lanes must arrive. */
__device__ static __forceinline__ router_chosen router_warp_chosen(const float *dprobs,
                                                                   const int64_t *indices,
                                                                   const float *scores, const router_args &a)
{
    const int lane = (int)threadIdx.x;
    const bool post = !a.sigmoid && !a.pre_softmax, mine = lane < a.k;
    router_chosen c = {mine ? indices[lane] : 0, 0.0f, 0.0f};
    const float s = mine ? scores[c.index] : 0.0f, dp = mine ? dprobs[lane] : 0.0f;
    float value = s;
    if (post) {
        const float m = gpu_warp_max(mine ? s : -INFINITY);
        value = mine ? expf(s - m) : 0.0f;
    }
    const float sum = gpu_warp_sum(value), dot = gpu_warp_sum(__fmul_rn(dp, value));
    const float ds = mine && !post ? router_dscore(a, dp, dot, sum) : 0.0f;
    c.jacobian = gpu_warp_sum(!a.sigmoid && a.pre_softmax ? __fmul_rn(s, ds) : 0.0f);
    if (post)
        c.gradient = value / sum * a.factor * (dp - dot / sum);
    else
        c.gradient = a.sigmoid ? ds * s * (1.0f - s) : s * (ds - c.jacobian);
    return c;
}

/* The gradient by the logit of an expert that was not chosen. */
__device__ static __forceinline__ float router_unchosen(const router_args &a, float score, float jacobian)
{
    return !a.sigmoid && a.pre_softmax ? -score * jacobian : 0.0f;
}

/* --- a loss ------------------------------------------------------------------------------------------------- */
/* Counts [rows,E] of the sequences, what they weigh, and what logsumexp weighs in the z-loss. */
typedef struct aux_loss {
    const int64_t *counts;
    int64_t rows;
    float aux, z, scale;
} aux_loss;

/* Sums of one row that its gradient needs: max and sum of exponentials, sum of sigmoids, and the mean of g
 * under aux_scores times their total: dot = sum value_e g_e. */
typedef struct aux_row {
    float m, sum, total, dot;
} aux_row;

__device__ static __forceinline__ float aux_weight(const aux_loss &loss, int64_t count)
{
    return __fmul_rn(loss.aux, (float)count);
}

/* Gradient of the loss by one logit, before it is scaled.  p: the expert's softmax. */
__device__ static __forceinline__ float aux_gradient(const aux_row &r, const aux_loss &loss, float logit,
                                                     float p, int64_t count, bool sigmoid)
{
    const float lse = r.m + logf(r.sum), g = aux_weight(loss, count);
    float d;
    if (sigmoid) {
        const float s = gpu_sigmoid(logit), total = r.total + ROUTER_EPSILON;
        d = (g - r.dot / total) / total * s * (1.0f - s);
    } else {
        d = p * (g - r.dot / r.sum);
    }
    return fmaf(__fmul_rn(loss.z, lse), p, d);
}

/* out may be before. */
template <class T>
__device__ static void aux_bwd_thread_row(float *out, const float *before, const T *l, const int64_t *n,
                                          const aux_loss &loss, const aux_args &a)
{
    aux_row r = {-INFINITY, 0.0f, 0.0f, 0.0f};
    for (int64_t e = 0; e < a.e; ++e)
        r.m = fmaxf(r.m, gpu_load(l + e));
    for (int64_t e = 0; e < a.e; ++e) {
        const float p = expf(gpu_load(l + e) - r.m), s = gpu_sigmoid(gpu_load(l + e));
        r.sum += p;
        r.total += s;
        r.dot = fmaf(a.sigmoid ? s : p, aux_weight(loss, n[e]), r.dot);
    }
    for (int64_t e = 0; e < a.e; ++e) {
        const float logit = gpu_load(l + e), p = expf(logit - r.m) / r.sum;
        out[e] = fmaf(loss.scale, aux_gradient(r, loss, logit, p, n[e], a.sigmoid), before[e]);
    }
}

/* --- arguments ---------------------------------------------------------------------------------------------- */
typedef struct aux_desc {
    double aux_coeff, z_coeff, loss_scale;
    int64_t group_tokens, divisor;
    router_desc router;
} aux_desc;

/* The name of a slot or attribute of a loss: those of the second one in a launch end in _2. */
typedef struct aux_name {
    char text[32];
} aux_name;
static inline aux_name aux_named(const char *name, int loss)
{
    aux_name n;
    if (loss == 0)
        snprintf(n.text, sizeof n.text, "%s", name);
    else
        snprintf(n.text, sizeof n.text, "%s_%d", name, loss + 1);
    return n;
}

static inline aux_desc aux_desc_of(const gpu_operands *o, int loss)
{
    const aux_name scale = aux_named("loss_scale", loss);
    aux_desc d;
    d.aux_coeff = gpu_operand_double(o, aux_named("aux_coeff", loss).text);
    d.z_coeff = gpu_operand_double(o, aux_named("z_coeff", loss).text);
    d.loss_scale = assay_op_attr_find(o->op, scale.text) ? gpu_operand_double(o, scale.text) : 1.0;
    d.group_tokens = gpu_operand_int(o, aux_named("tokens", loss).text);
    d.divisor = gpu_operand_int(o, aux_named("divisor", loss).text);
    d.router = router_desc_of(o);
    return d;
}

static inline assay_status aux_check_group(const char *op, const aux_desc *d)
{
    ASSAY_CHECK(d->group_tokens >= 0 && d->router.topk >= 1 && d->divisor >= 1, ASSAY_INVALID_ARGUMENT,
                "%s: expected tokens of 0 or more, topk and divisor of 1 or more, found %" PRId64 ", %" PRId64
                " and %" PRId64,
                op, d->group_tokens, d->router.topk, d->divisor);
    ASSAY_CHECK(isfinite(d->aux_coeff) && isfinite(d->z_coeff) && isfinite(d->loss_scale),
                ASSAY_INVALID_ARGUMENT,
                "%s: expected finite coefficients, found aux_coeff %g, z_coeff %g, loss_scale %g", op,
                d->aux_coeff, d->z_coeff, d->loss_scale);
    return ASSAY_OK;
}

/* aux_coeff E / (K tokens^2 divisor) and coefficient / tokens; 0 for a group without tokens. */
static inline double aux_factor_of(const aux_desc *d, int64_t experts)
{
    const double n = (double)d->group_tokens;
    return n > 0.0 ? d->aux_coeff * (double)experts / ((double)d->router.topk * n * n * (double)d->divisor)
                   : 0.0;
}
static inline double z_factor_of(const aux_desc *d)
{
    return d->group_tokens > 0 ? d->z_coeff / (double)d->group_tokens : 0.0;
}

/* Loss number `loss` of the call, checked. */
static inline assay_status aux_make_loss(const char *op, const gpu_operands *o, int loss, const aux_args &a,
                                         aux_loss *out)
{
    const aux_desc d = aux_desc_of(o, loss);
    const aux_name slot = aux_named("tokens_per_expert", loss);
    const gpu_tensor counts = gpu_operand(o, slot.text);
    ASSAY_TRY(aux_check_group(op, &d));
    ASSAY_TRY(gpu_check_tensor(op, slot.text, counts, ASSAY_I64, ASSAY_I64));
    const int64_t rows = gpu_tensor_count(counts) / a.e;
    ASSAY_TRY(gpu_check_count(op, slot.text, counts, rows * a.e));
    ASSAY_TRY(router_check_rows(op, a.t, rows));
    *out = aux_loss{(const int64_t *)counts.data, rows, (float)aux_factor_of(&d, a.e),
                    (float)(2.0 * z_factor_of(&d)), (float)d.loss_scale};
    return ASSAY_OK;
}

#endif
