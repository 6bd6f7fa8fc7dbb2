/* What the router and its balancing losses do to one token: by one thread (k0), by one warp (k1).  router.cu, router_aux.cu and
 * router_balanced.cu share it, so that one launch and two have the same bits. */
#ifndef GPU_OPS_ROUTER_TOKEN_CUH
#define GPU_OPS_ROUTER_TOKEN_CUH

#include "gpu/ops/router_topk.cuh"

#define ROUTER_EPSILON 1e-20f

typedef struct router_args {
    int64_t t, e, k, groups, group_topk;
    bool sigmoid, pre_softmax, norm;
    float factor;
} router_args;

typedef struct aux_args {
    int64_t t, e, k;
    bool sigmoid;
} aux_args;

/* Weight of a chosen expert from its score, given the sum over the chosen (softmax after the choice: `value`
 * is exp(logit - max), `sum` their sum). */
__device__ static __forceinline__ float router_weight(const router_args &a, float value, float sum)
{
    float w = value;
    if (a.sigmoid)
        w = a.norm && a.k > 1 ? value / (sum + ROUTER_EPSILON) : value;
    else if (!a.pre_softmax || a.norm)
        w = value / sum;
    return w * a.factor;
}

template <class T>
__device__ static void router_scores_row(float *score, const T *logit, const router_args &a)
{
    if (a.sigmoid || !a.pre_softmax) {
        for (int64_t e = 0; e < a.e; ++e)
            score[e] = a.sigmoid ? gpu_sigmoid(gpu_load(logit + e)) : gpu_load(logit + e);
        return;
    }
    float m = -INFINITY, sum = 0.0f;
    for (int64_t e = 0; e < a.e; ++e)
        m = fmaxf(m, gpu_load(logit + e));
    for (int64_t e = 0; e < a.e; ++e)
        sum += expf(gpu_load(logit + e) - m);
    for (int64_t e = 0; e < a.e; ++e)
        score[e] = expf(gpu_load(logit + e) - m) / sum;
}

/* Choice of the best groups, by one thread: the score of a group is the sum of its best keys. */
__device__ static inline void router_choose_groups(unsigned *kept, const router_keys &keys,
                                                   const router_args &a)
{
    for (int64_t n = 0; n < a.group_topk; ++n) {
        router_rank best = 0;
        for (int64_t g = 0; g < a.groups; ++g) {
            unsigned scratch[ROUTER_WORDS] = {0};
            const float key = router_take(scratch, keys, g * keys.size, keys.size, a.k / a.group_topk);
            const router_rank rank = router_rank_of(key, g);
            if (!router_in(kept, g) && rank > best)
                best = rank;
        }
        router_put(kept, router_index_of(best));
    }
}

/* One thread: scores, choice and weights of a token. */
template <class T>
__device__ static void router_thread_row(int64_t *index, float *prob, float *score, const T *logit,
                                         const float *bias, const router_args &a)
{
    unsigned chosen[ROUTER_WORDS] = {0}, kept[ROUTER_WORDS] = {0};
    router_keys keys = {score, bias, nullptr, a.groups > 0 ? a.e / a.groups : 1};
    router_scores_row(score, logit, a);
    if (a.groups > 0) {
        router_choose_groups(kept, keys, a);
        keys.kept = kept;
    }
    router_take(chosen, keys, 0, a.e, a.k);
    const bool post = !a.sigmoid && !a.pre_softmax;
    float m = -INFINITY, sum = 0.0f;
    int64_t n = 0;
    for (int64_t e = 0; e < a.e; ++e)
        if (router_in(chosen, e)) {
            index[n++] = e;
            m = fmaxf(m, score[e]);
        }
    for (int64_t i = 0; i < n; ++i)
        sum += post ? expf(score[index[i]] - m) : score[index[i]];
    for (int64_t i = 0; i < n; ++i)
        prob[i] = router_weight(a, post ? expf(score[index[i]] - m) : score[index[i]], sum);
}

/* Experts of groups that are not among the best get key -inf.  Lane g keeps the score of group g. */
template <int CHUNKS>
__device__ static __forceinline__ void router_warp_limit(router_rank *rank, const float *key,
                                                         const router_args &a)
{
    const int lane = (int)threadIdx.x;
    const int64_t size = a.e / a.groups;
    float mine = 0.0f;
    for (int64_t g = 0; g < a.groups; ++g) {
        router_rank inside[CHUNKS];
        for (int i = 0; i < CHUNKS; ++i) {
            const int64_t e = lane + GPU_WARP * i;
            inside[i] = e < a.e && e / size == g ? rank[i] : 0;
        }
        float sum = 0.0f;
        for (int64_t n = 0; n < a.k / a.group_topk && n < size; ++n) {
            router_rank best = 0;
            for (int i = 0; i < CHUNKS; ++i)
                best = inside[i] > best ? inside[i] : best;
            best = router_warp_best(best);
            float value = 0.0f;
            for (int i = 0; i < CHUNKS; ++i)
                if (inside[i] == best) {
                    inside[i] = 0;
                    value = key[i];
                }
            sum += __shfl_sync(gpu_all_lanes, value, router_index_of(best) % GPU_WARP);
        }
        if (g == lane)
            mine = sum;
    }
    router_rank group_rank[1] = {lane < a.groups ? router_rank_of(mine, lane) : 0};
    const unsigned best_groups =
        __ballot_sync(gpu_all_lanes, (int)router_warp_take<1>(group_rank, a.group_topk));
    for (int i = 0; i < CHUNKS; ++i) {
        const int64_t e = lane + GPU_WARP * i;
        if (e < a.e && (best_groups >> (e / size) & 1u) == 0)
            rank[i] = router_rank_of(-INFINITY, e);
    }
}

/* One warp: lane holds the logits of experts lane, lane + 32, ... of a token; -inf beyond the last. */
template <int CHUNKS, class T>
__device__ static __forceinline__ void router_warp_load(float (&logit)[CHUNKS], const T *row, int64_t experts)
{
    for (int i = 0; i < CHUNKS; ++i) {
        const int64_t e = (int)threadIdx.x + GPU_WARP * i;
        logit[i] = e < experts ? gpu_load(row + e) : -INFINITY;
    }
}

/* One warp: scores, choice and weights of a token.  kept: places for topk numbers of the warp's own.  All lanes must arrive. */
template <int CHUNKS>
__device__ static __forceinline__ void router_warp_row(int64_t *index, float *prob, float *scores,
                                                       float *kept, const float (&logit)[CHUNKS],
                                                       const float *bias, const router_args &a)
{
    const int lane = (int)threadIdx.x;
    const bool post = !a.sigmoid && !a.pre_softmax;
    float score[CHUNKS], key[CHUNKS], m = -INFINITY, sum = 0.0f;
    router_rank rank[CHUNKS];
    for (int i = 0; i < CHUNKS; ++i) {
        score[i] = logit[i];
        m = fmaxf(m, score[i]);
    }
    if (!a.sigmoid && a.pre_softmax) {
        m = gpu_warp_max(m);
        for (int i = 0; i < CHUNKS; ++i) {
            score[i] = lane + GPU_WARP * i < a.e ? expf(score[i] - m) : 0.0f;
            sum += score[i];
        }
        sum = gpu_warp_sum(sum);
    }
    for (int i = 0; i < CHUNKS; ++i) {
        const int64_t e = lane + GPU_WARP * i;
        if (a.sigmoid)
            score[i] = gpu_sigmoid(score[i]);
        else if (a.pre_softmax)
            score[i] = score[i] / sum;
        key[i] = score[i];
        if (e < a.e) {
            scores[e] = score[i];
            if (bias != nullptr)
                key[i] += bias[e];
        }
        rank[i] = e < a.e ? router_rank_of(key[i], e) : 0;
    }
    if (a.groups > 0)
        router_warp_limit<CHUNKS>(rank, key, a);
    const unsigned chosen = router_warp_take<CHUNKS>(rank, a.k);
    router_warp_list<CHUNKS>(index, kept, score, chosen);
    __syncwarp();
    float value = lane < a.k ? kept[lane] : 0.0f;
    if (post) {
        const float largest = gpu_warp_max(lane < a.k ? value : -INFINITY);
        value = lane < a.k ? expf(value - largest) : 0.0f;
    }
    const float total = gpu_warp_sum(value);
    if (lane < a.k)
        prob[lane] = router_weight(a, value, total);
    __syncwarp();
}

/* One thread: scores of the balancing losses, their plain top-k, and the z-loss's term of a token. */
template <class T>
__device__ static void aux_thread_row(float *score, int64_t *index, float *z, const T *l, const aux_args &a)
{
    unsigned chosen[ROUTER_WORDS] = {0};
    float m = -INFINITY, sum = 0.0f, total = 0.0f;
    for (int64_t e = 0; e < a.e; ++e)
        m = fmaxf(m, gpu_load(l + e));
    for (int64_t e = 0; e < a.e; ++e) {
        sum += expf(gpu_load(l + e) - m);
        total += gpu_sigmoid(gpu_load(l + e));
    }
    for (int64_t e = 0; e < a.e; ++e)
        score[e] = a.sigmoid ? gpu_sigmoid(gpu_load(l + e)) / (total + ROUTER_EPSILON)
                             : expf(gpu_load(l + e) - m) / sum;
    const float lse = m + logf(sum);
    *z = lse * lse;
    router_take(chosen, router_keys{score, nullptr, nullptr, 1}, 0, a.e, a.k);
    int64_t n = 0;
    for (int64_t e = 0; e < a.e; ++e)
        if (router_in(chosen, e))
            index[n++] = e;
}

/* One warp: the same, of logits as router_warp_load leaves them.  kept: as of router_warp_row.  All lanes must arrive. */
template <int CHUNKS>
__device__ static __forceinline__ void aux_warp_row(float *scores, int64_t *index, float *z, float *kept,
                                                    const float (&logit)[CHUNKS], const aux_args &a)
{
    const int lane = (int)threadIdx.x;
    float score[CHUNKS], m = -INFINITY, sum = 0.0f, total = 0.0f;
    router_rank rank[CHUNKS];
    for (int i = 0; i < CHUNKS; ++i)
        m = fmaxf(m, logit[i]);
    m = gpu_warp_max(m);
    for (int i = 0; i < CHUNKS; ++i)
        if (lane + GPU_WARP * i < a.e) {
            sum += expf(logit[i] - m);
            total += gpu_sigmoid(logit[i]);
        }
    sum = gpu_warp_sum(sum);
    total = gpu_warp_sum(total);
    for (int i = 0; i < CHUNKS; ++i) {
        const int64_t e = lane + GPU_WARP * i;
        score[i] = 0.0f;
        rank[i] = 0;
        if (e >= a.e)
            continue;
        score[i] = a.sigmoid ? gpu_sigmoid(logit[i]) / (total + ROUTER_EPSILON) : expf(logit[i] - m) / sum;
        scores[e] = score[i];
        rank[i] = router_rank_of(score[i], e);
    }
    const float lse = m + logf(sum);
    if (lane == 0)
        *z = lse * lse;
    const unsigned chosen = router_warp_take<CHUNKS>(rank, a.k);
    router_warp_list<CHUNKS>(index, kept, score, chosen);
}

/* --- launches ----------------------------------------------------------------------------------------------- */
/* Calls the launcher's instance for so many experts: each lane of a warp has one in 32 of a row. */
#define ROUTER_BY_256_EXPERTS(experts, launcher, T, ...)                                                     \
    ((experts) <= 32    ? launcher<1, T>(__VA_ARGS__)                                                        \
     : (experts) <= 64  ? launcher<2, T>(__VA_ARGS__)                                                        \
     : (experts) <= 128 ? launcher<4, T>(__VA_ARGS__)                                                        \
                        : launcher<8, T>(__VA_ARGS__))
#define ROUTER_BY_EXPERTS(experts, launcher, T, ...)                                                         \
    ((experts) <= 256 ? ROUTER_BY_256_EXPERTS(experts, launcher, T, __VA_ARGS__)                             \
                      : launcher<16, T>(__VA_ARGS__))

/* --- arguments ---------------------------------------------------------------------------------------------- */
static inline assay_status router_make_args(const char *op, const router_desc *d, gpu_tensor logits,
                                            router_args *a)
{
    ASSAY_TRY(gpu_check_act(op, "logits", logits));
    const int64_t e = gpu_tensor_cols(logits), k = d->topk;
    ASSAY_CHECK(d->score_function == ASSAY_SCORE_SOFTMAX || d->score_function == ASSAY_SCORE_SIGMOID,
                ASSAY_UNSUPPORTED, "%s: score_function: expected softmax or sigmoid, found number %d", op,
                d->score_function);
    ASSAY_CHECK(k >= 1 && k <= e, ASSAY_INVALID_ARGUMENT,
                "%s: topk: expected 1 to %" PRId64 " (the experts), found %" PRId64, op, e, k);
    ASSAY_CHECK(e <= ROUTER_MAX_EXPERTS && k <= ROUTER_MAX_TOPK, ASSAY_UNSUPPORTED,
                "%s: expected at most %d experts and topk %d, found %" PRId64 " and %" PRId64, op,
                ROUTER_MAX_EXPERTS, ROUTER_MAX_TOPK, e, k);
    ASSAY_CHECK(d->num_groups == 0 || (d->num_groups > 0 && e % d->num_groups == 0 && d->group_topk >= 1 &&
                                       d->group_topk <= d->num_groups),
                ASSAY_INVALID_ARGUMENT,
                "%s: num_groups: expected a divisor of %" PRId64
                " experts and 1 <= group_topk <= num_groups, found "
                "%" PRId64 " and %" PRId64,
                op, e, d->num_groups, d->group_topk);
    a->t = gpu_tensor_row_count(logits);
    a->e = e;
    a->k = k;
    a->groups = d->num_groups;
    a->group_topk = d->group_topk;
    a->sigmoid = d->score_function == ASSAY_SCORE_SIGMOID;
    a->pre_softmax = d->pre_softmax;
    a->norm = d->norm_topk_prob;
    a->factor = d->scaling_factor;
    return ASSAY_OK;
}

static inline assay_status aux_make_args(const char *op, const router_desc *d, gpu_tensor logits, aux_args *a)
{
    ASSAY_TRY(gpu_check_act(op, "logits", logits));
    a->t = gpu_tensor_row_count(logits);
    a->e = gpu_tensor_cols(logits);
    a->k = d->topk;
    a->sigmoid = d->score_function == ASSAY_SCORE_SIGMOID;
    ASSAY_CHECK(a->sigmoid || d->score_function == ASSAY_SCORE_SOFTMAX, ASSAY_UNSUPPORTED,
                "%s: score_function: expected softmax or sigmoid, found number %d", op, d->score_function);
    ASSAY_CHECK(a->k >= 1 && a->k <= a->e, ASSAY_INVALID_ARGUMENT,
                "%s: topk: expected 1 to %" PRId64 " (the experts), found %" PRId64, op, a->e, a->k);
    ASSAY_CHECK(a->e <= ROUTER_MAX_EXPERTS && a->k <= ROUTER_MAX_TOPK, ASSAY_UNSUPPORTED,
                "%s: expected at most %d experts and topk %d, found %" PRId64 " and %" PRId64, op,
                ROUTER_MAX_EXPERTS, ROUTER_MAX_TOPK, a->e, a->k);
    return ASSAY_OK;
}

static inline assay_status router_check_bias(const char *op, gpu_tensor expert_bias, const router_args &a)
{
    if (gpu_tensor_present(expert_bias)) {
        ASSAY_TRY(gpu_check_tensor(op, "expert_bias", expert_bias, ASSAY_F32, ASSAY_F32));
        ASSAY_TRY(gpu_check_count(op, "expert_bias", expert_bias, a.e));
        ASSAY_CHECK(a.sigmoid, ASSAY_INVALID_ARGUMENT,
                    "%s: expert_bias: expected none with score_function softmax, found one", op);
    }
    return ASSAY_OK;
}

/* Scores of softmax after the choice are the logits, those of sigmoid have no sum; else softmax over the row. */
static inline void router_score_arith(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o)
{
    const router_desc d = router_desc_of(o);
    const bool sum = d.score_function == ASSAY_SCORE_SOFTMAX && d.pre_softmax;
    router_ulp(a, ctx, o);
    if (!sum && d.score_function == ASSAY_SCORE_SOFTMAX)
        a->math_ulp = 0;
    if (!sum) {
        a->order = ASSAY_ORDER_NONE;
        a->lanes = 1;
        a->fma = false;
    }
}

#define ROUTER_SCORES "element-wise for sigmoid (math 6 ulp) and softmax after the choice (exact)"
#define ROUTER_ULP "math 6 ulp for sigmoid"

/* The z-loss's term of every token. */
static inline size_t aux_workspace(const gpu_ctx *, const gpu_operands *o)
{
    return sizeof(float) * (size_t)gpu_tensor_row_count(gpu_operand(o, "logits"));
}

#endif
