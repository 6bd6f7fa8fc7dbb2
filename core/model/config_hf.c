/* Hugging Face config.json of llama, qwen2, qwen3, qwen3_moe and mixtral.
 * Source: the configuration classes of transformers 5.23; an absent field has the default of its class,
 * except that the sizes a model cannot do without must be there. */
#include "core/model/config_internal.h"

#include <string.h>

static const int64_t max_length = (int64_t)1 << 40;

/* Defaults of the classes where they differ. */
typedef struct hf_class {
    int64_t key_value_heads; /* 0: as many as heads */
    int64_t head_dim;        /* 0: hidden_size / num_attention_heads */
    int64_t max_position_embeddings, experts_per_token;
} hf_class;
static const hf_class classes[] = {
    [ASSAY_ARCH_LLAMA] = {0, 0, 2048, 0},     [ASSAY_ARCH_QWEN2] = {32, 0, 32768, 0},
    [ASSAY_ARCH_QWEN3] = {32, 128, 32768, 0}, [ASSAY_ARCH_QWEN3_MOE] = {4, 0, 32768, 8},
    [ASSAY_ARCH_MIXTRAL] = {8, 0, 131072, 2},
};

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

/* Fields that change the arithmetic in a way nobody here computes are refused, not ignored. */
static assay_status refuse_unsupported(const json_t *root, const char *what)
{
    char activation[64] = "silu";
    ASSAY_TRY(assay_json_get_string(root, "hidden_act", false, what, activation, sizeof activation));
    ASSAY_CHECK(strcmp(activation, "silu") == 0, ASSAY_UNSUPPORTED,
                "%s: hidden_act: unknown activation '%s', expected silu", what, activation);
    static const char *const zero[] = {"attention_dropout", "router_jitter_noise"};
    for (int i = 0; i < 2; i++) {
        double value = 0.0;
        ASSAY_TRY(assay_json_get_double(root, zero[i], false, 0.0, 1.0, what, &value));
        ASSAY_CHECK(value == 0.0, ASSAY_UNSUPPORTED, "%s: %s: only 0 is supported, found %g", what, zero[i],
                    value);
    }
    const json_t *quantization = json_object_get(root, "quantization_config");
    ASSAY_CHECK(quantization == NULL || json_is_null(quantization), ASSAY_UNSUPPORTED,
                "%s: quantization_config: quantized weights are not supported", what);
    return ASSAY_OK;
}

static assay_status read_sizes(const json_t *root, const char *what, assay_model_config *c)
{
    const int64_t big = ASSAY_CONFIG_MAX_DIM;
    const hf_class *class = &classes[c->arch];
    ASSAY_TRY(required_size(root, "hidden_size", big, what, &c->hidden_size));
    ASSAY_TRY(required_size(root, "num_hidden_layers", ASSAY_MAX_LAYERS, what, &c->num_layers));
    ASSAY_TRY(required_size(root, "num_attention_heads", big, what, &c->num_attention_heads));
    ASSAY_TRY(required_size(root, "vocab_size", big, what, &c->vocab_size));
    ASSAY_TRY(required_size(root, "intermediate_size", big, what, &c->ffn_hidden_size));

    const bool as_heads = class->key_value_heads == 0 || is_null(root, "num_key_value_heads");
    c->num_query_groups = as_heads ? c->num_attention_heads : class->key_value_heads;
    ASSAY_TRY(assay_json_get_i64(root, "num_key_value_heads", false, 1, big, what, &c->num_query_groups));

    c->kv_channels = is_null(root, "head_dim") ? 0 : class->head_dim;
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
    ASSAY_TRY(assay_json_get_bool(root, "tie_word_embeddings", false, what, &c->tie_word_embeddings));
    return ASSAY_OK;
}

static assay_status read_biases(const json_t *root, const char *what, assay_model_config *c)
{
    bool attention = false;
    switch (c->arch) {
    case ASSAY_ARCH_QWEN2: /* hard-coded: q, k, v have one, o has none */
        c->add_qkv_bias = true;
        break;
    case ASSAY_ARCH_LLAMA:
        ASSAY_TRY(assay_json_get_bool(root, "mlp_bias", false, what, &c->add_mlp_bias));
        ASSAY_TRY(assay_json_get_bool(root, "attention_bias", false, what, &attention));
        c->add_qkv_bias = c->add_proj_bias = attention;
        break;
    case ASSAY_ARCH_QWEN3:
    case ASSAY_ARCH_QWEN3_MOE:
        ASSAY_TRY(assay_json_get_bool(root, "attention_bias", false, what, &attention));
        c->add_qkv_bias = c->add_proj_bias = attention;
        c->qk_layernorm = true;
        break;
    case ASSAY_ARCH_MIXTRAL:
    case ASSAY_ARCH_MEGATRON:
        break;
    }
    return ASSAY_OK;
}

/* --- sliding window ----------------------------------------------------------------------------------------- */

/* `layer_types` of qwen2 and qwen3: one word for each layer. */
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

static assay_status read_window(const json_t *root, const char *what, assay_model_config *c)
{
    if (c->arch == ASSAY_ARCH_LLAMA)
        return ASSAY_OK;
    const bool mixtral = c->arch == ASSAY_ARCH_MIXTRAL;
    int64_t window = mixtral || is_null(root, "sliding_window") ? 0 : 4096;
    int64_t first = 0; /* first layer with a window */
    bool used = mixtral;
    ASSAY_TRY(assay_json_get_i64(root, "sliding_window", false, 1, max_length, what, &window));
    if (!mixtral)
        ASSAY_TRY(assay_json_get_bool(root, "use_sliding_window", false, what, &used));
    if (!used)
        window = 0;
    if (c->arch == ASSAY_ARCH_QWEN2 || c->arch == ASSAY_ARCH_QWEN3) {
        const json_t *types = json_object_get(root, "layer_types");
        if (types != NULL && !json_is_null(types))
            return read_layer_types(types, window, what, c);
        first = 28;
        ASSAY_TRY(assay_json_get_i64(root, "max_window_layers", false, 0, max_length, what, &first));
    }
    for (int64_t l = first; l < c->num_layers; l++)
        c->window[l] = window;
    return ASSAY_OK;
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
        c->layer_is_moe[l] = c->num_moe_experts > 0 && (l + 1) % step == 0;
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
        c->layer_is_moe[l] = false;
    }
    return ASSAY_OK;
}

static assay_status read_experts(const json_t *root, const char *what, assay_model_config *c)
{
    const bool mixtral = c->arch == ASSAY_ARCH_MIXTRAL;
    if (!mixtral && c->arch != ASSAY_ARCH_QWEN3_MOE)
        return ASSAY_OK;
    ASSAY_TRY(read_expert_count(root, what, mixtral ? 1 : 0, &c->num_moe_experts));
    if (c->num_moe_experts == 0)
        return ASSAY_OK;
    c->moe_router_topk = classes[c->arch].experts_per_token;
    ASSAY_TRY(assay_json_get_i64(root, "num_experts_per_tok", false, 1, ASSAY_MAX_EXPERTS, what,
                                 &c->moe_router_topk));
    c->moe_router_score_function = ASSAY_SCORE_SOFTMAX;
    c->moe_router_pre_softmax = true;
    if (mixtral) {
        c->moe_ffn_hidden_size = c->ffn_hidden_size;
        c->norm_topk_prob = true;
        for (int64_t l = 0; l < c->num_layers; l++)
            c->layer_is_moe[l] = true;
        return ASSAY_OK;
    }
    ASSAY_TRY(
        required_size(root, "moe_intermediate_size", ASSAY_CONFIG_MAX_DIM, what, &c->moe_ffn_hidden_size));
    ASSAY_TRY(assay_json_get_bool(root, "norm_topk_prob", false, what, &c->norm_topk_prob));
    ASSAY_TRY(read_sparse_layers(root, what, c));
    return ASSAY_OK;
}

assay_status assay_config_read_hf(const json_t *root, const char *what, assay_model_config *c)
{
    ASSAY_TRY(refuse_unsupported(root, what));
    ASSAY_TRY(read_sizes(root, what, c));
    ASSAY_TRY(read_biases(root, what, c));
    ASSAY_TRY(assay_config_read_rope(root, what, c));
    ASSAY_TRY(read_window(root, what, c));
    ASSAY_TRY(read_experts(root, what, c));
    return ASSAY_OK;
}
