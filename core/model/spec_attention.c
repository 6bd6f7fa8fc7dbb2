/* Parameters of the attention mixer: linear_qkv, q/k norms, linear_proj. */
#include "core/model/spec_internal.h"

void assay_spec_add_attention(assay_spec_builder *b)
{
    const assay_model_config *c = b->c;
    const int64_t h = c->hidden_size, d = c->kv_channels;
    const int64_t rows = (c->num_attention_heads + 2 * c->num_query_groups) * d;
    assay_param_spec *p =
        assay_spec_add(b, ASSAY_KIND_QKV_WEIGHT, "self_attention.linear_qkv.weight", rows, h, 0);
    p->axis[0] = ASSAY_AXIS_TP;
    p->query_groups = c->num_query_groups;
    p->kv_rows = 2 * d;
    if (c->add_qkv_bias) {
        p = assay_spec_add_bias(b, ASSAY_KIND_QKV_BIAS, "self_attention.linear_qkv.bias", rows, true, 1);
        p->query_groups = c->num_query_groups;
        p->kv_rows = 2 * d;
    }
    if (c->qk_layernorm && c->qk_layernorm_full_width) {
        /* Heads of a rank are contiguous rows, in the order of the files. */
        const int64_t width[2] = {c->num_attention_heads * d, c->num_query_groups * d};
        p = assay_spec_add(b, ASSAY_KIND_Q_NORM, "self_attention.q_layernorm.weight", width[0], 0, 0);
        p->init = ASSAY_INIT_ONE;
        p->axis[0] = ASSAY_AXIS_TP;
        p = assay_spec_add(b, ASSAY_KIND_K_NORM, "self_attention.k_layernorm.weight", width[1], 0, 0);
        p->init = ASSAY_INIT_ONE;
        p->axis[0] = ASSAY_AXIS_KV_HEAD;
    } else if (c->qk_layernorm) {
        assay_spec_add_norm(b, ASSAY_KIND_Q_NORM, "self_attention.q_layernorm.weight", d, true);
        assay_spec_add_norm(b, ASSAY_KIND_K_NORM, "self_attention.k_layernorm.weight", d, true);
    }
    p = assay_spec_add(b, ASSAY_KIND_PROJ_WEIGHT, "self_attention.linear_proj.weight", h,
                       c->num_attention_heads * d, 0);
    p->axis[1] = ASSAY_AXIS_TP;
    p->init = ASSAY_INIT_OUTPUT_NORMAL; /* it writes into the residual stream */
    if (c->add_proj_bias)
        assay_spec_add_bias(b, ASSAY_KIND_PROJ_BIAS, "self_attention.linear_proj.bias", h, false, 1);
}
