/* One decoder layer (pre-norm): hidden + Mixer(norm(hidden)), then hidden + MLP(norm(hidden)). */
#include "ref/layer.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

const ref_layer_kind *const ref_mixers[ASSAY_MIXER_COUNT] = {
    [ASSAY_MIXER_ATTENTION] = &ref_self_attention,
    [ASSAY_MIXER_MLA] = &ref_mla,
};
const ref_layer_kind *const ref_mlps[ASSAY_MLP_COUNT] = {
    [ASSAY_MLP_DENSE] = &ref_dense,
    [ASSAY_MLP_MOE] = &ref_moe,
};

/* --- parameters --------------------------------------------------------------------------------------------- */

static const ref_kind_param norms[] = {
    {"input_layernorm.weight", offsetof(ref_layer, input_layernorm), true},
    {"pre_mlp_layernorm.weight", offsetof(ref_layer, pre_mlp_layernorm), true},
    {0},
};

static assay_status find_params(const ref_engine *e, ref_layer *l, const ref_kind_param *params)
{
    for (const ref_kind_param *p = params; p->name; p++) {
        char name[ASSAY_NAME];
        snprintf(name, sizeof name, "decoder.layers.%lld.%s", (long long)(l - e->layer), p->name);
        const assay_param_spec *found = assay_spec_find(e->spec, name);
        const int64_t row = found ? found - e->spec->params : -1;
        ASSAY_CHECK(found || !p->needed, ASSAY_INTERNAL, "%s: the parameter table lacks it", name);
        memcpy((char *)l + p->offset, &row, sizeof row);
    }
    return ASSAY_OK;
}

assay_status ref_layers_create(ref_engine *e)
{
    const int64_t n = e->config->num_layers;
    e->layer = calloc((size_t)n, sizeof *e->layer);
    ASSAY_CHECK(e->layer, ASSAY_OUT_OF_MEMORY, "out of memory: %lld layers", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        ref_layer *l = &e->layer[i];
        memset(l, -1, sizeof *l); /* what no kind of this layer has */
        l->mixer = ref_mixers[e->config->mixer[i]];
        ASSAY_CHECK(l->mixer != NULL, ASSAY_UNSUPPORTED, "layer %lld: mixer %s: not computed in this version",
                    (long long)i, assay_mixer_name(e->config->mixer[i]));
        l->mlp = ref_mlps[e->config->mlp[i]];
        ASSAY_TRY(find_params(e, l, norms));
        ASSAY_TRY(find_params(e, l, l->mixer->params));
        ASSAY_TRY(find_params(e, l, l->mlp->params));
    }
    return ASSAY_OK;
}

/* --- forward, backward -------------------------------------------------------------------------------------- */

/* y = branch, dropped where there is dropout */
static assay_status drop_fwd(ref_pass *p, ref_tensor *y, const ref_tensor *branch, ref_dropout_site site,
                             const char *instance)
{
    const double share = assay_branch_dropout(&p->e->options);
    *y = *branch;
    return share > 0.0 ? ref_ranks_dropout(p, y, branch, share, site, instance) : ASSAY_OK;
}

static assay_status drop_bwd(ref_pass *p, ref_tensor *dbranch, const ref_tensor *dy, const ref_tensor *branch,
                             ref_dropout_site site)
{
    const double share = assay_branch_dropout(&p->e->options);
    *dbranch = *dy;
    return share > 0.0 ? ref_ranks_dropout_bwd(p, dbranch, dy, branch, share, site) : ASSAY_OK;
}

assay_status ref_layer_fwd(ref_pass *p, ref_layer_acts *a, ref_tensor *out, const ref_tensor *hidden)
{
    const ref_layer *l = &p->e->layer[p->layer];
    ref_tensor branch;
    a->input = *hidden;
    ASSAY_TRY(ref_ranks_rmsnorm(p, &a->input_normed, &a->input_rstd, hidden, l->input_layernorm,
                                "input_layernorm"));
    ASSAY_TRY(l->mixer->fwd(p, a, &a->mixed, &a->input_normed));
    ASSAY_TRY(drop_fwd(p, &branch, &a->mixed, REF_DROP_MIXER, "self_attention.dropout"));
    ASSAY_TRY(ref_ranks_add(p, &a->hidden, hidden, &branch, "self_attention.residual"));
    ASSAY_TRY(
        ref_ranks_rmsnorm(p, &a->normed, &a->rstd, &a->hidden, l->pre_mlp_layernorm, "pre_mlp_layernorm"));
    ASSAY_TRY(l->mlp->fwd(p, a, &a->mlp_out, &a->normed));
    ASSAY_TRY(drop_fwd(p, &branch, &a->mlp_out, REF_DROP_MLP, "mlp.dropout"));
    return ref_ranks_add(p, out, &a->hidden, &branch, "mlp.residual");
}

assay_status ref_layer_bwd(ref_pass *p, ref_tensor *dhidden, const ref_layer_acts *a, const ref_tensor *dout)
{
    const ref_layer *l = &p->e->layer[p->layer];
    ref_tensor dnormed, dx, dmiddle, dbranch;
    ASSAY_TRY(drop_bwd(p, &dbranch, dout, &a->mlp_out, REF_DROP_MLP));
    ASSAY_TRY(l->mlp->bwd(p, &dnormed, a, &dbranch));
    ASSAY_TRY(ref_ranks_rmsnorm_bwd(p, &dx, &dnormed, &a->hidden, &a->rstd, l->pre_mlp_layernorm,
                                    "pre_mlp_layernorm"));
    ASSAY_TRY(ref_ranks_add_grad(p, &dmiddle, dout, &dx, &a->hidden));
    ASSAY_TRY(drop_bwd(p, &dbranch, &dmiddle, &a->mixed, REF_DROP_MIXER));
    ASSAY_TRY(l->mixer->bwd(p, &dnormed, a, &dbranch));
    ASSAY_TRY(ref_ranks_rmsnorm_bwd(p, &dx, &dnormed, &a->input, &a->input_rstd, l->input_layernorm,
                                    "input_layernorm"));
    return ref_ranks_add_grad(p, dhidden, &dmiddle, &dx, &a->input);
}
