/* Vocabulary-parallel embedding.  docs/OPS.md 6.
 *
 *   k0  one thread for each element; bwd: one thread for each column walks the tokens       fp32, sequential
 *   k1  fwd: 16 bytes for each thread, rows along the grid                                  copies
 *       bwd: one warp for each token; the first token of an id sums all rows of that id,   the same sums,
 *       so ids are summed side by side                                                      bit for bit
 *   k2  bwd: tokens sorted by id, 64 chains of an id at most: embedding_sorted.cu           fp32, 64 chains in order
 *
 * k0 and k1 of bwd add the rows of an id onto dweight in ascending token order. */
#include "gpu/ops/embedding.cuh"
#include "gpu/vector.cuh"

template <class T>
__global__ void embedding_fwd_k0(T *y, const int64_t *ids, const T *w, int64_t vocab_start, int64_t v,
                                 int64_t t, int64_t h)
{
    for (int64_t e = gpu_thread(); e < t * h; e += gpu_threads()) {
        const int64_t id = ids[e / h];
        const bool here = id >= vocab_start && id - vocab_start < v;
        if (here)
            y[e] = w[(id - vocab_start) * h + e % h];
        else
            gpu_store(y + e, 0.0f);
    }
}

/* Pieces of 16 bytes. */
__global__ void embedding_fwd_k1(uint4 *y, const int64_t *ids, const uint4 *w, int64_t vocab_start, int64_t v,
                                 int64_t t, int pieces)
{
    GPU_EACH_PIECE(row, i, t, pieces, 1)
    {
        const int64_t id = ids[row];
        const bool here = id >= vocab_start && id - vocab_start < v;
        y[row * pieces + i] = here ? w[(id - vocab_start) * pieces + i] : make_uint4(0u, 0u, 0u, 0u);
    }
}

template <class T>
__global__ void embedding_bwd_k0(float *dweight, const T *dy, const int64_t *ids, int64_t vocab_start,
                                 int64_t padding_idx, int64_t v, int64_t t, int64_t h)
{
    for (int64_t j = gpu_thread(); j < h; j += gpu_threads())
        for (int64_t i = 0; i < t; ++i) {
            const int64_t id = ids[i];
            if (id >= vocab_start && id - vocab_start < v && id != padding_idx)
                dweight[(id - vocab_start) * h + j] += gpu_load(dy + i * h + j);
        }
}

template <class T>
__global__ void embedding_bwd_k1(float *dweight, const T *dy, const int64_t *ids, int64_t vocab_start,
                                 int64_t padding_idx, int64_t v, int64_t t, int64_t h)
{
    const int lane = (int)threadIdx.x;
    const int64_t step = (int64_t)gridDim.x * blockDim.y;
    for (int64_t first = gpu_warp_row(); first < t; first += step) {
        const int64_t id = ids[first];
        int earlier = !(id >= vocab_start && id - vocab_start < v && id != padding_idx);
        for (int64_t i = lane; i < first; i += GPU_WARP)
            earlier |= ids[i] == id;
        if (__any_sync(gpu_all_lanes, earlier))
            continue; /* the whole warp: not ours, padding, or an earlier token's warp sums this id */
        float *row = dweight + (id - vocab_start) * h;
        for (int64_t base = first; base < t; base += GPU_WARP) {
            const int64_t mine = base + lane;
            const unsigned same = __ballot_sync(gpu_all_lanes, mine < t && ids[mine] == id);
            for (int i = 0; i < GPU_WARP; ++i)
                if ((same >> i & 1u) != 0)
                    for (int64_t j = lane; j < h; j += GPU_WARP)
                        row[j] += gpu_load(dy + (base + i) * h + j);
        }
    }
}

template <class T>
static cudaError_t launch_fwd(gpu_tensor y, gpu_tensor ids, gpu_tensor weight, int64_t vocab_start, int64_t t,
                              int64_t h, cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER(embedding_fwd_k0<T>, gpu_grid(t * h, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (T *)y.data, (const int64_t *)ids.data, (const T *)weight.data, vocab_start,
                                 weight.shape[0], t, h);
}

static cudaError_t launch_fwd_pieces(gpu_tensor y, gpu_tensor ids, gpu_tensor weight, int64_t vocab_start,
                                     int64_t t, int pieces, cudaStream_t stream)
{
    const gpu_pieces_launch shape = gpu_pieces_of(t, pieces);
    return GPU_LAUNCH_NO_BARRIER(embedding_fwd_k1, shape.grid, shape.block, 0, stream, (uint4 *)y.data,
                                 (const int64_t *)ids.data, (const uint4 *)weight.data, vocab_start,
                                 weight.shape[0], t, pieces);
}

static assay_status embedding_fwd(const gpu_work *w)
{
    const gpu_tensor y = gpu_operand(w->o, "y"), ids = gpu_operand(w->o, "ids"),
                     weight = gpu_operand(w->o, "weight");
    const int64_t vocab_start = gpu_operand_int(w->o, "vocab_start");
    const char *op = "embedding_fwd";
    ASSAY_TRY(gpu_check_act(op, "weight", weight));
    ASSAY_CHECK(weight.ndim == 2, ASSAY_INVALID_ARGUMENT, "%s: weight: expected 2 dimensions [V,H], found %d",
                op, weight.ndim);
    ASSAY_TRY(gpu_check_tensor(op, "ids", ids, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, weight.dtype, weight.dtype));
    const int64_t t = gpu_tensor_count(ids), h = weight.shape[1];
    ASSAY_TRY(gpu_check_shape2(op, "y", y, t, h));
    ASSAY_CHECK(vocab_start >= 0, ASSAY_INVALID_ARGUMENT,
                "%s: vocab_start: expected 0 or more, found %" PRId64, op, vocab_start);
    if (t * h > 0 && w->variant > 0)
        GPU_LAUNCHED(
            launch_fwd_pieces(y, ids, weight, vocab_start, t, gpu_16_bytes(w->o, weight.dtype, h), w->stream),
            op);
    else if (t * h > 0)
        GPU_LAUNCHED(GPU_BY_ACT(weight.dtype, launch_fwd, y, ids, weight, vocab_start, t, h, w->stream), op);
    return ASSAY_OK;
}

template <class T>
static cudaError_t launch_bwd(int variant, gpu_tensor dweight, gpu_tensor dy, gpu_tensor ids,
                              int64_t vocab_start, int64_t padding_idx, int64_t t, int64_t h,
                              cudaStream_t stream)
{
    const int64_t v = dweight.shape[0];
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(embedding_bwd_k0<T>, gpu_grid(h, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     (float *)dweight.data, (const T *)dy.data, (const int64_t *)ids.data,
                                     vocab_start, padding_idx, v, t, h);
    return GPU_LAUNCH(embedding_bwd_k1<T>, gpu_grid(t, GPU_ROWS_PER_BLOCK), gpu_warp_block(), 0, stream,
                      (float *)dweight.data, (const T *)dy.data, (const int64_t *)ids.data, vocab_start,
                      padding_idx, v, t, h);
}

static assay_status embedding_bwd(const gpu_work *w)
{
    const gpu_tensor dweight = gpu_operand(w->o, "dweight"), dy = gpu_operand(w->o, "dy"),
                     ids = gpu_operand(w->o, "ids");
    const int64_t vocab_start = gpu_operand_int(w->o, "vocab_start"),
                  padding_idx = gpu_operand_int(w->o, "padding_idx");
    const char *op = "embedding_bwd";
    ASSAY_TRY(gpu_check_tensor(op, "dweight", dweight, ASSAY_F32, ASSAY_F32));
    ASSAY_CHECK(dweight.ndim == 2, ASSAY_INVALID_ARGUMENT,
                "%s: dweight: expected 2 dimensions [V,H], found %d", op, dweight.ndim);
    ASSAY_TRY(gpu_check_act(op, "dy", dy));
    ASSAY_TRY(gpu_check_tensor(op, "ids", ids, ASSAY_I64, ASSAY_I64));
    const int64_t t = gpu_tensor_count(ids), h = dweight.shape[1];
    ASSAY_TRY(gpu_check_shape2(op, "dy", dy, t, h));
    ASSAY_CHECK(vocab_start >= 0, ASSAY_INVALID_ARGUMENT,
                "%s: vocab_start: expected 0 or more, found %" PRId64, op, vocab_start);
    ASSAY_CHECK(padding_idx >= -1, ASSAY_INVALID_ARGUMENT,
                "%s: padding_idx: expected -1 or more, found %" PRId64, op, padding_idx);
    if (t == 0 || h == 0)
        return ASSAY_OK;
    if (w->variant == 2) {
        const embedding_bwd_call c = {dweight,          dy, ids, vocab_start,        padding_idx,
                                      dweight.shape[0], t,  h,   gpu_eights(w->o, h)};
        ASSAY_TRY(gpu_check_workspace(op, w->ctx, gpu_embedding_bwd_sorted_bytes(t, h)));
        GPU_LAUNCHED(gpu_embedding_bwd_sorted(&c, w->ctx->workspace, w->stream), op);
        return ASSAY_OK;
    }
    GPU_LAUNCHED(GPU_BY_ACT(dy.dtype, launch_bwd, w->variant, dweight, dy, ids, vocab_start, padding_idx, t,
                            h, w->stream),
                 op);
    return ASSAY_OK;
}

static size_t sorted_workspace(const gpu_ctx *, const gpu_operands *o)
{
    const gpu_tensor dweight = gpu_operand(o, "dweight");
    return gpu_embedding_bwd_sorted_bytes(gpu_tensor_count(gpu_operand(o, "ids")),
                                          dweight.ndim == 2 ? dweight.shape[1] : 0);
}

/* Tokens and rows of the table that an int counts. */
static bool takes_sorted(const gpu_ctx *, const gpu_operands *o)
{
    const gpu_tensor dweight = gpu_operand(o, "dweight");
    return gpu_tensor_count(gpu_operand(o, "ids")) < INT_MAX / 2 &&
           (dweight.ndim != 2 || dweight.shape[0] < INT_MAX);
}

static bool rows_of_16_bytes(const gpu_ctx *, const gpu_operands *o)
{
    const gpu_tensor weight = gpu_operand(o, "weight");
    return weight.ndim == 2 && gpu_16_bytes(o, weight.dtype, weight.shape[1]) > 0;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
GPU_LADDER(embedding_fwd) = {
    GPU_RUNG("one thread an element", embedding_fwd, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_RUNG_IF("16 bytes a thread, rows along the grid", embedding_fwd, NULL, rows_of_16_bytes, NULL,
                GPU_SM_80, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(embedding_bwd) = {
    GPU_RUNG("one thread a column walks the tokens", embedding_bwd,
             GPU_DECLARES("dweight", GPU_SEQUENTIAL(0))),
    GPU_RUNG("one warp a token: ids are summed side by side, the same sums bit for bit", embedding_bwd,
             GPU_DECLARES("dweight", GPU_SEQUENTIAL(0))),
    GPU_RUNG_IF("tokens sorted by id, rows of a frequent id in 64 chains: no id holds up the others",
                embedding_bwd, sorted_workspace, takes_sorted, NULL, GPU_SM_80,
                GPU_DECLARES("dweight", GPU_CHAINS(EMBEDDING_CHAINS, 0))),
    GPU_LADDER_END,
};
