/* Dropout: masks by global indices, made where they are used and never stored.  docs/OPS.md 6 and 9.12.
 *
 *   k0  one thread an element                          one block of Philox for each element
 *   k1  four neighbours of a row for each thread       one block for four; the same arithmetic
 *
 * The mask is linear and its own transpose: the backward is the forward of dy. */
#include "gpu/ops/philox.cuh"
#include "gpu/vector.cuh"

template <class T>
__global__ void dropout_k0(T *y, const T *x, const int64_t *token, int64_t n, int64_t width, gpu_mask mask)
{
    for (int64_t i = gpu_thread(); i < n; i += gpu_threads()) {
        const unsigned long long element = (unsigned long long)token[i / width] * (unsigned long long)width +
                                           (unsigned long long)(i % width);
        gpu_store(y + i, gpu_load(x + i) * gpu_mask_factor(mask, element));
    }
}

/* width is a multiple of 4: four columns from a multiple of 4 on share a block. */
template <class T>
__global__ void dropout_k1(T *y, const T *x, const int64_t *token, int64_t n, int64_t width, gpu_mask mask)
{
    for (int64_t i = 4 * gpu_thread(); i < n; i += 4 * gpu_threads()) {
        const unsigned long long element = (unsigned long long)token[i / width] * (unsigned long long)width +
                                           (unsigned long long)(i % width);
        const gpu_philox_block c = gpu_philox(mask.seed, mask.stream, element >> 2);
        float v[4];
        gpu_load_n(v, x + i);
        for (int j = 0; j < 4; ++j)
            v[j] = v[j] * (c.word[j] >= mask.least ? mask.scale : 0.0f);
        gpu_store_n(y + i, v);
    }
}

template <class T>
static cudaError_t launch(int variant, gpu_tensor y, gpu_tensor x, gpu_tensor token, const gpu_mask &mask,
                          cudaStream_t stream)
{
    const int64_t n = gpu_tensor_count(x), width = n / gpu_tensor_count(token);
    if (variant == 0)
        return GPU_LAUNCH_NO_BARRIER(dropout_k0<T>, gpu_grid(n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                     (T *)y.data, (const T *)x.data, (const int64_t *)token.data, n, width,
                                     mask);
    return GPU_LAUNCH_NO_BARRIER(dropout_k1<T>, gpu_grid(n / 4, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (T *)y.data, (const T *)x.data, (const int64_t *)token.data, n, width, mask);
}

static assay_status dropout(const gpu_work *w, const char *op, const char *in, const char *out)
{
    const gpu_tensor y = gpu_operand(w->o, out), x = gpu_operand(w->o, in),
                     token = gpu_operand(w->o, "token");
    const double p = gpu_operand_double(w->o, "p");
    const int64_t n = gpu_tensor_count(x);
    ASSAY_CHECK(p >= 0.0 && p < 1.0, ASSAY_INVALID_ARGUMENT,
                "%s: p: expected 0 or more and less than 1, found %g", op, p);
    ASSAY_TRY(gpu_check_act(op, in, x));
    ASSAY_TRY(gpu_check_tensor(op, out, y, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_count(op, out, y, n));
    ASSAY_TRY(gpu_check_row_tokens(op, token, in, n));
    if (n > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch, w->variant, y, x, token, gpu_mask_of(w->o, "p"), w->stream),
                     op);
    return ASSAY_OK;
}

static assay_status dropout_fwd(const gpu_work *w)
{
    return dropout(w, "dropout_fwd", "x", "y");
}

static assay_status dropout_bwd(const gpu_work *w)
{
    return dropout(w, "dropout_bwd", "dy", "dx");
}

/* --- the ladders -------------------------------------------------------------------------------------------- */
static bool rows_of_four(const gpu_ctx *, const gpu_operands *o)
{
    const int64_t t = gpu_tensor_count(gpu_operand(o, "token")), n = gpu_tensor_count(o->slot[0]);
    return t > 0 && n / t % 4 == 0 && gpu_eights(o, 0);
}

GPU_LADDER(dropout_fwd) = {
    GPU_RUNG("one thread an element", dropout_fwd, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_RUNG_IF("four columns a thread from one block of Philox, where rows divide", dropout_fwd, NULL,
                rows_of_four, NULL, GPU_SM_80, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
GPU_LADDER(dropout_bwd) = {
    GPU_RUNG("one thread an element", dropout_bwd, GPU_DECLARES("dx", GPU_ELEMENTWISE(0))),
    GPU_RUNG_IF("four columns a thread from one block of Philox, where rows divide", dropout_bwd, NULL,
                rows_of_four, NULL, GPU_SM_80, GPU_DECLARES("dx", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
