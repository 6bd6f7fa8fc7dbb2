/* The engine's context, tensors and arenas.  .c orchestrates, .cu computes.  docs/ARCHITECTURE.md. */
#ifndef GPU_GPU_H
#define GPU_GPU_H

#include "core/base/arith.h"
#include "core/base/status.h"
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

ASSAY_BEGIN_DECLS

enum { GPU_MAX_DIMS = 4 };

/* A view of device memory; never owns.  Strides count elements; this version demands contiguous tensors (last
 * stride 1). */
typedef struct gpu_tensor {
    void *data;
    assay_dtype dtype; /* F32, BF16, F64 (scalars), I64 */
    int ndim;
    int64_t shape[GPU_MAX_DIMS];
    int64_t stride[GPU_MAX_DIMS];
    void *scale; /* quantized formats; NULL otherwise */
} gpu_tensor;

gpu_tensor gpu_tensor_make(void *data, assay_dtype dtype, int ndim, const int64_t *shape);
/* 1-D and 2-D shorthands. */
gpu_tensor gpu_tensor_1d(void *data, assay_dtype dtype, int64_t n);
gpu_tensor gpu_tensor_2d(void *data, assay_dtype dtype, int64_t rows, int64_t cols);
/* An absent optional operand (data NULL, ndim 0). */
gpu_tensor gpu_tensor_none(void);
int64_t gpu_tensor_count(gpu_tensor t);
size_t gpu_tensor_bytes(gpu_tensor t);
/* Rows [start, start+length) of dimension 0. */
gpu_tensor gpu_tensor_rows(gpu_tensor t, int64_t start, int64_t length);

/* Where the tensors of a tried operation lie and what its outputs and workspace hold before (gpu/execute.h): results depend on neither. */
typedef enum {
    GPU_PLACE_ALIGNED, /* as the device allocates; NaN (-1 in I64) */
    GPU_PLACE_LATER,   /* at other addresses of the same alignment; other garbage */
    GPU_PLACE_ODD,     /* tensors aligned to their element alone, the workspace as before; a third garbage */
    GPU_PLACES
} gpu_place;

/* What a call declares about itself; from the row of the rung that ran. */
typedef struct gpu_declared {
    int variant;
    const char *variant_name;
    assay_declaration arith; /* of each output */
    const char *p_dtype;     /* attribute of attention; NULL: probabilities are not rounded */
} gpu_declared;

/* Operation families whose variant can be chosen (`--variant norm=k0,attention=k1`). */
#define GPU_FAMILY_MAP(X)                                                                                    \
    X(LINEAR, "linear")                                                                                      \
    X(NORM, "rmsnorm")                                                                                       \
    X(RESIDUAL_NORM, "residual_norm")                                                                        \
    X(QKV_ROPE, "qkv_rope")                                                                                  \
    X(MLA_ROPE, "mla_rope")                                                                                  \
    X(ATTENTION, "attention")                                                                                \
    X(CROSS_ENTROPY, "cross_entropy")                                                                        \
    X(ROUTER, "router")                                                                                      \
    X(ROUTER_BALANCED, "router_balanced")                                                                    \
    X(ADAMW, "adamw")                                                                                        \
    X(ELEMENTWISE, "elementwise")
typedef enum {
#define GPU_FAMILY_ENUM(name, text) GPU_FAMILY_##name,
    GPU_FAMILY_MAP(GPU_FAMILY_ENUM)
#undef GPU_FAMILY_ENUM
        GPU_FAMILY_COUNT
} gpu_family;

typedef struct gpu_ctx {
    int device;
    bool simulated; /* built against gpu/sim */
    char device_name[256];
    int sm_count, sm_major, sm_minor;
    size_t shared_most;  /* bytes of shared memory that a block may ask for */
    cudaStream_t stream; /* compute */
    cublasLtHandle_t blas;
    struct gpu_product_plans *plans; /* gpu/product_plans.h */
    void *
        workspace; /* call arena: life of one operation, on `stream` alone (gpu_ladder_run refuses another) */
    size_t workspace_bytes;
    unsigned *ticket; /* blocks that have come, on `stream` alone as the workspace; 0 between two launches */
    int variant[GPU_FAMILY_COUNT]; /* -1 = fastest */
    int call_variant; /* 1 + the variant of the next call, before what its family has; 0 = none */
} gpu_ctx;

/* What operations on one stream share, and those on another have for themselves. */
typedef struct gpu_ctx_stream {
    cudaStream_t stream; /* NULL: there is none */
    void *workspace;     /* NULL: an operation that wants one is refused by name */
    size_t workspace_bytes;
    unsigned *ticket;
} gpu_ctx_stream;
/* Operations go to the other stream from here on, with what belongs to it; the same call takes them back. */
void gpu_ctx_swap_stream(gpu_ctx *ctx, gpu_ctx_stream *other);

/* device < 0: local default.  ASSAY_CUDA when no device answers, ASSAY_UNSUPPORTED when it is a lesser one than the engine is compiled for. */
assay_status gpu_ctx_init(gpu_ctx *ctx, int device, size_t workspace_bytes);
/* What init asks of the device: a compute capability for which the engine is compiled. */
assay_status gpu_ctx_check_device(const gpu_ctx *ctx);
void gpu_ctx_destroy(gpu_ctx *ctx);
/* A ticket at 0, for a stream of its own. */
assay_status gpu_ctx_make_ticket(unsigned **ticket);
/* "attention=k1,rmsnorm=k0", or "k0" for every family (at most its highest); later words win.  Unknown family or variant: ASSAY_INVALID_ARGUMENT with the legal words. */
assay_status gpu_ctx_set_variants(gpu_ctx *ctx, const char *text);
/* The variant that was asked for in a family; -1: none. */
int gpu_ctx_variant(const gpu_ctx *ctx, const char *family);
/* {family: number of its highest variant}, for the doctor; NULL: out of memory. */
json_t *gpu_variants(void);
/* Collects asynchronous faults at a named place: ASSAY_CUDA "after backward: ...". */
assay_status gpu_ctx_sync(gpu_ctx *ctx, const char *where);

/* CUDA, cuBLASLt and NCCL codes into the error chain, with the call's text. */
assay_status gpu_cuda_error(cudaError_t e, const char *call, const char *file, int line, const char *func);
assay_status gpu_cublas_error(cublasStatus_t e, const char *call, const char *file, int line,
                              const char *func);
assay_status gpu_nccl_error(ncclResult_t e, ncclComm_t comm, const char *call, const char *file, int line,
                            const char *func);
#define CUDA_TRY(call)                                                                                       \
    do {                                                                                                     \
        const cudaError_t gpu_try_e_ = (call);                                                               \
        if (gpu_try_e_ != cudaSuccess)                                                                       \
            return assay_not_ok(gpu_cuda_error(gpu_try_e_, #call, __FILE__, __LINE__, __func__));            \
    } while (0)
#define CUBLAS_TRY(call)                                                                                     \
    do {                                                                                                     \
        const cublasStatus_t gpu_try_e_ = (call);                                                            \
        if (gpu_try_e_ != CUBLAS_STATUS_SUCCESS)                                                             \
            return assay_not_ok(gpu_cublas_error(gpu_try_e_, #call, __FILE__, __LINE__, __func__));          \
    } while (0)
#define NCCL_TRY(call, comm)                                                                                 \
    do {                                                                                                     \
        const ncclResult_t gpu_try_e_ = (call);                                                              \
        if (gpu_try_e_ != ncclSuccess)                                                                       \
            return assay_not_ok(gpu_nccl_error(gpu_try_e_, (comm), #call, __FILE__, __LINE__, __func__));    \
    } while (0)

/* Arena on the device: `gpu_arena_take` deals out 256-byte aligned pieces; reset gives all back.  Counting
 * mode (base NULL) only adds up sizes, so that a dry run of the same code finds the size. */
typedef struct gpu_arena {
    char *base;
    size_t capacity, used, peak;
    bool counting;
} gpu_arena;
assay_status gpu_arena_create(gpu_arena *a, size_t capacity);
void gpu_arena_destroy(gpu_arena *a);
/* ASSAY_OUT_OF_MEMORY names asked, used and capacity. */
assay_status gpu_arena_take(gpu_arena *a, size_t bytes, void **out);
void gpu_arena_reset(gpu_arena *a, size_t mark);

ASSAY_END_DECLS

#endif
