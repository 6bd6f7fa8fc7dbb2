/* Kernels without a race, in different styles: none may be reported. */
#include "races.h"

#define KERNEL(name, grid, block, bytes)                                                                     \
    __global__ void name(int *x, int *y);                                                                    \
    LAUNCH_CASE(name, grid, block, bytes)                                                                    \
    __global__ void name([[maybe_unused]] int *x, [[maybe_unused]] int *y)

KERNEL(map, 7, 96, 0)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = 2 * x[i] + 1;
}

KERNEL(grid_stride, 3, 64, 0)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < 4000; i += gridDim.x * blockDim.x)
        y[i] = x[i];
}

KERNEL(tree_reduction, 3, 128, 0)
{
    GPU_SHARED(int, s, 128);
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (unsigned step = 64; step > 0; step /= 2) {
        if (threadIdx.x < step)
            s[threadIdx.x] += s[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        y[blockIdx.x] = s[0];
}

KERNEL(shuffle_reduction, 2, 128, 0)
{
    GPU_SHARED(int, s, 4);
    int v = x[threadIdx.x];
    for (int step = 16; step > 0; step /= 2)
        v += __shfl_down_sync(0xffffffffu, v, static_cast<unsigned>(step));
    if (threadIdx.x % 32 == 0)
        s[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 4)
        y[blockIdx.x * 4 + threadIdx.x] = s[threadIdx.x];
}

KERNEL(transpose, 4, 256, 0)
{
    GPU_SHARED_2D(int, tile, 16, 17);
    const unsigned r = threadIdx.x / 16, c = threadIdx.x % 16;
    tile[r][c] = x[blockIdx.x * 256 + threadIdx.x];
    __syncthreads();
    y[blockIdx.x * 256 + threadIdx.x] = tile[c][r];
}

KERNEL(scan_in_a_block, 1, 128, 0)
{
    GPU_SHARED(int, s, 128);
    s[threadIdx.x] = x[threadIdx.x];
    for (unsigned d = 1; d < 128; d *= 2) {
        __syncthreads();
        const int v = threadIdx.x >= d ? s[threadIdx.x - d] : 0;
        __syncthreads();
        s[threadIdx.x] += v;
    }
    y[threadIdx.x] = s[threadIdx.x];
}

KERNEL(histogram, 4, 64, 0)
{
    GPU_SHARED(int, bins, 16);
    if (threadIdx.x < 16)
        bins[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd_block(&bins[(threadIdx.x * 7) % 16], 1);
    __syncthreads();
    if (threadIdx.x < 16)
        atomicAdd(&y[threadIdx.x], bins[threadIdx.x]);
}

KERNEL(double_buffer, 1, 64, 512)
{
    GPU_DYNAMIC_SHARED(int, s);
    s[threadIdx.x] = x[threadIdx.x];
    for (int k = 0; k < 5; ++k) {
        __syncthreads();
        s[(k + 1) % 2 * 64 + threadIdx.x] = s[k % 2 * 64 + (threadIdx.x + 1) % 64];
    }
    y[threadIdx.x] = s[64 + threadIdx.x];
}

KERNEL(warp_exchange_by_memory, 2, 64, 0)
{
    GPU_SHARED(int, s, 64);
    s[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    y[blockIdx.x * 64 + threadIdx.x] = s[threadIdx.x ^ 1];
    __syncwarp();
    s[threadIdx.x] = 0;
}

KERNEL(few_lanes, 1, 32, 0)
{
    GPU_SHARED(int, s, 32);
    if (threadIdx.x < 8) {
        s[threadIdx.x] = x[threadIdx.x];
        __syncwarp(0xffu);
        y[threadIdx.x] = s[7 - threadIdx.x];
    }
}

KERNEL(last_block, 6, 64, 0)
{
    GPU_SHARED(int, last, 1);
    x[8 + blockIdx.x * 64 + threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last[0] = atomicAdd(&x[0], 1) == 5;
        __threadfence();
    }
    __syncthreads();
    if (last[0] != 0) {
        for (unsigned b = 0; b < 6; ++b)
            y[threadIdx.x] += x[8 + b * 64 + threadIdx.x];
    }
}

KERNEL(last_block_volatile, 6, 64, 0)
{
    GPU_SHARED(int, last, 1);
    volatile int *result = x + 8;
    if (threadIdx.x == 0) {
        result[blockIdx.x] = 1;
        __threadfence();
        last[0] = atomicInc(reinterpret_cast<unsigned *>(&x[0]), 6u) == 5;
    }
    __syncthreads();
    if (last[0] != 0 && threadIdx.x < 6)
        y[threadIdx.x] = result[threadIdx.x];
}

KERNEL(every_thread_fences, 6, 64, 0)
{
    GPU_SHARED(int, last, 1);
    x[8 + blockIdx.x * 64 + threadIdx.x] = 1;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last[0] = atomicAdd(&x[0], 1) == 5;
    __syncthreads();
    __threadfence();
    if (last[0] != 0) {
        for (unsigned b = 0; b < 6; ++b)
            y[threadIdx.x] += x[8 + b * 64 + threadIdx.x];
    }
}

KERNEL(lock, 5, 64, 0)
{
    if (threadIdx.x % 32 == 0) {
        while (atomicCAS(&x[0], 0, 1) != 0) {
        }
        __threadfence();
        x[1] += 1;
        x[2] += x[1];
        __threadfence();
        atomicExch(&x[0], 0);
    }
}

KERNEL(lock_of_a_block, 3, 64, 0)
{
    GPU_SHARED(int, s, 2);
    if (threadIdx.x < 2)
        s[threadIdx.x] = 0;
    __syncthreads();
    while (atomicCAS_block(&s[0], 0, 1) != 0) {
    }
    __threadfence_block();
    s[1] += 1;
    __threadfence_block();
    atomicExch_block(&s[0], 0);
    __syncthreads();
    if (threadIdx.x == 0)
        y[blockIdx.x] = s[1];
}

KERNEL(chained_blocks, 6, 32, 0)
{
    if (threadIdx.x == 0) {
        volatile int *flag = x;
        while (flag[0] != static_cast<int>(blockIdx.x)) {
        }
        __threadfence();
        x[1] += 1; /* each block after the one before */
        __threadfence();
        flag[0] = static_cast<int>(blockIdx.x) + 1;
    }
}

KERNEL(bytes_side_by_side, 1, 64, 0)
{
    reinterpret_cast<char *>(y)[threadIdx.x] = static_cast<char>(threadIdx.x);
    reinterpret_cast<short *>(y)[64 + threadIdx.x] = 1;
}

KERNEL(vectors, 2, 64, 0)
{
    const unsigned i = blockIdx.x * 64 + threadIdx.x;
    reinterpret_cast<float4 *>(y)[i] = reinterpret_cast<const float4 *>(x)[i];
}

KERNEL(early_return, 2, 64, 0)
{
    GPU_SHARED(int, s, 64);
    if (threadIdx.x >= 48)
        return;
    s[threadIdx.x] = 1;
    __syncthreads();
    y[blockIdx.x * 64 + threadIdx.x] = s[47 - threadIdx.x];
}

KERNEL(cpp_atomics, 4, 32, 0)
{
    if (threadIdx.x == 0) {
        x[8 + blockIdx.x] = 1;
        if (__atomic_fetch_add(&x[0], 1, __ATOMIC_ACQ_REL) == 3)
            y[0] = x[8] + x[9] + x[10] + x[11];
    }
}

KERNEL(plain_shared_in_many_blocks, 5, 64, 0)
{
    __shared__ int s[64];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x];
}

__global__ void stage(const int *from, int *to)
{
    to[threadIdx.x] = from[63 - threadIdx.x];
}

static void run_one_stream(int *x, int *y)
{
    (void)GPU_LAUNCH(stage, 1, 64, 0, nullptr, x, y);
    (void)GPU_LAUNCH(stage, 1, 64, 0, nullptr, y, x);
    int host[64];
    (void)cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost);
    (void)cudaMemcpy(y, host, sizeof host, cudaMemcpyHostToDevice);
}

static void run_event_between_streams(int *x, int *y)
{
    cudaStream_t a, b;
    cudaEvent_t event;
    (void)cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    (void)cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    (void)cudaEventCreate(&event);
    (void)GPU_LAUNCH(stage, 1, 64, 0, a, x, y);
    (void)cudaEventRecord(event, a);
    (void)cudaStreamWaitEvent(b, event, 0);
    (void)GPU_LAUNCH(stage, 1, 64, 0, b, y, x);
    (void)cudaStreamSynchronize(b);
    (void)GPU_LAUNCH(stage, 1, 64, 0, a, x, y);
    (void)cudaStreamSynchronize(a);
    (void)cudaStreamDestroy(a);
    (void)cudaStreamDestroy(b);
}

/* Two lanes of a graph, joined by events; launched twice, the second on what the first left. */
static void run_graph_with_two_lanes(int *x, int *y)
{
    cudaStream_t a, b;
    cudaEvent_t event;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    (void)cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    (void)cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    (void)cudaEventCreate(&event);
    (void)cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal);
    (void)GPU_LAUNCH(stage, 1, 64, 0, a, x, y);
    (void)cudaEventRecord(event, a);
    (void)cudaStreamWaitEvent(b, event, 0);
    (void)GPU_LAUNCH(stage, 1, 64, 0, b, y, x);
    (void)cudaEventRecord(event, b);
    (void)cudaStreamWaitEvent(a, event, 0);
    (void)GPU_LAUNCH(stage, 1, 64, 0, a, x, y);
    (void)cudaStreamEndCapture(a, &graph);
    (void)cudaGraphInstantiate(&exec, graph, 0);
    (void)cudaGraphLaunch(exec, a);
    (void)cudaGraphLaunch(exec, a);
    (void)cudaStreamSynchronize(a);
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    (void)cudaStreamDestroy(a);
    (void)cudaStreamDestroy(b);
}

static void run_legacy_stream_between(int *x, int *y)
{
    cudaStream_t a, b;
    (void)cudaStreamCreate(&a);
    (void)cudaStreamCreate(&b);
    (void)GPU_LAUNCH(stage, 1, 64, 0, a, x, y);
    (void)GPU_LAUNCH(stage, 1, 64, 0, nullptr, y, x);
    (void)GPU_LAUNCH(stage, 1, 64, 0, b, x, y);
    (void)cudaDeviceSynchronize();
}

/* Clean but for the block that it keeps: `assay sanitize` calls that a leak. */
static void run_never_freed(int *, int *)
{
    void *kept = nullptr;
    (void)cudaMalloc(&kept, 100);
}

/* All ones are what memory that nobody has written holds; the host has written them. */
static void run_managed_ones_of_the_host(int *, int *y)
{
    int *m = nullptr;
    (void)cudaMallocManaged(&m, 64 * sizeof *m);
    for (int i = 0; i < 32; ++i)
        m[i] = -1;
    for (int i = 32; i < 64; ++i)
        __atomic_store_n(&m[i], -1, __ATOMIC_RELAXED);
    (void)GPU_LAUNCH(map, 1, 64, 0, nullptr, m, y);
    (void)cudaDeviceSynchronize();
    (void)cudaFree(m);
}

static void run_loop_kernel(int *x, int *y)
{
    (void)GPU_LAUNCH_NO_BARRIER(map, 7, 96, 0, nullptr, x, y);
}

#define CASE(name)                                                                                           \
    {                                                                                                        \
#name, nullptr, "", __FILE__, run_##name                                                             \
    }

const race_case CLEAN[] = {
    CASE(map),
    CASE(grid_stride),
    CASE(tree_reduction),
    CASE(shuffle_reduction),
    CASE(transpose),
    CASE(scan_in_a_block),
    CASE(histogram),
    CASE(double_buffer),
    CASE(warp_exchange_by_memory),
    CASE(few_lanes),
    CASE(last_block),
    CASE(last_block_volatile),
    CASE(every_thread_fences),
    CASE(lock),
    CASE(lock_of_a_block),
    CASE(chained_blocks),
    CASE(bytes_side_by_side),
    CASE(vectors),
    CASE(early_return),
    CASE(cpp_atomics),
    CASE(plain_shared_in_many_blocks),
    CASE(one_stream),
    CASE(event_between_streams),
    CASE(graph_with_two_lanes),
    CASE(legacy_stream_between),
    CASE(loop_kernel),
    CASE(managed_ones_of_the_host),
    CASE(never_freed),
    {},
};
