/* Vocabulary-parallel cross entropy: statistics of the local piece, loss, gradient.  docs/OPS.md 8.
 *
 *   k0  one thread for each row, maximum first, then the sum             fp32, sequential, two-pass
 *   k1  one warp for each row, one pass: every lane keeps a sum beside   fp32, tree of 256 lanes, exp below
 *       a reference, its maximum rounded up to a multiple of
 *       LOSS_QUANTUM, over eight elements at a time, joined at the end
 *   k2  the same with 256 threads for each row, for large vocabularies   fp32, tree of 2048 lanes, exp below
 *
 * loss is one thread for each token; bwd is one for each element (k0), or for four times four of a row (k1): neighbours read 16 bytes next
 * to each other, so that a warp asks for whole sectors of fp32, and four such reads are under way.
 *
 * The statistics in one pass.  A lane's eight numbers are added in a tree of three levels before its sum takes them: with the lanes that is a
 * tree of eight times as many.  The reference moves by whole quanta, not with every new maximum, so how often a sum is rescaled does not
 * grow with the vocabulary: an element that lies s below the row's maximum is rescaled at most ceil(s/LOSS_QUANTUM) times, by exp of a
 * number that no subtraction has rounded, and once at the end, straight to that maximum.  All of it is declared as error of exp(l - max),
 * LOSS_ULP (docs/TOLERANCES.md 4 counts it up). */
#include "gpu/vector.cuh"

enum { LOSS_UNROLL = 8, LOSS_BLOCK = 256, LOSS_WIDE = 4096, LOSS_IGNORE = -100 };
enum { LOSS_QUANTUM = 4, LOSS_ULP = 8 };
enum { LOSS_FOUR = 4, LOSS_FOURS = 4 }; /* columns of a read, reads of a thread */

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

/* The sum of eight, in three levels. */
__device__ static __forceinline__ float sum_of_eight(const float (&v)[LOSS_UNROLL])
{
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

/* THREADS threads for a row: blockDim = (THREADS, rows of a block).  The barriers: who writes a row's maxima has read the row before's;
 * sums are written behind the first and read behind the second. */
template <int THREADS>
__global__ void cross_entropy_stats_online(float *stats, const float *logits, const int64_t *targets,
                                           int64_t vocab_start, int64_t t, int64_t v)
{
    GPU_SHARED_2D(float, joined, 2, LOSS_BLOCK / GPU_WARP);
    const int warp = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP;
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    for (int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; row < t; row += step) {
        const float *l = logits + row * v;
        float m = -INFINITY, reference = -INFINITY, sum = 0.0f;
        for (int64_t base = threadIdx.x; base < v; base += THREADS * LOSS_UNROLL) {
            float x[LOSS_UNROLL];
            for (int u = 0; u < LOSS_UNROLL; ++u) {
                x[u] = base + u * THREADS < v ? l[base + u * THREADS] : -INFINITY;
                m = fmaxf(m, x[u]);
            }
            if (m > reference) {
                const float up = (float)LOSS_QUANTUM * ceilf(m * (1.0f / LOSS_QUANTUM));
                sum *= rescale(reference, up);
                reference = up;
            }
            for (int u = 0; u < LOSS_UNROLL; ++u)
                x[u] = expf(x[u] - finite_max(reference));
            sum += sum_of_eight(x);
        }
        m = fmaxf(-INFINITY, gpu_warp_max(m));
        if (THREADS > GPU_WARP) {
            if (lane == 0)
                joined[0][warp] = m;
            __syncthreads();
            m = fmaxf(-INFINITY, gpu_warp_max(joined[0][lane % (THREADS / GPU_WARP)]));
        }
        sum = gpu_warp_sum(sum * rescale(reference, finite_max(m)));
        if (THREADS > GPU_WARP) {
            if (lane == 0)
                joined[1][warp] = sum;
            __syncthreads();
            if (warp == 0)
                sum = gpu_warp_sum(lane < THREADS / GPU_WARP ? joined[1][lane] : 0.0f);
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

/* The gradient of one element of a row. */
__device__ static __forceinline__ float cross_entropy_slope(float logit, float lse, bool is_target,
                                                            float scale)
{
    return (expf(logit - lse) - (is_target ? 1.0f : 0.0f)) * scale;
}

template <class T>
__global__ void cross_entropy_bwd_k0(T *dlogits, const float *logits, const float *lse,
                                     const int64_t *targets, int64_t vocab_start, float scale, int64_t t,
                                     int64_t v)
{
    for (int64_t e = gpu_thread(); e < t * v; e += gpu_threads()) {
        const int64_t row = e / v, target = targets[row];
        const float d = cross_entropy_slope(logits[e], lse[row], e % v == target - vocab_start, scale);
        gpu_store(dlogits + e, target == LOSS_IGNORE ? 0.0f : d);
    }
}

template <class T>
__global__ void cross_entropy_bwd_k1(T *dlogits, const float *logits, const float *lse,
                                     const int64_t *targets, int64_t vocab_start, float scale, int64_t t,
                                     int v)
{
    const int apart = (int)blockDim.x * LOSS_FOUR,
              first = (int)(blockIdx.x * LOSS_FOURS * blockDim.x + threadIdx.x) * LOSS_FOUR;
    const int64_t step = (int64_t)gridDim.y * blockDim.y;
    for (int64_t row = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; row < t; row += step) {
        const int64_t target = targets[row], column = target - vocab_start;
        const int hit = column >= 0 && column < v ? (int)column : -1;
        const bool counts = target != LOSS_IGNORE; /* else no logit is read */
        const float shift = lse[row];
        float d[LOSS_FOURS][LOSS_FOUR] = {};
        GPU_UNROLL
        for (int k = 0; k < LOSS_FOURS; ++k)
            if (counts && first + k * apart < v)
                gpu_load_n(d[k], logits + row * v + first + k * apart);
        GPU_UNROLL
        for (int k = 0; k < LOSS_FOURS; ++k) {
            const int i = first + k * apart;
            if (i >= v)
                continue;
            for (int j = 0; counts && j < LOSS_FOUR; ++j)
                d[k][j] = cross_entropy_slope(d[k][j], shift, i + j == hit, scale);
            gpu_store_n(dlogits + row * v + i, d[k]);
        }
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

static assay_status cross_entropy_stats(const gpu_work *w)
{
    const gpu_tensor stats = gpu_operand(w->o, "stats"), logits = gpu_operand(w->o, "logits"),
                     targets = gpu_operand(w->o, "targets");
    const int64_t vocab_start = gpu_operand_int(w->o, "vocab_start");
    const char *op = "cross_entropy_stats";
    ASSAY_TRY(gpu_check_tensor(op, "logits", logits, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "targets", targets, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "stats", stats, ASSAY_F32, ASSAY_F32));
    const int64_t t = gpu_tensor_row_count(logits), v = gpu_tensor_cols(logits);
    ASSAY_TRY(gpu_check_count(op, "targets", targets, t));
    ASSAY_TRY(gpu_check_count(op, "stats", stats, 3 * t));
    if (t > 0)
        GPU_LAUNCHED(launch_stats(w->variant, stats, logits, targets, vocab_start, t, v, w->stream), op);
    return ASSAY_OK;
}

static assay_status cross_entropy_loss(const gpu_work *w)
{
    const gpu_tensor lse = gpu_operand(w->o, "lse"), loss = gpu_operand(w->o, "loss"),
                     stats = gpu_operand(w->o, "stats"), targets = gpu_operand(w->o, "targets");
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
                                           w->stream, (float *)lse.data, (float *)loss.data,
                                           (const float *)stats.data, (const int64_t *)targets.data, pieces,
                                           t),
                     op);
    return ASSAY_OK;
}

template <class T>
static cudaError_t launch_bwd(int variant, gpu_tensor dlogits, gpu_tensor logits, gpu_tensor lse,
                              gpu_tensor targets, int64_t vocab_start, float scale, cudaStream_t stream)
{
    const int64_t t = gpu_tensor_row_count(logits), v = gpu_tensor_cols(logits);
    const int64_t in_thread = LOSS_FOUR * LOSS_FOURS;
    const gpu_pieces_launch pieces = gpu_pieces_of(t, (v + in_thread - 1) / in_thread);
    if (variant > 0)
        return GPU_LAUNCH_NO_BARRIER(cross_entropy_bwd_k1<T>, pieces.grid, pieces.block, 0, stream,
                                     (T *)dlogits.data, (const float *)logits.data, (const float *)lse.data,
                                     (const int64_t *)targets.data, vocab_start, scale, t, (int)v);
    return GPU_LAUNCH_NO_BARRIER(cross_entropy_bwd_k0<T>, gpu_grid(t * v, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                 stream, (T *)dlogits.data, (const float *)logits.data,
                                 (const float *)lse.data, (const int64_t *)targets.data, vocab_start, scale,
                                 t, v);
}

static assay_status cross_entropy_bwd(const gpu_work *w)
{
    const gpu_tensor dlogits = gpu_operand(w->o, "dlogits"), logits = gpu_operand(w->o, "logits"),
                     lse = gpu_operand(w->o, "lse"), targets = gpu_operand(w->o, "targets");
    const int64_t vocab_start = gpu_operand_int(w->o, "vocab_start");
    const float scale = (float)gpu_operand_double(w->o, "scale");
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
        GPU_LAUNCHED(GPU_BY_ACT(dlogits.dtype, launch_bwd, w->variant, dlogits, logits, lse, targets,
                                vocab_start, scale, w->stream),
                     op);
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static bool wide(const gpu_operands *o)
{
    return gpu_tensor_cols(gpu_operand(o, "logits")) >= LOSS_WIDE;
}

GPU_LADDER(cross_entropy_stats) = {
    GPU_RUNG("one thread a row, maximum first", cross_entropy_stats,
             GPU_DECLARES("stats", GPU_ARITH(F32, SEQUENTIAL, 1, false, GPU_ULP_EXP, 0))),
    GPU_RUNG("one warp a row, one pass", cross_entropy_stats,
             GPU_DECLARES("stats", GPU_ARITH(F32, TREE, GPU_WARP *LOSS_UNROLL, false, LOSS_ULP, 0))),
    GPU_RUNG_IF("256 threads a row, for large vocabularies (4096 and more)", cross_entropy_stats, NULL, NULL,
                wide, GPU_SM_80,
                GPU_DECLARES("stats", GPU_ARITH(F32, TREE, LOSS_BLOCK *LOSS_UNROLL, false, LOSS_ULP, 0))),
    GPU_LADDER_END,
};
GPU_LADDER(cross_entropy_loss) = {
    GPU_RUNG("one thread a token", cross_entropy_loss, GPU_DECLARES("lse loss", GPU_SEQUENTIAL(GPU_ULP_EXP))),
    GPU_LADDER_END,
};
static bool rows_of_eights(const gpu_ctx *, const gpu_operands *o)
{
    return gpu_eights(o, gpu_tensor_cols(gpu_operand(o, "logits")));
}

GPU_LADDER(cross_entropy_bwd) = {
    GPU_RUNG("one thread an element", cross_entropy_bwd,
             GPU_DECLARES("dlogits", GPU_ELEMENTWISE(GPU_ULP_EXP))),
    GPU_RUNG_IF("16 elements a thread, rows along the grid", cross_entropy_bwd, NULL, rows_of_eights, NULL,
                GPU_SM_80, GPU_DECLARES("dlogits", GPU_ELEMENTWISE(GPU_ULP_EXP))),
    GPU_LADDER_END,
};
