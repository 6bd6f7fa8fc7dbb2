/* Vocabulary-parallel cross entropy: statistics of the local piece, loss, gradient.  docs/OPS.md 8.
 *
 *   k0  one thread for each row, maximum first, then the sum             fp32, sequential, two-pass
 *   k1  one warp for each row, one pass: every lane keeps a running      fp32, tree of 32 lanes, tile below
 *       maximum and sum over eight elements at a time, joined at the
 *       end by one maximum and one tree
 *   k2  the same with 256 threads for each row, for large vocabularies   fp32, tree of 256 lanes, tile below
 *
 * loss is one thread for each token, bwd one for each element.  The tile of k1 and k2 is eight elements of
 * every lane; at the end a sum is rescaled once more for the warp, and once for the block. */
#include "gpu/device.cuh"
#include "gpu/ladder.h"

enum { LOSS_UNROLL = 8, LOSS_BLOCK = 256, LOSS_WIDE = 4096, LOSS_IGNORE = -100 };

__device__ static __forceinline__ float finite_max(float m)
{
    return m == -INFINITY ? 0.0f : m;
}
/* exp(m - reference); 1 when nothing was summed yet (the sum is 0, or NaN). */
__device__ static __forceinline__ float rescale(float m, float reference)
{
    return m == -INFINITY ? 1.0f : expf(m - reference);
}

/* Logit of the target when it lies in this piece, else 0. */
__device__ static __forceinline__ float target_logit(const float *row, int64_t target, int64_t vocab_start,
                                                     int64_t v)
{
    return target >= vocab_start && target - vocab_start < v ? row[target - vocab_start] : 0.0f;
}

__global__ void cross_entropy_stats_k0(float *stats, const float *logits, const int64_t *targets,
                                       int64_t vocab_start, int64_t t, int64_t v)
{
    for (int64_t row = gpu_thread(); row < t; row += gpu_threads()) {
        const float *l = logits + row * v;
        float m = -INFINITY, sum = 0.0f;
        for (int64_t i = 0; i < v; ++i)
            m = fmaxf(m, l[i]);
        for (int64_t i = 0; i < v; ++i)
            sum += expf(l[i] - finite_max(m));
        stats[row] = m;
        stats[t + row] = sum;
        stats[2 * t + row] = target_logit(l, targets[row], vocab_start, v);
    }
}

/* Joins the lanes' (m, sum): the largest maximum, then one rescaling of each sum. */
__device__ static __forceinline__ void join_warp(float *m, float *sum)
{
    const float larger = fmaxf(-INFINITY, gpu_warp_max(*m));
    *sum = gpu_warp_sum(*sum * rescale(*m, finite_max(larger)));
    *m = larger;
}

/* THREADS threads for a row: blockDim = (THREADS, rows of a block). */
template <int THREADS>
__global__ void cross_entropy_stats_online(float *stats, const float *logits, const int64_t *targets,
                                           int64_t vocab_start, int64_t t, int64_t v)
{
    GPU_SHARED_2D(float, joined, 2, LOSS_BLOCK / GPU_WARP);
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    for (int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; row < t; row += step) {
        const float *l = logits + row * v;
        float m = -INFINITY, sum = 0.0f;
        for (int64_t base = threadIdx.x; base < v; base += THREADS * LOSS_UNROLL) {
            float x[LOSS_UNROLL], larger = m;
            for (int u = 0; u < LOSS_UNROLL; ++u) {
                x[u] = base + u * THREADS < v ? l[base + u * THREADS] : -INFINITY;
                larger = fmaxf(larger, x[u]);
            }
            const float reference = finite_max(larger);
            sum *= rescale(m, reference);
            for (int u = 0; u < LOSS_UNROLL; ++u)
                sum += expf(x[u] - reference);
            m = larger;
        }
        join_warp(&m, &sum);
        if (THREADS > GPU_WARP) {
            const int warp = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP;
            if (lane == 0) {
                joined[0][warp] = m;
                joined[1][warp] = sum;
            }
            __syncthreads();
            if (warp == 0) {
                m = lane < THREADS / GPU_WARP ? joined[0][lane] : -INFINITY;
                sum = lane < THREADS / GPU_WARP ? joined[1][lane] : 0.0f;
                join_warp(&m, &sum);
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            stats[row] = m;
            stats[t + row] = sum;
            stats[2 * t + row] = target_logit(l, targets[row], vocab_start, v);
        }
    }
}

__global__ void cross_entropy_loss_k0(float *lse, float *loss, const float *stats, const int64_t *targets,
                                      int64_t pieces, int64_t t)
{
    for (int64_t row = gpu_thread(); row < t; row += gpu_threads()) {
        float m = -INFINITY, sum = 0.0f, target = 0.0f;
        for (int64_t r = 0; r < pieces; ++r)
            m = fmaxf(m, stats[3 * r * t + row]);
        for (int64_t r = 0; r < pieces; ++r) {
            const float *s = stats + 3 * r * t + row;
            sum = fmaf(s[t], expf(s[0] - finite_max(m)), sum);
            target += s[2 * t];
        }
        const float l = m == -INFINITY && sum == 0.0f ? -INFINITY : finite_max(m) + logf(sum);
        lse[row] = l;
        loss[row] = targets[row] == LOSS_IGNORE ? 0.0f : l - target;
    }
}

template <class T>
__global__ void cross_entropy_bwd_k0(T *dlogits, const float *logits, const float *lse,
                                     const int64_t *targets, int64_t vocab_start, float scale, int64_t t,
                                     int64_t v)
{
    for (int64_t e = gpu_thread(); e < t * v; e += gpu_threads()) {
        const int64_t row = e / v, target = targets[row];
        float d = 0.0f;
        if (target != LOSS_IGNORE) {
            const float hit = e % v == target - vocab_start ? 1.0f : 0.0f;
            d = (expf(logits[e] - lse[row]) - hit) * scale;
        }
        gpu_store(dlogits + e, d);
    }
}

static cudaError_t launch_stats(int variant, gpu_tensor stats, gpu_tensor logits, gpu_tensor targets,
                                int64_t vocab_start, int64_t t, int64_t v, cudaStream_t stream)
{
    float *s = (float *)stats.data;
    const float *l = (const float *)logits.data;
    const int64_t *y = (const int64_t *)targets.data;
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(cross_entropy_stats_k0, gpu_grid(t, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                     stream, s, l, y, vocab_start, t, v);
    if (variant == 1)
        return GPU_LAUNCH(cross_entropy_stats_online<GPU_WARP>, gpu_grid(t, GPU_ROWS_PER_BLOCK),
                          gpu_warp_block(), 0, stream, s, l, y, vocab_start, t, v);
    return GPU_LAUNCH(cross_entropy_stats_online<LOSS_BLOCK>, gpu_grid(t, 1), dim3(LOSS_BLOCK), 0, stream, s,
                      l, y, vocab_start, t, v);
}

assay_status gpu_cross_entropy_stats(gpu_ctx *ctx, gpu_tensor stats, gpu_tensor logits, gpu_tensor targets,
                                     int64_t vocab_start, cudaStream_t stream, gpu_declared *declared)
{
    const char *op = "cross_entropy_stats";
    ASSAY_TRY(gpu_check_tensor(op, "logits", logits, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "targets", targets, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "stats", stats, ASSAY_F32, ASSAY_F32));
    const int64_t t = gpu_tensor_row_count(logits), v = gpu_tensor_cols(logits);
    ASSAY_TRY(gpu_check_count(op, "targets", targets, t));
    ASSAY_TRY(gpu_check_count(op, "stats", stats, 3 * t));
    const int variant = gpu_variant(ctx, GPU_FAMILY_CROSS_ENTROPY, 2, v >= LOSS_WIDE ? 2 : 1);
    if (t > 0)
        GPU_LAUNCHED(launch_stats(variant, stats, logits, targets, vocab_start, t, v, stream), op);
    const int lanes = variant == 2 ? (int)LOSS_BLOCK : (int)GPU_WARP;
    assay_arith arith = variant == 0 ? gpu_arith_sequential(GPU_ULP_EXP) : gpu_arith_tree(lanes, GPU_ULP_EXP);
    arith.fma = false; /* joins round their products */
    if (variant != 0)
        arith.tile = lanes * LOSS_UNROLL;
    gpu_declare(declared, variant, arith);
    return ASSAY_OK;
}

assay_status gpu_cross_entropy_loss(gpu_ctx *ctx, gpu_tensor lse, gpu_tensor loss, gpu_tensor stats,
                                    gpu_tensor targets, cudaStream_t stream, gpu_declared *declared)
{
    (void)ctx;
    const char *op = "cross_entropy_loss";
    ASSAY_TRY(gpu_check_tensor(op, "stats", stats, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "targets", targets, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "lse", lse, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "loss", loss, ASSAY_F32, ASSAY_F32));
    const int64_t t = gpu_tensor_count(targets);
    const int64_t pieces = t > 0 ? gpu_tensor_count(stats) / (3 * t) : 0;
    ASSAY_TRY(gpu_check_count(op, "stats", stats, 3 * t * pieces));
    ASSAY_CHECK(t == 0 || pieces >= 1, ASSAY_INVALID_ARGUMENT,
                "%s: stats: expected shape [pieces,3,%" PRId64 "], found %" PRId64 " elements", op, t,
                gpu_tensor_count(stats));
    ASSAY_TRY(gpu_check_count(op, "lse", lse, t));
    ASSAY_TRY(gpu_check_count(op, "loss", loss, t));
    if (t > 0)
        GPU_LAUNCHED(GPU_LAUNCH_NO_BARRIER(cross_entropy_loss_k0, gpu_grid(t, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                           stream, (float *)lse.data, (float *)loss.data,
                                           (const float *)stats.data, (const int64_t *)targets.data, pieces,
                                           t),
                     op);
    gpu_declare(declared, 0, gpu_arith_sequential(GPU_ULP_EXP));
    return ASSAY_OK;
}

template <class T>
static cudaError_t launch_bwd(gpu_tensor dlogits, gpu_tensor logits, gpu_tensor lse, gpu_tensor targets,
                              int64_t vocab_start, float scale, cudaStream_t stream)
{
    const int64_t t = gpu_tensor_row_count(logits), v = gpu_tensor_cols(logits);
    return GPU_LAUNCH_NO_BARRIER(cross_entropy_bwd_k0<T>, gpu_grid(t * v, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                 stream, (T *)dlogits.data, (const float *)logits.data,
                                 (const float *)lse.data, (const int64_t *)targets.data, vocab_start, scale,
                                 t, v);
}

assay_status gpu_cross_entropy_bwd(gpu_ctx *ctx, gpu_tensor dlogits, gpu_tensor logits, gpu_tensor lse,
                                   gpu_tensor targets, int64_t vocab_start, float scale, cudaStream_t stream,
                                   gpu_declared *declared)
{
    (void)ctx;
    const char *op = "cross_entropy_bwd";
    ASSAY_TRY(gpu_check_tensor(op, "logits", logits, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "lse", lse, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "targets", targets, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_act(op, "dlogits", dlogits));
    const int64_t t = gpu_tensor_row_count(logits), n = gpu_tensor_count(logits);
    ASSAY_TRY(gpu_check_count(op, "dlogits", dlogits, n));
    ASSAY_TRY(gpu_check_count(op, "lse", lse, t));
    ASSAY_TRY(gpu_check_count(op, "targets", targets, t));
    if (n > 0)
        GPU_LAUNCHED(
            GPU_BY_ACT(dlogits.dtype, launch_bwd, dlogits, logits, lse, targets, vocab_start, scale, stream),
            op);
    gpu_declare(declared, 0, gpu_arith_elementwise(GPU_ULP_EXP));
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
extern "C" const gpu_rung gpu_loss_rungs[] = {
    {"cross_entropy_stats", 0, "one thread a row, maximum first", "stats: sequential, two-pass, exp 2 ulp",
     0},
    {"cross_entropy_stats", 1, "one warp a row, one pass",
     "stats: tree of 32 lanes, tiles of 8 elements a lane, exp 2 ulp", 0},
    {"cross_entropy_stats", 2, "256 threads a row, for large vocabularies (4096 and more)",
     "stats: tree of 256 lanes, tiles of 8 elements a lane, exp 2 ulp", 0},
    {"cross_entropy_loss", 0, "one thread a token",
     "lse, loss: sequential over the vocabulary pieces, exp and log 2 ulp", 0},
    {"cross_entropy_bwd", 0, "one thread an element", "dlogits: fp32 element-wise, exp 2 ulp", 0},
    {NULL, 0, NULL, NULL, 0},
};
