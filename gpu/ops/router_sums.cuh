/* Sums of a router's balancing statistics over the tokens, in the launch that makes what is summed: router_aux.cu, router_counts.cu and
 * router_balanced.cu share it, so that one launch and several have the same bits.
 *
 * Slot j of 4096 has the tokens j, j + 4096, ...: a block has a tile of 32 neighbours in each round.  Each slot's chain of tokens is added
 * first, then the slots of a block as a tree; the block that comes last adds the blocks' sums as a tree.  Which block that is changes
 * nothing: a tree has one shape, and where a block or a token of the sequence is missing it has a zero. */
#ifndef GPU_OPS_ROUTER_SUMS_CUH
#define GPU_OPS_ROUTER_SUMS_CUH

#include "gpu/device.cuh"

enum {
    SUMS_TILE = GPU_WARP,
    SUMS_BLOCKS = 128,
    SUMS_LANES = SUMS_TILE * SUMS_BLOCKS,
    SUMS_EIGHT = 8 /* numbers of a subtree: read at once */
};

/* What is summed: scores [T,E] of all tokens, the experts [T,K] that are counted, and z [T], or NULL. */
typedef struct sums_of {
    const float *scores, *z;
    const int64_t *indices;
    int64_t t, e, k;
} sums_of;

/* Sums of `rows` interleaved sequences, [rows,E]; rows 1: of all tokens, and that of z behind them; rows 0: none. */
typedef struct sums_to {
    int64_t rows, *tokens_per_expert;
    float *score_sums, *z_sum;
    float *sum; /* of each block [cells], in the workspace */
    int *count; /* likewise [rows,E] */
} sums_to;

typedef struct sums_args {
    sums_of of;
    sums_to all, seq;
    unsigned *ticket; /* 0 before and behind a launch */
} sums_args;

__device__ static __forceinline__ int64_t sums_cells(const sums_to &s, const sums_of &x)
{
    return s.rows * x.e + (s.z_sum != nullptr ? 1 : 0);
}

__device__ static __forceinline__ int sums_thread()
{
    return (int)(threadIdx.y * GPU_WARP + threadIdx.x);
}

__device__ static __forceinline__ int sums_threads()
{
    return (int)(blockDim.y * GPU_WARP);
}

/* Of numbers that lie side by side: neighbours first. */
__device__ static __forceinline__ float sums_tree(const float (&v)[SUMS_EIGHT])
{
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

/* The next level: of four that come one after the other (few registers, and one copy of the code that makes one). */
typedef struct sums_four {
    float left, right;
} sums_four;
__device__ static __forceinline__ void sums_put(sums_four *f, int i, float x)
{
    if (i == 0)
        f->left = x;
    else if (i == 1)
        f->left += x;
    else if (i == 2)
        f->right = x;
    else
        f->left += f->right + x;
}

/* --- a block ------------------------------------------------------------------------------------------------ */
/* The first token of a warp of this block, and what follows a token: the block's tile in the warp's steps, then that of the next round. */
__device__ static __forceinline__ int64_t sums_first()
{
    return (int64_t)blockIdx.x * SUMS_TILE + threadIdx.y;
}
__device__ static __forceinline__ int64_t sums_next(int64_t token)
{
    const int64_t next = token + blockDim.y;
    return next / SUMS_TILE == token / SUMS_TILE ? next
                                                 : token + SUMS_LANES - token % SUMS_TILE + threadIdx.y;
}

/* Counts of this block: what sums_finish adds to, behind a barrier. */
__device__ static inline void sums_clear(const sums_to &s, const sums_of &x)
{
    for (int64_t c = sums_thread(); c < s.rows * x.e; c += sums_threads())
        s.count[(int64_t)blockIdx.x * s.rows * x.e + c] = 0;
}

/* Of this block's tokens those of one sequence: x[0], x[stride], ... of all tokens. */
__device__ static inline float sums_column(const float *x, int64_t stride, int64_t t, int64_t row,
                                           int64_t rows)
{
    sums_four tile = {0.0f, 0.0f};
    for (int eighth = 0; eighth < SUMS_TILE / SUMS_EIGHT; ++eighth) {
        float v[SUMS_EIGHT] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        for (int64_t first = (int64_t)blockIdx.x * SUMS_TILE + eighth * SUMS_EIGHT; first < t;
             first += SUMS_LANES) {
            int64_t at = first % rows;
            GPU_UNROLL
            for (int i = 0; i < SUMS_EIGHT; ++i) {
                if (at == row && first + i < t)
                    v[i] += x[(first + i) * stride];
                at = at + 1 == rows ? 0 : at + 1;
            }
        }
        sums_put(&tile, eighth, sums_tree(v));
    }
    return tile.left;
}

__device__ static inline void sums_block(const sums_to &s, const sums_of &x)
{
    const int64_t cells = sums_cells(s, x);
    for (int64_t c = sums_thread(); c < cells; c += sums_threads())
        s.sum[blockIdx.x * cells + c] = c < s.rows * x.e
                                            ? sums_column(x.scores + c % x.e, x.e, x.t, c / x.e, s.rows)
                                            : sums_column(x.z, 1, x.t, 0, 1);
    int *count = s.count + (int64_t)blockIdx.x * s.rows * x.e;
    for (int64_t first = (int64_t)blockIdx.x * SUMS_TILE; s.rows > 0 && first < x.t; first += SUMS_LANES)
        for (int64_t i = first * x.k + sums_thread(); i < (first + SUMS_TILE) * x.k && i < x.t * x.k;
             i += sums_threads()) {
            const int64_t e = x.indices[i];
            if (e >= 0 && e < x.e)
                atomicAdd(&count[i / x.k % s.rows * x.e + e], 1);
        }
}

/* --- the last block ------------------------------------------------------------------------------------------ */
/* Whether this block is the last of the grid; what all others wrote is then there to be read.  All threads must arrive.  The last one
 * turns the ticket back to 0. */
__device__ static inline bool sums_is_last(unsigned *ticket)
{
    GPU_SHARED(int, last, 1);
    __syncthreads(); /* all of the block have written */
    if (sums_thread() == 0) {
        __threadfence(); /* what the block wrote, before its arrival */
        last[0] = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
        __threadfence(); /* the arrivals of the others, before what they wrote */
    }
    __syncthreads();
    return last[0] != 0;
}

__device__ static inline void sums_join(const sums_to &s, const sums_of &x)
{
    const int64_t cells = sums_cells(s, x), counts = s.rows * x.e;
    for (int64_t c = sums_thread(); c < cells; c += sums_threads()) {
        sums_four all = {0.0f, 0.0f}, some = {0.0f, 0.0f};
        for (int eighth = 0; eighth < SUMS_BLOCKS / SUMS_EIGHT; ++eighth) {
            float v[SUMS_EIGHT];
            GPU_UNROLL
            for (int i = 0; i < SUMS_EIGHT; ++i) {
                const unsigned block = (unsigned)(eighth * SUMS_EIGHT + i);
                v[i] = block < gridDim.x ? s.sum[block * cells + c] : 0.0f;
            }
            sums_put(&some, eighth % 4, sums_tree(v));
            if (eighth % 4 == 3)
                sums_put(&all, eighth / 4, some.left);
        }
        if (c == counts) {
            *s.z_sum = all.left;
            continue;
        }
        int64_t n = 0;
        for (unsigned block = 0; block < gridDim.x; ++block)
            n += s.count[block * counts + c];
        s.score_sums[c] = all.left;
        s.tokens_per_expert[c] = n;
    }
}

/* The sums of what this launch left, with sums_clear of both at its start.  All threads must arrive. */
__device__ static inline void sums_finish(const sums_args &s)
{
    __syncthreads(); /* the rows of the block's tokens, and its counts */
    sums_block(s.all, s.of);
    sums_block(s.seq, s.of);
    if (!sums_is_last(s.ticket))
        return;
    sums_join(s.all, s.of);
    sums_join(s.seq, s.of);
}

/* --- the launch ---------------------------------------------------------------------------------------------- */
static inline int64_t sums_blocks(int64_t t)
{
    const int64_t tiles = (t + SUMS_TILE - 1) / SUMS_TILE, most = SUMS_BLOCKS;
    return tiles < 1 ? 1 : tiles < most ? tiles : most;
}

static inline dim3 sums_grid(int64_t t)
{
    return dim3((unsigned)sums_blocks(t));
}

/* Warps of a block, of which each has `chunks` numbers of a row in each lane: with more the registers of 32 are not enough. */
template <int CHUNKS> struct sums_warps {
    enum { COUNT = CHUNKS <= 2 ? SUMS_TILE : SUMS_TILE / 2 };
};

/* A warp for each token of a tile; none for tokens that are not there.  Which thread adds a column changes nothing. */
static inline dim3 sums_threads_of(int64_t t, int warps)
{
    return dim3(GPU_WARP, (unsigned)(t < 1 ? 1 : t < warps ? t : warps));
}

/* Bytes of the blocks' sums and counts. */
static inline size_t sums_bytes(int64_t t, int64_t e, int64_t rows)
{
    return (size_t)sums_blocks(t) * (size_t)(2 * rows * e + 1) * sizeof(float);
}

/* Puts them at a place of the workspace. */
static inline void sums_place(sums_to *s, void *at, int64_t t, int64_t e)
{
    s->sum = (float *)at;
    s->count = (int *)at + sums_blocks(t) * (s->rows * e + 1);
}

/* Experts whose scores a warp holds in registers beside the other warps of a block. */
enum { ROUTER_SUMS_EXPERTS = 256 };

/* The last block adds them alone: with more the other blocks' time would be lost. */
static inline bool router_sums_in_one_launch(int64_t rows, int64_t experts)
{
    return rows * experts <= GPU_ROUTER_SEQ_SUMS;
}

/* A sequence has every slot, or, where B and 4096 share a factor, one in so many. */
static inline void sums_seq_arith(assay_arith *a, const gpu_ctx *, const gpu_operands *o)
{
    int64_t x = SUMS_LANES, y = gpu_operand_int(o, "rows");
    while (y > 0) {
        const int64_t rest = x % y;
        x = y;
        y = rest;
    }
    a->lanes = (int)(SUMS_LANES / x);
}
#define SUMS_SEQ "lanes: 4096 / gcd(4096, rows)"

/* The sums in a launch of their own, k0 or k1 (router_columns.cu): nothing is needed of the workspace. */
cudaError_t router_columns(int variant, const sums_to &s, const sums_of &x, cudaStream_t stream);

/* Outputs of sums over `rows` sequences; z_sum is none of those of sequences. */
static inline assay_status sums_check(const char *op, gpu_tensor counts, const char *counts_slot,
                                      gpu_tensor sums, const char *sums_slot, int64_t rows, int64_t e)
{
    ASSAY_TRY(gpu_check_tensor(op, counts_slot, counts, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, sums_slot, sums, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_count(op, counts_slot, counts, rows * e));
    return gpu_check_count(op, sums_slot, sums, rows * e);
}

#endif
