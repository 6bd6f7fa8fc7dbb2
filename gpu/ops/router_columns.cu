/* Sums of a router's balancing statistics over the tokens in a launch of their own, of scores and choices that lie in memory: of all tokens
 * (router_aux_fwd), of interleaved sequences (router_seq_aux_fwd).  In the launch that makes them: router_sums.cuh.  docs/OPS.md 7.
 *
 *   k0  one thread for each sum                                        fp32, sequential
 *   k1  a block for each eight experts of a sequence, 32 threads for   fp32, tree of 32 lanes
 *       each: what they read side by side is a whole sector; one that
 *       counts a sequence's choices; one for the z-loss's terms
 *
 * k1: slot j of 32 has a sequence's tokens j, j + 32, ...  Counts are integers: whose turn comes first changes nothing. */
#include "gpu/ops/router_sums.cuh"

enum {
    COLUMNS = 8, /* fp32 of a sector */
    COLUMNS_THREADS = COLUMNS * GPU_WARP,
    COLUMNS_COUNTED = 1024, /* experts that a block counts */
    COLUMNS_AHEAD = 8       /* reads of a thread that are under way */
};

/* Cell c = row E + e: tokens row, row + rows, ... of expert e; the cell behind them: z_sum. */
__global__ void router_columns_k0(sums_to s, sums_of x)
{
    for (int64_t c = gpu_thread(); c < sums_cells(s, x); c += gpu_threads()) {
        const int64_t e = c % x.e, row = c / x.e;
        const bool is_z = row == s.rows;
        float sum = 0.0f;
        int64_t n = 0;
        for (int64_t t = is_z ? 0 : row; t < x.t; t += is_z ? 1 : s.rows) {
            sum += is_z ? x.z[t] : x.scores[t * x.e + e];
            for (int64_t k = 0; !is_z && k < x.k; ++k)
                n += x.indices[t * x.k + k] == e;
        }
        if (is_z) {
            *s.z_sum = sum;
            continue;
        }
        s.score_sums[c] = sum;
        s.tokens_per_expert[c] = n;
    }
}

/* A slot's chain: x of tokens from, from + apart, ... below `end`, `stride` numbers a token. */
__device__ static __forceinline__ float columns_slot(const float *x, int64_t stride, int64_t from,
                                                     int64_t apart, int64_t end)
{
    float sum = 0.0f;
    for (int64_t t = from; t < end; t += COLUMNS_AHEAD * apart) {
        float v[COLUMNS_AHEAD];
        GPU_UNROLL
        for (int i = 0; i < COLUMNS_AHEAD; ++i)
            v[i] = t + i * apart < end ? x[(t + i * apart) * stride] : 0.0f;
        GPU_UNROLL
        for (int i = 0; i < COLUMNS_AHEAD; ++i)
            sum += v[i]; /* 0 changes no sum that began with 0 */
    }
    return sum;
}

/* Experts first, first + 1, ... of a sequence. */
__device__ static __forceinline__ void columns_sum(const sums_to &s, const sums_of &x, int64_t row,
                                                   int64_t first)
{
    GPU_SHARED_2D(float, part, COLUMNS,
                  GPU_WARP + 1); /* a column's slots lie in other banks than its neighbour's */
    GPU_SHARED(float, sum, COLUMNS);
    const int column = (int)threadIdx.x % COLUMNS, slot = (int)threadIdx.x / COLUMNS;
    const int lane = (int)threadIdx.x % GPU_WARP, warp = (int)threadIdx.x / GPU_WARP;
    const float mine = columns_slot(x.scores + first + column, x.e, row + slot * s.rows, GPU_WARP * s.rows,
                                    first + column < x.e ? x.t : 0);
    part[column][slot] = mine;
    __syncthreads();
    const float whole = gpu_warp_sum(part[warp][lane]);
    if (lane == 0)
        sum[warp] = whole;
    __syncthreads(); /* one warp writes: a sector */
    if (threadIdx.x < COLUMNS && first + threadIdx.x < x.e)
        s.score_sums[row * x.e + first + threadIdx.x] = sum[threadIdx.x];
}

/* The choices of a sequence among experts first, first + 1, ... */
__device__ static __forceinline__ void columns_count(const sums_to &s, const sums_of &x, int64_t row,
                                                     int64_t first)
{
    GPU_SHARED(int, count, COLUMNS_COUNTED);
    const int64_t rest = x.e - first, here = rest < COLUMNS_COUNTED ? rest : (int64_t)COLUMNS_COUNTED;
    for (int i = (int)threadIdx.x; i < here; i += COLUMNS_THREADS)
        count[i] = 0;
    __syncthreads();
    /* choice k of the sequence's token number n; a quotient for each would take longer than what it is for.  Tokens that choose none are not
     * looked at. */
    const int64_t of_token = x.k > 0 ? x.k : 1, end = x.k > 0 ? x.t : 0;
    const int64_t tokens = COLUMNS_THREADS / of_token, choices = COLUMNS_THREADS % of_token;
    int64_t n = threadIdx.x / of_token, k = threadIdx.x % of_token;
    while (row + n * s.rows < end) {
        int64_t e[COLUMNS_AHEAD];
        GPU_UNROLL
        for (int i = 0; i < COLUMNS_AHEAD; ++i) {
            e[i] = row + n * s.rows < end ? x.indices[(row + n * s.rows) * x.k + k] - first : -1;
            const bool over = k + choices >= of_token;
            n += over ? tokens + 1 : tokens;
            k += over ? choices - of_token : choices;
        }
        GPU_UNROLL
        for (int i = 0; i < COLUMNS_AHEAD; ++i)
            if (e[i] >= 0 && e[i] < here)
                atomicAdd(&count[e[i]], 1);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < here; i += COLUMNS_THREADS)
        s.tokens_per_expert[row * x.e + first + i] = count[i];
}

/* What block number b does: the longest first. */
__global__ void __launch_bounds__(COLUMNS_THREADS) router_columns_k1(sums_to s, sums_of x)
{
    const int64_t counted = (x.e + COLUMNS_COUNTED - 1) / COLUMNS_COUNTED,
                  summed = (x.e + COLUMNS - 1) / COLUMNS;
    int64_t b = blockIdx.x;
    if (b < s.rows * counted) {
        columns_count(s, x, b / counted, b % counted * COLUMNS_COUNTED);
        return;
    }
    b -= s.rows * counted;
    if (b < s.rows * summed) {
        columns_sum(s, x, b / summed, b % summed * COLUMNS);
        return;
    }
    if (threadIdx.x >= GPU_WARP)
        return;
    const float sum = gpu_warp_sum(columns_slot(x.z, 1, threadIdx.x, GPU_WARP, x.t));
    if (threadIdx.x == 0)
        *s.z_sum = sum;
}

cudaError_t router_columns(int variant, const sums_to &s, const sums_of &x, cudaStream_t stream)
{
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(router_columns_k0, gpu_grid(s.rows * x.e + 1, GPU_BLOCK),
                                     dim3(GPU_BLOCK), 0, stream, s, x);
    const int64_t blocks =
        s.rows * ((x.e + COLUMNS_COUNTED - 1) / COLUMNS_COUNTED + (x.e + COLUMNS - 1) / COLUMNS) +
        (s.z_sum != nullptr ? 1 : 0);
    return GPU_LAUNCH(router_columns_k1, dim3((unsigned)blocks), dim3(COLUMNS_THREADS), 0, stream, s, x);
}
