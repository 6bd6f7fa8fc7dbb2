/* The norms of q and k: of each head by itself, or (qk_layernorm_full_width) over all heads at once, which then lie on several
 * ranks and need a sum over them.  docs/OPS.md section 9, docs/LAYOUTS.md 4. */
#ifndef REF_QK_LAYERNORM_H
#define REF_QK_LAYERNORM_H

#include "ref/engine.h"

typedef enum ref_qk { REF_QK_Q, REF_QK_K } ref_qk;

assay_status ref_qk_layernorm_fwd(ref_pass *p, ref_tensor *y, ref_tensor *rstd, const ref_tensor *x,
                                  ref_qk which, int64_t gamma);
/* dx; the gradient of gamma is accumulated: that of a rank's own heads. */
assay_status ref_qk_layernorm_bwd(ref_pass *p, ref_tensor *dx, const ref_tensor *dy, const ref_tensor *x,
                                  const ref_tensor *rstd, ref_qk which, int64_t gamma);

#endif
