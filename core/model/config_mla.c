/* Multi-latent attention (MLA, DeepSeek) in a config.json: the rules of the mixer, Hugging Face's deepseek_v2 and
 * deepseek_v3, and Megatron-LM's words.
 * Source: transformers 5.24, configuration_ and modeling_deepseek_v2.py, _v3.py; megatron-core 0.16.1,
 * transformer_config.py (MLATransformerConfig) and multi_latent_attention.py. */
#include "core/model/config_internal.h"

#include <string.h>

/* --- rules -------------------------------------------------------------------------------------------------- */

static assay_status check_without(const assay_model_config *c, const char *what)
{
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"q_lora_rank", c->q_lora_rank},
                 {"kv_lora_rank", c->kv_lora_rank},
                 {"qk_head_dim", c->qk_head_dim},
                 {"qk_pos_emb_head_dim", c->qk_pos_emb_head_dim},
                 {"v_head_dim", c->v_head_dim}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        ASSAY_CHECK(sizes[i].value == 0, ASSAY_MISMATCH, "%s: %s %lld without multi_latent_attention", what,
                    sizes[i].name, (long long)sizes[i].value);
    ASSAY_CHECK(!(c->mla_layernorm_epsilon != 0.0), ASSAY_MISMATCH,
                "%s: mla_layernorm_epsilon %g without multi_latent_attention", what,
                c->mla_layernorm_epsilon);
    return ASSAY_OK;
}

static assay_status check_sizes(const assay_model_config *c, const char *what)
{
    const int64_t big = ASSAY_CONFIG_MAX_DIM, heads = c->num_attention_heads;
    const struct {
        const char *name;
        int64_t value, min;
    } sizes[] = {{"q_lora_rank", c->q_lora_rank, 0},
                 {"kv_lora_rank", c->kv_lora_rank, 1},
                 {"qk_head_dim", c->qk_head_dim, 1},
                 {"qk_pos_emb_head_dim", c->qk_pos_emb_head_dim, 2},
                 {"v_head_dim", c->v_head_dim, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        ASSAY_CHECK(sizes[i].value >= sizes[i].min && sizes[i].value <= big, ASSAY_LIMIT,
                    "%s: %s: expected %lld to %lld, found %lld", what, assay_config_word(c, sizes[i].name),
                    (long long)sizes[i].min, (long long)big, (long long)sizes[i].value);
    ASSAY_CHECK(c->qk_pos_emb_head_dim % 2 == 0, ASSAY_MISMATCH,
                "%s: %s: expected an even number, found %lld", what,
                assay_config_word(c, "qk_pos_emb_head_dim"), (long long)c->qk_pos_emb_head_dim);
    ASSAY_CHECK(c->kv_channels == c->qk_head_dim + c->qk_pos_emb_head_dim, ASSAY_MISMATCH,
                "%s: %s %lld is not %s %lld and %s %lld together", what, assay_config_word(c, "kv_channels"),
                (long long)c->kv_channels, assay_config_word(c, "qk_head_dim"), (long long)c->qk_head_dim,
                assay_config_word(c, "qk_pos_emb_head_dim"), (long long)c->qk_pos_emb_head_dim);
    ASSAY_CHECK(c->num_query_groups == heads, ASSAY_MISMATCH,
                "%s: %s %lld: multi-latent attention has a key and a value for every head, expected "
                "num_attention_heads %lld",
                what, assay_config_word(c, "num_query_groups"), (long long)c->num_query_groups,
                (long long)heads);
    ASSAY_CHECK(heads * (c->qk_head_dim + c->v_head_dim) <= big, ASSAY_LIMIT,
                "%s: num_attention_heads %lld times %s %lld and v_head_dim %lld is more than %lld", what,
                (long long)heads, assay_config_word(c, "qk_head_dim"), (long long)c->qk_head_dim,
                (long long)c->v_head_dim, (long long)big);
    ASSAY_CHECK(c->kv_lora_rank + c->qk_pos_emb_head_dim <= big, ASSAY_LIMIT,
                "%s: kv_lora_rank %lld and %s %lld are more than %lld", what, (long long)c->kv_lora_rank,
                assay_config_word(c, "qk_pos_emb_head_dim"), (long long)c->qk_pos_emb_head_dim,
                (long long)big);
    return ASSAY_OK;
}

/* What only plain attention has: nothing computes it for these layers. */
static assay_status check_absent(const assay_model_config *c, const char *what)
{
    const struct {
        const char *name;
        bool given;
    } others[] = {{"qk_layernorm", c->qk_layernorm},
                  {"clip_qkv", c->clip_qkv > 0.0},
                  {"add_qkv_bias", c->add_qkv_bias},
                  {"add_proj_bias", c->add_proj_bias},
                  {"rotary_percent", c->rotary_percent != 1.0}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        ASSAY_CHECK(!others[i].given, ASSAY_UNSUPPORTED,
                    "%s: %s: not supported yet with multi-latent attention", what,
                    assay_config_word(c, others[i].name));
    ASSAY_CHECK(
        c->rope_type == ASSAY_ROPE_DEFAULT || c->rope_type == ASSAY_ROPE_YARN, ASSAY_UNSUPPORTED,
        "%s: rope_type: %s is not supported yet with multi-latent attention, expected default or yarn", what,
        assay_rope_name(c->rope_type));
    for (int64_t l = 0; l < c->num_layers; l++)
        ASSAY_CHECK(c->window[l] == 0, ASSAY_UNSUPPORTED,
                    "%s: window of layer %lld: not supported yet with multi-latent attention, expected 0",
                    what, (long long)l);
    return ASSAY_OK;
}

assay_status assay_config_check_mla(const assay_model_config *c, const char *what)
{
    for (int64_t l = 0; l < c->num_layers; l++) {
        ASSAY_CHECK((int64_t)c->mixer[l] >= 0 && c->mixer[l] < ASSAY_MIXER_COUNT, ASSAY_UNSUPPORTED,
                    "%s: layer %lld: unknown mixer number %d", what, (long long)l, (int)c->mixer[l]);
        ASSAY_CHECK(c->mixer[l] == c->mixer[0], ASSAY_UNSUPPORTED,
                    "%s: layer %lld is %s, layer 0 %s: layers with and without multi-latent attention in one "
                    "model are not supported yet",
                    what, (long long)l, assay_mixer_name(c->mixer[l]), assay_mixer_name(c->mixer[0]));
    }
    if (!assay_config_is_mla(c))
        return check_without(c, what);
    ASSAY_TRY(check_sizes(c, what));
    ASSAY_CHECK(c->mla_layernorm_epsilon >= 0.0 && c->mla_layernorm_epsilon <= 1.0, ASSAY_LIMIT,
                "%s: mla_layernorm_epsilon: expected 0 to 1, found %g", what, c->mla_layernorm_epsilon);
    return check_absent(c, what);
}

/* --- Hugging Face ------------------------------------------------------------------------------------------- */

/* A number that the class makes from others must be theirs where a file says it. */
static assay_status same_size(const json_t *root, const char *key, int64_t value, const char *made_of,
                              const char *type, const char *what)
{
    int64_t found = value;
    ASSAY_TRY(assay_json_get_i64(root, key, false, 1, ASSAY_CONFIG_MAX_DIM, what, &found));
    ASSAY_CHECK(found == value, ASSAY_MISMATCH, "%s: %s: %s takes %s, %lld, found %lld", what, key, type,
                made_of, (long long)value, (long long)found);
    return ASSAY_OK;
}

/* Python takes null for none, false or dies of it; a default is never what it means. */
static assay_status refuse_null(const json_t *root, const char *what, const assay_hf_mla *class)
{
    static const char *const keys[] = {
        "n_group",         "topk_group",     "num_experts_per_tok", "first_k_dense_replace", "norm_topk_prob",
        "rope_interleave", "attention_bias", "n_shared_experts",    "routed_scaling_factor"};
    /* Where no groups are the class's default, null is how it writes that. */
    for (size_t i = class->groups == 0 ? 2 : 0; i < sizeof keys / sizeof *keys; i++)
        ASSAY_CHECK(!json_is_null(json_object_get(root, keys[i])), ASSAY_FORMAT,
                    "%s: %s: expected a value or nothing, found null", what, keys[i]);
    return ASSAY_OK;
}

/* A word of DeepSeek's own code for what the class computes. */
static assay_status check_word(const json_t *root, const char *key, const char *one, const char *other,
                               const char *type, const char *what)
{
    const json_t *value = json_object_get(root, key);
    const char *text = json_string_value(value);
    ASSAY_CHECK(value == NULL ||
                    (text != NULL && (strcmp(text, one) == 0 || (other && strcmp(text, other) == 0))),
                ASSAY_UNSUPPORTED, "%s: %s: %s computes %s%s%s, found %.64s", what, key, type, one,
                other ? " or " : "", other ? other : "", text ? text : "no string");
    return ASSAY_OK;
}

/* Words for what the class does whatever a file says. */
static assay_status check_ignored(const json_t *root, const char *what, const assay_hf_class *class)
{
    const assay_hf_mla *mla = class->mla;
    ASSAY_TRY(check_word(root, "scoring_func", mla->scoring_func, NULL, class->model_type, what));
    ASSAY_TRY(check_word(root, "topk_method", mla->topk_method, mla->limited, class->model_type, what));
    int64_t every = 1;
    ASSAY_TRY(assay_json_get_i64(root, "moe_layer_freq", false, 1, ASSAY_MAX_LAYERS, what, &every));
    ASSAY_CHECK(every == 1, ASSAY_UNSUPPORTED,
                "%s: moe_layer_freq: %s has experts in every layer behind first_k_dense_replace, "
                "expected 1, found %lld",
                what, class->model_type, (long long)every);
    ASSAY_CHECK(json_object_get(root, "num_experts") == NULL, ASSAY_UNSUPPORTED,
                "%s: num_experts: expected %s's own word; assay reads n_routed_experts only", what,
                class->model_type);
    /* transformers' V2 never divides, DeepSeek's own code does (and leaves the factor out then). */
    ASSAY_CHECK(class->moe.norm_topk_prob.key != NULL ||
                    !json_is_true(json_object_get(root, "norm_topk_prob")),
                ASSAY_UNSUPPORTED,
                "%s: norm_topk_prob: %s does not divide the chosen scores by their sum, expected false", what,
                class->model_type);
    return ASSAY_OK;
}

assay_status assay_config_read_mla(const json_t *root, const char *what, assay_model_config *c)
{
    const int64_t big = ASSAY_CONFIG_MAX_DIM;
    const assay_hf_class *class = assay_hf_class_of(c->arch);
    bool pairs = true, bias = false;
    ASSAY_TRY(refuse_null(root, what, class->mla));
    ASSAY_TRY(check_ignored(root, what, class));
    ASSAY_TRY(assay_json_get_bool(root, "rope_interleave", false, what, &pairs));
    ASSAY_CHECK(pairs, ASSAY_UNSUPPORTED,
                "%s: rope_interleave: false (halves of a head are rotated, not pairs) is not supported yet, "
                "expected true",
                what);
    ASSAY_TRY(assay_json_get_bool(root, "attention_bias", false, what, &bias));
    ASSAY_CHECK(!bias, ASSAY_UNSUPPORTED,
                "%s: attention_bias: not supported yet with multi-latent attention, expected false", what);
    c->q_lora_rank = json_is_null(json_object_get(root, "q_lora_rank")) ? 0 : 1536;
    ASSAY_TRY(assay_json_get_i64(root, "q_lora_rank", false, 1, big, what, &c->q_lora_rank));
    ASSAY_TRY(assay_json_get_i64(root, "kv_lora_rank", true, 1, big, what, &c->kv_lora_rank));
    ASSAY_TRY(assay_json_get_i64(root, "qk_nope_head_dim", true, 1, big, what, &c->qk_head_dim));
    ASSAY_TRY(assay_json_get_i64(root, "qk_rope_head_dim", true, 2, big, what, &c->qk_pos_emb_head_dim));
    ASSAY_TRY(assay_json_get_i64(root, "v_head_dim", true, 1, big, what, &c->v_head_dim));
    c->kv_channels = c->qk_head_dim + c->qk_pos_emb_head_dim;
    ASSAY_TRY(
        same_size(root, "head_dim", c->qk_pos_emb_head_dim, "qk_rope_head_dim", class->model_type, what));
    ASSAY_TRY(same_size(root, "qk_head_dim", c->kv_channels, "qk_nope_head_dim + qk_rope_head_dim",
                        class->model_type, what));
    c->mla_layernorm_epsilon = 1e-6; /* the norm's own default: the inner norms are not told rms_norm_eps */
    for (int64_t l = 0; l < c->num_layers; l++)
        c->mixer[l] = ASSAY_MIXER_MLA;
    return ASSAY_OK;
}

static assay_status read_groups(const json_t *root, const char *what, assay_model_config *c)
{
    const assay_hf_class *class = assay_hf_class_of(c->arch);
    const assay_hf_mla *mla = class->mla;
    const char *method = json_string_value(json_object_get(root, "topk_method"));
    if (mla->limited != NULL && (method == NULL || strcmp(method, mla->limited) != 0))
        return ASSAY_OK; /* n_group is not read */
    int64_t groups = mla->groups, chosen = mla->groups_chosen;
    ASSAY_TRY(assay_json_get_i64(root, "n_group", groups == 0, 1, ASSAY_MAX_EXPERTS, what, &groups));
    ASSAY_TRY(assay_json_get_i64(root, "topk_group", chosen == 0, 1, ASSAY_MAX_EXPERTS, what, &chosen));
    ASSAY_CHECK(chosen <= groups, ASSAY_MISMATCH, "%s: topk_group %lld is more than n_group %lld", what,
                (long long)chosen, (long long)groups);
    if (groups == 1) /* no limit */
        return ASSAY_OK;
    c->moe_router_num_groups = groups;
    c->moe_router_group_topk = chosen;
    /* A group's score is the sum of its best num_experts_per_tok / topk_group with Megatron-LM and us. */
    ASSAY_CHECK(c->moe_router_topk / chosen == mla->group_best, ASSAY_UNSUPPORTED,
                "%s: num_experts_per_tok %lld of topk_group %lld groups: a group's score is the sum of its "
                "best %lld where %s takes %lld; only %lld is supported yet",
                what, (long long)c->moe_router_topk, (long long)chosen,
                (long long)(c->moe_router_topk / chosen), class->model_type, (long long)mla->group_best,
                (long long)mla->group_best);
    return ASSAY_OK;
}

assay_status assay_config_read_mla_experts(const json_t *root, const char *what, assay_model_config *c)
{
    const int64_t most = ASSAY_MAX_EXPERTS;
    const assay_hf_class *class = assay_hf_class_of(c->arch);
    int64_t dense = class->mla->first_dense, shared = class->mla->shared, again = 0;
    ASSAY_TRY(assay_json_get_i64(root, "first_k_dense_replace", false, 0, (int64_t)1 << 40, what, &dense));
    for (int64_t l = 0; l < c->num_layers; l++)
        c->mlp[l] = l < dense ? ASSAY_MLP_DENSE : ASSAY_MLP_MOE;
    if (dense >= c->num_layers)
        return ASSAY_OK;
    ASSAY_TRY(assay_json_get_i64(root, "n_routed_experts", true, 1, most, what, &c->num_moe_experts));
    again = c->num_moe_experts;
    ASSAY_TRY(assay_json_get_i64(root, "num_local_experts", false, 1, most, what, &again));
    ASSAY_CHECK(again == c->num_moe_experts, ASSAY_MISMATCH,
                "%s: n_routed_experts is %lld, but num_local_experts is %lld", what,
                (long long)c->num_moe_experts, (long long)again);
    c->moe_router_topk = class->moe.per_token;
    ASSAY_TRY(assay_json_get_i64(root, "num_experts_per_tok", class->moe.per_token == 0, 1, most, what,
                                 &c->moe_router_topk));
    ASSAY_TRY(assay_json_get_i64(root, "moe_intermediate_size", true, 1, ASSAY_CONFIG_MAX_DIM, what,
                                 &c->moe_ffn_hidden_size));
    ASSAY_TRY(assay_json_get_i64(root, "n_shared_experts", false, 1, most, what, &shared));
    c->moe_shared_expert_intermediate_size = shared * c->moe_ffn_hidden_size;
    c->moe_router_score_function = class->mla->scores;
    c->moe_router_pre_softmax =
        class->mla->scores == ASSAY_SCORE_SOFTMAX; /* of all experts, then the choice */
    c->moe_router_enable_expert_bias = class->mla->expert_bias;
    ASSAY_TRY(assay_config_read_flag(root, class->moe.norm_topk_prob, what, &c->norm_topk_prob));
    c->moe_router_topk_scaling_factor = class->mla->scaling;
    ASSAY_TRY(assay_json_get_double(root, "routed_scaling_factor", false, 1e-6, 1e6, what,
                                    &c->moe_router_topk_scaling_factor));
    ASSAY_CHECK(
        class->mla->scores == ASSAY_SCORE_SOFTMAX || !c->norm_topk_prob || c->moe_router_topk > 1,
        ASSAY_UNSUPPORTED,
        "%s: num_experts_per_tok 1 with norm_topk_prob: %s gives the one expert a weight of 1; here, as "
        "in Megatron-LM, its score stays; expected 2 or more, or norm_topk_prob false",
        what, class->model_type);
    return read_groups(root, what, c);
}

static int put(json_t *root, const char *key, int64_t value)
{
    return json_object_set_new(root, key, json_integer(value));
}

int assay_config_write_mla(const assay_model_config *c, json_t *root)
{
    const assay_hf_mla *mla = assay_hf_class_of(c->arch)->mla;
    int64_t dense = 0;
    while (dense < c->num_layers && c->mlp[dense] == ASSAY_MLP_DENSE)
        dense++;
    int failed = json_object_set_new(root, "q_lora_rank",
                                     c->q_lora_rank > 0 ? json_integer(c->q_lora_rank) : json_null());
    failed |= put(root, "kv_lora_rank", c->kv_lora_rank);
    failed |= put(root, "qk_nope_head_dim", c->qk_head_dim);
    failed |= put(root, "qk_rope_head_dim", c->qk_pos_emb_head_dim);
    failed |= put(root, "v_head_dim", c->v_head_dim);
    if (mla->rope_interleave) {
        failed |= json_object_set_new(root, "rope_interleave", json_true());
        failed |= put(root, "num_nextn_predict_layers", 0);
    }
    failed |= json_object_set_new(root, "attention_bias", json_false());
    failed |= put(root, "first_k_dense_replace", dense);
    if (c->num_moe_experts == 0)
        return failed;
    const bool groups = c->moe_router_num_groups > 0;
    failed |= put(root, "n_routed_experts", c->num_moe_experts);
    failed |= put(root, "num_experts_per_tok", c->moe_router_topk);
    failed |= put(root, "moe_intermediate_size", c->moe_ffn_hidden_size);
    failed |= put(root, "n_shared_experts", c->moe_shared_expert_intermediate_size / c->moe_ffn_hidden_size);
    failed |= json_object_set_new(root, "norm_topk_prob", json_boolean(c->norm_topk_prob));
    failed |=
        json_object_set_new(root, "routed_scaling_factor", json_real(c->moe_router_topk_scaling_factor));
    if (mla->limited != NULL)
        failed |=
            json_object_set_new(root, "topk_method", json_string(groups ? mla->limited : mla->topk_method));
    failed |= put(root, "n_group", groups ? c->moe_router_num_groups : 1);
    failed |= put(root, "topk_group", groups ? c->moe_router_group_topk : 1);
    return failed;
}

/* --- Megatron-LM -------------------------------------------------------------------------------------------- */

static bool is_off(const json_t *value)
{
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0.0);
}

assay_status assay_config_read_megatron_mla(const json_t *root, bool form, const char *what,
                                            assay_model_config *c)
{
    const json_t *word = json_object_get(root, "multi_latent_attention"),
                 *norms = json_object_get(root, "qk_layernorm");
    const char *const *yarn = assay_config_yarn_words();
    ASSAY_CHECK(is_off(word) || json_is_true(word), ASSAY_FORMAT,
                "%s: multi_latent_attention: expected true or false", what);
    for (int i = 0; yarn[i] != NULL && is_off(word); i++)
        ASSAY_CHECK(json_object_get(root, yarn[i]) == NULL, ASSAY_UNSUPPORTED,
                    "%s: %s: a word of multi-latent attention, which this model does not have", what,
                    yarn[i]);
    if (is_off(word))
        return ASSAY_OK;
    /* Megatron-LM's default is false, which leaves both inner norms out. */
    ASSAY_CHECK(norms == NULL ? !form : json_is_true(norms), ASSAY_UNSUPPORTED,
                "%s: qk_layernorm: %s: multi-latent attention without its inner norms is not supported yet, "
                "expected true",
                what, norms == NULL ? "missing" : "not true");
    ASSAY_CHECK(!form || json_object_get(root, "q_lora_rank") != NULL, ASSAY_FORMAT,
                "%s: q_lora_rank: missing, expected an integer or null (Megatron-LM's default is 512)", what);
    if (form) /* Megatron-LM's default */
        c->rope_type = ASSAY_ROPE_YARN;
    c->mixer[0] = ASSAY_MIXER_MLA; /* of all layers, when their number is known */
    return ASSAY_OK;
}
