/* Dropout in the engine: which mask belongs to a call.  docs/OPS.md 9.12. */
#ifndef GPU_DROPOUT_H
#define GPU_DROPOUT_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* What a mask is of. */
typedef enum {
    GPU_DROP_PROBS,
    GPU_DROP_MIXER,
    GPU_DROP_MLP,
    GPU_DROP_EMBEDDING,
    GPU_DROP_SITES
} gpu_dropout_site;

/* Attributes of the masks of the present microbatch; layer 0 for the embedding. */
typedef struct gpu_mask_attrs {
    int64_t seed, stream, draw;
} gpu_mask_attrs;
gpu_mask_attrs gpu_dropout_mask(const gpu_model *m, gpu_dropout_site site, int64_t layer);

/* *y (described, in `arena`) = x [S,B,H] (sp) with dropout of p; of p 0 it is x itself, and nothing is called. */
assay_status gpu_dropout_fwd(gpu_model *m, gpu_arena *arena, const char *at, gpu_dropout_site site,
                             int64_t layer, double p, gpu_value *y, gpu_value *x);
/* *dx = the gradient of x, from dy; of p 0 it is dy itself. */
assay_status gpu_dropout_bwd(gpu_model *m, const char *at, gpu_dropout_site site, int64_t layer, double p,
                             gpu_value *dx, gpu_value *dy, const gpu_value *x);

ASSAY_END_DECLS

#endif
