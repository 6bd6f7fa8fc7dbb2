/* Shared by spec.c and spec_hf.c only. */
#ifndef ASSAY_CORE_SPEC_INTERNAL_H
#define ASSAY_CORE_SPEC_INTERNAL_H

#include "core/model/spec.h"

ASSAY_BEGIN_DECLS

/* What a parameter is; with the layer it decides the name in a Hugging Face folder. */
typedef enum {
    ASSAY_KIND_EMBEDDING,
    ASSAY_KIND_INPUT_NORM,
    ASSAY_KIND_QKV_WEIGHT,
    ASSAY_KIND_QKV_BIAS,
    ASSAY_KIND_Q_NORM,
    ASSAY_KIND_K_NORM,
    ASSAY_KIND_PROJ_WEIGHT,
    ASSAY_KIND_PROJ_BIAS,
    ASSAY_KIND_PRE_MLP_NORM,
    ASSAY_KIND_FC1_WEIGHT,
    ASSAY_KIND_FC1_BIAS,
    ASSAY_KIND_FC2_WEIGHT,
    ASSAY_KIND_FC2_BIAS,
    ASSAY_KIND_ROUTER_WEIGHT,
    ASSAY_KIND_EXPERT_BIAS,
    ASSAY_KIND_EXPERTS_FC1,
    ASSAY_KIND_EXPERTS_FC2,
    ASSAY_KIND_SHARED_FC1,
    ASSAY_KIND_SHARED_FC2,
    ASSAY_KIND_SHARED_GATE,
    ASSAY_KIND_FINAL_NORM,
    ASSAY_KIND_OUTPUT
} assay_param_kind;

/* Fills p->parts from name, shape and layer.  ASSAY_OUT_OF_MEMORY, ASSAY_UNSUPPORTED (a parameter that the
 * architecture has no name for).  On failure p is left so that assay_spec_parts_free works. */
assay_status assay_spec_parts_build(assay_param_spec *p, assay_param_kind kind, const assay_model_config *c);
void assay_spec_parts_free(assay_param_spec *p);

ASSAY_END_DECLS

#endif
