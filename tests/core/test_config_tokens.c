/* bos_token_id and eos_token_id: kept as they are written, one, a list or null; nothing is made up where there is none.  So are members that
 * transformers has defaults for. */
#include "core/files/paddle_internal.h"
#include "core/model/config_internal.h"
#include "tests/support/config.h"
#include "tests/support/core_files.h"

static const char llama[] =
    "{\"model_type\":\"llama\",\"num_key_value_heads\":2,\"hidden_size\":32,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"vocab_size\":31,\"intermediate_size\":14}";

static void expect_kept(const json_t *read, json_t *written, const char *change)
{
    static const char *const keys[] = {"bos_token_id", "eos_token_id"};
    for (int k = 0; k < 2; k++) {
        json_t *a = json_object_get(read, keys[k]), *b = json_object_get(written, keys[k]);
        cr_expect((a == NULL && b == NULL) || (a != NULL && b != NULL && json_equal(a, b)), "%s: %s", change,
                  keys[k]);
    }
    json_decref(written);
}

Test(config_tokens, ids_are_kept)
{
    static const char *const changes[] = {"{}",
                                          "{\"bos_token_id\":128000,\"eos_token_id\":[128001,128008,128009]}",
                                          "{\"bos_token_id\":null,\"eos_token_id\":-1}",
                                          "{\"eos_token_id\":[]}",
                                          "{\"bos_token_id\":0,\"eos_token_id\":null}",
                                          "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}"};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        assay_model_config c;
        json_t *root = config_edited(llama, changes[i]), *written = NULL;
        cr_assert_eq(assay_config_from_json(root, "config.json", &c), ASSAY_OK, "%s", assay_error_message());
        cr_assert_eq(assay_config_to_json(&c, &written), ASSAY_OK, "%s", assay_error_message());
        expect_kept(root, written, changes[i]);
        cr_assert_eq(assay_paddle_config_to_json(&c, ASSAY_F32, &written), ASSAY_OK, "%s",
                     assay_error_message());
        expect_kept(root, written, changes[i]);
        json_decref(root);
    }
}

/* What a class of transformers has a default for and nobody here computes: kept where it is given, and left out where it is not. */
Test(config_tokens, members_with_defaults_are_kept)
{
    static const char moe[] =
        "{\"model_type\":\"qwen3_moe\",\"num_key_value_heads\":2,\"hidden_size\":32,\"num_hidden_layers\":2,"
        "\"num_attention_heads\":4,\"head_dim\":8,\"vocab_size\":31,\"intermediate_size\":14,\"num_experts\":"
        "4,"
        "\"moe_intermediate_size\":6,\"num_experts_per_tok\":2}";
    static const char *const changes[] = {
        "{}", "{\"router_aux_loss_coef\":0.02,\"output_router_logits\":false,\"use_cache\":false}",
        "{\"router_aux_loss_coef\":0.0,\"output_router_logits\":true,\"use_cache\":true}"};
    static const char *const keys[] = {"router_aux_loss_coef", "output_router_logits", "use_cache"};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        assay_model_config c;
        json_t *root = config_edited(moe, changes[i]), *written = NULL;
        cr_assert_eq(assay_config_from_json(root, "config.json", &c), ASSAY_OK, "%s", assay_error_message());
        cr_assert_eq(assay_config_to_json(&c, &written), ASSAY_OK, "%s", assay_error_message());
        for (int k = 0; k < 3; k++) {
            json_t *a = json_object_get(root, keys[k]), *b = json_object_get(written, keys[k]);
            cr_expect((a == NULL && b == NULL) || (a != NULL && b != NULL && json_equal(a, b)), "%s: %s",
                      changes[i], keys[k]);
        }
        json_decref(written);
        json_decref(root);
    }
}

Test(config_tokens, what_is_no_id_is_refused)
{
    static const struct {
        const char *change, *words;
        assay_status status;
    } rows[] = {
        {"{\"bos_token_id\":\"<s>\"}", "bos_token_id: expected a token's id, a list", ASSAY_FORMAT},
        {"{\"eos_token_id\":[1,true]}", "eos_token_id: expected a token's id, a list", ASSAY_FORMAT},
        {"{\"eos_token_id\":2.0}", "eos_token_id: expected a token's id, a list", ASSAY_FORMAT},
        {"{\"eos_token_id\":2147483648}", "eos_token_id: expected a token's id, a list", ASSAY_FORMAT},
        {"{\"eos_token_id\":[[1]]}", "eos_token_id: expected a token's id, a list", ASSAY_FORMAT},
        {"{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
         "eos_token_id: expected at most 16 ids, found 17", ASSAY_LIMIT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_model_config c;
        json_t *root = config_edited(llama, rows[i].change);
        TEST_FAILS(assay_config_from_json(root, "config.json", &c), rows[i].status, rows[i].words);
        json_decref(root);
    }
}
