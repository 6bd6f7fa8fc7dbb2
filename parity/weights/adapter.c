/* Reading an adapter: which tensors belong to which module, and whether they are what the configuration says.
 * Source: PEFT 0.21, LoraConfig, get_peft_model_state_dict, check_target_module_exists, get_pattern_key. */
#include "parity/weights/adapter.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char prefix[] = "base_model.model.";
static const char *const suffix[PARITY_LORA_KINDS] = {
    ".lora_A.weight", ".lora_B.weight", ".lora_embedding_A", ".lora_embedding_B", ".lora_magnitude_vector", ""};
static const char below[] = ".base_layer.weight";

/* --- configuration ------------------------------------------------------------------------------------------- */
/* Read here, or of no effect on a merged weight. */
static bool is_known(const char *key)
{
    static const char *const keys[] = {
        "peft_type",          "r",              "lora_alpha",       "use_rslora",      "use_dora",
        "bias",               "rank_pattern",   "alpha_pattern",    "fan_in_fan_out",  "target_modules",
        "exclude_modules",    "modules_to_save", "layers_to_transform", "init_lora_weights",
        /* of no effect */
        "auto_mapping",       "base_model_name_or_path", "inference_mode", "lora_dropout", "megatron_core",
        "peft_version",       "revision",       "task_type",        "qalora_group_size", "eva_config",
        "runtime_config",     NULL};
    for (int i = 0; keys[i] != NULL; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

static bool says_nothing(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
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
               "%s: init_lora_weights: %.40s may change the weights below the adapter: expected true, false, gaussian, "
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
        ASSAY_CHECK(json_is_string(json_array_get(names, i)), ASSAY_FORMAT, "%s: %s[%zu]: expected a name", what,
                    key, i);
    return ASSAY_OK;
}

static assay_status check_layers(const json_t *config, const char *what)
{
    const json_t *layers = json_object_get(config, "layers_to_transform");
    if (layers == NULL || json_is_null(layers) || json_is_integer(layers))
        return ASSAY_OK;
    ASSAY_CHECK(json_is_array(layers), ASSAY_FORMAT, "%s: layers_to_transform: expected numbers of layers", what);
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

static assay_status read_config(parity_adapter *a, const char *what)
{
    char type[32], bias[32] = "none";
    const json_t *c = a->config;
    a->alpha = 8.0;
    ASSAY_CHECK(json_is_object(c), ASSAY_FORMAT, "%s: expected an object", what);
    ASSAY_TRY(assay_json_get_string(c, "peft_type", true, what, type, sizeof type));
    ASSAY_CHECK(strcmp(type, "LORA") == 0, ASSAY_UNSUPPORTED, "%s: peft_type: expected LORA, found %s", what, type);
    ASSAY_TRY(assay_json_get_string(c, "bias", false, what, bias, sizeof bias));
    ASSAY_CHECK(strcmp(bias, "none") == 0, ASSAY_UNSUPPORTED,
                "%s: bias: expected none, found %s: biases that were trained beside the adapter are not merged", what,
                bias);
    ASSAY_TRY(assay_json_get_i64(c, "r", true, 1, INT_MAX, what, &a->r));
    ASSAY_TRY(assay_json_get_double(c, "lora_alpha", false, -1e9, 1e9, what, &a->alpha));
    ASSAY_TRY(assay_json_get_bool(c, "use_rslora", false, what, &a->use_rslora));
    ASSAY_TRY(assay_json_get_bool(c, "use_dora", false, what, &a->use_dora));
    bool conv1d = false; /* PEFT turns it off, with a warning, where weights are those of Linear: all of ours are */
    ASSAY_TRY(assay_json_get_bool(c, "fan_in_fan_out", false, what, &conv1d));
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
                    ASSAY_UNSUPPORTED, "%s: %.80s is not supported: expected null", what, json_object_iter_key(it));
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
        return parity_regex_match(json_string_value(names), module, what, found);
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

assay_status parity_adapter_targets(const parity_adapter *a, const char *module, bool *targeted)
{
    const json_t *targets = json_object_get(a->config, "target_modules");
    const json_t *layers = json_object_get(a->config, "layers_to_transform");
    const json_t *saved = json_object_get(a->config, "modules_to_save");
    bool excluded;
    *targeted = false;
    ASSAY_CHECK(!json_is_string(targets) || strcmp(json_string_value(targets), "all-linear") != 0, ASSAY_UNSUPPORTED,
                "%s: target_modules: all-linear: expected the list that PEFT makes of it", a->dir);
    ASSAY_TRY(named(json_object_get(a->config, "exclude_modules"), module, "exclude_modules", &excluded));
    for (size_t i = 0; i < json_array_size(saved) && !excluded; i++)
        excluded = ends_module(module, json_string_value(json_array_get(saved, i)));
    if (excluded)
        return ASSAY_OK;
    ASSAY_TRY(named(targets, module, "target_modules", targeted));
    if (*targeted && !json_is_string(targets) && layers != NULL && !says_nothing(layers))
        *targeted = in_layers(layers, module);
    return ASSAY_OK;
}

/* The value of the first pattern that is the module's name or its end; NULL: none. */
static assay_status pattern_value(const parity_adapter *a, const char *key, const char *module,
                                  const json_t **out)
{
    json_t *of = json_object_get(a->config, key);
    *out = NULL;
    for (void *it = json_object_iter(of); it && *out == NULL; it = json_object_iter_next(of, it)) {
        char pattern[PARITY_MODULE + 16];
        bool matches;
        const int n = snprintf(pattern, sizeof pattern, "(.*\\.)?(%s)", json_object_iter_key(it));
        ASSAY_CHECK(n > 0 && (size_t)n < sizeof pattern, ASSAY_LIMIT, "%s: a name is too long", key);
        ASSAY_TRY(parity_regex_match(pattern, module, key, &matches));
        if (matches)
            *out = json_object_iter_value(it);
    }
    return ASSAY_OK;
}

/* --- tensors -------------------------------------------------------------------------------------------------- */
static bool cut_end(const char *name, const char *end, char *module, size_t capacity)
{
    const size_t n = strlen(name), m = strlen(end);
    if (n <= m || n - m >= capacity || strcmp(name + n - m, end) != 0)
        return false;
    snprintf(module, capacity, "%.*s", (int)(n - m), name);
    return true;
}

/* PEFT's rule for modules_to_save: the end of the name, also without a dot before it. */
static bool is_saved(const parity_adapter *a, const char *module)
{
    const json_t *saved = json_object_get(a->config, "modules_to_save");
    for (size_t i = 0; i < json_array_size(saved); i++) {
        const char *name = json_string_value(json_array_get(saved, i));
        const size_t n = strlen(module), m = strlen(name);
        if (m > 0 && n >= m && strcmp(module + n - m, name) == 0)
            return true;
    }
    return false;
}

static assay_status kind_of(const parity_adapter *a, const char *tensor, char module[PARITY_MODULE],
                            parity_lora_kind *kind)
{
    const size_t n = sizeof prefix - 1;
    ASSAY_CHECK(strncmp(tensor, prefix, n) == 0, ASSAY_MISMATCH, "%s: tensor '%.160s': expected a name that begins with %s",
                a->dir, tensor, prefix);
    for (int k = 0; k < PARITY_LORA_WHOLE; k++)
        if (cut_end(tensor + n, suffix[k], module, PARITY_MODULE)) {
            *kind = (parity_lora_kind)k;
            ASSAY_CHECK(*kind != PARITY_LORA_MAGNITUDE || a->use_dora, ASSAY_MISMATCH,
                        "%s: tensor '%.160s', but use_dora is false", a->dir, tensor);
            return ASSAY_OK;
        }
    *kind = PARITY_LORA_WHOLE;
    if (cut_end(tensor + n, below, module, PARITY_MODULE))
        return ASSAY_OK;
    ASSAY_CHECK(cut_end(tensor + n, ".weight", module, PARITY_MODULE) && is_saved(a, module), ASSAY_UNSUPPORTED,
                "%s: tensor '%.160s' is neither LoRA's A or B nor of a module in modules_to_save", a->dir, tensor);
    return ASSAY_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const parity_lora_module *)a)->name, ((const parity_lora_module *)b)->name);
}

const parity_lora_module *parity_adapter_find(const parity_adapter *a, const char *module)
{
    parity_lora_module key = {.r = 0};
    if (a->n == 0 || strlen(module) >= sizeof key.name)
        return NULL;
    snprintf(key.name, sizeof key.name, "%s", module);
    return bsearch(&key, a->modules, (size_t)a->n, sizeof key, by_name);
}

static assay_status group_tensors(parity_adapter *a)
{
    const int64_t n = assay_tensorfile_count(a->file);
    a->modules = calloc((size_t)n + 1, sizeof *a->modules);
    ASSAY_CHECK(a->modules != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld tensors", a->dir, (long long)n);
    for (int pass = 0; pass < 2; pass++) { /* the modules, then their tensors */
        for (int64_t i = 0; i < n; i++) {
            const assay_tensor_info *t = assay_tensorfile_at(a->file, i);
            parity_lora_module *m = &a->modules[a->n];
            char module[PARITY_MODULE];
            parity_lora_kind kind;
            ASSAY_TRY(kind_of(a, t->name, module, &kind));
            if (pass == 0) {
                snprintf(m->name, sizeof m->name, "%s", module);
                a->n++;
                continue;
            }
            m = (parity_lora_module *)(uintptr_t)parity_adapter_find(a, module);
            ASSAY_CHECK(m != NULL && m->part[kind] == NULL, ASSAY_MISMATCH, "%s: '%.160s' is there twice", a->dir,
                        t->name);
            m->part[kind] = t;
        }
        if (pass == 1)
            continue;
        qsort(a->modules, (size_t)a->n, sizeof *a->modules, by_name);
        int64_t kept = 0;
        for (int64_t i = 0; i < a->n; i++)
            if (i == 0 || strcmp(a->modules[i].name, a->modules[kept - 1].name) != 0) {
                if (kept != i)
                    a->modules[kept] = a->modules[i];
                kept++;
            }
        a->n = kept;
    }
    return ASSAY_OK;
}

/* --- what a module says against the configuration ---------------------------------------------------------------- */
static assay_status check_parts(const parity_adapter *a, const parity_lora_module *m)
{
    const bool linear = m->part[PARITY_LORA_A] || m->part[PARITY_LORA_B];
    const bool embedding = m->part[PARITY_LORA_EMBEDDING_A] || m->part[PARITY_LORA_EMBEDDING_B];
    ASSAY_CHECK(!linear || !embedding, ASSAY_MISMATCH, "%s: %s: is adapted both as a matrix and as an embedding", a->dir,
                m->name);
    for (int k = linear ? PARITY_LORA_A : PARITY_LORA_EMBEDDING_A; (linear || embedding) && k <= (linear ? PARITY_LORA_B : PARITY_LORA_EMBEDDING_B);
         k++)
        ASSAY_CHECK(m->part[k] != NULL, ASSAY_NOT_FOUND, "%s: there is no tensor '%s%s%s'", a->dir, prefix, m->name,
                    suffix[k]);
    ASSAY_CHECK(!a->use_dora || !embedding, ASSAY_UNSUPPORTED, "%s: %s: DoRA of an embedding is not supported", a->dir,
                m->name);
    ASSAY_CHECK(!linear || (m->part[PARITY_LORA_MAGNITUDE] != NULL) == a->use_dora, ASSAY_NOT_FOUND,
                "%s: there is no tensor '%s%s%s'", a->dir, prefix, m->name, suffix[PARITY_LORA_MAGNITUDE]);
    ASSAY_CHECK(linear || m->part[PARITY_LORA_MAGNITUDE] == NULL, ASSAY_MISMATCH,
                "%s: %s: has a lora_magnitude_vector alone", a->dir, m->name);
    return ASSAY_OK;
}

static assay_status check_rank(const parity_adapter *a, parity_lora_module *m)
{
    const json_t *r, *alpha;
    const bool embedding = m->part[PARITY_LORA_A] == NULL;
    const assay_tensor_info *x = m->part[embedding ? PARITY_LORA_EMBEDDING_A : PARITY_LORA_A];
    const assay_tensor_info *y = m->part[embedding ? PARITY_LORA_EMBEDDING_B : PARITY_LORA_B];
    const assay_tensor_info *length = m->part[PARITY_LORA_MAGNITUDE];
    if (x == NULL)
        return ASSAY_OK;
    ASSAY_TRY(pattern_value(a, "rank_pattern", m->name, &r));
    ASSAY_TRY(pattern_value(a, "alpha_pattern", m->name, &alpha));
    m->r = r != NULL ? (int64_t)json_integer_value(r) : a->r;
    const double strength = alpha != NULL ? json_number_value(alpha) : a->alpha;
    m->scale = strength / (a->use_rslora ? sqrt((double)m->r) : (double)m->r);
    ASSAY_CHECK(x->ndim == 2 && x->shape[0] == m->r, ASSAY_MISMATCH, "%s: expected [%lld,...], the rank of %s first, found %lld in %d dimensions",
                x->name, (long long)m->r, m->name, x->ndim > 0 ? (long long)x->shape[0] : 1, x->ndim);
    ASSAY_CHECK(y->ndim == 2 && y->shape[1] == m->r, ASSAY_MISMATCH, "%s: expected [...,%lld], the rank of %s last, found %d dimensions%s",
                y->name, (long long)m->r, m->name, y->ndim, y->ndim == 2 ? " and another rank" : "");
    ASSAY_CHECK(length == NULL || (length->ndim == 1 && length->shape[0] == y->shape[0]), ASSAY_MISMATCH,
                "%s: expected [%lld]", length ? length->name : "", (long long)y->shape[0]);
    bool targeted;
    ASSAY_TRY(parity_adapter_targets(a, m->name, &targeted));
    ASSAY_CHECK(targeted, ASSAY_MISMATCH, "%s: %s is adapted, but target_modules does not choose it", a->dir, m->name);
    return ASSAY_OK;
}

static assay_status open_all(parity_adapter *a)
{
    char path[PARITY_ADAPTER_PATH + 64];
    snprintf(path, sizeof path, "%s/adapter_config.json", a->dir);
    ASSAY_TRY(assay_json_load(&a->config, path));
    ASSAY_TRY(read_config(a, path));
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", a->dir);
    ASSAY_TRY(assay_tensorfile_open(&a->file, path));
    ASSAY_TRY(group_tensors(a));
    ASSAY_CHECK(a->n > 0, ASSAY_FORMAT, "%s: holds no tensor", path);
    for (int64_t i = 0; i < a->n; i++) {
        ASSAY_TRY(check_parts(a, &a->modules[i]));
        ASSAY_TRY(check_rank(a, &a->modules[i]));
    }
    return ASSAY_OK;
}

assay_status parity_adapter_open(parity_adapter *a, const char *dir)
{
    *a = (parity_adapter){.n = 0};
    ASSAY_CHECK(strlen(dir) < sizeof a->dir, ASSAY_LIMIT, "%.200s: the path is too long", dir);
    snprintf(a->dir, sizeof a->dir, "%s", dir);
    const assay_status st = open_all(a);
    if (st != ASSAY_OK)
        parity_adapter_close(a);
    return st;
}

void parity_adapter_close(parity_adapter *a)
{
    if (a->file != NULL)
        assay_tensorfile_close(a->file);
    json_decref(a->config);
    free(a->modules);
    *a = (parity_adapter){.n = 0};
}

void parity_adapter_name(const parity_lora_module *m, parity_lora_kind kind, char *out, size_t capacity)
{
    const bool adapted = m->part[PARITY_LORA_EMBEDDING_A] != NULL || m->part[PARITY_LORA_A] != NULL;
    snprintf(out, capacity, "%s%s%s", prefix, m->name,
             kind != PARITY_LORA_WHOLE ? suffix[kind]
             : adapted                 ? below
                                       : ".weight");
}
