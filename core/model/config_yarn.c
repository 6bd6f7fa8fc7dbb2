/* YaRN: the members of a config that this type of rope alone has, and Megatron-LM's words of multi-latent attention for
 * them.  Hugging Face's are read in config_rope.c; what the members make of scores, cos and sin: ref/yarn.c, gpu/yarn.c.
 * Source: Peng et al. 2023 (YaRN); transformers 5.24, modeling_rope_utils.py and modeling_deepseek_v3.py; megatron-core
 * 0.16.1, yarn_rotary_pos_embedding.py, multi_latent_attention.py, transformer_config.py (MLATransformerConfig). */
#include "core/model/config_internal.h"

static const double longest_mscale = 1e3;

/* --- rules -------------------------------------------------------------------------------------------------- */

static assay_status check_number(const assay_model_config *c, const char *what, const char *name,
                                 double value, double min, double max)
{
    ASSAY_CHECK(value >= min && value <= max, ASSAY_LIMIT, "%s: %s: expected %g to %g, found %g", what,
                assay_config_word(c, name), min, max, value);
    return ASSAY_OK;
}

static assay_status check_without(const assay_model_config *c, const char *what)
{
    const struct {
        const char *name;
        double value;
    } members[] = {{"rope_beta_fast", c->rope_beta_fast},
                   {"rope_beta_slow", c->rope_beta_slow},
                   {"rope_truncate", c->rope_truncate ? 1.0 : 0.0},
                   {"rope_attention_factor", c->rope_attention_factor},
                   {"rope_mscale", c->rope_mscale}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        ASSAY_CHECK(!(members[i].value != 0.0), ASSAY_MISMATCH,
                    "%s: %s %g with rope_type %s, a member of yarn", what,
                    assay_config_word(c, members[i].name), members[i].value, assay_rope_name(c->rope_type));
    return ASSAY_OK;
}

assay_status assay_config_check_yarn(const assay_model_config *c, const char *what)
{
    const int64_t longest = (int64_t)1 << 40, original = c->rope_original_max_position_embeddings;
    ASSAY_CHECK(c->rope_type == ASSAY_ROPE_YARN || assay_config_is_mla(c) || !(c->rope_mscale_all_dim != 0.0),
                ASSAY_MISMATCH, "%s: %s %g: a member of yarn and of multi-latent attention", what,
                assay_config_word(c, "rope_mscale_all_dim"), c->rope_mscale_all_dim);
    ASSAY_TRY(check_number(c, what, "rope_mscale_all_dim", c->rope_mscale_all_dim, 0.0, longest_mscale));
    if (c->rope_mscale_all_dim > 0.0)
        ASSAY_TRY(check_number(c, what, "rope_factor", c->rope_factor, 1e-6, 1e9));
    if (c->rope_type != ASSAY_ROPE_YARN)
        return check_without(c, what);
    ASSAY_CHECK(c->rotary_base > 1.0, ASSAY_LIMIT,
                "%s: %s: yarn divides by its logarithm, expected more than 1, found %g", what,
                assay_config_word(c, "rotary_base"), c->rotary_base);
    ASSAY_TRY(check_number(c, what, "rope_beta_fast", c->rope_beta_fast, 1e-6, 1e9));
    ASSAY_TRY(check_number(c, what, "rope_beta_slow", c->rope_beta_slow, 1e-6, 1e9));
    ASSAY_CHECK(c->rope_beta_fast >= c->rope_beta_slow, ASSAY_MISMATCH, "%s: %s %g is less than %s %g", what,
                assay_config_word(c, "rope_beta_fast"), c->rope_beta_fast,
                assay_config_word(c, "rope_beta_slow"), c->rope_beta_slow);
    ASSAY_TRY(check_number(c, what, "rope_mscale", c->rope_mscale, 0.0, longest_mscale));
    if (c->rope_attention_factor != 0.0) {
        ASSAY_TRY(check_number(c, what, "rope_attention_factor", c->rope_attention_factor, 1e-6, 1e6));
        ASSAY_CHECK(c->rope_mscale == 0.0, ASSAY_MISMATCH, "%s: %s and %s: expected one of them", what,
                    assay_config_word(c, "rope_attention_factor"), assay_config_word(c, "rope_mscale"));
    }
    ASSAY_CHECK(original >= 1 && original <= longest, ASSAY_LIMIT, "%s: %s: expected 1 to %lld, found %lld",
                what, assay_config_word(c, "rope_original_max_position_embeddings"), (long long)longest,
                (long long)original);
    return ASSAY_OK;
}

/* --- Hugging Face ------------------------------------------------------------------------------------------- */

static int put_real(json_t *object, const char *key, double value)
{
    return json_object_set_new(object, key, json_real(value));
}

/* mscale alone says nothing there: what Megatron-LM makes of it reads back as another config. */
int assay_config_write_yarn(const assay_model_config *c, json_t *rope)
{
    int failed = json_object_set_new(rope, "original_max_position_embeddings",
                                     json_integer(c->rope_original_max_position_embeddings));
    failed |= put_real(rope, "beta_fast", c->rope_beta_fast);
    failed |= put_real(rope, "beta_slow", c->rope_beta_slow);
    if (!c->rope_truncate)
        failed |= json_object_set_new(rope, "truncate", json_false());
    if (c->rope_attention_factor > 0.0)
        failed |= put_real(rope, "attention_factor", c->rope_attention_factor);
    else if (c->rope_mscale_all_dim > 0.0)
        failed |= put_real(rope, "mscale", c->rope_mscale);
    if (c->rope_mscale_all_dim > 0.0)
        failed |= put_real(rope, "mscale_all_dim", c->rope_mscale_all_dim);
    return failed;
}

/* --- Megatron-LM -------------------------------------------------------------------------------------------- */

static const char *const yarn_words[] = {"rotary_scaling_factor",
                                         "original_max_position_embeddings",
                                         "beta_fast",
                                         "beta_slow",
                                         "mscale",
                                         "mscale_all_dim",
                                         NULL};

const char *const *assay_config_yarn_words(void)
{
    return yarn_words;
}

/* Megatron-LM's word for a member. */
static assay_status read_word(const json_t *root, const char *word, const char *own, double min, double max,
                              const char *what, double *out)
{
    ASSAY_CHECK(json_object_get(root, word) == NULL || json_object_get(root, own) == NULL, ASSAY_MISMATCH,
                "%s: %s and %s: expected one of them", what, word, own);
    return assay_json_get_double(root, word, false, min, max, what, out);
}

/* A member as the file calls it; Megatron-LM's word where it does not. */
static const char *word_said(const json_t *root, const char *word, const char *own)
{
    return json_object_get(root, own) != NULL ? own : word;
}

/* The factor on the scale of scores is there whatever rope_type says. */
static assay_status read_mla(const json_t *root, bool form, const char *what, assay_model_config *c)
{
    static const char length[] = "original_max_position_embeddings",
                      own_length[] = "rope_original_max_position_embeddings",
                      factor[] = "rotary_scaling_factor", own_factor[] = "rope_factor";
    const int64_t longest = (int64_t)1 << 40;
    ASSAY_TRY(read_word(root, "mscale_all_dim", "rope_mscale_all_dim", 0.0, longest_mscale, what,
                        &c->rope_mscale_all_dim));
    if (c->rope_type == ASSAY_ROPE_YARN || c->rope_mscale_all_dim > 0.0) {
        ASSAY_CHECK(!form || json_object_get(root, factor) != NULL ||
                        json_object_get(root, own_factor) != NULL,
                    ASSAY_FORMAT,
                    "%s: %s: missing, expected a number (the default of MLATransformerConfig is 40, that of "
                    "Megatron-LM's --rotary-scaling-factor, which it hands over, 1.0)",
                    what, factor);
        ASSAY_TRY(read_word(root, factor, own_factor, 1e-6, 1e9, what, &c->rope_factor));
    }
    if (c->rope_type != ASSAY_ROPE_YARN)
        return ASSAY_OK;
    ASSAY_TRY(read_word(root, "beta_fast", "rope_beta_fast", 1e-6, 1e9, what, &c->rope_beta_fast));
    ASSAY_TRY(read_word(root, "beta_slow", "rope_beta_slow", 1e-6, 1e9, what, &c->rope_beta_slow));
    ASSAY_CHECK(!form || c->rope_beta_fast >= c->rope_beta_slow, ASSAY_MISMATCH,
                "%s: %s %g is less than %s %g", what, word_said(root, "beta_fast", "rope_beta_fast"),
                c->rope_beta_fast, word_said(root, "beta_slow", "rope_beta_slow"), c->rope_beta_slow);
    ASSAY_CHECK(json_object_get(root, length) == NULL || json_object_get(root, own_length) == NULL,
                ASSAY_MISMATCH, "%s: %s and %s: expected one of them", what, length, own_length);
    if (form && json_object_get(root, own_length) == NULL)
        c->rope_original_max_position_embeddings = 4096; /* Megatron-LM's default */
    ASSAY_TRY(
        assay_json_get_i64(root, length, false, 1, longest, what, &c->rope_original_max_position_embeddings));
    ASSAY_CHECK(json_object_get(root, "mscale") == NULL ||
                    json_object_get(root, "rope_attention_factor") == NULL,
                ASSAY_MISMATCH, "%s: mscale and rope_attention_factor: expected one of them", what);
    return read_word(root, "mscale", "rope_mscale", 0.0, longest_mscale, what, &c->rope_mscale);
}

assay_status assay_config_read_megatron_yarn(const json_t *root, bool form, const char *what,
                                             assay_model_config *c)
{
    const bool yarn = c->rope_type == ASSAY_ROPE_YARN;
    if (yarn && json_object_get(root, "rope_beta_fast") == NULL)
        c->rope_beta_fast = 32.0;
    if (yarn && json_object_get(root, "rope_beta_slow") == NULL)
        c->rope_beta_slow = 1.0;
    if (yarn && json_object_get(root, "rope_truncate") == NULL)
        c->rope_truncate = true;
    if (yarn && json_object_get(root, "rope_mscale") == NULL &&
        json_object_get(root, "rope_attention_factor") == NULL)
        c->rope_mscale = 1.0;
    return assay_config_is_mla(c) ? read_mla(root, form, what, c) : ASSAY_OK;
}
