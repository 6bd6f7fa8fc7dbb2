/* What Megatron-LM's form of a config.json says about the rows of experts: capacities and padding (docs/MEGATRON.md).
 * Source: megatron-core 0.16.1, transformer_config.py. */
#include "core/model/config_internal.h"

#include <string.h>

/* A word that may be absent or null. */
static const json_t *given(const json_t *root, const char *key)
{
    const json_t *value = json_object_get(root, key);
    return json_is_null(value) ? NULL : value;
}

static assay_status read_switch(const json_t *root, const char *key, const char *what, bool *out)
{
    *out = false;
    return given(root, key) ? assay_json_get_bool(root, key, true, what, out) : ASSAY_OK;
}

/* Absent is F32; null, Megatron-LM's None, is `model` and says so. */
static assay_status read_router_dtype(const json_t *root, const char *what, bool *rounds)
{
    const json_t *value = json_object_get(root, "moe_router_dtype");
    const char *word = value == NULL ? "fp32" : json_is_null(value) ? "model" : json_string_value(value);
    ASSAY_CHECK(word != NULL &&
                    (strcmp(word, "fp32") == 0 || strcmp(word, "model") == 0 || strcmp(word, "fp64") == 0),
                ASSAY_FORMAT, "%s: moe_router_dtype: expected fp32, model or null, found %.64s", what,
                word ? word : "no string");
    ASSAY_CHECK(strcmp(word, "fp64") != 0, ASSAY_UNSUPPORTED, "%s: moe_router_dtype: " ASSAY_NO_FP64_ROUTER,
                what);
    *rounds = strcmp(word, "model") == 0;
    return ASSAY_OK;
}

assay_status assay_config_read_experts(const json_t *root, const char *what, assay_config_training *t)
{
    bool quantization, fp8;
    const json_t *factor = given(root, "moe_expert_capacity_factor");
    const json_t *policy = given(root, "moe_token_drop_policy");
    if (factor != NULL) {
        ASSAY_CHECK(json_is_number(factor), ASSAY_FORMAT,
                    "%s: moe_expert_capacity_factor: expected a number or null", what);
        const double value = json_number_value(factor); /* a negative one is none, as in Megatron-LM */
        ASSAY_CHECK(value <= 1e6, ASSAY_LIMIT,
                    "%s: moe_expert_capacity_factor: expected at most 1e6, found %g", what, value);
        ASSAY_CHECK(
            value != 0.0, ASSAY_UNSUPPORTED,
            "%s: moe_expert_capacity_factor: experts that take nothing are not supported yet, expected "
            "null or more than 0",
            what);
        t->moe_expert_capacity_factor = value < 0.0 ? 0.0 : value;
    }
    const char *word = policy == NULL ? "probs" : json_string_value(policy);
    ASSAY_CHECK(word != NULL && (strcmp(word, "probs") == 0 || strcmp(word, "position") == 0), ASSAY_FORMAT,
                "%s: moe_token_drop_policy: expected probs or position, found %.64s", what,
                word ? word : "no string");
    t->drops_by_position = strcmp(word, "position") == 0;
    ASSAY_TRY(read_router_dtype(root, what, &t->rounds_router_logits));
    ASSAY_TRY(
        read_switch(root, "moe_pad_expert_input_to_capacity", what, &t->moe_pad_expert_input_to_capacity));
    ASSAY_CHECK(!t->moe_pad_expert_input_to_capacity || t->moe_expert_capacity_factor > 0.0, ASSAY_MISMATCH,
                "%s: moe_pad_expert_input_to_capacity without moe_expert_capacity_factor", what);
    ASSAY_TRY(
        read_switch(root, "moe_router_force_load_balancing", what, &t->moe_router_force_load_balancing));
    ASSAY_TRY(read_switch(root, "moe_shared_expert_overlap", what, &t->moe_shared_expert_overlap));
    ASSAY_TRY(read_switch(root, "moe_router_padding_for_quantization", what, &quantization));
    ASSAY_TRY(read_switch(root, "moe_router_padding_for_fp8", what, &fp8));
    t->pads_rows_for_fp8 = quantization || fp8;
    return ASSAY_OK;
}
