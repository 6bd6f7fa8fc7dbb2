/* Model configuration: defaults of the Hugging Face classes, what is refused, and writing back. */
#include "core/model/config.h"
#include "core/model/config_internal.h"
#include "tests/support/config.h"
#include "tests/support/core.h"

static const char llama[] =
    "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
    "\"vocab_size\":131,\"intermediate_size\":56}";
static const char qwen2[] =
    "{\"model_type\":\"qwen2\",\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4,"
    "\"vocab_size\":131,\"intermediate_size\":56,\"num_key_value_heads\":2}";
static const char qwen3[] =
    "{\"model_type\":\"qwen3\",\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4,"
    "\"vocab_size\":131,\"intermediate_size\":56,\"num_key_value_heads\":2}";
static const char qwen3_moe[] =
    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4,"
    "\"vocab_size\":131,\"intermediate_size\":56,\"num_experts\":16,\"moe_intermediate_size\":24}";
static const char mixtral[] =
    "{\"model_type\":\"mixtral\",\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":8,"
    "\"vocab_size\":131,\"intermediate_size\":56,\"num_local_experts\":4}";
static const char mistral[] =
    "{\"model_type\":\"mistral\",\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":8,"
    "\"intermediate_size\":56,\"vocab_size\":97}";
static const char ministral[] =
    "{\"model_type\":\"ministral\",\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":8,"
    "\"intermediate_size\":56,\"vocab_size\":97}";
static const char qwen2_moe[] =
    "{\"model_type\":\"qwen2_moe\",\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":16,"
    "\"intermediate_size\":56,\"vocab_size\":97,\"num_experts\":16,\"moe_intermediate_size\":24,"
    "\"shared_expert_intermediate_size\":20}";
static const char seed_oss[] =
    "{\"model_type\":\"seed_oss\",\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":8,"
    "\"intermediate_size\":56,\"vocab_size\":97,\"attention_dropout\":0.0,\"residual_dropout\":0.0}";
static const char olmoe[] =
    "{\"model_type\":\"olmoe\",\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":8,"
    "\"intermediate_size\":56,\"vocab_size\":97,\"num_experts\":16}";
static const char megatron[] =
    "{\"model_type\":\"megatron\",\"hidden_size\":64,\"num_layers\":4,\"num_attention_heads\":4,"
    "\"vocab_size\":131,\"ffn_hidden_size\":56,\"num_moe_experts\":8}";

/* --- defaults (transformers 5.23) --------------------------------------------------------------------------- */

Test(core_config, absent_fields_have_the_defaults_of_their_class)
{
    static const struct {
        const char *base;
        int64_t groups, head_dim, positions, topk;
        double eps, theta;
        bool qkv_bias, qk_norm;
    } rows[] = {
        {llama, 4, 16, 2048, 0, 1e-6, 1e4, false, false},
        {qwen2, 2, 16, 32768, 0, 1e-6, 1e4, true, false},
        {qwen3, 2, 128, 32768, 0, 1e-6, 1e4, false, true},
        {qwen3_moe, 4, 16, 32768, 8, 1e-6, 1e4, false, true},
        {mixtral, 8, 8, 131072, 2, 1e-5, 1e6, false, false},
        {olmoe, 8, 8, 4096, 8, 1e-5, 1e4, false, true},
        {seed_oss, 8, 128, 524288, 0, 1e-6, 1e4, true, false},
        {qwen2_moe, 16, 4, 32768, 4, 1e-6, 1e4, true, false},
        {mistral, 8, 8, 131072, 0, 1e-6, 1e4, false, false},
        {ministral, 8, 8, 131072, 0, 1e-6, 1e4, false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const assay_model_config c = config_read(rows[i].base, "{}");
        const char *name = assay_arch_name(c.arch);
        cr_expect_eq(c.num_query_groups, rows[i].groups, "%s", name);
        cr_expect_eq(c.kv_channels, rows[i].head_dim, "%s", name);
        cr_expect_eq(c.max_position_embeddings, rows[i].positions, "%s", name);
        cr_expect_eq(c.moe_router_topk, rows[i].topk, "%s", name);
        cr_expect_eq(c.layernorm_epsilon, rows[i].eps, "%s", name);
        cr_expect_eq(c.rotary_base, rows[i].theta, "%s", name);
        cr_expect_eq(c.add_qkv_bias, rows[i].qkv_bias, "%s", name);
        cr_expect_eq(c.qk_layernorm, rows[i].qk_norm, "%s", name);
        cr_expect(!c.add_proj_bias && !c.add_mlp_bias && !c.tie_word_embeddings, "%s", name);
        cr_expect_eq(c.init_method_std, 0.02, "%s", name);
        cr_expect_eq(c.rope_type, ASSAY_ROPE_DEFAULT, "%s", name);
        cr_expect_eq(c.rotary_percent, 1.0, "%s", name);
        for (int l = 0; l < 4; l++)
            cr_expect_eq(c.window[l],
                         c.arch == ASSAY_ARCH_MISTRAL || c.arch == ASSAY_ARCH_MINISTRAL ? 4096 : 0, "%s",
                         name);
    }
}

Test(core_config, class_default_of_key_value_heads_and_null)
{
    /* qwen2 and qwen3 default to 32 heads whatever num_attention_heads is; null means as many as heads. */
    static const char removed[] =
        "{\"-\":[\"num_key_value_heads\"],\"num_attention_heads\":32,\"hidden_size\":512}";
    cr_expect_eq(config_read(qwen2, removed).num_query_groups, 32);
    cr_expect_eq(config_read(qwen2, "{\"num_key_value_heads\":null}").num_query_groups, 4);
    cr_expect_eq(
        config_read(qwen3_moe, "{\"num_attention_heads\":8,\"num_key_value_heads\":null}").num_query_groups,
        8);
    cr_expect_eq(config_read(mixtral, "{\"head_dim\":null}").kv_channels, 8);
    cr_expect_eq(config_read(mixtral, "{\"head_dim\":24}").kv_channels, 24);
    cr_expect_eq(config_read(qwen3, "{\"head_dim\":null}").kv_channels, 16);
}

Test(core_config, biases_by_architecture)
{
    static const char both[] = "{\"attention_bias\":true,\"mlp_bias\":true}";
    assay_model_config c = config_read(llama, both);
    cr_expect(c.add_qkv_bias && c.add_proj_bias && c.add_mlp_bias);
    c = config_read(qwen2, both); /* the class knows neither field */
    cr_expect(c.add_qkv_bias && !c.add_proj_bias && !c.add_mlp_bias);
    c = config_read(qwen3, both);
    cr_expect(c.add_qkv_bias && c.add_proj_bias && !c.add_mlp_bias);
    c = config_read(qwen3_moe, both);
    cr_expect(c.add_qkv_bias && c.add_proj_bias && !c.add_mlp_bias);
    c = config_read(mixtral, both);
    cr_expect(!c.add_qkv_bias && !c.add_proj_bias && !c.add_mlp_bias);
}

Test(core_config, unknown_hugging_face_fields_are_ignored)
{
    const assay_model_config c =
        config_read(llama, "{\"torch_dtype\":\"bfloat16\",\"dtype\":1,\"something\":[],\"sliding_window\":5,"
                           "\"architectures\":[\"LlamaForCausalLM\"],\"attention_dropout\":0.0}");
    cr_expect_eq(c.window[0], 0);
}

Test(core_config, dropout_of_hugging_face)
{
    assay_model_config c = config_read(qwen2, "{\"attention_dropout\":0.25}");
    cr_expect(c.training.attention_dropout == 0.25 && c.training.residual_dropout == 0.0);
    c = config_read(seed_oss, "{\"-\":[\"residual_dropout\",\"attention_dropout\"]}");
    cr_expect(c.training.attention_dropout == 0.1 && c.training.residual_dropout == 0.1,
              "defaults of the class");
    c = config_read(seed_oss, "{\"residual_dropout\":0.5,\"attention_dropout\":0.0}");
    cr_expect(c.training.attention_dropout == 0.0 && c.training.residual_dropout == 0.5);
}

Test(core_config, architectures_alone_names_the_class)
{
    cr_expect_eq(
        config_read(mixtral, "{\"-\":[\"model_type\"],\"architectures\":[\"MixtralForCausalLM\"]}").arch,
        ASSAY_ARCH_MIXTRAL);
}

/* --- rope --------------------------------------------------------------------------------------------------- */

Test(core_config, both_spellings_of_rope_say_the_same)
{
    static const char *const linear[] = {
        "{\"rope_theta\":500.0,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}",
        "{\"rope_theta\":500,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.5}}",
        "{\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.5,\"rope_theta\":500.0}}",
        "{\"rope_theta\":500.0,\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.5,\"rope_theta\":"
        "500}}",
        "{\"rope_theta\":500.0,\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"linear\",\"factor\":2.5}"
        ","
        "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.5,\"rope_theta\":500.0}}",
        /* an empty object is none, null is absent; the top level stands for both */
        "{\"rope_scaling\":{},\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.5,\"rope_theta\":"
        "500}}",
        "{\"rope_theta\":500.0,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5,\"beta_fast\":null},"
        "\"rope_parameters\":{\"type\":\"linear\",\"factor\":2.5}}",
        "{\"is_causal\":true,\"rope_theta\":500.0,\"rope_parameters\":{\"type\":\"linear\",\"factor\":2.5}}",
    };
    for (size_t i = 0; i < sizeof linear / sizeof linear[0]; i++) {
        const assay_model_config c = config_read(llama, linear[i]);
        cr_expect_eq(c.rope_type, ASSAY_ROPE_LINEAR, "%s", linear[i]);
        cr_expect_eq(c.rope_factor, 2.5, "%s", linear[i]);
        cr_expect_eq(c.rotary_base, 500.0, "%s", linear[i]);
    }
    static const char *const plain[] = {
        "{\"rope_theta\":7e4,\"rope_scaling\":null}", "{\"rope_theta\":7e4,\"rope_scaling\":{}}",
        "{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":7e4}}",
        "{\"rope_parameters\":{\"rope_theta\":7e4}}"};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        const assay_model_config c = config_read(qwen2, plain[i]);
        cr_expect_eq(c.rope_type, ASSAY_ROPE_DEFAULT, "%s", plain[i]);
        cr_expect_eq(c.rotary_base, 7e4, "%s", plain[i]);
    }
}

#define LLAMA3 "\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0"

Test(core_config, llama3_rope)
{
    assay_model_config c =
        config_read(llama, "{\"rope_scaling\":{" LLAMA3 ",\"original_max_position_embeddings\":64}}");
    cr_expect(c.rope_type == ASSAY_ROPE_LLAMA3 && c.rope_factor == 8.0 && c.rope_low_freq_factor == 1.0 &&
              c.rope_high_freq_factor == 4.0);
    cr_expect_eq(c.rope_original_max_position_embeddings, 64);
    /* absent: max_position_embeddings */
    c = config_read(llama, "{\"rope_scaling\":{" LLAMA3 "},\"max_position_embeddings\":512}");
    cr_expect_eq(c.rope_original_max_position_embeddings, 512);
    c = config_read(llama, "{\"rope_scaling\":{" LLAMA3 "},\"original_max_position_embeddings\":128}");
    cr_expect_eq(c.rope_original_max_position_embeddings, 128);
}

Test(core_config, rotary_dim_is_even)
{
    assay_model_config c = config_read(megatron, "{\"rotary_percent\":0.5}");
    cr_expect_eq(assay_config_rotary_dim(&c), 8);
    c.rotary_percent = 0.3; /* 4.8 -> 4 */
    cr_expect_eq(assay_config_rotary_dim(&c), 4);
    expect_ok(assay_config_check(&c, "c"));
    c.rotary_percent = 0.32; /* 5.12 -> 5 */
    expect_error(assay_config_check(&c, "c"), ASSAY_MISMATCH, "rotates 5 dimensions");
    c.rotary_percent = 0.0;
    expect_error(assay_config_check(&c, "c"), ASSAY_MISMATCH, "rotates 0 dimensions");
}

/* --- windows and experts ------------------------------------------------------------------------------------ */

Test(core_config, sliding_windows)
{
    static const struct {
        const char *base, *change;
        int64_t window[4];
    } rows[] = {
        {qwen2, "{\"sliding_window\":7,\"max_window_layers\":2}", {0, 0, 0, 0}},
        {qwen2, "{\"use_sliding_window\":true,\"sliding_window\":7,\"max_window_layers\":2}", {0, 0, 7, 7}},
        {qwen3, "{\"use_sliding_window\":true,\"max_window_layers\":3}", {0, 0, 0, 4096}},
        {qwen3, "{\"use_sliding_window\":true,\"sliding_window\":7}", {0, 0, 0, 0}},
        {qwen3,
         "{\"use_sliding_window\":true,\"sliding_window\":null,\"max_window_layers\":0}",
         {0, 0, 0, 0}},
        {qwen2,
         "{\"use_sliding_window\":true,\"sliding_window\":7,\"max_window_layers\":2,\"layer_types\":"
         "[\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"]}",
         {7, 0, 7, 0}},
        {qwen2,
         "{\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]}",
         {0, 0, 0, 0}},
        {qwen3_moe,
         "{\"use_sliding_window\":true,\"sliding_window\":9,\"max_window_layers\":2}",
         {9, 9, 9, 9}},
        {qwen3_moe, "{\"sliding_window\":9}", {0, 0, 0, 0}},
        {mixtral, "{\"sliding_window\":9}", {9, 9, 9, 9}},
        {mixtral, "{\"sliding_window\":null}", {0, 0, 0, 0}},
        {olmoe, "{\"sliding_window\":null}", {0, 0, 0, 0}},
        {seed_oss,
         "{\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]}",
         {0, 0, 0, 0}},
        {qwen2_moe, "{}", {0, 0, 0, 0}},
        {qwen2_moe, "{\"sliding_window\":0,\"use_sliding_window\":false}", {0, 0, 0, 0}},
        {qwen2_moe,
         "{\"use_sliding_window\":true,\"sliding_window\":7,\"max_window_layers\":2}",
         {7, 0, 0, 0}},
        {qwen2_moe, "{\"use_sliding_window\":true}", {4096, 0, 4096, 0}},
        {qwen2_moe,
         "{\"use_sliding_window\":true,\"sliding_window\":7,\"layer_types\":"
         "[\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\"]}",
         {0, 7, 0, 0}},
        {mistral, "{}", {4096, 4096, 4096, 4096}},
        {mistral, "{\"sliding_window\":9}", {9, 9, 9, 9}},
        {mistral, "{\"sliding_window\":null}", {0, 0, 0, 0}},
        {ministral, "{\"sliding_window\":9}", {9, 9, 9, 9}},
        {ministral, "{\"sliding_window\":null}", {0, 0, 0, 0}},
        {ministral, "{\"layer_types\":null}", {4096, 4096, 4096, 4096}},
        {ministral,
         "{\"sliding_window\":9,\"layer_types\":"
         "[\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\"]}",
         {0, 9, 9, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const assay_model_config c = config_read(rows[i].base, rows[i].change);
        for (int l = 0; l < 4; l++)
            cr_expect_eq(c.window[l], rows[i].window[l], "%s layer %d", rows[i].change, l);
    }
}

/* Asked for, but with a coefficient of 0: Hugging Face adds nothing, either; a dense class has no router. */
Test(core_config, router_logits_that_add_nothing_are_read)
{
    cr_expect_gt(config_read(qwen3_moe, "{\"output_router_logits\":true,\"router_aux_loss_coef\":0.0}")
                     .num_moe_experts,
                 0);
    cr_expect_gt(config_read(qwen3_moe, "{\"output_router_logits\":false,\"router_aux_loss_coef\":0.5}")
                     .num_moe_experts,
                 0);
}

Test(core_config, which_layers_are_experts)
{
    static const struct {
        const char *base, *change;
        bool moe[4];
    } rows[] = {
        {qwen3_moe, "{}", {true, true, true, true}},
        {qwen3_moe, "{\"decoder_sparse_step\":2}", {false, true, false, true}},
        {qwen3_moe, "{\"mlp_only_layers\":[1,3]}", {true, false, true, false}},
        {qwen3_moe, "{\"mlp_only_layers\":[1],\"decoder_sparse_step\":2}", {false, false, false, true}},
        {qwen3_moe, "{\"num_experts\":0}", {false, false, false, false}},
        {mixtral, "{}", {true, true, true, true}},
        {megatron, "{}", {true, true, true, true}},
        {megatron, "{\"layer_is_moe\":[false,true,true,false]}", {false, true, true, false}},
        {llama, "{\"num_hidden_layers\":4,\"num_experts\":4}", {false, false, false, false}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const assay_model_config c = config_read(rows[i].base, rows[i].change);
        for (int l = 0; l < 4; l++)
            cr_expect_eq(c.mlp[l] == ASSAY_MLP_MOE, rows[i].moe[l], "%s layer %d", rows[i].change, l);
    }
}

Test(core_config, routers)
{
    assay_model_config c = config_read(qwen3_moe, "{}");
    cr_expect(c.moe_router_pre_softmax && !c.norm_topk_prob && c.moe_ffn_hidden_size == 24);
    cr_expect_eq(c.moe_router_topk_scaling_factor, 1.0);
    c = config_read(qwen3_moe, "{\"norm_topk_prob\":true,\"num_experts_per_tok\":3}");
    cr_expect(c.norm_topk_prob && c.moe_router_topk == 3);
    c = config_read(qwen3_moe, "{\"-\":[\"num_experts\"],\"num_local_experts\":9}");
    cr_expect_eq(c.num_moe_experts, 9);
    c = config_read(mixtral,
                    "{\"norm_topk_prob\":false}"); /* not a field of the class: always renormalised */
    cr_expect(c.moe_router_pre_softmax && c.norm_topk_prob && c.moe_ffn_hidden_size == 56);
    c = config_read(megatron, "{}");
    cr_expect(!c.moe_router_pre_softmax && !c.norm_topk_prob && c.moe_router_topk == 2 &&
              c.moe_ffn_hidden_size == 56);
    c = config_read(megatron, "{\"moe_router_score_function\":\"sigmoid\"}");
    cr_expect(c.moe_router_score_function == ASSAY_SCORE_SIGMOID && c.norm_topk_prob);
    c = config_read(megatron, "{\"moe_router_score_function\":\"sigmoid\",\"moe_router_topk\":1}");
    cr_expect(!c.norm_topk_prob);
}

/* --- what is refused ---------------------------------------------------------------------------------------- */

Test(core_config, wrong_configs_are_refused_by_name)
{
    static const struct {
        const char *base, *change;
        assay_status st;
        const char *message;
    } rows[] = {
        /* architecture */
        {llama, "{\"model_type\":\"gpt2\"}", ASSAY_UNSUPPORTED, "config.json: unknown architecture 'gpt2'"},
        {llama, "{\"-\":[\"model_type\"]}", ASSAY_FORMAT, "config.json: model_type: missing"},
        {llama, "{\"model_type\":3}", ASSAY_FORMAT, "config.json: model_type: expected a string"},
        {llama, "{\"architectures\":[\"Qwen2ForCausalLM\"]}", ASSAY_MISMATCH,
         "architectures: expected LlamaForCausalLM for model_type 'llama', found 'Qwen2ForCausalLM'"},
        {llama, "{\"architectures\":\"LlamaForCausalLM\"}", ASSAY_FORMAT, "architectures: expected an array"},
        {llama, "{\"-\":[\"model_type\"],\"architectures\":[\"GPT2LMHeadModel\"]}", ASSAY_UNSUPPORTED,
         "unknown architecture 'GPT2LMHeadModel'"},
        /* what nobody here computes */
        {llama, "{\"hidden_act\":\"gelu\"}", ASSAY_UNSUPPORTED, "hidden_act: unknown activation 'gelu'"},
        {qwen2, "{\"attention_dropout\":1.0}", ASSAY_LIMIT,
         "attention_dropout: expected 0 or more and less than 1"},
        {qwen2, "{\"attention_dropout\":-0.1}", ASSAY_LIMIT, "attention_dropout: expected"},
        {qwen2, "{\"residual_dropout\":0.1}", ASSAY_UNSUPPORTED, "residual_dropout: qwen2 has none"},
        {mixtral, "{\"router_jitter_noise\":0.1}", ASSAY_UNSUPPORTED, "router_jitter_noise: only 0"},
        {llama, "{\"quantization_config\":{}}", ASSAY_FORMAT, "quantization_config: quant_method: missing"},
        {llama, "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"x\"}}",
         ASSAY_UNSUPPORTED, "quant_method: expected fp8, found compressed-tensors"},
        {llama, "{\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}}", ASSAY_UNSUPPORTED,
         "fmt: expected e4m3, found e5m2"},
        {llama, "{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}}",
         ASSAY_FORMAT, "weight_block_size: expected two numbers"},
        {llama, "{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,0]}}",
         ASSAY_FORMAT, "weight_block_size[1]: expected an integer from 1"},
        {llama, "{\"quantization_config\":{\"quant_method\":\"fp8\",\"expert_dtype\":\"fp4\"}}",
         ASSAY_UNSUPPORTED, "expert_dtype: expected fp8, found fp4"},
        {llama, "{\"quantization_config\":{\"quant_method\":\"fp8\",\"lm_head\":true}}", ASSAY_FORMAT,
         "lm_head"},
        /* sizes */
        {llama, "{\"-\":[\"hidden_size\"]}", ASSAY_FORMAT, "config.json: hidden_size: missing"},
        {llama, "{\"-\":[\"num_hidden_layers\"]}", ASSAY_FORMAT, "num_hidden_layers: missing"},
        {llama, "{\"-\":[\"num_attention_heads\"]}", ASSAY_FORMAT, "num_attention_heads: missing"},
        {llama, "{\"-\":[\"vocab_size\"]}", ASSAY_FORMAT, "vocab_size: missing"},
        {llama, "{\"-\":[\"intermediate_size\"]}", ASSAY_FORMAT, "intermediate_size: missing"},
        {qwen3_moe, "{\"-\":[\"moe_intermediate_size\"]}", ASSAY_FORMAT, "moe_intermediate_size: missing"},
        {qwen3_moe, "{\"-\":[\"num_experts\"]}", ASSAY_FORMAT, "num_local_experts (or num_experts): missing"},
        {llama, "{\"hidden_size\":0}", ASSAY_LIMIT, "hidden_size: expected 1 to 16777216, found 0"},
        {llama, "{\"hidden_size\":16777217}", ASSAY_LIMIT, "hidden_size: expected 1 to 16777216"},
        {llama, "{\"hidden_size\":64.0}", ASSAY_FORMAT, "hidden_size: expected an integer, found a real"},
        {llama, "{\"num_hidden_layers\":1025}", ASSAY_LIMIT, "num_hidden_layers: expected 1 to 1024"},
        {llama, "{\"vocab_size\":-1}", ASSAY_LIMIT, "vocab_size: expected 1 to"},
        {llama, "{\"num_attention_heads\":5}", ASSAY_MISMATCH,
         "head_dim is absent and hidden_size 64 is not a multiple of num_attention_heads 5"},
        {llama, "{\"num_key_value_heads\":3}", ASSAY_MISMATCH,
         "num_attention_heads 4 is not a multiple of num_key_value_heads 3"},
        {qwen2, "{\"-\":[\"num_key_value_heads\"]}", ASSAY_MISMATCH,
         "num_attention_heads 4 is not a multiple of num_key_value_heads 32"},
        {llama, "{\"num_key_value_heads\":0}", ASSAY_LIMIT, "num_key_value_heads: expected 1 to"},
        {llama, "{\"head_dim\":15}", ASSAY_MISMATCH,
         "head_dim 15: rotates as many dimensions, expected an even number"},
        {llama, "{\"head_dim\":16777216}", ASSAY_LIMIT, "num_attention_heads 4 times head_dim 16777216"},
        {llama, "{\"num_attention_heads\":1048576,\"head_dim\":2,\"num_hidden_layers\":2}", ASSAY_LIMIT,
         "2 layers of num_key_value_heads 1048576, at most 1048576"},
        {llama, "{\"max_position_embeddings\":0}", ASSAY_LIMIT, "max_position_embeddings: expected 1 to"},
        {llama, "{\"rms_norm_eps\":-1e-6}", ASSAY_LIMIT, "rms_norm_eps: expected 0 to 1"},
        {llama, "{\"rms_norm_eps\":\"1e-6\"}", ASSAY_FORMAT, "rms_norm_eps: expected a number"},
        {llama, "{\"initializer_range\":-1}", ASSAY_LIMIT, "initializer_range"},
        {llama, "{\"tie_word_embeddings\":1}", ASSAY_FORMAT, "tie_word_embeddings: expected true or false"},
        {llama, "{\"attention_bias\":\"yes\"}", ASSAY_FORMAT, "attention_bias: expected true or false"},
        /* rope */
        {llama, "{\"rope_scaling\":{\"type\":\"longrope\",\"factor\":2}}", ASSAY_UNSUPPORTED,
         "config.json: rope_scaling: rope_type: unknown type 'longrope'"},
        {llama, "{\"rope_parameters\":{\"rope_type\":\"dynamic\"}}", ASSAY_UNSUPPORTED,
         "config.json: rope_parameters: rope_type: unknown type 'dynamic'"},
        {llama, "{\"rope_scaling\":\"linear\"}", ASSAY_FORMAT, "rope_scaling: expected an object"},
        {llama, "{\"rope_scaling\":{\"type\":\"linear\"}}", ASSAY_FORMAT,
         "rope_scaling: factor: missing, rope type linear needs a number"},
        {llama, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", ASSAY_LIMIT,
         "config.json: rope_scaling: factor: expected"},
        {llama, "{\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"llama3\",\"factor\":2}}",
         ASSAY_MISMATCH, "rope_scaling: type is 'linear', but config.json: rope_scaling says 'llama3'"},
        {llama,
         "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
         "\"rope_parameters\":{\"rope_type\":\"default\"}}",
         ASSAY_MISMATCH, "rope_scaling: type is 'linear', but config.json: rope_parameters says 'default'"},
        {llama,
         "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
         "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":3}}",
         ASSAY_MISMATCH, "rope_scaling: factor is 2, but config.json: rope_parameters: factor is 3"},
        /* of two objects transformers takes rope_scaling alone, and a theta from it or from the top level */
        {llama,
         "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
         "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2,\"rope_theta\":500}}",
         ASSAY_MISMATCH,
         "rope_parameters: rope_theta: is not in rope_scaling, which transformers takes alone, with 10000"},
        {mixtral,
         "{\"rope_scaling\":{\"type\":\"default\"},"
         "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500}}",
         ASSAY_MISMATCH, "takes alone, with 1e+06 for this one"},
        {llama,
         "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2},\"rope_theta\":500,"
         "\"rope_parameters\":{\"rope_theta\":500}}",
         ASSAY_MISMATCH,
         "rope_scaling: rope_type: is not in rope_parameters, of which transformers takes nothing"},
        {llama, "{\"rope_scaling\":{\"factor\":2},\"rope_parameters\":{\"type\":\"linear\",\"factor\":2}}",
         ASSAY_MISMATCH,
         "rope_parameters: rope_type: is not in rope_scaling, which transformers takes alone, with "
         "'default'"},
        {llama,
         "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2},"
         "\"rope_parameters\":{\"type\":\"yarn\",\"factor\":2,\"beta_fast\":4}}",
         ASSAY_MISMATCH,
         "rope_parameters: beta_fast: is not in rope_scaling, which transformers takes alone, with its own "
         "default"},
        {llama,
         "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2},"
         "\"rope_parameters\":{\"type\":\"yarn\",\"factor\":2,\"attention_factor\":1.0}}",
         ASSAY_MISMATCH, "rope_parameters: attention_factor: is not in rope_scaling"},
        {llama,
         "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"mscale\":1.0,\"mscale_all_dim\":1.0},"
         "\"rope_parameters\":{\"type\":\"yarn\",\"factor\":2}}",
         ASSAY_MISMATCH, "rope_scaling: mscale: is not in rope_parameters"},
        {llama, "{\"is_causal\":false}", ASSAY_UNSUPPORTED, "is_causal: what is not true"},
        {qwen3_moe, "{\"is_causal\":null}", ASSAY_UNSUPPORTED, "is_causal: what is not true"},
        {mixtral, "{\"is_causal\":0}", ASSAY_UNSUPPORTED, "expected true or nothing"},
        {llama, "{\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":5e5}}", ASSAY_MISMATCH,
         "rope_parameters: rope_theta is 500000, but config.json: rope_theta is 10000"},
        {llama, "{\"rope_theta\":0}", ASSAY_LIMIT, "config.json: rope_theta: expected 1 to"},
        {llama, "{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e4}}}", ASSAY_UNSUPPORTED,
         "rope_parameters.full_attention: rotary parameters by layer type"},
        {llama, "{\"partial_rotary_factor\":0.5}", ASSAY_UNSUPPORTED,
         "partial_rotary_factor: llama rotates whole"},
        {llama, "{\"rope_scaling\":{" LLAMA3 ",\"original_max_position_embeddings\":64.5}}", ASSAY_FORMAT,
         "original_max_position_embeddings: expected an integer"},
        {llama,
         "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4}}",
         ASSAY_MISMATCH, "high_freq_factor 4 must be greater than low_freq_factor 4"},
        {llama, "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"high_freq_factor\":4}}", ASSAY_FORMAT,
         "low_freq_factor: missing, rope type llama3"},
        /* windows */
        {qwen2, "{\"layer_types\":[\"full_attention\"]}", ASSAY_MISMATCH,
         "layer_types: expected num_hidden_layers = 4 entries, found 1"},
        {qwen2, "{\"layer_types\":[1,2,3,4]}", ASSAY_FORMAT, "layer_types[0]: expected a string"},
        {qwen2, "{\"layer_types\":\"full\"}", ASSAY_FORMAT, "layer_types: expected an array"},
        {qwen2,
         "{\"layer_types\":[\"full_attention\",\"linear_attention\",\"full_attention\",\"full_attention\"]}",
         ASSAY_UNSUPPORTED, "layer_types[1]: expected full_attention or sliding_attention, found 'linear_"},
        {qwen2,
         "{\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"]}",
         ASSAY_MISMATCH, "layer_types[2] is sliding_attention, but use_sliding_window"},
        {mixtral, "{\"sliding_window\":0}", ASSAY_LIMIT, "sliding_window: expected 1 to"},
        {qwen3, "{\"max_window_layers\":-1}", ASSAY_LIMIT, "max_window_layers"},
        {mistral, "{\"sliding_window\":0}", ASSAY_LIMIT, "sliding_window: expected 1 to"},
        {mistral, "{\"layer_types\":[\"full_attention\"]}", ASSAY_MISMATCH,
         "layer_types[0]: mistral ignores it and computes sliding_attention, found 'full_attention'"},
        {mistral, "{\"attention_bias\":true}", ASSAY_UNSUPPORTED, "attention_bias: mistral has no such bias"},
        {ministral, "{\"attention_bias\":true}", ASSAY_UNSUPPORTED,
         "attention_bias: ministral has no such bias"},
        {ministral, "{\"use_sliding_window\":false}", ASSAY_UNSUPPORTED,
         "use_sliding_window: ministral does not read it"},
        {mistral, "{\"use_sliding_window\":false}", ASSAY_UNSUPPORTED,
         "use_sliding_window: mistral does not read it"},
        {ministral, "{\"sliding_window\":0}", ASSAY_LIMIT, "sliding_window: expected 1 to"},
        {ministral, "{\"layer_types\":[\"full_attention\"]}", ASSAY_MISMATCH,
         "layer_types: expected num_hidden_layers = 4 entries, found 1"},
        {ministral,
         "{\"sliding_window\":null,\"layer_types\":"
         "[\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\"]}",
         ASSAY_MISMATCH, "layer_types[1] is sliding_attention, but"},
        {qwen2_moe, "{\"num_key_value_heads\":null}", ASSAY_FORMAT,
         "num_key_value_heads: expected an integer or nothing, found null"},
        {qwen2_moe, "{\"head_dim\":null}", ASSAY_FORMAT,
         "head_dim: expected an integer or nothing, found null"},
        {qwen2_moe, "{\"num_local_experts\":16}", ASSAY_UNSUPPORTED,
         "num_local_experts: qwen2_moe reads num_experts only"},
        {qwen2_moe, "{\"attention_bias\":true}", ASSAY_UNSUPPORTED,
         "attention_bias: qwen2_moe has no such bias"},
        {qwen2_moe, "{\"use_sliding_window\":true,\"sliding_window\":0}", ASSAY_LIMIT,
         "sliding_window: expected 1 to"},
        {qwen2_moe, "{\"use_sliding_window\":true,\"sliding_window\":null}", ASSAY_MISMATCH,
         "sliding_window: null, but use_sliding_window"},
        {qwen2_moe, "{\"shared_expert_intermediate_size\":0}", ASSAY_LIMIT,
         "shared_expert_intermediate_size: expected 1 to"},
        {seed_oss, "{\"residual_dropout\":1.5}", ASSAY_LIMIT, "residual_dropout: expected"},
        {seed_oss, "{\"sliding_window\":7}", ASSAY_UNSUPPORTED, "sliding_window: seed_oss has no window"},
        {seed_oss, "{\"layer_types\":[\"sliding_attention\"]}", ASSAY_MISMATCH,
         "layer_types[0]: seed_oss ignores it and computes full_attention"},
        {olmoe, "{\"sliding_window\":7}", ASSAY_UNSUPPORTED, "sliding_window: olmoe has no window"},
        {olmoe, "{\"head_dim\":16}", ASSAY_MISMATCH,
         "the q/k norm spans hidden_size 64, but 8 heads of head_dim 16"},
        {olmoe, "{\"head_dim\":null}", ASSAY_FORMAT, "head_dim: expected an integer or nothing, found null"},
        {olmoe, "{\"clip_qkv\":0.0}", ASSAY_LIMIT, "clip_qkv: expected"},
        {olmoe, "{\"clip_qkv\":-1.0}", ASSAY_LIMIT, "clip_qkv: expected"},
        {olmoe, "{\"num_experts_per_tok\":17}", ASSAY_LIMIT, "num_experts_per_tok: expected 1 to 16"},
        {megatron, "{\"qk_layernorm_full_width\":true}", ASSAY_MISMATCH,
         "qk_layernorm_full_width without qk_layernorm"},
        /* experts */
        {qwen3_moe, "{\"num_local_experts\":8}", ASSAY_MISMATCH,
         "num_experts is 16, but num_local_experts is 8"},
        {qwen3_moe, "{\"num_experts\":4097}", ASSAY_LIMIT, "num_experts: expected 0 to 4096"},
        {mixtral, "{\"num_local_experts\":0}", ASSAY_LIMIT, "num_local_experts: expected 1 to 4096"},
        {mixtral, "{\"num_experts_per_tok\":5}", ASSAY_LIMIT,
         "num_experts_per_tok: expected 1 to 4, found 5"},
        {qwen3_moe, "{\"num_experts\":4}", ASSAY_LIMIT, "num_experts_per_tok: expected 1 to 4, found 8"},
        {qwen3_moe, "{\"output_router_logits\":true,\"router_aux_loss_coef\":0.001}", ASSAY_UNSUPPORTED,
         "output_router_logits: true adds Hugging Face's balancing loss with router_aux_loss_coef 0.001"},
        {qwen3_moe, "{\"output_router_logits\":true}", ASSAY_UNSUPPORTED,
         "true without router_aux_loss_coef adds Hugging Face's balancing loss"},
        {mixtral, "{\"output_router_logits\":true}", ASSAY_UNSUPPORTED, "output_router_logits"},
        {mixtral, "{\"output_router_logits\":1}", ASSAY_FORMAT, "output_router_logits: expected"},
        {qwen3_moe, "{\"decoder_sparse_step\":0}", ASSAY_LIMIT, "decoder_sparse_step: expected 1 to"},
        {qwen3_moe, "{\"mlp_only_layers\":[4]}", ASSAY_LIMIT, "mlp_only_layers[0]: expected 0 to 3, found 4"},
        {qwen3_moe, "{\"mlp_only_layers\":[\"1\"]}", ASSAY_FORMAT, "mlp_only_layers[0]: expected an integer"},
        {qwen3_moe, "{\"mlp_only_layers\":1}", ASSAY_FORMAT, "mlp_only_layers: expected an array"},
        {qwen3_moe, "{\"norm_topk_prob\":\"no\"}", ASSAY_FORMAT, "norm_topk_prob: expected true or false"},
        {mixtral, "{\"num_local_experts\":4096,\"num_hidden_layers\":33}", ASSAY_LIMIT,
         "33 layers of 4096 experts, at most 131072"},
        {mixtral, "{\"num_local_experts\":4096,\"hidden_size\":16777216,\"intermediate_size\":16777216}",
         ASSAY_LIMIT, "4096 experts of 16777216 x 16777216 are more than 281474976710656 elements"},
        /* megatron */
        {megatron, "{\"torch_dtype\":\"bfloat16\"}", ASSAY_FORMAT,
         "config.json: torch_dtype: unknown member"},
        {megatron, "{\"-\":[\"num_layers\"]}", ASSAY_FORMAT, "num_layers: missing"},
        {megatron, "{\"num_layers\":0}", ASSAY_LIMIT, "num_layers: expected 1 to 1024, found 0"},
        {megatron, "{\"num_attention_heads\":0}", ASSAY_MISMATCH, "kv_channels is absent"},
        {megatron, "{\"num_query_groups\":3}", ASSAY_MISMATCH, "is not a multiple of num_query_groups 3"},
        {megatron, "{\"rope_type\":\"longrope\"}", ASSAY_UNSUPPORTED, "rope_type: unknown type 'longrope'"},
        {megatron, "{\"rope_type\":\"linear\"}", ASSAY_LIMIT, "rope_factor: expected"},
        {megatron, "{\"moe_router_score_function\":\"sqrtsoftplus\"}", ASSAY_UNSUPPORTED,
         "moe_router_score_function: unknown function 'sqrtsoftplus'"},
        {megatron, "{\"moe_router_topk\":1}", ASSAY_MISMATCH, "moe_router_topk 1 with a softmax"},
        {megatron, "{\"moe_router_enable_expert_bias\":true}", ASSAY_MISMATCH,
         "needs moe_router_score_function"},
        {megatron, "{\"moe_shared_expert_gate\":true}", ASSAY_MISMATCH, "moe_shared_expert_gate without"},
        {megatron, "{\"moe_router_num_groups\":3,\"moe_router_group_topk\":1}", ASSAY_MISMATCH,
         "num_moe_experts 8 is not a multiple of moe_router_num_groups 3"},
        {megatron, "{\"moe_router_group_topk\":1}", ASSAY_MISMATCH, "without moe_router_num_groups"},
        {megatron, "{\"moe_router_num_groups\":4,\"moe_router_group_topk\":5}", ASSAY_LIMIT,
         "moe_router_group_topk: expected 1 to 4, found 5"},
        {megatron, "{\"moe_router_num_groups\":4,\"moe_router_group_topk\":1,\"moe_router_topk\":3}",
         ASSAY_MISMATCH, "moe_router_topk 3 is more than the 2 experts"},
        {megatron, "{\"moe_router_num_groups\":4,\"moe_router_group_topk\":3}", ASSAY_MISMATCH,
         "moe_router_topk 2 is less than moe_router_group_topk 3"},
        {megatron, "{\"moe_router_topk_scaling_factor\":0}", ASSAY_LIMIT, "moe_router_topk_scaling_factor"},
        {megatron, "{\"window\":[1,2,3]}", ASSAY_MISMATCH, "window: expected 4 entries"},
        {megatron, "{\"window\":[1,2,3,-4]}", ASSAY_LIMIT, "window of layer 3 is negative: -4"},
        {megatron, "{\"window\":[1,2,3,\"4\"]}", ASSAY_FORMAT, "window[3]: expected an integer"},
        {megatron, "{\"window\":4}", ASSAY_FORMAT, "window: expected an array"},
        {megatron, "{\"layer_is_moe\":[1,1,1,1]}", ASSAY_FORMAT, "layer_is_moe[0]: expected true or false"},
        {megatron, "{\"num_moe_experts\":0,\"layer_is_moe\":[true,true,true,true]}", ASSAY_MISMATCH,
         "layer 0 is a mixture-of-experts layer, but num_moe_experts is 0"},
        {megatron, "{\"num_moe_experts\":0,\"moe_shared_expert_intermediate_size\":8}", ASSAY_MISMATCH,
         "moe_shared_expert_intermediate_size 8 in a model without experts"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_model_config c;
        memset(&c, 0x5a, sizeof c);
        json_t *root = config_edited(rows[i].base, rows[i].change);
        expect_error(assay_config_from_json(root, "config.json", &c), rows[i].st, rows[i].message);
        cr_expect_eq(strncmp(assay_error_message(), "config.json: ", 13), 0, "%s", assay_error_message());
        cr_expect_eq(c.num_layers, 0x5a5a5a5a5a5a5a5a, "a refused config leaves the result alone");
        json_decref(root);
    }
    assay_model_config c;
    json_t *array = json_array();
    expect_error(assay_config_from_json(array, "config.json", &c), ASSAY_FORMAT, "expected an object");
    json_decref(array);
}

Test(core_config, not_a_number_is_refused)
{
    assay_model_config c = config_read(llama, "{}");
    c.layernorm_epsilon = (double)__builtin_nan("");
    expect_error(assay_config_check(&c, "c"), ASSAY_LIMIT, "c: rms_norm_eps: expected 0 to 1, found");
    c = config_read(llama, "{}");
    c.arch = (assay_arch)77;
    expect_error(assay_config_check(&c, "c"), ASSAY_UNSUPPORTED, "unknown architecture number 77");
    cr_expect_str_eq(assay_arch_name((assay_arch)77), "?");
}

/* --- files and writing back --------------------------------------------------------------------------------- */

/* All members compare equal after a round trip. */
static void check_round_trip(const assay_model_config *c, const char *name)
{
    json_t *first = NULL, *second = NULL;
    assay_model_config back;
    expect_ok(assay_config_to_json(c, &first));
    cr_assert_not_null(first, "%s", name);
    expect_ok(assay_config_from_json(first, name, &back));
    cr_expect_eq(memcmp(c, &back, sizeof back), 0, "%s reads back differently", name);
    expect_ok(assay_config_to_json(&back, &second));
    cr_expect(json_equal(first, second), "%s", name);
    json_decref(first);
    json_decref(second);
}

Test(core_config, configs_read_back_to_equal_structs)
{
    static const struct {
        const char *base, *change;
    } rows[] = {
        {llama,
         "{\"attention_bias\":true,\"mlp_bias\":true,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true}"},
        {llama, "{\"rope_scaling\":{" LLAMA3 ",\"original_max_position_embeddings\":64}}"},
        {llama, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5},\"rope_theta\":123.456}"},
        {qwen2, "{\"use_sliding_window\":true,\"sliding_window\":7,\"max_window_layers\":2}"},
        {qwen2, "{\"use_sliding_window\":true,\"sliding_window\":7,\"layer_types\":[\"sliding_attention\","
                "\"full_attention\",\"sliding_attention\",\"full_attention\"]}"},
        {qwen3, "{\"attention_bias\":true,\"head_dim\":20}"},
        {qwen3_moe, "{\"mlp_only_layers\":[1],\"decoder_sparse_step\":2,\"norm_topk_prob\":true}"},
        {qwen3_moe, "{\"num_experts\":0}"},
        {qwen3_moe, "{\"use_sliding_window\":true,\"sliding_window\":9}"},
        {mixtral, "{\"sliding_window\":9}"},
        {olmoe, "{\"clip_qkv\":1.5}"},
        {olmoe, "{\"attention_bias\":true,\"norm_topk_prob\":true}"},
        {seed_oss, "{\"attention_bias\":false,\"attention_out_bias\":true,\"mlp_bias\":true}"},
        {qwen2_moe, "{}"},
        {qwen2_moe, "{\"use_sliding_window\":true,\"sliding_window\":7,\"qkv_bias\":false}"},
        {qwen2_moe, "{\"num_experts\":0}"},
        {qwen2_moe, "{\"mlp_only_layers\":[1],\"norm_topk_prob\":true}"},
        {mistral, "{\"sliding_window\":9}"},
        {mistral, "{\"sliding_window\":null}"},
        {ministral, "{\"sliding_window\":null}"},
        {ministral, "{\"sliding_window\":9,\"layer_types\":[\"sliding_attention\",\"full_attention\","
                    "\"sliding_attention\",\"full_attention\"]}"},
        {megatron,
         "{\"window\":[1,0,3,4],\"layer_is_moe\":[true,false,true,false],\"rotary_percent\":0.5,"
         "\"moe_router_score_function\":\"sigmoid\",\"moe_router_enable_expert_bias\":true,"
         "\"moe_router_num_groups\":4,\"moe_router_group_topk\":2,\"moe_shared_expert_intermediate_size\":8,"
         "\"moe_shared_expert_gate\":true,\"moe_router_topk_scaling_factor\":2.5,\"rope_type\":\"llama3\","
         "\"rope_factor\":8,\"rope_low_freq_factor\":1,\"rope_high_freq_factor\":4}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const assay_model_config c = config_read(rows[i].base, rows[i].change);
        check_round_trip(&c, rows[i].change);
    }
}

Test(core_config, what_a_class_cannot_say_is_not_written)
{
    json_t *root = NULL;
    assay_model_config c = config_read(llama, "{}");
    c.window[1] = 5;
    expect_error(assay_config_to_json(&c, &root), ASSAY_INVALID_ARGUMENT,
                 "window: a config.json of llama cannot");
    c = config_read(llama, "{}");
    c.qk_layernorm = true;
    expect_error(assay_config_to_json(&c, &root), ASSAY_INVALID_ARGUMENT,
                 "qk_layernorm: a config.json of llama");
    c = config_read(qwen3_moe, "{}");
    c.moe_router_pre_softmax = false;
    expect_error(assay_config_to_json(&c, &root), ASSAY_INVALID_ARGUMENT, "moe_router_pre_softmax");
    c = config_read(mixtral, "{}");
    c.num_layers = 0;
    expect_error(assay_config_to_json(&c, &root), ASSAY_LIMIT, "num_hidden_layers");
    cr_expect_null(root);
}

Test(core_config, golden_models_load_and_round_trip)
{
    static const struct {
        const char *name;
        int64_t layers, heads, groups, head_dim, vocab;
        double theta;
    } rows[] = {
        {"llama", 2, 4, 2, 16, 131, 1e4},
        {"llama_bias", 3, 5, 1, 8, 97, 500.0},
        {"qwen2", 4, 4, 2, 8, 130, 1e6},
        {"qwen3", 3, 3, 1, 16, 97, 1e4},
        {"qwen3_moe", 4, 4, 2, 16, 61, 1e6},
        {"qwen3_moe_sparse2", 4, 3, 3, 8, 97, 1e4},
        {"mixtral", 2, 6, 3, 8, 97, 1e4},
        {"olmoe_noclip", 2, 5, 5, 8, 71, 1e4},
        {"olmoe", 2, 4, 2, 8, 67, 1e4},
        {"seed_oss", 3, 6, 3, 8, 79, 1e7},
        {"qwen2_moe_window", 4, 3, 1, 8, 61, 1e4},
        {"qwen2_moe", 4, 4, 2, 8, 59, 1e6},
        {"mistral", 2, 6, 2, 8, 83, 1e4},
        {"ministral", 4, 4, 2, 12, 87, 2e4},
        {"deepseek_v3", 3, 3, 3, 10, 73, 1e4},
        {"deepseek_v3_q", 2, 4, 4, 16, 79, 5e4},
        {"deepseek_v3_yarn", 2, 2, 2, 14, 67, 100.0},
        {"llama_yarn", 2, 4, 2, 16, 89, 500.0},
        {"deepseek_v2", 3, 3, 3, 10, 71, 1e4},
        {"deepseek_v2_lite", 2, 2, 2, 14, 67, 100.0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char path[256];
        assay_model_config c;
        snprintf(path, sizeof path, "%s/golden/models/%s", ASSAY_SOURCE_DIR, rows[i].name);
        expect_ok(assay_config_load(path, &c));
        cr_expect_eq(c.num_layers, rows[i].layers, "%s", rows[i].name);
        cr_expect_eq(c.num_attention_heads, rows[i].heads, "%s", rows[i].name);
        cr_expect_eq(c.num_query_groups, rows[i].groups, "%s", rows[i].name);
        cr_expect_eq(c.kv_channels, rows[i].head_dim, "%s", rows[i].name);
        cr_expect_eq(c.vocab_size, rows[i].vocab, "%s", rows[i].name);
        cr_expect_eq(c.rotary_base, rows[i].theta, "%s", rows[i].name);
        check_round_trip(&c, rows[i].name);
    }
}

Test(core_config, load_names_the_file)
{
    char root[64], path[128];
    assay_model_config c;
    make_scratch(root);
    snprintf(path, sizeof path, "%s/config.json", root);
    expect_error(assay_config_load(root, &c), ASSAY_NOT_FOUND, "config.json: cannot open");
    expect_ok(assay_write_file(path, "{\"model_type\":\n]", 16));
    expect_error(assay_config_load(root, &c), ASSAY_FORMAT, "/config.json:2:1: ");
    expect_ok(assay_write_file(path, "{}", 2));
    expect_error(assay_config_load(root, &c), ASSAY_FORMAT, "/config.json: model_type: missing");
    expect_error(assay_config_load(path, &c), ASSAY_INVALID_ARGUMENT, "expected a model folder");
    snprintf(path, sizeof path, "%s/none", root);
    expect_error(assay_config_load(path, &c), ASSAY_NOT_FOUND, "none: model folder");
    drop_scratch(root);
}

/* The message of an unknown architecture and the CHANGELOG name the same ones. */
Test(core_config, the_changelog_names_every_architecture)
{
    char *text = NULL;
    uint64_t n = 0;
    cr_assert_eq(assay_read_file(ASSAY_SOURCE_DIR "/CHANGELOG.md", 1 << 22, &text, &n), ASSAY_OK);
    char *line = strstr(text, "Hugging Face configs of ");
    cr_assert_not_null(line);
    *strchr(line, '\n') = '\0';
    for (int i = 0; i < ASSAY_ARCH_COUNT; i++)
        cr_expect(strstr(line, assay_hf_class_of((assay_arch)i)->model_type), "%s",
                  assay_hf_class_of((assay_arch)i)->model_type);
    free(text);
}
