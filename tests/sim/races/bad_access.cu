/* A thread that makes a bad access ends, the others go on: what else is wrong is named as well, and nothing that follows from
 * the thread's absence. */
#include "races.h"

#define KERNEL(name, grid, block)                                                                            \
    __global__ void name(int *x, int *y);                                                                    \
    LAUNCH_CASE(name, grid, block, 0)                                                                        \
    __global__ void name([[maybe_unused]] int *x, [[maybe_unused]] int *y)

KERNEL(race_of_the_others, 1, 64)
{
    if (threadIdx.x == 0)
        y[1] = x[4100];                                               /* c: race_of_the_others */
    y[0] = static_cast<int>(threadIdx.x); /* a: race_of_the_others */ /* b: race_of_the_others */
}

KERNEL(every_thread, 3, 64)
{
    y[2] = static_cast<int>(threadIdx.x); /* a: every_thread */ /* b: every_thread */
    y[threadIdx.x] = x[4100];                                   /* c: every_thread */
}

KERNEL(race_of_other_blocks, 3, 32)
{
    if (blockIdx.x == 0)
        x[4099] = 1;                                                   /* c: race_of_other_blocks */
    y[0] = static_cast<int>(blockIdx.x); /* a: race_of_other_blocks */ /* b: race_of_other_blocks */
}

/* The processor refuses it, not the checker. */
KERNEL(null_pointer, 1, 64)
{
    int *const nowhere = x - reinterpret_cast<intptr_t>(x) / 4;
    if (threadIdx.x % 2 == 0)
        y[1] = nowhere[2];                                      /* c: null_pointer */
    y[0] = static_cast<int>(threadIdx.x); /* a: null_pointer */ /* b: null_pointer */
}

KERNEL(misaligned_beside_race, 1, 64)
{
    if (threadIdx.x == 1)
        *reinterpret_cast<double *>(x + 1) = 1.0;                         /* c: misaligned_beside_race */
    y[0] = static_cast<int>(threadIdx.x); /* a: misaligned_beside_race */ /* b: misaligned_beside_race */
}

/* Where the others wait for the thread, or for each other behind it, their work is over. */
KERNEL(before_a_barrier, 2, 64)
{
    GPU_SHARED(int, s, 64);
    s[threadIdx.x] = threadIdx.x == 3 ? x[4100] : 1; /* a: before_a_barrier */
    __syncthreads();
    y[blockIdx.x * 64 + threadIdx.x] = x[s[63 - threadIdx.x]];
}

KERNEL(the_last_to_come, 1, 64)
{
    GPU_SHARED(int, s, 64);
    s[threadIdx.x] = threadIdx.x == 63 ? x[4100] : 1; /* a: the_last_to_come */
    if (__syncthreads_or(s[threadIdx.x] == 7) == 0)
        y[threadIdx.x] = s[63 - threadIdx.x];
}

KERNEL(those_who_return, 1, 64)
{
    GPU_SHARED(int, s, 64);
    if (threadIdx.x < 32) {
        __syncthreads();
        y[threadIdx.x] = s[40];
    } else if (threadIdx.x == 40) {
        s[40] = x[4100]; /* a: those_who_return */
    }
}

KERNEL(other_warps, 1, 64)
{
    if (threadIdx.x == 5)
        y[1] = x[4100]; /* c: other_warps */
    const int v = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x), 5);
    y[0] = v; /* a: other_warps */ /* b: other_warps */
}

KERNEL(before_a_shuffle, 1, 64)
{
    int v = 1;
    if (threadIdx.x == 5)
        v = x[4100]; /* a: before_a_shuffle */
    y[threadIdx.x] = __shfl_sync(0xffffffffu, v, 5);
    if (threadIdx.x % 32 == 0)
        __syncwarp(1u);
}

KERNEL(after_a_barrier, 1, 96)
{
    GPU_SHARED(int, s, 96);
    s[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x == 40)
        s[0] = x[4100];                                            /* c: after_a_barrier */
    y[0] = static_cast<int>(threadIdx.x); /* a: after_a_barrier */ /* b: after_a_barrier */
    __syncwarp();
    y[100 + threadIdx.x] = s[95 - threadIdx.x];
}

/* After 16 places the launch ends. */
#define LEAVES(n)                                                                                            \
    if (threadIdx.x == (n))                                                                                  \
        y[(n)] = x[4100 + (n)];
KERNEL(many_places, 1, 32)
{
    LEAVES(0)
    LEAVES(1)
    LEAVES(2)
    LEAVES(3)
    LEAVES(4)
    LEAVES(5)
    LEAVES(6)
    LEAVES(7)
    LEAVES(8)
    LEAVES(9)
    LEAVES(10)
    LEAVES(11)
    LEAVES(12)
    LEAVES(13)
    LEAVES(14)
    LEAVES(15)
    LEAVES(16) /* a: many_places */
    LEAVES(17)
    LEAVES(18)
    LEAVES(19)
    y[100] = 1;
}

/* A launch whose threads no jump can end one by one: it ends as a whole. */
__global__ void in_a_loop(int *x, int *y)
{
    if (threadIdx.x == 0)
        y[1] = x[4100]; /* a: no_barrier */
    y[0] = static_cast<int>(threadIdx.x);
}

static void run_no_barrier(int *x, int *y)
{
    (void)GPU_LAUNCH_NO_BARRIER(in_a_loop, 1, 64, 0, nullptr, x, y);
}

#define CASE(name, kind, reports, also)                                                                      \
    {                                                                                                        \
#name, kind, "", __FILE__, run_##name, reports, also                                                 \
    }

const race_case BAD_ACCESS[] = {
    CASE(race_of_the_others, "race", 2, "out of bounds"),
    CASE(every_thread, "race", 2, "out of bounds"),
    CASE(race_of_other_blocks, "race", 2, "out of bounds"),
    CASE(null_pointer, "race", 2, "illegal address"),
    CASE(misaligned_beside_race, "race", 2, "misaligned"),
    CASE(before_a_barrier, "out of bounds", 1, nullptr),
    CASE(the_last_to_come, "out of bounds", 1, nullptr),
    CASE(those_who_return, "out of bounds", 1, nullptr),
    CASE(other_warps, "race", 2, "out of bounds"),
    CASE(before_a_shuffle, "out of bounds", 1, nullptr),
    CASE(after_a_barrier, "race", 2, "out of bounds"),
    CASE(many_places, "out of bounds", 17, nullptr),
    CASE(no_barrier, "out of bounds", 1, nullptr),
    {},
};
