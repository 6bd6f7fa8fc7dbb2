/* The engine's context: device, compute stream, cuBLASLt handle, workspace, chosen variants; and the CUDA,
 * cuBLASLt and NCCL codes in the error chain. */
#include "core/base/suggest.h"
#include "gpu/check.h"
#include "gpu/ladder.h"
#include "gpu/product_plans.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const gpu_family_names[GPU_FAMILY_COUNT] = {
#define GPU_FAMILY_NAME(name, text) text,
    GPU_FAMILY_MAP(GPU_FAMILY_NAME)
#undef GPU_FAMILY_NAME
};

assay_status gpu_cuda_error(cudaError_t e, const char *call, const char *file, int line, const char *func)
{
    (void)cudaGetLastError(); /* reported here; must not be found again by a later call */
    return assay_fail(e == cudaErrorMemoryAllocation ? ASSAY_OUT_OF_MEMORY : ASSAY_CUDA, file, line, func,
                      "%s: %s (%s)", call, cudaGetErrorString(e), cudaGetErrorName(e));
}

assay_status gpu_cublas_error(cublasStatus_t e, const char *call, const char *file, int line,
                              const char *func)
{
    return assay_fail(ASSAY_CUBLAS, file, line, func, "%s: %s", call, cublasLtGetStatusName(e));
}

assay_status gpu_nccl_error(ncclResult_t e, ncclComm_t comm, const char *call, const char *file, int line,
                            const char *func)
{
    const char *last = ncclGetLastError(comm);
    return assay_fail(ASSAY_NCCL, file, line, func, "%s: %s%s%s", call, ncclGetErrorString(e),
                      last != NULL && last[0] != '\0' ? ": " : "", last != NULL ? last : "");
}

assay_status gpu_ctx_check_device(const gpu_ctx *ctx)
{
    ASSAY_CHECK(10 * ctx->sm_major + ctx->sm_minor >= GPU_SM_80, ASSAY_UNSUPPORTED,
                "device %d (%s): compute capability: expected at least %d.%d, for which the engine is "
                "compiled, found %d.%d",
                ctx->device, ctx->device_name, GPU_SM_80 / 10, GPU_SM_80 % 10, ctx->sm_major, ctx->sm_minor);
    return ASSAY_OK;
}

void gpu_ctx_swap_stream(gpu_ctx *ctx, gpu_ctx_stream *other)
{
    const gpu_ctx_stream mine = {ctx->stream, ctx->workspace, ctx->workspace_bytes, ctx->ticket};
    ctx->stream = other->stream;
    ctx->workspace = other->workspace;
    ctx->workspace_bytes = other->workspace_bytes;
    ctx->ticket = other->ticket;
    *other = mine;
}

assay_status gpu_ctx_make_ticket(unsigned **ticket)
{
    CUDA_TRY(cudaMalloc((void **)ticket, sizeof **ticket));
    CUDA_TRY(cudaMemset(*ticket, 0, sizeof **ticket));
    CUDA_TRY(cudaDeviceSynchronize()); /* the streams that read it wait for no other */
    return ASSAY_OK;
}

static assay_status gpu_ctx_open(gpu_ctx *ctx, int device, size_t workspace_bytes)
{
    int count = 0;
    const cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess)
        (void)cudaGetLastError();
    ASSAY_CHECK(e == cudaSuccess && count > 0, ASSAY_CUDA, "no CUDA device answers: %s",
                e == cudaSuccess ? "0 devices" : cudaGetErrorString(e));
    if (device < 0)
        CUDA_TRY(cudaGetDevice(&device));
    ASSAY_CHECK(device < count, ASSAY_INVALID_ARGUMENT, "device %d: expected one of 0..%d", device,
                count - 1);
    CUDA_TRY(cudaSetDevice(device));
    ctx->device = device;
    struct cudaDeviceProp prop;
    CUDA_TRY(cudaGetDeviceProperties(&prop, device));
    (void)snprintf(ctx->device_name, sizeof ctx->device_name, "%s", prop.name);
    ctx->sm_count = prop.multiProcessorCount;
    ctx->sm_major = prop.major;
    ctx->sm_minor = prop.minor;
    ctx->shared_most = prop.sharedMemPerBlockOptin;
    ASSAY_TRY(gpu_ctx_check_device(ctx));
    CUDA_TRY(cudaStreamCreateWithFlags(&ctx->stream, cudaStreamNonBlocking));
    CUBLAS_TRY(cublasLtCreate(&ctx->blas));
    ASSAY_TRY(gpu_product_plans_open(&ctx->plans, ctx->device_name, 10 * ctx->sm_major + ctx->sm_minor));
    ASSAY_TRY(gpu_ctx_make_ticket(&ctx->ticket));
    if (workspace_bytes > 0)
        CUDA_TRY(cudaMalloc(&ctx->workspace, workspace_bytes));
    ctx->workspace_bytes = workspace_bytes;
    return ASSAY_OK;
}

assay_status gpu_ctx_init(gpu_ctx *ctx, int device, size_t workspace_bytes)
{
    assay_status st = ASSAY_OK;
    memset(ctx, 0, sizeof *ctx);
#if defined(ASSAY_SIM_PLATFORM)
    ctx->simulated = true;
#endif
    for (int f = 0; f < GPU_FAMILY_COUNT; ++f)
        ctx->variant[f] = -1;
    ASSAY_TRY_GOTO(gpu_ctx_open(ctx, device, workspace_bytes), st, fail);
    return ASSAY_OK;
fail:
    gpu_ctx_destroy(ctx);
    return st;
}

void gpu_ctx_destroy(gpu_ctx *ctx)
{
    if (ctx == NULL)
        return;
    if (ctx->stream != NULL)
        (void)cudaStreamSynchronize(ctx->stream);
    if (ctx->workspace != NULL)
        (void)cudaFree(ctx->workspace);
    if (ctx->ticket != NULL)
        (void)cudaFree(ctx->ticket);
    gpu_product_plans_close(ctx->plans);
    if (ctx->blas != NULL)
        (void)cublasLtDestroy(ctx->blas);
    if (ctx->stream != NULL)
        (void)cudaStreamDestroy(ctx->stream);
    memset(ctx, 0, sizeof *ctx);
}

/* A family's bit in `seen` is set: what is said twice has no meaning.  "kN" before it is what the other families get. */
static assay_status gpu_ctx_set_variant(gpu_ctx *ctx, const char *word, size_t length, unsigned *seen)
{
    const char *equals = memchr(word, '=', length);
    ASSAY_CHECK(equals != NULL, ASSAY_INVALID_ARGUMENT, "variant '%.*s': expected family=kN", (int)length,
                word);
    const size_t name_length = (size_t)(equals - word);
    int family = -1;
    for (int f = 0; f < GPU_FAMILY_COUNT; ++f)
        if (strlen(gpu_family_names[f]) == name_length &&
            strncmp(word, gpu_family_names[f], name_length) == 0)
            family = f;
    if (family < 0) {
        char legal[160] = "";
        size_t used = 0;
        assay_suggestion near;
        assay_suggest_begin(&near, word, name_length);
        for (int f = 0; f < GPU_FAMILY_COUNT && used < sizeof legal; ++f) {
            used += (size_t)snprintf(legal + used, sizeof legal - used, "%s%s", f == 0 ? "" : ", ",
                                     gpu_family_names[f]);
            assay_suggest_add(&near, gpu_family_names[f]);
        }
        ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "variant '%.*s': unknown family '%.*s', expected one of %s%s",
                   (int)length, word, (int)name_length, word, legal, assay_suggest_end(&near, ""));
    }
    ASSAY_CHECK(!(*seen >> family & 1u), ASSAY_INVALID_ARGUMENT, "variant '%.*s': %s is named twice",
                (int)length, word, gpu_family_names[family]);
    const char *value = equals + 1;
    const size_t value_length = length - name_length - 1;
    const int highest = gpu_ladder_highest(gpu_family_names[family]);
    const bool legal = value_length == 2 && value[0] == 'k' && value[1] >= '0' && value[1] - '0' <= highest;
    ASSAY_CHECK(legal, ASSAY_INVALID_ARGUMENT, "variant '%.*s': unknown variant '%.*s', expected k0..k%d",
                (int)length, word, (int)value_length, value, highest);
    ctx->variant[family] = value[1] - '0';
    *seen |= 1u << family;
    return ASSAY_OK;
}

/* "kN" alone: every family at N, or at its highest where it has fewer. */
static bool gpu_ctx_set_all(gpu_ctx *ctx, const char *word, size_t length)
{
    if (length != 2 || word[0] != 'k' || word[1] < '0' || word[1] > '9')
        return false;
    for (int f = 0; f < GPU_FAMILY_COUNT; ++f) {
        const int highest = gpu_ladder_highest(gpu_family_names[f]);
        ctx->variant[f] = word[1] - '0' < highest ? word[1] - '0' : highest;
    }
    return true;
}

int gpu_ctx_variant(const gpu_ctx *ctx, const char *family)
{
    for (int f = 0; f < GPU_FAMILY_COUNT; ++f)
        if (strcmp(gpu_family_names[f], family) == 0)
            return ctx->variant[f];
    return -1;
}

json_t *gpu_variants(void)
{
    json_t *all = json_object();
    for (int f = 0; f < GPU_FAMILY_COUNT; ++f)
        json_object_set_new(all, gpu_family_names[f], json_integer(gpu_ladder_highest(gpu_family_names[f])));
    return all;
}

assay_status gpu_ctx_set_variants(gpu_ctx *ctx, const char *text)
{
    unsigned seen = 0;
    for (const char *first = text; *text != '\0';) {
        const size_t length = strcspn(text, ",");
        if (!gpu_ctx_set_all(ctx, text, length))
            ASSAY_TRY(gpu_ctx_set_variant(ctx, text, length, &seen));
        else
            ASSAY_CHECK(text == first, ASSAY_INVALID_ARGUMENT,
                        "variant '%.*s': what all families get comes first, in front of %s", (int)length,
                        text, first);
        text += length;
        if (*text == ',')
            ++text;
    }
    return ASSAY_OK;
}

assay_status gpu_ctx_sync(gpu_ctx *ctx, const char *where)
{
    const cudaError_t e = cudaStreamSynchronize(ctx->stream);
    if (e != cudaSuccess)
        (void)cudaGetLastError();
    ASSAY_CHECK(e == cudaSuccess, ASSAY_CUDA, "%s: %s (%s)", where, cudaGetErrorString(e),
                cudaGetErrorName(e));
    return ASSAY_OK;
}
