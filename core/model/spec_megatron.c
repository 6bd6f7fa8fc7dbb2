/* From which tensors of a Megatron-LM folder a parameter is made: its own name (docs/MEGATRON.md), but for experts, which
 * files hold one by one or stacked, and for norms that TransformerEngine keeps in the linear layer behind them.
 * Source of names: megatron-core 0.16.1, transformer_layer.py, moe/experts.py, gpt_layer_specs.py. */
#include "core/files/tensorfile.h"
#include "core/model/config_internal.h"
#include "core/model/spec_internal.h"

#include <string.h>

/* [E,R,C] as one tensor of three dimensions. */
static assay_status stacked_part(assay_param_spec *p)
{
    ASSAY_TRY(assay_spec_one_part(p, p->name));
    assay_hf_part *part = &p->parts[0];
    part->ndim = 3;
    for (int d = 0; d < 3; d++)
        part->shape[d] = p->shape[d];
    return ASSAY_OK;
}

/* experts.linear_fc1.weight -> experts.local_experts.E.linear_fc1.weight, E counted over the whole model. */
static assay_status local_parts(assay_param_spec *p, const char *linear)
{
    const int64_t experts = p->shape[0], rows = p->shape[1];
    ASSAY_TRY(assay_spec_reserve_parts(p, experts));
    for (int64_t e = 0; e < experts; e++) {
        assay_hf_part *part;
        ASSAY_TRY(assay_spec_range_part(p, e * rows, rows, p->shape[2], &part));
        snprintf(part->name, sizeof part->name,
                 "decoder.layers.%lld.mlp.experts.local_experts.%lld.%s.weight", (long long)p->layer,
                 (long long)e, linear);
    }
    return ASSAY_OK;
}

static assay_status expert_parts(assay_param_spec *p, const assay_model_config *c, const char *linear)
{
    switch (c->expert_files) {
    case ASSAY_EXPERTS_STACKED:
        return stacked_part(p);
    case ASSAY_EXPERTS_LOCAL:
        return local_parts(p, linear);
    case ASSAY_EXPERTS_ROWS:
        break;
    }
    return assay_spec_one_part(p, p->name);
}

static assay_status norm_part(assay_param_spec *p, const char *linear)
{
    char name[ASSAY_NAME];
    snprintf(name, sizeof name, "decoder.layers.%lld.%s.layer_norm_weight", (long long)p->layer, linear);
    return assay_spec_one_part(p, name);
}

assay_status assay_spec_megatron_parts(assay_param_spec *p, assay_param_kind kind,
                                       const assay_model_config *c)
{
    switch ((int)kind) {
    case ASSAY_KIND_EXPERTS_FC1:
        return expert_parts(p, c, "linear_fc1");
    case ASSAY_KIND_EXPERTS_FC2:
        return expert_parts(p, c, "linear_fc2");
    case ASSAY_KIND_MLA_Q_NORM:
        return c->layer_norm_in_linear ? norm_part(p, "self_attention.linear_q_up_proj")
                                       : assay_spec_one_part(p, p->name);
    case ASSAY_KIND_MLA_KV_NORM:
        return c->layer_norm_in_linear ? norm_part(p, "self_attention.linear_kv_up_proj")
                                       : assay_spec_one_part(p, p->name);
    case ASSAY_KIND_INPUT_NORM: /* two linears of MLA read it: it stands alone */
        return c->layer_norm_in_linear && !assay_config_is_mla(c) ? norm_part(p, "self_attention.linear_qkv")
                                                                  : assay_spec_one_part(p, p->name);
    case ASSAY_KIND_PRE_MLP_NORM:
        return c->layer_norm_in_linear && c->mlp[p->layer] == ASSAY_MLP_DENSE
                   ? norm_part(p, "mlp.linear_fc1")
                   : assay_spec_one_part(p, p->name);
    default:
        return assay_spec_one_part(p, p->name);
    }
}

assay_status assay_config_find_files(const char *folder, assay_model_config *c)
{
    static const char stacked[] = ".mlp.experts.linear_fc1.weight", norm[] = ".linear_qkv.layer_norm_weight",
                      inner_norm[] = ".linear_kv_up_proj.layer_norm_weight";
    assay_tensorfile *f = NULL;
    bool stored = false;
    ASSAY_TRY(assay_tensorfile_in_folder(folder, &stored));
    if (!stored)
        return ASSAY_OK;
    ASSAY_TRY(assay_tensorfile_open(&f, folder));
    for (int64_t i = 0; i < assay_tensorfile_count(f); i++) {
        const assay_tensor_info *t = assay_tensorfile_at(f, i);
        if (strstr(t->name, ".mlp.experts.local_experts.") != NULL)
            c->expert_files = ASSAY_EXPERTS_LOCAL;
        else if (strstr(t->name, stacked) != NULL && t->ndim == 3)
            c->expert_files = ASSAY_EXPERTS_STACKED;
        else if (strstr(t->name, norm) != NULL || strstr(t->name, inner_norm) != NULL)
            c->layer_norm_in_linear = true;
    }
    assay_tensorfile_close(f);
    return ASSAY_OK;
}
