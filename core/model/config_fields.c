/* The scalar members of assay_model_config as a table, and their defaults. */
#include "core/model/config_internal.h"

#include <stddef.h>
#include <string.h>

#define FIELD(member, hf, type, required)                                                                    \
    {                                                                                                        \
#member, hf, ASSAY_FIELD_##type, offsetof(assay_model_config, member), required, false, false        \
    }
#define MLA_FIELD(member, hf, type)                                                                          \
    {                                                                                                        \
#member, hf, ASSAY_FIELD_##type, offsetof(assay_model_config, member), false, true, false            \
    }
#define YARN_FIELD(member, hf, type)                                                                         \
    {                                                                                                        \
#member, hf, ASSAY_FIELD_##type, offsetof(assay_model_config, member), false, false, true            \
    }
static const assay_config_field fields[] = {
    FIELD(num_layers, "num_hidden_layers", I64, true),
    FIELD(hidden_size, "hidden_size", I64, true),
    FIELD(ffn_hidden_size, "intermediate_size", I64, true),
    FIELD(num_attention_heads, "num_attention_heads", I64, true),
    FIELD(num_query_groups, "num_key_value_heads", I64, false),
    FIELD(kv_channels, "head_dim", I64, false),
    FIELD(vocab_size, "vocab_size", I64, true),
    FIELD(max_position_embeddings, "max_position_embeddings", I64, false),
    FIELD(layernorm_epsilon, "rms_norm_eps", DOUBLE, false),
    FIELD(tie_word_embeddings, "tie_word_embeddings", BOOL, false),
    FIELD(add_qkv_bias, "attention_bias", BOOL, false),
    FIELD(add_proj_bias, "attention_bias", BOOL, false),
    FIELD(add_mlp_bias, "mlp_bias", BOOL, false),
    FIELD(qk_layernorm, NULL, BOOL, false),
    FIELD(qk_layernorm_full_width, NULL, BOOL, false),
    FIELD(clip_qkv, "clip_qkv", DOUBLE, false),
    FIELD(init_method_std, "initializer_range", DOUBLE, false),
    FIELD(init_constant_std, "init_constant_std", DOUBLE, false),
    FIELD(rope_type, "rope_type", ROPE_TYPE, false),
    FIELD(rotary_base, "rope_theta", DOUBLE, false),
    FIELD(rotary_percent, "partial_rotary_factor", DOUBLE, false),
    FIELD(rope_factor, "factor", DOUBLE, false),
    FIELD(rope_low_freq_factor, "low_freq_factor", DOUBLE, false),
    FIELD(rope_high_freq_factor, "high_freq_factor", DOUBLE, false),
    FIELD(rope_original_max_position_embeddings, "original_max_position_embeddings", I64, false),
    YARN_FIELD(rope_beta_fast, "beta_fast", DOUBLE),
    YARN_FIELD(rope_beta_slow, "beta_slow", DOUBLE),
    YARN_FIELD(rope_truncate, "truncate", BOOL),
    YARN_FIELD(rope_attention_factor, "attention_factor", DOUBLE),
    YARN_FIELD(rope_mscale, "mscale", DOUBLE),
    {"rope_mscale_all_dim", "mscale_all_dim", ASSAY_FIELD_DOUBLE,
     offsetof(assay_model_config, rope_mscale_all_dim), false, true, true},
    MLA_FIELD(q_lora_rank, NULL, I64),
    MLA_FIELD(kv_lora_rank, NULL, I64),
    MLA_FIELD(qk_head_dim, "qk_nope_head_dim", I64),
    MLA_FIELD(qk_pos_emb_head_dim, "qk_rope_head_dim", I64),
    MLA_FIELD(v_head_dim, NULL, I64),
    MLA_FIELD(mla_layernorm_epsilon, NULL, DOUBLE),
    FIELD(num_moe_experts, "num_experts", I64, false),
    FIELD(moe_router_topk, "num_experts_per_tok", I64, false),
    FIELD(moe_ffn_hidden_size, "moe_intermediate_size", I64, false),
    FIELD(moe_router_score_function, NULL, SCORE, false),
    FIELD(moe_router_pre_softmax, NULL, BOOL, false),
    FIELD(norm_topk_prob, "norm_topk_prob", BOOL, false),
    FIELD(moe_router_topk_scaling_factor, "routed_scaling_factor", DOUBLE, false),
    FIELD(moe_router_num_groups, "n_group", I64, false),
    FIELD(moe_router_group_topk, "topk_group", I64, false),
    FIELD(moe_router_enable_expert_bias, NULL, BOOL, false),
    FIELD(moe_shared_expert_intermediate_size, NULL, I64, false),
    FIELD(moe_shared_expert_gate, NULL, BOOL, false),
    {.name = NULL},
};
#undef FIELD
#undef MLA_FIELD
#undef YARN_FIELD
enum { N_FIELDS = sizeof fields / sizeof fields[0] - 1 };

static const char *const rope_names[] = {[ASSAY_ROPE_DEFAULT] = "default",
                                         [ASSAY_ROPE_LINEAR] = "linear",
                                         [ASSAY_ROPE_LLAMA3] = "llama3",
                                         [ASSAY_ROPE_YARN] = "yarn"};
static const char *const score_names[] = {
    [ASSAY_SCORE_SOFTMAX] = "softmax", [ASSAY_SCORE_SIGMOID] = "sigmoid"};

const assay_config_field *assay_config_fields(void)
{
    return fields;
}

/* Words that differ between classes. */
static const char *class_word(const assay_hf_class *class, const char *name)
{
    const struct {
        const char *name, *word;
    } words[] = {{"add_qkv_bias", class->qkv_bias.key},
                 {"add_proj_bias", class->proj_bias.key},
                 {"moe_ffn_hidden_size", class->moe.width},
                 {"kv_channels", class->mla ? "qk_head_dim" : NULL},
                 {"num_moe_experts", class->mla ? class->moe.count : NULL},
                 {"moe_shared_expert_intermediate_size", class->moe.shared_width}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i].name, name) == 0)
            return words[i].word;
    return NULL;
}

const char *assay_config_word(const assay_model_config *c, const char *name)
{
    const char *word = class_word(assay_hf_class_of(c->arch), name);
    if (word != NULL)
        return word;
    for (int i = 0; i < N_FIELDS; i++) {
        if (strcmp(fields[i].name, name) == 0 && c->arch != ASSAY_ARCH_MEGATRON && fields[i].hf_name != NULL)
            return fields[i].hf_name;
    }
    return name;
}

const char *assay_rope_name(assay_rope_type type)
{
    return rope_names[type];
}

const char *assay_score_name(assay_score_function score)
{
    return score_names[score];
}

assay_status assay_rope_from_name(const char *name, const char *what, assay_rope_type *out)
{
    for (int i = ASSAY_ROPE_DEFAULT; i <= ASSAY_ROPE_YARN; i++) {
        if (strcmp(name, rope_names[i]) == 0) {
            *out = (assay_rope_type)i;
            return ASSAY_OK;
        }
    }
    ASSAY_FAIL(ASSAY_UNSUPPORTED,
               "%s: rope_type: unknown type '%.64s', expected default, linear, llama3 or yarn", what, name);
}

assay_status assay_score_from_name(const char *name, const char *what, assay_score_function *out)
{
    for (int i = ASSAY_SCORE_SOFTMAX; i <= ASSAY_SCORE_SIGMOID; i++) {
        if (strcmp(name, score_names[i]) == 0) {
            *out = (assay_score_function)i;
            return ASSAY_OK;
        }
    }
    ASSAY_FAIL(ASSAY_UNSUPPORTED,
               "%s: moe_router_score_function: unknown function '%.64s', expected softmax or sigmoid", what,
               name);
}

static bool field_differs(const assay_config_field *f, const assay_model_config *a,
                          const assay_model_config *b)
{
    const char *x = (const char *)a + f->offset, *y = (const char *)b + f->offset;
    switch (f->type) {
    case ASSAY_FIELD_I64:
        return memcmp(x, y, sizeof(int64_t)) != 0;
    case ASSAY_FIELD_DOUBLE:
        return memcmp(x, y, sizeof(double)) != 0;
    case ASSAY_FIELD_BOOL:
        return memcmp(x, y, sizeof(bool)) != 0;
    case ASSAY_FIELD_ROPE_TYPE:
        return memcmp(x, y, sizeof(assay_rope_type)) != 0;
    case ASSAY_FIELD_SCORE:
        return memcmp(x, y, sizeof(assay_score_function)) != 0;
    }
    return true;
}

const char *assay_config_difference(const assay_model_config *a, const assay_model_config *b)
{
    if (a->arch != b->arch)
        return "arch";
    if (a->pad_token_id != b->pad_token_id) /* no word of a `megatron` file's */
        return "pad_token_id";
    for (int i = 0; i < N_FIELDS; i++) {
        if (field_differs(&fields[i], a, b))
            return fields[i].name;
    }
    for (int64_t l = 0; l < a->num_layers; l++) {
        if (a->window[l] != b->window[l])
            return "window";
        if (a->mixer[l] != b->mixer[l])
            return "mixer";
        if (a->mlp[l] != b->mlp[l])
            return "layer_is_moe";
    }
    return NULL;
}

void assay_config_defaults(assay_model_config *c, assay_arch arch)
{
    memset(c, 0, sizeof *c);
    c->arch = arch;
    c->max_position_embeddings = 4096;
    c->pad_token_id = -1;
    c->layernorm_epsilon = assay_hf_class_of(arch)->rms_norm_eps;
    c->init_method_std = 0.02;
    c->rotary_base = assay_hf_class_of(arch)->rope_theta;
    c->rotary_percent = 1.0;
    c->moe_router_topk_scaling_factor = 1.0;
}

assay_status assay_config_read_dropout(const json_t *root, const char *key, const char *what, double *p)
{
    ASSAY_TRY(assay_json_get_double(root, key, false, 0.0, 1.0, what, p));
    ASSAY_CHECK(*p < 1.0, ASSAY_LIMIT, "%s: %s: expected 0 or more and less than 1, found %g", what, key, *p);
    return ASSAY_OK;
}
