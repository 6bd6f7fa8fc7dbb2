/* Mixture-of-experts router: scores, top-k, weights, and their gradient.  docs/OPS.md 7; Megatron-LM's
 * router; Hugging Face for pre_softmax with renormalisation.
 *
 *   k0  one thread for each token, every choice a scan of the row        fp32, sequential
 *   k1  fused: one warp for each token, the row stays in registers,      fp32, tree of 32 lanes
 *       sums by shuffles, choices by warp maxima, places by ballots
 *
 * logits F32 or BF16, everything else F32.  Up to 512 experts, top-k up to 32; k1 takes up to 32 groups (k0 runs otherwise). */
#include "gpu/ops/router_grad.cuh"

template <class T>
__global__ void router_fwd_k0(int64_t *indices, float *probs, float *scores, const T *logits,
                              const float *bias, router_args a)
{
    for (int64_t row = gpu_thread(); row < a.t; row += gpu_threads())
        router_thread_row(indices + row * a.k, probs + row * a.k, scores + row * a.e, logits + row * a.e,
                          bias, a);
}

template <int CHUNKS, class T>
__global__ void router_fwd_k1(int64_t *indices, float *probs, float *scores, const T *logits,
                              const float *bias, router_args a)
{
    GPU_SHARED_2D(float, kept, GPU_ROWS_PER_BLOCK, ROUTER_MAX_TOPK);
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    for (int64_t row = gpu_warp_row(); row < a.t; row += step) {
        float logit[CHUNKS];
        router_warp_load<CHUNKS>(logit, logits + row * a.e, a.e);
        router_warp_row<CHUNKS>(indices + row * a.k, probs + row * a.k, scores + row * a.e, kept[threadIdx.y],
                                logit, bias, a);
    }
}

__global__ void router_bwd_k0(float *dlogits, const float *dprobs, const int64_t *indices,
                              const float *scores, router_args a)
{
    for (int64_t row = gpu_thread(); row < a.t; row += gpu_threads())
        router_bwd_thread_row(dlogits + row * a.e, dprobs + row * a.k, indices + row * a.k,
                              scores + row * a.e, a);
}

__global__ void router_bwd_k1(float *dlogits, const float *dprobs, const int64_t *indices,
                              const float *scores, router_args a)
{
    const int lane = (int)threadIdx.x;
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    for (int64_t row = gpu_warp_row(); row < a.t; row += step) {
        float *out = dlogits + row * a.e;
        const router_chosen c =
            router_warp_chosen(dprobs + row * a.k, indices + row * a.k, scores + row * a.e, a);
        for (int64_t e = lane; e < a.e; e += GPU_WARP)
            out[e] = router_unchosen(a, scores[row * a.e + e], c.jacobian);
        __syncwarp(); /* the row is written before its chosen elements are written again by other lanes */
        if (lane < a.k)
            out[c.index] = c.gradient;
    }
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
    return ROUTER_BY_EXPERTS(a.e, launch_fwd_k1, T, indices, probs, scores, logits, bias, a, stream);
}

static assay_status router_fwd(const gpu_work *w)
{
    const router_desc desc = router_desc_of(w->o), *d = &desc;
    const gpu_tensor indices = gpu_operand(w->o, "indices"), probs = gpu_operand(w->o, "probs"),
                     scores = gpu_operand(w->o, "scores"), logits = gpu_operand(w->o, "logits"),
                     expert_bias = gpu_operand(w->o, "expert_bias");
    const char *op = "router_fwd";
    router_args a;
    ASSAY_TRY(router_make_args(op, d, logits, &a));
    ASSAY_TRY(gpu_check_tensor(op, "indices", indices, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "probs", probs, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "scores", scores, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_shape2(op, "indices", indices, a.t, a.k));
    ASSAY_TRY(gpu_check_shape2(op, "probs", probs, a.t, a.k));
    ASSAY_TRY(gpu_check_shape2(op, "scores", scores, a.t, a.e));
    ASSAY_TRY(router_check_bias(op, expert_bias, a));
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
    ASSAY_TRY(router_make_args(op, d, logits, &a));
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

GPU_LADDER(router_fwd) = {
    GPU_RUNG("one thread a token, every choice a scan of the row", router_fwd,
             GPU_ADAPTS("probs", GPU_SEQUENTIAL(GPU_ULP_EXP), router_ulp, ROUTER_ULP),
             GPU_ADAPTS("scores indices", GPU_SEQUENTIAL(GPU_ULP_EXP), router_score_arith, ROUTER_SCORES)),
    GPU_RUNG_IF("one warp a token, the row stays in registers; up to 32 groups", router_fwd, NULL, groups_fit,
                NULL, GPU_SM_80, GPU_ADAPTS("probs", GPU_TREE(GPU_WARP, GPU_ULP_EXP), router_ulp, ROUTER_ULP),
                GPU_ADAPTS("scores indices", GPU_TREE(GPU_WARP, GPU_ULP_EXP), router_score_arith,
                           ROUTER_SCORES)),
    GPU_LADDER_END,
};
GPU_LADDER(router_bwd) = {
    GPU_RUNG("one thread a token", router_bwd,
             GPU_ADAPTS("dlogits", GPU_SEQUENTIAL(GPU_ULP_EXP), router_ulp, ROUTER_ULP)),
    GPU_RUNG("one warp a token", router_bwd,
             GPU_ADAPTS("dlogits", GPU_TREE(GPU_WARP, GPU_ULP_EXP), router_ulp, ROUTER_ULP)),
    GPU_LADDER_END,
};
