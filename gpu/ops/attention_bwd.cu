/* Attention backward.  docs/OPS.md 5.
 *
 *   k0  one thread for each query and head (dq) and for each key and group    fp32, sequential fma
 *       (dk, dv); scores are computed again for each block of 32 columns
 *   k1  one warp for each query and head, or for each key and group; tiles    fp32, sequential fma
 *       of 32 keys (queries) in shared memory, a lane computes p and dS of
 *       one pair, then a lane owns the output elements lane, lane + 32, ...
 *
 * D = sum dO O comes first, into the workspace.  dk and dv sum over the heads of the group, then over the
 * queries, both ascending, in one chain: no atomics. */
#include "gpu/ops/attention.cuh"

template <class T>
__global__ void attention_delta(float *delta, const T *dout, const T *o, int64_t rows, int64_t dv)
{
    for (int64_t row = gpu_thread(); row < rows; row += gpu_threads())
        delta[row] = attention_dot(dout + row * dv, o + row * dv, dv);
}

/* p = exp(S - lse) and dS = p (dP - D) of one visible pair. */
template <class TQ, class TK>
__device__ static __forceinline__ void attention_pair(float *p, float *ds, const TQ *q, const TK *k,
                                                      const TQ *dout, const TK *v, float lse, float delta,
                                                      const attention_args &a)
{
    *p = expf(a.scale * attention_dot(q, k, a.d) - lse);
    *ds = *p * (attention_dot(dout, v, a.dv) - delta);
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
                               lse[row], delta[row], a);
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
                               lse[qr], delta[qr], a);
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
    const int64_t per_group = a.heads / a.groups, rows = a.seq_q * per_group;
    const int64_t blocks = (rows + ATTENTION_WARPS - 1) / ATTENTION_WARPS;
    const int64_t which = blockIdx.x / blocks, group = which % a.groups, b = which / a.groups;
    const int lane = (int)threadIdx.x, warp = (int)threadIdx.y;
    const int64_t row = blockIdx.x % blocks * ATTENTION_WARPS + warp;
    const bool active = row < rows;
    const int64_t token = active ? row / per_group * a.batch + b : 0;
    const int64_t query = token * a.heads + (active ? group * per_group + row % per_group : 0);
    const int64_t k_stride = a.d + 1, v_stride = a.dv + 1;
    float *k_tile = shared, *v_tile = k_tile + ATTENTION_TILE * k_stride;
    float *q_row = v_tile + ATTENTION_TILE * v_stride + warp * (a.d + a.dv + ATTENTION_TILE);
    float *do_row = q_row + a.d, *ds_row = do_row + a.dv;

    for (int64_t i = lane; i < a.d; i += GPU_WARP)
        q_row[i] = active ? gpu_load(q + query * a.d + i) : 0.0f;
    for (int64_t i = lane; i < a.dv; i += GPU_WARP)
        do_row[i] = active ? gpu_load(dout + query * a.dv + i) : 0.0f;
    const float my_lse = active ? lse[query] : 0.0f, my_delta = active ? delta[query] : 0.0f;
    float acc[CHUNKS] = {0.0f};
    for (int64_t base = 0; base < a.seq_k; base += ATTENTION_TILE) {
        const int64_t j = base + lane;
        const bool visible = active && j < a.seq_k && attention_visible(a, token, j * a.batch + b);
        if (!__syncthreads_or(visible))
            continue; /* the whole block; also: the previous tile has been read by everybody */
        attention_load_tile(k_tile, k_stride, k + (b * a.groups + group) * a.d, a.batch * a.groups * a.d,
                            base, a.seq_k, a.d);
        attention_load_tile(v_tile, v_stride, v + (b * a.groups + group) * a.dv, a.batch * a.groups * a.dv,
                            base, a.seq_k, a.dv);
        __syncthreads();
        float p = 0.0f, ds = 0.0f;
        if (visible)
            attention_pair(&p, &ds, q_row, k_tile + lane * k_stride, do_row, v_tile + lane * v_stride, my_lse,
                           my_delta, a);
        const unsigned mask = __ballot_sync(gpu_all_lanes, visible);
        ds_row[lane] = ds;
        __syncwarp();
        for (int i = 0; i < ATTENTION_TILE; ++i) {
            if ((mask >> i & 1u) == 0)
                continue;
            for (int c = 0; c < CHUNKS; ++c) {
                const int64_t column = lane + GPU_WARP * c;
                if (column < a.d)
                    acc[c] = fmaf(ds_row[i], k_tile[i * k_stride + column], acc[c]);
            }
        }
        __syncwarp();
    }
    if (!active)
        return;
    for (int c = 0; c < CHUNKS; ++c) {
        const int64_t column = lane + GPU_WARP * c;
        if (column < a.d)
            gpu_store(dq + query * a.d + column, a.scale * acc[c]);
    }
}

/* A block takes ATTENTION_WARPS consecutive keys of one (batch row, group). */
template <class T, int CHUNKS>
__global__ void attention_dkdv_k1(T *dk, T *dv, const T *dout, const T *q, const T *k, const T *v,
                                  const float *lse, const float *delta, attention_args a)
{
    GPU_DYNAMIC_SHARED(float, shared);
    const int64_t per_group = a.heads / a.groups;
    const int64_t blocks = (a.seq_k + ATTENTION_WARPS - 1) / ATTENTION_WARPS;
    const int64_t which = blockIdx.x / blocks, group = which % a.groups, b = which / a.groups;
    const int lane = (int)threadIdx.x, warp = (int)threadIdx.y;
    const int64_t s = blockIdx.x % blocks * ATTENTION_WARPS + warp;
    const bool active = s < a.seq_k;
    const int64_t token = active ? s * a.batch + b : 0, key = token * a.groups + group;
    const int64_t q_stride = a.d + 1, do_stride = a.dv + 1;
    float *q_tile = shared, *do_tile = q_tile + ATTENTION_TILE * q_stride;
    float *k_row = do_tile + ATTENTION_TILE * do_stride + warp * (a.d + a.dv + 2 * ATTENTION_TILE);
    float *v_row = k_row + a.d, *p_row = v_row + a.dv, *ds_row = p_row + ATTENTION_TILE;

    for (int64_t i = lane; i < a.d; i += GPU_WARP)
        k_row[i] = active ? gpu_load(k + key * a.d + i) : 0.0f;
    for (int64_t i = lane; i < a.dv; i += GPU_WARP)
        v_row[i] = active ? gpu_load(v + key * a.dv + i) : 0.0f;
    float acc_k[CHUNKS] = {0.0f}, acc_v[CHUNKS] = {0.0f};
    for (int64_t head = group * per_group; head < (group + 1) * per_group; ++head)
        for (int64_t base = 0; base < a.seq_q; base += ATTENTION_TILE) {
            const int64_t i = base + lane;
            const bool visible = active && i < a.seq_q && attention_visible(a, i * a.batch + b, token);
            if (!__syncthreads_or(visible))
                continue;
            attention_load_tile(q_tile, q_stride, q + (b * a.heads + head) * a.d, a.batch * a.heads * a.d,
                                base, a.seq_q, a.d);
            attention_load_tile(do_tile, do_stride, dout + (b * a.heads + head) * a.dv,
                                a.batch * a.heads * a.dv, base, a.seq_q, a.dv);
            __syncthreads();
            float p = 0.0f, ds = 0.0f;
            if (visible) {
                const int64_t query = (i * a.batch + b) * a.heads + head;
                attention_pair(&p, &ds, q_tile + lane * q_stride, k_row, do_tile + lane * do_stride, v_row,
                               lse[query], delta[query], a);
            }
            const unsigned mask = __ballot_sync(gpu_all_lanes, visible);
            p_row[lane] = p;
            ds_row[lane] = ds;
            __syncwarp();
            for (int t = 0; t < ATTENTION_TILE; ++t) {
                if ((mask >> t & 1u) == 0)
                    continue;
                for (int c = 0; c < CHUNKS; ++c) {
                    const int64_t column = lane + GPU_WARP * c;
                    if (column < a.d)
                        acc_k[c] = fmaf(ds_row[t], q_tile[t * q_stride + column], acc_k[c]);
                    if (column < a.dv)
                        acc_v[c] = fmaf(p_row[t], do_tile[t * do_stride + column], acc_v[c]);
                }
            }
            __syncwarp();
        }
    if (!active)
        return;
    for (int c = 0; c < CHUNKS; ++c) {
        const int64_t column = lane + GPU_WARP * c;
        if (column < a.d)
            gpu_store(dk + key * a.d + column, a.scale * acc_k[c]);
        if (column < a.dv)
            gpu_store(dv + key * a.dv + column, acc_v[c]);
    }
}

typedef struct bwd_tensors {
    gpu_tensor dq, dk, dv, dout, q, k, v, o, lse;
} bwd_tensors;

template <class T>
static cudaError_t launch_k0(const bwd_tensors *t, const float *delta, const attention_args &a,
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

template <class T, int CHUNKS>
static cudaError_t launch_k1(const bwd_tensors *t, const float *delta, const attention_args &a,
                             cudaStream_t stream)
{
    const T *dout = (const T *)t->dout.data, *q = (const T *)t->q.data;
    const T *k = (const T *)t->k.data, *v = (const T *)t->v.data;
    const float *lse = (const float *)t->lse.data;
    const dim3 block(GPU_WARP, ATTENTION_WARPS);
    const int64_t tiles = ATTENTION_TILE * (a.d + a.dv + 2);
    const int64_t q_blocks = (a.seq_q * (a.heads / a.groups) + ATTENTION_WARPS - 1) / ATTENTION_WARPS;
    const int64_t k_blocks = (a.seq_k + ATTENTION_WARPS - 1) / ATTENTION_WARPS;
    const size_t q_bytes = sizeof(float) * (size_t)(tiles + ATTENTION_WARPS * (a.d + a.dv + ATTENTION_TILE));
    const size_t k_bytes =
        sizeof(float) * (size_t)(tiles + ATTENTION_WARPS * (a.d + a.dv + 2 * ATTENTION_TILE));
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
static cudaError_t launch_bwd(int variant, const bwd_tensors *t, float *delta, const attention_args &a,
                              cudaStream_t stream)
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

size_t gpu_attention_bwd_workspace(const gpu_ctx *ctx, const gpu_attention_desc *d)
{
    (void)ctx;
    return sizeof(float) * (size_t)d->seq_q * (size_t)d->batch * (size_t)d->heads;
}

assay_status gpu_attention_bwd(gpu_ctx *ctx, gpu_tensor dq, gpu_tensor dk, gpu_tensor dv, gpu_tensor dout,
                               gpu_tensor q, gpu_tensor k, gpu_tensor v, gpu_tensor o, gpu_tensor lse,
                               const gpu_attention_desc *d, cudaStream_t stream)
{
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
    ASSAY_TRY(gpu_check_workspace(op, ctx, gpu_attention_bwd_workspace(ctx, d)));
    const int variant = gpu_variant(ctx, GPU_FAMILY_ATTENTION, 1, 1);
    const bwd_tensors t = {dq, dk, dv, dout, q, k, v, o, lse};
    if (gpu_tensor_count(q) > 0 || gpu_tensor_count(k) > 0)
        GPU_LAUNCHED(GPU_BY_ACT(q.dtype, launch_bwd, variant, &t, (float *)ctx->workspace,
                                attention_args_make(d), stream),
                     op);
    gpu_declare(ctx, variant, gpu_arith_sequential(GPU_ULP_EXP));
    return ASSAY_OK;
}
