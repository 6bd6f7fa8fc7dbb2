/* Backward of the embedding by sorted tokens, k2: time does not depend on how often an id stands in the batch.  docs/OPS.md 6.
 *
 *   count, scan, place   the ids of this piece of the vocabulary, stable, by 8 bits at a time (LSD radix sort; counts of 256 tokens a
 *                        warp); what is not of this piece, or padding, sorts behind
 *   runs                 where the tokens of each place's id begin and how many they are
 *   sum                  a warp for each id and 32 or 256 columns, a lane's in groups of four that lie side by side with those of its
 *                        neighbours; of an id with more than HOT tokens, one for each chain
 *   join                 the chains of those ids, onto dweight
 *
 * Arithmetic: the n rows of an id, t ascending, are chains of ceil(n / EMBEDDING_CHAINS) rows; each is added in order from 0 on, the
 * chains are added in order, and dweight takes the sum at last.  One warp does all of it for an id of up to HOT tokens, several for
 * others: the same bits.  No atomics but on counts. */
#include "gpu/ops/embedding.cuh"
#include "gpu/vector.cuh"

enum {
    DIGIT_BITS = 8,
    DIGITS = 1 << DIGIT_BITS,
    SORT_TOKENS = 256, /* of a warp that counts and places */
    HOT = 512,         /* tokens of an id that one warp adds up */
    HOT_PLACES = HOT / EMBEDDING_CHAINS
};
static_assert(HOT % EMBEDDING_CHAINS == 0, "a chain of a hot id has more than HOT_PLACES tokens");

/* Rows that are loaded before they are added. */
#if defined(__CUDACC__)
#define EMBEDDING_UNROLL _Pragma("unroll 4")
#else
#define EMBEDDING_UNROLL
#endif

typedef struct embedding_run {
    int first, n; /* n 0: another piece's, or padding */
} embedding_run;

/* The call arena: two lists of keys and tokens, counts, runs, sums of chains. */
typedef struct embedding_room {
    int *key[2], *token[2], *counts;
    embedding_run *runs;
    float *chains; /* [t / HOT_PLACES, h] */
} embedding_room;

static int64_t sort_blocks(int64_t t)
{
    return (t + SORT_TOKENS - 1) / SORT_TOKENS;
}

/* Places of the parts, each at a multiple of 256 bytes; the bytes of all. */
static size_t room_of(embedding_room *r, void *workspace, int64_t t, int64_t h)
{
    const size_t list = sizeof(int) * (size_t)t;
    const size_t bytes[] = {list,
                            list,
                            list,
                            list,
                            sizeof(int) * (size_t)(sort_blocks(t) * DIGITS),
                            sizeof(embedding_run) * (size_t)t,
                            sizeof(float) * (size_t)(t / HOT_PLACES * h)};
    char *part[sizeof bytes / sizeof bytes[0]];
    size_t at = 0;
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; ++i) {
        part[i] = (char *)workspace + at;
        at += (bytes[i] + 255) / 256 * 256;
    }
    *r = {{(int *)part[0], (int *)part[1]},
          {(int *)part[2], (int *)part[3]},
          (int *)part[4],
          (embedding_run *)part[5],
          (float *)part[6]};
    return at;
}

size_t gpu_embedding_bwd_sorted_bytes(int64_t t, int64_t h)
{
    embedding_room r;
    return room_of(&r, NULL, t, h);
}

/* Place in this piece of the vocabulary; v: another's, or padding. */
__global__ void embedding_keys(int *key, int *token, const int64_t *ids, int64_t vocab_start,
                               int64_t padding_idx, int64_t v, int t)
{
    for (int64_t i = gpu_thread(); i < t; i += gpu_threads()) {
        const int64_t id = ids[i];
        const bool adds = id >= vocab_start && id - vocab_start < v && id != padding_idx;
        key[i] = adds ? (int)(id - vocab_start) : (int)v;
        token[i] = (int)i;
    }
}

/* counts[digit, block]: the block's tokens with that digit. */
__global__ void embedding_count(int *counts, const int *key, int shift, int t)
{
    GPU_SHARED(int, mine, DIGITS);
    const int lane = (int)threadIdx.x, first = (int)blockIdx.x * SORT_TOKENS;
    for (int d = lane; d < DIGITS; d += GPU_WARP)
        mine[d] = 0;
    __syncwarp();
    for (int i = first + lane; i < t && i < first + SORT_TOKENS; i += GPU_WARP)
        atomicAdd(&mine[key[i] >> shift & (DIGITS - 1)], 1);
    __syncwarp();
    for (int d = lane; d < DIGITS; d += GPU_WARP)
        counts[d * (int)gridDim.x + (int)blockIdx.x] = mine[d];
}

/* In place of each count: how many stand before it.  One block, a thread for each digit. */
__global__ void embedding_scan(int *counts, int blocks)
{
    GPU_SHARED(int, before, DIGITS);
    const int digit = (int)threadIdx.x;
    int sum = 0;
    for (int b = 0; b < blocks; ++b)
        sum += counts[digit * blocks + b];
    before[digit] = sum;
    __syncthreads();
    for (int reach = 1; reach < DIGITS; reach *= 2) {
        const int lower = digit >= reach ? before[digit - reach] : 0;
        __syncthreads();
        before[digit] += lower;
        __syncthreads();
    }
    int at = before[digit] - sum;
    for (int b = 0; b < blocks; ++b) {
        const int n = counts[digit * blocks + b];
        counts[digit * blocks + b] = at;
        at += n;
    }
}

/* Tokens of one digit keep their order: 32 at a time, each behind the lanes below it that have the same. */
__global__ void embedding_place(int *to_key, int *to_token, const int *key, const int *token,
                                const int *counts, int shift, int t)
{
    GPU_SHARED(int, next, DIGITS);
    const int lane = (int)threadIdx.x, first = (int)blockIdx.x * SORT_TOKENS;
    for (int d = lane; d < DIGITS; d += GPU_WARP)
        next[d] = counts[d * (int)gridDim.x + (int)blockIdx.x];
    __syncwarp();
    for (int base = first; base < t && base < first + SORT_TOKENS; base += GPU_WARP) {
        const int i = base + lane;
        const int mine = i < t ? key[i] : 0, digit = i < t ? mine >> shift & (DIGITS - 1) : DIGITS;
        const unsigned same = __match_any_sync(gpu_all_lanes, digit), below = same & ((1u << lane) - 1u);
        const int at = i < t ? next[digit] + __popc(below) : 0;
        __syncwarp();
        if (i < t) {
            to_key[at] = mine;
            to_token[at] = token[i];
            if (below == 0)
                next[digit] += __popc(same);
        }
        __syncwarp();
    }
}

/* First place of keys[0 ... n-1], ascending, that is not below `key`. */
__device__ static __forceinline__ int lower_place(const int *keys, int n, int key)
{
    int from = 0, to = n;
    while (from < to) {
        const int middle = from + (to - from) / 2;
        if (keys[middle] < key)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

__global__ void embedding_runs(embedding_run *runs, const int *key, int v, int t)
{
    for (int64_t p = gpu_thread(); p < t; p += gpu_threads()) {
        const int mine = key[p], first = lower_place(key, t, mine);
        runs[p] = {first, mine < v ? lower_place(key, t, mine + 1) - first : 0};
    }
}

/* A lane's columns: one, or GROUPS times FOUR; of each group a warp has FOUR * 32 side by side, whole sectors of F32. */
enum { FOUR = 4, GROUPS = 2 };
template <int N> struct columns {
    static constexpr int width = N == 1 ? 1 : FOUR, apart = GPU_WARP * width;
};
static_assert(GPU_EIGHT == GROUPS * FOUR, "a lane has eight columns");

/* The columns from `column` on of a row from `from` on, those that are below `h`; h is a multiple of a group's width. */
template <int N, class T>
__device__ static __forceinline__ void load_columns(float (&v)[N], const T *from, int64_t column, int64_t h)
{
    if constexpr (N == 1) {
        v[0] = gpu_load(from + column);
    } else {
        GPU_UNROLL
        for (int g = 0; g < GROUPS; ++g) {
            float four[FOUR] = {};
            if (column + g * columns<N>::apart < h)
                gpu_load_n(four, from + column + g * columns<N>::apart);
            GPU_UNROLL
            for (int i = 0; i < FOUR; ++i)
                v[g * FOUR + i] = four[i];
        }
    }
}

template <int N>
__device__ static __forceinline__ void store_columns(float *to, const float (&v)[N], int64_t column,
                                                     int64_t h)
{
    if constexpr (N == 1) {
        to[column] = v[0];
    } else {
        GPU_UNROLL
        for (int g = 0; g < GROUPS; ++g)
            if (column + g * columns<N>::apart < h)
                gpu_write_four(to + column + g * columns<N>::apart,
                               make_float4(v[g * FOUR], v[g * FOUR + 1], v[g * FOUR + 2], v[g * FOUR + 3]));
    }
}

template <int N>
__device__ static __forceinline__ void add_to(float *to, const float (&sum)[N], int64_t column, int64_t h)
{
    float v[N];
    load_columns(v, to, column, h);
    for (int i = 0; i < N; ++i)
        v[i] = sum[i] + v[i];
    store_columns(to, v, column, h);
}

/* The first column of this lane. */
template <int N> __device__ static __forceinline__ int64_t first_column()
{
    return (int64_t)blockIdx.y * GPU_WARP * N + (int64_t)threadIdx.x * columns<N>::width;
}

/* A warp for each place p of the sorted tokens, of which those work where an id, or a chain of a hot one, begins. */
template <class T, int N>
__global__ void embedding_sum(float *dweight, embedding_room room, const int *key, const int *token,
                              const T *dy, int t, int64_t h)
{
    const int64_t column = first_column<N>();
    if (column >= h)
        return;
    for (int64_t p = gpu_warp_row(); p < t; p += (int64_t)gridDim.x * blockDim.y) {
        const embedding_run run = room.runs[p];
        const int in_run = (int)p - run.first, length = (run.n + EMBEDDING_CHAINS - 1) / EMBEDDING_CHAINS;
        const bool hot = run.n > HOT;
        if (run.n == 0 || (hot ? in_run % length : in_run) != 0)
            continue;
        const int n = hot && run.n - in_run > length ? length : run.n - in_run;
        float total[N] = {}, chain[N] = {};
        int left = length;
        EMBEDDING_UNROLL
        for (int i = 0; i < n; ++i) {
            float row[N];
            load_columns(row, dy + token[p + i] * h, column, h);
            const bool ends =
                --left == 0 || i + 1 == n; /* no branch: loads of the next rows start before it */
            left = ends ? length : left;
            for (int c = 0; c < N; ++c) {
                chain[c] += row[c];
                total[c] += ends ? chain[c] : 0.0f;
                chain[c] = ends ? 0.0f : chain[c];
            }
        }
        if (hot)
            store_columns(room.chains + (run.first / HOT_PLACES + in_run / length) * h, total, column, h);
        else
            add_to(dweight + key[p] * h, total, column, h);
    }
}

/* A run of more than HOT places has one that is a multiple of HOT; the first of them joins its chains. */
template <int N>
__global__ void embedding_join(float *dweight, embedding_room room, const int *key, int t, int64_t h)
{
    const int64_t column = first_column<N>();
    if (column >= h)
        return;
    for (int64_t i = gpu_warp_row(); i * HOT < t; i += (int64_t)gridDim.x * blockDim.y) {
        const embedding_run run = room.runs[i * HOT];
        if (run.n <= HOT || i * HOT - run.first >= HOT)
            continue;
        const int length = (run.n + EMBEDDING_CHAINS - 1) / EMBEDDING_CHAINS,
                  chains = (run.n + length - 1) / length;
        float total[N] = {};
        for (int c = 0; c < chains; ++c) {
            float chain[N];
            load_columns(chain, room.chains + (run.first / HOT_PLACES + c) * h, column, h);
            for (int k = 0; k < N; ++k)
                total[k] += chain[k];
        }
        add_to(dweight + key[i * HOT] * h, total, column, h);
    }
}

template <class T, int N>
static cudaError_t launch_sums(const embedding_bwd_call *c, const embedding_room *r, int sorted,
                               cudaStream_t stream)
{
    const int64_t columns = GPU_WARP * N, hot = (c->t + HOT - 1) / HOT;
    const unsigned down = (unsigned)((c->h + columns - 1) / columns);
    const dim3 grid(gpu_grid(c->t, GPU_ROWS_PER_BLOCK).x, down),
        hot_grid(gpu_grid(hot, GPU_ROWS_PER_BLOCK).x, down);
    float *dweight = (float *)c->dweight.data;
    const cudaError_t e = GPU_LAUNCH_NO_BARRIER(
        (embedding_sum<T, N>), grid, gpu_warp_block(), 0, stream, dweight, *r, (const int *)r->key[sorted],
        (const int *)r->token[sorted], (const T *)c->dy.data, (int)c->t, c->h);
    if (e != cudaSuccess || c->t <= HOT)
        return e;
    return GPU_LAUNCH_NO_BARRIER(embedding_join<N>, hot_grid, gpu_warp_block(), 0, stream, dweight, *r,
                                 (const int *)r->key[sorted], (int)c->t, c->h);
}

template <class T>
static cudaError_t launch_by_columns(const embedding_bwd_call *c, const embedding_room *r, int sorted,
                                     cudaStream_t stream)
{
    return c->eights ? launch_sums<T, GPU_EIGHT>(c, r, sorted, stream)
                     : launch_sums<T, 1>(c, r, sorted, stream);
}

/* Which of the two lists is sorted. */
static cudaError_t sort_tokens(const embedding_bwd_call *c, const embedding_room *r, int *sorted,
                               cudaStream_t stream)
{
    const int t = (int)c->t, blocks = (int)sort_blocks(t);
    const dim3 grid((unsigned)blocks);
    cudaError_t e = GPU_LAUNCH_NO_BARRIER(embedding_keys, gpu_grid(t, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                          r->key[0], r->token[0], (const int64_t *)c->ids.data,
                                          c->vocab_start, c->padding_idx, c->v, t);
    *sorted = 0;
    for (int shift = 0; e == cudaSuccess && (c->v >> shift) > 0; shift += DIGIT_BITS, *sorted ^= 1) {
        const int *key = r->key[*sorted], *token = r->token[*sorted];
        e = GPU_LAUNCH(embedding_count, grid, dim3(GPU_WARP), 0, stream, r->counts, key, shift, t);
        if (e == cudaSuccess)
            e = GPU_LAUNCH(embedding_scan, dim3(1), dim3(DIGITS), 0, stream, r->counts, blocks);
        if (e == cudaSuccess)
            e = GPU_LAUNCH(embedding_place, grid, dim3(GPU_WARP), 0, stream, r->key[*sorted ^ 1],
                           r->token[*sorted ^ 1], key, token, (const int *)r->counts, shift, t);
    }
    return e;
}

cudaError_t gpu_embedding_bwd_sorted(const embedding_bwd_call *c, void *workspace, cudaStream_t stream)
{
    embedding_room r;
    int sorted;
    room_of(&r, workspace, c->t, c->h);
    cudaError_t e = sort_tokens(c, &r, &sorted, stream);
    if (e == cudaSuccess)
        e = GPU_LAUNCH_NO_BARRIER(embedding_runs, gpu_grid(c->t, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                  r.runs, (const int *)r.key[sorted], (int)c->v, (int)c->t);
    if (e == cudaSuccess)
        e = GPU_BY_ACT(c->dy.dtype, launch_by_columns, c, &r, sorted, stream);
    return e;
}
