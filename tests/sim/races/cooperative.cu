/* Cooperative launches: the grid's barrier orders all blocks; races and divergence where it is missing or not met by all. */
#include "races.h"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

#define KERNEL(name, grid, block)                                                                            \
    __global__ void name(int *x, int *y);                                                                    \
    static void run_##name(int *x, int *y)                                                                   \
    {                                                                                                        \
        (void)assay_sim::launch_as(#name, 0, 1, name, grid, block, 0, nullptr, x, y);                        \
    }                                                                                                        \
    __global__ void name([[maybe_unused]] int *x, [[maybe_unused]] int *y)

static __device__ unsigned global_thread()
{
    return blockIdx.x * blockDim.x + threadIdx.x;
}

/* --- racy --------------------------------------------------------------------------------------------------------- */

KERNEL(grid_sync_missing, 4, 32)
{
    const unsigned i = global_thread();
    x[i] = 1; /* a: grid_sync_missing */
    __syncwarp();
    y[i] = x[(i + 32) % 128]; /* b: grid_sync_missing */
}

KERNEL(block_sync_for_grid_sync, 4, 64)
{
    const unsigned i = global_thread();
    x[i] = 1; /* a: block_sync_for_grid_sync */
    __syncthreads();
    y[i] = x[255 - i]; /* b: block_sync_for_grid_sync */
}

/* Two buffers, of which one is used again a step too early. */
KERNEL(second_grid_sync_missing, 3, 32)
{
    const unsigned i = global_thread();
    x[i] = 1;
    cg::this_grid().sync();
    y[i] = x[(i + 32) % 96]; /* a: second_grid_sync_missing */
    x[i] = 2;                /* b: second_grid_sync_missing */
    cg::this_grid().sync();
}

/* The writer waits at the barrier already; the reader has not come there. */
KERNEL(read_before_grid_sync, 2, 32)
{
    if (blockIdx.x == 0)
        x[threadIdx.x] = 1; /* a: read_before_grid_sync */
    else
        y[threadIdx.x] = x[threadIdx.x]; /* b: read_before_grid_sync */
    cg::this_grid().sync();
}

KERNEL(grid_sync_then_one_word, 4, 32)
{
    cg::this_grid().sync();
    if (threadIdx.x == 0)
        x[0] += 1; /* a: grid_sync_then_one_word */ /* b: grid_sync_then_one_word */
}

/* Behind the barrier nothing is ordered that comes after it. */
KERNEL(flag_without_fence_behind_grid_sync, 2, 32)
{
    cg::this_grid().sync();
    if (threadIdx.x != 0)
        return;
    if (blockIdx.x == 1) {
        x[8] = 1; /* a: flag_without_fence_behind_grid_sync */
        atomicExch(&x[0], 1);
    } else {
        while (atomicAdd(&x[0], 0) == 0) {
        }
        y[0] = x[8]; /* b: flag_without_fence_behind_grid_sync */
    }
}

KERNEL(narrow_atomics_on, 2, 32)
{
    atomicAdd(&x[1], 1);
    cg::this_grid().sync();
    atomicAdd_block(&x[0], 1); /* a: narrow_atomics_on */ /* b: narrow_atomics_on */
}

/* --- divergent ---------------------------------------------------------------------------------------------------- */

KERNEL(grid_sync_by_some_blocks, 4, 32)
{
    if (blockIdx.x < 3)
        cg::this_grid().sync();
}

KERNEL(grid_sync_by_some_threads, 2, 64)
{
    if (threadIdx.x < 32)
        cg::this_grid().sync();
    else
        __syncthreads();
}

KERNEL(grid_sync_without_the_first_thread, 2, 64)
{
    if (threadIdx.x == 0)
        return;
    cg::this_grid().sync();
}

KERNEL(one_grid_sync_more, 3, 32)
{
    cg::this_grid().sync();
    if (blockIdx.x == 1)
        cg::this_grid().sync();
}

/* --- clean -------------------------------------------------------------------------------------------------------- */

KERNEL(grid_turns, 5, 48)
{
    const unsigned i = global_thread(), n = gridDim.x * blockDim.x;
    cg::grid_group grid = cg::this_grid();
    x[i] = static_cast<int>(i);
    for (int step = 0; step < 4; ++step) {
        grid.sync();
        y[i] = x[(i + 37) % n];
        grid.sync();
        x[i] = y[(i + 61) % n];
    }
}

KERNEL(grid_reduction, 4, 64)
{
    GPU_SHARED(int, s, 64);
    s[threadIdx.x] = x[global_thread()];
    __syncthreads();
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int i = 0; i < 64; ++i)
            sum += s[i];
        y[blockIdx.x] = sum;
    }
    cg::this_grid().sync();
    if (global_thread() == 0)
        y[0] += y[1] + y[2] + y[3];
    cg::this_grid().sync();
    x[global_thread()] = y[0];
}

/* Only threads that are no block's first one have returned. */
KERNEL(grid_sync_after_some_have_returned, 3, 64)
{
    x[global_thread()] = 1;
    if (threadIdx.x >= 40)
        return;
    cg::this_grid().sync();
    y[global_thread()] = x[(global_thread() + 64) % 192];
}

/* A barrier of the grid made by hand: every block spins until all have come. */
KERNEL(grid_barrier_by_hand, 6, 32)
{
    x[8 + global_thread()] = 1;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&x[0], 1);
        while (atomicAdd(&x[0], 0) < 6) {
        }
        __threadfence();
    }
    __syncthreads();
    y[global_thread()] = x[8 + (global_thread() + 96) % 192];
}

KERNEL(shared_memory_across_grid_sync, 4, 32)
{
    GPU_SHARED(int, s, 32);
    __shared__ int plain[32];
    s[threadIdx.x] = plain[threadIdx.x] = static_cast<int>(blockIdx.x);
    cg::this_grid().sync();
    y[global_thread()] = s[31 - threadIdx.x] + plain[31 - threadIdx.x];
}

KERNEL(cooperative_alone, 1, 32)
{
    x[threadIdx.x] = 1;
    cg::this_grid().sync();
    y[threadIdx.x] = x[31 - threadIdx.x];
}

#define BLOCKS "of two blocks of a grid"
#define CASE(name, kind, words)                                                                              \
    {                                                                                                        \
#name, kind, words, __FILE__, run_##name                                                             \
    }

const race_case COOPERATIVE[] = {
    CASE(grid_sync_missing, "race", BLOCKS),
    CASE(block_sync_for_grid_sync, "race", BLOCKS),
    CASE(second_grid_sync_missing, "race", BLOCKS),
    CASE(read_before_grid_sync, "race", BLOCKS),
    CASE(grid_sync_then_one_word, "race", BLOCKS),
    CASE(flag_without_fence_behind_grid_sync, "race", BLOCKS),
    CASE(narrow_atomics_on, "race", "an atomic of block scope does not reach"),
    MARKED(grid_sync_by_some_blocks, "divergent barrier", "other blocks have ended", 0),
    MARKED(grid_sync_by_some_threads, "divergent barrier", "arrives at this block barrier while thread", 0),
    MARKED(grid_sync_without_the_first_thread, "divergent barrier", "1 threads of the block have exited", 0),
    MARKED(one_grid_sync_more, "divergent barrier", "other blocks have ended", 0),
    CASE(grid_turns, nullptr, ""),
    CASE(grid_reduction, nullptr, ""),
    CASE(grid_sync_after_some_have_returned, nullptr, ""),
    CASE(grid_barrier_by_hand, nullptr, ""),
    CASE(shared_memory_across_grid_sync, nullptr, ""),
    CASE(cooperative_alone, nullptr, ""),
    {},
};
