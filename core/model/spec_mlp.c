/* Parameters of the dense SwiGLU MLP. */
#include "core/model/spec_internal.h"

void assay_spec_add_mlp(assay_spec_builder *b)
{
    const assay_model_config *c = b->c;
    const int64_t h = c->hidden_size, f = c->ffn_hidden_size;
    assay_param_spec *p = assay_spec_add(b, ASSAY_KIND_FC1_WEIGHT, "mlp.linear_fc1.weight", 2 * f, h, 0);
    p->axis[0] = ASSAY_AXIS_TP;
    p->blocks[0] = 2;
    if (c->add_mlp_bias)
        assay_spec_add_bias(b, ASSAY_KIND_FC1_BIAS, "mlp.linear_fc1.bias", 2 * f, true, 2);
    p = assay_spec_add(b, ASSAY_KIND_FC2_WEIGHT, "mlp.linear_fc2.weight", h, f, 0);
    p->axis[1] = ASSAY_AXIS_TP;
    p->init = ASSAY_INIT_OUTPUT_NORMAL; /* it writes into the residual stream */
    if (c->add_mlp_bias)
        assay_spec_add_bias(b, ASSAY_KIND_FC2_BIAS, "mlp.linear_fc2.bias", h, false, 1);
}
