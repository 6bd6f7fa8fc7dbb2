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

/* A column-parallel linear y = x W^T + b, x gathered to `whole` (gpu_column_parallel_input). */
typedef struct gpu_column_linear {
    const char *at, *reduce, *gather; /* instances: its own, of the sum over tp without and with sp */
    gpu_param *weight, *bias;         /* bias NULL: none */
    bool sp;
} gpu_column_linear;
/* Its backward: gradients of bias and weight, dwhole (given as a description) and dx, its sum over tp
 * (gpu_column_parallel_input_bwd says what x is).  With --async-tensor-model-parallel-allreduce dwhole is made first and summed beside the products of the
 * weight and bias, as in Megatron-LM's LinearWithGradAccumulationAndAsyncCommunication (with sp a reduce-scatter); no product reads
 * another's result, so the bits are the same. */
assay_status gpu_column_linear_bwd(gpu_model *m, const gpu_column_linear *c, gpu_value *dx, gpu_value *dwhole,
                                   gpu_value *dy, gpu_value *whole, const gpu_value *x);

ASSAY_END_DECLS

#endif
