/* pad_token_id: the padding_idx of Hugging Face's embeddings.  Source: transformers 5.24, configuration_*.py and modeling_*.py of the
 * classes; torch's nn.Embedding. */
#include "core/files/paddle_internal.h"
#include "core/model/config_internal.h"
#include "tests/support/config.h"
#include "tests/support/core_files.h"

TestSuite(config_padding);

#define SIZES                                                                                                \
    "\"num_key_value_heads\":2,\"hidden_size\":32,\"num_hidden_layers\":2,\"num_attention_heads\":4,"        \
    "\"vocab_size\":31,\"intermediate_size\":14"
static const char llama[] = "{\"model_type\":\"llama\"," SIZES "}";
static const char seed_oss[] =
    "{\"model_type\":\"seed_oss\",\"head_dim\":8,\"attention_dropout\":0.0,\"residual_dropout\":0.0," SIZES
    "}";

/* Every class has a word of its own for it, and two have a default. */
Test(config_padding, defaults_of_the_classes)
{
    static const char *const none[] = {"llama", "qwen2", "qwen3", "mistral", "ministral"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        char change[64];
        snprintf(change, sizeof change, "{\"model_type\":\"%s\"}", none[i]);
        cr_expect_eq(config_read(llama, change).pad_token_id, -1, "%s", none[i]);
    }
    for (int i = 0; i < ASSAY_ARCH_COUNT; i++) {
        const assay_hf_class *class = assay_hf_class_of((assay_arch)i);
        const bool has = i == ASSAY_ARCH_SEED_OSS || i == ASSAY_ARCH_OLMOE;
        cr_expect(class->has_pad_token_id == has && class->pad_token_id == (has ? 1 : 0), "%s",
                  class->model_type);
    }
    cr_expect_eq(config_read(seed_oss, "{}").pad_token_id, 1);
    cr_expect_eq(config_read(seed_oss, "{\"pad_token_id\":null}").pad_token_id, -1);
    cr_expect_eq(config_read(seed_oss, "{\"pad_token_id\":0}").pad_token_id, 0);
}

Test(config_padding, ids_are_those_of_torch)
{
    cr_expect_eq(config_read(llama, "{\"pad_token_id\":null}").pad_token_id, -1);
    cr_expect_eq(config_read(llama, "{\"pad_token_id\":0}").pad_token_id, 0);
    cr_expect_eq(config_read(llama, "{\"pad_token_id\":30}").pad_token_id, 30);
    cr_expect_eq(config_read(llama, "{\"pad_token_id\":-1}").pad_token_id, 30);
    cr_expect_eq(config_read(llama, "{\"pad_token_id\":-31}").pad_token_id, 0);
    static const struct {
        const char *change, *word;
        assay_status status;
    } rows[] = {
        {"{\"pad_token_id\":31}",
         "pad_token_id: the embedding's padding_idx, expected null or -31 to 30, found 31", ASSAY_LIMIT},
        {"{\"pad_token_id\":-32}", "found -32", ASSAY_LIMIT},
        {"{\"pad_token_id\":\"2\"}", "pad_token_id: expected an integer", ASSAY_FORMAT},
        {"{\"pad_token_id\":2.0}", "pad_token_id: expected an integer", ASSAY_FORMAT},
        {"{\"pad_token_id\":true}", "pad_token_id: expected an integer", ASSAY_FORMAT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_model_config c;
        json_t *root = config_edited(llama, rows[i].change);
        TEST_FAILS(assay_config_from_json(root, "config.json", &c), rows[i].status, rows[i].word);
        json_decref(root);
    }
}

/* A vocabulary of one, where the class's own id has no row: torch dies of it. */
Test(config_padding, a_default_outside_the_vocabulary_is_refused)
{
    assay_model_config c;
    json_t *root = config_edited(seed_oss, "{\"vocab_size\":1}");
    TEST_FAILS(assay_config_from_json(root, "config.json", &c), ASSAY_LIMIT, "pad_token_id");
    json_decref(root);
}

/* What is written is read as the same; where a class has none and the model has none nothing is written, so that checkpoints from
 * before go on. */
Test(config_padding, is_written_back)
{
    static const struct {
        const char *base, *change, *written;
    } rows[] = {
        {llama, "{}", NULL},
        {llama, "{\"pad_token_id\":-3}", "28"},
        {seed_oss, "{}", "1"},
        {seed_oss, "{\"pad_token_id\":null}", "null"},
        {seed_oss, "{\"pad_token_id\":5}", "5"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_model_config c = config_read(rows[i].base, rows[i].change), back;
        json_t *root = NULL;
        TEST_OK(assay_config_to_json(&c, &root));
        const json_t *value = json_object_get(root, "pad_token_id");
        char *text = value != NULL ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
        cr_expect(rows[i].written != NULL ? text != NULL && strcmp(text, rows[i].written) == 0 : text == NULL,
                  "%zu: %s", i, text);
        TEST_OK(assay_config_from_json(root, "config.json", &back));
        cr_expect_null(assay_config_difference(&c, &back));
        back.pad_token_id = c.pad_token_id == 2 ? 3 : 2;
        cr_expect_str_eq(assay_config_difference(&c, &back), "pad_token_id");
        free(text);
        json_decref(root);
    }
}

/* Megatron-LM's embedding has no padding_idx, and its files no word of it; PaddleNLP's have the word and no padding_idx. */
Test(config_padding, of_other_families)
{
    static const char megatron[] =
        "{\"model_type\":\"megatron\",\"num_layers\":2,\"hidden_size\":32,\"ffn_hidden_size\":14,"
        "\"num_attention_heads\":4,\"vocab_size\":31}";
    assay_model_config c = config_read(megatron, "{}");
    json_t *root = config_edited(megatron, "{\"pad_token_id\":2}");
    cr_expect_eq(c.pad_token_id, -1);
    TEST_FAILS(assay_config_from_json(root, "config.json", &c), ASSAY_FORMAT, "pad_token_id");
    json_decref(root);
    c.pad_token_id = 2;
    TEST_FAILS(assay_config_to_json(&c, &root), ASSAY_INVALID_ARGUMENT, "pad_token_id");
    c.pad_token_id = 31;
    TEST_FAILS(assay_config_check(&c, "model"), ASSAY_LIMIT, "pad_token_id");
    root = config_edited(llama, "{\"pad_token_id\":0,\"paddlenlp_version\":\"3.0.0b4\"}");
    TEST_OK(assay_paddle_config(root, "config.json", &c));
    cr_expect_eq(c.pad_token_id, -1);
    json_decref(root);
}
