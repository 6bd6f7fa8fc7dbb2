/* adapter_config.json: what is read of it, and which modules it chooses.
 * Source: PEFT 0.21, LoraConfig, check_target_module_exists, get_pattern_key. */
#include "core/base/pattern.h"
#include "core/files/adapter_internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- configuration ------------------------------------------------------------------------------------------- */
/* Read here, or of no effect on a merged weight. */
static bool is_known(const char *key)
{
    static const char *const keys[] = {
        "peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "bias", "rank_pattern", "alpha_pattern",
        "fan_in_fan_out", "target_modules", "exclude_modules", "modules_to_save", "layers_to_transform",
        "init_lora_weights",
        /* of no effect */
        "auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "megatron_core",
        "peft_version", "revision", "task_type", "qalora_group_size", "eva_config", "runtime_config", NULL};
    for (int i = 0; keys[i] != NULL; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

static bool says_nothing(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* These change the base model's weights before training: the adapter is of other ones. */
static assay_status check_init(const json_t *config, const char *what)
{
    static const char *const words[] = {"gaussian", "eva", "orthogonal", NULL};
    const json_t *init = json_object_get(config, "init_lora_weights");
    if (init == NULL || !json_is_string(init))
        return ASSAY_OK;
    for (int i = 0; words[i] != NULL; i++)
        if (strcmp(json_string_value(init), words[i]) == 0)
            return ASSAY_OK;
    ASSAY_FAIL(ASSAY_UNSUPPORTED,
               "%s: init_lora_weights: %.40s may change the weights below the adapter: expected true, false, "
               "gaussian, "
               "eva or orthogonal",
               what, json_string_value(init));
}

/* A list of names, a pattern, or nothing. */
static assay_status check_names(const json_t *config, const char *key, bool pattern, const char *what)
{
    const json_t *names = json_object_get(config, key);
    if (names == NULL || json_is_null(names) || (pattern && json_is_string(names)))
        return ASSAY_OK;
    ASSAY_CHECK(json_is_array(names), ASSAY_FORMAT, "%s: %s: expected a list of names%s", what, key,
                pattern ? " or a pattern" : "");
    for (size_t i = 0; i < json_array_size(names); i++)
        ASSAY_CHECK(json_is_string(json_array_get(names, i)), ASSAY_FORMAT, "%s: %s[%zu]: expected a name",
                    what, key, i);
    return ASSAY_OK;
}

static assay_status check_layers(const json_t *config, const char *what)
{
    const json_t *layers = json_object_get(config, "layers_to_transform");
    if (layers == NULL || json_is_null(layers) || json_is_integer(layers))
        return ASSAY_OK;
    ASSAY_CHECK(json_is_array(layers), ASSAY_FORMAT, "%s: layers_to_transform: expected numbers of layers",
                what);
    for (size_t i = 0; i < json_array_size(layers); i++)
        ASSAY_CHECK(json_is_integer(json_array_get(layers, i)), ASSAY_FORMAT,
                    "%s: layers_to_transform[%zu]: expected an integer", what, i);
    return ASSAY_OK;
}

static assay_status check_patterns(const json_t *config, const char *key, bool whole, const char *what)
{
    json_t *of = json_object_get(config, key);
    if (of == NULL || json_is_null(of))
        return ASSAY_OK;
    ASSAY_CHECK(json_is_object(of), ASSAY_FORMAT, "%s: %s: expected an object", what, key);
    for (void *it = json_object_iter(of); it; it = json_object_iter_next(of, it)) {
        const json_t *v = json_object_iter_value(it);
        ASSAY_CHECK((json_is_integer(v) && json_integer_value(v) >= 1 && json_integer_value(v) <= INT_MAX) ||
                        (!whole && json_is_real(v)),
                    ASSAY_FORMAT, "%s: %s: %.80s: expected a number of at least 1", what, key,
                    json_object_iter_key(it));
    }
    return ASSAY_OK;
}

assay_status assay_adapter_read_config(assay_adapter *a, const char *what)
{
    char type[32], bias[32] = "none";
    const json_t *c = a->config;
    a->alpha = 8.0;
    ASSAY_CHECK(json_is_object(c), ASSAY_FORMAT, "%s: expected an object", what);
    ASSAY_TRY(assay_json_get_string(c, "peft_type", true, what, type, sizeof type));
    ASSAY_CHECK(strcmp(type, "LORA") == 0, ASSAY_UNSUPPORTED, "%s: peft_type: expected LORA, found %s", what,
                type);
    ASSAY_TRY(assay_json_get_string(c, "bias", false, what, bias, sizeof bias));
    ASSAY_CHECK(
        strcmp(bias, "none") == 0, ASSAY_UNSUPPORTED,
        "%s: bias: expected none, found %s: biases that were trained beside the adapter are not merged", what,
        bias);
    ASSAY_TRY(assay_json_get_i64(c, "r", true, 1, INT_MAX, what, &a->r));
    ASSAY_TRY(assay_json_get_double(c, "lora_alpha", false, -1e9, 1e9, what, &a->alpha));
    ASSAY_TRY(assay_json_get_bool(c, "use_rslora", false, what, &a->use_rslora));
    ASSAY_TRY(assay_json_get_bool(c, "use_dora", false, what, &a->use_dora));
    ASSAY_TRY(assay_json_get_bool(c, "fan_in_fan_out", false, what, &a->fan_in_fan_out));
    ASSAY_TRY(check_init(c, what));
    ASSAY_TRY(check_names(c, "target_modules", true, what));
    ASSAY_TRY(check_names(c, "exclude_modules", true, what));
    ASSAY_TRY(check_names(c, "modules_to_save", false, what));
    ASSAY_TRY(check_layers(c, what));
    ASSAY_TRY(check_patterns(c, "rank_pattern", true, what));
    ASSAY_TRY(check_patterns(c, "alpha_pattern", false, what));
    for (void *it = json_object_iter(a->config); it; it = json_object_iter_next(a->config, it))
        ASSAY_CHECK(is_known(json_object_iter_key(it)) || says_nothing(json_object_iter_value(it)) ||
                        strcmp(json_object_iter_key(it), "loftq_config") == 0,
                    ASSAY_UNSUPPORTED, "%s: %.80s is not supported: expected null", what,
                    json_object_iter_key(it));
    return ASSAY_OK;
}

/* --- which modules ------------------------------------------------------------------------------------------- */
/* The name itself, or the end of it behind a dot. */
static bool ends_module(const char *module, const char *name)
{
    const size_t n = strlen(module), m = strlen(name);
    return m > 0 && n >= m && strcmp(module + n - m, name) == 0 && (n == m || module[n - m - 1] == '.');
}

static assay_status named(const json_t *names, const char *module, const char *what, bool *found)
{
    *found = false;
    if (json_is_string(names))
        return assay_pattern_match(json_string_value(names), module, what, found);
    for (size_t i = 0; i < json_array_size(names) && !*found; i++)
        *found = ends_module(module, json_string_value(json_array_get(names, i)));
    return ASSAY_OK;
}

/* The first number between dots behind a name, as in model.layers.3.mlp. */
static bool in_layers(const json_t *layers, const char *module)
{
    for (const char *p = strchr(module, '.'); p != NULL; p = strchr(p + 1, '.')) {
        char *end;
        if (p[1] < '0' || p[1] > '9')
            continue;
        const long long layer = strtoll(p + 1, &end, 10);
        if (*end != '.')
            continue;
        if (json_is_integer(layers))
            return json_integer_value(layers) == layer;
        for (size_t i = 0; i < json_array_size(layers); i++)
            if (json_integer_value(json_array_get(layers, i)) == layer)
                return true;
        return false;
    }
    return false;
}

/* Whether a module is the named one or lies below it. */
static bool is_within(const char *module, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = module; at != NULL && n > 0; at = strchr(at, '.')) {
        at += *at == '.';
        if (strncmp(at, name, n) == 0 && (at[n] == '\0' || at[n] == '.'))
            return true;
    }
    return false;
}

assay_status assay_adapter_targets(const assay_adapter *a, const char *module, bool *targeted)
{
    const json_t *targets = json_object_get(a->config, "target_modules");
    const json_t *layers = json_object_get(a->config, "layers_to_transform");
    const json_t *saved = json_object_get(a->config, "modules_to_save");
    bool excluded;
    *targeted = false;
    ASSAY_CHECK(!json_is_string(targets) || strcmp(json_string_value(targets), "all-linear") != 0,
                ASSAY_UNSUPPORTED, "%s: target_modules: all-linear: expected the list that PEFT makes of it",
                a->dir);
    ASSAY_TRY(named(json_object_get(a->config, "exclude_modules"), module, "exclude_modules", &excluded));
    for (size_t i = 0; i < json_array_size(saved) && !excluded; i++)
        excluded = is_within(module, json_string_value(json_array_get(saved, i)));
    if (excluded)
        return ASSAY_OK;
    ASSAY_TRY(named(targets, module, "target_modules", targeted));
    if (*targeted && !json_is_string(targets) && layers != NULL && !says_nothing(layers))
        *targeted = in_layers(layers, module);
    return ASSAY_OK;
}

assay_status assay_adapter_pattern(const assay_adapter *a, const char *key, const char *module,
                                   const json_t **out)
{
    json_t *of = json_object_get(a->config, key);
    *out = NULL;
    for (void *it = json_object_iter(of); it && *out == NULL; it = json_object_iter_next(of, it)) {
        char pattern[ASSAY_MODULE_NAME + 16];
        bool matches;
        const int n = snprintf(pattern, sizeof pattern, "(.*\\.)?(%s)", json_object_iter_key(it));
        ASSAY_CHECK(n > 0 && (size_t)n < sizeof pattern, ASSAY_LIMIT, "%s: a name is too long", key);
        ASSAY_TRY(assay_pattern_match(pattern, module, key, &matches));
        if (matches)
            *out = json_object_iter_value(it);
    }
    return ASSAY_OK;
}

/* PEFT's rule for modules_to_save: a module whose name ends so, also without a dot before it, and all that is below it. */
bool assay_adapter_saves(const assay_adapter *a, const char *tensor)
{
    const json_t *saved = json_object_get(a->config, "modules_to_save");
    for (size_t i = 0; i < json_array_size(saved); i++) {
        const char *name = json_string_value(json_array_get(saved, i));
        const size_t m = strlen(name);
        for (const char *dot = strchr(tensor, '.'); dot != NULL && m > 0; dot = strchr(dot + 1, '.'))
            if ((size_t)(dot - tensor) >= m && strncmp(dot - m, name, m) == 0)
                return true;
    }
    return false;
}
