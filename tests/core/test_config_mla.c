/* Multi-latent attention in a config.json: deepseek_v2 and deepseek_v3, Megatron-LM's words, what is refused, names of tensors. */
#include "core/files/tensorwriter.h"
#include "core/model/config_internal.h"
#include "core/model/spec.h"
#include "tests/support/config.h"
#include "tests/support/core_files.h"

#include <math.h>

TestSuite(config_mla);

static const char deepseek[] =
    "{\"model_type\":\"deepseek_v3\",\"architectures\":[\"DeepseekV3ForCausalLM\"],\"hidden_size\":20,"
    "\"num_hidden_layers\":4,\"num_attention_heads\":3,\"num_key_value_heads\":3,\"vocab_size\":31,"
    "\"intermediate_size\":14,\"q_lora_rank\":12,\"kv_lora_rank\":8,\"qk_nope_head_dim\":6,"
    "\"qk_rope_head_dim\":4,\"v_head_dim\":10,\"n_routed_experts\":8,\"num_experts_per_tok\":4,"
    "\"moe_intermediate_size\":7,\"n_group\":4,\"topk_group\":2}";
static const char v2[] =
    "{\"model_type\":\"deepseek_v2\",\"architectures\":[\"DeepseekV2ForCausalLM\"],\"hidden_size\":20,"
    "\"num_hidden_layers\":4,\"num_attention_heads\":3,\"vocab_size\":31,"
    "\"intermediate_size\":14,\"q_lora_rank\":12,\"kv_lora_rank\":8,\"qk_nope_head_dim\":6,"
    "\"qk_rope_head_dim\":4,\"v_head_dim\":10,\"n_routed_experts\":8,\"num_experts_per_tok\":4,"
    "\"moe_intermediate_size\":7}";
#define LIMITED "\"topk_method\":\"group_limited_greedy\",\"n_group\":4,\"topk_group\":3"
static const char own[] =
    "{\"model_type\":\"megatron\",\"num_layers\":4,\"hidden_size\":20,\"ffn_hidden_size\":14,"
    "\"num_attention_heads\":3,\"vocab_size\":31,\"layernorm_epsilon\":1e-5,\"multi_latent_attention\":true,"
    "\"q_lora_rank\":12,\"kv_lora_rank\":8,\"qk_head_dim\":6,\"qk_pos_emb_head_dim\":4,\"v_head_dim\":10}";
/* Megatron-LM's form. */
#define FORM                                                                                                 \
    "\"qk_layernorm\":true,\"rope_type\":\"rope\",\"normalization\":\"RMSNorm\",\"gated_linear_unit\":true," \
    "\"activation_func\":\"silu\",\"position_embedding_type\":\"rope\",\"hidden_dropout\":0.0,"              \
    "\"attention_dropout\":0.0,\"add_bias_linear\":false,\"untie_embeddings_and_output_weights\":true"

/* --- what is read ------------------------------------------------------------------------------------------- */

static void expect_widths(const assay_model_config *c, int64_t q_lora_rank)
{
    cr_expect(assay_config_is_mla(c) && c->mixer[3] == ASSAY_MIXER_MLA && c->mixer[4] == 0);
    cr_expect_eq(c->q_lora_rank, q_lora_rank);
    cr_expect(c->kv_lora_rank == 8 && c->qk_head_dim == 6 && c->qk_pos_emb_head_dim == 4 &&
              c->v_head_dim == 10);
    cr_expect(c->kv_channels == 10 && c->num_query_groups == 3);
    cr_expect(assay_config_rotary_dim(c) == 4 && assay_config_value_dim(c) == 10);
    cr_expect(!c->qk_layernorm && !c->add_qkv_bias && !c->add_proj_bias);
}

Test(config_mla, deepseek_v3_has_the_defaults_of_its_class)
{
    assay_model_config c = config_read(deepseek, "{\"rms_norm_eps\":1e-5}");
    expect_widths(&c, 12);
    cr_expect(c.layernorm_epsilon == 1e-5 && c.mla_layernorm_epsilon == 1e-6,
              "the class does not tell its inner norms");
    cr_expect(c.max_position_embeddings == 4096 && c.rotary_base == 1e4 && !c.tie_word_embeddings);
    cr_expect(c.mlp[2] == ASSAY_MLP_DENSE && c.mlp[3] == ASSAY_MLP_MOE, "first_k_dense_replace 3");
    cr_expect(c.moe_router_score_function == ASSAY_SCORE_SIGMOID && c.moe_router_enable_expert_bias &&
              c.norm_topk_prob && !c.moe_router_pre_softmax && c.moe_router_topk_scaling_factor == 2.5);
    cr_expect(c.moe_router_num_groups == 4 && c.moe_router_group_topk == 2 && c.moe_router_topk == 4);
    cr_expect(c.moe_shared_expert_intermediate_size == 7 && !c.moe_shared_expert_gate);
    c = config_read(deepseek,
                    "{\"-\":[\"n_group\",\"topk_group\",\"num_experts_per_tok\"],\"n_routed_experts\":16}");
    cr_expect(c.moe_router_num_groups == 8 && c.moe_router_group_topk == 4 && c.moe_router_topk == 8);
    cr_expect_eq(config_read(deepseek, "{\"-\":[\"q_lora_rank\"]}").q_lora_rank, 1536);
    cr_expect_eq(config_read(deepseek, "{\"q_lora_rank\":null}").q_lora_rank, 0);
    cr_expect_eq(config_read(deepseek, "{\"num_key_value_heads\":null}").num_query_groups, 3);
}

/* Source: transformers 5.24, configuration_deepseek_v2.py. */
Test(config_mla, deepseek_v2_has_the_defaults_of_its_class)
{
    assay_model_config c = config_read(v2, "{\"rms_norm_eps\":1e-5}");
    expect_widths(&c, 12);
    cr_expect(c.layernorm_epsilon == 1e-5 && c.mla_layernorm_epsilon == 1e-6,
              "the class does not tell its inner norms");
    cr_expect(c.max_position_embeddings == 2048 && c.rotary_base == 1e4 && !c.tie_word_embeddings);
    cr_expect(c.mlp[0] == ASSAY_MLP_MOE && c.mlp[3] == ASSAY_MLP_MOE, "first_k_dense_replace 0");
    cr_expect(c.moe_router_score_function == ASSAY_SCORE_SOFTMAX && c.moe_router_pre_softmax &&
              !c.moe_router_enable_expert_bias && !c.norm_topk_prob &&
              c.moe_router_topk_scaling_factor == 1.0);
    cr_expect(c.moe_shared_expert_intermediate_size == 14 && !c.moe_shared_expert_gate, "two shared experts");
    cr_expect(c.moe_router_num_groups == 0 && c.moe_router_topk == 4);
    cr_expect_eq(config_read(v2, "{\"q_lora_rank\":null}").q_lora_rank, 0);
}

Test(config_mla, groups_of_deepseek_v2_are_those_of_its_topk_method)
{
    assay_model_config c = config_read(v2, "{" LIMITED ",\"routed_scaling_factor\":16}");
    cr_expect(c.moe_router_num_groups == 4 && c.moe_router_group_topk == 3 &&
              c.moe_router_topk_scaling_factor == 16.0);
    /* greedy reads none, whatever is beside it */
    cr_expect_eq(
        config_read(v2, "{\"topk_method\":\"greedy\",\"n_group\":4,\"topk_group\":1}").moe_router_num_groups,
        0);
    cr_expect_eq(config_read(v2, "{\"n_group\":null,\"topk_group\":null}").moe_router_num_groups, 0);
    cr_expect_eq(config_read(v2, "{\"topk_method\":\"group_limited_greedy\",\"n_group\":1,\"topk_group\":1}")
                     .moe_router_num_groups,
                 0);
}

Test(config_mla, experts_of_deepseek_v3)
{
    assay_model_config c =
        config_read(deepseek, "{\"first_k_dense_replace\":0,\"n_shared_experts\":3,\"norm_topk_"
                              "prob\":false,\"routed_scaling_factor\":1.5}");
    cr_expect(c.mlp[0] == ASSAY_MLP_MOE && c.moe_shared_expert_intermediate_size == 21 && !c.norm_topk_prob &&
              c.moe_router_topk_scaling_factor == 1.5);
    c = config_read(deepseek, "{\"n_group\":1,\"topk_group\":1,\"num_experts_per_tok\":3}");
    cr_expect(c.moe_router_num_groups == 0 && c.moe_router_group_topk == 0, "one group is no limit");
    c = config_read(deepseek,
                    "{\"num_experts_per_tok\":5,\"n_group\":2}"); /* a group's score: its best 5 / 2 = 2 */
    cr_expect_eq(c.moe_router_topk, 5);
    c = config_read(deepseek,
                    "{\"-\":[\"n_routed_experts\",\"moe_intermediate_size\"],\"first_k_dense_replace\":4}");
    cr_expect(c.num_moe_experts == 0 && c.mlp[3] == ASSAY_MLP_DENSE, "no layer has experts");
    /* what says how the class computes, or nothing about the numbers, may stand there */
    (void)config_read(
        deepseek, "{\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\",\"moe_layer_freq\":1,"
                  "\"aux_loss_alpha\":0.001,\"seq_aux\":true,\"ep_size\":1,\"num_nextn_predict_layers\":1,"
                  "\"head_dim\":4,\"qk_head_dim\":10,\"rope_interleave\":true,\"attention_bias\":false,"
                  "\"num_local_experts\":8,\"rope_scaling\":null}");
}

Test(config_mla, words_of_megatron)
{
    assay_model_config c = config_read(own, "{}");
    expect_widths(&c, 12);
    cr_expect_eq(c.mla_layernorm_epsilon, 1e-5, "layernorm_epsilon");
    cr_expect_eq(config_read(own, "{\"mla_layernorm_epsilon\":1e-6}").mla_layernorm_epsilon, 1e-6);
    cr_expect_eq(config_read(own, "{\"mla_layernorm_epsilon\":0}").mla_layernorm_epsilon, 0.0);
    c = config_read(own, "{\"-\":[\"q_lora_rank\"]}");
    expect_widths(&c, 0);
    c = config_read(own, "{" FORM "}");
    expect_widths(&c, 12);
    cr_expect_eq(c.rope_type, ASSAY_ROPE_DEFAULT);
    c = config_read(
        own, "{" FORM ",\"q_lora_rank\":null,\"kv_channels\":10,\"num_query_groups\":3,"
             "\"cache_mla_latents\":false,\"mscale_all_dim\":0.0,\"mscale\":1.0,\"beta_fast\":32,"
             "\"beta_slow\":1,\"rotary_scaling_factor\":40,\"original_max_position_embeddings\":4096}");
    expect_widths(&c, 0);
    c = config_read(own, "{\"-\":[\"q_lora_rank\",\"kv_lora_rank\",\"qk_head_dim\",\"qk_pos_emb_head_dim\","
                         "\"v_head_dim\"],\"multi_latent_attention\":false,\"kv_channels\":6}");
    cr_expect(!assay_config_is_mla(&c) && assay_config_rotary_dim(&c) == 6 && c.mla_layernorm_epsilon == 0.0);
}

/* --- what is refused ---------------------------------------------------------------------------------------- */

Test(config_mla, wrong_files_are_refused_by_name)
{
    static const struct {
        const char *base, *change;
        assay_status st;
        const char *message;
    } rows[] = {
        {deepseek, "{\"-\":[\"kv_lora_rank\"]}", ASSAY_FORMAT, "kv_lora_rank: missing"},
        {deepseek, "{\"-\":[\"qk_nope_head_dim\"]}", ASSAY_FORMAT, "qk_nope_head_dim: missing"},
        {deepseek, "{\"-\":[\"qk_rope_head_dim\"]}", ASSAY_FORMAT, "qk_rope_head_dim: missing"},
        {deepseek, "{\"v_head_dim\":null}", ASSAY_FORMAT, "v_head_dim: missing"},
        {deepseek, "{\"-\":[\"n_routed_experts\"]}", ASSAY_FORMAT, "n_routed_experts: missing"},
        {deepseek, "{\"-\":[\"moe_intermediate_size\"]}", ASSAY_FORMAT, "moe_intermediate_size: missing"},
        {deepseek, "{\"-\":[\"num_key_value_heads\"]}", ASSAY_MISMATCH,
         "not a multiple of num_key_value_heads 128"},
        {deepseek, "{\"num_key_value_heads\":1}", ASSAY_MISMATCH, "a key and a value for every head"},
        {deepseek, "{\"q_lora_rank\":0}", ASSAY_LIMIT, "q_lora_rank: expected 1 to"},
        {deepseek, "{\"qk_rope_head_dim\":3}", ASSAY_MISMATCH, "qk_rope_head_dim: expected an even number"},
        {deepseek, "{\"head_dim\":10}", ASSAY_MISMATCH, "head_dim: deepseek_v3 takes qk_rope_head_dim, 4"},
        {deepseek, "{\"qk_head_dim\":6}", ASSAY_MISMATCH, "qk_head_dim: deepseek_v3 takes"},
        {deepseek, "{\"rope_interleave\":false}", ASSAY_UNSUPPORTED, "rope_interleave: false"},
        {deepseek, "{\"rope_interleave\":null}", ASSAY_FORMAT,
         "rope_interleave: expected a value or nothing"},
        {deepseek, "{\"n_group\":null}", ASSAY_FORMAT, "n_group: expected a value or nothing"},
        {deepseek, "{\"num_experts_per_tok\":1,\"n_group\":1,\"topk_group\":1,\"norm_topk_prob\":true}",
         ASSAY_UNSUPPORTED, "num_experts_per_tok 1 with norm_topk_prob"},
        {deepseek, "{\"norm_topk_prob\":null}", ASSAY_FORMAT, "norm_topk_prob: expected a value or nothing"},
        {deepseek, "{\"attention_bias\":true}", ASSAY_UNSUPPORTED,
         "attention_bias: not supported yet with multi-latent attention"},
        {deepseek, "{\"mlp_bias\":true}", ASSAY_UNSUPPORTED, "mlp_bias: deepseek_v3 has no such bias"},
        {deepseek, "{\"sliding_window\":8}", ASSAY_UNSUPPORTED, "sliding_window: deepseek_v3 has no window"},
        {deepseek, "{\"residual_dropout\":0.1}", ASSAY_UNSUPPORTED, "residual_dropout: deepseek_v3 has none"},
        {deepseek, "{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":40}}", ASSAY_UNSUPPORTED,
         "rope_type: unknown type 'dynamic'"},
        {deepseek, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", ASSAY_UNSUPPORTED,
         "rope_type: linear is not supported yet with multi-latent attention"},
        {deepseek, "{\"num_experts\":8}", ASSAY_UNSUPPORTED, "reads n_routed_experts only"},
        {deepseek, "{\"num_local_experts\":4}", ASSAY_MISMATCH, "but num_local_experts is 4"},
        {deepseek, "{\"scoring_func\":\"softmax\"}", ASSAY_UNSUPPORTED, "scoring_func: deepseek_v3 computes"},
        {deepseek, "{\"topk_method\":\"greedy\"}", ASSAY_UNSUPPORTED, "topk_method: deepseek_v3 computes"},
        {deepseek, "{\"moe_layer_freq\":2}", ASSAY_UNSUPPORTED, "moe_layer_freq: deepseek_v3 has experts"},
        {deepseek, "{\"n_shared_experts\":0}", ASSAY_LIMIT, "n_shared_experts: expected 1 to"},
        {deepseek, "{\"topk_group\":5}", ASSAY_MISMATCH, "topk_group 5 is more than n_group 4"},
        {deepseek, "{\"num_experts_per_tok\":3}", ASSAY_UNSUPPORTED,
         "num_experts_per_tok 3 of topk_group 2 groups: a group's score is the sum of its best 1"},
        {deepseek, "{\"topk_group\":1}", ASSAY_UNSUPPORTED,
         "the sum of its best 4 where deepseek_v3 takes 2"},
        {v2, "{\"-\":[\"num_experts_per_tok\"]}", ASSAY_FORMAT, "num_experts_per_tok: missing"},
        {v2, "{\"topk_method\":\"group_limited_greedy\"}", ASSAY_FORMAT, "n_group: missing"},
        {v2, "{" LIMITED ",\"num_experts_per_tok\":6}", ASSAY_UNSUPPORTED,
         "the sum of its best 2 where deepseek_v2 takes 1"},
        {v2, "{\"topk_method\":\"noaux_tc\"}", ASSAY_UNSUPPORTED,
         "topk_method: deepseek_v2 computes greedy or group_limited_greedy, found noaux_tc"},
        {v2, "{\"topk_method\":null}", ASSAY_UNSUPPORTED, "found no string"},
        {v2, "{\"scoring_func\":\"sigmoid\"}", ASSAY_UNSUPPORTED, "deepseek_v2 computes softmax"},
        {v2, "{\"norm_topk_prob\":true}", ASSAY_UNSUPPORTED, "deepseek_v2 does not divide"},
        {v2, "{\"norm_topk_prob\":null}", ASSAY_FORMAT, "norm_topk_prob: expected a value or nothing"},
        {v2, "{\"rope_interleave\":false}", ASSAY_UNSUPPORTED, "rope_interleave: false"},
        {v2, "{\"mlp_bias\":true}", ASSAY_UNSUPPORTED, "mlp_bias: deepseek_v2 has no such bias"},
        {v2, "{\"head_dim\":10}", ASSAY_MISMATCH, "head_dim: deepseek_v2 takes qk_rope_head_dim, 4"},
        {deepseek, "{\"n_group\":3}", ASSAY_MISMATCH,
         "num_moe_experts 8 is not a multiple of moe_router_num_groups 3"},
        {own, "{\"multi_latent_attention\":1}", ASSAY_FORMAT,
         "multi_latent_attention: expected true or false"},
        {own, "{\"multi_latent_attention\":false,\"kv_channels\":6}", ASSAY_MISMATCH,
         "q_lora_rank 12 without multi_latent_attention"},
        {own, "{\"-\":[\"v_head_dim\"]}", ASSAY_LIMIT, "v_head_dim: expected 1 to"},
        {own, "{\"kv_lora_rank\":0}", ASSAY_LIMIT, "kv_lora_rank: expected 1 to"},
        {own, "{\"kv_channels\":8}", ASSAY_MISMATCH, "kv_channels 8 is not qk_head_dim 6"},
        {own, "{\"num_query_groups\":1}", ASSAY_MISMATCH, "a key and a value for every head"},
        {own, "{\"qk_pos_emb_head_dim\":5}", ASSAY_MISMATCH, "qk_pos_emb_head_dim: expected an even number"},
        {own, "{\"v_head_dim\":16777216}", ASSAY_LIMIT, "and v_head_dim 16777216 is more than"},
        {own, "{\"kv_lora_rank\":16777216}", ASSAY_LIMIT, "kv_lora_rank 16777216 and qk_pos_emb_head_dim 4"},
        {own, "{\"mla_layernorm_epsilon\":2}", ASSAY_LIMIT, "mla_layernorm_epsilon: expected 0 to 1"},
        {own, "{\"qk_layernorm\":false}", ASSAY_UNSUPPORTED, "without its inner norms is not supported yet"},
        {own, "{\"clip_qkv\":2.0}", ASSAY_UNSUPPORTED, "clip_qkv: not supported yet with multi-latent"},
        {own, "{\"add_qkv_bias\":true}", ASSAY_UNSUPPORTED, "add_qkv_bias: not supported yet with"},
        {own, "{\"add_proj_bias\":true}", ASSAY_UNSUPPORTED, "add_proj_bias: not supported yet with"},
        {own, "{\"rotary_percent\":0.5}", ASSAY_UNSUPPORTED, "rotary_percent: not supported yet with"},
        {own, "{\"window\":[0,0,4,0]}", ASSAY_UNSUPPORTED, "window of layer 2: not supported yet with"},
        {own, "{\"rope_type\":\"yarn\"}", ASSAY_LIMIT, "rope_factor: expected"},
        {own, "{\"rope_type\":\"linear\",\"rope_factor\":2.0}", ASSAY_UNSUPPORTED,
         "rope_type: linear is not supported yet"},
        {own, "{" FORM ",\"-\":[\"q_lora_rank\"]}", ASSAY_FORMAT, "q_lora_rank: missing"},
        {own, "{" FORM ",\"cache_mla_latents\":true}", ASSAY_UNSUPPORTED, "cache_mla_latents: a cache"},
        {own, "{" FORM ",\"add_bias_linear\":true}", ASSAY_UNSUPPORTED,
         "add_qkv_bias: not supported yet with"},
        {own, "{" FORM ",\"multi_latent_attention\":false,\"beta_fast\":32}", ASSAY_UNSUPPORTED,
         "beta_fast: a word of multi-latent attention"},
        {own, "{\"normalization\":\"RMSNorm\"}", ASSAY_UNSUPPORTED, "qk_layernorm: missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_model_config c;
        json_t *root = config_edited(rows[i].base, rows[i].change);
        TEST_FAILS(assay_config_from_json(root, "config.json", &c), rows[i].st, rows[i].message);
        json_decref(root);
    }
}

Test(config_mla, rules_of_the_struct)
{
    assay_model_config c = config_read(own, "{}");
    c.mixer[2] = ASSAY_MIXER_ATTENTION;
    TEST_FAILS(assay_config_check(&c, "c"), ASSAY_UNSUPPORTED, "layer 2 is attention, layer 0 mla");
    c = config_read(own, "{}");
    c.mixer[1] = (assay_mixer_kind)7;
    TEST_FAILS(assay_config_check(&c, "c"), ASSAY_UNSUPPORTED, "layer 1: unknown mixer number 7");
    c = config_read(own, "{}");
    c.qk_layernorm = true; /* of heads */
    TEST_FAILS(assay_config_check(&c, "c"), ASSAY_UNSUPPORTED, "qk_layernorm: not supported yet with");
    c = config_read(own, "{}");
    c.mla_layernorm_epsilon = (double)NAN;
    TEST_FAILS(assay_config_check(&c, "c"), ASSAY_LIMIT, "mla_layernorm_epsilon");
    c = config_read(own, "{\"-\":[\"q_lora_rank\",\"kv_lora_rank\",\"qk_head_dim\",\"qk_pos_emb_head_dim\","
                         "\"v_head_dim\",\"multi_latent_attention\"],\"kv_channels\":6}");
    c.mla_layernorm_epsilon = 1e-6;
    TEST_FAILS(assay_config_check(&c, "c"), ASSAY_MISMATCH, "without multi_latent_attention");
}

/* --- writing back ------------------------------------------------------------------------------------------- */

Test(config_mla, configs_read_back_to_equal_structs)
{
    static const struct {
        const char *base, *change;
    } rows[] = {
        {deepseek, "{}"},
        {deepseek, "{\"q_lora_rank\":null,\"rms_norm_eps\":1e-5,\"n_shared_experts\":3,\"n_group\":1,\"topk_"
                   "group\":1,\"routed_scaling_factor\":1.25,\"norm_topk_prob\":false}"},
        {deepseek, "{\"first_k_dense_replace\":0}"},
        {deepseek, "{\"first_k_dense_replace\":4}"},
        {v2, "{}"},
        {v2, "{" LIMITED ",\"first_k_dense_replace\":1,\"routed_scaling_factor\":16}"},
        {own, "{}"},
        {own, "{\"q_lora_rank\":0,\"mla_layernorm_epsilon\":0,\"num_moe_experts\":4,"
              "\"layer_is_moe\":[false,true,false,true]}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_model_config c, back;
        json_t *written = NULL, *root = config_edited(rows[i].base, rows[i].change);
        memset(&c, 0, sizeof c);
        memset(&back, 0, sizeof back);
        TEST_OK(assay_config_from_json(root, "config.json", &c));
        TEST_OK(assay_config_to_json(&c, &written));
        TEST_OK(assay_config_from_json(written, "written", &back));
        cr_expect_eq(memcmp(&c, &back, sizeof c), 0, "%s", rows[i].change);
        json_decref(written);
        json_decref(root);
    }
    /* Plain models keep the file that they had. */
    json_t *plain = NULL;
    const assay_model_config c =
        config_read("{\"model_type\":\"megatron\",\"num_layers\":1,\"hidden_size\":8,"
                    "\"ffn_hidden_size\":8,\"num_attention_heads\":2,\"vocab_size\":16}",
                    "{}");
    TEST_OK(assay_config_to_json(&c, &plain));
    cr_expect(json_object_get(plain, "q_lora_rank") == NULL &&
              json_object_get(plain, "multi_latent_attention") == NULL);
    json_decref(plain);
}

Test(config_mla, what_deepseek_v3_cannot_say_is_not_written)
{
    json_t *root = NULL;
    assay_model_config c = config_read(deepseek, "{\"first_k_dense_replace\":0}");
    c.mlp[2] = ASSAY_MLP_DENSE;
    TEST_FAILS(assay_config_to_json(&c, &root), ASSAY_INVALID_ARGUMENT, "layer_is_moe");
    c = config_read(deepseek, "{}");
    c.mla_layernorm_epsilon = 1e-5;
    TEST_FAILS(assay_config_to_json(&c, &root), ASSAY_INVALID_ARGUMENT, "mla_layernorm_epsilon");
    c = config_read(deepseek, "{}");
    c.moe_shared_expert_intermediate_size = 8;
    TEST_FAILS(assay_config_to_json(&c, &root), ASSAY_INVALID_ARGUMENT,
               "moe_shared_expert_intermediate_size");
    c = config_read(deepseek, "{}");
    c.moe_router_enable_expert_bias = false;
    TEST_FAILS(assay_config_to_json(&c, &root), ASSAY_INVALID_ARGUMENT, "moe_router_enable_expert_bias");
}

/* --- names of tensors --------------------------------------------------------------------------------------- */

typedef struct named {
    const char *parameter, *tensor;
    int64_t rows, columns;
} named;

static void expect_names(const assay_model_config *c, const named *rows, size_t n)
{
    assay_model_spec *spec = NULL;
    TEST_OK(assay_spec_build(c, &spec));
    for (size_t i = 0; i < n; i++) {
        const assay_param_spec *p = assay_spec_find(spec, rows[i].parameter);
        cr_assert_not_null(p, "%s", rows[i].parameter);
        cr_expect_str_eq(p->parts[0].name, rows[i].tensor);
        cr_expect(p->parts[0].shape[0] == rows[i].rows && p->parts[0].shape[1] == rows[i].columns, "%s",
                  rows[i].tensor);
        if (p->n_parts == 1)
            cr_expect(p->parts[0].n_pieces == 1 && p->parts[0].pieces[0].rows == p->shape[0],
                      "%s: in the order of the file", rows[i].tensor);
    }
    assay_spec_destroy(spec);
}

#define L3 "decoder.layers.3."
#define H3 "model.layers.3."

Test(config_mla, tensors_of_hugging_face)
{
    static const named rows[] = {
        {L3 "self_attention.linear_q_down_proj.weight", H3 "self_attn.q_a_proj.weight", 12, 20},
        {L3 "self_attention.q_layernorm.weight", H3 "self_attn.q_a_layernorm.weight", 12, 0},
        {L3 "self_attention.linear_q_up_proj.weight", H3 "self_attn.q_b_proj.weight", 30, 12},
        {L3 "self_attention.linear_kv_down_proj.weight", H3 "self_attn.kv_a_proj_with_mqa.weight", 12, 20},
        {L3 "self_attention.kv_layernorm.weight", H3 "self_attn.kv_a_layernorm.weight", 8, 0},
        {L3 "self_attention.linear_kv_up_proj.weight", H3 "self_attn.kv_b_proj.weight", 48, 8},
        {L3 "self_attention.linear_proj.weight", H3 "self_attn.o_proj.weight", 20, 30},
        {L3 "mlp.router.weight", H3 "mlp.gate.weight", 8, 20},
        {L3 "mlp.router.expert_bias", H3 "mlp.gate.e_score_correction_bias", 8, 0},
        {L3 "mlp.experts.linear_fc2.weight", H3 "mlp.experts.0.down_proj.weight", 20, 7},
        {L3 "mlp.shared_experts.linear_fc1.weight", H3 "mlp.shared_experts.gate_proj.weight", 7, 20},
        {L3 "mlp.shared_experts.linear_fc2.weight", H3 "mlp.shared_experts.down_proj.weight", 20, 7},
    };
    static const named plain_q[] = {
        {L3 "self_attention.linear_q_proj.weight", H3 "self_attn.q_proj.weight", 30, 20}};
    assay_model_config c = config_read(deepseek, "{}");
    expect_names(&c, rows, sizeof rows / sizeof *rows);
    c = config_read(deepseek, "{\"q_lora_rank\":null}");
    expect_names(&c, plain_q, 1);
    c.arch = ASSAY_ARCH_LLAMA; /* whose files have nothing of the kind */
    assay_model_spec *spec = NULL;
    TEST_FAILS(assay_spec_build(&c, &spec), ASSAY_UNSUPPORTED,
               "self_attention.linear_q_proj.weight: Hugging Face's llama has no such parameter");
}

/* The inner norms stand alone, or TransformerEngine has them in the linears behind them; input_layernorm always stands alone. */
Test(config_mla, tensors_of_megatron)
{
    static const named alone[] = {
        {L3 "self_attention.q_layernorm.weight", L3 "self_attention.q_layernorm.weight", 12, 0},
        {L3 "self_attention.kv_layernorm.weight", L3 "self_attention.kv_layernorm.weight", 8, 0},
        {L3 "self_attention.linear_kv_up_proj.weight", L3 "self_attention.linear_kv_up_proj.weight", 48, 8},
        {L3 "input_layernorm.weight", L3 "input_layernorm.weight", 20, 0},
        {L3 "pre_mlp_layernorm.weight", L3 "pre_mlp_layernorm.weight", 20, 0}};
    static const named joined[] = {
        {L3 "self_attention.q_layernorm.weight", L3 "self_attention.linear_q_up_proj.layer_norm_weight", 12,
         0},
        {L3 "self_attention.kv_layernorm.weight", L3 "self_attention.linear_kv_up_proj.layer_norm_weight", 8,
         0},
        {L3 "input_layernorm.weight", L3 "input_layernorm.weight", 20, 0},
        {L3 "pre_mlp_layernorm.weight", L3 "mlp.linear_fc1.layer_norm_weight", 20, 0}};
    for (int k = 0; k < 2; k++) {
        static const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        static const int64_t shape[1] = {8};
        char folder[TEST_PATH], path[TEST_PATH];
        assay_tensorwriter *w = NULL;
        assay_model_config c;
        test_folder_make(folder);
        test_path(path, folder, "config.json");
        json_t *root = config_edited(own, "{}");
        TEST_OK(assay_json_save(root, path));
        json_decref(root);
        test_path(path, folder, "model.safetensors");
        TEST_OK(assay_tensorwriter_create(&w, path));
        TEST_OK(assay_tensorwriter_add_copy(w,
                                            k == 0 ? L3 "self_attention.kv_layernorm.weight"
                                                   : L3 "self_attention.linear_kv_up_proj.layer_norm_weight",
                                            ASSAY_F32, shape, 1, ones));
        TEST_OK(assay_tensorwriter_finish(w));
        assay_tensorwriter_destroy(w);
        TEST_OK(assay_config_load(folder, &c));
        expect_names(&c, k == 0 ? alone : joined,
                     k == 0 ? sizeof alone / sizeof *alone : sizeof joined / sizeof *joined);
        test_folder_remove(folder);
    }
}

/* Kimi-K2's own name for DeepSeek-V3's class: the same model, written under the name it came with. */
Test(config_mla, kimi_k2_is_deepseek_v3_by_another_name)
{
    static const char kimi[] = "{\"model_type\":\"kimi_k2\",\"architectures\":[\"DeepseekV3ForCausalLM\"]}";
    const assay_model_config a = config_read(deepseek, kimi), b = config_read(deepseek, "{}");
    json_t *out = NULL;
    cr_expect(a.arch == ASSAY_ARCH_DEEPSEEK_V3 && assay_config_difference(&a, &b) == NULL);
    cr_assert_eq(assay_config_to_json(&a, &out), ASSAY_OK);
    cr_expect_str_eq(json_string_value(json_object_get(out, "model_type")), "kimi_k2");
    cr_expect_str_eq(json_string_value(json_array_get(json_object_get(out, "architectures"), 0)),
                     "DeepseekV3ForCausalLM");
    json_decref(out);
    cr_assert_eq(assay_config_to_json(&b, &out), ASSAY_OK);
    cr_expect_str_eq(json_string_value(json_object_get(out, "model_type")), "deepseek_v3");
    json_decref(out);
    static const char *const wrong[][2] = {
        {"{\"model_type\":\"kimi_k2\",\"-\":[\"architectures\"]}",
         "architectures: missing, expected DeepseekV3ForCausalLM"},
        {"{\"model_type\":\"kimi_k2\",\"architectures\":[\"KimiForCausalLM\"]}",
         "expected DeepseekV3ForCausalLM for model_type 'kimi_k2', found 'KimiForCausalLM'"}};
    for (int i = 0; i < 2; i++) {
        assay_model_config c;
        json_t *root = config_edited(deepseek, wrong[i][0]);
        cr_expect_neq(assay_config_from_json(root, "config.json", &c), ASSAY_OK);
        cr_expect(strstr(assay_error_message(), wrong[i][1]) != NULL, "%s", assay_error_message());
        json_decref(root);
    }
}
