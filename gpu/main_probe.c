/* The verb `probe`: answers the judge's questions about the device. */
#include "core/base/file.h"
#include "gpu/main.h"
#include "gpu/probe.h"

#include <stdlib.h>
#include <string.h>

enum { REQUEST_BYTES = 1 << 24 };

/* Device memory of `bytes` with the host's data, or empty. */
static assay_status to_device(void **out, const void *host, size_t bytes)
{
    CUDA_TRY(cudaMalloc(out, bytes > 0 ? bytes : 1));
    if (host != NULL && bytes > 0)
        CUDA_TRY(cudaMemcpy(*out, host, bytes, cudaMemcpyHostToDevice));
    return ASSAY_OK;
}

static assay_status put_floats(FILE *out, const float *device, size_t n, cudaStream_t stream)
{
    float *host = malloc(n * sizeof *host + 1);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(host != NULL, ASSAY_OUT_OF_MEMORY, "probe: %zu results", n);
    if (cudaStreamSynchronize(stream) != cudaSuccess ||
        cudaMemcpy(host, device, n * sizeof *host, cudaMemcpyDeviceToHost) != cudaSuccess)
        st = ASSAY_ERROR(ASSAY_CUDA, "probe: %s", cudaGetErrorString(cudaGetLastError()));
    else if (fwrite(host, sizeof *host, n, out) != n)
        st = ASSAY_ERROR(ASSAY_IO, "probe: the answer cannot be written");
    free(host);
    return st;
}

static assay_status ask_products(const gpu_ctx *ctx, const assay_probe_product *q, int64_t n, FILE *out)
{
    const size_t count = (size_t)n, row = sizeof q->a;
    float *c = malloc(count * sizeof *c + 1);
    char *a = malloc(count * row + 1), *b = malloc(count * row + 1);
    void *device[4] = {NULL};
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(c != NULL && a != NULL && b != NULL, ASSAY_OUT_OF_MEMORY, st, done, "probe");
    for (size_t i = 0; i < count; i++) {
        c[i] = q[i].c;
        memcpy(a + i * row, q[i].a, row);
        memcpy(b + i * row, q[i].b, row);
    }
    ASSAY_TRY_GOTO(to_device(&device[0], NULL, count * ASSAY_PROBE_TILE * sizeof(float)), st, done);
    ASSAY_TRY_GOTO(to_device(&device[1], c, count * sizeof *c), st, done);
    ASSAY_TRY_GOTO(to_device(&device[2], a, count * row), st, done);
    ASSAY_TRY_GOTO(to_device(&device[3], b, count * row), st, done);
    const cudaError_t e = gpu_probe_products(device[0], device[1], device[2], device[3], n, ctx->stream);
    ASSAY_CHECK_GOTO(e == cudaSuccess, ASSAY_CUDA, st, done, "probe: %s", cudaGetErrorString(e));
    st = put_floats(out, device[0], count * ASSAY_PROBE_TILE, ctx->stream);
done:
    for (int i = 0; i < 4; i++)
        (void)cudaFree(device[i]);
    free(c);
    free(a);
    free(b);
    return st;
}

static assay_status ask_function(const gpu_ctx *ctx, const assay_probe_arguments *x, FILE *out)
{
    const int64_t most = (int64_t)1 << 24;
    void *y = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(x->function >= 0 && x->function < ASSAY_PROBE_FUNCTIONS && x->count >= 0, ASSAY_FORMAT,
                "probe: function %d of %lld arguments", x->function, (long long)x->count);
    ASSAY_TRY(to_device(&y, NULL, sizeof(float) * (size_t)(x->count < most ? x->count : most)));
    for (int64_t done = 0; done < x->count && st == ASSAY_OK; done += most) {
        assay_probe_arguments part = *x;
        part.first += part.stride * (uint32_t)done;
        part.count = x->count - done < most ? x->count - done : most;
        const cudaError_t e = gpu_probe_function(y, &part, ctx->stream);
        st = e == cudaSuccess ? put_floats(out, y, (size_t)part.count, ctx->stream)
                              : ASSAY_ERROR(ASSAY_CUDA, "probe: %s", cudaGetErrorString(e));
    }
    (void)cudaFree(y);
    return st;
}

static assay_status answer(const gpu_ctx *ctx, const char *request, uint64_t bytes, FILE *out)
{
    assay_probe_header h;
    ASSAY_CHECK(bytes >= sizeof h, ASSAY_FORMAT, "probe: the request has %llu bytes",
                (unsigned long long)bytes);
    memcpy(&h, request, sizeof h);
    const bool fits = strncmp(h.magic, ASSAY_PROBE_MAGIC, sizeof h.magic) == 0 && h.products >= 0 &&
                      h.functions >= 0 && h.products < REQUEST_BYTES && h.functions < REQUEST_BYTES &&
                      bytes == sizeof h + (uint64_t)h.products * sizeof(assay_probe_product) +
                                   (uint64_t)h.functions * sizeof(assay_probe_arguments);
    ASSAY_CHECK(fits, ASSAY_FORMAT, "probe: the request is none of this version");
    const char *products = request + sizeof h,
               *functions = products + (size_t)h.products * sizeof(assay_probe_product);
    assay_probe_product *q = malloc((size_t)h.products * sizeof *q + 1);
    ASSAY_CHECK(q != NULL, ASSAY_OUT_OF_MEMORY, "probe");
    memcpy(q, products, (size_t)h.products * sizeof *q);
    assay_status st = h.products > 0 ? ask_products(ctx, q, h.products, out) : ASSAY_OK;
    free(q);
    for (int64_t i = 0; i < h.functions && st == ASSAY_OK; i++) {
        assay_probe_arguments x;
        memcpy(&x, functions + (size_t)i * sizeof x, sizeof x);
        st = ask_function(ctx, &x, out);
    }
    return st;
}

assay_status gpu_probe_verb(const char *request, const char *out)
{
    gpu_ctx ctx;
    char *text = NULL;
    uint64_t bytes = 0;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(assay_read_file(request, REQUEST_BYTES, &text, &bytes));
    FILE *f = fopen(out, "wbe");
    ASSAY_CHECK_GOTO(f != NULL, ASSAY_IO, st, done, "%s: cannot be written", out);
    ASSAY_TRY_GOTO(gpu_ctx_init(&ctx, -1, 0), st, done);
    st = answer(&ctx, text, bytes, f);
    gpu_ctx_destroy(&ctx);
done:
    if (f != NULL && fclose(f) != 0 && st == ASSAY_OK)
        st = ASSAY_ERROR(ASSAY_IO, "%s: cannot be written", out);
    free(text);
    return st;
}
