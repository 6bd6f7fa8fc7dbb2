/* Reading an adapter: which tensors belong to which module, and whether they are what the configuration says.
 * Source: PEFT 0.21, LoraConfig, get_peft_model_state_dict, check_target_module_exists, get_pattern_key. */
#include "core/files/adapter_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char prefix[] = "base_model.model.";
static const char *const suffix[ASSAY_LORA_KINDS] = {".lora_A.weight",         ".lora_B.weight",
                                                     ".lora_embedding_A",      ".lora_embedding_B",
                                                     ".lora_magnitude_vector", ""};
static const char below[] = ".base_layer.weight";

/* --- tensors -------------------------------------------------------------------------------------------------- */
static bool cut_end(const char *name, const char *end, char *module, size_t capacity)
{
    const size_t n = strlen(name), m = strlen(end);
    if (n <= m || n - m >= capacity || strcmp(name + n - m, end) != 0)
        return false;
    snprintf(module, capacity, "%.*s", (int)(n - m), name);
    return true;
}

static assay_status kind_of(const assay_adapter *a, const char *tensor, char module[ASSAY_MODULE_NAME],
                            assay_lora_kind *kind)
{
    const size_t n = sizeof prefix - 1;
    ASSAY_CHECK(strncmp(tensor, prefix, n) == 0, ASSAY_MISMATCH,
                "%s: tensor '%.160s': expected a name that begins with %s", a->dir, tensor, prefix);
    for (int k = 0; k < ASSAY_LORA_WHOLE; k++)
        if (cut_end(tensor + n, suffix[k], module, ASSAY_MODULE_NAME)) {
            *kind = (assay_lora_kind)k;
            ASSAY_CHECK(*kind != ASSAY_LORA_MAGNITUDE || a->use_dora, ASSAY_MISMATCH,
                        "%s: tensor '%.160s', but use_dora is false", a->dir, tensor);
            return ASSAY_OK;
        }
    *kind = ASSAY_LORA_WHOLE;
    if (cut_end(tensor + n, below, module, ASSAY_MODULE_NAME))
        return ASSAY_OK;
    ASSAY_CHECK(assay_adapter_saves(a, tensor + n), ASSAY_UNSUPPORTED,
                "%s: tensor '%.160s' is neither LoRA's A or B nor of a module in modules_to_save", a->dir,
                tensor);
    if (!cut_end(tensor + n, ".weight", module, ASSAY_MODULE_NAME)) {
        ASSAY_CHECK(strlen(tensor + n) < ASSAY_MODULE_NAME, ASSAY_LIMIT,
                    "%s: tensor '%.160s': the name is too long", a->dir, tensor);
        snprintf(module, ASSAY_MODULE_NAME, "%s", tensor + n);
    }
    return ASSAY_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const assay_lora_module *)a)->name, ((const assay_lora_module *)b)->name);
}

const assay_lora_module *assay_adapter_find(const assay_adapter *a, const char *module)
{
    assay_lora_module key = {.r = 0};
    if (a->n == 0 || strlen(module) >= sizeof key.name)
        return NULL;
    snprintf(key.name, sizeof key.name, "%s", module);
    return bsearch(&key, a->modules, (size_t)a->n, sizeof key, by_name);
}

static assay_status group_tensors(assay_adapter *a)
{
    const int64_t n = assay_tensorfile_count(a->file);
    a->modules = calloc((size_t)n + 1, sizeof *a->modules);
    ASSAY_CHECK(a->modules != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld tensors", a->dir, (long long)n);
    for (int pass = 0; pass < 2; pass++) { /* the modules, then their tensors */
        for (int64_t i = 0; i < n; i++) {
            const assay_tensor_info *t = assay_tensorfile_at(a->file, i);
            assay_lora_module *m = &a->modules[a->n];
            char module[ASSAY_MODULE_NAME];
            assay_lora_kind kind;
            ASSAY_TRY(kind_of(a, t->name, module, &kind));
            if (pass == 0) {
                snprintf(m->name, sizeof m->name, "%s", module);
                a->n++;
                continue;
            }
            m = (assay_lora_module *)(uintptr_t)assay_adapter_find(a, module);
            ASSAY_CHECK(m != NULL && m->part[kind] == NULL, ASSAY_MISMATCH, "%s: '%.160s' is there twice",
                        a->dir, t->name);
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
static assay_status check_parts(const assay_adapter *a, const assay_lora_module *m)
{
    const bool linear = m->part[ASSAY_LORA_A] || m->part[ASSAY_LORA_B];
    const bool embedding = m->part[ASSAY_LORA_EMBEDDING_A] || m->part[ASSAY_LORA_EMBEDDING_B];
    ASSAY_CHECK(!linear || !embedding, ASSAY_MISMATCH,
                "%s: %s: is adapted both as a matrix and as an embedding", a->dir, m->name);
    for (int k = linear ? ASSAY_LORA_A : ASSAY_LORA_EMBEDDING_A;
         (linear || embedding) && k <= (linear ? ASSAY_LORA_B : ASSAY_LORA_EMBEDDING_B); k++)
        ASSAY_CHECK(m->part[k] != NULL, ASSAY_NOT_FOUND, "%s: there is no tensor '%s%s%s'", a->dir, prefix,
                    m->name, suffix[k]);
    ASSAY_CHECK(!a->use_dora || !embedding, ASSAY_UNSUPPORTED,
                "%s: %s: DoRA of an embedding is not supported", a->dir, m->name);
    ASSAY_CHECK(!linear || (m->part[ASSAY_LORA_MAGNITUDE] != NULL) == a->use_dora, ASSAY_NOT_FOUND,
                "%s: there is no tensor '%s%s%s'", a->dir, prefix, m->name, suffix[ASSAY_LORA_MAGNITUDE]);
    ASSAY_CHECK(linear || m->part[ASSAY_LORA_MAGNITUDE] == NULL, ASSAY_MISMATCH,
                "%s: %s: has a lora_magnitude_vector alone", a->dir, m->name);
    return ASSAY_OK;
}

static assay_status check_rank(const assay_adapter *a, assay_lora_module *m)
{
    const json_t *r, *alpha;
    const bool embedding = m->part[ASSAY_LORA_A] == NULL;
    const assay_tensor_info *x = m->part[embedding ? ASSAY_LORA_EMBEDDING_A : ASSAY_LORA_A];
    const assay_tensor_info *y = m->part[embedding ? ASSAY_LORA_EMBEDDING_B : ASSAY_LORA_B];
    const assay_tensor_info *length = m->part[ASSAY_LORA_MAGNITUDE];
    if (x == NULL)
        return ASSAY_OK;
    ASSAY_TRY(assay_adapter_pattern(a, "rank_pattern", m->name, &r));
    ASSAY_TRY(assay_adapter_pattern(a, "alpha_pattern", m->name, &alpha));
    m->r = r != NULL ? (int64_t)json_integer_value(r) : a->r;
    m->alpha = alpha != NULL ? json_number_value(alpha) : a->alpha;
    ASSAY_CHECK(x->ndim == 2 && x->shape[0] == m->r, ASSAY_MISMATCH,
                "%s: expected [%lld,...], the rank of %s first, found %lld in %d dimensions", x->name,
                (long long)m->r, m->name, x->ndim > 0 ? (long long)x->shape[0] : 1, x->ndim);
    ASSAY_CHECK(y->ndim == 2 && y->shape[1] == m->r, ASSAY_MISMATCH,
                "%s: expected [...,%lld], the rank of %s last, found %d dimensions%s", y->name,
                (long long)m->r, m->name, y->ndim, y->ndim == 2 ? " and another rank" : "");
    ASSAY_CHECK(length == NULL || (length->ndim == 1 && length->shape[0] == y->shape[0]), ASSAY_MISMATCH,
                "%s: expected [%lld]", length ? length->name : "", (long long)y->shape[0]);
    bool targeted;
    ASSAY_TRY(assay_adapter_targets(a, m->name, &targeted));
    ASSAY_CHECK(targeted, ASSAY_MISMATCH, "%s: %s is adapted, but target_modules does not choose it", a->dir,
                m->name);
    return ASSAY_OK;
}

static assay_status open_all(assay_adapter *a)
{
    char path[ASSAY_ADAPTER_PATH + 64];
    snprintf(path, sizeof path, "%s/adapter_config.json", a->dir);
    ASSAY_TRY(assay_json_load(&a->config, path));
    ASSAY_TRY(assay_adapter_read_config(a, path));
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

assay_status assay_adapter_open(assay_adapter *a, const char *dir)
{
    *a = (assay_adapter){.n = 0};
    ASSAY_CHECK(strlen(dir) < sizeof a->dir, ASSAY_LIMIT, "%.200s: the path is too long", dir);
    snprintf(a->dir, sizeof a->dir, "%s", dir);
    const assay_status st = open_all(a);
    if (st != ASSAY_OK)
        assay_adapter_close(a);
    return st;
}

void assay_adapter_close(assay_adapter *a)
{
    if (a->file != NULL)
        assay_tensorfile_close(a->file);
    json_decref(a->config);
    free(a->modules);
    *a = (assay_adapter){.n = 0};
}
