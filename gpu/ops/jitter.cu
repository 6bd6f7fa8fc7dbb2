/* Jitter of a router's input: Philox4x32-10 by global indices.  docs/OPS.md 7.
 *
 *   k0  one thread an element     fp32, one product
 *
 * The factor is made in double from integers; all but a sum and its rounding to fp32 is exact, so that it is one number
 * whether the compiler contracts or not. */
#include "gpu/device.cuh"
#include "gpu/ops/philox.cuh"

#define JITTER_SEED 1234ull
#define JITTER_STREAMS (1ull << 30) /* behind those of random logits, which are layers */

typedef struct jitter_args {
    double eps;
    int64_t layer, draw, tokens, h, n;
} jitter_args;

template <class T> __global__ void jitter_k0(T *y, const T *x, const int64_t *token, jitter_args a)
{
    for (int64_t i = gpu_thread(); i < a.n; i += gpu_threads()) {
        const unsigned long long element =
            (unsigned long long)((a.draw * a.tokens + token[i / a.h]) * a.h + i % a.h);
        const gpu_philox_block c =
            gpu_philox(JITTER_SEED, JITTER_STREAMS + (unsigned long long)a.layer, element >> 2);
        const long long r = 2ll * (long long)(c.word[element & 3] >> 8) + 1 - (1ll << 24);
        const float factor = (float)(1.0 + a.eps * ((double)r * 0x1p-24));
        gpu_store(y + i, gpu_load(x + i) * factor);
    }
}

template <class T>
static cudaError_t launch_jitter(gpu_tensor y, gpu_tensor x, gpu_tensor token, const jitter_args &a,
                                 cudaStream_t stream)
{
    return GPU_LAUNCH_NO_BARRIER(jitter_k0<T>, gpu_grid(a.n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                 (T *)y.data, (const T *)x.data, (const int64_t *)token.data, a);
}

static assay_status input_jitter(const gpu_work *w)
{
    const char *op = "input_jitter";
    const gpu_tensor x = gpu_operand(w->o, "x"), y = gpu_operand(w->o, "y"),
                     token = gpu_operand(w->o, "token");
    const int64_t n = gpu_tensor_count(x), t = gpu_tensor_count(token);
    ASSAY_TRY(gpu_check_act(op, "x", x));
    ASSAY_TRY(gpu_check_tensor(op, "y", y, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_count(op, "y", y, n));
    ASSAY_TRY(gpu_check_row_tokens(op, token, "x", n));
    const jitter_args a = {gpu_operand_double(w->o, "eps"),
                           gpu_operand_int(w->o, "layer"),
                           gpu_operand_int(w->o, "draw"),
                           gpu_operand_int(w->o, "tokens"),
                           t > 0 ? n / t : 0,
                           n};
    if (n > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_jitter, y, x, token, a, w->stream), op);
    return ASSAY_OK;
}

GPU_LADDER(input_jitter) = {
    GPU_RUNG("one thread an element", input_jitter, GPU_DECLARES("y", GPU_ELEMENTWISE(0))),
    GPU_LADDER_END,
};
