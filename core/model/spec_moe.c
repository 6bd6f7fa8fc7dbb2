/* Parameters of a mixture of experts: router, experts, shared expert. */
#include "core/model/spec_internal.h"

static void add_shared_expert(assay_spec_builder *b)
{
    const assay_model_config *c = b->c;
    const int64_t h = c->hidden_size, f = c->moe_shared_expert_intermediate_size;
    assay_param_spec *p =
        assay_spec_add(b, ASSAY_KIND_SHARED_FC1, "mlp.shared_experts.linear_fc1.weight", 2 * f, h, 0);
    p->axis[0] = ASSAY_AXIS_TP;
    p->blocks[0] = 2;
    p = assay_spec_add(b, ASSAY_KIND_SHARED_FC2, "mlp.shared_experts.linear_fc2.weight", h, f, 0);
    p->axis[1] = ASSAY_AXIS_TP;
    p->init = ASSAY_INIT_OUTPUT_NORMAL; /* it writes into the residual stream */
    if (c->moe_shared_expert_gate)
        assay_spec_set_partial(
            assay_spec_add(b, ASSAY_KIND_SHARED_GATE, "mlp.shared_experts.gate_weight", 1, h, 0), false);
}

void assay_spec_add_moe(assay_spec_builder *b)
{
    const assay_model_config *c = b->c;
    const int64_t e = c->num_moe_experts, h = c->hidden_size, f = c->moe_ffn_hidden_size;
    assay_spec_set_partial(assay_spec_add(b, ASSAY_KIND_ROUTER_WEIGHT, "mlp.router.weight", e, h, 0), false);
    if (c->moe_router_enable_expert_bias) {
        assay_param_spec *bias = assay_spec_add(b, ASSAY_KIND_EXPERT_BIAS, "mlp.router.expert_bias", e, 0, 0);
        bias->init = ASSAY_INIT_ZERO;
        bias->trained = false;
    }
    assay_param_spec *p =
        assay_spec_add(b, ASSAY_KIND_EXPERTS_FC1, "mlp.experts.linear_fc1.weight", e, 2 * f, h);
    p->axis[0] = ASSAY_AXIS_EP;
    p->axis[1] = ASSAY_AXIS_ETP;
    p->blocks[1] = 2;
    p->is_expert = true;
    p = assay_spec_add(b, ASSAY_KIND_EXPERTS_FC2, "mlp.experts.linear_fc2.weight", e, h, f);
    p->axis[0] = ASSAY_AXIS_EP;
    p->axis[2] = ASSAY_AXIS_ETP;
    p->is_expert = true;
    p->init = ASSAY_INIT_OUTPUT_NORMAL; /* it writes into the residual stream */
    if (c->moe_shared_expert_intermediate_size > 0)
        add_shared_expert(b);
}
