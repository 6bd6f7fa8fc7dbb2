/* Token rows to experts and back.  docs/OPS.md 7.
 *
 *   k0  one thread for each element                                                          copies; sums in fp32
 *   k1  16 bytes, or eight terms, for each thread; rows along the grid                       the same arithmetic
 *
 * combine_rows adds in fp32, k ascending, and rounds once.  An index of -1 means no row: zeros, no term.  Another index outside
 * its range is a violated precondition; it never reads or writes outside a buffer: the result is NaN (I64: -1). */
#include "gpu/vector.cuh"

/* U: an unsigned type of the element's size; a copy of bits. */
template <class U>
__global__ void gather_rows_k0(U *y, const U *x, const int64_t *index, int64_t rows, int64_t n, int64_t h)
{
    for (int64_t e = gpu_thread(); e < rows * h; e += gpu_threads()) {
        const int64_t from = index[e / h];
        y[e] = from >= 0 && from < n ? x[from * h + e % h] : from == -1 ? (U)0 : (U) ~(U)0;
    }
}

template <class T>
__global__ void combine_rows_k0(T *y, const T *x, const int64_t *token_row, int64_t t, int64_t k, int64_t r,
                                int64_t h)
{
    for (int64_t e = gpu_thread(); e < t * h; e += gpu_threads()) {
        float sum = 0.0f;
        for (int64_t i = 0; i < k; ++i) {
            const int64_t row = token_row[e / h * k + i];
            if (row != -1)
                sum += row >= 0 && row < r ? gpu_load(x + row * h + e % h) : NAN;
        }
        gpu_store(y + e, sum);
    }
}

/* Pieces of 16 bytes. */
__global__ void gather_rows_k1(uint4 *y, const uint4 *x, const int64_t *index, int64_t rows, int64_t n,
                               int pieces)
{
    GPU_EACH_PIECE(row, i, rows, pieces, 1)
    {
        const int64_t from = index[row];
        const unsigned bits = from == -1 ? 0u : ~0u;
        y[row * pieces + i] =
            from >= 0 && from < n ? x[from * pieces + i] : make_uint4(bits, bits, bits, bits);
    }
}

template <class T>
__global__ void combine_rows_k1(T *y, const T *x, const int64_t *token_row, int64_t t, int64_t k, int64_t r,
                                int h)
{
    GPU_EACH_EIGHT(token, j, t, h)
    {
        float sum[GPU_EIGHT] = {};
        for (int64_t i = 0; i < k; ++i) {
            const int64_t row = token_row[token * k + i];
            float term[GPU_EIGHT] = {};
            if (row == -1)
                continue;
            if (row >= 0 && row < r)
                gpu_load_n(term, x + row * h + j);
            for (int e = 0; e < GPU_EIGHT; ++e)
                sum[e] += row >= 0 && row < r ? term[e] : NAN;
        }
        gpu_store_n(y + token * h + j, sum);
    }
}

template <class U>
static cudaError_t launch_gather(gpu_tensor y, gpu_tensor x, gpu_tensor index, int64_t h, cudaStream_t stream)
{
    const int64_t rows = gpu_tensor_count(index), n = x.shape[0];
    return GPU_LAUNCH_NO_BARRIER(gather_rows_k0<U>, gpu_grid(rows * h, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (U *)y.data, (const U *)x.data, (const int64_t *)index.data, rows, n, h);
}

static cudaError_t launch_gather_pieces(gpu_tensor y, gpu_tensor x, gpu_tensor index, int pieces,
                                        cudaStream_t stream)
{
    const int64_t rows = gpu_tensor_count(index);
    const gpu_pieces_launch shape = gpu_pieces_of(rows, pieces);
    return GPU_LAUNCH_NO_BARRIER(gather_rows_k1, shape.grid, shape.block, 0, stream, (uint4 *)y.data,
                                 (const uint4 *)x.data, (const int64_t *)index.data, rows, x.shape[0],
                                 pieces);
}

/* Elements of a row of x [N,...]. */
static int64_t row_of(gpu_tensor x)
{
    int64_t h = 1;
    for (int i = 1; i < x.ndim; ++i)
        h *= x.shape[i];
    return h;
}

static assay_status gather_rows(const gpu_work *w)
{
    const gpu_tensor y = gpu_operand(w->o, "y"), x = gpu_operand(w->o, "x"),
                     index = gpu_operand(w->o, "index");
    const char *op = "gather_rows";
    ASSAY_TRY(gpu_check_tensor(op, "x", x, x.dtype, x.dtype));
    ASSAY_CHECK(x.dtype == ASSAY_F32 || x.dtype == ASSAY_BF16 || x.dtype == ASSAY_I64, ASSAY_UNSUPPORTED,
                "%s: x: expected dtype F32, BF16 or I64, found %s", op, assay_dtype_name(x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "index", index, ASSAY_I64, ASSAY_I64));
    ASSAY_CHECK(x.ndim >= 1, ASSAY_INVALID_ARGUMENT, "%s: x: expected rows, found a scalar", op);
    const int64_t h = row_of(x), rows = gpu_tensor_count(index);
    ASSAY_TRY(gpu_check_count(op, "y", y, rows * h));
    if (rows * h > 0) {
        cudaError_t e;
        if (w->variant > 0)
            e = launch_gather_pieces(y, x, index, gpu_16_bytes(w->o, x.dtype, h), w->stream);
        else if (x.dtype == ASSAY_BF16)
            e = launch_gather<unsigned short>(y, x, index, h, w->stream);
        else if (x.dtype == ASSAY_F32)
            e = launch_gather<unsigned>(y, x, index, h, w->stream);
        else
            e = launch_gather<unsigned long long>(y, x, index, h, w->stream);
        GPU_LAUNCHED(e, op);
    }
    return ASSAY_OK;
}

template <class T>
static cudaError_t launch_combine(int variant, gpu_tensor y, gpu_tensor x, gpu_tensor token_row,
                                  cudaStream_t stream)
{
    const int64_t t = token_row.shape[0], k = token_row.shape[1], h = gpu_tensor_cols(x);
    const gpu_pieces_launch eights = gpu_pieces_of(t, h / GPU_EIGHT);
    if (variant > 0)
        return GPU_LAUNCH_NO_BARRIER(combine_rows_k1<T>, eights.grid, eights.block, 0, stream, (T *)y.data,
                                     (const T *)x.data, (const int64_t *)token_row.data, t, k,
                                     gpu_tensor_row_count(x), (int)h);
    return GPU_LAUNCH_NO_BARRIER(combine_rows_k0<T>, gpu_grid(t * h, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (T *)y.data, (const T *)x.data, (const int64_t *)token_row.data, t, k,
                                 gpu_tensor_row_count(x), h);
}

static assay_status combine_rows(const gpu_work *w)
{
    const gpu_tensor y = gpu_operand(w->o, "y"), x = gpu_operand(w->o, "x"),
                     token_row = gpu_operand(w->o, "token_row");
    const char *op = "combine_rows";
    ASSAY_TRY(gpu_check_act(op, "x", x));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_tensor(op, "token_row", token_row, ASSAY_I64, ASSAY_I64));
    ASSAY_CHECK(token_row.ndim == 2, ASSAY_INVALID_ARGUMENT,
                "%s: token_row: expected 2 dimensions [T,K], found %d", op, token_row.ndim);
    const int64_t t = token_row.shape[0], h = gpu_tensor_cols(x);
    ASSAY_TRY(gpu_check_shape2(op, "y", y, t, h));
    if (t * h > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_combine, w->variant, y, x, token_row, w->stream), op);
    return ASSAY_OK;
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
static bool rows_of_16_bytes(const gpu_ctx *, const gpu_operands *o)
{
    const gpu_tensor x = gpu_operand(o, "x");
    return gpu_16_bytes(o, x.dtype, row_of(x)) > 0;
}
static bool rows_of_eights(const gpu_ctx *, const gpu_operands *o)
{
    return gpu_eights(o, gpu_tensor_cols(gpu_operand(o, "x")));
}

GPU_LADDER(gather_rows) = {
    GPU_RUNG("one thread an element", gather_rows, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_RUNG_IF("16 bytes a thread, rows along the grid", gather_rows, NULL, rows_of_16_bytes, NULL,
                GPU_SM_80, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(combine_rows) = {
    GPU_RUNG("one thread an element", combine_rows, GPU_DECLARES("y", GPU_SEQUENTIAL(0))),
    GPU_RUNG_IF("eight elements a thread, rows along the grid", combine_rows, NULL, rows_of_eights, NULL,
                GPU_SM_80, GPU_DECLARES("y", GPU_SEQUENTIAL(0))),
    GPU_LADDER_END,
};
