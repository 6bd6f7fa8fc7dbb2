/* Hugging Face config.json: one reader for all classes (their rows: config_hf_class.c).
 * An absent field has the default of its class, except that the sizes a model cannot do without must be there. */
#include "core/model/config_internal.h"
#include "core/model/quantization.h"

#include <string.h>

static const int64_t max_length = (int64_t)1 << 40;

static bool is_null(const json_t *root, const char *key)
{
    const json_t *value = json_object_get(root, key);
    return value != NULL && json_is_null(value);
}

static assay_status required_size(const json_t *root, const char *key, int64_t max, const char *what,
                                  int64_t *out)
{
    ASSAY_TRY(assay_json_get_i64(root, key, true, 1, max, what, out));
    return ASSAY_OK;
}

static bool is_key(assay_hf_flag flag, const char *key)
{
    return flag.key != NULL && strcmp(flag.key, key) == 0;
}

/* Fields that the class ignores, when somebody set them: what they ask for would not happen. */
static assay_status refuse_ignored(const json_t *root, const char *what, const assay_hf_class *class)
{
    static const char *const biases[] = {"attention_bias", "mlp_bias"};
    for (int i = 0; i < 2 && class->strict; i++) {
        const bool read = is_key(class->qkv_bias, biases[i]) || is_key(class->proj_bias, biases[i]) ||
                          is_key(class->mlp_bias, biases[i]) ||
                          (class->mla != NULL && i == 0); /* config_mla.c */
        ASSAY_CHECK(read || !json_is_true(json_object_get(root, biases[i])), ASSAY_UNSUPPORTED,
                    "%s: %s: %s has no such bias, expected false or nothing", what, biases[i],
                    class->model_type);
    }
    const json_t *window = json_object_get(root, "sliding_window");
    ASSAY_CHECK(!class->strict || class->window != ASSAY_HF_WINDOW_NONE || window == NULL ||
                    json_is_null(window),
                ASSAY_UNSUPPORTED, "%s: sliding_window: %s has no window, expected null or nothing", what,
                class->model_type);
    const bool always = class->window == ASSAY_HF_WINDOW_EVERY || class->window == ASSAY_HF_WINDOW_LISTED;
    ASSAY_CHECK(
        !class->strict || !always || !json_is_false(json_object_get(root, "use_sliding_window")),
        ASSAY_UNSUPPORTED,
        "%s: use_sliding_window: %s does not read it and has its window, expected sliding_window null "
        "for none",
        what, class->model_type);
    for (int i = 0; i < 2; i++)
        ASSAY_CHECK(class->not_null[i] == NULL || !is_null(root, class->not_null[i]), ASSAY_FORMAT,
                    "%s: %s: expected an integer or nothing, found null", what, class->not_null[i]);
    ASSAY_CHECK(!class->moe.one_name || json_object_get(root, "num_local_experts") == NULL, ASSAY_UNSUPPORTED,
                "%s: num_local_experts: %s reads num_experts only", what, class->model_type);
    return ASSAY_OK;
}

/* Fields that change the arithmetic in a way nobody here computes are refused, not ignored. */
static assay_status refuse_unsupported(const json_t *root, const char *what)
{
    char activation[64] = "silu";
    ASSAY_TRY(assay_json_get_string(root, "hidden_act", false, what, activation, sizeof activation));
    ASSAY_CHECK(strcmp(activation, "silu") == 0, ASSAY_UNSUPPORTED,
                "%s: hidden_act: unknown activation '%s', expected silu", what, activation);
    const json_t *causal = json_object_get(root, "is_causal");
    ASSAY_CHECK(causal == NULL || json_is_true(causal), ASSAY_UNSUPPORTED,
                "%s: is_causal: what is not true (null, too) makes transformers' mask bidirectional, which "
                "is not supported; expected true or nothing",
                what);
    double jitter = 0.0;
    ASSAY_TRY(assay_json_get_double(root, "router_jitter_noise", false, 0.0, 1.0, what, &jitter));
    ASSAY_CHECK(
        jitter == 0.0, ASSAY_UNSUPPORTED,
        "%s: router_jitter_noise: only 0 is supported, found %g (it jitters what the experts read as well; "
        "of the router's input alone: --moe-input-jitter-eps)",
        what, jitter);
    assay_quantization quantization; /* of the stored weights alone: what is computed is the same model */
    return assay_quantization_read(root, what, &quantization);
}

/* residual_dropout is ignored by the classes that do not have it, unless somebody set it: then what it asks for would not
 * happen. */
static assay_status read_dropout(const json_t *root, const char *what, assay_model_config *c)
{
    const assay_hf_class *class = assay_hf_class_of(c->arch);
    assay_config_training *t = &c->training;
    t->attention_dropout = class->dropout;
    t->residual_dropout = class->residual_dropout ? class->dropout : 0.0;
    ASSAY_TRY(assay_config_read_dropout(root, "attention_dropout", what, &t->attention_dropout));
    ASSAY_TRY(assay_config_read_dropout(root, "residual_dropout", what, &t->residual_dropout));
    ASSAY_CHECK(class->residual_dropout || t->residual_dropout == 0.0, ASSAY_UNSUPPORTED,
                "%s: residual_dropout: %s has none, expected 0 or nothing, found %g", what, class->model_type,
                t->residual_dropout);
    return ASSAY_OK;
}

static assay_status read_sizes(const json_t *root, const char *what, assay_model_config *c)
{
    const int64_t big = ASSAY_CONFIG_MAX_DIM;
    const assay_hf_class *class = assay_hf_class_of(c->arch);
    ASSAY_TRY(required_size(root, "hidden_size", big, what, &c->hidden_size));
    ASSAY_TRY(required_size(root, "num_hidden_layers", ASSAY_MAX_LAYERS, what, &c->num_layers));
    ASSAY_TRY(required_size(root, "num_attention_heads", big, what, &c->num_attention_heads));
    ASSAY_TRY(required_size(root, "vocab_size", big, what, &c->vocab_size));
    ASSAY_TRY(required_size(root, "intermediate_size", big, what, &c->ffn_hidden_size));

    const bool as_heads = class->key_value_heads == 0 || is_null(root, "num_key_value_heads");
    c->num_query_groups = as_heads ? c->num_attention_heads : class->key_value_heads;
    ASSAY_TRY(assay_json_get_i64(root, "num_key_value_heads", false, 1, big, what, &c->num_query_groups));

    c->kv_channels = is_null(root, "head_dim") ? 0 : class->head_dim;
    if (class->mla != NULL)
        ASSAY_TRY(assay_config_read_mla(root, what, c));
    else
        ASSAY_TRY(assay_json_get_i64(root, "head_dim", false, 1, big, what, &c->kv_channels));
    if (c->kv_channels == 0) {
        ASSAY_CHECK(
            c->hidden_size % c->num_attention_heads == 0, ASSAY_MISMATCH,
            "%s: head_dim is absent and hidden_size %lld is not a multiple of num_attention_heads %lld", what,
            (long long)c->hidden_size, (long long)c->num_attention_heads);
        c->kv_channels = c->hidden_size / c->num_attention_heads;
    }
    c->max_position_embeddings = class->max_position_embeddings;
    ASSAY_TRY(assay_json_get_i64(root, "max_position_embeddings", false, 1, max_length, what,
                                 &c->max_position_embeddings));
    ASSAY_TRY(assay_json_get_double(root, "rms_norm_eps", false, 0.0, 1.0, what, &c->layernorm_epsilon));
    ASSAY_TRY(assay_json_get_double(root, "initializer_range", false, 0.0, 1e3, what, &c->init_method_std));
    ASSAY_TRY(assay_json_get_double(root, "init_constant_std", false, 0.0, 1e3, what, &c->init_constant_std));
    ASSAY_TRY(assay_json_get_bool(root, "tie_word_embeddings", false, what, &c->tie_word_embeddings));
    return ASSAY_OK;
}

/* nn.Embedding(vocab_size, hidden_size, padding_idx=pad_token_id): a negative id counts from the end. */
static assay_status read_padding(const json_t *root, const char *what, assay_model_config *c)
{
    const assay_hf_class *class = assay_hf_class_of(c->arch);
    int64_t id = class->pad_token_id;
    if (is_null(root, "pad_token_id") ||
        (json_object_get(root, "pad_token_id") == NULL && !class->has_pad_token_id))
        return ASSAY_OK;
    ASSAY_TRY(assay_json_get_i64(root, "pad_token_id", false, INT64_MIN, INT64_MAX, what, &id));
    ASSAY_CHECK(id >= -c->vocab_size && id < c->vocab_size, ASSAY_LIMIT,
                "%s: pad_token_id: the embedding's padding_idx, expected null or %lld to %lld, found %lld",
                what, (long long)-c->vocab_size, (long long)c->vocab_size - 1, (long long)id);
    c->pad_token_id = id < 0 ? id + c->vocab_size : id;
    return ASSAY_OK;
}

assay_status assay_config_read_flag(const json_t *root, assay_hf_flag flag, const char *what, bool *out)
{
    *out = flag.value;
    return flag.key ? assay_json_get_bool(root, flag.key, false, what, out) : ASSAY_OK;
}

/* --- sliding window ----------------------------------------------------------------------------------------- */

/* `layer_types` of qwen2, qwen3, ministral: one word for each layer. */
static assay_status read_layer_types(const json_t *list, int64_t window, const char *what,
                                     assay_model_config *c)
{
    ASSAY_CHECK(json_is_array(list), ASSAY_FORMAT, "%s: layer_types: expected an array", what);
    ASSAY_CHECK((int64_t)json_array_size(list) == c->num_layers, ASSAY_MISMATCH,
                "%s: layer_types: expected num_hidden_layers = %lld entries, found %zu", what,
                (long long)c->num_layers, json_array_size(list));
    for (int64_t l = 0; l < c->num_layers; l++) {
        const char *word = json_string_value(json_array_get(list, (size_t)l));
        ASSAY_CHECK(word != NULL, ASSAY_FORMAT, "%s: layer_types[%lld]: expected a string", what,
                    (long long)l);
        const bool sliding = strcmp(word, "sliding_attention") == 0;
        ASSAY_CHECK(sliding || strcmp(word, "full_attention") == 0, ASSAY_UNSUPPORTED,
                    "%s: layer_types[%lld]: expected full_attention or sliding_attention, found '%.64s'",
                    what, (long long)l, word);
        ASSAY_CHECK(
            !sliding || window > 0, ASSAY_MISMATCH,
            "%s: layer_types[%lld] is sliding_attention, but use_sliding_window or sliding_window says "
            "that there is no window",
            what, (long long)l);
        c->window[l] = sliding ? window : 0;
    }
    return ASSAY_OK;
}

/* `layer_types` in the file of a class that ignores it must say what the class does. */
static assay_status check_layer_types(const json_t *root, const char *what, const assay_model_config *c)
{
    const json_t *types = json_object_get(root, "layer_types");
    for (int64_t l = 0; l < c->num_layers && assay_hf_class_of(c->arch)->strict && json_is_array(types);
         l++) {
        const char *word = json_string_value(json_array_get(types, (size_t)l));
        ASSAY_CHECK(word != NULL &&
                        strcmp(word, c->window[l] > 0 ? "sliding_attention" : "full_attention") == 0,
                    ASSAY_MISMATCH, "%s: layer_types[%lld]: %s ignores it and computes %s, found '%.64s'",
                    what, (long long)l, assay_arch_name(c->arch),
                    c->window[l] > 0 ? "sliding_attention" : "full_attention", word ? word : "?");
    }
    return ASSAY_OK;
}

static assay_status read_window(const json_t *root, const char *what, assay_model_config *c)
{
    const assay_hf_class *class = assay_hf_class_of(c->arch);
    if (class->window == ASSAY_HF_WINDOW_NONE)
        return check_layer_types(root, what, c);
    int64_t window = is_null(root, "sliding_window") ? 0 : class->sliding_window, limit = 28;
    const bool by_limit =
        class->window == ASSAY_HF_WINDOW_LAST || class->window == ASSAY_HF_WINDOW_EVEN_FIRST;
    bool used = class->window == ASSAY_HF_WINDOW_EVERY || class->window == ASSAY_HF_WINDOW_LISTED;
    if (!used)
        ASSAY_TRY(assay_json_get_bool(root, "use_sliding_window", false, what, &used));
    ASSAY_CHECK(!used || class->window != ASSAY_HF_WINDOW_EVEN_FIRST || !is_null(root, "sliding_window"),
                ASSAY_MISMATCH, "%s: sliding_window: null, but use_sliding_window is true", what);
    /* transformers writes 0 for a window that is not used */
    ASSAY_TRY(assay_json_get_i64(root, "sliding_window", false, used ? 1 : 0, max_length, what, &window));
    if (!used)
        window = 0;
    const json_t *types = json_object_get(root, "layer_types");
    if ((by_limit || class->window == ASSAY_HF_WINDOW_LISTED) && types != NULL && !json_is_null(types))
        return read_layer_types(types, window, what, c);
    if (by_limit)
        ASSAY_TRY(assay_json_get_i64(root, "max_window_layers", false, 0, max_length, what, &limit));
    for (int64_t l = 0; l < c->num_layers; l++) {
        const bool sliding = class->window == ASSAY_HF_WINDOW_LAST         ? l >= limit
                             : class->window == ASSAY_HF_WINDOW_EVEN_FIRST ? l % 2 == 0 && l < limit
                                                                           : true;
        c->window[l] = sliding ? window : 0;
    }
    return class->window == ASSAY_HF_WINDOW_EVERY || class->window == ASSAY_HF_WINDOW_FLAG
               ? check_layer_types(root, what, c)
               : ASSAY_OK;
}

/* --- experts ----------------------------------------------------------------------------------------------
 */

/* Both classes answer to both names. */
static assay_status read_expert_count(const json_t *root, const char *what, int64_t min, int64_t *out)
{
    static const char *const keys[] = {"num_experts", "num_local_experts"};
    int64_t count[2] = {-1, -1};
    for (int i = 0; i < 2; i++)
        ASSAY_TRY(assay_json_get_i64(root, keys[i], false, min, ASSAY_MAX_EXPERTS, what, &count[i]));
    ASSAY_CHECK(count[0] >= 0 || count[1] >= 0, ASSAY_FORMAT,
                "%s: num_local_experts (or num_experts): missing, expected an integer", what);
    ASSAY_CHECK(count[0] < 0 || count[1] < 0 || count[0] == count[1], ASSAY_MISMATCH,
                "%s: num_experts is %lld, but num_local_experts is %lld", what, (long long)count[0],
                (long long)count[1]);
    *out = count[0] >= 0 ? count[0] : count[1];
    return ASSAY_OK;
}

/* Layer l is a mixture of experts unless listed in mlp_only_layers, every decoder_sparse_step layers. */
static assay_status read_sparse_layers(const json_t *root, const char *what, assay_model_config *c)
{
    int64_t step = 1;
    ASSAY_TRY(assay_json_get_i64(root, "decoder_sparse_step", false, 1, max_length, what, &step));
    for (int64_t l = 0; l < c->num_layers; l++)
        c->mlp[l] = c->num_moe_experts > 0 && (l + 1) % step == 0 ? ASSAY_MLP_MOE : ASSAY_MLP_DENSE;
    const json_t *dense = json_object_get(root, "mlp_only_layers");
    if (dense == NULL || json_is_null(dense))
        return ASSAY_OK;
    ASSAY_CHECK(json_is_array(dense), ASSAY_FORMAT, "%s: mlp_only_layers: expected an array", what);
    for (size_t i = 0; i < json_array_size(dense); i++) {
        const json_t *entry = json_array_get(dense, i);
        ASSAY_CHECK(json_is_integer(entry), ASSAY_FORMAT, "%s: mlp_only_layers[%zu]: expected an integer",
                    what, i);
        const int64_t l = json_integer_value(entry);
        ASSAY_CHECK(l >= 0 && l < c->num_layers, ASSAY_LIMIT,
                    "%s: mlp_only_layers[%zu]: expected 0 to %lld, found %lld", what, i,
                    (long long)c->num_layers - 1, (long long)l);
        c->mlp[l] = ASSAY_MLP_DENSE;
    }
    return ASSAY_OK;
}

/* Hugging Face adds its own balancing loss (one of all layers together) as soon as router logits are asked for.  Ours is
 * Megatron-LM's, per layer, from the options: a config that asks for theirs is not trained as something else. */
static assay_status refuse_router_logits(const json_t *root, const char *what)
{
    bool asked = false;
    double coefficient = -1.0;
    ASSAY_TRY(assay_json_get_bool(root, "output_router_logits", false, what, &asked));
    ASSAY_TRY(assay_json_get_double(root, "router_aux_loss_coef", false, 0.0, 1e6, what, &coefficient));
    if (!asked || coefficient == 0.0)
        return ASSAY_OK;
    if (coefficient < 0.0)
        ASSAY_FAIL(
            ASSAY_UNSUPPORTED,
            "%s: output_router_logits: true without router_aux_loss_coef adds Hugging Face's balancing loss "
            "with "
            "the coefficient of its class; expected false (--moe-aux-loss-coeff is Megatron-LM's loss)",
            what);
    ASSAY_FAIL(ASSAY_UNSUPPORTED,
               "%s: output_router_logits: true adds Hugging Face's balancing loss with router_aux_loss_coef "
               "%g; expected "
               "false, or a coefficient of 0 (--moe-aux-loss-coeff is Megatron-LM's loss)",
               what, coefficient);
}

static assay_status read_experts(const json_t *root, const char *what, assay_model_config *c)
{
    const assay_hf_class *class = assay_hf_class_of(c->arch);
    if (class->moe.width == NULL)
        return ASSAY_OK;
    if (class->mla != NULL)
        return assay_config_read_mla_experts(root, what, c);
    ASSAY_TRY(read_expert_count(root, what, class->moe.sparse_layers ? 0 : 1, &c->num_moe_experts));
    if (c->num_moe_experts == 0)
        return ASSAY_OK;
    ASSAY_TRY(refuse_router_logits(root, what));
    c->moe_router_topk = class->moe.per_token;
    ASSAY_TRY(assay_json_get_i64(root, "num_experts_per_tok", false, 1, ASSAY_MAX_EXPERTS, what,
                                 &c->moe_router_topk));
    c->moe_router_score_function = ASSAY_SCORE_SOFTMAX;
    c->moe_router_pre_softmax = true;
    ASSAY_TRY(required_size(root, class->moe.width, ASSAY_CONFIG_MAX_DIM, what, &c->moe_ffn_hidden_size));
    ASSAY_TRY(assay_config_read_flag(root, class->moe.norm_topk_prob, what, &c->norm_topk_prob));
    if (class->moe.shared_width != NULL) {
        ASSAY_TRY(required_size(root, class->moe.shared_width, ASSAY_CONFIG_MAX_DIM, what,
                                &c->moe_shared_expert_intermediate_size));
        c->moe_shared_expert_gate = true;
    }
    for (int64_t l = 0; l < c->num_layers; l++)
        c->mlp[l] = ASSAY_MLP_MOE;
    return class->moe.sparse_layers ? read_sparse_layers(root, what, c) : ASSAY_OK;
}

assay_status assay_config_read_hf(const json_t *root, const char *what, assay_model_config *c)
{
    const assay_hf_class *class = assay_hf_class_of(c->arch);
    ASSAY_TRY(refuse_unsupported(root, what));
    ASSAY_TRY(read_dropout(root, what, c));
    ASSAY_TRY(refuse_ignored(root, what, class));
    ASSAY_TRY(read_sizes(root, what, c));
    ASSAY_TRY(read_padding(root, what, c));
    ASSAY_TRY(assay_config_read_tokens(root, what, c));
    ASSAY_TRY(assay_config_read_flag(root, class->qkv_bias, what, &c->add_qkv_bias));
    ASSAY_TRY(assay_config_read_flag(root, class->proj_bias, what, &c->add_proj_bias));
    ASSAY_TRY(assay_config_read_flag(root, class->mlp_bias, what, &c->add_mlp_bias));
    c->qk_layernorm = class->qk_layernorm;
    c->qk_layernorm_full_width = class->qk_layernorm_full_width;
    ASSAY_CHECK(!c->qk_layernorm_full_width || c->num_attention_heads * c->kv_channels == c->hidden_size,
                ASSAY_MISMATCH, "%s: the q/k norm spans hidden_size %lld, but %lld heads of head_dim %lld",
                what, (long long)c->hidden_size, (long long)c->num_attention_heads,
                (long long)c->kv_channels);
    if (class->clip_qkv != NULL)
        ASSAY_TRY(assay_json_get_double(root, class->clip_qkv, false, 0x1p-100, 0x1p100, what, &c->clip_qkv));
    ASSAY_TRY(assay_config_read_rope(root, what, c));
    ASSAY_TRY(read_window(root, what, c));
    ASSAY_TRY(read_experts(root, what, c));
    return ASSAY_OK;
}
