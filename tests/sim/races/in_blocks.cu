/* Races among the threads of one block. */
#include "races.h"

#define KERNEL(name, grid, block, bytes)                                                                     \
    __global__ void name(int *x, int *y);                                                                    \
    LAUNCH_CASE(name, grid, block, bytes)                                                                    \
    __global__ void name([[maybe_unused]] int *x, [[maybe_unused]] int *y)

/* --- missing barriers ------------------------------------------------------------------------------------------------ */

KERNEL(read_before_barrier, 1, 64, 0)
{
    GPU_SHARED(int, s, 64);
    s[threadIdx.x] = x[threadIdx.x];      /* a: read_before_barrier */
    y[threadIdx.x] = s[63 - threadIdx.x]; /* b: read_before_barrier */
}

KERNEL(second_barrier_missing, 1, 64, 0)
{
    GPU_SHARED(int, s, 64);
    int sum = 0;
    for (int k = 0; k < 3; ++k) {
        s[threadIdx.x] = x[threadIdx.x] + k; /* a: second_barrier_missing */
        __syncthreads();
        sum += s[(threadIdx.x + 33) % 64]; /* b: second_barrier_missing */
    }
    y[threadIdx.x] = sum;
}

KERNEL(reduction_without_barrier, 1, 128, 0)
{
    GPU_SHARED(int, s, 128);
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    for (unsigned step = 64; step > 0; step /= 2) {
        if (threadIdx.x < step) {
            const int other = s[threadIdx.x + step]; /* b: reduction_without_barrier */
            s[threadIdx.x] += other;                 /* a: reduction_without_barrier */
        }
    }
    if (threadIdx.x == 0)
        y[0] = s[0];
}

KERNEL(barrier_of_one_warp, 1, 64, 0)
{
    GPU_SHARED(int, s, 64);
    s[threadIdx.x] = x[threadIdx.x]; /* a: barrier_of_one_warp */
    __syncwarp();
    y[threadIdx.x] = s[threadIdx.x ^ 32]; /* b: barrier_of_one_warp */
}

KERNEL(dynamic_shared, 1, 64, 256)
{
    GPU_DYNAMIC_SHARED(int, s);
    s[threadIdx.x] = 1;                         /* a: dynamic_shared */
    y[threadIdx.x] = s[(threadIdx.x + 1) % 64]; /* b: dynamic_shared */
}

KERNEL(plain_shared, 1, 64, 0)
{
    __shared__ int s[64];
    s[threadIdx.x] = 1;                         /* a: plain_shared */
    y[threadIdx.x] = s[(threadIdx.x + 1) % 64]; /* b: plain_shared */
}

KERNEL(bytes_overlap, 1, 64, 0)
{
    GPU_SHARED(char, s, 65);
    s[threadIdx.x] = 1;     /* a: bytes_overlap */
    s[threadIdx.x + 1] = 2; /* b: bytes_overlap */
}

KERNEL(half_of_a_word, 1, 64, 0)
{
    GPU_SHARED(int, s, 32);
    short *h = reinterpret_cast<short *>(s);
    h[threadIdx.x] = 1; /* a: half_of_a_word */
    if (threadIdx.x == 40)
        y[0] = s[0]; /* b: half_of_a_word */
}

KERNEL(eight_bytes, 1, 64, 0)
{
    long long *wide = reinterpret_cast<long long *>(x);
    if (threadIdx.x == 0)
        wide[3] = 7; /* a: eight_bytes */
    if (threadIdx.x == 33)
        x[7] = 1; /* b: eight_bytes */
}

KERNEL(vector_store, 1, 64, 0)
{
    float4 *wide = reinterpret_cast<float4 *>(x);
    if (threadIdx.x == 1)
        wide[2] = make_float4(1, 2, 3, 4); /* a: vector_store */
    if (threadIdx.x == 35)
        y[0] = x[11]; /* b: vector_store */
}

KERNEL(same_value, 1, 64, 0)
{
    x[5] = 1; /* a: same_value */ /* b: same_value */
}

KERNEL(global_without_barrier, 1, 64, 0)
{
    x[threadIdx.x] = static_cast<int>(threadIdx.x); /* a: global_without_barrier */
    y[threadIdx.x] = x[63 - threadIdx.x];           /* b: global_without_barrier */
}

KERNEL(counter_without_atomic, 1, 64, 0)
{
    ++x[0]; /* a: counter_without_atomic */ /* b: counter_without_atomic */
}

KERNEL(atomic_and_plain, 1, 64, 0)
{
    if (threadIdx.x < 32)
        atomicAdd(&x[0], 1); /* a: atomic_and_plain */
    else
        y[threadIdx.x] = x[0]; /* b: atomic_and_plain */
}

KERNEL(atomic_and_store, 1, 64, 0)
{
    if (threadIdx.x == 0)
        x[0] = 3; /* a: atomic_and_store */
    else
        atomicMax(&x[0], 1); /* b: atomic_and_store */
}

KERNEL(result_before_barrier, 1, 64, 0)
{
    GPU_SHARED(int, total, 1);
    if (threadIdx.x == 0)
        total[0] = 0;
    __syncthreads();
    atomicAdd(&total[0], 1);   /* a: result_before_barrier */
    y[threadIdx.x] = total[0]; /* b: result_before_barrier */
}

KERNEL(init_without_barrier, 1, 64, 0)
{
    GPU_SHARED(int, total, 1);
    if (threadIdx.x == 0)
        total[0] = 0;        /* a: init_without_barrier */
    atomicAdd(&total[0], 1); /* b: init_without_barrier */
}

/* --- warps ------------------------------------------------------------------------------------------------------------ */

KERNEL(warp_synchronous, 1, 32, 0)
{
    GPU_SHARED(int, s, 32);
    s[threadIdx.x] = x[threadIdx.x];      /* a: warp_synchronous */
    y[threadIdx.x] = s[31 - threadIdx.x]; /* b: warp_synchronous */
}

KERNEL(half_a_warp_meets, 1, 32, 0)
{
    GPU_SHARED(int, s, 32);
    s[threadIdx.x] = 1; /* a: half_a_warp_meets */
    __syncwarp(threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u);
    y[threadIdx.x] = s[threadIdx.x ^ 16]; /* b: half_a_warp_meets */
}

KERNEL(shuffle_of_few, 1, 32, 0)
{
    GPU_SHARED(int, s, 32);
    s[threadIdx.x] = 1; /* a: shuffle_of_few */
    const unsigned mask = 3u << (threadIdx.x & ~1u);
    const int other = __shfl_xor_sync(mask, 1, 1);
    y[threadIdx.x] = other + s[threadIdx.x ^ 2]; /* b: shuffle_of_few */
}

KERNEL(after_the_exchange, 1, 32, 0)
{
    GPU_SHARED(int, s, 32);
    s[threadIdx.x] = 1;
    __syncwarp();
    s[threadIdx.x] = 2;                  /* a: after_the_exchange */
    y[threadIdx.x] = s[threadIdx.x ^ 1]; /* b: after_the_exchange */
}

KERNEL(warp_result_for_the_block, 1, 64, 0)
{
    GPU_SHARED(int, s, 2);
    const int sum = __reduce_add_sync(0xffffffffu, x[threadIdx.x]);
    if (threadIdx.x % 32 == 0)
        s[threadIdx.x / 32] = sum; /* a: warp_result_for_the_block */
    __syncwarp();
    y[threadIdx.x] = s[0] + s[1]; /* b: warp_result_for_the_block */
}

/* --- fences and flags within the block ---------------------------------------------------------------------------------- */

KERNEL(flag_without_fence, 1, 64, 0)
{
    if (threadIdx.x == 0) {
        x[1] = 5; /* a: flag_without_fence */
        atomicExch(&x[0], 1);
    } else if (threadIdx.x == 32 && atomicAdd(&x[0], 0) == 1) {
        __threadfence_block();
        y[0] = x[1]; /* b: flag_without_fence */
    }
}

KERNEL(flag_not_acquired, 1, 64, 0)
{
    if (threadIdx.x == 0) {
        x[1] = 5; /* a: flag_not_acquired */
        __threadfence_block();
        atomicExch(&x[0], 1);
    } else if (threadIdx.x == 32 && atomicAdd(&x[0], 0) == 1) {
        y[0] = x[1]; /* b: flag_not_acquired */
    }
}

KERNEL(plain_flag, 1, 64, 0)
{
    if (threadIdx.x == 0) {
        x[1] = 5;
        __threadfence();
        x[0] = 1;                                /* a: plain_flag */
    } else if (threadIdx.x == 32 && x[0] == 1) { /* b: plain_flag */
        y[0] = 1;
    }
}

/* --- barriers that not all reach ------------------------------------------------------------------------------------------ */

KERNEL(barrier_in_a_branch, 1, 64, 0)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

KERNEL(barrier_and_warp, 1, 64, 0)
{
    if (threadIdx.x < 16)
        __syncwarp(); /* waits for 16 lanes that are at the barrier */
    else
        __syncthreads();
}

#define CASE(name)                                                                                           \
    {                                                                                                        \
#name, "race", "", __FILE__, run_##name                                                              \
    }

const race_case RACES_IN_BLOCKS[] = {
    CASE(read_before_barrier),
    CASE(second_barrier_missing),
    CASE(reduction_without_barrier),
    CASE(barrier_of_one_warp),
    CASE(dynamic_shared),
    CASE(plain_shared),
    CASE(bytes_overlap),
    CASE(half_of_a_word),
    CASE(eight_bytes),
    CASE(vector_store),
    CASE(same_value),
    CASE(global_without_barrier),
    CASE(counter_without_atomic),
    CASE(atomic_and_plain),
    CASE(atomic_and_store),
    CASE(result_before_barrier),
    CASE(init_without_barrier),
    CASE(warp_synchronous),
    CASE(half_a_warp_meets),
    CASE(shuffle_of_few),
    CASE(after_the_exchange),
    CASE(warp_result_for_the_block),
    CASE(flag_without_fence),
    CASE(flag_not_acquired),
    CASE(plain_flag),
    MARKED(barrier_in_a_branch, "divergent barrier", "kernel barrier_in_a_branch", 0),
    MARKED(barrier_and_warp, "divergent warp", "kernel barrier_and_warp", 0),
    {},
};
