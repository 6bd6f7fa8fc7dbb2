/* Dropout in the engine. */
#include "gpu/dropout.h"

#include "gpu/call.h"
#include "gpu/describe.h"

gpu_mask_attrs gpu_dropout_mask(const gpu_model *m, gpu_dropout_site site, int64_t layer)
{
    return (gpu_mask_attrs){.seed = (int64_t)m->options->dropout_seed,
                            .stream = layer * GPU_DROP_SITES + (int64_t)site,
                            .draw = m->run->step * m->step_microbatches + m->run->microbatch};
}

/* Of tokens: p, seed, stream, draw. */
#define MASK_ATTRS(share, mask)                                                                              \
    GPU_F("p", (share)), GPU_I("seed", (mask).seed), GPU_I("stream", (mask).stream),                         \
        GPU_I("draw", (mask).draw)

assay_status gpu_dropout_fwd(gpu_model *m, gpu_arena *arena, const char *at, gpu_dropout_site site,
                             int64_t layer, double p, gpu_value *y, gpu_value *x)
{
    const gpu_mask_attrs mask = gpu_dropout_mask(m, site, layer);
    *y = *x;
    if (p == 0.0)
        return ASSAY_OK;
    return GPU_CALL(m->run, "dropout_fwd", at, GPU_T("x", x), GPU_T("token", &m->dropout_token),
                    MASK_ATTRS(p, mask), GPU_NEW("y", y, gpu_tokens(m, arena, m->sp, gpu_dim_hidden(m))));
}

assay_status gpu_dropout_bwd(gpu_model *m, const char *at, gpu_dropout_site site, int64_t layer, double p,
                             gpu_value *dx, gpu_value *dy, const gpu_value *x)
{
    const gpu_mask_attrs mask = gpu_dropout_mask(m, site, layer);
    *dx = *dy;
    if (p == 0.0)
        return ASSAY_OK;
    return GPU_CALL(m->run, "dropout_bwd", at, GPU_T("dy", dy), GPU_T("token", &m->dropout_token),
                    MASK_ATTRS(p, mask), GPU_NEW("dx", dx, gpu_grad_of(m, x)));
}
