/* Shared by the config_*.c files only. */
#ifndef ASSAY_CORE_CONFIG_INTERNAL_H
#define ASSAY_CORE_CONFIG_INTERNAL_H

#include "core/model/config.h"

ASSAY_BEGIN_DECLS

enum { ASSAY_CONFIG_WHAT = 1200 };

typedef enum {
    ASSAY_FIELD_I64,
    ASSAY_FIELD_DOUBLE,
    ASSAY_FIELD_BOOL,
    ASSAY_FIELD_ROPE_TYPE,
    ASSAY_FIELD_SCORE
} assay_field_type;

/* One scalar member of assay_model_config. */
typedef struct assay_config_field {
    const char *name;    /* Megatron-LM's word = member name */
    const char *hf_name; /* Hugging Face's word, NULL when it has none */
    assay_field_type type;
    size_t offset;
    bool required; /* in a `megatron` config */
    bool mla;      /* of the MLA mixer alone: 0 in other models, whose files do not have it */
    bool yarn;     /* of this type of rope alone, likewise; both: of either */
} assay_config_field;

/* Ends with a row of name NULL. */
const assay_config_field *assay_config_fields(void);
const char *assay_score_name(assay_score_function score);
assay_status assay_rope_from_name(const char *name, const char *what, assay_rope_type *out);
assay_status assay_score_from_name(const char *name, const char *what, assay_score_function *out);

/* Which layers have a sliding window. */
typedef enum {
    ASSAY_HF_WINDOW_NONE,
    ASSAY_HF_WINDOW_EVERY,  /* sliding_window, on every layer */
    ASSAY_HF_WINDOW_FLAG,   /* the same if use_sliding_window */
    ASSAY_HF_WINDOW_LAST,   /* if use_sliding_window: layer_types, else layers from max_window_layers on */
    ASSAY_HF_WINDOW_LISTED, /* sliding_window on the layers of layer_types, without it on every layer */
    ASSAY_HF_WINDOW_EVEN_FIRST, /* the same, else layers 0, 2, 4, ... below max_window_layers */
    ASSAY_HF_WINDOW_COUNT
} assay_hf_window;

/* A bool of config.json, or a fact of the class where key is NULL. */
typedef struct assay_hf_flag {
    const char *key;
    bool value; /* default */
} assay_hf_flag;

/* What a class of DeepSeek's says of the experts behind its attention (config_mla.c).  scoring_func and topk_method are words of DeepSeek's own
 * code, which the class computes whatever a file says; where `limited` is not NULL topk_method chooses: the default, which knows no groups, or
 * that one. */
typedef struct assay_hf_mla {
    const char *scoring_func, *topk_method, *limited;
    assay_score_function scores;
    bool expert_bias;
    int64_t group_best;            /* a group's score is the sum of this many of its best */
    int64_t groups, groups_chosen; /* defaults of n_group and topk_group; 0: null, no groups */
    int64_t first_dense, shared;   /* of first_k_dense_replace and n_shared_experts */
    double scaling;                /* of routed_scaling_factor */
    /* V3: the class reads this word, sorts its rotated pairs into halves (names_heads.c) and has num_nextn_predict_layers. */
    bool rope_interleave;
} assay_hf_mla;

/* A Hugging Face class in one row: what its config.json says and what its code does.  Adding an architecture of
 * known kinds is adding a row (config_hf.c). */
typedef struct assay_hf_class {
    const char *model_type, *class_name;
    const char *other_type;  /* a model_type that files of this class have, too; NULL: none */
    int64_t key_value_heads; /* default; 0: as many as heads */
    int64_t head_dim;        /* default; 0: hidden_size / num_attention_heads */
    int64_t max_position_embeddings, sliding_window;
    double rms_norm_eps, rope_theta;
    int64_t pad_token_id; /* default where has_pad_token_id, else null */
    bool has_pad_token_id;
    double dropout; /* default of attention_dropout and, where the class has it, residual_dropout */
    bool residual_dropout;
    assay_hf_flag qkv_bias, proj_bias, mlp_bias;
    bool qk_layernorm;
    bool qk_layernorm_full_width; /* over all heads of q or k at once, as wide as hidden_size */
    const char *clip_qkv;         /* key of the limit of q, k and v; NULL: none */
    assay_hf_window window;
    /* Windows and biases that a file asks for and the class ignores are refused.  False for the classes that came
     * first, which ignore them as transformers does. */
    bool strict;
    const assay_hf_mla *mla; /* multi-latent attention; NULL: none */
    const char *not_null[2]; /* keys that transformers dies on when they are null */
    struct {
        const char *width;            /* key of the width of an expert; NULL: no experts */
        int64_t per_token;            /* default of num_experts_per_tok; 0: none */
        bool sparse_layers;           /* decoder_sparse_step and mlp_only_layers are read */
        assay_hf_flag norm_topk_prob; /* chosen scores are divided by their sum */
        const char *shared_width;     /* key of the gated shared expert's width; NULL: none */
        const char *count;            /* word for the number of experts in a file that we write */
        bool one_name;                /* num_experts alone; num_local_experts is ignored by the class */
        const char *block, *gate, *up, *down; /* names of tensors: <block>.experts.N.<gate>.weight */
        const char *shared; /* the module of the shared expert, `mlp.shared_expert`; NULL: none */
    } moe;
} assay_hf_class;
/* Row of an architecture; `megatron` has one with defaults and without a class. */
const assay_hf_class *assay_hf_class_of(assay_arch arch);

/* Values that every architecture starts from. */
void assay_config_defaults(assay_model_config *c, assay_arch arch);
assay_status assay_config_read_hf(const json_t *root, const char *what, assay_model_config *c);
assay_status assay_config_read_rope(const json_t *root, const char *what, assay_model_config *c);
assay_status assay_config_read_flag(const json_t *root, assay_hf_flag flag, const char *what, bool *out);
/* config_mla.c: rules of the mixer; what DeepSeek's classes say of it and of the experts behind it. */
assay_status assay_config_check_mla(const assay_model_config *c, const char *what);
assay_status assay_config_read_mla(const json_t *root, const char *what, assay_model_config *c);
assay_status assay_config_read_mla_experts(const json_t *root, const char *what, assay_model_config *c);
int assay_config_write_mla(const assay_model_config *c, json_t *root);
/* config_tokens.c: bos_token_id, eos_token_id */
assay_status assay_config_read_tokens(const json_t *root, const char *what, assay_model_config *c);
int assay_config_write_tokens(const assay_model_config *c, json_t *root);
/* `megatron`: multi_latent_attention, qk_layernorm (the inner norms) and rope_type beside it, before any member is read; form:
 * Megatron-LM's, whose defaults must not be meant.  c->mixer[0] says what came of it. */
assay_status assay_config_read_megatron_mla(const json_t *root, bool form, const char *what,
                                            assay_model_config *c);
/* config_yarn.c: rules of the members of this type of rope. */
assay_status assay_config_check_yarn(const assay_model_config *c, const char *what);
/* Megatron-LM's words of MLA for yarn, NULL at the end; read behind the members of the struct.  form: as above. */
const char *const *assay_config_yarn_words(void);
assay_status assay_config_read_megatron_yarn(const json_t *root, bool form, const char *what,
                                             assay_model_config *c);
/* The members of yarn in an object of Hugging Face's. */
int assay_config_write_yarn(const assay_model_config *c, json_t *rope);
/* config_experts.c */
assay_status assay_config_read_experts(const json_t *root, const char *what, assay_config_training *t);
assay_status assay_config_read_megatron(const json_t *root, const char *what, assay_model_config *c);
assay_status assay_config_write_hf(const assay_model_config *c, json_t *root);
assay_status assay_config_write_megatron(const assay_model_config *c, json_t *root);
/* "LlamaForCausalLM"; NULL for megatron. */
const char *assay_arch_class(assay_arch arch);

/* A share of elements that are dropped: 0 or more and less than 1; *p stays where the key is absent. */
assay_status assay_config_read_dropout(const json_t *root, const char *key, const char *what, double *p);

ASSAY_END_DECLS

#endif
