/* Auxiliary losses of the router: load balancing and z-loss.  Counts: router_counts.cu.  docs/OPS.md 7;
 * Megatron-LM switch_load_balancing_loss_func.
 *
 *   k0  one thread for each token, one for each expert's sum              fp32, sequential
 *   k1  one warp for each token, then the sums (router_columns.cu)        fp32, tree of 32 lanes
 *   k2  one launch (forward): one warp for each token, each block sums    fp32, sums over the tokens
 *       its tokens, the last one the blocks (router_sums.cuh)             a tree of 4096 lanes
 *
 * The aux map is the plain top-k of aux_scores: no bias, no groups. */
#include "gpu/ops/router_grad.cuh"
#include "gpu/ops/router_sums.cuh"

template <class T>
__global__ void aux_tokens_k0(float *aux_scores, int64_t *aux_indices, float *z, const T *logits, aux_args a)
{
    for (int64_t row = gpu_thread(); row < a.t; row += gpu_threads())
        aux_thread_row(aux_scores + row * a.e, aux_indices + row * a.k, z + row, logits + row * a.e, a);
}

template <int CHUNKS, class T>
__global__ void aux_tokens_k1(float *aux_scores, int64_t *aux_indices, float *z, const T *logits, aux_args a)
{
    GPU_SHARED_2D(float, kept, GPU_ROWS_PER_BLOCK, ROUTER_MAX_TOPK);
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    for (int64_t row = gpu_warp_row(); row < a.t; row += step) {
        float logit[CHUNKS];
        router_warp_load<CHUNKS>(logit, logits + row * a.e, a.e);
        aux_warp_row<CHUNKS>(aux_scores + row * a.e, aux_indices + row * a.k, z + row, kept[threadIdx.y],
                             logit, a);
    }
}

/* A block to a multiprocessor is enough for long rows: for two of them ptxas would spill. */
template <int CHUNKS, class T>
__global__ void __launch_bounds__(GPU_WARP *sums_warps<CHUNKS>::COUNT, CHUNKS <= 4 ? 0 : 1)
    aux_tokens_k2(float *aux_scores, int64_t *aux_indices, float *z, sums_args sums, const T *logits,
                  aux_args a)
{
    GPU_SHARED_2D(float, kept, sums_warps<CHUNKS>::COUNT, ROUTER_MAX_TOPK);
    sums_clear(sums.all, sums.of);
    for (int64_t row = sums_first(); row < a.t; row = sums_next(row)) {
        float logit[CHUNKS];
        router_warp_load<CHUNKS>(logit, logits + row * a.e, a.e);
        aux_warp_row<CHUNKS>(aux_scores + row * a.e, aux_indices + row * a.k, z + row, kept[threadIdx.y],
                             logit, a);
    }
    sums_finish(sums);
}

__global__ void aux_loss_k0(float *losses, const float *score_sums, const int64_t *tokens_per_expert,
                            const float *z_sum, int64_t cells, double aux_factor, double z_factor)
{
    if (gpu_thread() != 0)
        return;
    double sum = 0.0;
    for (int64_t c = 0; c < cells; ++c)
        sum += (double)score_sums[c] * (double)tokens_per_expert[c];
    losses[0] = (float)(aux_factor * sum);
    losses[1] = z_sum == nullptr ? 0.0f : (float)(z_factor * (double)*z_sum);
}

template <class T> __global__ void aux_bwd_k0(float *dlogits, const T *logits, aux_loss loss, aux_args a)
{
    for (int64_t row = gpu_thread(); row < a.t; row += gpu_threads())
        aux_bwd_thread_row(dlogits + row * a.e, dlogits + row * a.e, logits + row * a.e,
                           loss.counts + row % loss.rows * a.e, loss, a);
}

template <class T> __global__ void aux_bwd_k1(float *dlogits, const T *logits, aux_loss loss, aux_args a)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    for (int64_t row = gpu_warp_row(); row < a.t; row += step) {
        const T *l = logits + row * a.e;
        const int64_t *n = loss.counts + row % loss.rows * a.e;
        aux_row r = {-INFINITY, 0.0f, 0.0f, 0.0f};
        for (int64_t e = threadIdx.x; e < a.e; e += GPU_WARP)
            r.m = fmaxf(r.m, gpu_load(l + e));
        r.m = gpu_warp_max(r.m);
        for (int64_t e = threadIdx.x; e < a.e; e += GPU_WARP) {
            const float p = expf(gpu_load(l + e) - r.m), s = gpu_sigmoid(gpu_load(l + e));
            r.sum += p;
            r.total += s;
            r.dot = fmaf(a.sigmoid ? s : p, aux_weight(loss, n[e]), r.dot);
        }
        r.sum = gpu_warp_sum(r.sum);
        r.total = gpu_warp_sum(r.total);
        r.dot = gpu_warp_sum(r.dot);
        for (int64_t e = threadIdx.x; e < a.e; e += GPU_WARP) {
            const float logit = gpu_load(l + e), p = expf(logit - r.m) / r.sum;
            float *out = dlogits + row * a.e + e;
            *out = fmaf(loss.scale, aux_gradient(r, loss, logit, p, n[e], a.sigmoid), *out);
        }
    }
}

template <int CHUNKS, class T>
static cudaError_t launch_tokens_k1(float *scores, int64_t *indices, float *z, const T *logits,
                                    const aux_args &a, cudaStream_t stream)
{
    return GPU_LAUNCH((aux_tokens_k1<CHUNKS, T>), gpu_grid(a.t, GPU_ROWS_PER_BLOCK), gpu_warp_block(), 0,
                      stream, scores, indices, z, logits, a);
}

template <class T>
static cudaError_t launch_tokens(int variant, float *scores, int64_t *indices, float *z, const T *logits,
                                 const aux_args &a, cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(aux_tokens_k0<T>, gpu_grid(a.t, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     scores, indices, z, logits, a);
    return ROUTER_BY_EXPERTS(a.e, launch_tokens_k1, T, scores, indices, z, logits, a, stream);
}

template <int CHUNKS, class T>
static cudaError_t launch_k2(float *scores, int64_t *indices, float *z, const sums_args &sums,
                             const T *logits, const aux_args &a, cudaStream_t stream)
{
    return GPU_LAUNCH((aux_tokens_k2<CHUNKS, T>), sums_grid(a.t),
                      sums_threads_of(a.t, sums_warps<CHUNKS>::COUNT), 0, stream, scores, indices, z, sums,
                      logits, a);
}

/* What is summed and where to. */
static sums_args aux_sums(const gpu_work *w, const aux_args &a)
{
    return {{(const float *)gpu_operand(w->o, "aux_scores").data, (const float *)w->ctx->workspace,
             (const int64_t *)gpu_operand(w->o, "aux_indices").data, a.t, a.e, a.k},
            {1, (int64_t *)gpu_operand(w->o, "tokens_per_expert").data,
             (float *)gpu_operand(w->o, "score_sums").data, (float *)gpu_operand(w->o, "z_sum").data, nullptr,
             nullptr},
            {},
            w->ctx->ticket};
}

/* k2: tokens and sums in one launch. */
static cudaError_t run_together(const gpu_work *w, const aux_args &a)
{
    const gpu_tensor scores = gpu_operand(w->o, "aux_scores"), indices = gpu_operand(w->o, "aux_indices"),
                     logits = gpu_operand(w->o, "logits");
    float *z = (float *)w->ctx->workspace;
    sums_args s = aux_sums(w, a);
    sums_place(&s.all, (char *)w->ctx->workspace + aux_workspace(w->ctx, w->o), a.t, a.e);
    return logits.dtype == ASSAY_F32
               ? ROUTER_BY_256_EXPERTS(a.e, launch_k2, float, (float *)scores.data, (int64_t *)indices.data,
                                       z, s, (const float *)logits.data, a, w->stream)
               : ROUTER_BY_256_EXPERTS(a.e, launch_k2, bf16, (float *)scores.data, (int64_t *)indices.data, z,
                                       s, (const bf16 *)logits.data, a, w->stream);
}

static size_t together_workspace(const gpu_ctx *ctx, const gpu_operands *o)
{
    const gpu_tensor logits = gpu_operand(o, "logits");
    return aux_workspace(ctx, o) + sums_bytes(gpu_tensor_row_count(logits), gpu_tensor_cols(logits), 1);
}

static assay_status router_aux_fwd(const gpu_work *w)
{
    const router_desc desc = router_desc_of(w->o), *d = &desc;
    const gpu_tensor aux_scores = gpu_operand(w->o, "aux_scores"),
                     aux_indices = gpu_operand(w->o, "aux_indices"),
                     tokens_per_expert = gpu_operand(w->o, "tokens_per_expert"),
                     score_sums = gpu_operand(w->o, "score_sums"), z_sum = gpu_operand(w->o, "z_sum"),
                     logits = gpu_operand(w->o, "logits");
    const char *op = "router_aux_fwd";
    aux_args a;
    ASSAY_TRY(aux_make_args(op, d, logits, &a));
    ASSAY_TRY(gpu_check_tensor(op, "aux_scores", aux_scores, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "aux_indices", aux_indices, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "z_sum", z_sum, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_shape2(op, "aux_scores", aux_scores, a.t, a.e));
    ASSAY_TRY(gpu_check_shape2(op, "aux_indices", aux_indices, a.t, a.k));
    ASSAY_TRY(sums_check(op, tokens_per_expert, "tokens_per_expert", score_sums, "score_sums", 1, a.e));
    ASSAY_TRY(gpu_check_count(op, "z_sum", z_sum, 1));
    ASSAY_TRY(gpu_check_workspace(
        op, w->ctx, w->variant < 2 ? aux_workspace(w->ctx, w->o) : together_workspace(w->ctx, w->o)));
    if (w->variant >= 2) {
        GPU_LAUNCHED(run_together(w, a), op);
        return ASSAY_OK;
    }
    float *z = (float *)w->ctx->workspace;
    if (a.t > 0)
        GPU_LAUNCHED(logits.dtype == ASSAY_F32
                         ? launch_tokens(w->variant, (float *)aux_scores.data, (int64_t *)aux_indices.data, z,
                                         (const float *)logits.data, a, w->stream)
                         : launch_tokens(w->variant, (float *)aux_scores.data, (int64_t *)aux_indices.data, z,
                                         (const bf16 *)logits.data, a, w->stream),
                     op);
    const sums_args s = aux_sums(w, a);
    GPU_LAUNCHED(router_columns(w->variant, s.all, s.of, w->stream), op);
    return ASSAY_OK;
}

static assay_status router_aux_loss(const gpu_work *w)
{
    const aux_desc desc = aux_desc_of(w->o, 0), *d = &desc;
    const gpu_tensor losses = gpu_operand(w->o, "losses"), score_sums = gpu_operand(w->o, "score_sums"),
                     tokens_per_expert = gpu_operand(w->o, "tokens_per_expert"),
                     z_sum = gpu_operand(w->o, "z_sum");
    const char *op = "router_aux_loss";
    ASSAY_TRY(gpu_check_tensor(op, "losses", losses, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "score_sums", score_sums, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "tokens_per_expert", tokens_per_expert, ASSAY_I64, ASSAY_I64));
    if (gpu_tensor_present(z_sum))
        ASSAY_TRY(gpu_check_tensor(op, "z_sum", z_sum, ASSAY_F32, ASSAY_F32));
    const int64_t cells = gpu_tensor_count(score_sums), experts = gpu_tensor_cols(score_sums);
    ASSAY_TRY(gpu_check_count(op, "losses", losses, 2));
    ASSAY_TRY(gpu_check_count(op, "tokens_per_expert", tokens_per_expert, cells));
    if (gpu_tensor_present(z_sum))
        ASSAY_TRY(gpu_check_count(op, "z_sum", z_sum, 1));
    ASSAY_TRY(aux_check_group(op, d));
    GPU_LAUNCHED(GPU_LAUNCH_NO_BARRIER(aux_loss_k0, dim3(1), dim3(1), 0, w->stream, (float *)losses.data,
                                       (const float *)score_sums.data,
                                       (const int64_t *)tokens_per_expert.data, (const float *)z_sum.data,
                                       cells, aux_factor_of(d, experts), z_factor_of(d)),
                 op);
    return ASSAY_OK;
}

template <class T>
static cudaError_t launch_bwd(int variant, float *dlogits, const T *logits, const aux_loss &loss,
                              const aux_args &a, cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(aux_bwd_k0<T>, gpu_grid(a.t, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     dlogits, logits, loss, a);
    return GPU_LAUNCH(aux_bwd_k1<T>, gpu_grid(a.t, GPU_ROWS_PER_BLOCK), gpu_warp_block(), 0, stream, dlogits,
                      logits, loss, a);
}

static assay_status router_aux_bwd(const gpu_work *w)
{
    const gpu_tensor dlogits = gpu_operand(w->o, "dlogits"), logits = gpu_operand(w->o, "logits");
    const router_desc d = router_desc_of(w->o);
    const char *op = "router_aux_bwd";
    aux_args a;
    aux_loss loss;
    ASSAY_TRY(aux_make_args(op, &d, logits, &a));
    ASSAY_TRY(aux_make_loss(op, w->o, 0, a, &loss));
    ASSAY_TRY(gpu_check_tensor(op, "dlogits", dlogits, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_shape2(op, "dlogits", dlogits, a.t, a.e));
    if (a.t > 0)
        GPU_LAUNCHED(logits.dtype == ASSAY_F32 ? launch_bwd(w->variant, (float *)dlogits.data,
                                                            (const float *)logits.data, loss, a, w->stream)
                                               : launch_bwd(w->variant, (float *)dlogits.data,
                                                            (const bf16 *)logits.data, loss, a, w->stream),
                     op);
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static bool row_in_registers(const gpu_ctx *, const gpu_operands *o)
{
    return gpu_tensor_cols(gpu_operand(o, "logits")) <= ROUTER_SUMS_EXPERTS;
}

/* z_sum is a softmax for either score function. */
GPU_LADDER(router_aux_fwd) = {
    GPU_RUNG_IF("one thread a token, one an expert", router_aux_fwd, aux_workspace, NULL, NULL, GPU_SM_80,
                GPU_ADAPTS("aux_scores aux_indices tokens_per_expert score_sums", GPU_SEQUENTIAL(GPU_ULP_EXP),
                           router_ulp, ROUTER_ULP),
                GPU_DECLARES("z_sum", GPU_SEQUENTIAL(GPU_ULP_EXP))),
    GPU_RUNG_IF("one warp a token; a block eight experts' sums", router_aux_fwd, aux_workspace, NULL, NULL,
                GPU_SM_80,
                GPU_ADAPTS("aux_scores aux_indices tokens_per_expert score_sums",
                           GPU_TREE(GPU_WARP, GPU_ULP_EXP), router_ulp, ROUTER_ULP),
                GPU_DECLARES("z_sum", GPU_TREE(GPU_WARP, GPU_ULP_EXP))),
    GPU_RUNG_IF("one launch: the last block ends the sums; up to 256 experts", router_aux_fwd,
                together_workspace, row_in_registers, NULL, GPU_SM_80,
                GPU_ADAPTS("aux_scores aux_indices tokens_per_expert", GPU_TREE(GPU_WARP, GPU_ULP_EXP),
                           router_ulp, ROUTER_ULP),
                GPU_ADAPTS("score_sums", GPU_TREE(SUMS_LANES, GPU_ULP_EXP), router_ulp, ROUTER_ULP),
                GPU_DECLARES("z_sum", GPU_TREE(SUMS_LANES, GPU_ULP_EXP))),
    GPU_LADDER_END,
};
GPU_LADDER(router_aux_loss) = {
    GPU_RUNG("one thread", router_aux_loss,
             GPU_DECLARES("losses", GPU_ARITH(F64, SEQUENTIAL, 1, false, 0, 0))),
    GPU_LADDER_END,
};
GPU_LADDER(router_aux_bwd) = {
    GPU_RUNG("one thread a token", router_aux_bwd,
             GPU_ADAPTS("dlogits", GPU_SEQUENTIAL(GPU_ULP_EXP), router_ulp, ROUTER_ULP)),
    GPU_RUNG("one warp a token", router_aux_bwd,
             GPU_ADAPTS("dlogits", GPU_TREE(GPU_WARP, GPU_ULP_EXP), router_ulp, ROUTER_ULP)),
    GPU_LADDER_END,
};
