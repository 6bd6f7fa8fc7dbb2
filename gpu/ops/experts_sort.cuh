/* The plan of the experts' rows as a counting sort (k2 of experts.cu), and what its rungs write.
 *
 * Assignments lie in chunks, one for each block, and a chunk in a part for each of its warps, which takes 32 at a time: lanes of
 * one expert find each other by a match, so that places ascend with the assignments' numbers.  plan_count_k2 writes how many of
 * every expert are in each chunk; plan_place_k2 adds up what lies before its own, and writes the rows.  Integers alone. */
#ifndef GPU_OPS_EXPERTS_SORT_CUH
#define GPU_OPS_EXPERTS_SORT_CUH

#include "gpu/device.cuh"
#include <limits.h>

enum {
    PLAN_THREADS = 256,
    PLAN_WARPS = PLAN_THREADS / GPU_WARP,
    PLAN_PART = 256, /* assignments of a warp */
    PLAN_CHUNK = PLAN_WARPS * PLAN_PART,
    PLAN_MOST_EXPERTS = 1024 /* (PLAN_WARPS + 1) counters each in shared memory, and one for all */
};

typedef struct plan_rows {
    int64_t *row_token, *row_entry, *token_row;
    int64_t rows; /* of row_token and row_entry: a place beyond them is not written */
} plan_rows;

/* A row that no assignment has, where there are more of them than assignments. */
__device__ static __forceinline__ void plan_put_nobodys(plan_rows out, int64_t row)
{
    out.row_token[row] = -1;
    out.row_entry[row] = -1;
}

/* Assignment i, of a token, gets a row. */
__device__ static __forceinline__ void plan_put(plan_rows out, int64_t i, int64_t row, int64_t token)
{
    const bool there = row < out.rows;
    out.token_row[i] = there ? row : -1;
    if (there) {
        out.row_token[row] = token;
        out.row_entry[row] = i;
    }
}

/* put(i, e, same) for each assignment of the warp: its expert, -1 for none, and the lanes with the same one. */
template <class PUT>
__device__ static __forceinline__ void plan_each(const int64_t *indices, int n, int experts, PUT put)
{
    const int warp = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP;
    const int part = (int)blockIdx.x * PLAN_CHUNK + warp * PLAN_PART, end = min(part + PLAN_PART, n);
    for (int base = part; base < end; base += GPU_WARP) {
        const int i = base + lane;
        const int64_t index = i < n ? indices[i] : -1;
        const int e = index >= 0 && index < experts ? (int)index : -1;
        put(i, e, __match_any_sync(gpu_all_lanes, e));
    }
}

__device__ static __forceinline__ bool plan_leads(unsigned same)
{
    return __ffs((int)same) - 1 == (int)threadIdx.x % GPU_WARP;
}

/* by_block [blocks,experts] */
__global__ void __launch_bounds__(PLAN_THREADS)
    plan_count_k2(int *by_block, const int64_t *indices, int n, int experts)
{
    GPU_DYNAMIC_SHARED(int, count);
    for (int e = (int)threadIdx.x; e < experts; e += PLAN_THREADS)
        count[e] = 0;
    __syncthreads();
    plan_each(indices, n, experts, [&](int, int e, unsigned same) {
        if (e >= 0 && plan_leads(same))
            atomicAdd(&count[e], __popc(same));
    });
    __syncthreads();
    for (int e = (int)threadIdx.x; e < experts; e += PLAN_THREADS)
        by_block[(int)blockIdx.x * experts + e] = count[e];
}

/* next[warp][e]: how many of expert e the warp has. */
__device__ static __forceinline__ void plan_count_warps(int *next, const int64_t *indices, int n, int experts)
{
    int *mine = next + (int)threadIdx.x / GPU_WARP * experts;
    for (int i = (int)threadIdx.x; i < PLAN_WARPS * experts; i += PLAN_THREADS)
        next[i] = 0;
    __syncthreads();
    plan_each(indices, n, experts, [&](int, int e, unsigned same) {
        if (e >= 0 && plan_leads(same))
            mine[e] += __popc(same);
        __syncwarp();
    });
}

/* first[e]: how many rows expert e has, then where they begin, and behind the last one where all end; the first warp alone. */
__device__ static __forceinline__ void plan_begin_experts(int *first, int experts)
{
    int rows = 0, before;
    for (int base = 0; base < experts; base += GPU_WARP) {
        const int e = base + (int)threadIdx.x;
        const int end = gpu_warp_prefix(e < experts ? first[e] : 0, INT_MAX / 2, &before);
        if (e < experts)
            first[e] = rows + before;
        rows += __shfl_sync(gpu_all_lanes, end, GPU_WARP - 1);
    }
    if (threadIdx.x == 0)
        first[experts] = rows;
}

__global__ void __launch_bounds__(PLAN_THREADS)
    plan_place_k2(plan_rows out, int64_t *tokens_per_expert, const int *by_block, const int64_t *indices,
                  int n, int k, int experts, int first_expert, int end_expert)
{
    GPU_DYNAMIC_SHARED(int, next);
    int *first = next + PLAN_WARPS * experts, *mine = next + (int)threadIdx.x / GPU_WARP * experts;
    plan_count_warps(next, indices, n, experts);
    for (int e = (int)threadIdx.x; e < experts; e += PLAN_THREADS) {
        int total = 0;
        for (int b = 0; b < (int)gridDim.x; ++b)
            total += by_block[b * experts + e];
        first[e] = e >= first_expert && e < end_expert ? total : 0;
        if (blockIdx.x == 0)
            tokens_per_expert[e] = total;
    }
    __syncthreads();
    if (threadIdx.x < GPU_WARP)
        plan_begin_experts(first, experts);
    __syncthreads();
    for (int e = (int)threadIdx.x; e < experts; e += PLAN_THREADS) {
        int row = first[e];
        for (int b = 0; b < (int)blockIdx.x; ++b)
            row += by_block[b * experts + e];
        for (int w = 0; w < PLAN_WARPS; ++w) {
            const int count = next[w * experts + e];
            next[w * experts + e] = row;
            row += count;
        }
    }
    __syncthreads();
    plan_each(indices, n, experts, [&](int i, int e, unsigned same) {
        const bool local = e >= first_expert && e < end_expert;
        const int row = local ? mine[e] : 0;
        __syncwarp(); /* all have read before the first of them writes */
        if (local && plan_leads(same))
            mine[e] = row + __popc(same);
        __syncwarp();
        if (local)
            plan_put(out, i, row + __popc(same & ((1u << (threadIdx.x % GPU_WARP)) - 1u)), i / k);
        else if (i < n)
            out.token_row[i] = -1;
    });
    const int64_t step = (int64_t)gridDim.x * PLAN_THREADS;
    for (int64_t row = first[experts] + gpu_thread(); row < out.rows; row += step)
        plan_put_nobodys(out, row);
}

#endif
