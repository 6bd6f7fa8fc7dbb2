/* What the attention kernels share: the sizes, which keys a query sees, tiles of rows in shared memory. */
#ifndef GPU_OPS_ATTENTION_CUH
#define GPU_OPS_ATTENTION_CUH

#include "gpu/ops/attention_warp.cuh"
#include "gpu/ops/philox.cuh"

typedef struct attention_desc {
    int64_t batch, seq_q, seq_k, heads, groups, head_dim, head_dim_v;
    float scale;
    int64_t window;
    gpu_tensor q_position, k_position; /* I64 [Tq], [Tk] */
    gpu_tensor first_key;              /* I64 [Tq] or none */
    /* dropout of the probabilities; p 0: none.  The mask is of all_rows batch rows, all_heads heads and all_keys positions. */
    double dropout_p;
    gpu_mask mask;
    int64_t first_row, all_rows, first_head, all_heads, all_keys;
} attention_desc;

static inline attention_desc attention_desc_of(const gpu_operands *o)
{
    attention_desc d;
    d.batch = gpu_operand_int(o, "batch");
    d.seq_q = gpu_operand_int(o, "seq_q");
    d.seq_k = gpu_operand_int(o, "seq_k");
    d.heads = gpu_operand_int(o, "heads");
    d.groups = gpu_operand_int(o, "groups");
    d.head_dim = gpu_operand_int(o, "head_dim");
    d.head_dim_v = gpu_operand_int(o, "head_dim_v");
    d.scale = (float)gpu_operand_double(o, "scale");
    d.window = gpu_operand_int(o, "window");
    d.q_position = gpu_operand(o, "q_position");
    d.k_position = gpu_operand(o, "k_position");
    d.first_key = gpu_operand(o, "first_key");
    d.dropout_p = gpu_operand_double(o, "dropout_p");
    d.mask = gpu_mask_of(o, "dropout_p");
    d.first_row = gpu_operand_int(o, "first_row");
    d.all_rows = gpu_operand_int(o, "all_rows");
    d.first_head = gpu_operand_int(o, "first_head");
    d.all_heads = gpu_operand_int(o, "all_heads");
    d.all_keys = gpu_operand_int(o, "all_keys");
    return d;
}

/* Token (s, b) is row s * batch + b of every tensor. */
typedef struct attention_args {
    int64_t batch, seq_q, seq_k, heads, groups, d, dv, window;
    float scale;
    const int64_t *q_position, *k_position, *first_key;
    bool drops;
    gpu_mask mask;
    int64_t first_row, all_rows, first_head, all_heads, all_keys;
} attention_args;

/* A block's share of a launch: block `number` of plane `plane` (a group, or a head) of batch row b. */
typedef struct attention_block {
    int number, plane, b;
} attention_block;

/* Block i of a launch of `blocks` for each plane: the last ones of all planes come first (rows of queries), or the first ones (keys).  Under
 * a causal mask they see, or are seen by, most, and what ends last should be short. */
__host__ __device__ static __forceinline__ attention_block attention_block_of(int i, int blocks, int batch,
                                                                              int planes, bool last_first)
{
    /* without a sign: fewer registers, of which k2 has none to spare */
    const unsigned each = (unsigned)(batch * planes), turn = (unsigned)i / each, which = (unsigned)i % each;
    return {last_first ? blocks - 1 - (int)turn : (int)turn, (int)(which % (unsigned)planes),
            (int)(which / (unsigned)planes)};
}

/* What dropout multiplies the probability of a query, head and key with, by global numbers alone. */
__device__ static __forceinline__ float attention_kept(const attention_args &a, int64_t q_row, int64_t head,
                                                       int64_t k_row)
{
    const unsigned long long row = (unsigned long long)a.q_position[q_row] * (unsigned long long)a.all_rows +
                                   (unsigned long long)(a.first_row + q_row % a.batch);
    const unsigned long long of_head =
        row * (unsigned long long)a.all_heads + (unsigned long long)(a.first_head + head);
    return gpu_mask_factor(a.mask, of_head * (unsigned long long)a.all_keys +
                                       (unsigned long long)a.k_position[k_row]);
}

/* 1 without dropout. */
__device__ static __forceinline__ float attention_factor(const attention_args &a, int64_t q_row, int64_t head,
                                                         int64_t k_row)
{
    return a.drops ? attention_kept(a, q_row, head, k_row) : 1.0f;
}

__device__ static __forceinline__ bool attention_visible(const attention_args &a, int64_t q_row,
                                                         int64_t k_row)
{
    const int64_t q = a.q_position[q_row], k = a.k_position[k_row];
    const int64_t first = a.first_key != nullptr ? a.first_key[q_row] : 0;
    return k <= q && k >= first && (a.window <= 0 || k > q - a.window);
}

/* Sum over d ascending: one chain of fma. */
template <class TA, class TB>
__device__ static __forceinline__ float attention_dot(const TA *x, const TB *y, int64_t n)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i)
        sum = fmaf(gpu_load(x + i), gpu_load(y + i), sum);
    return sum;
}

/* A block of (32, ATTENTION_WARPS) threads copies rows base .. base+31 of a sequence, as fp32, into tile
 * [32][stride].  Row s starts at src + s * row_step.  Rows past the end become zeros. */
template <class T>
__device__ static __forceinline__ void attention_load_tile(float *tile, int64_t stride, const T *src,
                                                           int64_t row_step, int64_t base, int64_t rows,
                                                           int64_t width)
{
    for (int row = (int)threadIdx.y; row < ATTENTION_TILE; row += ATTENTION_WARPS)
        for (int64_t i = threadIdx.x; i < width; i += GPU_WARP)
            tile[row * stride + i] = base + row < rows ? gpu_load(src + (base + row) * row_step + i) : 0.0f;
}

/* The warp copies row `row` of a [rows, width] tensor into shared memory as fp32, its elements ATTENTION_ROWS apart; zeros when
 * row is -1. */
template <class T>
__device__ static __forceinline__ void attention_load_row(float *to, const T *tensor, int64_t row,
                                                          int64_t width)
{
    for (int64_t i = threadIdx.x; i < width; i += GPU_WARP)
        to[i * ATTENTION_ROWS] = row >= 0 ? gpu_load(tensor + row * width + i) : 0.0f;
}

/* Row `row` of the (batch row b, group) that a block works on: query row / per_group, head row % per_group of
 * the group; -1 past the end.  Returns the index of [token, head]. */
__device__ static __forceinline__ int64_t attention_query(const attention_args &a, int64_t b, int64_t group,
                                                          int64_t row)
{
    const int64_t per_group = a.heads / a.groups;
    if (row >= a.seq_q * per_group)
        return -1;
    return (row / per_group * a.batch + b) * a.heads + group * per_group + row % per_group;
}

static inline attention_args attention_args_make(const attention_desc *d)
{
    attention_args a;
    a.batch = d->batch;
    a.seq_q = d->seq_q;
    a.seq_k = d->seq_k;
    a.heads = d->heads;
    a.groups = d->groups;
    a.d = d->head_dim;
    a.dv = d->head_dim_v;
    a.window = d->window;
    a.scale = d->scale;
    a.q_position = (const int64_t *)d->q_position.data;
    a.k_position = (const int64_t *)d->k_position.data;
    a.first_key = (const int64_t *)d->first_key.data;
    a.drops = d->dropout_p > 0.0;
    a.mask = d->mask;
    a.first_row = d->first_row;
    a.all_rows = d->all_rows;
    a.first_head = d->first_head;
    a.all_heads = d->all_heads;
    a.all_keys = d->all_keys;
    return a;
}

/* Sizes, positions, q, k, v; defined in attention.cu. */
assay_status gpu_attention_check(const char *op, const attention_desc *d, gpu_tensor q, gpu_tensor k,
                                 gpu_tensor v);

/* k2: matrix units, bf16; defined in attention_mma.cu.  scale2: scale log2(e). */
cudaError_t gpu_attention_fwd_mma(gpu_tensor o, gpu_tensor lse, gpu_tensor q, gpu_tensor k, gpu_tensor v,
                                  float scale2, const attention_args &a, cudaStream_t stream);
float gpu_attention_scale2(const gpu_operands *o);
/* bf16, head dimensions that are multiples of 8, addresses of 16, a positive scale, no dropout. */
bool gpu_attention_takes_mma(const gpu_ctx *ctx, const gpu_operands *o);
void gpu_attention_mma_arith(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o);

/* k3: the same by warpgroups and tensor maps, one key or more; defined in attention_sm90.cu.  Its code is for capability 9.0 alone: on
 * another device gpu_attention_takes_sm90 says no, and gpu_attention_fwd_sm90 refuses (ASSAY_UNSUPPORTED). */
typedef struct gpu_attention_fwd_tensors {
    gpu_tensor o, lse, q, k, v;
} gpu_attention_fwd_tensors;
assay_status gpu_attention_fwd_sm90(const gpu_work *w, const gpu_attention_fwd_tensors *t,
                                    const attention_args &a);
size_t gpu_attention_sm90_workspace(const gpu_ctx *ctx, const gpu_operands *o);
bool gpu_attention_takes_sm90(const gpu_ctx *ctx, const gpu_operands *o);
/* Whether a block of k3, forward or backward, has rows and keys for a whole tile; below that k2's smaller ones do. */
bool gpu_attention_sm90_pays(const gpu_operands *o);
void gpu_attention_sm90_arith(assay_arith *a, const gpu_ctx *ctx, const gpu_operands *o);

/* The backward on matrix units takes the same calls; defined in attention_bwd_mma.cu. */
typedef struct gpu_attention_bwd_tensors {
    gpu_tensor dq, dk, dv, dout, q, k, v, o, lse;
} gpu_attention_bwd_tensors;
cudaError_t gpu_attention_bwd_mma(const gpu_attention_bwd_tensors *t, void *workspace, float scale2,
                                  const attention_args &a, cudaStream_t stream);
/* The first of its launches: the workspace's rows. */
cudaError_t gpu_attention_bwd_rows(const gpu_attention_bwd_tensors *t, void *workspace,
                                   const attention_args &a, cudaStream_t stream);
size_t gpu_attention_bwd_mma_workspace(const gpu_ctx *ctx, const gpu_operands *o);

/* k3 of the backward, a query and a key or more; defined in attention_bwd_sm90.cu.  Elsewhere as k3 of the
 * forward. */
assay_status gpu_attention_bwd_sm90(const gpu_work *w, const gpu_attention_bwd_tensors *t,
                                    const attention_args &a);
size_t gpu_attention_bwd_sm90_workspace(const gpu_ctx *ctx, const gpu_operands *o);
bool gpu_attention_bwd_takes_sm90(const gpu_ctx *ctx, const gpu_operands *o);

/* Much dynamic shared memory is asked for by name. */
template <class... P> static cudaError_t attention_allow_shared(void (*kernel)(P...), size_t bytes)
{
    if (bytes <= (size_t)32 << 10) /* what every device has, 48 KiB, is for static arrays too */
        return cudaSuccess;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* Smallest of 1, 2, 4, 8 with 32 * chunks >= n: head dimensions are spread over the lanes in that many
 * registers. */
static inline int attention_chunks(int64_t n)
{
    return n <= 32 ? 1 : n <= 64 ? 2 : n <= 128 ? 4 : 8;
}

#endif
