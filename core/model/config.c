/* Model configuration: entry points and the rules that hold for every architecture. */
#include "core/model/config.h"

#include "core/model/config_internal.h"
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* More experts than any published model has, few enough that the table of their names stays small. */
static const int64_t max_experts_in_all_layers = (int64_t)1 << 17;
static const int64_t max_groups_in_all_layers = (int64_t)1
                                                << 20; /* each has its rows in the parameter table */
static const int64_t max_elements_of_a_parameter = (int64_t)1 << 48;

const char *assay_arch_name(assay_arch arch)
{
    const int64_t index = (int64_t)arch;
    return index >= 0 && index < ASSAY_ARCH_COUNT ? assay_hf_class_of(arch)->model_type : "?";
}

const char *assay_arch_class(assay_arch arch)
{
    const int64_t index = (int64_t)arch;
    return index >= 0 && index < ASSAY_ARCH_COUNT ? assay_hf_class_of(arch)->class_name : NULL;
}

const char *assay_mixer_name(assay_mixer_kind kind)
{
    static const char *const names[ASSAY_MIXER_COUNT] = {"attention", "mla"};
    const int64_t index = (int64_t)kind;
    return index >= 0 && index < ASSAY_MIXER_COUNT ? names[index] : "?";
}

const char *assay_mlp_name(assay_mlp_kind kind)
{
    static const char *const names[ASSAY_MLP_COUNT] = {"dense", "moe"};
    const int64_t index = (int64_t)kind;
    return index >= 0 && index < ASSAY_MLP_COUNT ? names[index] : "?";
}

bool assay_config_is_mla(const assay_model_config *c)
{
    return c->mixer[0] == ASSAY_MIXER_MLA;
}

int64_t assay_config_rotary_dim(const assay_model_config *c)
{
    return assay_config_is_mla(c) ? c->qk_pos_emb_head_dim
                                  : (int64_t)((double)c->kv_channels * c->rotary_percent);
}

int64_t assay_config_value_dim(const assay_model_config *c)
{
    return assay_config_is_mla(c) ? c->v_head_dim : c->kv_channels;
}

/* --- reading ------------------------------------------------------------------------------------------------ */

/* model_type, checked against architectures[0] where both are given; *other: the second name of the class, or NULL. */
static assay_status read_arch(const json_t *root, const char *what, assay_arch *out, const char **other)
{
    char type[64] = "";
    ASSAY_TRY(assay_json_get_string(root, "model_type", false, what, type, sizeof type));
    const json_t *list = json_object_get(root, "architectures");
    const char *class_name = NULL;
    if (list != NULL && !json_is_null(list)) {
        ASSAY_CHECK(json_is_array(list) && json_array_size(list) == 1 &&
                        json_is_string(json_array_get(list, 0)),
                    ASSAY_FORMAT, "%s: architectures: expected an array of one string", what);
        class_name = json_string_value(json_array_get(list, 0));
    }
    ASSAY_CHECK(type[0] != '\0' || class_name != NULL, ASSAY_FORMAT,
                "%s: model_type: missing, expected a string", what);
    char known[256] = "";
    size_t used = 0;
    for (int i = 0; i < ASSAY_ARCH_COUNT; i++) {
        const assay_hf_class *row = assay_hf_class_of((assay_arch)i);
        const bool second = row->other_type != NULL && strcmp(type, row->other_type) == 0;
        const bool named = type[0] != '\0' ? second || strcmp(type, row->model_type) == 0
                                           : row->class_name && strcmp(class_name, row->class_name) == 0;
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s",
                                 i == 0                      ? ""
                                 : i == ASSAY_ARCH_COUNT - 1 ? " or "
                                                             : ", ",
                                 row->model_type);
        if (!named)
            continue;
        ASSAY_CHECK(class_name == NULL || row->class_name == NULL || strcmp(class_name, row->class_name) == 0,
                    ASSAY_MISMATCH, "%s: architectures: expected %s for model_type '%s', found '%.64s'", what,
                    row->class_name, second ? row->other_type : row->model_type, class_name);
        ASSAY_CHECK(!second || class_name != NULL, ASSAY_UNSUPPORTED,
                    "%s: architectures: missing, expected %s for model_type '%s'", what, row->class_name,
                    row->other_type);
        *other = second ? row->other_type : NULL;
        *out = (assay_arch)i;
        return ASSAY_OK;
    }
    ASSAY_FAIL(ASSAY_UNSUPPORTED, "%s: unknown architecture '%.64s', expected %s", what,
               type[0] != '\0' ? type : class_name, known);
}

assay_status assay_config_from_json(const json_t *root, const char *what, assay_model_config *out)
{
    ASSAY_CHECK(json_is_object(root), ASSAY_FORMAT, "%s: expected an object", what);
    assay_arch arch = ASSAY_ARCH_LLAMA;
    assay_model_config c;
    const char *other = NULL;
    ASSAY_TRY(read_arch(root, what, &arch, &other));
    assay_config_defaults(&c, arch);
    c.model_type = other;
    if (arch == ASSAY_ARCH_MEGATRON)
        ASSAY_TRY(assay_config_read_megatron(root, what, &c));
    else
        ASSAY_TRY(assay_config_read_hf(root, what, &c));
    ASSAY_TRY(assay_config_check(&c, what));
    *out = c;
    return ASSAY_OK;
}

assay_status assay_config_load(const char *model_dir, assay_model_config *out)
{
    char path[ASSAY_CONFIG_WHAT];
    const int length = snprintf(path, sizeof path, "%s/config.json", model_dir);
    ASSAY_CHECK(length > 0 && (size_t)length < sizeof path, ASSAY_INVALID_ARGUMENT,
                "%.64s...: path of more than %zu bytes", model_dir, sizeof path - 1);
    struct stat info;
    ASSAY_CHECK(stat(model_dir, &info) == 0, ASSAY_NOT_FOUND, "%s: model folder: %s", model_dir,
                strerror(errno));
    ASSAY_CHECK(S_ISDIR(info.st_mode), ASSAY_INVALID_ARGUMENT,
                "%s: expected a model folder that holds config.json, found a file", model_dir);
    json_t *root = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(assay_json_load(&root, path), st, done);
    ASSAY_TRY_GOTO(assay_config_from_json(root, path, out), st, done);
    if (out->arch == ASSAY_ARCH_MEGATRON)
        ASSAY_TRY_GOTO(assay_config_find_files(model_dir, out), st, done);
    st = assay_config_check_head(out, model_dir);
done:
    json_decref(root);
    return st;
}

/* --- writing ------------------------------------------------------------------------------------------------ */

assay_status assay_config_to_json(const assay_model_config *c, json_t **out)
{
    *out = NULL;
    ASSAY_TRY(assay_config_check(c, "model config"));
    assay_status st = ASSAY_OK;
    assay_model_config back;
    json_t *root = json_object();
    ASSAY_CHECK(root != NULL, ASSAY_OUT_OF_MEMORY, "model config: a JSON object");
    if (c->arch == ASSAY_ARCH_MEGATRON)
        ASSAY_TRY_GOTO(assay_config_write_megatron(c, root), st, fail);
    else
        ASSAY_TRY_GOTO(assay_config_write_hf(c, root), st, fail);
    /* A config that reads back differently would be another model: say which member cannot be written. */
    ASSAY_TRY_GOTO(assay_config_from_json(root, "model config", &back), st, fail);
    const char *name = assay_config_difference(c, &back);
    ASSAY_CHECK_GOTO(name == NULL, ASSAY_INVALID_ARGUMENT, st, fail,
                     "model config: %s: a config.json of %s cannot say this value", name,
                     assay_arch_name(c->arch));
    *out = root;
    return ASSAY_OK;
fail:
    json_decref(root);
    return st;
}

/* --- rules -------------------------------------------------------------------------------------------------- */

static assay_status check_range(const assay_model_config *c, const char *what, const char *name,
                                int64_t value, int64_t min, int64_t max)
{
    ASSAY_CHECK(value >= min && value <= max, ASSAY_LIMIT, "%s: %s: expected %lld to %lld, found %lld", what,
                assay_config_word(c, name), (long long)min, (long long)max, (long long)value);
    return ASSAY_OK;
}

/* Refuses NaN as well: the comparison must hold. */
static assay_status check_real(const assay_model_config *c, const char *what, const char *name, double value,
                               double min, double max)
{
    ASSAY_CHECK(value >= min && value <= max, ASSAY_LIMIT, "%s: %s: expected %g to %g, found %g", what,
                assay_config_word(c, name), min, max, value);
    return ASSAY_OK;
}

static assay_status check_attention(const assay_model_config *c, const char *what)
{
    ASSAY_TRY(check_range(c, what, "num_attention_heads", c->num_attention_heads, 1, ASSAY_CONFIG_MAX_DIM));
    ASSAY_TRY(check_range(c, what, "num_query_groups", c->num_query_groups, 1, ASSAY_CONFIG_MAX_DIM));
    ASSAY_TRY(check_range(c, what, "kv_channels", c->kv_channels, 1, ASSAY_CONFIG_MAX_DIM));
    ASSAY_CHECK(c->num_attention_heads % c->num_query_groups == 0, ASSAY_MISMATCH,
                "%s: num_attention_heads %lld is not a multiple of %s %lld", what,
                (long long)c->num_attention_heads, assay_config_word(c, "num_query_groups"),
                (long long)c->num_query_groups);
    ASSAY_CHECK(c->num_attention_heads * c->kv_channels <= ASSAY_CONFIG_MAX_DIM, ASSAY_LIMIT,
                "%s: num_attention_heads %lld times %s %lld is more than %lld", what,
                (long long)c->num_attention_heads, assay_config_word(c, "kv_channels"),
                (long long)c->kv_channels, (long long)ASSAY_CONFIG_MAX_DIM);
    ASSAY_CHECK(c->num_query_groups * c->num_layers <= max_groups_in_all_layers, ASSAY_LIMIT,
                "%s: %lld layers of %s %lld, at most %lld in all layers are supported", what,
                (long long)c->num_layers, assay_config_word(c, "num_query_groups"),
                (long long)c->num_query_groups, (long long)max_groups_in_all_layers);
    ASSAY_CHECK(c->qk_layernorm || !c->qk_layernorm_full_width, ASSAY_MISMATCH,
                "%s: qk_layernorm_full_width without qk_layernorm", what);
    ASSAY_TRY(check_real(c, what, "clip_qkv", c->clip_qkv, 0.0, 0x1p100));
    for (int64_t l = 0; l < c->num_layers; l++)
        ASSAY_CHECK(c->window[l] >= 0, ASSAY_LIMIT, "%s: window of layer %lld is negative: %lld", what,
                    (long long)l, (long long)c->window[l]);
    return ASSAY_OK;
}

static assay_status check_rope(const assay_model_config *c, const char *what)
{
    ASSAY_TRY(check_real(c, what, "rotary_percent", c->rotary_percent, 0.0, 1.0));
    ASSAY_TRY(check_real(c, what, "rotary_base", c->rotary_base, 1.0, 1e15));
    const int64_t rotary = assay_config_rotary_dim(c);
    ASSAY_CHECK((rotary >= 2 && rotary % 2 == 0) || c->rotary_percent < 1.0, ASSAY_MISMATCH,
                "%s: %s %lld: rotates as many dimensions, expected an even number of at least 2", what,
                assay_config_word(c, "kv_channels"), (long long)c->kv_channels);
    ASSAY_CHECK(rotary >= 2 && rotary % 2 == 0, ASSAY_MISMATCH,
                "%s: %s %lld times rotary_percent %g rotates %lld dimensions, expected an even number of at "
                "least 2",
                what, assay_config_word(c, "kv_channels"), (long long)c->kv_channels, c->rotary_percent,
                (long long)rotary);
    ASSAY_TRY(assay_config_check_yarn(c, what));
    if (c->rope_type == ASSAY_ROPE_DEFAULT)
        return ASSAY_OK;
    ASSAY_TRY(check_real(c, what, "rope_factor", c->rope_factor, 1e-6, 1e9));
    if (c->rope_type == ASSAY_ROPE_LINEAR || c->rope_type == ASSAY_ROPE_YARN)
        return ASSAY_OK;
    ASSAY_TRY(check_real(c, what, "rope_low_freq_factor", c->rope_low_freq_factor, 1e-6, 1e9));
    ASSAY_CHECK(c->rope_high_freq_factor > c->rope_low_freq_factor && c->rope_high_freq_factor <= 1e9,
                ASSAY_MISMATCH, "%s: %s %g must be greater than %s %g", what,
                assay_config_word(c, "rope_high_freq_factor"), c->rope_high_freq_factor,
                assay_config_word(c, "rope_low_freq_factor"), c->rope_low_freq_factor);
    ASSAY_TRY(check_range(c, what, "rope_original_max_position_embeddings",
                          c->rope_original_max_position_embeddings, 1, (int64_t)1 << 40));
    return ASSAY_OK;
}

static assay_status check_groups(const assay_model_config *c, const char *what)
{
    const int64_t e = c->num_moe_experts, groups = c->moe_router_num_groups,
                  chosen = c->moe_router_group_topk;
    if (groups == 0) {
        ASSAY_CHECK(chosen == 0, ASSAY_MISMATCH,
                    "%s: moe_router_group_topk %lld without moe_router_num_groups", what, (long long)chosen);
        return ASSAY_OK;
    }
    ASSAY_TRY(check_range(c, what, "moe_router_num_groups", groups, 1, e));
    ASSAY_TRY(check_range(c, what, "moe_router_group_topk", chosen, 1, groups));
    ASSAY_CHECK(e % groups == 0, ASSAY_MISMATCH,
                "%s: num_moe_experts %lld is not a multiple of moe_router_num_groups %lld", what,
                (long long)e, (long long)groups);
    ASSAY_CHECK(c->moe_router_topk <= chosen * (e / groups), ASSAY_MISMATCH,
                "%s: moe_router_topk %lld is more than the %lld experts of moe_router_group_topk %lld groups",
                what, (long long)c->moe_router_topk, (long long)(chosen * (e / groups)), (long long)chosen);
    /* A group's score is the sum of its best moe_router_topk / moe_router_group_topk keys: at least one. */
    ASSAY_CHECK(c->moe_router_topk >= chosen, ASSAY_MISMATCH,
                "%s: moe_router_topk %lld is less than moe_router_group_topk %lld", what,
                (long long)c->moe_router_topk, (long long)chosen);
    return ASSAY_OK;
}

static assay_status check_moe(const assay_model_config *c, const char *what)
{
    const int64_t e = c->num_moe_experts;
    ASSAY_TRY(check_range(c, what, "num_moe_experts", e, 0, ASSAY_MAX_EXPERTS));
    if (e == 0) {
        for (int64_t l = 0; l < c->num_layers; l++)
            ASSAY_CHECK(c->mlp[l] != ASSAY_MLP_MOE, ASSAY_MISMATCH,
                        "%s: layer %lld is a mixture-of-experts layer, but %s is 0", what, (long long)l,
                        assay_config_word(c, "num_moe_experts"));
        ASSAY_CHECK(c->moe_shared_expert_intermediate_size == 0, ASSAY_MISMATCH,
                    "%s: moe_shared_expert_intermediate_size %lld in a model without experts", what,
                    (long long)c->moe_shared_expert_intermediate_size);
        return ASSAY_OK;
    }
    ASSAY_CHECK(e * c->num_layers <= max_experts_in_all_layers, ASSAY_LIMIT,
                "%s: %lld layers of %lld experts, at most %lld experts in all layers are supported", what,
                (long long)c->num_layers, (long long)e, (long long)max_experts_in_all_layers);
    ASSAY_TRY(check_range(c, what, "moe_router_topk", c->moe_router_topk, 1, e));
    /* The softmax of one chosen score is 1 whatever the logits: the router would never learn. */
    ASSAY_CHECK(
        c->moe_router_topk > 1 || c->moe_router_score_function != ASSAY_SCORE_SOFTMAX ||
            c->moe_router_pre_softmax,
        ASSAY_MISMATCH,
        "%s: moe_router_topk 1 with a softmax over the chosen expert: moe_router_pre_softmax is needed",
        what);
    ASSAY_TRY(check_range(c, what, "moe_ffn_hidden_size", c->moe_ffn_hidden_size, 1, ASSAY_CONFIG_MAX_DIM));
    ASSAY_CHECK(e * 2 * c->moe_ffn_hidden_size <= max_elements_of_a_parameter / c->hidden_size, ASSAY_LIMIT,
                "%s: %lld experts of %lld x %lld are more than %lld elements", what, (long long)e,
                (long long)c->moe_ffn_hidden_size, (long long)c->hidden_size,
                (long long)max_elements_of_a_parameter);
    ASSAY_TRY(
        check_real(c, what, "moe_router_topk_scaling_factor", c->moe_router_topk_scaling_factor, 1e-6, 1e6));
    ASSAY_TRY(check_range(c, what, "moe_shared_expert_intermediate_size",
                          c->moe_shared_expert_intermediate_size, 0, ASSAY_CONFIG_MAX_DIM));
    ASSAY_CHECK(!c->moe_shared_expert_gate || c->moe_shared_expert_intermediate_size > 0, ASSAY_MISMATCH,
                "%s: moe_shared_expert_gate without moe_shared_expert_intermediate_size", what);
    ASSAY_CHECK(!c->moe_router_enable_expert_bias || c->moe_router_score_function == ASSAY_SCORE_SIGMOID,
                ASSAY_MISMATCH, "%s: moe_router_enable_expert_bias needs moe_router_score_function sigmoid",
                what);
    return check_groups(c, what);
}

assay_status assay_config_check(const assay_model_config *c, const char *what)
{
    ASSAY_CHECK((int64_t)c->arch >= 0 && (int64_t)c->arch < ASSAY_ARCH_COUNT, ASSAY_UNSUPPORTED,
                "%s: unknown architecture number %d", what, (int)c->arch);
    ASSAY_TRY(check_range(c, what, "num_layers", c->num_layers, 1, ASSAY_MAX_LAYERS));
    ASSAY_TRY(check_range(c, what, "hidden_size", c->hidden_size, 1, ASSAY_CONFIG_MAX_DIM));
    ASSAY_TRY(check_range(c, what, "ffn_hidden_size", c->ffn_hidden_size, 1, ASSAY_CONFIG_MAX_DIM));
    ASSAY_TRY(check_range(c, what, "vocab_size", c->vocab_size, 1, ASSAY_CONFIG_MAX_DIM));
    ASSAY_TRY(check_range(c, what, "pad_token_id", c->pad_token_id, -1, c->vocab_size - 1));
    ASSAY_TRY(
        check_range(c, what, "max_position_embeddings", c->max_position_embeddings, 1, (int64_t)1 << 40));
    ASSAY_TRY(check_real(c, what, "layernorm_epsilon", c->layernorm_epsilon, 0.0, 1.0));
    ASSAY_TRY(check_real(c, what, "init_method_std", c->init_method_std, 0.0, 1e3));
    ASSAY_TRY(check_real(c, what, "init_constant_std", c->init_constant_std, 0.0, 1e3));
    ASSAY_TRY(check_attention(c, what));
    ASSAY_TRY(assay_config_check_mla(c, what));
    ASSAY_TRY(check_rope(c, what));
    ASSAY_TRY(check_moe(c, what));
    return ASSAY_OK;
}
