/* Model configuration: what a Hugging Face config.json says, in Megatron-LM's words.
 *
 * Accepted architectures: llama, qwen2, qwen3, qwen3_moe, mixtral, mistral, qwen2_moe, seed_oss, olmoe, deepseek_v2, deepseek_v3, ministral (Hugging
 * Face spelling, `rope_scaling` and `rope_parameters`), and `megatron`: the fields of assay_model_config themselves, for what none of these
 * Hugging Face classes has (sigmoid router, groups, expert bias), in their own words or in Megatron-LM's
 * (docs/MEGATRON.md).  An unknown architecture,
 * activation or rope type is an error that names it.  Contradictory or absurd fields are errors (head counts,
 * sizes above ASSAY_CONFIG_MAX_DIM...). */
#ifndef ASSAY_CORE_CONFIG_H
#define ASSAY_CORE_CONFIG_H

#include "core/base/json.h"

ASSAY_BEGIN_DECLS

typedef enum {
    ASSAY_ARCH_LLAMA,
    ASSAY_ARCH_QWEN2,
    ASSAY_ARCH_QWEN3,
    ASSAY_ARCH_QWEN3_MOE,
    ASSAY_ARCH_MIXTRAL,
    ASSAY_ARCH_MISTRAL,
    ASSAY_ARCH_QWEN2_MOE,
    ASSAY_ARCH_SEED_OSS,
    ASSAY_ARCH_OLMOE,
    ASSAY_ARCH_DEEPSEEK_V3,
    ASSAY_ARCH_MINISTRAL,
    ASSAY_ARCH_DEEPSEEK_V2,
    ASSAY_ARCH_MEGATRON,
    ASSAY_ARCH_COUNT
} assay_arch;
typedef enum { ASSAY_ROPE_DEFAULT, ASSAY_ROPE_LINEAR, ASSAY_ROPE_LLAMA3, ASSAY_ROPE_YARN } assay_rope_type;
typedef enum { ASSAY_SCORE_SOFTMAX, ASSAY_SCORE_SIGMOID } assay_score_function;

/* A decoder layer is a mixer (tokens meet each other) and an MLP (each token by itself), each behind a norm and
 * inside a residual.  A new kind is a word here, its parameters in spec_<kind>.c, and one file of its own in each
 * engine. */
/* MLA: multi-latent attention (DeepSeek-V3). */
typedef enum { ASSAY_MIXER_ATTENTION, ASSAY_MIXER_MLA, ASSAY_MIXER_COUNT } assay_mixer_kind;
typedef enum { ASSAY_MLP_DENSE, ASSAY_MLP_MOE, ASSAY_MLP_COUNT } assay_mlp_kind;

enum { ASSAY_MAX_LAYERS = 1024, ASSAY_MAX_EXPERTS = 4096 };
#define ASSAY_CONFIG_MAX_DIM ((int64_t)1 << 24)

/* How the files of a `megatron` folder hold experts and norms: found in the names of its tensors. */
typedef enum {
    ASSAY_EXPERTS_ROWS,    /* experts.linear_fc1.weight [E*2F,H] */
    ASSAY_EXPERTS_STACKED, /* experts.linear_fc1.weight [E,2F,H] */
    ASSAY_EXPERTS_LOCAL    /* experts.local_experts.N.linear_fc1.weight [2F,H] */
} assay_expert_files;

/* Megatron-LM's moe_router_load_balancing_type and moe_aux_loss_coeff: one word and one number, or lists of one length. */
typedef enum {
    ASSAY_BALANCING_NONE,
    ASSAY_BALANCING_AUX,       /* aux_loss: of a microbatch */
    ASSAY_BALANCING_SEQ_AUX,   /* seq_aux_loss: of every sequence */
    ASSAY_BALANCING_GLOBAL_AUX /* global_aux_loss: of the microbatches of a step so far */
} assay_load_balancing;
enum { ASSAY_MAX_LIST = 4 };
typedef struct assay_word_list {
    int n, of[ASSAY_MAX_LIST];
} assay_word_list;
typedef struct assay_number_list {
    int n;
    double of[ASSAY_MAX_LIST];
} assay_number_list;
/* "none", "aux_loss", ..., NULL: in the order of assay_load_balancing. */
const char *const *assay_load_balancing_words(void);

/* Why moe_router_dtype fp64 is refused, in a config and as an option. */
#define ASSAY_NO_FP64_ROUTER                                                                                 \
    "fp64 is not supported yet, expected fp32, or model: kernels of a router and of its probs read F32 and " \
    "BF16"

/* What a config.json in Megatron-LM's form says about training (Hugging Face's: dropout alone); an option that a user gives
 * goes before it (core/run/inputs.h). */
typedef struct assay_config_training {
    bool given;
    assay_word_list moe_router_load_balancing_type;
    assay_number_list moe_aux_loss_coeff;
    double moe_input_jitter_eps;
    double moe_z_loss_coeff, moe_router_bias_update_rate;
    bool calculate_per_token_loss;
    double moe_expert_capacity_factor; /* 0: none */
    bool drops_by_position;            /* moe_token_drop_policy position; else probs */
    bool moe_pad_expert_input_to_capacity;
    bool rounds_router_logits; /* moe_router_dtype model or null, Megatron-LM's None; else fp32 */
    bool moe_router_force_load_balancing;
    bool moe_shared_expert_overlap;
    bool pads_rows_for_fp8; /* moe_router_padding_for_quantization, or its older name ..._for_fp8 */
    /* of either form; each 0 or more and less than 1 */
    double attention_dropout, hidden_dropout, residual_dropout;
} assay_config_training;

/* A token's id in a Hugging Face config.json, or several. */
enum { ASSAY_TOKEN_IDS = 16 };
typedef enum { ASSAY_TOKENS_ABSENT, ASSAY_TOKENS_NULL, ASSAY_TOKENS_ONE, ASSAY_TOKENS_LIST } assay_token_form;
typedef struct assay_token_ids {
    assay_token_form form;
    int n;
    int64_t id[ASSAY_TOKEN_IDS];
} assay_token_ids;

/* A member of a Hugging Face config.json that nobody here reads: a number, or true or false. */
typedef struct assay_kept_member {
    bool given;
    double value;
} assay_kept_member;

typedef struct assay_model_config {
    assay_arch arch;
    int64_t num_layers;
    int64_t hidden_size;
    int64_t ffn_hidden_size;     /* dense MLP width F */
    int64_t num_attention_heads; /* A */
    int64_t num_query_groups;    /* G, key/value heads */
    int64_t kv_channels;         /* D, head dimension */
    int64_t vocab_size;          /* V */
    int64_t
        pad_token_id; /* Hugging Face's padding_idx of the embedding: that row has no gradient from there; -1: none, as in Megatron-LM */
    assay_token_ids bos_token_id, eos_token_id; /* read by nobody here: kept for whoever generates text */
    assay_kept_member router_aux_loss_coef, output_router_logits,
        use_cache; /* the same, for whoever trains on in transformers, where they have defaults */
    int64_t max_position_embeddings;
    double layernorm_epsilon;
    bool tie_word_embeddings;
    bool add_qkv_bias;  /* bias of linear_qkv */
    bool add_proj_bias; /* bias of linear_proj */
    bool add_mlp_bias;  /* bias of linear_fc1 and linear_fc2 of dense MLPs */
    bool qk_layernorm;
    bool qk_layernorm_full_width; /* one norm over all heads of q, one over all of k, before they are split */
    double clip_qkv;              /* q, k (after their norms) and v are clamped to +-clip_qkv; 0 = not */
    double init_method_std;
    double
        init_constant_std; /* of what begins as 0 or 1 (biases, weights of norms), around that; 0: exactly that, as Megatron-LM begins */

    /* RoPE */
    assay_rope_type rope_type;
    double rotary_base;
    double
        rotary_percent; /* partial rotary factor; rotary dims = (int)(kv_channels * rotary_percent), even */
    double rope_factor;
    double rope_low_freq_factor;
    double rope_high_freq_factor;
    int64_t rope_original_max_position_embeddings;
    /* yarn, 0 with other types: turns in the original length between which frequencies pass from theirs to those of linear;
     * whether the two pairs found from them are rounded outwards; what cos and sin are multiplied by, or 0:
     * m(rope_mscale) / m(rope_mscale_all_dim), where m(a) = 0.1 a ln rope_factor + 1, and 1 for a rope_factor of 1 or less */
    double rope_beta_fast, rope_beta_slow;
    bool rope_truncate;
    double rope_attention_factor, rope_mscale;
    double
        rope_mscale_all_dim; /* with MLA, whatever the type: scores are multiplied by m(rope_mscale_all_dim)^2, too */

    /* kinds of layer l */
    assay_mixer_kind mixer[ASSAY_MAX_LAYERS];
    assay_mlp_kind mlp[ASSAY_MAX_LAYERS];

    /* attention window: 0 = none; the window counts the token itself.  window[l] is for layer l. */
    int64_t window[ASSAY_MAX_LAYERS];

    /* MLA layers, Megatron-LM's words: widths of the compressed q (0: q is not compressed) and kv; of a head: without
     * position, with position (shared by the heads of k), of v */
    int64_t q_lora_rank, kv_lora_rank, qk_head_dim, qk_pos_emb_head_dim, v_head_dim;
    double
        mla_layernorm_epsilon; /* of the norms of what is compressed: Hugging Face's 1e-6 whatever rms_norm_eps says; Megatron-LM's layernorm_epsilon */

    /* mixture of experts */
    int64_t num_moe_experts; /* E; 0 = dense model */
    int64_t moe_router_topk; /* K */
    int64_t moe_ffn_hidden_size;
    assay_score_function moe_router_score_function;
    bool moe_router_pre_softmax; /* softmax over all E before top-k (HF); false: softmax over the chosen K */
    bool norm_topk_prob; /* divide the chosen scores by their sum (softmax: no eps; sigmoid: + 1e-20) */
    double moe_router_topk_scaling_factor; /* 1 = none */
    int64_t moe_router_num_groups;         /* 0 = no group limit */
    int64_t moe_router_group_topk;
    bool moe_router_enable_expert_bias;
    int64_t moe_shared_expert_intermediate_size; /* 0 = none */
    bool moe_shared_expert_gate;

    /* of the folder; no part of what a model is */
    assay_expert_files expert_files;
    const char *
        model_type; /* as the file calls its class, where that is another name: kimi_k2 of DeepseekV3ForCausalLM; NULL: the class's.  Static */
    bool
        layer_norm_in_linear; /* self_attention.linear_qkv.layer_norm_weight for input_layernorm.weight ... */
    assay_config_training training;
} assay_model_config;

/* Reads DIR/config.json.  Messages start with the file's path.  A folder whose weights contradict it is refused: assay_config_check_head. */
assay_status assay_config_load(const char *model_dir, assay_model_config *out);
/* ASSAY_MISMATCH: the file holds lm_head.weight and another model.embed_tokens.weight, which a model with tie_word_embeddings cannot
 * have.  Bytes are compared, each once. */
struct assay_tensorfile;
assay_status assay_tied_head_check(const struct assay_tensorfile *f);
/* The same of a folder, where it has weights and c is tied. */
assay_status assay_config_check_head(const assay_model_config *c, const char *folder);
/* How the weights of a `megatron` folder are named: expert_files, layer_norm_in_linear.  Headers only. */
assay_status assay_config_find_files(const char *folder, assay_model_config *c);
assay_status assay_config_from_json(const json_t *root, const char *what, assay_model_config *out);
/* Checks all cross-field rules (also called by the readers). */
assay_status assay_config_check(const assay_model_config *c, const char *what);
/* Whether a member of config.json is kept for others alone: configurations that differ in it are of one model. */
bool assay_config_is_kept(const char *key);
/* A Hugging Face config.json (or `megatron` fields) that reads back to an equal struct. */
assay_status assay_config_to_json(const assay_model_config *c, json_t **out);
/* Name of the first member that differs, NULL when a and b say the same (entries of layers beyond num_layers do
 * not count). */
const char *assay_config_difference(const assay_model_config *a, const assay_model_config *b);
/* The word a reader of this kind of config knows a member by. */
const char *assay_config_word(const assay_model_config *c, const char *name);
const char *assay_arch_name(assay_arch arch);
/* "default", "linear", "llama3", "yarn". */
const char *assay_rope_name(assay_rope_type type);
/* "attention", "mla"; "dense", "moe". */
const char *assay_mixer_name(assay_mixer_kind kind);
const char *assay_mlp_name(assay_mlp_kind kind);

/* Whether the mixers are MLA: all of them are, or none. */
bool assay_config_is_mla(const assay_model_config *c);
/* Number of rotated dimensions of a head (even): its first, or with MLA its last qk_pos_emb_head_dim. */
int64_t assay_config_rotary_dim(const assay_model_config *c);
/* Width of a value head; that of a query or key head is kv_channels. */
int64_t assay_config_value_dim(const assay_model_config *c);

ASSAY_END_DECLS

#endif
