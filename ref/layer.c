/* One decoder layer (pre-norm): hidden + Mixer(norm(hidden)), then hidden + MLP(norm(hidden)). */
#include "ref/layer.h"

const ref_layer_kind ref_mixers[ASSAY_MIXER_COUNT] = {
    [ASSAY_MIXER_ATTENTION] = {"attention", ref_self_attention_fwd, ref_self_attention_bwd},
};
const ref_layer_kind ref_mlps[ASSAY_MLP_COUNT] = {
    [ASSAY_MLP_DENSE] = {"dense", ref_dense_fwd, ref_dense_bwd},
    [ASSAY_MLP_MOE] = {"moe", ref_moe_fwd, ref_moe_bwd},
};

assay_status ref_layer_fwd(ref_pass *p, ref_layer_acts *a, ref_tensor *out, const ref_tensor *hidden)
{
    const ref_layer_params *w = &p->e->layer[p->layer];
    const ref_layer_kind *mixer = &ref_mixers[p->e->config->mixer[p->layer]];
    const ref_layer_kind *mlp = &ref_mlps[p->e->config->mlp[p->layer]];
    ref_tensor branch;
    a->input = *hidden;
    ASSAY_TRY(ref_ranks_rmsnorm(p, &a->input_normed, &a->input_rstd, hidden, w->input_layernorm,
                                "input_layernorm"));
    ASSAY_TRY(mixer->forward(p, a, &branch, &a->input_normed));
    ASSAY_TRY(ref_ranks_add(p, &a->hidden, hidden, &branch, "self_attention.residual"));
    ASSAY_TRY(
        ref_ranks_rmsnorm(p, &a->normed, &a->rstd, &a->hidden, w->pre_mlp_layernorm, "pre_mlp_layernorm"));
    ASSAY_TRY(mlp->forward(p, a, &branch, &a->normed));
    return ref_ranks_add(p, out, &a->hidden, &branch, "mlp.residual");
}

assay_status ref_layer_bwd(ref_pass *p, ref_tensor *dhidden, const ref_layer_acts *a, const ref_tensor *dout)
{
    const ref_layer_params *w = &p->e->layer[p->layer];
    const ref_layer_kind *mixer = &ref_mixers[p->e->config->mixer[p->layer]];
    const ref_layer_kind *mlp = &ref_mlps[p->e->config->mlp[p->layer]];
    ref_tensor dnormed, dx, dmiddle;
    ASSAY_TRY(mlp->backward(p, &dnormed, a, dout));
    ASSAY_TRY(ref_ranks_rmsnorm_bwd(p, &dx, &dnormed, &a->hidden, &a->rstd, w->pre_mlp_layernorm,
                                    "pre_mlp_layernorm"));
    ASSAY_TRY(ref_ranks_add_grad(p, &dmiddle, dout, &dx, &a->hidden));
    ASSAY_TRY(mixer->backward(p, &dnormed, a, &dmiddle));
    ASSAY_TRY(ref_ranks_rmsnorm_bwd(p, &dx, &dnormed, &a->input, &a->input_rstd, w->input_layernorm,
                                    "input_layernorm"));
    return ref_ranks_add_grad(p, dhidden, &dmiddle, &dx, &a->input);
}
