/* What the members of yarn make of scores, cos and sin. */
#ifndef GPU_YARN_H
#define GPU_YARN_H

#include "core/model/config.h"

ASSAY_BEGIN_DECLS

/* What cos and sin are multiplied by; 1 with other types of rope. */
double gpu_yarn_attention_factor(const assay_model_config *config);
/* What scores are multiplied by, with yarn or without: 1/sqrt(kv_channels), with MLA times m(rope_mscale_all_dim)^2. */
double gpu_yarn_softmax_scale(const assay_model_config *config);

ASSAY_END_DECLS

#endif
