/* Shared by the spec*.c files only. */
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
    ASSAY_KIND_MLA_Q, /* not compressed */
    ASSAY_KIND_MLA_Q_DOWN,
    ASSAY_KIND_MLA_Q_NORM,
    ASSAY_KIND_MLA_Q_UP,
    ASSAY_KIND_MLA_KV_DOWN,
    ASSAY_KIND_MLA_KV_NORM,
    ASSAY_KIND_MLA_KV_UP,
    ASSAY_KIND_FINAL_NORM,
    ASSAY_KIND_OUTPUT
} assay_param_kind;

/* The table under construction. */
typedef struct assay_spec_builder {
    const assay_model_config *c;
    assay_model_spec *spec;
    int64_t layer;            /* -1 outside the decoder */
    assay_status status;      /* first failure; later rows are not added ... */
    assay_param_spec ignored; /* ... but written here */
} assay_spec_builder;

/* One more row; dimensions after the first are 0 where there are none.  Trained, drawn with init_method_std, cut
 * by no axis: what the caller does not change. */
assay_param_spec *assay_spec_add(assay_spec_builder *b, assay_param_kind kind, const char *name, int64_t n0,
                                 int64_t n1, int64_t n2);
void assay_spec_set_partial(assay_param_spec *p, bool sequence_parallel_only);
void assay_spec_add_norm(assay_spec_builder *b, assay_param_kind kind, const char *name, int64_t n,
                         bool per_head);
assay_param_spec *assay_spec_add_bias(assay_spec_builder *b, assay_param_kind kind, const char *name,
                                      int64_t n, bool cut, int blocks);

/* Parameters of one layer's mixer or MLP: a file for each kind, spec_<kind>.c. */
void assay_spec_add_attention(assay_spec_builder *b);
void assay_spec_add_mla(assay_spec_builder *b);
void assay_spec_add_mlp(assay_spec_builder *b);
void assay_spec_add_moe(assay_spec_builder *b);

/* Parts under construction: room for n; one more of n_pieces pieces; the whole tensor under one name, leading dimensions
 * folded; one that fills a range of canonical rows. */
assay_status assay_spec_reserve_parts(assay_param_spec *p, int64_t n);
assay_status assay_spec_add_part(assay_param_spec *p, int n_pieces, int64_t rows, int64_t columns,
                                 assay_hf_part **out);
assay_status assay_spec_one_part(assay_param_spec *p, const char *name);
assay_status assay_spec_range_part(assay_param_spec *p, int64_t dst, int64_t rows, int64_t columns,
                                   assay_hf_part **part);
/* The lists of a Hugging Face class and of a Megatron-LM folder. */
assay_status assay_spec_hf_parts(assay_param_spec *p, assay_param_kind kind, const assay_model_config *c);
assay_status assay_spec_megatron_parts(assay_param_spec *p, assay_param_kind kind,
                                       const assay_model_config *c);

/* Fills p->parts from name, shape and layer.  ASSAY_OUT_OF_MEMORY, ASSAY_UNSUPPORTED (a parameter that the
 * architecture has no name for).  On failure p is left so that assay_spec_parts_free works. */
assay_status assay_spec_parts_build(assay_param_spec *p, assay_param_kind kind, const assay_model_config *c);
void assay_spec_parts_free(assay_param_spec *p);

ASSAY_END_DECLS

#endif
