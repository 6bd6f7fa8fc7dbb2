/* From which Hugging Face tensors a canonical parameter is made, and into which it is written back. */
#include "core/model/config_internal.h"
#include "core/model/spec_internal.h"

/* Megatron keeps q, k and v in one tensor, group by group: the A/G query heads of a group, its key head, its
 * value head.  Hugging Face has one tensor for each. */
static assay_status qkv_parts(assay_param_spec *p, const assay_model_config *c, const char *suffix)
{
    static const char *const letter[3] = {"q", "k", "v"};
    const int64_t groups = c->num_query_groups, d = c->kv_channels;
    const int64_t q_rows = c->num_attention_heads / groups * d;
    const int64_t rows_of[3] = {q_rows, d, d};
    const int64_t columns = p->ndim > 1 ? p->shape[1] : 0;
    const int64_t stride = q_rows + 2 * d;
    ASSAY_TRY(assay_spec_reserve_parts(p, 3));
    int64_t offset = 0;
    for (int i = 0; i < 3; i++) {
        assay_hf_part *part;
        ASSAY_TRY(assay_spec_add_part(p, (int)groups, groups * rows_of[i], columns, &part));
        snprintf(part->name, sizeof part->name, "model.layers.%lld.self_attn.%s_proj.%s", (long long)p->layer,
                 letter[i], suffix);
        for (int64_t g = 0; g < groups; g++)
            part->pieces[g] =
                (assay_hf_piece){.dst = g * stride + offset, .src = g * rows_of[i], .rows = rows_of[i]};
        offset += rows_of[i];
    }
    return ASSAY_OK;
}

/* [gate; up] of a dense MLP or of a shared expert. */
static assay_status fc1_parts(assay_param_spec *p, const char *block, const char *suffix)
{
    static const char *const word[2] = {"gate", "up"};
    const int64_t half = p->shape[0] / 2, columns = p->ndim > 1 ? p->shape[1] : 0;
    ASSAY_TRY(assay_spec_reserve_parts(p, 2));
    for (int i = 0; i < 2; i++) {
        assay_hf_part *part;
        ASSAY_TRY(assay_spec_range_part(p, i * half, half, columns, &part));
        snprintf(part->name, sizeof part->name, "model.layers.%lld.%s.%s_proj.%s", (long long)p->layer, block,
                 word[i], suffix);
    }
    return ASSAY_OK;
}

/* Files hold experts one by one; `words` are the names of the tensors that make one expert's rows, in order.
 */
static assay_status expert_parts(assay_param_spec *p, const assay_model_config *c, const char *const *words,
                                 int n_words)
{
    const char *block = assay_hf_class_of(c->arch)->moe.block;
    const int64_t experts = p->shape[0], rows = p->shape[1] / n_words, columns = p->shape[2];
    ASSAY_TRY(assay_spec_reserve_parts(p, experts * n_words));
    for (int64_t e = 0; e < experts; e++) {
        for (int i = 0; i < n_words; i++) {
            assay_hf_part *part;
            ASSAY_TRY(assay_spec_range_part(p, (e * n_words + i) * rows, rows, columns, &part));
            snprintf(part->name, sizeof part->name, "model.layers.%lld.%s.experts.%lld.%s.weight",
                     (long long)p->layer, block, (long long)e, words[i]);
        }
    }
    return ASSAY_OK;
}

static assay_status layer_part(assay_param_spec *p, const char *rest)
{
    char name[ASSAY_NAME];
    snprintf(name, sizeof name, "model.layers.%lld.%s", (long long)p->layer, rest);
    return assay_spec_one_part(p, name);
}

static assay_status no_such(const assay_param_spec *p, const assay_model_config *c)
{
    ASSAY_FAIL(ASSAY_UNSUPPORTED, "%s: Hugging Face's %s has no such parameter", p->name,
               assay_arch_name(c->arch));
}

/* Rows of the files are in canonical order. */
static assay_status mla_part(assay_param_spec *p, const assay_model_config *c, const char *rest)
{
    return assay_hf_class_of(c->arch)->mla ? layer_part(p, rest) : no_such(p, c);
}

assay_status assay_spec_hf_parts(assay_param_spec *p, assay_param_kind kind, const assay_model_config *c)
{
    const assay_hf_class *class = assay_hf_class_of(c->arch);
    const char *const experts_fc1[] = {class->moe.gate, class->moe.up};
    char rest[ASSAY_NAME];
    switch (kind) {
    case ASSAY_KIND_EMBEDDING:
        return assay_spec_one_part(p, "model.embed_tokens.weight");
    case ASSAY_KIND_INPUT_NORM:
        return layer_part(p, "input_layernorm.weight");
    case ASSAY_KIND_QKV_WEIGHT:
        return qkv_parts(p, c, "weight");
    case ASSAY_KIND_QKV_BIAS:
        return qkv_parts(p, c, "bias");
    case ASSAY_KIND_Q_NORM:
        return layer_part(p, "self_attn.q_norm.weight");
    case ASSAY_KIND_K_NORM:
        return layer_part(p, "self_attn.k_norm.weight");
    case ASSAY_KIND_PROJ_WEIGHT:
        return layer_part(p, "self_attn.o_proj.weight");
    case ASSAY_KIND_PROJ_BIAS:
        return layer_part(p, "self_attn.o_proj.bias");
    case ASSAY_KIND_PRE_MLP_NORM:
        return layer_part(p, "post_attention_layernorm.weight");
    case ASSAY_KIND_FC1_WEIGHT:
        return fc1_parts(p, "mlp", "weight");
    case ASSAY_KIND_FC1_BIAS:
        return fc1_parts(p, "mlp", "bias");
    case ASSAY_KIND_FC2_WEIGHT:
        return layer_part(p, "mlp.down_proj.weight");
    case ASSAY_KIND_FC2_BIAS:
        return layer_part(p, "mlp.down_proj.bias");
    case ASSAY_KIND_ROUTER_WEIGHT:
        snprintf(rest, sizeof rest, "%s.gate.weight", class->moe.block);
        return layer_part(p, rest);
    case ASSAY_KIND_EXPERTS_FC1:
        return expert_parts(p, c, experts_fc1, 2);
    case ASSAY_KIND_EXPERTS_FC2:
        return expert_parts(p, c, &class->moe.down, 1);
    case ASSAY_KIND_FINAL_NORM:
        return assay_spec_one_part(p, "model.norm.weight");
    case ASSAY_KIND_OUTPUT:
        return assay_spec_one_part(p, "lm_head.weight");
    case ASSAY_KIND_SHARED_FC1:
        return class->moe.shared ? fc1_parts(p, class->moe.shared, "weight") : no_such(p, c);
    case ASSAY_KIND_SHARED_FC2:
        snprintf(rest, sizeof rest, "%s.down_proj.weight", class->moe.shared ? class->moe.shared : "");
        return class->moe.shared ? layer_part(p, rest) : no_such(p, c);
    case ASSAY_KIND_SHARED_GATE:
        return layer_part(p, "mlp.shared_expert_gate.weight");
    case ASSAY_KIND_EXPERT_BIAS:
        return class->mla ? layer_part(p, "mlp.gate.e_score_correction_bias") : no_such(p, c);
    case ASSAY_KIND_MLA_Q:
        return mla_part(p, c, "self_attn.q_proj.weight");
    case ASSAY_KIND_MLA_Q_DOWN:
        return mla_part(p, c, "self_attn.q_a_proj.weight");
    case ASSAY_KIND_MLA_Q_NORM:
        return mla_part(p, c, "self_attn.q_a_layernorm.weight");
    case ASSAY_KIND_MLA_Q_UP:
        return mla_part(p, c, "self_attn.q_b_proj.weight");
    case ASSAY_KIND_MLA_KV_DOWN:
        return mla_part(p, c, "self_attn.kv_a_proj_with_mqa.weight");
    case ASSAY_KIND_MLA_KV_NORM:
        return mla_part(p, c, "self_attn.kv_a_layernorm.weight");
    case ASSAY_KIND_MLA_KV_UP:
        return mla_part(p, c, "self_attn.kv_b_proj.weight");
    }
    return no_such(p, c);
}
