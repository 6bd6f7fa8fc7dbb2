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
} assay_config_field;

/* Ends with a row of name NULL. */
const assay_config_field *assay_config_fields(void);
/* The word a reader of this kind of config knows a member by. */
const char *assay_config_word(const assay_model_config *c, const char *name);
const char *assay_rope_name(assay_rope_type type);
const char *assay_score_name(assay_score_function score);
assay_status assay_rope_from_name(const char *name, const char *what, assay_rope_type *out);
assay_status assay_score_from_name(const char *name, const char *what, assay_score_function *out);
/* Name of the first member that differs, NULL when a and b say the same (entries of window and layer_is_moe
 * beyond num_layers do not count). */
const char *assay_config_difference(const assay_model_config *a, const assay_model_config *b);

/* Values that every architecture starts from. */
void assay_config_defaults(assay_model_config *c, assay_arch arch);
assay_status assay_config_read_hf(const json_t *root, const char *what, assay_model_config *c);
assay_status assay_config_read_rope(const json_t *root, const char *what, assay_model_config *c);
assay_status assay_config_read_megatron(const json_t *root, const char *what, assay_model_config *c);
assay_status assay_config_write_hf(const assay_model_config *c, json_t *root);
assay_status assay_config_write_megatron(const assay_model_config *c, json_t *root);
/* "LlamaForCausalLM"; NULL for megatron. */
const char *assay_arch_class(assay_arch arch);

ASSAY_END_DECLS

#endif
