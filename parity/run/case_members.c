/* The members of a case's inline model: one that no reader of a configuration asks for is a slip of the pen, and the model that runs
 * is another one than was meant. */
#include "core/base/suggest.h"
#include "core/model/config_internal.h"
#include "parity/run/cases.h"
#include <stdlib.h>
#include <string.h>

/* Words that are no member of assay_model_config (those are assay_config_fields): what the readers of core/model/config_*.c ask for
 * beside them, then what Hugging Face writes into every config.json and no reader needs. */
static const char *const words[] = {
    "activation_func", "add_bias_linear", "apply_query_key_layer_scaling",
    "apply_residual_connection_post_layernorm", "arch", "architectures", "attention_bias",
    "attention_dropout", "attention_out_bias", "attention_output_gate", "cache_mla_latents",
    "calculate_per_token_loss", "clip_qkv", "decoder_sparse_step", "experimental_attention_variant",
    "first_k_dense_replace", "fp32_residual_connection", "gated_linear_unit", "head_dim", "hidden_act",
    "hidden_dropout", "init_constant_std", "layer_is_moe", "layer_types", "layernorm_zero_centered_gamma",
    "max_window_layers", "mixer", "mla_layernorm_epsilon", "mlp_bias", "mlp_only_layers", "model_type",
    "moe_apply_probs_on_input", "moe_aux_loss_coeff", "moe_expert_capacity_factor", "moe_input_jitter_eps",
    "moe_intermediate_size", "moe_latent_size", "moe_layer_freq", "moe_pad_expert_input_to_capacity",
    "moe_router_bias_update_rate", "moe_router_dtype", "moe_router_force_biased",
    "moe_router_force_load_balancing", "moe_router_load_balancing_type", "moe_router_padding_for_fp8",
    "moe_router_padding_for_quantization", "moe_shared_expert_overlap", "moe_token_dispatcher_type",
    "moe_token_drop_policy", "moe_z_loss_coeff", "mtp_num_layers", "multi_latent_attention", "n_group",
    "n_routed_experts", "n_shared_experts", "norm_topk_prob", "normalization", "num_experts",
    "num_local_experts", "num_nextn_predict_layers", "output_router_logits", "partial_rotary_factor",
    "position_embedding_type", "q_lora_rank", "qk_head_dim", "qk_l2_norm", "qkv_bias",
    "recompute_granularity", "recompute_method", "recompute_modules", "recompute_num_layers",
    "residual_dropout", "rope_interleave", "rope_parameters", "rope_scaling", "rotary_interleaved",
    "router_aux_loss_coef", "router_jitter_noise", "scoring_func", "seq_aux_loss",
    "seq_len_interpolation_factor", "shared_expert_intermediate_size", "sliding_window", "softmax_type",
    "topk_group", "topk_method", "untie_embeddings_and_output_weights", "use_sliding_window", "window",
    "window_size",
    /* nobody's */
    "_name_or_path", "bos_token_id", "dtype", "eos_token_id", "pad_token_id", "pretraining_tp", "torch_dtype",
    "transformers_version", "use_cache", NULL};

/* Of rope_parameters and rope_scaling. */
static const char *const rope_words[] = {"attention_factor",
                                         "beta_fast",
                                         "beta_slow",
                                         "factor",
                                         "high_freq_factor",
                                         "low_freq_factor",
                                         "mscale",
                                         "mscale_all_dim",
                                         "original_max_position_embeddings",
                                         "partial_rotary_factor",
                                         "rope_theta",
                                         "rope_type",
                                         "truncate",
                                         "type",
                                         NULL};

static bool is_word(const char *key)
{
    for (const char *const *w = words; *w != NULL; w++)
        if (strcmp(*w, key) == 0)
            return true;
    for (const assay_config_field *f = assay_config_fields(); f->name != NULL; f++)
        if (strcmp(f->name, key) == 0 || (f->hf_name != NULL && strcmp(f->hf_name, key) == 0))
            return true;
    return false;
}

/* Whether a reader asks for it all the same: with another value it is an error or another model. */
static bool is_read(const json_t *model, const char *key, assay_model_config *with,
                    assay_model_config *without)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)model);
    bool read = false;
    json_object_del(copy, key);
    if (copy != NULL && assay_config_from_json(copy, "model", without) == ASSAY_OK) {
        json_object_set_new(copy, key, json_object());
        read = assay_config_from_json(copy, "model", with) != ASSAY_OK ||
               assay_config_difference(with, without) != NULL;
    } else {
        read = true; /* what it is without this member is no model: that error comes first */
    }
    assay_error_clear();
    json_decref(copy);
    return read;
}

static assay_status refuse(const char *key, const char *what)
{
    assay_suggestion near;
    assay_suggest_begin(&near, key, strlen(key));
    for (const char *const *w = words; *w != NULL; w++)
        assay_suggest_add(&near, *w);
    for (const assay_config_field *f = assay_config_fields(); f->name != NULL; f++) {
        assay_suggest_add(&near, f->name);
        if (f->hf_name != NULL)
            assay_suggest_add(&near, f->hf_name);
    }
    ASSAY_FAIL(ASSAY_FORMAT, "%s: %.128s: no configuration has this member%s", what, key,
               assay_suggest_end(&near, ""));
}

assay_status parity_case_members(const json_t *model, const char *what)
{
    const char *key;
    json_t *value;
    char inner[ASSAY_PATH + 64];
    assay_status st = ASSAY_OK;
    assay_model_config *two = calloc(2, sizeof *two);
    ASSAY_CHECK(two != NULL, ASSAY_OUT_OF_MEMORY, "%s", what);
    json_object_foreach((json_t *)(uintptr_t)model, key, value)
    {
        const bool rope = strcmp(key, "rope_parameters") == 0 || strcmp(key, "rope_scaling") == 0;
        snprintf(inner, sizeof inner, "%s: %s", what, key);
        if (rope && json_is_object(value))
            ASSAY_TRY_GOTO(assay_json_only(value, rope_words, inner), st, done);
        if (!is_word(key) && !is_read(model, key, &two[0], &two[1]))
            ASSAY_TRY_GOTO(refuse(key, what), st, done);
    }
done:
    free(two);
    return st;
}
