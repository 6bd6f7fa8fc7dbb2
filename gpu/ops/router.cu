/* Mixture-of-experts router: scores, top-k, weights, and their gradient.  docs/OPS.md 7; Megatron-LM's
 * router; Hugging Face for pre_softmax with renormalisation.
 *
 *   k0  one thread for each token, every choice a scan of the row        fp32, sequential
 *   k1  fused: one warp for each token, the row stays in registers,      fp32, tree of 32 lanes
 *       sums by shuffles, choices by warp maxima, places by ballots
 *
 * logits F32 or BF16, everything else F32.  Up to 512 experts, top-k up to 32; k1 takes up to 32 groups (k0 runs otherwise). */
#include "gpu/ops/router.cuh"

#define ROUTER_EPSILON 1e-20f

typedef struct router_args {
    int64_t t, e, k, groups, group_topk;
    bool sigmoid, pre_softmax, norm;
    float factor;
} router_args;

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
__device__ static void router_choose_groups(unsigned *kept, const router_keys &keys, const router_args &a)
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

template <class T>
__global__ void router_fwd_k0(int64_t *indices, float *probs, float *scores, const T *logits,
                              const float *bias, router_args a)
{
    for (int64_t row = gpu_thread(); row < a.t; row += gpu_threads()) {
        float *score = scores + row * a.e;
        unsigned chosen[ROUTER_WORDS] = {0}, kept[ROUTER_WORDS] = {0};
        router_keys keys = {score, bias, nullptr, a.groups > 0 ? a.e / a.groups : 1};
        router_scores_row(score, logits + row * a.e, a);
        if (a.groups > 0) {
            router_choose_groups(kept, keys, a);
            keys.kept = kept;
        }
        router_take(chosen, keys, 0, a.e, a.k);
        const bool post = !a.sigmoid && !a.pre_softmax;
        int64_t *index = indices + row * a.k;
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
            probs[row * a.k + i] = router_weight(a, post ? expf(score[index[i]] - m) : score[index[i]], sum);
    }
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

template <int CHUNKS, class T>
__global__ void router_fwd_k1(int64_t *indices, float *probs, float *scores, const T *logits,
                              const float *bias, router_args a)
{
    GPU_SHARED_2D(float, kept, GPU_ROWS_PER_BLOCK, ROUTER_MAX_TOPK);
    const int lane = (int)threadIdx.x, warp = (int)threadIdx.y;
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    const bool post = !a.sigmoid && !a.pre_softmax;
    for (int64_t row = gpu_warp_row(); row < a.t; row += step) {
        float score[CHUNKS], key[CHUNKS], m = -INFINITY, sum = 0.0f;
        router_rank rank[CHUNKS];
        for (int i = 0; i < CHUNKS; ++i) {
            const int64_t e = lane + GPU_WARP * i;
            score[i] = e < a.e ? gpu_load(logits + row * a.e + e) : -INFINITY;
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
                scores[row * a.e + e] = score[i];
                if (bias != nullptr)
                    key[i] += bias[e];
            }
            rank[i] = e < a.e ? router_rank_of(key[i], e) : 0;
        }
        if (a.groups > 0)
            router_warp_limit<CHUNKS>(rank, key, a);
        const unsigned chosen = router_warp_take<CHUNKS>(rank, a.k);
        router_warp_list<CHUNKS>(indices + row * a.k, kept[warp], score, chosen);
        __syncwarp();
        float value = lane < a.k ? kept[warp][lane] : 0.0f;
        if (post) {
            const float largest = gpu_warp_max(lane < a.k ? value : -INFINITY);
            value = lane < a.k ? expf(value - largest) : 0.0f;
        }
        const float total = gpu_warp_sum(value);
        if (lane < a.k)
            probs[row * a.k + lane] = router_weight(a, value, total);
        __syncwarp();
    }
}

/* Gradient of the weight by the score of one chosen expert: `dot` = sum over the chosen of dprobs * score,
 * `sum` of their scores. */
__device__ static __forceinline__ float router_dscore(const router_args &a, float dprob, float dot, float sum)
{
    if (!a.norm || (a.sigmoid && a.k <= 1))
        return dprob * a.factor;
    const float total = a.sigmoid ? sum + ROUTER_EPSILON : sum;
    return (dprob - dot / total) / total * a.factor;
}

__global__ void router_bwd_k0(float *dlogits, const float *dprobs, const int64_t *indices,
                              const float *scores, router_args a)
{
    for (int64_t row = gpu_thread(); row < a.t; row += gpu_threads()) {
        const int64_t *index = indices + row * a.k;
        const float *score = scores + row * a.e, *dp = dprobs + row * a.k;
        float *out = dlogits + row * a.e;
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
}

__global__ void router_bwd_k1(float *dlogits, const float *dprobs, const int64_t *indices,
                              const float *scores, router_args a)
{
    const int lane = (int)threadIdx.x;
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    const bool post = !a.sigmoid && !a.pre_softmax, mine = lane < a.k;
    for (int64_t row = gpu_warp_row(); row < a.t; row += step) {
        float *out = dlogits + row * a.e;
        const int64_t index = mine ? indices[row * a.k + lane] : 0;
        const float s = mine ? scores[row * a.e + index] : 0.0f, dp = mine ? dprobs[row * a.k + lane] : 0.0f;
        float value = s;
        if (post) {
            const float m = gpu_warp_max(mine ? s : -INFINITY);
            value = mine ? expf(s - m) : 0.0f;
        }
        const float sum = gpu_warp_sum(value), dot = gpu_warp_sum(dp * value);
        const float ds = mine && !post ? router_dscore(a, dp, dot, sum) : 0.0f;
        const float jacobian = gpu_warp_sum(!a.sigmoid && a.pre_softmax ? s * ds : 0.0f);
        for (int64_t e = lane; e < a.e; e += GPU_WARP)
            out[e] = !a.sigmoid && a.pre_softmax ? -scores[row * a.e + e] * jacobian : 0.0f;
        __syncwarp(); /* the row is written before its chosen elements are written again by other lanes */
        if (mine) {
            if (post)
                out[index] = value / sum * a.factor * (dp - dot / sum);
            else if (a.sigmoid)
                out[index] = ds * s * (1.0f - s);
            else
                out[index] = s * (ds - jacobian);
        }
    }
}

static assay_status make_args(const char *op, const router_desc *d, gpu_tensor logits, router_args *a)
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

template <int CHUNKS, class T>
static cudaError_t launch_fwd_k1(gpu_tensor indices, gpu_tensor probs, gpu_tensor scores, gpu_tensor logits,
                                 gpu_tensor bias, const router_args &a, cudaStream_t stream)
{
    return GPU_LAUNCH((router_fwd_k1<CHUNKS, T>), gpu_grid(a.t, GPU_ROWS_PER_BLOCK), gpu_warp_block(), 0,
                      stream, (int64_t *)indices.data, (float *)probs.data, (float *)scores.data,
                      (const T *)logits.data, (const float *)bias.data, a);
}

template <class T>
static cudaError_t launch_fwd(int variant, gpu_tensor indices, gpu_tensor probs, gpu_tensor scores,
                              gpu_tensor logits, gpu_tensor bias, const router_args &a, cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(router_fwd_k0<T>, gpu_grid(a.t, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     (int64_t *)indices.data, (float *)probs.data, (float *)scores.data,
                                     (const T *)logits.data, (const float *)bias.data, a);
    if (a.e <= 32)
        return launch_fwd_k1<1, T>(indices, probs, scores, logits, bias, a, stream);
    if (a.e <= 64)
        return launch_fwd_k1<2, T>(indices, probs, scores, logits, bias, a, stream);
    if (a.e <= 128)
        return launch_fwd_k1<4, T>(indices, probs, scores, logits, bias, a, stream);
    if (a.e <= 256)
        return launch_fwd_k1<8, T>(indices, probs, scores, logits, bias, a, stream);
    return launch_fwd_k1<16, T>(indices, probs, scores, logits, bias, a, stream);
}

static assay_status router_fwd(const gpu_work *w)
{
    const router_desc desc = router_desc_of(w->o), *d = &desc;
    const gpu_tensor indices = gpu_operand(w->o, "indices"), probs = gpu_operand(w->o, "probs"),
                     scores = gpu_operand(w->o, "scores"), logits = gpu_operand(w->o, "logits"),
                     expert_bias = gpu_operand(w->o, "expert_bias");
    const char *op = "router_fwd";
    router_args a;
    ASSAY_TRY(make_args(op, d, logits, &a));
    ASSAY_TRY(gpu_check_tensor(op, "indices", indices, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "probs", probs, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "scores", scores, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_shape2(op, "indices", indices, a.t, a.k));
    ASSAY_TRY(gpu_check_shape2(op, "probs", probs, a.t, a.k));
    ASSAY_TRY(gpu_check_shape2(op, "scores", scores, a.t, a.e));
    if (gpu_tensor_present(expert_bias)) {
        ASSAY_TRY(gpu_check_tensor(op, "expert_bias", expert_bias, ASSAY_F32, ASSAY_F32));
        ASSAY_TRY(gpu_check_count(op, "expert_bias", expert_bias, a.e));
        ASSAY_CHECK(a.sigmoid, ASSAY_INVALID_ARGUMENT,
                    "%s: expert_bias: expected none with score_function softmax, found one", op);
    }
    if (a.t > 0)
        GPU_LAUNCHED(
            logits.dtype == ASSAY_F32
                ? launch_fwd<float>(w->variant, indices, probs, scores, logits, expert_bias, a, w->stream)
                : launch_fwd<bf16>(w->variant, indices, probs, scores, logits, expert_bias, a, w->stream),
            op);
    return ASSAY_OK;
}

static assay_status router_bwd(const gpu_work *w)
{
    const router_desc desc = router_desc_of(w->o), *d = &desc;
    const gpu_tensor dlogits = gpu_operand(w->o, "dlogits"), dprobs = gpu_operand(w->o, "dprobs"),
                     indices = gpu_operand(w->o, "indices"), scores = gpu_operand(w->o, "scores"),
                     logits = gpu_operand(w->o, "logits");
    const char *op = "router_bwd";
    router_args a;
    ASSAY_TRY(make_args(op, d, logits, &a));
    ASSAY_TRY(gpu_check_tensor(op, "dlogits", dlogits, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "dprobs", dprobs, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "indices", indices, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "scores", scores, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_shape2(op, "dlogits", dlogits, a.t, a.e));
    ASSAY_TRY(gpu_check_shape2(op, "dprobs", dprobs, a.t, a.k));
    ASSAY_TRY(gpu_check_shape2(op, "indices", indices, a.t, a.k));
    ASSAY_TRY(gpu_check_shape2(op, "scores", scores, a.t, a.e));
    if (a.t > 0) {
        cudaError_t e;
        if (w->variant == 0)
            e = GPU_LAUNCH_NO_BARRIER(router_bwd_k0, gpu_grid(a.t, GPU_BLOCK), dim3(GPU_BLOCK), 0, w->stream,
                                      (float *)dlogits.data, (const float *)dprobs.data,
                                      (const int64_t *)indices.data, (const float *)scores.data, a);
        else
            e = GPU_LAUNCH(router_bwd_k1, gpu_grid(a.t, GPU_ROWS_PER_BLOCK), gpu_warp_block(), 0, w->stream,
                           (float *)dlogits.data, (const float *)dprobs.data, (const int64_t *)indices.data,
                           (const float *)scores.data, a);
        GPU_LAUNCHED(e, op);
    }
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static bool groups_fit(const gpu_ctx *, const gpu_operands *o)
{
    return gpu_operand_int(o, "num_groups") <= GPU_WARP;
}

/* Scores of softmax after the choice are the logits, those of sigmoid have no sum; else softmax over the row. */
static void score_arith(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o)
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
GPU_LADDER(router_fwd) = {
    GPU_RUNG("one thread a token, every choice a scan of the row", router_fwd,
             GPU_ADAPTS("probs", GPU_SEQUENTIAL(GPU_ULP_EXP), router_ulp, ROUTER_ULP),
             GPU_ADAPTS("scores indices", GPU_SEQUENTIAL(GPU_ULP_EXP), score_arith, ROUTER_SCORES)),
    GPU_RUNG_IF("one warp a token, the row stays in registers; up to 32 groups", router_fwd, NULL, groups_fit,
                NULL, GPU_SM_80, GPU_ADAPTS("probs", GPU_TREE(GPU_WARP, GPU_ULP_EXP), router_ulp, ROUTER_ULP),
                GPU_ADAPTS("scores indices", GPU_TREE(GPU_WARP, GPU_ULP_EXP), score_arith, ROUTER_SCORES)),
    GPU_LADDER_END,
};
GPU_LADDER(router_bwd) = {
    GPU_RUNG("one thread a token", router_bwd,
             GPU_ADAPTS("dlogits", GPU_SEQUENTIAL(GPU_ULP_EXP), router_ulp, ROUTER_ULP)),
    GPU_RUNG("one warp a token", router_bwd,
             GPU_ADAPTS("dlogits", GPU_TREE(GPU_WARP, GPU_ULP_EXP), router_ulp, ROUTER_ULP)),
    GPU_LADDER_END,
};
