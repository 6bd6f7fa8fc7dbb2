/* What the operations of *_sm90.cu share beside the tiles: where their code runs. */
#ifndef GPU_OPS_SM90_CUH
#define GPU_OPS_SM90_CUH

#include "gpu/check.h"
#include "gpu/rung.h"
#include "gpu/wgmma.cuh"

/* Their code is compiled for 9.0 alone. */
static inline bool sm90_has_code(const gpu_ctx *ctx)
{
    return ctx->simulated || (ctx->sm_major == 9 && ctx->sm_minor == 0);
}

/* ASSAY_UNSUPPORTED on a device without it. */
static inline assay_status sm90_check(const gpu_ctx *ctx, const char *op)
{
    ASSAY_CHECK(sm90_has_code(ctx), ASSAY_UNSUPPORTED,
                "%s k3: its code is compiled for compute capability 9.0 alone, the device has %d.%d", op,
                ctx->sm_major, ctx->sm_minor);
    return ASSAY_OK;
}

#endif
