/* A Hugging Face config.json from assay_model_config.  Values that the class cannot say are found by
 * assay_config_to_json, which reads the result back. */
#include "core/model/config_internal.h"

static int put(json_t *root, const char *key, json_t *value)
{
    return json_object_set_new(root, key, value);
}

static json_t *rope_object(const assay_model_config *c)
{
    json_t *rope = json_object();
    int failed = put(rope, "rope_type", json_string(assay_rope_name(c->rope_type)));
    failed |= put(rope, "rope_theta", json_real(c->rotary_base));
    if (c->rope_type != ASSAY_ROPE_DEFAULT)
        failed |= put(rope, "factor", json_real(c->rope_factor));
    if (c->rope_type == ASSAY_ROPE_LLAMA3) {
        failed |= put(rope, "low_freq_factor", json_real(c->rope_low_freq_factor));
        failed |= put(rope, "high_freq_factor", json_real(c->rope_high_freq_factor));
        failed |= put(rope, "original_max_position_embeddings",
                      json_integer(c->rope_original_max_position_embeddings));
    }
    if (c->rope_type == ASSAY_ROPE_YARN)
        failed |= assay_config_write_yarn(c, rope);
    if (failed != 0) {
        json_decref(rope);
        return NULL;
    }
    return rope;
}

/* Both spellings, so that transformers 4 and 5 read the same model. */
static int write_rope(const assay_model_config *c, json_t *root)
{
    int failed = put(root, "rope_theta", json_real(c->rotary_base));
    failed |= put(root, "rope_parameters", rope_object(c));
    failed |= put(root, "rope_scaling", c->rope_type == ASSAY_ROPE_DEFAULT ? json_null() : rope_object(c));
    return failed;
}

static int write_window(const assay_model_config *c, json_t *root)
{
    const assay_hf_window kind = assay_hf_class_of(c->arch)->window;
    if (kind == ASSAY_HF_WINDOW_NONE)
        return 0;
    int64_t window = 0, first = c->num_layers;
    for (int64_t l = c->num_layers - 1; l >= 0; l--) {
        if (c->window[l] > 0) {
            window = c->window[l];
            first = l;
        }
    }
    int failed = put(root, "sliding_window", window > 0 ? json_integer(window) : json_null());
    if (kind == ASSAY_HF_WINDOW_EVERY)
        return failed;
    const bool listed = kind == ASSAY_HF_WINDOW_LISTED; /* has no other words */
    if (!listed)
        failed |= put(root, "use_sliding_window", json_boolean(window > 0));
    if (kind == ASSAY_HF_WINDOW_FLAG)
        return failed;
    json_t *types = json_array();
    for (int64_t l = 0; l < c->num_layers; l++)
        failed |= json_array_append_new(
            types, json_string(c->window[l] > 0 ? "sliding_attention" : "full_attention"));
    if (!listed)
        failed |= put(root, "max_window_layers", json_integer(kind == ASSAY_HF_WINDOW_LAST ? first : 28));
    failed |= put(root, "layer_types", types);
    return failed;
}

static int write_experts(const assay_model_config *c, json_t *root)
{
    const assay_hf_class *class = assay_hf_class_of(c->arch);
    if (class->mla != NULL)
        return assay_config_write_mla(c, root);
    if (class->moe.width == NULL)
        return 0;
    int failed = put(root, class->moe.count, json_integer(c->num_moe_experts));
    if (c->num_moe_experts == 0)
        return failed;
    failed |= put(root, "num_experts_per_tok", json_integer(c->moe_router_topk));
    failed |= put(root, class->moe.width, json_integer(c->moe_ffn_hidden_size));
    if (class->moe.norm_topk_prob.key != NULL)
        failed |= put(root, class->moe.norm_topk_prob.key, json_boolean(c->norm_topk_prob));
    if (class->moe.shared_width != NULL)
        failed |= put(root, class->moe.shared_width, json_integer(c->moe_shared_expert_intermediate_size));
    if (!class->moe.sparse_layers)
        return failed;
    failed |= put(root, "decoder_sparse_step", json_integer(1));
    json_t *dense = json_array();
    for (int64_t l = 0; l < c->num_layers; l++) {
        if (c->mlp[l] != ASSAY_MLP_MOE)
            failed |= json_array_append_new(dense, json_integer(l));
    }
    failed |= put(root, "mlp_only_layers", dense);
    return failed;
}

static int write_flag(json_t *root, assay_hf_flag flag, bool value)
{
    return flag.key != NULL ? put(root, flag.key, json_boolean(value)) : 0;
}

assay_status assay_config_write_hf(const assay_model_config *c, json_t *root)
{
    const assay_hf_class *class = assay_hf_class_of(c->arch);
    int failed = put(root, "model_type",
                     json_string(c->model_type != NULL ? c->model_type : assay_arch_name(c->arch)));
    failed |= put(root, "architectures", json_pack("[s]", assay_arch_class(c->arch)));
    failed |= put(root, "hidden_act", json_string("silu"));
    failed |= put(root, "num_hidden_layers", json_integer(c->num_layers));
    failed |= put(root, "hidden_size", json_integer(c->hidden_size));
    failed |= put(root, "intermediate_size", json_integer(c->ffn_hidden_size));
    failed |= put(root, "num_attention_heads", json_integer(c->num_attention_heads));
    failed |= put(root, "num_key_value_heads", json_integer(c->num_query_groups));
    if (class->mla == NULL) /* there it is the rotated part, and made by the class */
        failed |= put(root, "head_dim", json_integer(c->kv_channels));
    failed |= put(root, "vocab_size", json_integer(c->vocab_size));
    if (c->pad_token_id >= 0 || class->has_pad_token_id)
        failed |=
            put(root, "pad_token_id", c->pad_token_id >= 0 ? json_integer(c->pad_token_id) : json_null());
    failed |= assay_config_write_tokens(c, root);
    failed |= put(root, "max_position_embeddings", json_integer(c->max_position_embeddings));
    failed |= put(root, "rms_norm_eps", json_real(c->layernorm_epsilon));
    failed |= put(root, "initializer_range", json_real(c->init_method_std));
    if (c->init_constant_std > 0.0) /* no word of Hugging Face's */
        failed |= put(root, "init_constant_std", json_real(c->init_constant_std));
    failed |= put(root, "tie_word_embeddings", json_boolean(c->tie_word_embeddings));
    failed |= put(root, "attention_dropout", json_real(c->training.attention_dropout));
    if (class->residual_dropout)
        failed |= put(root, "residual_dropout", json_real(c->training.residual_dropout));
    failed |= write_flag(root, class->mlp_bias, c->add_mlp_bias);
    failed |= write_flag(root, class->qkv_bias, c->add_qkv_bias);
    failed |= write_flag(root, class->proj_bias, c->add_proj_bias);
    if (class->clip_qkv != NULL)
        failed |= put(root, class->clip_qkv, c->clip_qkv > 0.0 ? json_real(c->clip_qkv) : json_null());
    failed |= write_rope(c, root);
    failed |= write_window(c, root);
    failed |= write_experts(c, root);
    ASSAY_CHECK(failed == 0, ASSAY_OUT_OF_MEMORY, "model config: JSON values");
    return ASSAY_OK;
}

/* --- megatron -------------------------------------------------------------------------------------------------- */

static json_t *field_to_json(const assay_config_field *f, const assay_model_config *c)
{
    const void *at = (const char *)c + f->offset;
    switch (f->type) {
    case ASSAY_FIELD_I64:
        return json_integer(*(const int64_t *)at);
    case ASSAY_FIELD_DOUBLE:
        return json_real(*(const double *)at);
    case ASSAY_FIELD_BOOL:
        return json_boolean(*(const bool *)at || (at == &c->qk_layernorm && assay_config_is_mla(c)));
    case ASSAY_FIELD_ROPE_TYPE:
        return json_string(assay_rope_name(*(const assay_rope_type *)at));
    case ASSAY_FIELD_SCORE:
        return json_string(assay_score_name(*(const assay_score_function *)at));
    }
    return NULL;
}

assay_status assay_config_write_megatron(const assay_model_config *c, json_t *root)
{
    int failed = json_object_set_new(root, "model_type", json_string("megatron"));
    for (const assay_config_field *f = assay_config_fields(); f->name != NULL; f++)
        if ((!f->mla && !f->yarn) || (f->mla && assay_config_is_mla(c)) ||
            (f->yarn && c->rope_type == ASSAY_ROPE_YARN))
            failed |= json_object_set_new(root, f->name, field_to_json(f, c));
    if (assay_config_is_mla(c))
        failed |= json_object_set_new(root, "multi_latent_attention", json_true());
    json_t *windows = json_array(), *moe = json_array();
    for (int64_t l = 0; l < c->num_layers; l++) {
        failed |= json_array_append_new(windows, json_integer(c->window[l]));
        failed |= json_array_append_new(moe, json_boolean(c->mlp[l] == ASSAY_MLP_MOE));
    }
    failed |= json_object_set_new(root, "window", windows);
    failed |= json_object_set_new(root, "layer_is_moe", moe);
    ASSAY_CHECK(failed == 0, ASSAY_OUT_OF_MEMORY, "model config: JSON values");
    return ASSAY_OK;
}
