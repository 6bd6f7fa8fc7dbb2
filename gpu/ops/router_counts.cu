/* Counts of a router: sums of interleaved sequences, counts of a step, update of the expert bias.  docs/OPS.md 7.
 *
 *   k0  one thread for each sum                       fp32, sequential
 *   k1  a block for eight sums (router_columns.cu)    fp32, tree of 32 lanes
 *   k2  a block for each tile of tokens, the last     fp32, tree of 4096 lanes
 *       one ends the sums (router_sums.cuh) */
#include "gpu/ops/router_rows.cuh"
#include "gpu/ops/router_sums.cuh"

__global__ void __launch_bounds__(GPU_WARP *SUMS_TILE) seq_columns_k2(sums_args sums)
{
    sums_clear(sums.seq, sums.of);
    sums_finish(sums);
}

/* bias += rate sign(mean(n) - n_e), exactly: n_e E against the sum. */
__global__ void expert_bias_k0(float *bias, const int64_t *tokens_per_expert, float rate, int64_t experts)
{
    for (int64_t e = gpu_thread(); e < experts; e += gpu_threads()) {
        int64_t sum = 0;
        for (int64_t i = 0; i < experts; ++i)
            sum += tokens_per_expert[i];
        const int64_t mine = tokens_per_expert[e] * experts;
        if (mine != sum)
            bias[e] += mine < sum ? rate : -rate;
    }
}

static size_t seq_workspace(const gpu_ctx *, const gpu_operands *o)
{
    const gpu_tensor scores = gpu_operand(o, "aux_scores");
    return sums_bytes(gpu_tensor_row_count(scores), gpu_tensor_cols(scores), gpu_operand_int(o, "rows"));
}

static assay_status router_seq_aux_fwd(const gpu_work *w)
{
    const gpu_tensor scores = gpu_operand(w->o, "aux_scores"), indices = gpu_operand(w->o, "aux_indices"),
                     tokens_per_expert = gpu_operand(w->o, "tokens_per_expert"),
                     sums = gpu_operand(w->o, "score_sums");
    const char *op = "router_seq_aux_fwd";
    const int64_t rows = gpu_operand_int(w->o, "rows");
    ASSAY_TRY(gpu_check_tensor(op, "aux_scores", scores, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "aux_indices", indices, ASSAY_I64, ASSAY_I64));
    const sums_of x = {(const float *)scores.data,    nullptr,
                       (const int64_t *)indices.data, gpu_tensor_row_count(scores),
                       gpu_tensor_cols(scores),       gpu_tensor_cols(indices)};
    ASSAY_TRY(gpu_check_shape2(op, "aux_indices", indices, x.t, x.k));
    ASSAY_TRY(router_check_rows(op, x.t, rows));
    ASSAY_TRY(sums_check(op, tokens_per_expert, "tokens_per_expert", sums, "score_sums", rows, x.e));
    sums_args s = {x,
                   {},
                   {rows, (int64_t *)tokens_per_expert.data, (float *)sums.data, nullptr, nullptr, nullptr},
                   w->ctx->ticket};
    if (w->variant < 2) {
        GPU_LAUNCHED(router_columns(w->variant, s.seq, x, w->stream), op);
        return ASSAY_OK;
    }
    ASSAY_TRY(gpu_check_workspace(op, w->ctx, seq_workspace(w->ctx, w->o)));
    sums_place(&s.seq, w->ctx->workspace, x.t, x.e);
    GPU_LAUNCHED(GPU_LAUNCH(seq_columns_k2, sums_grid(x.t), sums_threads_of(x.t, SUMS_TILE), 0, w->stream, s),
                 op);
    return ASSAY_OK;
}

__global__ void running_counts_k0(int64_t *total, const int64_t *counts, const int64_t *previous, int64_t n)
{
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads())
        total[i] = counts[i] + (previous == nullptr ? 0 : previous[i]);
}

static assay_status running_counts(const gpu_work *w)
{
    const gpu_tensor counts = gpu_operand(w->o, "tokens_per_expert"),
                     previous = gpu_operand(w->o, "previous"), total = gpu_operand(w->o, "total");
    const char *op = "running_counts";
    const int64_t n = gpu_tensor_count(counts);
    ASSAY_TRY(gpu_check_tensor(op, "tokens_per_expert", counts, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "total", total, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_count(op, "total", total, n));
    if (gpu_tensor_present(previous)) {
        ASSAY_TRY(gpu_check_tensor(op, "previous", previous, ASSAY_I64, ASSAY_I64));
        ASSAY_TRY(gpu_check_count(op, "previous", previous, n));
    }
    if (n > 0)
        GPU_LAUNCHED(GPU_LAUNCH_NO_BARRIER(running_counts_k0, gpu_grid(n, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                           w->stream, (int64_t *)total.data, (const int64_t *)counts.data,
                                           (const int64_t *)previous.data, n),
                     op);
    return ASSAY_OK;
}

static assay_status expert_bias_update(const gpu_work *w)
{
    const gpu_tensor bias = gpu_operand(w->o, "bias"),
                     tokens_per_expert = gpu_operand(w->o, "tokens_per_expert");
    const float rate = (float)gpu_operand_double(w->o, "rate");
    const char *op = "expert_bias_update";
    ASSAY_TRY(gpu_check_tensor(op, "bias", bias, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "tokens_per_expert", tokens_per_expert, ASSAY_I64, ASSAY_I64));
    const int64_t experts = gpu_tensor_count(bias);
    ASSAY_TRY(gpu_check_count(op, "tokens_per_expert", tokens_per_expert, experts));
    if (experts > 0)
        GPU_LAUNCHED(GPU_LAUNCH_NO_BARRIER(expert_bias_k0, gpu_grid(experts, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                           w->stream, (float *)bias.data,
                                           (const int64_t *)tokens_per_expert.data, rate, experts),
                     op);
    return ASSAY_OK;
}

/* --- the ladders -------------------------------------------------------------------------------------------- */
static bool few_sums(const gpu_ctx *, const gpu_operands *o)
{
    return router_sums_in_one_launch(gpu_operand_int(o, "rows"),
                                     gpu_tensor_cols(gpu_operand(o, "aux_scores")));
}

GPU_LADDER(router_seq_aux_fwd) = {
    GPU_RUNG("one thread a sum", router_seq_aux_fwd,
             GPU_DECLARES("tokens_per_expert score_sums", GPU_SEQUENTIAL(0))),
    GPU_RUNG("a block eight sums of a sequence", router_seq_aux_fwd,
             GPU_DECLARES("tokens_per_expert score_sums", GPU_TREE(GPU_WARP, 0))),
    GPU_RUNG_IF("scores are read in rows, the last block ends the sums; up to 1024 sums", router_seq_aux_fwd,
                seq_workspace, few_sums, NULL, GPU_SM_80,
                GPU_ADAPTS("tokens_per_expert score_sums", GPU_TREE(SUMS_LANES, 0), sums_seq_arith,
                           SUMS_SEQ)),
    GPU_LADDER_END,
};
GPU_LADDER(running_counts) = {
    GPU_RUNG("one thread an expert", running_counts, GPU_DECLARES("total", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(expert_bias_update) = {
    GPU_RUNG("one thread an expert", expert_bias_update, GPU_DECLARES("bias", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
