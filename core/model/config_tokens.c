/* bos_token_id and eos_token_id of a Hugging Face config.json, and what its class has a default for and assay does not compute: of no
 * meaning here, kept for whoever generates text with what is saved or converted, or trains on from it. */
#include "core/model/config_internal.h"

#include <string.h>

bool assay_config_is_kept(const char *key)
{
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "router_aux_loss_coef",
                                       "output_router_logits", "use_cache"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

static assay_status read_id(const json_t *value, const char *key, const char *what, int64_t *out)
{
    ASSAY_CHECK(json_is_integer(value) && json_integer_value(value) >= INT32_MIN &&
                    json_integer_value(value) <= INT32_MAX,
                ASSAY_FORMAT, "%s: %s: expected a token's id, a list of at most %d, or null", what, key,
                (int)ASSAY_TOKEN_IDS);
    *out = json_integer_value(value);
    return ASSAY_OK;
}

static assay_status read_ids(const json_t *root, const char *key, const char *what, assay_token_ids *out)
{
    const json_t *value = json_object_get(root, key);
    *out = (assay_token_ids){.form = ASSAY_TOKENS_ABSENT};
    if (value == NULL)
        return ASSAY_OK;
    out->form = json_is_null(value)    ? ASSAY_TOKENS_NULL
                : json_is_array(value) ? ASSAY_TOKENS_LIST
                                       : ASSAY_TOKENS_ONE;
    out->n = json_is_array(value) ? (int)json_array_size(value) : json_is_null(value) ? 0 : 1;
    ASSAY_CHECK(out->n <= ASSAY_TOKEN_IDS, ASSAY_LIMIT, "%s: %s: expected at most %d ids, found %zu", what,
                key, (int)ASSAY_TOKEN_IDS, json_array_size(value));
    for (int i = 0; i < out->n; i++)
        ASSAY_TRY(
            read_id(json_is_array(value) ? json_array_get(value, (size_t)i) : value, key, what, &out->id[i]));
    return ASSAY_OK;
}

static void keep(const json_t *root, const char *key, assay_kept_member *out)
{
    const json_t *value = json_object_get(root, key);
    *out = (assay_kept_member){.given = json_is_number(value) || json_is_boolean(value),
                               .value = json_is_number(value) ? json_number_value(value)
                                        : json_is_true(value) ? 1.0
                                                              : 0.0};
}

assay_status assay_config_read_tokens(const json_t *root, const char *what, assay_model_config *c)
{
    keep(root, "router_aux_loss_coef", &c->router_aux_loss_coef);
    keep(root, "output_router_logits", &c->output_router_logits);
    keep(root, "use_cache", &c->use_cache);
    ASSAY_TRY(read_ids(root, "bos_token_id", what, &c->bos_token_id));
    return read_ids(root, "eos_token_id", what, &c->eos_token_id);
}

static int write_ids(json_t *root, const char *key, const assay_token_ids *t)
{
    json_t *value = t->form == ASSAY_TOKENS_NULL  ? json_null()
                    : t->form == ASSAY_TOKENS_ONE ? json_integer((json_int_t)t->id[0])
                                                  : json_array();
    int failed = value == NULL;
    for (int i = 0; t->form == ASSAY_TOKENS_LIST && i < t->n; i++)
        failed |= json_array_append_new(value, json_integer((json_int_t)t->id[i]));
    return failed | json_object_set_new(root, key, value);
}

int assay_config_write_tokens(const assay_model_config *c, json_t *root)
{
    int failed = 0;
    if (c->bos_token_id.form != ASSAY_TOKENS_ABSENT)
        failed |= write_ids(root, "bos_token_id", &c->bos_token_id);
    if (c->eos_token_id.form != ASSAY_TOKENS_ABSENT)
        failed |= write_ids(root, "eos_token_id", &c->eos_token_id);
    if (c->router_aux_loss_coef.given)
        failed |= json_object_set_new(root, "router_aux_loss_coef", json_real(c->router_aux_loss_coef.value));
    if (c->output_router_logits.given)
        failed |= json_object_set_new(root, "output_router_logits",
                                      json_boolean(c->output_router_logits.value != 0.0));
    if (c->use_cache.given)
        failed |= json_object_set_new(root, "use_cache", json_boolean(c->use_cache.value != 0.0));
    return failed;
}
