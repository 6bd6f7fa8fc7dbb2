/* Heads between layouts: qkv_split, pack_heads.  docs/OPS.md 4, 5.
 *
 *   k0  one thread for each element                            copies
 *   k1  16 bytes for each thread, rows along the grid          copies */
#include "gpu/vector.cuh"

/* One thread for each element of qkv; BACK: from q, k, v to qkv.  Rows hold for each group its query heads,
 * its key head, its value head. */
template <class T, bool BACK>
__global__ void qkv_split_k0(T *q, T *k, T *v, T *qkv, int64_t tokens, int64_t groups, int64_t per_group,
                             int64_t d)
{
    const int64_t width = (per_group + 2) * d;
    for (int64_t e = gpu_thread(); e < tokens * groups * width; e += gpu_threads()) {
        const int64_t row = e / width, column = e % width; /* row = token * groups + group */
        const int64_t head = column / d, i = column % d;
        T *other = head < per_group ? q + (row * per_group + head) * d + i
                                    : (head == per_group ? k : v) + row * d + i;
        if (BACK)
            qkv[e] = *other;
        else
            *other = qkv[e];
    }
}

/* Pieces of 16 bytes: d of a head. */
template <bool BACK>
__global__ void qkv_split_k1(uint4 *q, uint4 *k, uint4 *v, uint4 *qkv, int64_t rows, int per_group, int d)
{
    GPU_EACH_PIECE(row, column, rows, (per_group + 2) * d, 1)
    {
        const int head = column / d, i = column % d;
        uint4 *other = head < per_group ? q + (row * per_group + head) * d + i
                                        : (head == per_group ? k : v) + row * d + i;
        uint4 *whole = qkv + row * (per_group + 2) * d + column;
        if (BACK)
            *whole = *other;
        else
            *other = *whole;
    }
}

template <bool BACK>
static cudaError_t launch_split_pieces(gpu_tensor q, gpu_tensor k, gpu_tensor v, gpu_tensor qkv, int d,
                                       cudaStream_t stream)
{
    const int64_t rows = k.shape[0] * k.shape[1], per_group = q.shape[1] / k.shape[1];
    const gpu_pieces_launch shape = gpu_pieces_of(rows, (per_group + 2) * d);
    return GPU_LAUNCH_NO_BARRIER(qkv_split_k1<BACK>, shape.grid, shape.block, 0, stream, (uint4 *)q.data,
                                 (uint4 *)k.data, (uint4 *)v.data, (uint4 *)qkv.data, rows, (int)per_group,
                                 d);
}

template <class T>
static cudaError_t launch_split(bool back, gpu_tensor q, gpu_tensor k, gpu_tensor v, gpu_tensor qkv,
                                cudaStream_t stream)
{
    const int64_t tokens = k.shape[0], groups = k.shape[1], d = k.shape[2];
    const int64_t per_group = q.shape[1] / groups, n = gpu_tensor_count(qkv);
    if (back)
        return GPU_LAUNCH_NO_BARRIER((qkv_split_k0<T, true>), gpu_grid(n, GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                     stream, (T *)q.data, (T *)k.data, (T *)v.data, (T *)qkv.data, tokens,
                                     groups, per_group, d);
    return GPU_LAUNCH_NO_BARRIER((qkv_split_k0<T, false>), gpu_grid(n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (T *)q.data, (T *)k.data, (T *)v.data, (T *)qkv.data, tokens, groups,
                                 per_group, d);
}

static assay_status qkv_split(const gpu_work *w, bool back)
{
    const char *op = w->o->op->name;
    const char *const names[2][4] = {{"q", "k", "v", "qkv"}, {"dq", "dk", "dv", "dqkv"}};
    const char *const *name = names[back];
    const gpu_tensor q = gpu_operand(w->o, name[0]), k = gpu_operand(w->o, name[1]),
                     v = gpu_operand(w->o, name[2]);
    const gpu_tensor qkv = gpu_operand(w->o, name[3]), tensor[3] = {q, k, v};
    ASSAY_TRY(gpu_check_act(op, name[3], qkv));
    for (int i = 0; i < 3; ++i) {
        ASSAY_TRY(gpu_check_tensor(op, name[i], tensor[i], qkv.dtype, qkv.dtype));
        ASSAY_CHECK(tensor[i].ndim == 3, ASSAY_INVALID_ARGUMENT,
                    "%s: %s: expected 3 dimensions [T,heads,D], found %d", op, name[i], tensor[i].ndim);
    }
    const int64_t tokens = k.shape[0], groups = k.shape[1], d = k.shape[2], heads = q.shape[1];
    ASSAY_CHECK(groups >= 1 && heads % groups == 0, ASSAY_INVALID_ARGUMENT,
                "%s: %s: expected a multiple of %" PRId64 " heads, found %" PRId64, op, name[0], groups,
                heads);
    ASSAY_TRY(gpu_check_shape2(op, name[0], q, tokens * heads, d));
    ASSAY_TRY(gpu_check_shape2(op, name[2], v, tokens * groups, d));
    ASSAY_TRY(gpu_check_count(op, name[3], qkv, tokens * (heads + 2 * groups) * d));
    if (gpu_tensor_count(qkv) > 0 && w->variant > 0)
        GPU_LAUNCHED(
            back ? launch_split_pieces<true>(q, k, v, qkv, gpu_16_bytes(w->o, qkv.dtype, d), w->stream)
                 : launch_split_pieces<false>(q, k, v, qkv, gpu_16_bytes(w->o, qkv.dtype, d), w->stream),
            op);
    else if (gpu_tensor_count(qkv) > 0)
        GPU_LAUNCHED(GPU_BY_ACT(qkv.dtype, launch_split, back, q, k, v, qkv, w->stream), op);
    return ASSAY_OK;
}

static assay_status qkv_split_fwd(const gpu_work *w)
{
    return qkv_split(w, false);
}

static assay_status qkv_split_bwd(const gpu_work *w)
{
    return qkv_split(w, true);
}

/* One thread an element of [P,T,A/P,D]; BACK: from there to [T,A,D]. */
template <class T, bool BACK>
__global__ void pack_heads_k0(T *y, const T *x, int64_t tokens, int64_t heads, int64_t d, int64_t parts)
{
    const int64_t each = heads / parts;
    for (int64_t e = gpu_thread(); e < tokens * heads * d; e += gpu_threads()) {
        const int64_t row = e / d / each, head = e / d % each; /* row = part * tokens + token */
        const int64_t other = ((row % tokens) * heads + row / tokens * each + head) * d + e % d;
        if (BACK)
            y[other] = x[e];
        else
            y[e] = x[other];
    }
}

/* A part's heads of a token are neighbours in both: rows of `pieces` of 16 bytes. */
template <bool BACK>
__global__ void pack_heads_k1(uint4 *y, const uint4 *x, int64_t tokens, int64_t parts, int pieces)
{
    GPU_EACH_PIECE(row, i, tokens * parts, pieces, 1)
    {
        const int64_t packed = row * pieces + i; /* row = part * tokens + token */
        const int64_t other = (row % tokens * parts + row / tokens) * pieces + i;
        if (BACK)
            y[other] = x[packed];
        else
            y[packed] = x[other];
    }
}

template <bool BACK>
static cudaError_t launch_pack_pieces(gpu_tensor y, gpu_tensor x, int64_t tokens, int64_t parts, int pieces,
                                      cudaStream_t stream)
{
    const gpu_pieces_launch shape = gpu_pieces_of(tokens * parts, pieces);
    return GPU_LAUNCH_NO_BARRIER(pack_heads_k1<BACK>, shape.grid, shape.block, 0, stream, (uint4 *)y.data,
                                 (const uint4 *)x.data, tokens, parts, pieces);
}

template <class T>
static cudaError_t launch_pack(bool back, gpu_tensor y, gpu_tensor x, int64_t tokens, int64_t heads,
                               int64_t d, int64_t parts, cudaStream_t stream)
{
    const dim3 grid = gpu_grid(tokens * heads * d, GPU_BLOCK);
    if (back)
        return GPU_LAUNCH_NO_BARRIER((pack_heads_k0<T, true>), grid, dim3(GPU_BLOCK), 0, stream, (T *)y.data,
                                     (const T *)x.data, tokens, heads, d, parts);
    return GPU_LAUNCH_NO_BARRIER((pack_heads_k0<T, false>), grid, dim3(GPU_BLOCK), 0, stream, (T *)y.data,
                                 (const T *)x.data, tokens, heads, d, parts);
}

static assay_status repack(const gpu_work *w, bool back)
{
    const char *op = w->o->op->name;
    const gpu_tensor x = gpu_operand(w->o, "x"), y = gpu_operand(w->o, "y");
    const int64_t heads = gpu_operand_int(w->o, "heads"), d = gpu_operand_int(w->o, "head_dim");
    const int64_t parts = gpu_operand_int(w->o, "parts"), n = gpu_tensor_count(x);
    ASSAY_TRY(gpu_check_act(op, "x", x));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_count(op, "y", y, n));
    ASSAY_CHECK(parts >= 1 && heads % parts == 0, ASSAY_INVALID_ARGUMENT,
                "%s: parts: expected a divisor of %" PRId64 " heads, found %" PRId64, op, heads, parts);
    ASSAY_CHECK(d >= 1 && n % (heads * d) == 0, ASSAY_INVALID_ARGUMENT,
                "%s: x: expected rows of %" PRId64 " heads of %" PRId64 ", found %" PRId64 " elements", op,
                heads, d, n);
    if (n > 0 && w->variant > 0) {
        const int pieces = gpu_16_bytes(w->o, x.dtype, heads / parts * d);
        const int64_t tokens = n / (heads * d);
        GPU_LAUNCHED(back ? launch_pack_pieces<true>(y, x, tokens, parts, pieces, w->stream)
                          : launch_pack_pieces<false>(y, x, tokens, parts, pieces, w->stream),
                     op);
    } else if (n > 0)
        GPU_LAUNCHED(
            GPU_BY_ACT(x.dtype, launch_pack, back, y, x, n / (heads * d), heads, d, parts, w->stream), op);
    return ASSAY_OK;
}

static assay_status pack_heads(const gpu_work *w)
{
    return repack(w, false);
}

static assay_status unpack_heads(const gpu_work *w)
{
    return repack(w, true);
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static bool heads_of_16_bytes(const gpu_ctx *, const gpu_operands *o)
{
    const int64_t heads = gpu_operand_int(o, "heads") + 2 * gpu_operand_int(o, "groups"),
                  d = gpu_operand_int(o, "head_dim");
    const assay_dtype dtype = o->slot[0].dtype;
    return gpu_16_bytes(o, dtype, d) > 0 && gpu_16_bytes(o, dtype, heads * d) > 0;
}
static bool parts_of_16_bytes(const gpu_ctx *, const gpu_operands *o)
{
    const int64_t parts = gpu_operand_int(o, "parts"), heads = gpu_operand_int(o, "heads");
    return parts > 0 &&
           gpu_16_bytes(o, gpu_operand(o, "x").dtype, heads / parts * gpu_operand_int(o, "head_dim")) > 0;
}

#define COPY_RUNGS(run, outputs, accepts)                                                                    \
    GPU_RUNG("one thread an element", run, GPU_DECLARES(outputs, GPU_ELEMENTWISE(0))),                       \
        GPU_RUNG_IF("16 bytes a thread, rows along the grid", run, NULL, accepts, NULL, GPU_SM_80,           \
                    GPU_DECLARES(outputs, GPU_ELEMENTWISE(0))),                                              \
        GPU_LADDER_END
GPU_LADDER(qkv_split_fwd) = {COPY_RUNGS(qkv_split_fwd, "q k v", heads_of_16_bytes)};
GPU_LADDER(qkv_split_bwd) = {COPY_RUNGS(qkv_split_bwd, "dqkv", heads_of_16_bytes)};
GPU_LADDER(pack_heads) = {COPY_RUNGS(pack_heads, "y", parts_of_16_bytes)};
GPU_LADDER(unpack_heads) = {COPY_RUNGS(unpack_heads, "y", parts_of_16_bytes)};
