/* Races between blocks of a grid and between streams; scopes, fences, locks. */
#include "races.h"

#define KERNEL(name, grid, block)                                                                            \
    __global__ void name(int *x, int *y);                                                                    \
    LAUNCH_CASE(name, grid, block, 0)                                                                        \
    __global__ void name([[maybe_unused]] int *x, [[maybe_unused]] int *y)

KERNEL(blocks_write_one_word, 4, 32)
{
    if (threadIdx.x == 0)
        x[0] = static_cast<int>(blockIdx.x); /* a: blocks_write_one_word */ /* b: blocks_write_one_word */
}

KERNEL(halo, 4, 32)
{
    const unsigned i = blockIdx.x * 32 + threadIdx.x;
    x[i] = 1; /* a: halo */
    __syncthreads();
    y[i] = x[(i + 127) % 128]; /* b: halo */
}

KERNEL(write_over_neighbours_input, 4, 32)
{
    const unsigned i = blockIdx.x * 32 + threadIdx.x;
    const int right = x[i + 1]; /* a: write_over_neighbours_input */
    __syncthreads();
    x[i] = right; /* b: write_over_neighbours_input */
}

KERNEL(overlapping_tiles, 4, 32)
{
    x[blockIdx.x * 31 + threadIdx.x] = 1; /* a: overlapping_tiles */ /* b: overlapping_tiles */
}

KERNEL(sum_without_atomic, 4, 32)
{
    if (threadIdx.x == 0)
        x[0] += 1; /* a: sum_without_atomic */ /* b: sum_without_atomic */
}

KERNEL(block_atomics_across_blocks, 4, 32)
{
    atomicAdd_block(&x[0], 1); /* a: block_atomics_across_blocks */ /* b: block_atomics_across_blocks */
}

KERNEL(block_and_device_atomics, 2, 32)
{
    if (blockIdx.x == 0)
        atomicAdd(&x[0], 1); /* a: block_and_device_atomics */
    else
        atomicAdd_block(&x[0], 1); /* b: block_and_device_atomics */
}

KERNEL(last_block_without_fence, 4, 32)
{
    if (threadIdx.x != 0)
        return;
    x[8 + blockIdx.x] = 1; /* a: last_block_without_fence */
    if (atomicAdd(&x[0], 1) == 3) {
        __threadfence();
        y[0] = x[8]; /* b: last_block_without_fence */
    }
}

KERNEL(last_block_with_block_fence, 4, 32)
{
    if (threadIdx.x != 0)
        return;
    x[8 + blockIdx.x] = 1; /* a: last_block_with_block_fence */
    __threadfence_block();
    if (atomicAdd(&x[0], 1) == 3) {
        __threadfence();
        y[0] = x[8]; /* b: last_block_with_block_fence */
    }
}

KERNEL(last_block_acquires_narrowly, 4, 32)
{
    if (threadIdx.x != 0)
        return;
    x[8 + blockIdx.x] = 1; /* a: last_block_acquires_narrowly */
    __threadfence();
    if (atomicAdd(&x[0], 1) == 3) {
        __threadfence_block();
        y[0] = x[8]; /* b: last_block_acquires_narrowly */
    }
}

KERNEL(fence_before_the_data, 4, 32)
{
    if (threadIdx.x != 0)
        return;
    __threadfence();
    x[8 + blockIdx.x] = 1; /* a: fence_before_the_data */
    if (atomicAdd(&x[0], 1) == 3) {
        __threadfence();
        y[0] = x[8]; /* b: fence_before_the_data */
    }
}

KERNEL(others_of_the_block_not_waited_for, 4, 64)
{
    x[8 + blockIdx.x * 64 + threadIdx.x] = 1; /* a: others_of_the_block_not_waited_for */
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicAdd(&x[0], 1) == 3) {
            __threadfence();
            for (int i = 0; i < 256; ++i)
                y[0] += x[8 + i]; /* b: others_of_the_block_not_waited_for */
        }
    }
}

KERNEL(lock_without_fences, 4, 32)
{
    if (threadIdx.x == 0) {
        while (atomicCAS(&x[0], 0, 1) != 0) {
        }
        x[1] += 1; /* a: lock_without_fences */ /* b: lock_without_fences */
        atomicExch(&x[0], 0);
    }
}

KERNEL(lock_released_without_fence, 4, 32)
{
    if (threadIdx.x == 0) {
        while (atomicCAS(&x[0], 0, 1) != 0) {
        }
        __threadfence();
        x[1] += 1; /* a: lock_released_without_fence */ /* b: lock_released_without_fence */
        atomicExch(&x[0], 0);
    }
}

KERNEL(lock_with_block_fences, 4, 32)
{
    if (threadIdx.x == 0) {
        while (atomicCAS(&x[0], 0, 1) != 0) {
        }
        __threadfence_block();
        x[1] += 1; /* a: lock_with_block_fences */ /* b: lock_with_block_fences */
        __threadfence_block();
        atomicExch(&x[0], 0);
    }
}

KERNEL(lock_released_by_a_store, 4, 32)
{
    if (threadIdx.x == 0) {
        while (atomicCAS(&x[0], 0, 1) != 0) { /* b: lock_released_by_a_store */
        }
        __threadfence();
        x[1] += 1;
        __threadfence();
        x[0] = 0; /* a: lock_released_by_a_store */
    }
}

KERNEL(two_locks_for_one_word, 4, 32)
{
    if (threadIdx.x == 0) {
        int *lock = &x[blockIdx.x % 2];
        while (atomicCAS(lock, 0, 1) != 0) {
        }
        __threadfence();
        x[2] += 1; /* a: two_locks_for_one_word */ /* b: two_locks_for_one_word */
        __threadfence();
        atomicExch(lock, 0);
    }
}

KERNEL(read_outside_the_lock, 4, 32)
{
    if (threadIdx.x == 0) {
        while (atomicCAS(&x[0], 0, 1) != 0) {
        }
        __threadfence();
        x[1] = 3; /* a: read_outside_the_lock */
        __threadfence();
        atomicExch(&x[0], 0);
    } else if (threadIdx.x == 5) {
        y[blockIdx.x] = x[1]; /* b: read_outside_the_lock */
    }
}

__global__ void no_barrier_kernel(int *x, int *)
{
    x[threadIdx.x] = static_cast<int>(blockIdx.x); /* a: no_barrier_kernel */ /* b: no_barrier_kernel */
}

static void run_no_barrier_kernel(int *x, int *y)
{
    (void)GPU_LAUNCH_NO_BARRIER(no_barrier_kernel, 4, 32, 0, nullptr, x, y);
}

/* --- streams ---------------------------------------------------------------------------------------------------------- */

__global__ void produce(int *x)
{
    x[threadIdx.x] = 1; /* a: streams */
}

__global__ void consume(const int *x, int *y)
{
    y[threadIdx.x] = x[threadIdx.x]; /* b: streams */
}

__global__ void produce_first(int *x)
{
    x[threadIdx.x] = 3; /* a: event_of_another_stream */
}

__global__ void produce_late(int *x)
{
    x[threadIdx.x] = 4; /* a: event_too_early */
}

__global__ void fill_over(int *x)
{
    x[threadIdx.x] = 5; /* a: memset_beside_a_kernel */
}

__global__ void consume_after(const int *x, int *y)
{
    y[threadIdx.x] = x[threadIdx.x] + 1; /* b: event_of_another_stream */
}

__global__ void consume_early(const int *x, int *y)
{
    y[threadIdx.x] = x[threadIdx.x] + 2; /* b: event_too_early */
}

__global__ void fill(int *x)
{
    x[threadIdx.x] = 2; /* a: copy_beside_a_kernel */
}

__global__ void produce_in_a_lane(int *x)
{
    x[threadIdx.x] = 6; /* a: lanes_of_a_graph */
}

__global__ void consume_in_a_lane(const int *x, int *y)
{
    y[threadIdx.x] = x[threadIdx.x] + 3; /* b: lanes_of_a_graph */
}

struct two_streams {
    cudaStream_t a, b, c;
    cudaEvent_t event;
    two_streams()
    {
        (void)cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
        (void)cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
        (void)cudaStreamCreateWithFlags(&c, cudaStreamNonBlocking);
        (void)cudaEventCreate(&event);
        (void)cudaDeviceSynchronize();
    }
};

static void run_streams(int *x, int *y)
{
    two_streams s;
    (void)GPU_LAUNCH(produce, 1, 32, 0, s.a, x);
    (void)GPU_LAUNCH(consume, 1, 32, 0, s.b, x, y);
}

static void run_event_of_another_stream(int *x, int *y)
{
    two_streams s;
    (void)GPU_LAUNCH(produce_first, 1, 32, 0, s.a, x);
    (void)cudaEventRecord(s.event, s.c);
    (void)cudaStreamWaitEvent(s.b, s.event, 0);
    (void)GPU_LAUNCH(consume_after, 1, 32, 0, s.b, x, y);
}

static void run_event_too_early(int *x, int *y)
{
    two_streams s;
    (void)cudaEventRecord(s.event, s.a);
    (void)GPU_LAUNCH(produce_late, 1, 32, 0, s.a, x);
    (void)cudaStreamWaitEvent(s.b, s.event, 0);
    (void)GPU_LAUNCH(consume_early, 1, 32, 0, s.b, x, y);
}

static void run_copy_beside_a_kernel(int *x, int *y)
{
    two_streams s;
    (void)GPU_LAUNCH(fill, 1, 32, 0, s.a, x);
    (void)cudaMemcpyAsync(y, x, 128, cudaMemcpyDeviceToDevice, s.b);
}

static void run_memset_beside_a_kernel(int *x, int *)
{
    two_streams s;
    (void)GPU_LAUNCH(fill_over, 1, 32, 0, s.a, x);
    (void)cudaMemsetAsync(x, 0, 128, s.b);
}

/* Two lanes that are joined at the end, and not where one reads what the other writes. */
static void run_lanes_of_a_graph(int *x, int *y)
{
    two_streams s;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaEvent_t join;
    (void)cudaEventCreate(&join);
    (void)cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal);
    (void)cudaEventRecord(s.event, s.a);
    (void)cudaStreamWaitEvent(s.b, s.event, 0);
    (void)GPU_LAUNCH(produce_in_a_lane, 1, 32, 0, s.a, x);
    (void)GPU_LAUNCH(consume_in_a_lane, 1, 32, 0, s.b, x, y);
    (void)cudaEventRecord(join, s.b);
    (void)cudaStreamWaitEvent(s.a, join, 0);
    (void)cudaStreamEndCapture(s.a, &graph);
    (void)cudaGraphInstantiate(&exec, graph, 0);
    (void)cudaGraphLaunch(exec, s.a);
}

#define CASE(name, words)                                                                                    \
    {                                                                                                        \
#name, "race", words, __FILE__, run_##name                                                           \
    }
#define BLOCKS "of two blocks of a grid"

const race_case RACES_IN_GRIDS[] = {
    CASE(blocks_write_one_word, BLOCKS),
    CASE(halo, BLOCKS),
    CASE(write_over_neighbours_input, BLOCKS),
    CASE(overlapping_tiles, BLOCKS),
    CASE(sum_without_atomic, BLOCKS),
    CASE(block_atomics_across_blocks, "an atomic of block scope does not reach"),
    CASE(block_and_device_atomics, "an atomic of block scope does not reach"),
    CASE(last_block_without_fence, BLOCKS),
    CASE(last_block_with_block_fence, BLOCKS),
    CASE(last_block_acquires_narrowly, BLOCKS),
    CASE(fence_before_the_data, BLOCKS),
    CASE(others_of_the_block_not_waited_for, BLOCKS),
    CASE(lock_without_fences, BLOCKS),
    CASE(lock_released_without_fence, BLOCKS),
    CASE(lock_with_block_fences, BLOCKS),
    CASE(lock_released_by_a_store, BLOCKS),
    CASE(two_locks_for_one_word, BLOCKS),
    CASE(read_outside_the_lock, ""),
    CASE(no_barrier_kernel, BLOCKS),
    CASE(streams, "of two streams"),
    CASE(event_of_another_stream, "of two streams"),
    CASE(event_too_early, "of two streams"),
    MARKED(copy_beside_a_kernel, "race", "of two streams", 1),
    MARKED(memset_beside_a_kernel, "race", "of two streams", 1),
    CASE(lanes_of_a_graph, "of two streams"),
    {},
};
