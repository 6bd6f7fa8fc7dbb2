/* Products that make the gradient of a weight (the first of a step) or add into it; nothing where it is frozen (docs/OPS.md 9.15). */
#ifndef ASSAY_GPU_WEIGHT_GRADS_H
#define ASSAY_GPU_WEIGHT_GRADS_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

assay_status gpu_linear_bwd_weight(gpu_model *m, const char *at, gpu_value *dy, gpu_value *x,
                                   gpu_param *weight);
/* NULL: the model has no bias there. */
assay_status gpu_linear_bwd_bias(gpu_model *m, const char *at, gpu_value *dy, gpu_param *bias);
assay_status gpu_grouped_linear_bwd_weight(gpu_model *m, const char *at, gpu_value *dy, gpu_value *x,
                                           gpu_value *tokens_per_expert, gpu_param *weight);
/* The same for some of a layer's experts at a time, n parts with rows of their own. */
typedef struct gpu_expert_part {
    gpu_value *dy, *x, *tokens_per_expert;
    int64_t first, experts; /* of the local ones */
} gpu_expert_part;
assay_status gpu_grouped_linear_bwd_weight_parts(gpu_model *m, const char *at, const gpu_expert_part *part,
                                                 int n, gpu_param *weight);

ASSAY_END_DECLS

#endif
