/* One decoder layer (pre-norm): hidden + Attention(norm(hidden)), then hidden + MLP(norm(hidden)). */
#include "ref/layer.h"

static ref_mlp_weights dense_weights(const ref_pass *p)
{
    const ref_layer_params *w = &p->e->layer[p->layer];
    return (ref_mlp_weights){.fc1 = w->fc1,
                             .fc1_bias = w->fc1_bias,
                             .fc2 = w->fc2,
                             .fc2_bias = w->fc2_bias,
                             .instance = "mlp",
                             .sp = p->e->grid.p.sequence_parallel};
}

assay_status ref_layer_fwd(ref_pass *p, ref_layer_acts *a, ref_tensor *out, const ref_tensor *hidden)
{
    const ref_layer_params *w = &p->e->layer[p->layer];
    ref_tensor branch;
    ASSAY_TRY(ref_attention_branch(p, &a->attention, &a->hidden, hidden));
    ASSAY_TRY(
        ref_ranks_rmsnorm(p, &a->normed, &a->rstd, &a->hidden, w->pre_mlp_layernorm, "pre_mlp_layernorm"));
    if (p->e->config->mlp[p->layer] == ASSAY_MLP_MOE) {
        ASSAY_TRY(ref_moe_fwd(p, &a->moe, &branch, &a->normed));
    } else {
        const ref_mlp_weights dense = dense_weights(p);
        ASSAY_TRY(ref_mlp_fwd(p, &a->mlp, &branch, &a->normed, &dense));
    }
    return ref_ranks_add(p, out, &a->hidden, &branch, "mlp.residual");
}

assay_status ref_layer_bwd(ref_pass *p, ref_tensor *dhidden, const ref_layer_acts *a, const ref_tensor *dout)
{
    const ref_layer_params *w = &p->e->layer[p->layer];
    ref_tensor dnormed, dx, dmiddle;
    if (p->e->config->mlp[p->layer] == ASSAY_MLP_MOE) {
        ASSAY_TRY(ref_moe_bwd(p, &dnormed, &a->moe, dout));
    } else {
        const ref_mlp_weights dense = dense_weights(p);
        ASSAY_TRY(ref_mlp_bwd(p, &dnormed, &a->mlp, dout, &dense, NULL));
    }
    ASSAY_TRY(ref_ranks_rmsnorm_bwd(p, &dx, &dnormed, &a->hidden, &a->rstd, w->pre_mlp_layernorm,
                                    "pre_mlp_layernorm"));
    ASSAY_TRY(ref_ranks_add_grad(p, &dmiddle, dout, &dx, &a->hidden));
    return ref_attention_branch_bwd(p, dhidden, &a->attention, &dmiddle);
}
