/* Which token rows go to which expert.  docs/OPS.md 7.  The rows themselves: rows.cu.
 *
 *   k0  one thread for each expert walks all choices                                         integers, exact
 *   k1  plan: one warp for each expert, 32 choices at a time, places by ballots              integers, exact
 *   k2  plan: a counting sort, experts_sort.cuh                                              integers, exact
 *
 * An assignment of -1 has no row.  Another one outside its range is a violated precondition, which the plan skips. */
#include "gpu/ops/experts_sort.cuh"

/* Whether assignment j stays before assignment i when an expert cannot take both. */
__device__ static bool comes_before(int64_t j, int64_t i, const float *probs, const int64_t *token, int64_t k)
{
    const bool earlier = token[j / k] < token[i / k];
    return probs == NULL ? earlier : probs[j] > probs[i] || (probs[j] == probs[i] && earlier);
}

__global__ void drop_k0(int64_t *routed, const int64_t *indices, const float *probs, const int64_t *token,
                        int64_t n, int64_t k, int64_t first, int64_t mine, int64_t capacity)
{
    for (int64_t a = gpu_thread(); a < mine; a += gpu_threads()) {
        const int64_t i = first + a, expert = indices[i];
        int64_t before = 0;
        for (int64_t j = 0; j < n; ++j)
            before += j != i && indices[j] == expert && comes_before(j, i, probs, token, k);
        routed[a] = before < capacity ? expert : -1;
    }
}

__global__ void plan_count_k0(int64_t *tokens_per_expert, const int64_t *indices, int64_t n, int64_t experts)
{
    for (int64_t e = gpu_thread(); e < experts; e += gpu_threads()) {
        int64_t count = 0;
        for (int64_t i = 0; i < n; ++i)
            count += indices[i] == e;
        tokens_per_expert[e] = count;
    }
}

__global__ void plan_fill_k0(plan_rows out, const int64_t *tokens_per_expert, const int64_t *indices,
                             int64_t n, int64_t k, int64_t first, int64_t end)
{
    for (int64_t e = first + gpu_thread(); e < end; e += gpu_threads()) {
        int64_t row = 0;
        for (int64_t i = first; i < e; ++i)
            row += tokens_per_expert[i];
        for (int64_t i = 0; i < n; ++i)
            if (indices[i] == e)
                plan_put(out, i, row++, i / k);
    }
}

/* Assignments to no expert, or to none of these. */
__global__ void plan_absent(int64_t *token_row, const int64_t *indices, int64_t n, int64_t first, int64_t end)
{
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads())
        if (indices[i] < first || indices[i] >= end)
            token_row[i] = -1;
}

/* Rows behind those of the last expert. */
__global__ void plan_rest(plan_rows out, const int64_t *tokens_per_expert, int64_t first, int64_t end)
{
    int64_t rows = 0;
    for (int64_t e = first; e < end; ++e)
        rows += tokens_per_expert[e];
    for (int64_t row = rows + gpu_thread(); row < out.rows; row += gpu_threads())
        plan_put_nobodys(out, row);
}

__global__ void plan_count_k1(int64_t *tokens_per_expert, const int64_t *indices, int64_t n, int64_t experts)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    for (int64_t e = gpu_warp_row(); e < experts; e += step) {
        int64_t count = 0;
        for (int64_t base = 0; base < n; base += GPU_WARP) {
            const int64_t i = base + threadIdx.x;
            count += __popc(__ballot_sync(gpu_all_lanes, i < n && indices[i] == e));
        }
        if (threadIdx.x == 0)
            tokens_per_expert[e] = count;
    }
}

__global__ void plan_fill_k1(plan_rows out, const int64_t *tokens_per_expert, const int64_t *indices,
                             int64_t n, int64_t k, int64_t first, int64_t end)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    for (int64_t e = first + gpu_warp_row(); e < end; e += step) {
        int64_t row = 0;
        for (int64_t i = first; i < e; ++i)
            row += tokens_per_expert[i];
        for (int64_t base = 0; base < n; base += GPU_WARP) {
            const int64_t i = base + threadIdx.x;
            const bool mine = i < n && indices[i] == e;
            const unsigned votes = __ballot_sync(gpu_all_lanes, mine);
            if (mine)
                plan_put(out, i, row + __popc(votes & ((1u << threadIdx.x) - 1u)), i / k);
            row += __popc(votes);
        }
    }
}

static cudaError_t launch_plan(const gpu_work *w, plan_rows out, gpu_tensor counts, gpu_tensor indices)
{
    const cudaStream_t stream = w->stream;
    const int64_t first = gpu_operand_int(w->o, "first_expert");
    const int64_t end = first + gpu_operand_int(w->o, "local_experts");
    const int64_t n = gpu_tensor_count(indices), k = gpu_tensor_cols(indices), e = gpu_tensor_count(counts);
    int64_t *c = (int64_t *)counts.data;
    const int64_t *i = (const int64_t *)indices.data;
    cudaError_t error = cudaSuccess;
    if (n > 0)
        error = GPU_LAUNCH_NO_BARRIER(plan_absent, gpu_grid(n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                      out.token_row, i, n, first, end);
    if (error != cudaSuccess)
        return error;
    const dim3 one_each = gpu_grid(e, GPU_BLOCK), warp_each = gpu_grid(e, GPU_ROWS_PER_BLOCK);
    if (w->variant == 0)
        error = GPU_LAUNCH_NO_BARRIER(plan_count_k0, one_each, dim3(GPU_BLOCK), 0, stream, c, i, n, e);
    else
        error = GPU_LAUNCH(plan_count_k1, warp_each, gpu_warp_block(), 0, stream, c, i, n, e);
    if (error != cudaSuccess || n == 0)
        return error;
    if (w->variant == 0)
        error = GPU_LAUNCH_NO_BARRIER(plan_fill_k0, one_each, dim3(GPU_BLOCK), 0, stream, out, c, i, n, k,
                                      first, end);
    else
        error = GPU_LAUNCH(plan_fill_k1, warp_each, gpu_warp_block(), 0, stream, out, c, i, n, k, first, end);
    if (error != cudaSuccess || out.rows == 0)
        return error;
    return GPU_LAUNCH_NO_BARRIER(plan_rest, gpu_grid(out.rows, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream, out, c,
                                 first, end);
}

/* A grid of blocks, each with PLAN_CHUNK assignments; one, for the counts alone, where there are none. */
static int64_t plan_blocks(int64_t n)
{
    return n == 0 ? 1 : (n + PLAN_CHUNK - 1) / PLAN_CHUNK;
}

static cudaError_t launch_sort(const gpu_work *w, plan_rows out, gpu_tensor counts, gpu_tensor indices)
{
    const int n = (int)gpu_tensor_count(indices), k = (int)gpu_tensor_cols(indices);
    const int first = (int)gpu_operand_int(w->o, "first_expert"), experts = (int)gpu_tensor_count(counts);
    const int end = first + (int)gpu_operand_int(w->o, "local_experts");
    const dim3 grid((unsigned)plan_blocks(n)), block(PLAN_THREADS);
    const size_t each = (size_t)experts * sizeof(int), places = (PLAN_WARPS + 1) * each + sizeof(int);
    int *by_block = (int *)w->ctx->workspace;
    const int64_t *i = (const int64_t *)indices.data;
    const cudaError_t error =
        GPU_LAUNCH(plan_count_k2, grid, block, each, w->stream, by_block, i, n, experts);
    if (error != cudaSuccess)
        return error;
    return GPU_LAUNCH(plan_place_k2, grid, block, places, w->stream, out, (int64_t *)counts.data, by_block, i,
                      n, k, experts, first, end);
}

static cudaError_t launch_drop(const gpu_work *w, gpu_tensor routed, gpu_tensor counts)
{
    const gpu_tensor indices = gpu_operand(w->o, "all_indices"), probs = gpu_operand(w->o, "all_probs");
    const gpu_tensor token = gpu_operand(w->o, "token");
    const int64_t k = gpu_tensor_cols(indices), mine = gpu_tensor_count(routed);
    const int64_t e = gpu_tensor_count(counts);
    cudaError_t error = cudaSuccess;
    if (mine > 0)
        error = GPU_LAUNCH_NO_BARRIER(drop_k0, gpu_grid(mine, GPU_BLOCK), dim3(GPU_BLOCK), 0, w->stream,
                                      (int64_t *)routed.data, (const int64_t *)indices.data,
                                      (const float *)probs.data, (const int64_t *)token.data,
                                      gpu_tensor_count(indices), k, gpu_operand_int(w->o, "start") * k, mine,
                                      gpu_operand_int(w->o, "capacity"));
    if (error != cudaSuccess)
        return error;
    return GPU_LAUNCH_NO_BARRIER(plan_count_k0, gpu_grid(e, GPU_BLOCK), dim3(GPU_BLOCK), 0, w->stream,
                                 (int64_t *)counts.data, (const int64_t *)routed.data, mine, e);
}

static assay_status router_drop(const gpu_work *w)
{
    const gpu_tensor indices = gpu_operand(w->o, "all_indices"), probs = gpu_operand(w->o, "all_probs"),
                     token = gpu_operand(w->o, "token"), routed = gpu_operand(w->o, "routed"),
                     counts = gpu_operand(w->o, "tokens_per_expert");
    const int64_t start = gpu_operand_int(w->o, "start"), length = gpu_operand_int(w->o, "length");
    const char *op = "router_drop";
    ASSAY_TRY(gpu_check_tensor(op, "all_indices", indices, ASSAY_I64, ASSAY_I64));
    ASSAY_CHECK(indices.ndim == 2, ASSAY_INVALID_ARGUMENT,
                "%s: all_indices: expected 2 dimensions [N,K], found %d", op, indices.ndim);
    if (gpu_tensor_present(probs)) {
        ASSAY_TRY(gpu_check_tensor(op, "all_probs", probs, ASSAY_F32, ASSAY_F32));
        ASSAY_TRY(gpu_check_count(op, "all_probs", probs, gpu_tensor_count(indices)));
    }
    ASSAY_TRY(gpu_check_tensor(op, "token", token, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_count(op, "token", token, indices.shape[0]));
    ASSAY_TRY(gpu_check_tensor(op, "routed", routed, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_count(op, "routed", routed, length * indices.shape[1]));
    ASSAY_TRY(gpu_check_tensor(op, "tokens_per_expert", counts, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_count(op, "tokens_per_expert", counts, gpu_operand_int(w->o, "experts")));
    ASSAY_CHECK(start >= 0 && length >= 0 && start + length <= indices.shape[0], ASSAY_INVALID_ARGUMENT,
                "%s: tokens %lld to %lld of %lld", op, (long long)start, (long long)(start + length),
                (long long)indices.shape[0]);
    GPU_LAUNCHED(launch_drop(w, routed, counts), op);
    return ASSAY_OK;
}

static size_t plan_sort_bytes(const gpu_ctx *, const gpu_operands *o)
{
    const int64_t experts = gpu_tensor_count(gpu_operand(o, "tokens_per_expert"));
    return (size_t)(plan_blocks(gpu_tensor_count(gpu_operand(o, "indices"))) * experts) * sizeof(int);
}

static assay_status permute_plan(const gpu_work *w)
{
    const gpu_tensor row_token = gpu_operand(w->o, "row_token"), row_entry = gpu_operand(w->o, "row_entry"),
                     tokens_per_expert = gpu_operand(w->o, "tokens_per_expert"),
                     token_row = gpu_operand(w->o, "token_row"), indices = gpu_operand(w->o, "indices");
    const char *op = "permute_plan";
    ASSAY_TRY(gpu_check_tensor(op, "indices", indices, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "row_token", row_token, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "row_entry", row_entry, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "tokens_per_expert", tokens_per_expert, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "token_row", token_row, ASSAY_I64, ASSAY_I64));
    ASSAY_CHECK(indices.ndim == 2, ASSAY_INVALID_ARGUMENT,
                "%s: indices: expected 2 dimensions [T,K], found %d", op, indices.ndim);
    const int64_t n = gpu_tensor_count(indices);
    const int64_t rows = gpu_operand_int(w->o, "rows"), first = gpu_operand_int(w->o, "first_expert"),
                  local = gpu_operand_int(w->o, "local_experts"),
                  experts = gpu_tensor_count(tokens_per_expert);
    ASSAY_CHECK(first >= 0 && local >= 0 && first + local <= experts, ASSAY_INVALID_ARGUMENT,
                "%s: experts %lld to %lld of %lld", op, (long long)first, (long long)(first + local),
                (long long)experts);
    ASSAY_TRY(gpu_check_count(op, "tokens_per_expert", tokens_per_expert, gpu_operand_int(w->o, "experts")));
    ASSAY_CHECK(rows <= n, ASSAY_INVALID_ARGUMENT, "%s: rows: expected at most %lld, found %lld", op,
                (long long)n, (long long)rows);
    ASSAY_TRY(gpu_check_count(op, "row_token", row_token, rows));
    ASSAY_TRY(gpu_check_count(op, "row_entry", row_entry, rows));
    ASSAY_TRY(gpu_check_count(op, "token_row", token_row, n));
    const plan_rows out = {(int64_t *)row_token.data, (int64_t *)row_entry.data, (int64_t *)token_row.data,
                           rows};
    if (experts == 0)
        return ASSAY_OK;
    if (w->variant == 2) {
        ASSAY_TRY(gpu_check_workspace(op, w->ctx, plan_sort_bytes(w->ctx, w->o)));
        GPU_LAUNCHED(launch_sort(w, out, tokens_per_expert, indices), op);
    } else {
        GPU_LAUNCHED(launch_plan(w, out, tokens_per_expert, indices), op);
    }
    return ASSAY_OK;
}

/* Counters of all experts fit into shared memory, numbers of assignments into 32 bits. */
static bool plan_sorts(const gpu_ctx *, const gpu_operands *o)
{
    return gpu_tensor_count(gpu_operand(o, "tokens_per_expert")) <= PLAN_MOST_EXPERTS &&
           gpu_tensor_count(gpu_operand(o, "indices")) < INT_MAX / 2 - PLAN_CHUNK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
GPU_LADDER(router_drop) = {
    GPU_RUNG("one thread an assignment counts those before it", router_drop,
             GPU_DECLARES("routed tokens_per_expert", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(permute_plan) = {
    GPU_RUNG("one thread an expert walks all choices", permute_plan,
             GPU_DECLARES("row_token row_entry tokens_per_expert token_row", GPU_ELEMENTWISE(0))),
    GPU_RUNG("one warp an expert, 32 choices at a time, places by ballots", permute_plan,
             GPU_DECLARES("row_token row_entry tokens_per_expert token_row", GPU_ELEMENTWISE(0))),
    GPU_RUNG_IF("a counting sort: blocks count their choices, then place them", permute_plan, plan_sort_bytes,
                plan_sorts, NULL, GPU_SM_80,
                GPU_DECLARES("row_token row_entry tokens_per_expert token_row", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
