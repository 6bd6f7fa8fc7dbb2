/* Rotary position embedding.  docs/OPS.md 4; Su et al. 2021; llama3 scaling as in Hugging Face transformers.
 *
 *   k0  one thread for each pair or element; the table in double,      fp32, element-wise (table: double)
 *       rounded once
 *
 * One variant: the operation is bound by memory and reads and writes every element once. */
#include "core/model/config.h"
#include "gpu/device.cuh"
#include "gpu/ladder.h"

__global__ void rope_table_k0(float *cos_table, float *sin_table, gpu_rope_desc d, int64_t positions)
{
    const int64_t half = d.rotary_dim / 2;
    const double two_pi = 6.283185307179586476925286766559;
    for (int64_t e = gpu_thread(); e < positions * half; e += gpu_threads()) {
        const int64_t p = e / half, i = e % half;
        double f = pow(d.base, -2.0 * (double)i / (double)d.rotary_dim);
        if (d.type == ASSAY_ROPE_LINEAR)
            f /= d.factor;
        if (d.type == ASSAY_ROPE_LLAMA3) {
            const double orig = (double)d.original_max_position_embeddings;
            const double wavelength = two_pi / f;
            if (wavelength > orig / d.low_freq_factor) {
                f /= d.factor;
            } else if (!(wavelength < orig / d.high_freq_factor)) {
                const double s =
                    (orig / wavelength - d.low_freq_factor) / (d.high_freq_factor - d.low_freq_factor);
                f = (1.0 - s) * f / d.factor + s * f;
            }
        }
        const double angle = (double)p * f;
        cos_table[e] = (float)cos(angle);
        sin_table[e] = (float)sin(angle);
    }
}

/* sign = 1 rotates forward, -1 back. */
template <class T>
__global__ void rope_k0(T *y, const T *x, const float *cos_table, const float *sin_table,
                        const int64_t *position, float sign, int64_t t, int64_t heads, int64_t d,
                        int64_t half)
{
    const int64_t width = d - half; /* pairs, then the elements that pass */
    for (int64_t e = gpu_thread(); e < t * heads * width; e += gpu_threads()) {
        const int64_t row = e / width, i = e % width;
        if (i >= half) {
            y[row * d + half + i] = x[row * d + half + i];
            continue;
        }
        const int64_t entry = position[row / heads] * half + i;
        const float c = cos_table[entry], s = sign * sin_table[entry];
        const float a = gpu_load(x + row * d + i), b = gpu_load(x + row * d + half + i);
        gpu_store(y + row * d + i, a * c - b * s);
        gpu_store(y + row * d + half + i, b * c + a * s);
    }
}

static bool positive(double v)
{
    return v > 0.0 && isfinite(v);
}

assay_status gpu_rope_table(gpu_ctx *ctx, gpu_tensor cos_table, gpu_tensor sin_table, const gpu_rope_desc *d,
                            cudaStream_t stream, gpu_declared *declared)
{
    (void)ctx;
    const char *op = "rope_table";
    ASSAY_TRY(gpu_check_tensor(op, "cos", cos_table, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "sin", sin_table, ASSAY_F32, ASSAY_F32));
    ASSAY_CHECK(d->rotary_dim >= 0 && d->rotary_dim % 2 == 0, ASSAY_INVALID_ARGUMENT,
                "%s: rotary_dim: expected an even number, found %" PRId64, op, d->rotary_dim);
    const int64_t positions = gpu_tensor_row_count(cos_table);
    ASSAY_TRY(gpu_check_shape2(op, "cos", cos_table, positions, d->rotary_dim / 2));
    ASSAY_TRY(gpu_check_shape2(op, "sin", sin_table, positions, d->rotary_dim / 2));
    ASSAY_CHECK(positive(d->base), ASSAY_INVALID_ARGUMENT,
                "%s: rotary_base: expected a positive number, found %g", op, d->base);
    ASSAY_CHECK(d->type == ASSAY_ROPE_DEFAULT || d->type == ASSAY_ROPE_LINEAR || d->type == ASSAY_ROPE_LLAMA3,
                ASSAY_UNSUPPORTED, "%s: rope_type: expected default, linear or llama3, found number %d", op,
                d->type);
    ASSAY_CHECK(d->type == ASSAY_ROPE_DEFAULT || positive(d->factor), ASSAY_INVALID_ARGUMENT,
                "%s: factor: expected a positive number, found %g", op, d->factor);
    ASSAY_CHECK(d->type != ASSAY_ROPE_LLAMA3 ||
                    (positive(d->low_freq_factor) && d->high_freq_factor > d->low_freq_factor &&
                     d->original_max_position_embeddings > 0),
                ASSAY_INVALID_ARGUMENT,
                "%s: llama3: expected 0 < low_freq_factor < high_freq_factor and "
                "original_max_position_embeddings > 0, found %g, %g, %" PRId64,
                op, d->low_freq_factor, d->high_freq_factor, d->original_max_position_embeddings);
    const int64_t n = gpu_tensor_count(cos_table);
    if (n > 0)
        GPU_LAUNCHED(GPU_LAUNCH_NO_BARRIER(rope_table_k0, gpu_grid(n, GPU_BLOCK), dim3(GPU_BLOCK), 0, stream,
                                           (float *)cos_table.data, (float *)sin_table.data, *d, positions),
                     op);
    assay_arith arith = gpu_arith_elementwise(2);
    arith.accumulate = ASSAY_F64;
    gpu_declare(declared, 0, arith);
    return ASSAY_OK;
}

template <class T>
static cudaError_t launch_rope(gpu_tensor y, gpu_tensor x, gpu_tensor c, gpu_tensor s, gpu_tensor position,
                               float sign, cudaStream_t stream)
{
    const int64_t t = x.shape[0], heads = x.shape[1], d = x.shape[2], half = gpu_tensor_cols(c);
    return GPU_LAUNCH_NO_BARRIER(rope_k0<T>, gpu_grid(t * heads * (d - half), GPU_BLOCK), dim3(GPU_BLOCK), 0,
                                 stream, (T *)y.data, (const T *)x.data, (const float *)c.data,
                                 (const float *)s.data, (const int64_t *)position.data, sign, t, heads, d,
                                 half);
}

static assay_status rope(gpu_ctx *ctx, const char *op, const char *y_name, gpu_tensor y, const char *x_name,
                         gpu_tensor x, gpu_tensor c, gpu_tensor s, gpu_tensor position, float sign,
                         cudaStream_t stream, gpu_declared *declared)
{
    (void)ctx;
    ASSAY_TRY(gpu_check_act(op, x_name, x));
    ASSAY_CHECK(x.ndim == 3, ASSAY_INVALID_ARGUMENT, "%s: %s: expected 3 dimensions [T,heads,D], found %d",
                op, x_name, x.ndim);
    ASSAY_TRY(gpu_check_tensor(op, y_name, y, x.dtype, x.dtype));
    ASSAY_TRY(gpu_check_count(op, y_name, y, gpu_tensor_count(x)));
    ASSAY_TRY(gpu_check_tensor(op, "cos", c, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_tensor(op, "sin", s, ASSAY_F32, ASSAY_F32));
    ASSAY_TRY(gpu_check_shape2(op, "sin", s, gpu_tensor_row_count(c), gpu_tensor_cols(c)));
    ASSAY_CHECK(2 * gpu_tensor_cols(c) <= x.shape[2], ASSAY_INVALID_ARGUMENT,
                "%s: cos: expected at most %" PRId64 " columns (half the head dimension), found %" PRId64, op,
                x.shape[2] / 2, gpu_tensor_cols(c));
    ASSAY_TRY(gpu_check_tensor(op, "position", position, ASSAY_I64, ASSAY_I64));
    ASSAY_TRY(gpu_check_count(op, "position", position, x.shape[0]));
    if (gpu_tensor_count(x) > 0)
        GPU_LAUNCHED(GPU_BY_ACT(x.dtype, launch_rope, y, x, c, s, position, sign, stream), op);
    gpu_declare(declared, 0, gpu_arith_elementwise(0));
    return ASSAY_OK;
}

assay_status gpu_rope_fwd(gpu_ctx *ctx, gpu_tensor y, gpu_tensor x, gpu_tensor cos_table,
                          gpu_tensor sin_table, gpu_tensor position, cudaStream_t stream,
                          gpu_declared *declared)
{
    return rope(ctx, "rope_fwd", "y", y, "x", x, cos_table, sin_table, position, 1.0f, stream, declared);
}

assay_status gpu_rope_bwd(gpu_ctx *ctx, gpu_tensor dx, gpu_tensor dy, gpu_tensor cos_table,
                          gpu_tensor sin_table, gpu_tensor position, cudaStream_t stream,
                          gpu_declared *declared)
{
    return rope(ctx, "rope_bwd", "dx", dx, "dy", dy, cos_table, sin_table, position, -1.0f, stream, declared);
}

/* --- the ladder --------------------------------------------------------------------------------------------- */
extern "C" const gpu_rung gpu_rope_rungs[] = {
    {"rope_table", 0, "one thread a pair, in double", "cos, sin: double, 2 ulp, one rounding", 0},
    {"rope_fwd", 0, "one thread a pair; bound by memory, so the only one", "y: fp32 element-wise", 0},
    {"rope_bwd", 0, "one thread a pair; bound by memory, so the only one", "dx: fp32 element-wise", 0},
    {NULL, 0, NULL, NULL, 0},
};
