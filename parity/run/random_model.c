/* The model of a drawn case. */
#include "parity/run/random_draw.h"

enum { MAX_LAYERS = 5 };

/* Any width, or one that kernels take eight at a time. */
static int64_t width(draws *d, bool wide)
{
    return wide ? 8 * between(d, 1, 17) : chance(d, 50) ? 2 * between(d, 2, 20) : between(d, 3, 40);
}

/* Short lengths, so that the positions of a case meet frequencies of every kind. */
static void draw_yarn(draws *d, bool mla, json_t *model)
{
    put_word(d, model, "rope_type", "yarn");
    put_real(d, model, "rope_factor", REAL_OF(d, 0.5, 2.0, 4.0));
    put_int(d, model, "rope_original_max_position_embeddings", ONE_OF(d, 4, 8, 16, 64));
    put_real(d, model, "rotary_base", REAL_OF(d, 20.0, 500.0, 10000.0));
    put_real(d, model, "rope_beta_fast", REAL_OF(d, 1.0, 4.0, 32.0));
    put_real(d, model, "rope_beta_slow", REAL_OF(d, 0.25, 0.5, 1.0));
    put(d, model, "rope_truncate", json_boolean(chance(d, 70)));
    if (chance(d, 30))
        put_real(d, model, "rope_attention_factor", 1.25);
    else
        put_real(d, model, "rope_mscale", REAL_OF(d, 0.7, 1.0));
    if (mla || chance(d, 40))
        put_real(d, model, "rope_mscale_all_dim", REAL_OF(d, 0.9, 1.0));
}

static void draw_mla(draws *d, bool wide, json_t *model)
{
    const int64_t rotated = wide ? ONE_OF(d, 16, 32, 64) : 2 * between(d, 1, 5);
    const int64_t plain = wide ? 8 * between(d, 2, 16) : between(d, 1, 20);
    put(d, model, "multi_latent_attention", json_true());
    put_int(d, model, "num_attention_heads", ONE_OF(d, 1, 2, 2, 3, 4, 6));
    if (chance(d, 60))
        put_int(d, model, "q_lora_rank", width(d, wide));
    else
        put(d, model, "q_lora_rank", json_null());
    put_int(d, model, "kv_lora_rank", width(d, wide));
    put_int(d, model, "qk_head_dim", plain);
    put_int(d, model, "qk_pos_emb_head_dim", rotated);
    put_int(d, model, "v_head_dim", wide ? 8 * between(d, 2, 16) : between(d, 1, 24));
    if (chance(d, 50))
        draw_yarn(d, true, model);
}

static void draw_attention(draws *d, bool wide, json_t *model)
{
    if (chance(d, 20)) {
        draw_mla(d, wide, model);
        return;
    }
    const int64_t layers = int_of(model, "num_layers"), groups = ONE_OF(d, 1, 1, 2, 2, 3, 4),
                  heads = groups * (wide ? between(d, 1, 2) : between(d, 1, 4));
    put_int(d, model, "num_attention_heads", heads);
    put_int(d, model, "num_query_groups", groups);
    put_int(d, model, "kv_channels",
            wide ? ONE_OF(d, 32, 64, 64, 96, 128) : ONE_OF(d, 2, 4, 6, 8, 8, 10, 16, 18, 32));
    put_flag(d, model, "qk_layernorm", 50);
    if (json_is_true(json_object_get(model, "qk_layernorm")))
        put_flag(d, model, "qk_layernorm_full_width", 25);
    put_flag(d, model, "add_qkv_bias", 40);
    put_flag(d, model, "add_proj_bias", 25);
    if (chance(d, 15))
        put_real(d, model, "clip_qkv", REAL_OF(d, 0.3, 0.7, 2.0));
    if (chance(d, 15)) {
        put_word(d, model, "rope_type", "llama3");
        put_real(d, model, "rope_factor", 8.0);
        put_real(d, model, "rope_low_freq_factor", 1.0);
        put_real(d, model, "rope_high_freq_factor", 4.0);
        put_int(d, model, "rope_original_max_position_embeddings", 16);
    } else if (chance(d, 15)) {
        put_word(d, model, "rope_type", "linear");
        put_real(d, model, "rope_factor", 2.0);
    } else if (chance(d, 15)) {
        draw_yarn(d, false, model);
    }
    if (chance(d, 35)) {
        json_t *window = json_array();
        for (int64_t l = 0; l < layers; l++)
            json_array_append_new(
                window, json_integer(wide ? ONE_OF(d, 0, 3, 17, 40, 64) : ONE_OF(d, 0, 1, 2, 3, 5, 9)));
        put(d, model, "window", window);
    }
}

static void draw_router_losses(draws *d, json_t *training)
{
    static const char *const types[] = {"aux_loss", "seq_aux_loss", "global_aux_loss"};
    json_t *words = json_array(), *weights = json_array();
    const int64_t chosen = between(d, 0, 7);
    for (int k = 0; k < 3; k++)
        if ((chosen >> k & 1) != 0) {
            json_array_append_new(words, json_string(types[k]));
            json_array_append_new(weights, json_real(REAL_OF(d, 0.01, 0.02, 0.05)));
        }
    if (json_array_size(words) > 0) {
        put(d, training, "moe_router_load_balancing_type", json_incref(words));
        put(d, training, "moe_aux_loss_coeff", json_incref(weights));
    }
    json_decref(words);
    json_decref(weights);
    if (chance(d, 40))
        put_real(d, training, "moe_z_loss_coeff", 0.002);
}

static void draw_experts(draws *d, bool wide, json_t *model, json_t *training)
{
    const int64_t layers = int_of(model, "num_layers"), experts = ONE_OF(d, 3, 4, 4, 6, 8, 8, 12, 16),
                  topk = between(d, 1, experts < 4 ? experts : 4), dense = below(d, layers);
    const bool sigmoid = chance(d, 40);
    json_t *moe = json_array();
    for (int64_t l = 0; l < layers; l++)
        json_array_append_new(moe, json_boolean(l == dense || chance(d, 60)));
    put(d, model, "layer_is_moe", moe);
    put_int(d, model, "num_moe_experts", experts);
    put_int(d, model, "moe_router_topk", topk);
    put_int(d, model, "moe_ffn_hidden_size", wide ? 8 * between(d, 1, 9) : between(d, 1, 24));
    put_word(d, model, "moe_router_score_function", sigmoid ? "sigmoid" : "softmax");
    if (topk == 1 && !sigmoid)
        put(d, model, "moe_router_pre_softmax", json_true());
    put_flag(d, model, "norm_topk_prob", 50);
    if (sigmoid && chance(d, 60)) {
        put(d, model, "moe_router_enable_expert_bias", json_true());
        put_real(d, training, "moe_router_bias_update_rate", REAL_OF(d, 0.001, 0.05));
    }
    const int64_t groups = between(d, 2, experts), most = between(d, 1, groups);
    if (chance(d, 30) && experts % groups == 0 && most <= topk && topk <= most * (experts / groups)) {
        put_int(d, model, "moe_router_num_groups", groups);
        put_int(d, model, "moe_router_group_topk", most);
    }
    if (chance(d, 30))
        put_real(d, model, "moe_router_topk_scaling_factor", 2.5);
    if (chance(d, 35)) {
        put_int(d, model, "moe_shared_expert_intermediate_size", width(d, wide));
        put_flag(d, model, "moe_shared_expert_gate", 40);
        put_flag(d, training, "moe_shared_expert_overlap", 30);
    }
    draw_router_losses(d, training);
}

static void draw_dispatch(draws *d, json_t *training)
{
    if (chance(d, 25)) {
        put_real(d, training, "moe_expert_capacity_factor", REAL_OF(d, 0.5, 1.0, 1.25));
        put_flag(d, training, "moe_pad_expert_input_to_capacity", 40);
        if (chance(d, 30))
            put_word(d, training, "moe_token_drop_policy", "position");
    }
    if (chance(d, 15))
        put_real(d, training, "moe_input_jitter_eps", 0.1);
    if (chance(d, 20))
        put_word(d, training, "moe_token_dispatcher_type", "allgather");
    if (chance(d, 15))
        put_word(d, training, "moe_router_dtype", "model");
    if (chance(d, 15))
        put_word(d, training, "moe_router_padding_for_quantization", WORD_OF(d, "fp8", "mxfp8"));
    put_flag(d, training, "moe_alltoall_halves", 15);
    put_flag(d, training, "moe_router_force_load_balancing", 8);
}

void draws_model(draws *d, bool wide, json_t *model, json_t *training)
{
    const int64_t layers = between(d, 1, wide ? 2 : MAX_LAYERS);
    put_word(d, model, "model_type", "megatron");
    put_int(d, model, "num_layers", layers);
    put_int(d, model, "hidden_size", width(d, wide));
    put_int(d, model, "ffn_hidden_size", width(d, wide));
    put_int(d, model, "vocab_size", ONE_OF(d, 61, 67, 128, 151, 257, 259));
    put_int(d, model, "max_position_embeddings", 256);
    put_real(d, model, "layernorm_epsilon", REAL_OF(d, 1e-5, 1e-6));
    put_real(d, model, "init_method_std", REAL_OF(d, 0.05, 0.08, 0.15));
    put_real(d, model, "init_constant_std", REAL_OF(d, 0.0, 0.05, 0.2));
    put_flag(d, model, "tie_word_embeddings", 40);
    put_flag(d, model, "add_mlp_bias", 25);
    draw_attention(d, wide, model);
    if (chance(d, 60)) {
        draw_experts(d, wide, model, training);
        draw_dispatch(d, training);
    }
}
