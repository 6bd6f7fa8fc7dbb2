/* router_fwd (docs/OPS.md 7), and the same without the 1e-20 of the normalisation, and with a table of 384 experts. */
#include "kernels.h"

#include <math.h>
#include <stdlib.h>

#define SLOT(name) (c->slot[ASSAY_KERNEL_SLOT_ROUTER_FWD_##name])
#define ATTR(name) (c->attr[ASSAY_KERNEL_ATTR_ROUTER_FWD_##name])

typedef struct router {
    int64_t t, e, k, groups, group_topk, most_experts;
    bool sigmoid, pre, norm;
    float scaling, tiny;
    const float *bias;
} router;

static bool has_shape(const assay_kernel_tensor *x, int64_t rows, int64_t columns)
{
    return x->shape[0] == rows && x->shape[1] == columns;
}

static int32_t open_router(const assay_kernel_call *c, router *r)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || SLOT(LOGITS) == NULL)
        return ASSAY_KERNEL_INVALID;
    const int32_t dtype = SLOT(LOGITS)->dtype;
    if ((code = check_tensor(SLOT(LOGITS), dtype, 2)) != 0 ||
        (code = check_tensor(SLOT(INDICES), ASSAY_KERNEL_I64, 2)) != 0 ||
        (code = check_tensor(SLOT(PROBS), ASSAY_KERNEL_F32, 2)) != 0 ||
        (code = check_tensor(SLOT(SCORES), ASSAY_KERNEL_F32, 2)) != 0 ||
        (SLOT(EXPERT_BIAS) != NULL && (code = check_tensor(SLOT(EXPERT_BIAS), ASSAY_KERNEL_F32, 1)) != 0))
        return code;
    if (dtype != ASSAY_KERNEL_F32 && dtype != ASSAY_KERNEL_BF16)
        return ASSAY_KERNEL_UNSUPPORTED;
    r->t = SLOT(LOGITS)->shape[0];
    r->e = SLOT(LOGITS)->shape[1];
    r->k = ATTR(TOPK)->integer;
    r->groups = ATTR(NUM_GROUPS)->integer;
    r->group_topk = ATTR(GROUP_TOPK)->integer;
    r->sigmoid = strcmp(ATTR(SCORE_FUNCTION)->word, "sigmoid") == 0;
    r->pre = ATTR(PRE_SOFTMAX)->integer != 0;
    r->norm = ATTR(NORM_TOPK_PROB)->integer != 0;
    r->scaling = (float)ATTR(SCALING_FACTOR)->number;
    r->bias = SLOT(EXPERT_BIAS) != NULL ? SLOT(EXPERT_BIAS)->data : NULL;
    return has_shape(SLOT(INDICES), r->t, r->k) && has_shape(SLOT(PROBS), r->t, r->k) &&
                   has_shape(SLOT(SCORES), r->t, r->e) && r->k <= r->e &&
                   (r->bias == NULL || SLOT(EXPERT_BIAS)->shape[0] == r->e)
               ? ASSAY_KERNEL_OK
               : ASSAY_KERNEL_INVALID;
}

static void softmax(float *x, int64_t n)
{
    float most = -INFINITY, sum = 0.0f;
    for (int64_t i = 0; i < n; i++)
        most = x[i] > most || isnan(x[i]) ? x[i] : most;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] = expf(x[i] - most);
    for (int64_t i = 0; i < n; i++)
        x[i] /= sum;
}

/* The largest of keys that is not taken, the lower index of equal ones; 0: all are taken. */
static int64_t best(const float *keys, const char *taken, int64_t n)
{
    int64_t at = -1;
    for (int64_t i = 0; i < n; i++)
        if (!taken[i] && (at < 0 || keys[i] > keys[at]))
            at = i;
    return at < 0 ? 0 : at;
}

/* Keys of the groups that are not among the best become minus infinity: a group counts by the sum of its K / group_topk largest. */
static void limit_groups(const router *r, float *keys, float *sums, char *taken)
{
    const int64_t n = r->e / r->groups, among = r->k / r->group_topk;
    for (int64_t g = 0; g < r->groups; g++) {
        memset(taken, 0, (size_t)n);
        sums[g] = 0.0f;
        for (int64_t i = 0; i < among && i < n; i++) {
            const int64_t at = best(keys + g * n, taken, n);
            taken[at] = 1;
            sums[g] += keys[g * n + at];
        }
    }
    memset(taken, 0, (size_t)r->groups);
    for (int64_t i = 0; i < r->group_topk; i++)
        taken[best(sums, taken, r->groups)] = 1;
    for (int64_t e = 0; e < r->e; e++)
        if (!taken[e / n])
            keys[e] = -INFINITY;
}

static void weigh(const router *r, float *probs)
{
    float sum = 0.0f;
    for (int64_t k = 0; k < r->k; k++)
        sum += probs[k];
    if (!r->sigmoid && !r->pre)
        softmax(probs, r->k);
    else if (r->norm && (r->k > 1 || !r->sigmoid))
        for (int64_t k = 0; k < r->k; k++)
            probs[k] /= r->sigmoid ? sum + r->tiny : sum;
    for (int64_t k = 0; k < r->k; k++)
        probs[k] *= r->scaling;
}

static void choose(const router *r, const float *scores, float *keys, float *sums, char *taken,
                   int64_t *indices, float *probs)
{
    for (int64_t e = 0; e < r->e; e++)
        keys[e] = scores[e] + (r->bias != NULL ? r->bias[e] : 0.0f);
    if (r->groups > 0)
        limit_groups(r, keys, sums, taken);
    memset(taken, 0, (size_t)r->e);
    const int64_t known = r->e < r->most_experts ? r->e : r->most_experts;
    for (int64_t k = 0; k < r->k; k++)
        taken[best(keys, taken, known)] = 1;
    for (int64_t e = 0, k = 0; e < r->e; e++)
        if (taken[e]) {
            indices[k] = e;
            probs[k++] = scores[e];
        }
    weigh(r, probs);
}

static int32_t run_router(const assay_kernel_call *c, float tiny, int64_t most_experts)
{
    router r = {.tiny = tiny, .most_experts = most_experts};
    const int32_t code = open_router(c, &r);
    float *keys = code == 0 ? calloc((size_t)(2 * r.e + 2), sizeof *keys) : NULL;
    char *taken = code == 0 ? calloc((size_t)r.e + 1, 1) : NULL;
    for (int64_t t = 0; t < r.t && keys != NULL && taken != NULL && code == 0; t++) {
        float *scores = (float *)SLOT(SCORES)->data + t * r.e;
        for (int64_t e = 0; e < r.e; e++) {
            scores[e] = load(SLOT(LOGITS)->data, t * r.e + e, SLOT(LOGITS)->dtype);
            if (r.sigmoid)
                scores[e] = 1.0f / (1.0f + expf(-scores[e]));
        }
        if (!r.sigmoid && r.pre)
            softmax(scores, r.e);
        choose(&r, scores, keys, keys + r.e + 1, taken, (int64_t *)SLOT(INDICES)->data + t * r.k,
               (float *)SLOT(PROBS)->data + t * r.k);
    }
    free(keys);
    free(taken);
    return code;
}

static const assay_kernel_output outputs[] = {
    {.size = sizeof(assay_kernel_output), .slot = ASSAY_KERNEL_SLOT_ROUTER_FWD_PROBS, .arith = SEQUENTIAL(4)},
    {.size = sizeof(assay_kernel_output),
     .slot = ASSAY_KERNEL_SLOT_ROUTER_FWD_SCORES,
     .arith = SEQUENTIAL(4)}};
#define ROUTER_OF(symbol, tiny, experts)                                                                     \
    static int32_t run_##symbol(const assay_kernel_call *c)                                                  \
    {                                                                                                        \
        return run_router(c, tiny, experts);                                                                 \
    }                                                                                                        \
    DESCRIBE(symbol, "router_fwd", PLAIN, run_##symbol, outputs, 2)

ROUTER_OF(router_honest, 1e-20f, INT64_MAX)
ROUTER_OF(router_without_tiny, 0.0f, INT64_MAX)
ROUTER_OF(router_of_384_experts, 1e-20f, 384)
