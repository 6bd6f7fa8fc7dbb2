/* Sums in double: of a loss vector, of squares of gradients.  docs/OPS.md 6 (sum), 8 (sumsq).
 *
 *   k0  one thread                                                        double, sequential
 *   k1  multi-tensor: one launch for up to 128 tensors, whose blocks of   double, tree of 256 x blocks lanes
 *       256 threads write one partial sum each, a second one joins
 *       those of every tensor; the order depends on a tensor's size
 *       alone, not on what else is in the list
 *
 * The square of an fp32 number is exact in double. */
#include "gpu/vector.cuh"

enum { SUM_BLOCK = 256, SUM_MAX_BLOCKS = 256, SUM_PER_THREAD = 16, SUM_TABLE = 128 };

/* The tensors of a launch; it travels in the kernel's parameters. */
typedef struct sum_table {
    const float *x[SUM_TABLE];
    double *y[SUM_TABLE];
    int64_t n[SUM_TABLE];
    unsigned first_block[SUM_TABLE + 1];
    int n_tensors;
} sum_table;
static_assert(sizeof(sum_table) <= 4000, "kernel parameters end at 4096 bytes");

template <bool SQUARE> __device__ static __forceinline__ double term(float v)
{
    return SQUARE ? (double)v * (double)v : (double)v;
}

template <bool SQUARE> __global__ void sum_k0(double *y, const float *x, int64_t n)
{
    if (gpu_thread() != 0)
        return;
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i)
        sum += term<SQUARE>(x[i]);
    *y = sum;
}

/* Tree over the block's threads; the result is valid in thread 0. */
__device__ static double block_sum(double v)
{
    GPU_SHARED(double, partial, SUM_BLOCK / GPU_WARP);
    const int warp = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP;
    v = gpu_warp_sum(v);
    if (lane == 0)
        partial[warp] = v;
    __syncthreads();
    if (warp == 0)
        v = gpu_warp_sum(lane < SUM_BLOCK / GPU_WARP ? partial[lane] : 0.0);
    return v;
}

/* The tensor that a block of the launch has: first_block[which] <= block < first_block[which + 1], none is empty. */
__device__ static __forceinline__ int tensor_of_block(const sum_table &table, unsigned block)
{
    int which = 0, end = table.n_tensors;
    while (end - which > 1) {
        const int middle = (which + end) / 2;
        if (block < table.first_block[middle])
            end = middle;
        else
            which = middle;
    }
    return which;
}

/* Four neighbours for each thread while all threads have four, then one: no chain is longer than n / threads, rounded up.  The order
 * does not depend on the address, which says how four are read.  A tensor of one block has its sum at once. */
template <bool SQUARE> __global__ void sum_k1(double *partials, GPU_PARAMETER(sum_table) table)
{
    const int which = tensor_of_block(table, blockIdx.x);
    const unsigned first_block = table.first_block[which],
                   blocks = table.first_block[which + 1] - first_block;
    const float *x = table.x[which];
    const int64_t n = table.n[which], threads = (int64_t)blocks * SUM_BLOCK;
    const int64_t thread = (int64_t)(blockIdx.x - first_block) * SUM_BLOCK + threadIdx.x;
    const int64_t fours = n / (4 * threads) * threads;
    const bool by_four = (uintptr_t)x % GPU_VECTOR_BYTES == 0;
    double sum = 0.0;
    for (int64_t i = thread; i < fours; i += threads) {
        float v[4];
        if (by_four)
            gpu_load_n(v, x + 4 * i);
        else
            for (int j = 0; j < 4; ++j)
                v[j] = x[4 * i + j];
        for (int j = 0; j < 4; ++j)
            sum += term<SQUARE>(v[j]);
    }
    for (int64_t i = 4 * fours + thread; i < n; i += threads)
        sum += term<SQUARE>(x[i]);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *(blocks == 1 ? table.y[which] : partials + blockIdx.x) = sum;
}

/* A block for each tensor. */
__global__ void sum_join_k1(const double *partials, GPU_PARAMETER(sum_table) table)
{
    const unsigned first_block = table.first_block[blockIdx.x],
                   blocks = table.first_block[blockIdx.x + 1] - first_block;
    if (blocks == 1)
        return;
    const double sum = block_sum(threadIdx.x < blocks ? partials[first_block + threadIdx.x] : 0.0);
    if (threadIdx.x == 0)
        *table.y[blockIdx.x] = sum;
}

/* A power of two, so that the tree has exactly log2(256 x blocks) levels. */
static int sum_blocks(int64_t n)
{
    int blocks = 1;
    while (blocks < SUM_MAX_BLOCKS && (int64_t)blocks * SUM_BLOCK * SUM_PER_THREAD < n)
        blocks *= 2;
    return blocks;
}

template <bool SQUARE>
static cudaError_t launch_table(const sum_table &table, double *partials, cudaStream_t stream)
{
    const unsigned tensors = (unsigned)table.n_tensors, blocks = table.first_block[tensors];
    const cudaError_t e =
        GPU_LAUNCH(sum_k1<SQUARE>, dim3(blocks), dim3(SUM_BLOCK), 0, stream, partials, table);
    if (e != cudaSuccess || blocks == tensors) /* nothing to join */
        return e;
    return GPU_LAUNCH(sum_join_k1, dim3(tensors), dim3(SUM_BLOCK), 0, stream, partials, table);
}

static size_t partial_sums(const gpu_ctx *, const gpu_operands *)
{
    return sizeof(double) * SUM_MAX_BLOCKS * SUM_TABLE;
}

static assay_status check_list(const gpu_work *w)
{
    const char *op = w->o->op->name;
    for (int64_t i = 0; i < w->n; ++i) {
        const gpu_tensor x = gpu_operand(&w->o[i], "x"), y = gpu_operand(&w->o[i], "y");
        ASSAY_TRY(gpu_check_tensor(op, "x", x, ASSAY_F32, ASSAY_F32));
        ASSAY_TRY(gpu_check_tensor(op, "y", y, ASSAY_F64, ASSAY_F64));
        ASSAY_TRY(gpu_check_count(op, "y", y, 1));
    }
    return ASSAY_OK;
}

template <bool SQUARE> static assay_status each(const gpu_work *w)
{
    ASSAY_TRY(check_list(w));
    for (int64_t i = 0; i < w->n; ++i) {
        const gpu_tensor x = gpu_operand(&w->o[i], "x"), y = gpu_operand(&w->o[i], "y");
        GPU_LAUNCHED(GPU_LAUNCH_NO_BARRIER(sum_k0<SQUARE>, dim3(1), dim3(1), 0, w->stream, (double *)y.data,
                                           (const float *)x.data, gpu_tensor_count(x)),
                     w->o->op->name);
    }
    return ASSAY_OK;
}

template <bool SQUARE> static assay_status list(const gpu_work *w)
{
    const char *op = w->o->op->name;
    sum_table table;
    table.n_tensors = 0;
    table.first_block[0] = 0;
    ASSAY_TRY(gpu_check_workspace(op, w->ctx, partial_sums(w->ctx, w->o)));
    ASSAY_TRY(check_list(w));
    for (int64_t i = 0; i < w->n; ++i) {
        const gpu_tensor x = gpu_operand(&w->o[i], "x");
        const int slot = table.n_tensors++;
        table.x[slot] = (const float *)x.data;
        table.y[slot] = (double *)gpu_operand(&w->o[i], "y").data;
        table.n[slot] = gpu_tensor_count(x);
        table.first_block[slot + 1] = table.first_block[slot] + (unsigned)sum_blocks(table.n[slot]);
        if (table.n_tensors == SUM_TABLE || i + 1 == w->n) {
            GPU_LAUNCHED(launch_table<SQUARE>(table, (double *)w->ctx->workspace, w->stream), op);
            table.n_tensors = 0;
        }
    }
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static void block_lanes(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    a->lanes = SUM_BLOCK * sum_blocks(gpu_tensor_count(gpu_operand(o, "x")));
}

#define SUM_RUNGS(each, list)                                                                                \
    GPU_RUNG("one thread, one launch a tensor", each,                                                        \
             GPU_DECLARES("y", GPU_ARITH(F64, SEQUENTIAL, 1, true, 0, 0))),                                  \
        GPU_RUNG_IF("blocks of 256 threads, one launch for up to 128 tensors, joined by a second one", list, \
                    partial_sums, NULL, NULL, GPU_SM_80,                                                     \
                    GPU_ADAPTS("y", GPU_ARITH(F64, TREE, SUM_BLOCK, true, 0, 0), block_lanes,                \
                               "256 lanes for each of up to 256 blocks; the size decides")),                 \
        GPU_LADDER_END
GPU_LADDER(sum) = {SUM_RUNGS(each<false>, list<false>)};
GPU_LADDER(sumsq) = {SUM_RUNGS(each<true>, list<true>)};
