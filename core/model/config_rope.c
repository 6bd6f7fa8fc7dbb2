/* Rotary embedding fields of a Hugging Face config.json, in the spelling of transformers 5
 * (`rope_parameters`) and of 4 (`rope_scaling` + `rope_theta`).  A file may hold both as long as they say the same: transformers 5
 * takes a rope_scaling that is not empty alone (convert_rope_params_to_dict), other readers may not. */
#include "core/model/config_internal.h"

#include <string.h>

enum { MAX_SOURCES = 3 };

/* Places where a field may stand: the top level and the two objects. */
typedef struct rope_sources {
    int n;
    const json_t *object[MAX_SOURCES];
    char what[MAX_SOURCES][ASSAY_CONFIG_WHAT + 32];
} rope_sources;

static assay_status add_source(rope_sources *s, const json_t *root, const char *key, const char *what)
{
    const json_t *object = json_object_get(root, key);
    if (object == NULL || json_is_null(object))
        return ASSAY_OK;
    ASSAY_CHECK(json_is_object(object), ASSAY_FORMAT, "%s: %s: expected an object", what, key);
    for (void *it = json_object_iter((json_t *)(uintptr_t)object); it != NULL;
         it = json_object_iter_next((json_t *)(uintptr_t)object, it))
        ASSAY_CHECK(!json_is_object(json_object_iter_value(it)), ASSAY_UNSUPPORTED,
                    "%s: %s.%.64s: rotary parameters by layer type are not supported", what, key,
                    json_object_iter_key(it));
    snprintf(s->what[s->n], sizeof s->what[s->n], "%s: %s", what, key);
    s->object[s->n++] = object;
    return ASSAY_OK;
}

/* One number from every place from `first` on that has it; they must agree.  Nowhere: *out stays, or an error
 * if required. */
static assay_status agree(const rope_sources *s, int first, const char *key, double min, double max,
                          double *out, const char *required_by)
{
    int found = -1;
    double value = *out;
    for (int i = first; i < s->n; i++) {
        const json_t *member = json_object_get(s->object[i], key);
        if (member == NULL || json_is_null(member))
            continue;
        double here = 0.0;
        ASSAY_TRY(assay_json_get_double(s->object[i], key, true, min, max, s->what[i], &here));
        ASSAY_CHECK(found < 0 || here == value, ASSAY_MISMATCH, "%s: %s is %.17g, but %s: %s is %.17g",
                    s->what[i], key, here, found < 0 ? "" : s->what[found], key, value);
        value = here;
        found = i;
    }
    ASSAY_CHECK(found >= 0 || required_by == NULL, ASSAY_FORMAT,
                "%s: %s: missing, rope type %s needs a number", s->what[s->n - 1], key, required_by);
    *out = value;
    return ASSAY_OK;
}

static assay_status read_type(const rope_sources *s, assay_rope_type *out)
{
    static const char *const keys[] = {"rope_type", "type"};
    char first[64] = "";
    int found = -1;
    for (int i = 1; i < s->n; i++) {
        for (int k = 0; k < 2; k++) {
            char here[64] = "";
            assay_rope_type type;
            ASSAY_TRY(assay_json_get_string(s->object[i], keys[k], false, s->what[i], here, sizeof here));
            if (here[0] == '\0')
                continue;
            ASSAY_TRY(assay_rope_from_name(here, s->what[i], &type));
            ASSAY_CHECK(found < 0 || strcmp(here, first) == 0, ASSAY_MISMATCH,
                        "%s: %s is '%s', but %s says '%s'", s->what[i], keys[k], here,
                        found < 0 ? "" : s->what[found], first);
            memcpy(first, here, sizeof first);
            *out = type;
            found = i;
        }
    }
    return ASSAY_OK;
}

static assay_status read_original_length(const rope_sources *s, assay_model_config *c)
{
    static const char key[] = "original_max_position_embeddings";
    const double longest = (double)((int64_t)1 << 40);
    double value = (double)c->max_position_embeddings;
    ASSAY_TRY(agree(s, 0, key, 1.0, longest, &value, NULL));
    const int64_t whole = (int64_t)value;
    ASSAY_CHECK((double)whole == value, ASSAY_FORMAT, "%s: %s: expected an integer, found %.17g",
                s->what[s->n - 1], key, value);
    c->rope_original_max_position_embeddings = whole;
    return ASSAY_OK;
}

/* null is no truncation to Python; it is not what anybody means by it. */
static assay_status read_truncate(const rope_sources *s, bool *out)
{
    static const char key[] = "truncate";
    int found = -1;
    *out = true;
    for (int i = 1; i < s->n; i++) {
        const json_t *member = json_object_get(s->object[i], key);
        ASSAY_CHECK(member == NULL || json_is_boolean(member), ASSAY_FORMAT, "%s: %s: expected true or false",
                    s->what[i], key);
        ASSAY_CHECK(member == NULL || found < 0 || json_is_true(member) == *out, ASSAY_MISMATCH,
                    "%s: %s and that of %s contradict each other", s->what[i], key,
                    s->what[found < 0 ? i : found]);
        if (member != NULL) {
            *out = json_is_true(member);
            found = i;
        }
    }
    return ASSAY_OK;
}

/* factor: null, which a class with MLA dies of where mscale_all_dim is there: made from the two lengths. */
static bool is_null_somewhere(const rope_sources *s, const char *key)
{
    for (int i = 1; i < s->n; i++)
        if (json_is_null(json_object_get(s->object[i], key)))
            return true;
    return false;
}

static assay_status read_yarn(const rope_sources *s, assay_model_config *c)
{
    const bool mla = assay_hf_class_of(c->arch)->mla != NULL;
    double mscale = 0.0, all_dim = 0.0, given = 0.0;
    ASSAY_TRY(agree(s, 1, "factor", 1e-6, 1e9, &c->rope_factor,
                    is_null_somewhere(s, "factor") && !mla ? NULL : assay_rope_name(c->rope_type)));
    ASSAY_TRY(read_original_length(s, c));
    if (!(c->rope_factor > 0.0))
        c->rope_factor =
            (double)c->max_position_embeddings / (double)c->rope_original_max_position_embeddings;
    ASSAY_TRY(agree(s, 1, "beta_fast", 0.0, 1e9, &c->rope_beta_fast, NULL));
    ASSAY_TRY(agree(s, 1, "beta_slow", 0.0, 1e9, &c->rope_beta_slow, NULL));
    if (!(c->rope_beta_fast > 0.0))
        c->rope_beta_fast = 32.0;
    if (!(c->rope_beta_slow > 0.0))
        c->rope_beta_slow = 1.0;
    ASSAY_TRY(read_truncate(s, &c->rope_truncate));
    ASSAY_TRY(agree(s, 1, "mscale", 0.0, 1e3, &mscale, NULL));
    ASSAY_TRY(agree(s, 1, "mscale_all_dim", 0.0, 1e3, &all_dim, NULL));
    ASSAY_TRY(agree(s, 1, "attention_factor", 1e-6, 1e6, &given, NULL));
    c->rope_attention_factor = given;
    if (mla || (mscale > 0.0 && !(given > 0.0)))
        c->rope_mscale_all_dim = all_dim;
    if (given > 0.0)
        return ASSAY_OK;
    ASSAY_CHECK(
        !(mla && all_dim > 0.0) || mscale > 0.0, ASSAY_UNSUPPORTED,
        "%s: mscale_all_dim without mscale, which scales scores but not cos and sin: not supported yet, "
        "expected both or none",
        s->what[s->n - 1]);
    /* one of the two alone says nothing of cos and sin here */
    c->rope_mscale = mscale > 0.0 && all_dim > 0.0 ? mscale : 1.0;
    return ASSAY_OK;
}

static bool has(const json_t *object, const char *key)
{
    const json_t *member = json_object_get(object, key);
    return member != NULL && !json_is_null(member);
}

/* Two objects that are not empty have the same members, one of which may stand at the top level in their place. */
static assay_status check_members(const json_t *root, const char *what, const assay_model_config *c)
{
    static const char *const keys[] = {"rope_type",
                                       "rope_theta",
                                       "partial_rotary_factor",
                                       "original_max_position_embeddings",
                                       "factor",
                                       "low_freq_factor",
                                       "high_freq_factor",
                                       "beta_fast",
                                       "beta_slow",
                                       "truncate",
                                       "mscale",
                                       "mscale_all_dim",
                                       "attention_factor"};
    enum { N_KEYS = sizeof keys / sizeof keys[0], N_TOP = 4 };
    const json_t *fresh = json_object_get(root, "rope_parameters"),
                 *old = json_object_get(root, "rope_scaling");
    char theta[64];
    if (json_object_size(fresh) == 0 || json_object_size(old) == 0)
        return ASSAY_OK;
    snprintf(theta, sizeof theta, "%g", c->rotary_base); /* the class's, before any is read */
    for (int i = 0; i < N_KEYS; i++) {
        const bool type = i == 0, top = i > 0 && i < N_TOP && has(root, keys[i]);
        const bool in_fresh = top || has(fresh, keys[i]) || (type && has(fresh, "type"));
        const bool in_old = top || has(old, keys[i]) || (type && has(old, "type"));
        ASSAY_CHECK(in_old || !in_fresh, ASSAY_MISMATCH,
                    "%s: rope_parameters: %s: is not in rope_scaling, which transformers takes alone, with "
                    "%s for this one; expected the same members in both, or one of the two objects",
                    what, keys[i],
                    type                                 ? "'default'"
                    : strcmp(keys[i], "rope_theta") == 0 ? theta
                                                         : "its own default");
        ASSAY_CHECK(in_fresh || !in_old, ASSAY_MISMATCH,
                    "%s: rope_scaling: %s: is not in rope_parameters, of which transformers takes nothing "
                    "where rope_scaling is there; expected the same members in both, or one of the two "
                    "objects",
                    what, keys[i]);
    }
    return ASSAY_OK;
}

assay_status assay_config_read_rope(const json_t *root, const char *what, assay_model_config *c)
{
    rope_sources s = {.n = 1, .object = {root}};
    snprintf(s.what[0], sizeof s.what[0], "%s", what);
    ASSAY_TRY(add_source(&s, root, "rope_parameters", what));
    ASSAY_TRY(add_source(&s, root, "rope_scaling", what));
    ASSAY_TRY(read_type(&s, &c->rope_type));
    ASSAY_TRY(check_members(root, what, c));
    ASSAY_TRY(agree(&s, 0, "rope_theta", 1.0, 1e15, &c->rotary_base, NULL));
    double percent = 1.0;
    ASSAY_TRY(agree(&s, 0, "partial_rotary_factor", 0.0, 1.0, &percent, NULL));
    /* The classes of these five rotate the whole head whatever this field says. */
    ASSAY_CHECK(percent == 1.0, ASSAY_UNSUPPORTED,
                "%s: partial_rotary_factor: %s rotates whole heads, expected 1, found %g", what,
                assay_arch_name(c->arch), percent);
    if (c->rope_type == ASSAY_ROPE_DEFAULT)
        return ASSAY_OK;
    if (c->rope_type == ASSAY_ROPE_YARN)
        return read_yarn(&s, c);
    const char *type = assay_rope_name(c->rope_type);
    ASSAY_TRY(agree(&s, 1, "factor", 1e-6, 1e9, &c->rope_factor, type));
    if (c->rope_type == ASSAY_ROPE_LINEAR)
        return ASSAY_OK;
    ASSAY_TRY(agree(&s, 1, "low_freq_factor", 1e-6, 1e9, &c->rope_low_freq_factor, type));
    ASSAY_TRY(agree(&s, 1, "high_freq_factor", 1e-6, 1e9, &c->rope_high_freq_factor, type));
    ASSAY_TRY(read_original_length(&s, c));
    return ASSAY_OK;
}
