/* An adapter against its model, and what is written of both. */
#include "parity/weights/lora_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static assay_status check_shape(const lora *l, const assay_lora_module *m, const assay_tensor_info *w)
{
    const assay_tensor_info *whole = m->part[ASSAY_LORA_WHOLE];
    bool same = whole == NULL || whole->ndim == w->ndim;
    for (int d = 0; d < w->ndim && same && whole != NULL; d++)
        same = whole->shape[d] == w->shape[d];
    ASSAY_CHECK(same, ASSAY_MISMATCH, "%s: is not of the shape of %s", whole ? whole->name : "", w->name);
    if (m->r == 0)
        return ASSAY_OK;
    const bool embedding = m->part[ASSAY_LORA_A] == NULL;
    const int64_t columns = m->part[embedding ? ASSAY_LORA_EMBEDDING_A : ASSAY_LORA_A]->shape[1];
    const int64_t rows = m->part[embedding ? ASSAY_LORA_EMBEDDING_B : ASSAY_LORA_B]->shape[0];
    const bool turned = embedding || (w->ndim == 2 && parity_lora_is_conv1d(l, m, w->shape));
    ASSAY_CHECK(w->ndim == 2 && w->shape[turned ? 0 : 1] == columns && w->shape[turned ? 1 : 0] == rows,
                ASSAY_MISMATCH, "%s: an adapter of [%lld,%lld] for a weight of [%lld,%lld]", w->name,
                (long long)(turned ? columns : rows), (long long)(turned ? rows : columns),
                (long long)w->shape[0], w->ndim > 1 ? (long long)w->shape[1] : 1);
    return ASSAY_OK;
}

/* Whether m holds experts of the model: then all of them, in their shapes. */
static assay_status check_experts(const lora *l, const assay_lora_module *m, bool *experts)
{
    const assay_tensor_info *whole = m->part[ASSAY_LORA_WHOLE];
    int64_t rows_in_all = 0;
    *experts = false;
    for (int64_t i = 0; i < l->n_made && whole != NULL; i++) {
        const parity_made *t = &l->made[i];
        int64_t first, rows;
        if (parity_lora_experts(l, t->name, &first, &rows) != whole)
            continue;
        ASSAY_CHECK(t->ndim == 2 && t->shape[0] == rows && t->shape[1] == whole->shape[2], ASSAY_MISMATCH,
                    "%s: is not of the shape of %s", whole->name, t->name);
        rows_in_all += rows;
        *experts = true;
    }
    ASSAY_CHECK(!*experts || rows_in_all == whole->shape[0] * whole->shape[1], ASSAY_MISMATCH,
                "%s: holds %lld experts, and %s has others", whole->name, (long long)whole->shape[0],
                l->model.dir);
    return ASSAY_OK;
}

/* Every module of the adapter has its tensor ... */
static assay_status check_modules(const lora *l)
{
    for (int64_t i = 0; i < l->adapter.n; i++) {
        const assay_lora_module *m = &l->adapter.modules[i];
        char name[ASSAY_MODULE_NAME + 16];
        bool experts = false;
        snprintf(name, sizeof name, "%s.weight", m->name);
        const assay_tensor_info *w = parity_lora_base(l, name);
        if (w == NULL && m->r == 0) {
            w = parity_lora_base(l, m->name);
            ASSAY_TRY(check_experts(l, m, &experts));
        }
        if (experts)
            continue;
        ASSAY_CHECK(w != NULL || m->r > 0 || m->part[ASSAY_LORA_WHOLE] == NULL, ASSAY_MISMATCH,
                    "%s: of modules_to_save has no place in %s", m->part[ASSAY_LORA_WHOLE]->name,
                    l->model.dir);
        ASSAY_CHECK(
            w != NULL, ASSAY_MISMATCH,
            "%s: is adapted, but %s has no tensor '%s' (a tied head is stored once, as the embedding)",
            m->name, l->model.dir, name);
        ASSAY_TRY(check_shape(l, m, w));
    }
    return ASSAY_OK;
}

static bool is_expert(const char *name)
{
    return strstr(name, ".experts.") != NULL;
}

/* ... and every matrix that the configuration chooses is adapted: one stage's file alone is no adapter.  Experts are no modules in
 * transformers 5, so that they may all be left out. */
static assay_status check_complete(const lora *l)
{
    bool experts = false;
    for (int64_t i = 0; i < l->adapter.n; i++)
        experts = experts || (is_expert(l->adapter.modules[i].name) && l->adapter.modules[i].r > 0);
    for (int64_t i = 0; i < l->n_made; i++) {
        const parity_made *t = &l->made[i];
        char module[ASSAY_MODULE_NAME];
        bool targeted;
        const size_t n = strlen(t->name), m = strlen(".weight");
        if (t->ndim != 2 || n <= m || n - m >= sizeof module || (is_expert(t->name) && !experts))
            continue;
        snprintf(module, sizeof module, "%.*s", (int)(n - m), t->name);
        ASSAY_TRY(assay_adapter_targets(&l->adapter, module, &targeted));
        const assay_lora_module *found = assay_adapter_find(&l->adapter, module);
        ASSAY_CHECK(!targeted || (found != NULL && found->r > 0), ASSAY_NOT_FOUND,
                    "%s: target_modules chooses %s, but there is no lora_A of it", l->adapter.dir, module);
    }
    return ASSAY_OK;
}

/* --- tied heads --------------------------------------------------------------------------------------------------- */
/* Of modules_to_save: a module of its own that takes the place of the model's. */
static bool is_saved(const lora *l, const char *module)
{
    const assay_lora_module *m = assay_adapter_find(&l->adapter, module);
    return m != NULL && m->part[ASSAY_LORA_WHOLE] != NULL && m->r == 0;
}

static bool is_embedding(const char *module)
{
    static const char *const names[] = {"embed_tokens",    "lm_head",    "wte",
                                        "word_embeddings", "shared",     "embed_in",
                                        "embed_out",       "embeddings", NULL};
    return parity_lora_named(names, parity_lora_last(module));
}

/* Whether the head is the embedding.  Classes that say nothing in config.json may tie it by default. */
static bool may_be_tied(const parity_model *m)
{
    const json_t *tie = json_object_get(m->config, "tie_word_embeddings");
    const char *class = json_string_value(json_array_get(json_object_get(m->config, "architectures"), 0));
    if (m->spec != NULL)
        return m->spec->config.tie_word_embeddings;
    const bool has_head = class == NULL || strstr(class, "LM") != NULL || strstr(class, "Generation") != NULL;
    return has_head &&
           (json_is_true(tie) || (tie == NULL && assay_tensorfile_find(m->file, LORA_HEAD) == NULL));
}

/* A tied embedding or head in modules_to_save is trained beside the other one, which stays what it was: merge_and_unload unties the
 * model and stores both. */
static assay_status find_untied(lora *l)
{
    const bool tied = may_be_tied(&l->model);
    for (int64_t i = 0; i < l->adapter.n && tied; i++) {
        const char *module = l->adapter.modules[i].name;
        if (!is_embedding(module) || !is_saved(l, module))
            continue;
        ASSAY_CHECK(json_is_true(json_object_get(l->model.config, "tie_word_embeddings")) &&
                        (strcmp(module, "lm_head") == 0 || strcmp(module, "model.embed_tokens") == 0) &&
                        assay_tensorfile_find(l->model.file, LORA_EMBEDDING) != NULL,
                    ASSAY_UNSUPPORTED,
                    "%s: is in modules_to_save, and %s may tie head and embedding in a way that is not known "
                    "here: untie the model first",
                    module, l->model.dir);
        l->untied = true;
    }
    return ASSAY_OK;
}

/* One of the two alone would be changed: what is written would be no tied model. */
static assay_status check_tied(const lora *l)
{
    static const char *const modules[] = {"lm_head", "model.embed_tokens"};
    bool two;
    ASSAY_TRY(parity_model_two_heads(&l->model, &two));
    for (int i = 0; i < 2 && two && !l->untied; i++)
        ASSAY_CHECK(
            assay_adapter_find(&l->adapter, modules[i]) == NULL, ASSAY_MISMATCH,
            "%s: is adapted, but %s ties it (tie_word_embeddings) and holds lm_head.weight beside the "
            "embedding: leave the head out first (assay ckpt convert --exclude lm_head.weight)",
            modules[i], l->model.dir);
    return ASSAY_OK;
}

/* In the order of names. */
static void add_head(lora *l)
{
    int64_t at = 0;
    while (at < l->n_made && strcmp(l->made[at].name, LORA_HEAD) < 0)
        at++;
    memmove(&l->made[at + 1], &l->made[at], (size_t)(l->n_made - at) * sizeof *l->made);
    l->made[at] = parity_made_of(l->o, &l->model, assay_tensorfile_find(l->model.file, LORA_EMBEDDING));
    l->made[at].name = LORA_HEAD;
    l->n_made++;
}

/* --- what is written --------------------------------------------------------------------------------------------- */
assay_status parity_lora_list(lora *l)
{
    const int64_t n = assay_tensorfile_count(l->model.file);
    ASSAY_TRY(parity_model_complete(&l->model, l->o));
    ASSAY_TRY(find_untied(l));
    ASSAY_TRY(check_tied(l));
    l->made = calloc((size_t)n + 2, sizeof *l->made);
    ASSAY_CHECK(l->made != NULL, ASSAY_OUT_OF_MEMORY, "%lld tensors", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        const assay_tensor_info *t = assay_tensorfile_at(l->model.file, i);
        if (!parity_model_has(&l->model, t))
            continue;
        l->made[l->n_made++] = parity_made_of(l->o, &l->model, t);
    }
    if (l->untied && assay_tensorfile_find(l->model.file, LORA_HEAD) == NULL)
        add_head(l);
    ASSAY_TRY(check_modules(l));
    return check_complete(l);
}
