/* The norms of q and k: of each head by itself, or (qk_layernorm_full_width) over all heads at once, which then lie on several ranks and
 * need a sum over them.  docs/OPS.md section 9, docs/LAYOUTS.md 4. */
#ifndef GPU_QK_LAYERNORM_H
#define GPU_QK_LAYERNORM_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

typedef enum gpu_qk { GPU_QK_Q, GPU_QK_K } gpu_qk;

/* One number for each row of the norm: of each head, or of all heads together. */
gpu_value gpu_qk_layernorm_rows(const gpu_model *m, gpu_arena *arena, gpu_qk which);
/* y as described (this rank's heads); rstd in `keep`: one number for each row of the norm. */
assay_status gpu_qk_layernorm_fwd(gpu_model *m, gpu_arena *keep, gpu_qk which, gpu_param *gamma, gpu_value *y,
                                  gpu_value *rstd, gpu_value *x);
/* dx as described; the gradient of gamma is that of this rank's heads. */
assay_status gpu_qk_layernorm_bwd(gpu_model *m, gpu_qk which, gpu_param *gamma, gpu_value *dx, gpu_value *dy,
                                  gpu_value *x, gpu_value *rstd);

ASSAY_END_DECLS

#endif
