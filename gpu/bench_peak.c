/* What the device can do: a product and a copy that are too large for its caches. */
#include "gpu/bench.h"

#include "gpu/ladder.h"
#include <stdlib.h>
#include <string.h>

enum { WARMUP = 3, TURNS = 10, PATTERN = 1 << 16 };
/* On a device: three matrices of 128 MiB in bf16, a copy of 256 MiB: several times any L2.  In the simulator: short. */
enum { DEVICE_BF16 = 8192, DEVICE_F32 = 4096, SIMULATED = 192 };
static const int64_t device_copy = (int64_t)256 << 20, simulated_copy = (int64_t)4 << 20;

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double gpu_bench_median(double *values, int64_t n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/* Numbers in [-1, 1) of either sign: a product of zeros draws less power and so runs at a higher clock. */
static assay_status fill(gpu_ctx *ctx, char *device, size_t bytes, assay_dtype dtype)
{
    const size_t width = (size_t)assay_dtype_bytes(dtype), whole = PATTERN * width;
    char *host = malloc(whole);
    uint32_t state = 1;
    ASSAY_CHECK(host, ASSAY_OUT_OF_MEMORY, "bench: %zu bytes", whole);
    for (size_t i = 0; i < PATTERN; i++) {
        state = state * 1664525u + 1013904223u;
        const float value = (float)(state >> 8) * 0x1p-23f - 1.0f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        const uint16_t high = (uint16_t)(bits >> 16);
        memcpy(host + i * width, width == 2 ? (const void *)&high : (const void *)&bits, width);
    }
    cudaError_t e = cudaSuccess;
    for (size_t at = 0; at < bytes && e == cudaSuccess; at += whole)
        e = cudaMemcpyAsync(device + at, host, bytes - at < whole ? bytes - at : whole,
                            cudaMemcpyHostToDevice, ctx->stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(ctx->stream);
    free(host);
    CUDA_TRY(e);
    return ASSAY_OK;
}

typedef struct peak_run {
    gpu_ctx *ctx;
    cudaEvent_t from, to;
    char *memory, *workspace;
    gpu_operands o;
    size_t bytes; /* of the copy; 0: the product */
} peak_run;

static assay_status once(const peak_run *p)
{
    int variant;
    if (p->bytes == 0)
        return gpu_ladder_run(p->ctx, &p->o, 1, p->ctx->stream, &variant);
    CUDA_TRY(
        cudaMemcpyAsync(p->memory + p->bytes, p->memory, p->bytes, cudaMemcpyDeviceToDevice, p->ctx->stream));
    return ASSAY_OK;
}

static assay_status median_ms(const peak_run *p, double *out)
{
    double ms[TURNS];
    for (int i = -WARMUP; i < TURNS; i++) {
        float one;
        CUDA_TRY(cudaEventRecord(p->from, p->ctx->stream));
        ASSAY_TRY(once(p));
        CUDA_TRY(cudaEventRecord(p->to, p->ctx->stream));
        CUDA_TRY(cudaEventSynchronize(p->to));
        CUDA_TRY(cudaEventElapsedTime(&one, p->from, p->to));
        if (i >= 0)
            ms[i] = (double)one;
    }
    *out = gpu_bench_median(ms, TURNS);
    return ASSAY_OK;
}

static assay_status measure_product(peak_run *p, assay_dtype dtype, int64_t n, double *flops_per_s)
{
    const size_t bytes = (size_t)(n * n * assay_dtype_bytes(dtype));
    double ms;
    gpu_operands_init(&p->o, assay_op_find("linear_fwd"));
    gpu_operands_put(&p->o, "x", gpu_tensor_2d(p->memory, dtype, n, n));
    gpu_operands_put(&p->o, "weight", gpu_tensor_2d(p->memory + bytes, dtype, n, n));
    gpu_operands_put(&p->o, "y", gpu_tensor_2d(p->memory + 2 * bytes, dtype, n, n));
    const size_t workspace = gpu_ladder_workspace(p->ctx, &p->o);
    if (workspace > 0)
        CUDA_TRY(cudaMalloc((void **)&p->workspace, workspace));
    p->ctx->workspace = p->workspace;
    p->ctx->workspace_bytes = workspace;
    ASSAY_TRY(fill(p->ctx, p->memory, 2 * bytes, dtype));
    p->bytes = 0;
    ASSAY_TRY(median_ms(p, &ms));
    *flops_per_s = 2.0 * (double)n * (double)n * (double)n / (ms * 1e-3);
    return ASSAY_OK;
}

static assay_status measure(peak_run *p, gpu_bench_peak *out)
{
    const size_t matrices = 3 * (size_t)(out->size * out->size * assay_dtype_bytes(out->dtype)),
                 copies = 2 * (size_t)out->copy_bytes;
    double ms;
    CUDA_TRY(cudaEventCreate(&p->from));
    CUDA_TRY(cudaEventCreate(&p->to));
    CUDA_TRY(cudaMalloc((void **)&p->memory, matrices > copies ? matrices : copies));
    ASSAY_TRY(measure_product(p, out->dtype, out->size, &out->flops_per_s));
    ASSAY_TRY(fill(p->ctx, p->memory, (size_t)out->copy_bytes, ASSAY_F32));
    p->bytes = (size_t)out->copy_bytes;
    ASSAY_TRY(median_ms(p, &ms));
    out->copy_bytes_per_s = 2.0 * (double)out->copy_bytes / (ms * 1e-3);
    return ASSAY_OK;
}

assay_status gpu_bench_measure_peak(gpu_ctx *ctx, assay_dtype dtype, int64_t size, int64_t copy_bytes,
                                    gpu_bench_peak *out)
{
    const gpu_ctx before = *ctx;
    const int64_t device_size = dtype == ASSAY_BF16 ? DEVICE_BF16 : DEVICE_F32;
    peak_run p = {.ctx = ctx};
    *out = (gpu_bench_peak){.dtype = dtype,
                            .size = size > 0         ? size
                                    : ctx->simulated ? SIMULATED
                                                     : device_size,
                            .copy_bytes = copy_bytes > 0   ? copy_bytes
                                          : ctx->simulated ? simulated_copy
                                                           : device_copy};
    ctx->variant[GPU_FAMILY_LINEAR] = -1; /* the peak is that of the fastest, whatever the step runs */
    const assay_status st = measure(&p, out);
    (void)cudaStreamSynchronize(ctx->stream);
    ctx->workspace = before.workspace;
    ctx->workspace_bytes = before.workspace_bytes;
    ctx->variant[GPU_FAMILY_LINEAR] = before.variant[GPU_FAMILY_LINEAR];
    if (p.from)
        (void)cudaEventDestroy(p.from);
    if (p.to)
        (void)cudaEventDestroy(p.to);
    if (p.memory)
        (void)cudaFree(p.memory);
    if (p.workspace)
        (void)cudaFree(p.workspace);
    return st;
}
