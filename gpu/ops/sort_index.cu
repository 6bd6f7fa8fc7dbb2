/* Orders of the experts' rows from counts on the device.  Not an operation: the index that operations read (gpu/sort_index.h).
 *
 * A block takes one expert.  Each of its warps adds up for itself what lies before that expert: the counts are few, and nobody
 * waits.  Behind the last expert's room all blocks together fill what is left. */
#include "gpu/device.cuh"
#include "gpu/sort_index.h"

enum { SORT_THREADS = 128 };

/* A count below zero is no rows. */
__device__ static __forceinline__ int64_t sort_read(const gpu_sort_index_args &a, int source, int64_t e)
{
    const int64_t n = a.counts[source * a.experts + e];
    return n < 0 ? 0 : n;
}

__device__ static __forceinline__ int64_t sort_count(const gpu_sort_index_args &a, int64_t e)
{
    int64_t n = 0;
    for (int s = 0; s < a.sources; ++s)
        n += sort_read(a, s, e);
    return n;
}

__device__ static __forceinline__ int64_t sort_room(const gpu_sort_index_args &a, int64_t n)
{
    return a.room >= 0 ? a.room : (n + a.multiple - 1) / a.multiple * a.multiple;
}

/* Before expert e, and of all. */
typedef struct sort_sums {
    long long before, all;
} sort_sums;

__device__ static __forceinline__ sort_sums sort_add_up(sort_sums lane)
{
    return {gpu_warp_sum(lane.before), gpu_warp_sum(lane.all)};
}

/* Of the counts of one source. */
__device__ static __forceinline__ sort_sums sort_source(const gpu_sort_index_args &a, int source, int64_t e)
{
    sort_sums sums = {};
    for (int64_t i = threadIdx.x % GPU_WARP; i < a.experts; i += GPU_WARP) {
        const int64_t n = sort_read(a, source, i);
        sums.before += i < e ? n : 0;
        sums.all += n;
    }
    return sort_add_up(sums);
}

/* n rows from old row `from` on get the places from `to` on, as far as they are before `end`. */
__device__ static __forceinline__ void sort_put(const gpu_sort_index_args &a, int64_t from, int64_t to,
                                                int64_t n, int64_t end)
{
    for (int64_t i = threadIdx.x; i < n; i += SORT_THREADS) {
        const bool there = to + i < end && to + i < a.padded && from + i < a.gathered;
        if (there)
            a.sort[to + i] = from + i;
        if (from + i < a.gathered)
            a.unsort[from + i] = there ? to + i : -1;
    }
}

/* Nobody's places from `first` on. */
__device__ static __forceinline__ void sort_clear(int64_t *index, int64_t first, int64_t end, int64_t step)
{
    for (int64_t i = first; i < end; i += step)
        index[i] = -1;
}

__global__ void __launch_bounds__(SORT_THREADS) sort_index(gpu_sort_index_args a)
{
    const int64_t e = blockIdx.x, mine = sort_count(a, e), my_room = sort_room(a, mine);
    sort_sums rows = {}, room = {};
    for (int64_t i = threadIdx.x % GPU_WARP; i < a.experts; i += GPU_WARP) {
        const int64_t n = sort_count(a, i), wide = sort_room(a, n);
        rows.before += i < e ? n : 0;
        rows.all += n;
        room.before += i < e ? wide : 0;
        room.all += wide;
    }
    rows = sort_add_up(rows);
    room = sort_add_up(room);
    if (threadIdx.x == 0)
        a.tokens_per_expert[e] = my_room;
    if (a.sort == nullptr)
        return;
    const int64_t end = room.before + my_room;
    int64_t to = room.before, source_start = 0;
    if (a.merged) {
        sort_put(a, rows.before, to, mine, end);
        to += mine;
    }
    for (int s = 0; s < a.sources && !a.merged; ++s) {
        const sort_sums source = sort_source(a, s, e);
        const int64_t n = sort_read(a, s, e);
        sort_put(a, source_start + source.before, to, n, end);
        to += n;
        source_start += source.all;
    }
    const int64_t step = (int64_t)gridDim.x * SORT_THREADS, first = e * SORT_THREADS + threadIdx.x;
    sort_clear(a.sort, to + threadIdx.x, end < a.padded ? end : a.padded, SORT_THREADS);
    sort_clear(a.sort, room.all + first, a.padded, step);
    sort_clear(a.unsort, rows.all + first, a.gathered, step);
}

cudaError_t gpu_sort_index(const gpu_sort_index_args *args, cudaStream_t stream)
{
    if (args->experts == 0)
        return cudaSuccess;
    return GPU_LAUNCH(sort_index, dim3((unsigned)args->experts), dim3(SORT_THREADS), 0, stream, *args);
}
