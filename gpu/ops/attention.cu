/* Attention forward.  docs/OPS.md 5.
 *
 *   k0  one thread for each query and head; three passes over the     fp32, sequential fma, two-pass
 *       keys: maximum, sum, weighted values
 *   k1  one warp for four rows (query, head), online softmax over     fp32, sequential fma, tile 32
 *       tiles of 32 keys (Milakov & Gimelshein 2018, Dao et al.
 *       2022): a tile of keys and values is read once by a block of
 *       16 rows into shared memory; a lane computes the scores of one
 *       key, the maximum is one warp reduction, then a lane owns the
 *       output elements lane, lane + 32, ...
 *   k2  matrix units: attention_mma.cu                                bf16 operands, tensor core
 *   k3  warpgroups and tensor maps (capability 9.0 alone):            as k2
 *       attention_sm90.cu
 *
 * In k0 and k1, every score, the sum of exponentials and every output element is one chain in ascending order. */
#include "gpu/ops/attention.cuh"

/* exp(s - reference) never meets inf - inf because of an all -inf row. */
__device__ static __forceinline__ float finite_max(float m)
{
    return m == -INFINITY ? 0.0f : m;
}

template <class T>
__global__ void attention_fwd_k0(T *o, float *lse, const T *q, const T *k, const T *v, attention_args a)
{
    const int64_t rows = a.seq_q * a.batch * a.heads;
    for (int64_t row = gpu_thread(); row < rows; row += gpu_threads()) {
        const int64_t token = row / a.heads, head = row % a.heads, b = token % a.batch;
        const int64_t group = head / (a.heads / a.groups);
        const T *qr = q + row * a.d;
        float m = -INFINITY;
        bool any = false;
        for (int64_t s = 0; s < a.seq_k; ++s) {
            const int64_t j = s * a.batch + b;
            if (!attention_visible(a, token, j))
                continue;
            any = true;
            m = fmaxf(m, a.scale * attention_dot(qr, k + (j * a.groups + group) * a.d, a.d));
        }
        m = finite_max(m);
        float sum = 0.0f;
        for (int64_t s = 0; s < a.seq_k; ++s) {
            const int64_t j = s * a.batch + b;
            if (attention_visible(a, token, j))
                sum += expf(a.scale * attention_dot(qr, k + (j * a.groups + group) * a.d, a.d) - m);
        }
        lse[row] = any ? m + logf(sum) : -INFINITY;
        for (int64_t first = 0; first < a.dv; first += ATTENTION_CHUNK) {
            float acc[ATTENTION_CHUNK] = {0.0f};
            const int n = min((int)(a.dv - first), (int)ATTENTION_CHUNK);
            for (int64_t s = 0; s < a.seq_k; ++s) {
                const int64_t j = s * a.batch + b;
                if (!attention_visible(a, token, j))
                    continue;
                const float p = expf(a.scale * attention_dot(qr, k + (j * a.groups + group) * a.d, a.d) - m) *
                                attention_factor(a, token, head, j);
                const T *vr = v + (j * a.groups + group) * a.dv + first;
                for (int i = 0; i < n; ++i)
                    acc[i] = fmaf(p, gpu_load(vr + i), acc[i]);
            }
            for (int i = 0; i < n; ++i)
                gpu_store(o + row * a.dv + first + i, any ? acc[i] / sum : 0.0f);
        }
    }
}

/* A block takes ATTENTION_BLOCK_ROWS consecutive rows of one (batch row, group); a row is a (query, head of
 * the group), head fastest, so that all rows of a block read the same keys. */
template <class T, int CHUNKS>
__global__ void attention_fwd_k1(T *o, float *lse, const T *q, const T *k, const T *v, attention_args a)
{
    GPU_DYNAMIC_SHARED(float, shared);
    const int64_t rows = a.seq_q * (a.heads / a.groups);
    const int64_t blocks = (rows + ATTENTION_BLOCK_ROWS - 1) / ATTENTION_BLOCK_ROWS;
    const int64_t which = blockIdx.x / blocks, group = which % a.groups, b = which / a.groups;
    const int lane = (int)threadIdx.x, first_row = (int)threadIdx.y * ATTENTION_ROWS;
    const int64_t k_stride = a.d + 1; /* lanes read one column: an odd stride keeps them on different banks */
    float *k_tile = shared, *v_tile = k_tile + ATTENTION_TILE * k_stride;
    float *q_rows = v_tile + ATTENTION_TILE * a.dv + first_row * a.d;
    float *p_rows = v_tile + ATTENTION_TILE * a.dv + ATTENTION_BLOCK_ROWS * a.d + first_row * ATTENTION_TILE;
    /* the same after dropout */
    float *kept_rows = a.drops ? p_rows + ATTENTION_BLOCK_ROWS * ATTENTION_TILE : p_rows;
    GPU_SHARED_2D(unsigned, seen, ATTENTION_WARPS,
                  ATTENTION_TILE); /* bit r: row r sees the key of the lane */

    int64_t query[ATTENTION_ROWS];
    float m[ATTENTION_ROWS], sum[ATTENTION_ROWS], acc[ATTENTION_ROWS][CHUNKS];
    unsigned any = 0; /* bit r: row r has seen a key */
    for (int r = 0; r < ATTENTION_ROWS; ++r) {
        query[r] = attention_query(a, b, group, blockIdx.x % blocks * ATTENTION_BLOCK_ROWS + first_row + r);
        attention_load_row(q_rows + r, q, query[r], a.d);
        m[r] = -INFINITY;
        sum[r] = 0.0f;
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
        attention_load_tile(v_tile, a.dv, v + (b * a.groups + group) * a.dv, a.batch * a.groups * a.dv, base,
                            a.seq_k, a.dv);
        __syncthreads();
        float score[ATTENTION_ROWS] = {0.0f};
        const attention_dots dots = {score, q_rows, k_tile + lane * k_stride, a.d};
        attention_warp_dots(visible != 0, &dots, nullptr);
        for (int r = 0; r < ATTENTION_ROWS; ++r) {
            const bool mine = (visible >> r & 1u) != 0;
            const float s = mine ? a.scale * score[r] : -INFINITY;
            const float larger = fmaxf(m[r], gpu_warp_max(s)), reference = finite_max(larger);
            /* Before the first finite score there is nothing to rescale: sum and acc are 0, or NaN. */
            const float rescale = m[r] == -INFINITY ? 1.0f : expf(m[r] - reference);
            const float p = mine ? expf(s - reference) : 0.0f;
            p_rows[r * ATTENTION_TILE + lane] = p;
            if (a.drops)
                kept_rows[r * ATTENTION_TILE + lane] =
                    mine ? p * attention_kept(a, query[r] / a.heads, query[r] % a.heads, j * a.batch + b)
                         : 0.0f;
            m[r] = larger;
            sum[r] *= rescale;
            for (int c = 0; c < CHUNKS; ++c)
                acc[r][c] *= rescale;
        }
        seen[threadIdx.y][lane] = visible;
        /* sum: what is dropped counts in the softmax */
        const attention_adds<CHUNKS> adds = {
            acc, seen[threadIdx.y], kept_rows, v_tile, a.dv, a.dv, p_rows, sum, &any};
        attention_warp_adds<CHUNKS>(&adds, nullptr);
    }
    for (int r = 0; r < ATTENTION_ROWS; ++r) {
        const bool some = (any >> r & 1u) != 0;
        if (query[r] < 0)
            continue;
        for (int c = 0; c < CHUNKS; ++c) {
            const int64_t column = lane + GPU_WARP * c;
            if (column < a.dv)
                gpu_store(o + query[r] * a.dv + column, some ? acc[r][c] / sum[r] : 0.0f);
        }
        if (lane == 0)
            lse[query[r]] = some ? finite_max(m[r]) + logf(sum[r]) : -INFINITY;
    }
}

template <class T, int CHUNKS>
static cudaError_t launch_k1(gpu_tensor o, gpu_tensor lse, gpu_tensor q, gpu_tensor k, gpu_tensor v,
                             const attention_args &a, cudaStream_t stream)
{
    const int64_t rows = a.seq_q * (a.heads / a.groups);
    const int64_t blocks = (rows + ATTENTION_BLOCK_ROWS - 1) / ATTENTION_BLOCK_ROWS * a.batch * a.groups;
    const size_t bytes =
        sizeof(float) * (size_t)(ATTENTION_TILE * (a.d + 1 + a.dv) +
                                 ATTENTION_BLOCK_ROWS * (a.d + (a.drops ? 2 : 1) * ATTENTION_TILE));
    const cudaError_t e = attention_allow_shared(attention_fwd_k1<T, CHUNKS>, bytes);
    if (e != cudaSuccess)
        return e;
    return GPU_LAUNCH((attention_fwd_k1<T, CHUNKS>), dim3((unsigned)blocks), dim3(GPU_WARP, ATTENTION_WARPS),
                      bytes, stream, (T *)o.data, (float *)lse.data, (const T *)q.data, (const T *)k.data,
                      (const T *)v.data, a);
}

template <class T>
static cudaError_t launch_fwd(int variant, gpu_tensor o, gpu_tensor lse, gpu_tensor q, gpu_tensor k,
                              gpu_tensor v, const attention_args &a, cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(attention_fwd_k0<T>, gpu_grid(a.seq_q * a.batch * a.heads, GPU_BLOCK),
                                     dim3(GPU_BLOCK), 0, stream, (T *)o.data, (float *)lse.data,
                                     (const T *)q.data, (const T *)k.data, (const T *)v.data, a);
    switch (attention_chunks(a.dv)) {
    case 1:
        return launch_k1<T, 1>(o, lse, q, k, v, a, stream);
    case 2:
        return launch_k1<T, 2>(o, lse, q, k, v, a, stream);
    case 4:
        return launch_k1<T, 4>(o, lse, q, k, v, a, stream);
    default:
        return launch_k1<T, 8>(o, lse, q, k, v, a, stream);
    }
}

static assay_status check_sizes(const char *op, const attention_desc *d)
{
    int64_t tokens = 0, n = 0;
    ASSAY_CHECK(d->batch >= 0 && d->seq_q >= 0 && d->seq_k >= 0 && d->window >= 0, ASSAY_INVALID_ARGUMENT,
                "%s: expected sizes of 0 or more, found batch %" PRId64 ", seq_q %" PRId64 ", seq_k %" PRId64
                ", window %" PRId64,
                op, d->batch, d->seq_q, d->seq_k, d->window);
    ASSAY_CHECK(d->groups >= 1 && d->heads >= 1 && d->heads % d->groups == 0, ASSAY_INVALID_ARGUMENT,
                "%s: heads: expected a positive multiple of groups %" PRId64 ", found %" PRId64, op,
                d->groups, d->heads);
    ASSAY_CHECK(d->head_dim >= 1 && d->head_dim_v >= 1, ASSAY_INVALID_ARGUMENT,
                "%s: head_dim: expected 1 or more, found %" PRId64 " and %" PRId64, op, d->head_dim,
                d->head_dim_v);
    ASSAY_CHECK(d->head_dim <= ATTENTION_MAX_DIM && d->head_dim_v <= ATTENTION_MAX_DIM, ASSAY_UNSUPPORTED,
                "%s: head_dim: expected at most %d, found %" PRId64 " and %" PRId64, op, ATTENTION_MAX_DIM,
                d->head_dim, d->head_dim_v);
    ASSAY_CHECK(assay_mul_i64(d->seq_q, d->batch, &tokens) && assay_mul_i64(tokens, d->heads, &n) &&
                    n / ATTENTION_WARPS < INT32_MAX && assay_mul_i64(d->seq_k, d->batch, &tokens) &&
                    assay_mul_i64(tokens, d->groups, &n) && n / ATTENTION_WARPS < INT32_MAX,
                ASSAY_INVALID_ARGUMENT,
                "%s: batch %" PRId64 ", seq_q %" PRId64 ", seq_k %" PRId64 ", heads %" PRId64
                " are too large",
                op, d->batch, d->seq_q, d->seq_k, d->heads);
    ASSAY_CHECK(d->dropout_p >= 0.0 && d->dropout_p < 1.0, ASSAY_INVALID_ARGUMENT,
                "%s: dropout_p: expected 0 or more and less than 1, found %g", op, d->dropout_p);
    ASSAY_CHECK(isfinite(d->scale), ASSAY_INVALID_ARGUMENT, "%s: scale: expected a finite number, found %g",
                op, (double)d->scale);
    return ASSAY_OK;
}

assay_status gpu_attention_check(const char *op, const attention_desc *d, gpu_tensor q, gpu_tensor k,
                                 gpu_tensor v)
{
    ASSAY_TRY(check_sizes(op, d));
    const int64_t tq = d->seq_q * d->batch, tk = d->seq_k * d->batch;
    ASSAY_TRY(gpu_check_act(op, "q", q));
    ASSAY_TRY(gpu_check_tensor(op, "k", k, q.dtype, q.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "v", v, q.dtype, q.dtype));
    ASSAY_TRY(gpu_check_count(op, "q", q, tq * d->heads * d->head_dim));
    ASSAY_TRY(gpu_check_count(op, "k", k, tk * d->groups * d->head_dim));
    ASSAY_TRY(gpu_check_count(op, "v", v, tk * d->groups * d->head_dim_v));
    ASSAY_TRY(gpu_check_tensor(op, "q_position", d->q_position, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "k_position", d->k_position, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_count(op, "q_position", d->q_position, tq));
    ASSAY_TRY(gpu_check_count(op, "k_position", d->k_position, tk));
    if (gpu_tensor_present(d->first_key)) {
        ASSAY_TRY(gpu_check_tensor(op, "first_key", d->first_key, ASSAY_I64, ASSAY_I64));
        ASSAY_TRY(gpu_check_count(op, "first_key", d->first_key, tq));
    }
    return ASSAY_OK;
}

static assay_status attention_fwd(const gpu_work *w)
{
    const attention_desc desc = attention_desc_of(w->o), *d = &desc;
    const gpu_tensor o = gpu_operand(w->o, "o"), lse = gpu_operand(w->o, "lse"), q = gpu_operand(w->o, "q"),
                     k = gpu_operand(w->o, "k"), v = gpu_operand(w->o, "v");
    const char *op = "attention_fwd";
    ASSAY_TRY(gpu_attention_check(op, d, q, k, v));
    const int64_t tq = d->seq_q * d->batch;
    ASSAY_TRY(gpu_check_tensor(op, "o", o, q.dtype, q.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "lse", lse, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_count(op, "o", o, tq * d->heads * d->head_dim_v));
    ASSAY_TRY(gpu_check_count(op, "lse", lse, tq * d->heads));
    if (tq > 0 && w->variant == 3) {
        const gpu_attention_fwd_tensors t = {o, lse, q, k, v};
        return gpu_attention_fwd_sm90(w, &t, attention_args_make(d));
    }
    if (tq > 0 && w->variant == 2)
        GPU_LAUNCHED(gpu_attention_fwd_mma(o, lse, q, k, v, gpu_attention_scale2(w->o),
                                           attention_args_make(d), w->stream),
                     op);
    else if (tq > 0)
        GPU_LAUNCHED(
            GPU_BY_ACT(q.dtype, launch_fwd, w->variant, o, lse, q, k, v, attention_args_make(d), w->stream),
            op);
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
GPU_LADDER(attention_fwd) = {
    GPU_RUNG("one thread a query and head, three passes over the keys", attention_fwd,
             GPU_DECLARES("o lse", GPU_SEQUENTIAL(GPU_ULP_EXP))),
    GPU_RUNG("one warp for four rows, keys and values read once into shared memory", attention_fwd,
             GPU_DECLARES("o lse", GPU_ARITH(F32, SEQUENTIAL, 1, true, GPU_ULP_EXP, ATTENTION_TILE))),
    GPU_RUNG_BF16("BF16", 0,
                  "matrix units, FlashAttention-2 form: bf16, head dimensions of multiples of 8, no dropout",
                  attention_fwd, NULL, gpu_attention_takes_mma, NULL, GPU_SM_80,
                  GPU_ADAPTS("o lse", GPU_TENSOR_CORE(GPU_ULP_EXP, 64), gpu_attention_mma_arith,
                             "32 keys a tile for head dimensions up to 32 and above 96; " GPU_MMA_ARITH)),
    GPU_RUNG_BF16("BF16", GPU_SM_90,
                  "warpgroups and tensor maps, FlashAttention-3 form: the calls of k2 with a key or more",
                  attention_fwd, gpu_attention_sm90_workspace, gpu_attention_takes_sm90,
                  gpu_attention_sm90_pays, GPU_SM_90,
                  GPU_ADAPTS("o lse", GPU_TENSOR_CORE(GPU_ULP_EXP, 128), gpu_attention_sm90_arith,
                             "64 keys a tile where heads are wider than 192, or values than 128 and "
                             "either than 128; " GPU_MMA_ARITH)),
    GPU_LADDER_END,
};
