/* config.json of `megatron`: the members of assay_model_config under their own names, and Megatron-LM's form of a
 * model, whose words are those of TransformerConfig and GPTModel (docs/MEGATRON.md).
 * Source: megatron-core 0.16.1, transformer_config.py, gpt_model.py, moe/router.py. */
#include "core/model/config_internal.h"

#include <stdlib.h>
#include <string.h>

/* --- words that only Megatron-LM has ------------------------------------------------------------------------- */

/* A word with the values that mean what both engines compute, as compact JSON; any other value is a feature that is
 * not there, named by `otherwise`.  "*": every value, because the word is about speed or memory. */
typedef struct checked_word {
    const char *name;
    const char *accepted[4];
    const char *otherwise;
    bool required; /* in Megatron-LM's form: its default is another value than an accepted one */
} checked_word;

#define OFF                                                                                                  \
    {                                                                                                        \
        "null", "false", "0", "0.0"                                                                          \
    }
static const checked_word checked[] = {
    {"normalization", {"\"RMSNorm\""}, "a normalization other than RMSNorm", true},
    {"position_embedding_type", {"\"rope\""}, "a position embedding other than rope", true},
    {"gated_linear_unit", {"true"}, "an MLP without a gate", true},
    {"activation_func", {"\"silu\"", "\"swiglu\""}, "an activation other than silu", true},
    {"rotary_interleaved", OFF, "interleaved rotary dimensions", false},
    {"rope_scaling", OFF, "this spelling (say rope_type llama3 and its factors)", false},
    {"seq_len_interpolation_factor", OFF, "this spelling (say rope_type linear and rope_factor)", false},
    {"layernorm_zero_centered_gamma", OFF, "zero-centered norm weights", false},
    {"cache_mla_latents", OFF, "a cache of compressed keys and values", false},
    {"mtp_num_layers", OFF, "multi-token prediction", false},
    {"qk_l2_norm", OFF, "an L2 norm of q and k", false},
    {"qk_clip", OFF, "QK-clip", false},
    {"attention_output_gate", OFF, "an output gate of attention", false},
    {"experimental_attention_variant", OFF, "another kind of attention", false},
    {"softmax_type", {"\"vanilla\""}, "a softmax with an offset", false},
    {"window_size", OFF, "this spelling (say window, one entry for each layer)", false},
    {"apply_query_key_layer_scaling", OFF, "scaling of scores by the layer's number", false},
    {"apply_residual_connection_post_layernorm", OFF, "a residual behind the norm", false},
    {"fp32_residual_connection", OFF, "a residual stream in F32", false},
    {"moe_router_force_biased", OFF, "forced routing", false},
    {"moe_apply_probs_on_input", OFF, "combine weights on the input of experts", false},
    {"moe_latent_size", OFF, "experts in a latent space", false},
    {"moe_token_dispatcher_type", {"\"allgather\"", "\"alltoall\"", "\"flex\""}, "this dispatcher", false},
    {"moe_grouped_gemm", {"*"}, "", false},
    {"moe_permute_fusion", {"*"}, "", false},
    {"moe_router_fusion", {"*"}, "", false},
    {"bias_activation_fusion", {"*"}, "", false},
    {"masked_softmax_fusion", {"*"}, "", false},
    {"recompute_granularity", {"null", "\"full\"", "\"selective\""}, "this recomputation", false},
    {"recompute_method", {"null", "\"uniform\"", "\"block\""}, "this way of recomputation", false},
    {"recompute_num_layers", {"*"}, "", false},
    {"recompute_modules", {"*"}, "", false},
    {"distribute_saved_activations", OFF, "kept activations that are cut over tp", false},
    {"tensor_model_parallel_size", {"1"}, "a layout in the model's folder (say --layout)", false},
    {"pipeline_model_parallel_size", {"1"}, "a layout in the model's folder (say --layout)", false},
    {"context_parallel_size", {"1"}, "a layout in the model's folder (say --layout)", false},
    {"expert_model_parallel_size", {"1"}, "a layout in the model's folder (say --layout)", false},
    {"sequence_parallel", {"false"}, "a layout in the model's folder (say --layout)", false},
};
#undef OFF
enum { N_CHECKED = sizeof checked / sizeof checked[0] };

/* Words that are read below. */
static const char *const read_words[] = {"untie_embeddings_and_output_weights",
                                         "add_bias_linear",
                                         "moe_layer_freq",
                                         "moe_router_load_balancing_type",
                                         "moe_aux_loss_coeff",
                                         "moe_input_jitter_eps",
                                         "moe_z_loss_coeff",
                                         "moe_router_bias_update_rate",
                                         "calculate_per_token_loss",
                                         "moe_expert_capacity_factor",
                                         "moe_token_drop_policy",
                                         "moe_router_dtype",
                                         "moe_pad_expert_input_to_capacity",
                                         "moe_router_padding_for_quantization",
                                         "moe_router_padding_for_fp8",
                                         "moe_router_force_load_balancing",
                                         "moe_shared_expert_overlap",
                                         "hidden_dropout",
                                         "attention_dropout"};
enum { N_READ = sizeof read_words / sizeof read_words[0] };

static bool is_accepted(const checked_word *w, const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    bool found = false;
    for (int i = 0; i < 4 && text != NULL && w->accepted[i] != NULL; i++)
        found = found || strcmp(w->accepted[i], "*") == 0 || strcmp(w->accepted[i], text) == 0;
    free(text);
    return found;
}

/* Whether a config says anything in a word of Megatron-LM's alone. */
static bool is_megatron_form(const json_t *root)
{
    for (int i = 0; i < N_CHECKED; i++)
        if (json_object_get(root, checked[i].name) != NULL)
            return true;
    for (int i = 0; i < N_READ; i++)
        if (json_object_get(root, read_words[i]) != NULL)
            return true;
    return false;
}

/* What is not there is refused by name; what Megatron-LM would take from a default that is not there must be said. */
static assay_status check_words(const json_t *root, const char *what)
{
    for (int i = 0; i < N_CHECKED; i++) {
        const checked_word *w = &checked[i];
        const json_t *value = json_object_get(root, w->name);
        ASSAY_CHECK(value != NULL || !w->required, ASSAY_FORMAT,
                    "%s: %s: missing; Megatron-LM's default is not supported, expected %s", what, w->name,
                    w->accepted[0]);
        ASSAY_CHECK(value == NULL || is_accepted(w, value), ASSAY_UNSUPPORTED,
                    "%s: %s: %s is not supported yet, expected %s", what, w->name, w->otherwise,
                    w->accepted[0]);
    }
    return ASSAY_OK;
}

/* A bool that must be said, because assay's own default is not Megatron-LM's. */
static assay_status said(const json_t *root, const char *key, const char *what, bool *out)
{
    return assay_json_get_bool(root, key, true, what, out);
}

/* Two words for one thing must agree. */
static assay_status same(const json_t *root, const char *own, bool value, const char *word, const char *what)
{
    const json_t *other = json_object_get(root, own);
    ASSAY_CHECK(other == NULL || !json_is_boolean(other) || json_is_true(other) == value, ASSAY_MISMATCH,
                "%s: %s and %s contradict each other", what, own, word);
    return ASSAY_OK;
}

/* --- load balancing ------------------------------------------------------------------------------------------ */

const char *const *assay_load_balancing_words(void)
{
    static const char *const words[] = {"none", "aux_loss", "seq_aux_loss", "global_aux_loss", NULL};
    return words;
}

/* Entry i of a word that may be a list; the word itself where it is none. */
static const json_t *entry(const json_t *value, size_t i)
{
    return json_is_array(value) ? json_array_get(value, i) : value;
}

static const char type_word[] = "moe_router_load_balancing_type";

static assay_status read_type(const json_t *type, const char *what, int *out)
{
    const char *name = type == NULL ? "aux_loss" : json_string_value(type);
    const char *const *words = assay_load_balancing_words();
    ASSAY_CHECK(name != NULL, ASSAY_FORMAT, "%s: %s: expected a string", what, type_word);
    for (*out = 0; words[*out] != NULL; (*out)++)
        if (strcmp(words[*out], name) == 0)
            return ASSAY_OK;
    ASSAY_FAIL(ASSAY_UNSUPPORTED,
               "%s: %s: %.64s is not supported yet, expected none, aux_loss, seq_aux_loss or global_aux_loss",
               what, type_word, name);
}

static assay_status read_balancing(const json_t *root, const char *what, assay_config_training *t)
{
    const json_t *types = json_object_get(root, type_word),
                 *coeffs = json_object_get(root, "moe_aux_loss_coeff");
    const size_t n = json_is_array(types) ? json_array_size(types) : 1;
    ASSAY_CHECK(coeffs == NULL || json_is_array(coeffs) == json_is_array(types), ASSAY_FORMAT,
                "%s: moe_aux_loss_coeff: expected a list where %s is one", what, type_word);
    ASSAY_CHECK(!json_is_array(types) || json_array_size(coeffs) == n, ASSAY_MISMATCH,
                "%s: moe_aux_loss_coeff: expected %zu coefficients, one for each %s", what, n, type_word);
    ASSAY_CHECK(n >= 1 && n <= ASSAY_MAX_LIST, ASSAY_LIMIT, "%s: %s: expected 1 to %d words, found %zu", what,
                type_word, ASSAY_MAX_LIST, n);
    t->moe_router_load_balancing_type.n = t->moe_aux_loss_coeff.n = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *coeff = coeffs != NULL ? entry(coeffs, i) : NULL;
        ASSAY_CHECK(coeff == NULL || json_is_number(coeff), ASSAY_FORMAT,
                    "%s: moe_aux_loss_coeff: expected a number", what);
        const double value = coeff == NULL ? 0.0 : json_number_value(coeff);
        ASSAY_CHECK(value >= 0.0 && value <= 1e6, ASSAY_LIMIT,
                    "%s: moe_aux_loss_coeff: expected 0 to 1e6, found %g", what, value);
        ASSAY_TRY(read_type(types != NULL ? entry(types, i) : NULL, what,
                            &t->moe_router_load_balancing_type.of[i]));
        t->moe_aux_loss_coeff.of[i] = value;
    }
    return ASSAY_OK;
}

/* --- both forms ---------------------------------------------------------------------------------------------- */

static assay_status read_field(const json_t *root, const assay_config_field *f, const char *what,
                               assay_model_config *c)
{
    const bool mla = c->mixer[0] == ASSAY_MIXER_MLA;
    void *at = (char *)c + f->offset;
    char text[64] = "";
    switch (f->type) {
    case ASSAY_FIELD_I64:
        ASSAY_TRY(assay_json_get_i64(root, f->name, f->required, 0, (int64_t)1 << 40, what, at));
        return ASSAY_OK;
    case ASSAY_FIELD_DOUBLE:
        ASSAY_TRY(assay_json_get_double(root, f->name, f->required, 0.0, 1e15, what, at));
        return ASSAY_OK;
    case ASSAY_FIELD_BOOL:
        if (mla && at == &c->qk_layernorm) /* of the inner norms, which every such model has */
            return ASSAY_OK;
        ASSAY_TRY(assay_json_get_bool(root, f->name, f->required, what, at));
        return ASSAY_OK;
    case ASSAY_FIELD_ROPE_TYPE:
        ASSAY_TRY(assay_json_get_string(root, f->name, f->required, what, text, sizeof text));
        if (mla && strcmp(text, "rope") == 0) /* Megatron-LM's word for it there */
            *(assay_rope_type *)at = ASSAY_ROPE_DEFAULT;
        else if (text[0] != '\0')
            ASSAY_TRY(assay_rope_from_name(text, what, at));
        return ASSAY_OK;
    case ASSAY_FIELD_SCORE:
        ASSAY_TRY(assay_json_get_string(root, f->name, f->required, what, text, sizeof text));
        if (text[0] != '\0')
            ASSAY_TRY(assay_score_from_name(text, what, at));
        return ASSAY_OK;
    }
    return ASSAY_OK;
}

/* `key`: an array with one entry for each layer; NULL when absent. */
static assay_status layer_list(const json_t *root, const char *key, int64_t num_layers, const char *what,
                               const json_t **out)
{
    const json_t *list = json_object_get(root, key);
    *out = NULL;
    if (list == NULL || json_is_null(list))
        return ASSAY_OK;
    ASSAY_CHECK(json_is_array(list), ASSAY_FORMAT, "%s: %s: expected an array", what, key);
    ASSAY_CHECK((int64_t)json_array_size(list) == num_layers, ASSAY_MISMATCH,
                "%s: %s: expected %lld entries, one for each layer, found %zu", what, key,
                (long long)num_layers, json_array_size(list));
    *out = list;
    return ASSAY_OK;
}

static assay_status read_layers(const json_t *root, const char *what, assay_model_config *c)
{
    const json_t *windows, *moe;
    ASSAY_CHECK(c->num_layers >= 1 && c->num_layers <= ASSAY_MAX_LAYERS, ASSAY_LIMIT,
                "%s: num_layers: expected 1 to %d, found %lld", what, ASSAY_MAX_LAYERS,
                (long long)c->num_layers);
    ASSAY_TRY(layer_list(root, "window", c->num_layers, what, &windows));
    ASSAY_TRY(layer_list(root, "layer_is_moe", c->num_layers, what, &moe));
    for (int64_t l = 0; l < c->num_layers; l++) {
        if (windows != NULL) {
            const json_t *entry = json_array_get(windows, (size_t)l);
            ASSAY_CHECK(json_is_integer(entry), ASSAY_FORMAT, "%s: window[%lld]: expected an integer", what,
                        (long long)l);
            c->window[l] = json_integer_value(entry);
        }
        c->mixer[l] = c->mixer[0];
        c->mlp[l] = c->num_moe_experts > 0 ? ASSAY_MLP_MOE : ASSAY_MLP_DENSE;
        if (moe != NULL) {
            const json_t *entry = json_array_get(moe, (size_t)l);
            ASSAY_CHECK(json_is_boolean(entry), ASSAY_FORMAT,
                        "%s: layer_is_moe[%lld]: expected true or false", what, (long long)l);
            c->mlp[l] = json_is_true(entry) ? ASSAY_MLP_MOE : ASSAY_MLP_DENSE;
        }
    }
    return ASSAY_OK;
}

/* moe_layer_freq N: layers 0, N, 2N, ... are mixtures of experts; a list says it of each. */
static assay_status read_frequency(const json_t *root, const char *what, assay_model_config *c)
{
    const json_t *freq = json_object_get(root, "moe_layer_freq");
    if (freq == NULL || json_is_null(freq) || c->num_moe_experts == 0)
        return ASSAY_OK;
    ASSAY_CHECK(json_object_get(root, "layer_is_moe") == NULL, ASSAY_MISMATCH,
                "%s: moe_layer_freq and layer_is_moe: expected one of them", what);
    const json_t *list = NULL;
    if (json_is_array(freq))
        ASSAY_TRY(layer_list(root, "moe_layer_freq", c->num_layers, what, &list));
    ASSAY_CHECK(list != NULL || (json_is_integer(freq) && json_integer_value(freq) >= 1), ASSAY_FORMAT,
                "%s: moe_layer_freq: expected a number of at least 1 or a list of 0 and 1", what);
    for (int64_t l = 0; l < c->num_layers; l++) {
        const json_t *flag = list != NULL ? json_array_get(list, (size_t)l) : NULL;
        const int64_t value = json_integer_value(flag);
        ASSAY_CHECK(flag == NULL || (json_is_integer(flag) && (value == 0 || value == 1)), ASSAY_FORMAT,
                    "%s: moe_layer_freq[%lld]: expected 0 or 1", what, (long long)l);
        const bool moe = flag != NULL ? value == 1 : l % json_integer_value(freq) == 0;
        c->mlp[l] = moe ? ASSAY_MLP_MOE : ASSAY_MLP_DENSE;
    }
    return ASSAY_OK;
}

/* What Megatron-LM's form says beyond the members of the struct. */
static assay_status read_form(const json_t *root, const char *what, assay_model_config *c)
{
    bool untied = false, bias = false;
    assay_config_training *t = &c->training;
    ASSAY_TRY(check_words(root, what));
    ASSAY_TRY(said(root, "untie_embeddings_and_output_weights", what, &untied));
    ASSAY_TRY(same(root, "tie_word_embeddings", !untied, "untie_embeddings_and_output_weights", what));
    ASSAY_TRY(said(root, "add_bias_linear", what, &bias));
    ASSAY_TRY(same(root, "add_proj_bias", bias, "add_bias_linear", what));
    ASSAY_TRY(same(root, "add_mlp_bias", bias, "add_bias_linear", what));
    ASSAY_CHECK(!bias || c->num_moe_experts == 0, ASSAY_UNSUPPORTED,
                "%s: add_bias_linear: biases of router and experts are not supported yet, expected false",
                what);
    c->tie_word_embeddings = !untied;
    c->add_qkv_bias = c->add_qkv_bias || bias;
    c->add_proj_bias = c->add_mlp_bias = bias;
    ASSAY_TRY(read_frequency(root, what, c));
    *t = (assay_config_training){.given = true, .moe_router_bias_update_rate = 1e-3};
    /* said, because Megatron-LM's default is 0.1 */
    ASSAY_CHECK(json_object_get(root, "hidden_dropout") && json_object_get(root, "attention_dropout"),
                ASSAY_FORMAT, "%s: %s: missing, expected a number (Megatron-LM's default is 0.1)", what,
                json_object_get(root, "hidden_dropout") ? "attention_dropout" : "hidden_dropout");
    ASSAY_TRY(assay_config_read_dropout(root, "hidden_dropout", what, &t->hidden_dropout));
    ASSAY_TRY(assay_config_read_dropout(root, "attention_dropout", what, &t->attention_dropout));
    ASSAY_TRY(read_balancing(root, what, t));
    ASSAY_TRY(assay_config_read_experts(root, what, t));
    if (!json_is_null(json_object_get(root, "moe_input_jitter_eps")))
        ASSAY_TRY(assay_json_get_double(root, "moe_input_jitter_eps", false, 0.0, 1.0, what,
                                        &t->moe_input_jitter_eps));
    ASSAY_TRY(assay_json_get_double(root, "moe_z_loss_coeff", false, 0.0, 1e6, what, &t->moe_z_loss_coeff));
    ASSAY_TRY(assay_json_get_double(root, "moe_router_bias_update_rate", false, 0.0, 1e6, what,
                                    &t->moe_router_bias_update_rate));
    return assay_json_get_bool(root, "calculate_per_token_loss", false, what, &t->calculate_per_token_loss);
}

/* Every member is one of the struct, a list of layers, or a word of Megatron-LM's. */
static assay_status only_known(const json_t *root, const char *what)
{
    static const char *const others[] = {"model_type", "architectures", "window", "layer_is_moe",
                                         "multi_latent_attention"};
    enum { MAX_WORDS = 128, N_OTHERS = sizeof others / sizeof others[0] };
    const char *allowed[MAX_WORDS + 1];
    int n = 0;
    for (const assay_config_field *f = assay_config_fields(); f->name != NULL && n < MAX_WORDS; f++)
        allowed[n++] = f->name;
    for (int i = 0; i < N_OTHERS && n < MAX_WORDS; i++)
        allowed[n++] = others[i];
    for (int i = 0; i < N_CHECKED && n < MAX_WORDS; i++)
        allowed[n++] = checked[i].name;
    for (int i = 0; i < N_READ && n < MAX_WORDS; i++)
        allowed[n++] = read_words[i];
    for (const char *const *word = assay_config_yarn_words(); *word != NULL && n < MAX_WORDS; word++)
        allowed[n++] = *word;
    allowed[n] = NULL;
    return assay_json_only(root, allowed, what);
}

assay_status assay_config_read_megatron(const json_t *root, const char *what, assay_model_config *c)
{
    ASSAY_TRY(only_known(root, what));
    ASSAY_TRY(assay_config_read_megatron_mla(root, is_megatron_form(root), what, c));
    /* Read in table order; a default that depends on another member is filled in after that member. */
    for (const assay_config_field *f = assay_config_fields(); f->name != NULL; f++)
        ASSAY_TRY(read_field(root, f, what, c));
    if (c->moe_router_topk_scaling_factor == 0.0 && is_megatron_form(root))
        c->moe_router_topk_scaling_factor = 1.0; /* none */
    ASSAY_TRY(assay_config_read_megatron_yarn(root, is_megatron_form(root), what, c));
    if (c->num_query_groups == 0)
        c->num_query_groups = c->num_attention_heads;
    if (assay_config_is_mla(c) && json_object_get(root, "mla_layernorm_epsilon") == NULL)
        c->mla_layernorm_epsilon = c->layernorm_epsilon;
    if (c->kv_channels == 0 && assay_config_is_mla(c))
        c->kv_channels = c->qk_head_dim + c->qk_pos_emb_head_dim;
    if (c->kv_channels == 0) {
        ASSAY_CHECK(c->num_attention_heads > 0 && c->hidden_size % c->num_attention_heads == 0,
                    ASSAY_MISMATCH,
                    "%s: kv_channels is absent and hidden_size %lld is not a multiple of num_attention_heads "
                    "%lld",
                    what, (long long)c->hidden_size, (long long)c->num_attention_heads);
        c->kv_channels = c->hidden_size / c->num_attention_heads;
    }
    if (c->num_moe_experts > 0 && c->moe_ffn_hidden_size == 0)
        c->moe_ffn_hidden_size = c->ffn_hidden_size;
    if (c->num_moe_experts > 0 && c->moe_router_topk == 0)
        c->moe_router_topk = 2;
    /* Megatron-LM has no such switch: sigmoid scores are always normalised when more than one is chosen. */
    if (json_object_get(root, "norm_topk_prob") == NULL)
        c->norm_topk_prob = c->moe_router_score_function == ASSAY_SCORE_SIGMOID && c->moe_router_topk > 1;
    if ((c->rope_type == ASSAY_ROPE_LLAMA3 || c->rope_type == ASSAY_ROPE_YARN) &&
        c->rope_original_max_position_embeddings == 0)
        c->rope_original_max_position_embeddings = c->max_position_embeddings;
    ASSAY_TRY(read_layers(root, what, c));
    return is_megatron_form(root) ? read_form(root, what, c) : ASSAY_OK;
}
