/* YaRN in a config.json: Hugging Face's words and Megatron-LM's, what is refused, what is written.  What the members
 * make of scores, cos and sin: tests/ref/test_rope_yarn.c. */
#include "core/model/config_internal.h"
#include "tests/support/config.h"
#include "tests/support/core_files.h"

#include <math.h>

TestSuite(config_yarn);

static const char llama[] = "{\"model_type\":\"llama\",\"hidden_size\":32,\"num_hidden_layers\":2,"
                            "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":31,"
                            "\"intermediate_size\":14,\"max_position_embeddings\":256}";
static const char deepseek[] =
    "{\"model_type\":\"deepseek_v3\",\"hidden_size\":20,\"num_hidden_layers\":2,\"num_attention_heads\":3,"
    "\"num_key_value_heads\":3,\"vocab_size\":31,\"intermediate_size\":14,\"q_lora_rank\":12,"
    "\"kv_lora_rank\":8,\"qk_nope_head_dim\":6,\"qk_rope_head_dim\":4,\"v_head_dim\":10,"
    "\"n_routed_experts\":8,\"num_experts_per_tok\":4,\"moe_intermediate_size\":7,\"n_group\":4,"
    "\"topk_group\":2,\"max_position_embeddings\":163840}";
static const char plain[] =
    "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":32,\"ffn_hidden_size\":14,"
    "\"num_attention_heads\":4,\"vocab_size\":31,\"max_position_embeddings\":256}";
static const char mla[] =
    "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":20,\"ffn_hidden_size\":14,"
    "\"num_attention_heads\":3,\"vocab_size\":31,\"multi_latent_attention\":true,\"q_lora_rank\":12,"
    "\"kv_lora_rank\":8,\"qk_head_dim\":6,\"qk_pos_emb_head_dim\":4,\"v_head_dim\":10}";
/* Megatron-LM's form, without rope_type: its default with MLA is yarn. */
#define FORM                                                                                                 \
    "\"qk_layernorm\":true,\"normalization\":\"RMSNorm\",\"gated_linear_unit\":true,"                        \
    "\"activation_func\":\"silu\",\"position_embedding_type\":\"rope\",\"hidden_dropout\":0.0,"              \
    "\"attention_dropout\":0.0,\"add_bias_linear\":false,\"untie_embeddings_and_output_weights\":true"
/* DeepSeek-V3's own words. */
#define HUB                                                                                                  \
    "\"rope_scaling\":{\"beta_fast\":32,\"beta_slow\":1,\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":"    \
    "1.0,\"original_max_position_embeddings\":4096,\"type\":\"yarn\"}"

/* --- Hugging Face ------------------------------------------------------------------------------------------- */

/* Both spellings of everything, and the defaults of transformers. */
Test(config_yarn, words_of_hugging_face)
{
    static const char *const said[] = {
        "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":64,"
        "\"beta_fast\":16.5,\"beta_slow\":2,\"truncate\":false,\"attention_factor\":1.5}}",
        "{\"rope_theta\":1e4,\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e4,\"factor\":4.0,"
        "\"original_max_position_embeddings\":64,\"beta_fast\":16.5,\"beta_slow\":2.0,\"truncate\":false,"
        "\"attention_factor\":1.5,\"mscale\":0.5,\"mscale_all_dim\":0.25}}",
    };
    for (size_t i = 0; i < 2; i++) {
        const assay_model_config c = config_read(llama, said[i]);
        cr_expect(c.rope_type == ASSAY_ROPE_YARN && c.rope_factor == 4.0 && c.rope_beta_fast == 16.5 &&
                      c.rope_beta_slow == 2.0 && !c.rope_truncate && c.rope_attention_factor == 1.5 &&
                      c.rope_original_max_position_embeddings == 64,
                  "%s", said[i]);
        cr_expect(c.rope_mscale == 0.0 && c.rope_mscale_all_dim == 0.0, "attention_factor goes before them");
    }
    assay_model_config c = config_read(llama, "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
                                              "\"beta_fast\":0,\"beta_slow\":null}}");
    cr_expect(c.rope_beta_fast == 32.0 && c.rope_beta_slow == 1.0 && c.rope_truncate);
    cr_expect_eq(c.rope_original_max_position_embeddings, 256);
    cr_expect(c.rope_attention_factor == 0.0 && c.rope_mscale == 1.0 && c.rope_mscale_all_dim == 0.0);
    c = config_read(
        llama,
        "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":null,\"original_max_position_embeddings\":32}}");
    cr_expect_eq(c.rope_factor, 8.0, "of the two lengths");
    c = config_read(deepseek, "{" HUB "}");
    cr_expect(c.rope_type == ASSAY_ROPE_YARN && c.rope_factor == 40.0 && c.rope_attention_factor == 0.0 &&
              c.rope_mscale == 1.0 && c.rope_mscale_all_dim == 1.0 &&
              c.rope_original_max_position_embeddings == 4096);
}

/* --- Megatron-LM -------------------------------------------------------------------------------------------- */

Test(config_yarn, words_of_megatron)
{
    assay_model_config c = config_read(mla, "{" FORM ",\"rotary_scaling_factor\":40}"); /* its defaults */
    cr_expect(c.rope_type == ASSAY_ROPE_YARN && c.rope_factor == 40.0 && c.rope_beta_fast == 32.0 &&
              c.rope_beta_slow == 1.0 && c.rope_truncate && c.rope_mscale == 1.0 &&
              c.rope_mscale_all_dim == 0.0 && c.rope_attention_factor == 0.0 &&
              c.rope_original_max_position_embeddings == 4096);
    c = config_read(mla, "{" FORM ",\"rope_type\":\"yarn\",\"rotary_scaling_factor\":4,\"mscale\":0.7,"
                         "\"mscale_all_dim\":0.9,\"beta_fast\":8,\"beta_slow\":2,"
                         "\"original_max_position_embeddings\":64}");
    cr_expect(c.rope_factor == 4.0 && c.rope_beta_fast == 8.0 && c.rope_beta_slow == 2.0 &&
              c.rope_mscale == 0.7 && c.rope_mscale_all_dim == 0.9 &&
              c.rope_original_max_position_embeddings == 64);
    /* the scale of scores asks for no yarn */
    c = config_read(mla,
                    "{" FORM ",\"rope_type\":\"rope\",\"mscale_all_dim\":0.9,\"rotary_scaling_factor\":40}");
    cr_expect(c.rope_type == ASSAY_ROPE_DEFAULT && c.rope_factor == 40.0 && c.rope_mscale_all_dim == 0.9 &&
              c.rope_mscale == 0.0);
    c = config_read(mla, "{" FORM ",\"rope_type\":\"rope\",\"rotary_scaling_factor\":4}");
    cr_expect(c.rope_type == ASSAY_ROPE_DEFAULT && c.rope_factor == 0.0, "says nothing");
}

Test(config_yarn, own_words)
{
    assay_model_config c = config_read(plain, "{\"rope_type\":\"yarn\",\"rope_factor\":4}");
    cr_expect(c.rope_beta_fast == 32.0 && c.rope_beta_slow == 1.0 && c.rope_truncate &&
              c.rope_original_max_position_embeddings == 256 && c.rope_mscale == 1.0);
    c = config_read(plain, "{\"rope_type\":\"yarn\",\"rope_factor\":4,\"rope_attention_factor\":2}");
    cr_expect(c.rope_mscale == 0.0 && c.rope_attention_factor == 2.0);
    c = config_read(mla, "{\"rope_type\":\"yarn\",\"rope_factor\":4,\"rope_mscale_all_dim\":0.9,"
                         "\"rope_attention_factor\":1.25,\"rope_original_max_position_embeddings\":64}");
    cr_expect(c.rope_attention_factor == 1.25 && c.rope_mscale_all_dim == 0.9 &&
              c.rope_original_max_position_embeddings == 64);
    c = config_read(mla, "{" FORM ",\"rope_factor\":8,\"rope_original_max_position_embeddings\":128}");
    cr_expect(c.rope_factor == 8.0 && c.rope_original_max_position_embeddings == 128,
              "go before Megatron-LM's defaults");
}

/* --- what is refused ---------------------------------------------------------------------------------------- */

#define YARN(words) "{\"rope_scaling\":{\"type\":\"yarn\"," words "}}"

Test(config_yarn, wrong_files_are_refused_by_name)
{
    static const struct {
        const char *base, *change;
        assay_status st;
        const char *message;
    } rows[] = {
        {llama, "{\"rope_scaling\":{\"type\":\"yarn\"}}", ASSAY_FORMAT,
         "rope_scaling: factor: missing, rope type yarn needs a number"},
        {deepseek, YARN("\"factor\":null"), ASSAY_FORMAT, "factor: missing, rope type yarn needs a number"},
        {llama, YARN("\"factor\":0"), ASSAY_LIMIT, "rope_scaling: factor: expected"},
        {llama, YARN("\"factor\":4,\"beta_fast\":-1"), ASSAY_LIMIT, "beta_fast: expected"},
        {llama, YARN("\"factor\":4,\"beta_fast\":\"32\""), ASSAY_FORMAT, "beta_fast: expected a number"},
        {llama, YARN("\"factor\":4,\"beta_fast\":2,\"beta_slow\":3"), ASSAY_MISMATCH,
         "beta_fast 2 is less than beta_slow 3"},
        {llama, YARN("\"factor\":4,\"truncate\":null"), ASSAY_FORMAT, "truncate: expected true or false"},
        {llama, YARN("\"factor\":4,\"mscale\":-0.5"), ASSAY_LIMIT, "mscale: expected"},
        {llama, YARN("\"factor\":4,\"mscale_all_dim\":1e4"), ASSAY_LIMIT, "mscale_all_dim: expected"},
        {llama, YARN("\"factor\":4,\"attention_factor\":0"), ASSAY_LIMIT, "attention_factor: expected"},
        {llama, YARN("\"factor\":4,\"original_max_position_embeddings\":0"), ASSAY_LIMIT,
         "original_max_position_embeddings: expected"},
        {llama, "{\"rope_theta\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}", ASSAY_LIMIT,
         "rope_theta: yarn divides by its logarithm"},
        {llama,
         "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"truncate\":false},\"rope_parameters\":"
         "{\"rope_type\":\"yarn\",\"factor\":4,\"truncate\":true}}",
         ASSAY_MISMATCH, "rope_scaling: truncate and that of config.json: rope_parameters contradict"},
        {llama,
         "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"mscale\":1},\"rope_parameters\":"
         "{\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":2}}",
         ASSAY_MISMATCH, "mscale is 1, but config.json: rope_parameters: mscale is 2"},
        {llama, "{\"rope_scaling\":{\"type\":\"longrope\",\"factor\":4}}", ASSAY_UNSUPPORTED,
         "rope_type: unknown type 'longrope', expected default, linear, llama3 or yarn"},
        {plain, "{\"rope_type\":\"yarn\"}", ASSAY_LIMIT, "rope_factor: expected"},
        {plain, "{\"rope_type\":\"yarn\",\"rope_factor\":4,\"rope_beta_slow\":0}", ASSAY_LIMIT,
         "rope_beta_slow: expected"},
        {plain, "{\"rope_type\":\"yarn\",\"rope_factor\":4,\"rope_attention_factor\":1e-9}", ASSAY_LIMIT,
         "rope_attention_factor: expected"},
        {plain, "{\"rope_type\":\"yarn\",\"rope_factor\":4,\"rope_attention_factor\":1,\"rope_mscale\":1}",
         ASSAY_MISMATCH, "rope_attention_factor and rope_mscale: expected one of them"},
        {deepseek, YARN("\"factor\":4,\"mscale_all_dim\":0.9"), ASSAY_UNSUPPORTED,
         "rope_scaling: mscale_all_dim without mscale"},
        {plain, "{\"rope_type\":\"linear\",\"rope_factor\":4,\"rope_beta_fast\":32}", ASSAY_MISMATCH,
         "rope_beta_fast 32 with rope_type linear, a member of yarn"},
        {plain, "{\"rope_truncate\":true}", ASSAY_MISMATCH, "rope_truncate 1 with rope_type default"},
        {plain, "{\"rope_attention_factor\":1}", ASSAY_MISMATCH, "rope_attention_factor 1 with"},
        {plain, "{\"rope_mscale_all_dim\":0.9}", ASSAY_MISMATCH,
         "rope_mscale_all_dim 0.9: a member of yarn and of multi-latent attention"},
        {plain, "{\"rotary_scaling_factor\":40}", ASSAY_UNSUPPORTED,
         "rotary_scaling_factor: a word of multi-latent attention"},
        {mla, "{\"rope_mscale_all_dim\":0.9}", ASSAY_LIMIT, "rope_factor: expected"},
        {mla, "{" FORM "}", ASSAY_FORMAT,
         "rotary_scaling_factor: missing, expected a number (the default of MLATransformerConfig is 40, that "
         "of "
         "Megatron-LM's --rotary-scaling-factor, which it hands over, 1.0)"},
        {mla, "{" FORM ",\"rope_type\":\"rope\",\"mscale_all_dim\":0.9}", ASSAY_FORMAT,
         "rotary_scaling_factor: missing"},
        {mla, "{" FORM ",\"rope_factor\":8,\"rotary_scaling_factor\":8}", ASSAY_MISMATCH,
         "rotary_scaling_factor and rope_factor: expected one of them"},
        {mla, "{" FORM ",\"rotary_scaling_factor\":40,\"mscale\":1,\"rope_attention_factor\":8}",
         ASSAY_MISMATCH, "mscale and rope_attention_factor: expected one of them"},
        {mla,
         "{" FORM ",\"rotary_scaling_factor\":40,\"original_max_position_embeddings\":8,\"rope_original_max_"
         "position_embeddings\":8}",
         ASSAY_MISMATCH, "rope_original_max_position_embeddings: expected one of them"},
        {mla, "{" FORM ",\"rotary_scaling_factor\":40,\"original_max_position_embeddings\":4096.5}",
         ASSAY_FORMAT, "original_max_position_embeddings: expected an integer"},
        {mla, "{" FORM ",\"mscale_all_dim\":-1}", ASSAY_LIMIT, "mscale_all_dim: expected"},
        {mla, "{" FORM ",\"rotary_scaling_factor\":40,\"beta_fast\":2,\"rope_beta_slow\":3}", ASSAY_MISMATCH,
         "config.json: beta_fast 2 is less than rope_beta_slow 3"},
        {mla, "{" FORM ",\"rotary_scaling_factor\":40,\"beta_slow\":33}", ASSAY_MISMATCH,
         "config.json: beta_fast 32 is less than beta_slow 33"},
        {llama, YARN("\"factor\":4,\"attention_factor\":0"), ASSAY_LIMIT,
         "attention_factor: expected 1e-06 to 1e+06, found 0"},
        {mla, "{" FORM ",\"rope_type\":\"dynamic\"}", ASSAY_UNSUPPORTED, "rope_type: unknown type 'dynamic'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_model_config c;
        json_t *root = config_edited(rows[i].base, rows[i].change);
        TEST_FAILS(assay_config_from_json(root, "config.json", &c), rows[i].st, rows[i].message);
        json_decref(root);
    }
}

Test(config_yarn, numbers_that_are_none)
{
    for (int i = 0; i < 4; i++) {
        assay_model_config c = config_read(plain, "{\"rope_type\":\"yarn\",\"rope_factor\":4}");
        double *member[] = {&c.rope_beta_fast, &c.rope_beta_slow, &c.rope_attention_factor, &c.rope_mscale};
        *member[i] = (double)NAN;
        TEST_FAILS(assay_config_check(&c, "c"), ASSAY_LIMIT, "found nan");
    }
    assay_model_config c = config_read(plain, "{}");
    c.rope_beta_fast = (double)NAN;
    TEST_FAILS(assay_config_check(&c, "c"), ASSAY_MISMATCH, "rope_beta_fast");
    c = config_read(mla, "{}");
    c.rope_mscale_all_dim = (double)NAN;
    TEST_FAILS(assay_config_check(&c, "c"), ASSAY_LIMIT, "rope_mscale_all_dim");
}

/* --- writing back ------------------------------------------------------------------------------------------- */

static json_t *written(const char *base, const char *change)
{
    json_t *root = NULL;
    const assay_model_config c = config_read(base, change);
    assay_model_config back;
    memset(&back, 0, sizeof back);
    TEST_OK(assay_config_to_json(&c, &root));
    TEST_OK(assay_config_from_json(root, "written", &back));
    cr_expect_eq(memcmp(&c, &back, sizeof c), 0, "%s", change);
    return root;
}

Test(config_yarn, configs_read_back_to_equal_structs)
{
    static const struct {
        const char *base, *change;
        const char *absent, *present; /* members of rope_scaling */
    } rows[] = {
        {llama, YARN("\"factor\":4"), "attention_factor", "beta_fast"},
        {llama, YARN("\"factor\":4"), "truncate", "original_max_position_embeddings"},
        {llama, YARN("\"factor\":4,\"truncate\":false,\"attention_factor\":1.75"), "mscale", "truncate"},
        {llama, YARN("\"factor\":4,\"mscale\":0.7,\"mscale_all_dim\":0.9"), "attention_factor", "mscale"},
        {llama, YARN("\"factor\":4,\"mscale\":0.7"), "mscale", "factor"},
        {llama, YARN("\"factor\":4,\"mscale_all_dim\":0.7"), "mscale_all_dim", "factor"},
        {deepseek, "{" HUB "}", "attention_factor", "mscale"},
        {deepseek, YARN("\"factor\":4,\"mscale\":0.7,\"mscale_all_dim\":0.9"), "truncate", "mscale_all_dim"},
        {deepseek, YARN("\"factor\":4,\"mscale_all_dim\":0.9,\"attention_factor\":1e-3"), "mscale",
         "attention_factor"},
        {deepseek, YARN("\"factor\":4,\"beta_fast\":7.25,\"beta_slow\":0.3"), "mscale_all_dim", "beta_slow"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *root = written(rows[i].base, rows[i].change);
        const json_t *rope = json_object_get(root, "rope_scaling");
        cr_expect_null(json_object_get(rope, rows[i].absent), "%s: %s", rows[i].change, rows[i].absent);
        cr_expect_not_null(json_object_get(rope, rows[i].present), "%s: %s", rows[i].change, rows[i].present);
        cr_expect(json_equal(rope, json_object_get(root, "rope_parameters")));
        json_decref(root);
    }
    json_decref(written(llama, YARN("\"factor\":4,\"mscale\":0.7,\"mscale_all_dim\":0.9,"
                                    "\"attention_factor\":2")));
    json_decref(written(plain, "{\"rope_type\":\"yarn\",\"rope_factor\":4,\"rope_truncate\":false}"));
    json_decref(written(
        mla, "{\"rope_type\":\"yarn\",\"rotary_scaling_factor\":4,\"mscale\":0.7,\"mscale_all_dim\":0.9}"));
    json_decref(written(mla, "{\"rope_type\":\"rope\",\"rotary_scaling_factor\":4,\"mscale_all_dim\":0.9}"));
    /* Others keep the file that they had. */
    json_t *root = written(plain, "{}");
    cr_expect(json_object_get(root, "rope_beta_fast") == NULL &&
              json_object_get(root, "rope_truncate") == NULL &&
              json_object_get(root, "rope_mscale_all_dim") == NULL);
    json_decref(root);
}

/* Megatron-LM's factor on scores without yarn, and one mscale without the other, are beyond Hugging Face's class. */
Test(config_yarn, what_a_class_cannot_say_is_not_written)
{
    json_t *root = NULL;
    assay_model_config c = config_read(deepseek, "{}");
    c.rope_mscale_all_dim = 0.9;
    c.rope_factor = 40.0;
    TEST_FAILS(assay_config_to_json(&c, &root), ASSAY_INVALID_ARGUMENT, "rope_factor");
    c = config_read(llama, YARN("\"factor\":4"));
    c.rope_mscale = 0.7;
    TEST_FAILS(assay_config_to_json(&c, &root), ASSAY_INVALID_ARGUMENT, "rope_mscale");
    c.rope_mscale = 0.0;
    c.rope_mscale_all_dim = 0.7;
    TEST_FAILS(assay_config_to_json(&c, &root), ASSAY_INVALID_ARGUMENT, "rope_mscale");
}
