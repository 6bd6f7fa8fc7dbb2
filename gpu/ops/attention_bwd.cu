/* Attention backward.  docs/OPS.md 5.
 *
 *   k0  one thread for each query and head (dq) and for each key and     fp32, sequential fma
 *       group (dk, dv); scores are computed again for each block of 32
 *       columns
 *   k1  one warp for four rows (query, head), or for four keys of a      fp32, sequential fma
 *       group; tiles of 32 keys (queries) in shared memory, a lane
 *       computes p and dS of its key (query) with the four rows, then
 *       a lane owns the output elements lane, lane + 32, ...
 *   k2  matrix units: attention_bwd_mma.cu                               bf16 operands, tensor core
 *   k3  warpgroups and tensor maps (capability 9.0 alone):               as k2
 *       attention_bwd_sm90.cu
 *
 * D = sum dO O comes first, into the workspace.  In k0 and k1, dk and dv sum over the heads of the group, then over the
 * queries, both ascending, in one chain: no atomics. */
#include "gpu/ops/attention.cuh"

template <class T>
__global__ void attention_delta(float *delta, const T *dout, const T *o, int64_t rows, int64_t dv)
{
    for (int64_t row = gpu_thread(); row < rows; row += gpu_threads())
        delta[row] = attention_dot(dout + row * dv, o + row * dv, dv);
}

/* p = exp(S - lse), what dropout keeps of it, and dS = p (dP - D) of one visible pair; `factor` of attention_factor: dP is
 * that of what is kept. */
template <class TQ, class TK>
__device__ static __forceinline__ void attention_pair(float *kept, float *ds, const TQ *q, const TK *k,
                                                      const TQ *dout, const TK *v, float lse, float delta,
                                                      float factor, const attention_args &a)
{
    const float p = expf(a.scale * attention_dot(q, k, a.d) - lse);
    *kept = p * factor;
    *ds = p * (factor * attention_dot(dout, v, a.dv) - delta);
}

template <class T>
__global__ void attention_dq_k0(T *dq, const T *dout, const T *q, const T *k, const T *v, const float *lse,
                                const float *delta, attention_args a)
{
    const int64_t rows = a.seq_q * a.batch * a.heads;
    for (int64_t row = gpu_thread(); row < rows; row += gpu_threads()) {
        const int64_t token = row / a.heads, head = row % a.heads, b = token % a.batch;
        const int64_t group = head / (a.heads / a.groups);
        for (int64_t first = 0; first < a.d; first += ATTENTION_CHUNK) {
            float acc[ATTENTION_CHUNK] = {0.0f};
            const int n = min((int)(a.d - first), (int)ATTENTION_CHUNK);
            for (int64_t s = 0; s < a.seq_k; ++s) {
                const int64_t j = s * a.batch + b, kr = j * a.groups + group;
                if (!attention_visible(a, token, j))
                    continue;
                float p, ds;
                attention_pair(&p, &ds, q + row * a.d, k + kr * a.d, dout + row * a.dv, v + kr * a.dv,
                               lse[row], delta[row], attention_factor(a, token, head, j), a);
                for (int i = 0; i < n; ++i)
                    acc[i] = fmaf(ds, gpu_load(k + kr * a.d + first + i), acc[i]);
            }
            for (int i = 0; i < n; ++i)
                gpu_store(dq + row * a.d + first + i, a.scale * acc[i]);
        }
    }
}

template <class T>
__global__ void attention_dkdv_k0(T *dk, T *dv, const T *dout, const T *q, const T *k, const T *v,
                                  const float *lse, const float *delta, attention_args a)
{
    const int64_t rows = a.seq_k * a.batch * a.groups, per_group = a.heads / a.groups;
    const int64_t widest = a.d > a.dv ? a.d : a.dv;
    for (int64_t row = gpu_thread(); row < rows; row += gpu_threads()) {
        const int64_t token = row / a.groups, group = row % a.groups, b = token % a.batch;
        for (int64_t first = 0; first < widest; first += ATTENTION_CHUNK) {
            float acc_k[ATTENTION_CHUNK] = {0.0f}, acc_v[ATTENTION_CHUNK] = {0.0f};
            const int nk = min((int)(a.d - first), (int)ATTENTION_CHUNK);
            const int nv = min((int)(a.dv - first), (int)ATTENTION_CHUNK);
            for (int64_t pair = 0; pair < per_group * a.seq_q; ++pair) {
                const int64_t i = pair % a.seq_q * a.batch + b;
                const int64_t qr = i * a.heads + group * per_group + pair / a.seq_q;
                if (!attention_visible(a, i, token))
                    continue;
                float p, ds;
                attention_pair(&p, &ds, q + qr * a.d, k + row * a.d, dout + qr * a.dv, v + row * a.dv,
                               lse[qr], delta[qr], attention_factor(a, i, qr % a.heads, token), a);
                for (int c = 0; c < nk; ++c)
                    acc_k[c] = fmaf(ds, gpu_load(q + qr * a.d + first + c), acc_k[c]);
                for (int c = 0; c < nv; ++c)
                    acc_v[c] = fmaf(p, gpu_load(dout + qr * a.dv + first + c), acc_v[c]);
            }
            for (int c = 0; c < nk; ++c)
                gpu_store(dk + row * a.d + first + c, a.scale * acc_k[c]);
            for (int c = 0; c < nv; ++c)
                gpu_store(dv + row * a.dv + first + c, acc_v[c]);
        }
    }
}

/* Blocks and rows as in attention_fwd_k1. */
template <class T, int CHUNKS>
__global__ void attention_dq_k1(T *dq, const T *dout, const T *q, const T *k, const T *v, const float *lse,
                                const float *delta, attention_args a)
{
    GPU_DYNAMIC_SHARED(float, shared);
    const int64_t rows = a.seq_q * (a.heads / a.groups);
    const int64_t blocks = (rows + ATTENTION_BLOCK_ROWS - 1) / ATTENTION_BLOCK_ROWS;
    const int64_t which = blockIdx.x / blocks, group = which % a.groups, b = which / a.groups;
    const int lane = (int)threadIdx.x, first_row = (int)threadIdx.y * ATTENTION_ROWS;
    const int64_t k_stride = a.d + 1, v_stride = a.dv + 1, row_floats = a.d + a.dv + ATTENTION_TILE;
    float *k_tile = shared, *v_tile = k_tile + ATTENTION_TILE * k_stride;
    float *q_rows = v_tile + ATTENTION_TILE * v_stride + first_row * row_floats;
    float *do_rows = q_rows + ATTENTION_ROWS * a.d, *ds_rows = do_rows + ATTENTION_ROWS * a.dv;
    GPU_SHARED_2D(unsigned, seen, ATTENTION_WARPS, ATTENTION_TILE);

    int64_t query[ATTENTION_ROWS];
    float acc[ATTENTION_ROWS][CHUNKS];
    for (int r = 0; r < ATTENTION_ROWS; ++r) {
        query[r] = attention_query(a, b, group, blockIdx.x % blocks * ATTENTION_BLOCK_ROWS + first_row + r);
        attention_load_row(q_rows + r, q, query[r], a.d);
        attention_load_row(do_rows + r, dout, query[r], a.dv);
        for (int c = 0; c < CHUNKS; ++c)
            acc[r][c] = 0.0f;
    }
    for (int64_t base = 0; base < a.seq_k; base += ATTENTION_TILE) {
        const int64_t j = base + lane;
        unsigned visible = 0;
        for (int r = 0; r < ATTENTION_ROWS; ++r)
            if (query[r] >= 0 && j < a.seq_k && attention_visible(a, query[r] / a.heads, j * a.batch + b))
                visible |= 1u << r;
        if (!__syncthreads_or((int)visible))
            continue; /* the whole block; also: the previous tile has been read by everybody */
        attention_load_tile(k_tile, k_stride, k + (b * a.groups + group) * a.d, a.batch * a.groups * a.d,
                            base, a.seq_k, a.d);
        attention_load_tile(v_tile, v_stride, v + (b * a.groups + group) * a.dv, a.batch * a.groups * a.dv,
                            base, a.seq_k, a.dv);
        __syncthreads();
        float score[ATTENTION_ROWS] = {0.0f}, dp[ATTENTION_ROWS] = {0.0f};
        const attention_dots scores = {score, q_rows, k_tile + lane * k_stride, a.d},
                             dps = {dp, do_rows, v_tile + lane * v_stride, a.dv};
        attention_warp_dots(visible != 0, &scores, &dps);
        for (int r = 0; r < ATTENTION_ROWS; ++r)
            if ((visible >> r & 1u) != 0)
                ds_rows[r * ATTENTION_TILE + lane] =
                    expf(a.scale * score[r] - lse[query[r]]) *
                    (attention_factor(a, query[r] / a.heads, query[r] % a.heads, j * a.batch + b) * dp[r] -
                     delta[query[r]]);
        seen[threadIdx.y][lane] = visible;
        const attention_adds<CHUNKS> adds = {acc, seen[threadIdx.y], ds_rows, k_tile, k_stride,
                                             a.d, nullptr,           nullptr, nullptr};
        attention_warp_adds<CHUNKS>(&adds, nullptr);
    }
    for (int r = 0; r < ATTENTION_ROWS; ++r)
        for (int c = 0; c < CHUNKS; ++c) {
            const int64_t column = lane + GPU_WARP * c;
            if (query[r] >= 0 && column < a.d)
                gpu_store(dq + query[r] * a.d + column, a.scale * acc[r][c]);
        }
}

/* A block takes ATTENTION_BLOCK_ROWS consecutive keys of one (batch row, group). */
template <class T, int CHUNKS>
__global__ void attention_dkdv_k1(T *dk, T *dv, const T *dout, const T *q, const T *k, const T *v,
                                  const float *lse, const float *delta, attention_args a)
{
    GPU_DYNAMIC_SHARED(float, shared);
    const int64_t per_group = a.heads / a.groups;
    const int64_t blocks = (a.seq_k + ATTENTION_BLOCK_ROWS - 1) / ATTENTION_BLOCK_ROWS;
    const int64_t which = blockIdx.x / blocks, group = which % a.groups, b = which / a.groups;
    const int lane = (int)threadIdx.x, first_row = (int)threadIdx.y * ATTENTION_ROWS;
    const int64_t s = blockIdx.x % blocks * ATTENTION_BLOCK_ROWS + first_row; /* first key of the warp */
    const int64_t q_stride = a.d + 1, do_stride = a.dv + 1, row_floats = a.d + a.dv + 2 * ATTENTION_TILE;
    float *q_tile = shared, *do_tile = q_tile + ATTENTION_TILE * q_stride;
    float *k_rows = do_tile + ATTENTION_TILE * do_stride + first_row * row_floats;
    float *v_rows = k_rows + ATTENTION_ROWS * a.d, *p_rows = v_rows + ATTENTION_ROWS * a.dv,
          *ds_rows = p_rows + ATTENTION_ROWS * ATTENTION_TILE;
    GPU_SHARED_2D(unsigned, seen, ATTENTION_WARPS, ATTENTION_TILE);

    float acc_k[ATTENTION_ROWS][CHUNKS], acc_v[ATTENTION_ROWS][CHUNKS];
    for (int r = 0; r < ATTENTION_ROWS; ++r) {
        const int64_t key = s + r < a.seq_k ? ((s + r) * a.batch + b) * a.groups + group : -1;
        attention_load_row(k_rows + r, k, key, a.d);
        attention_load_row(v_rows + r, v, key, a.dv);
        for (int c = 0; c < CHUNKS; ++c)
            acc_k[r][c] = acc_v[r][c] = 0.0f;
    }
    for (int64_t head = group * per_group; head < (group + 1) * per_group; ++head)
        for (int64_t base = 0; base < a.seq_q; base += ATTENTION_TILE) {
            const int64_t i = base + lane, token = i * a.batch + b;
            unsigned visible = 0;
            for (int r = 0; r < ATTENTION_ROWS; ++r)
                if (s + r < a.seq_k && i < a.seq_q && attention_visible(a, token, (s + r) * a.batch + b))
                    visible |= 1u << r;
            if (!__syncthreads_or((int)visible))
                continue;
            attention_load_tile(q_tile, q_stride, q + (b * a.heads + head) * a.d, a.batch * a.heads * a.d,
                                base, a.seq_q, a.d);
            attention_load_tile(do_tile, do_stride, dout + (b * a.heads + head) * a.dv,
                                a.batch * a.heads * a.dv, base, a.seq_q, a.dv);
            __syncthreads();
            float score[ATTENTION_ROWS], dp[ATTENTION_ROWS];
            const attention_dots scores = {score, k_rows, q_tile + lane * q_stride, a.d},
                                 dps = {dp, v_rows, do_tile + lane * do_stride, a.dv};
            attention_warp_dots(visible != 0, &scores, &dps);
            if (visible != 0) {
                const float my_lse = lse[token * a.heads + head], my_delta = delta[token * a.heads + head];
                for (int r = 0; r < ATTENTION_ROWS; ++r) {
                    const float p = expf(a.scale * score[r] - my_lse);
                    const float factor = (visible >> r & 1u) != 0
                                             ? attention_factor(a, token, head, (s + r) * a.batch + b)
                                             : 0.0f;
                    p_rows[r * ATTENTION_TILE + lane] = p * factor;
                    ds_rows[r * ATTENTION_TILE + lane] = p * (factor * dp[r] - my_delta);
                }
            }
            seen[threadIdx.y][lane] = visible;
            const attention_adds<CHUNKS> keys = {acc_k, seen[threadIdx.y], ds_rows, q_tile, q_stride,
                                                 a.d,   nullptr,           nullptr, nullptr},
                                         values = {acc_v, seen[threadIdx.y], p_rows,  do_tile, do_stride,
                                                   a.dv,  nullptr,           nullptr, nullptr};
            attention_warp_adds<CHUNKS>(&keys, &values);
        }
    for (int r = 0; r < ATTENTION_ROWS; ++r) {
        const int64_t key = ((s + r) * a.batch + b) * a.groups + group;
        for (int c = 0; c < CHUNKS; ++c) {
            const int64_t column = lane + GPU_WARP * c;
            if (s + r < a.seq_k && column < a.d)
                gpu_store(dk + key * a.d + column, a.scale * acc_k[r][c]);
            if (s + r < a.seq_k && column < a.dv)
                gpu_store(dv + key * a.dv + column, acc_v[r][c]);
        }
    }
}

template <class T>
static cudaError_t launch_k0(const gpu_attention_bwd_tensors *t, const float *delta, const attention_args &a,
                             cudaStream_t stream)
{
    const T *dout = (const T *)t->dout.data, *q = (const T *)t->q.data;
    const T *k = (const T *)t->k.data, *v = (const T *)t->v.data;
    const float *lse = (const float *)t->lse.data;
    cudaError_t e =
        GPU_LAUNCH_NO_BARRIER(attention_dq_k0<T>, gpu_grid(a.seq_q * a.batch * a.heads, GPU_BLOCK),
                              dim3(GPU_BLOCK), 0, stream, (T *)t->dq.data, dout, q, k, v, lse, delta, a);
    if (e != cudaSuccess)
        return e;
    return GPU_LAUNCH_NO_BARRIER(attention_dkdv_k0<T>, gpu_grid(a.seq_k * a.batch * a.groups, GPU_BLOCK),
                                 dim3(GPU_BLOCK), 0, stream, (T *)t->dk.data, (T *)t->dv.data, dout, q, k, v,
                                 lse, delta, a);
}

/* Dynamic shared memory of attention_dkdv_k1, the larger of the two. */
static size_t dkdv_k1_bytes(int64_t d, int64_t dv)
{
    return sizeof(float) *
           (size_t)(ATTENTION_TILE * (d + dv + 2) + ATTENTION_BLOCK_ROWS * (d + dv + 2 * ATTENTION_TILE));
}

template <class T, int CHUNKS>
static cudaError_t launch_k1(const gpu_attention_bwd_tensors *t, const float *delta, const attention_args &a,
                             cudaStream_t stream)
{
    const T *dout = (const T *)t->dout.data, *q = (const T *)t->q.data;
    const T *k = (const T *)t->k.data, *v = (const T *)t->v.data;
    const float *lse = (const float *)t->lse.data;
    const dim3 block(GPU_WARP, ATTENTION_WARPS);
    const int64_t tiles = ATTENTION_TILE * (a.d + a.dv + 2);
    const int64_t q_blocks =
        (a.seq_q * (a.heads / a.groups) + ATTENTION_BLOCK_ROWS - 1) / ATTENTION_BLOCK_ROWS;
    const int64_t k_blocks = (a.seq_k + ATTENTION_BLOCK_ROWS - 1) / ATTENTION_BLOCK_ROWS;
    const size_t q_bytes =
        sizeof(float) * (size_t)(tiles + ATTENTION_BLOCK_ROWS * (a.d + a.dv + ATTENTION_TILE));
    const size_t k_bytes = dkdv_k1_bytes(a.d, a.dv);
    cudaError_t e = attention_allow_shared(attention_dq_k1<T, CHUNKS>, q_bytes);
    if (e == cudaSuccess)
        e = attention_allow_shared(attention_dkdv_k1<T, CHUNKS>, k_bytes);
    if (e == cudaSuccess && q_blocks > 0)
        e = GPU_LAUNCH((attention_dq_k1<T, CHUNKS>), dim3((unsigned)(q_blocks * a.batch * a.groups)), block,
                       q_bytes, stream, (T *)t->dq.data, dout, q, k, v, lse, delta, a);
    if (e == cudaSuccess && k_blocks > 0)
        e = GPU_LAUNCH((attention_dkdv_k1<T, CHUNKS>), dim3((unsigned)(k_blocks * a.batch * a.groups)), block,
                       k_bytes, stream, (T *)t->dk.data, (T *)t->dv.data, dout, q, k, v, lse, delta, a);
    return e;
}

template <class T>
static cudaError_t launch_bwd(int variant, const gpu_attention_bwd_tensors *t, float *delta,
                              const attention_args &a, cudaStream_t stream)
{
    const int64_t rows = a.seq_q * a.batch * a.heads;
    const cudaError_t e =
        GPU_LAUNCH_NO_BARRIER(attention_delta<T>, gpu_grid(rows, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                              delta, (const T *)t->dout.data, (const T *)t->o.data, rows, a.dv);
    if (e != cudaSuccess)
        return e;
    if (variant == 0)
        return launch_k0<T>(t, delta, a, stream);
    switch (attention_chunks(a.d > a.dv ? a.d : a.dv)) {
    case 1:
        return launch_k1<T, 1>(t, delta, a, stream);
    case 2:
        return launch_k1<T, 2>(t, delta, a, stream);
    case 4:
        return launch_k1<T, 4>(t, delta, a, stream);
    default:
        return launch_k1<T, 8>(t, delta, a, stream);
    }
}

static size_t bwd_workspace(const gpu_ctx *, const gpu_operands *o)
{
    const attention_desc d = attention_desc_of(o);
    return sizeof(float) * (size_t)d.seq_q * (size_t)d.batch * (size_t)d.heads;
}

static assay_status attention_bwd(const gpu_work *w)
{
    const attention_desc desc = attention_desc_of(w->o), *d = &desc;
    const gpu_tensor dq = gpu_operand(w->o, "dq"), dk = gpu_operand(w->o, "dk"), dv = gpu_operand(w->o, "dv"),
                     dout = gpu_operand(w->o, "do"), q = gpu_operand(w->o, "q"), k = gpu_operand(w->o, "k"),
                     v = gpu_operand(w->o, "v"), o = gpu_operand(w->o, "o"), lse = gpu_operand(w->o, "lse");
    const char *op = "attention_bwd";
    ASSAY_TRY(gpu_attention_check(op, d, q, k, v));
    const int64_t rows = d->seq_q * d->batch * d->heads;
    const struct {
        const char *name;
        gpu_tensor t;
        int64_t count;
    } operand[] = {{"dq", dq, gpu_tensor_count(q)},
                   {"dk", dk, gpu_tensor_count(k)},
                   {"dv", dv, gpu_tensor_count(v)},
                   {"do", dout, rows * d->head_dim_v},
                   {"o", o, rows * d->head_dim_v}};
    for (size_t i = 0; i < sizeof operand / sizeof operand[0]; ++i) {
        ASSAY_TRY(gpu_check_tensor(op, operand[i].name, operand[i].t, q.dtype, q.dtype));
        ASSAY_TRY(gpu_check_count(op, operand[i].name, operand[i].t, operand[i].count));
    }
    ASSAY_TRY(gpu_check_tensor(op, "lse", lse, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_count(op, "lse", lse, rows));
    ASSAY_TRY(gpu_check_workspace(op, w->ctx,
                                  (w->variant == 3   ? gpu_attention_bwd_sm90_workspace
                                   : w->variant == 2 ? gpu_attention_bwd_mma_workspace
                                                     : bwd_workspace)(w->ctx, w->o)));
    const gpu_attention_bwd_tensors t = {dq, dk, dv, dout, q, k, v, o, lse};
    if (w->variant == 3)
        return gpu_attention_bwd_sm90(w, &t, attention_args_make(d));
    if (w->variant == 2)
        GPU_LAUNCHED(gpu_attention_bwd_mma(&t, w->ctx->workspace, gpu_attention_scale2(w->o),
                                           attention_args_make(d), w->stream),
                     op);
    else if (gpu_tensor_count(q) > 0 || gpu_tensor_count(k) > 0)
        GPU_LAUNCHED(GPU_BY_ACT(q.dtype, launch_bwd, w->variant, &t, (float *)w->ctx->workspace,
                                attention_args_make(d), w->stream),
                     op);
    return ASSAY_OK;
}

/* Heads of 256 columns need 101 KB, devices of 8.6, 8.9 and 12.0 have 99. */
static bool fits_k1(const gpu_ctx *ctx, const gpu_operands *o)
{
    const attention_desc d = attention_desc_of(o);
    const size_t seen = sizeof(unsigned) * ATTENTION_WARPS * ATTENTION_TILE; /* its own */
    return dkdv_k1_bytes(d.head_dim, d.head_dim_v) + seen <= ctx->shared_most;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
GPU_LADDER(attention_bwd) = {
    GPU_RUNG_IF("one thread a query and head (dq), a key and group (dk, dv)", attention_bwd, bwd_workspace,
                NULL, NULL, GPU_SM_80, GPU_DECLARES("dq dk dv", GPU_SEQUENTIAL(GPU_ULP_EXP))),
    GPU_RUNG_IF("one warp for four rows or keys, tiles of 32 in shared memory", attention_bwd, bwd_workspace,
                fits_k1, NULL, GPU_SM_80, GPU_DECLARES("dq dk dv", GPU_SEQUENTIAL(GPU_ULP_EXP))),
    GPU_RUNG_BF16("BF16", 0,
                  "matrix units, FlashAttention-2 form: bf16, head dimensions of multiples of 8, no dropout",
                  attention_bwd, gpu_attention_bwd_mma_workspace, gpu_attention_takes_mma, NULL, GPU_SM_80,
                  GPU_ADAPTS("dq dk dv", GPU_TENSOR_CORE(GPU_ULP_EXP, 0), gpu_mma_arith, GPU_MMA_ARITH)),
    GPU_RUNG_BF16("BF16", GPU_SM_90,
                  "warpgroups and tensor maps: the calls of k2 with a query and a key or more", attention_bwd,
                  gpu_attention_bwd_sm90_workspace, gpu_attention_bwd_takes_sm90, gpu_attention_sm90_pays,
                  GPU_SM_90,
                  GPU_ADAPTS("dq dk dv", GPU_TENSOR_CORE(GPU_ULP_EXP, 0), gpu_mma_arith, GPU_MMA_ARITH)),
    GPU_LADDER_END,
};
