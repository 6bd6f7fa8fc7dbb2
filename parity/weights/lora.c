/* `assay ckpt lora-merge`: a model with an adapter merged into it.  `assay ckpt lora-save`: an adapter again, in another type. */
#include "core/files/adapter.h"
#include "parity/weights/weights.h"
#include "ref/adapter.h"
#include "ref/weights_read.h"

#include <stdlib.h>
#include <string.h>

typedef struct lora {
    const parity_weights_options *o;
    parity_model model;
    assay_adapter adapter;
    parity_made *made;
    int64_t n_made;
    bool untied; /* the model's head and embedding are one, and those of what is made are two */
} lora;

static const char head[] = "lm_head.weight", embedded[] = "model.embed_tokens.weight";

/* The tensor below: a tied head is the embedding. */
static const assay_tensor_info *base_of(const lora *l, const char *name)
{
    const assay_tensor_info *t = assay_tensorfile_find(l->model.file, name);
    return t == NULL && l->untied && strcmp(name, head) == 0 ? assay_tensorfile_find(l->model.file, embedded)
                                                             : t;
}

/* --- numbers of an adapter -------------------------------------------------------------------------------------- */
static assay_status read_part(const assay_adapter *a, const assay_tensor_info *t, double **out)
{
    const assay_quantization none = {0};
    *out = malloc(((size_t)t->count + 1) * sizeof **out);
    ASSAY_CHECK(*out != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld elements", t->name, (long long)t->count);
    const assay_status st = ref_stored_read(a->file, &none, t, *out);
    if (st == ASSAY_OK)
        return ASSAY_OK;
    free(*out);
    *out = NULL;
    return st;
}

/* w [t] = w with the low-rank part of m. */
static assay_status add_low_rank(const lora *l, const assay_lora_module *m, const parity_made *t, double *w)
{
    const bool embedding = m->part[ASSAY_LORA_A] == NULL;
    double *a = NULL, *b = NULL, *length = NULL, *delta = malloc(((size_t)t->count + 1) * sizeof *delta);
    int64_t row = -1;
    assay_status st = ASSAY_OK;
    const double scale = ref_lora_scale(m->alpha, m->r, l->adapter.use_rslora);
    ASSAY_CHECK(delta != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld elements", t->name, (long long)t->count);
    ASSAY_TRY_GOTO(read_part(&l->adapter, m->part[embedding ? ASSAY_LORA_EMBEDDING_A : ASSAY_LORA_A], &a), st,
                   done);
    ASSAY_TRY_GOTO(read_part(&l->adapter, m->part[embedding ? ASSAY_LORA_EMBEDDING_B : ASSAY_LORA_B], &b), st,
                   done);
    if (embedding)
        ref_lora_delta_embedding(delta, a, b, t->shape[0], t->shape[1], m->r, scale);
    else
        ref_lora_delta(delta, a, b, t->shape[0], t->shape[1], m->r, scale);
    if (l->adapter.use_dora) {
        ASSAY_TRY_GOTO(read_part(&l->adapter, m->part[ASSAY_LORA_MAGNITUDE], &length), st, done);
        ref_dora_merge(w, delta, length, t->shape[0], t->shape[1], &row);
        ASSAY_CHECK_GOTO(row < 0, ASSAY_MISMATCH, st, done,
                         "%s: row %lld has no length, by which DoRA divides", t->name, (long long)row);
        goto done;
    }
    for (int64_t i = 0; i < t->count; i++)
        w[i] += delta[i];
done:
    free(a);
    free(b);
    free(length);
    free(delta);
    return st;
}

static const assay_lora_module *module_of(const lora *l, const char *tensor)
{
    char module[ASSAY_MODULE_NAME];
    const size_t n = strlen(tensor), m = strlen(".weight");
    if (n <= m || n - m >= sizeof module || strcmp(tensor + n - m, ".weight") != 0)
        return NULL;
    snprintf(module, sizeof module, "%.*s", (int)(n - m), tensor);
    return assay_adapter_find(&l->adapter, module);
}

static assay_status make_merged(void *user, const parity_made *t, double **out)
{
    const lora *l = user;
    const assay_lora_module *m = module_of(l, t->name);
    if (m != NULL && m->part[ASSAY_LORA_WHOLE] != NULL)
        ASSAY_TRY(read_part(&l->adapter, m->part[ASSAY_LORA_WHOLE], out));
    else
        ASSAY_TRY(parity_model_read(&l->model, base_of(l, t->name), out));
    return m != NULL && m->r > 0 ? add_low_rank(l, m, t, *out) : ASSAY_OK;
}

/* --- adapter against model --------------------------------------------------------------------------------------- */
static assay_status check_shape(const assay_lora_module *m, const assay_tensor_info *w)
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
    ASSAY_CHECK(w->ndim == 2 && w->shape[embedding ? 0 : 1] == columns && w->shape[embedding ? 1 : 0] == rows,
                ASSAY_MISMATCH, "%s: an adapter of [%lld,%lld] for a weight of [%lld,%lld]", w->name,
                (long long)(embedding ? columns : rows), (long long)(embedding ? rows : columns),
                (long long)w->shape[0], w->ndim > 1 ? (long long)w->shape[1] : 1);
    return ASSAY_OK;
}

/* Every module of the adapter has its weight ... */
static assay_status check_modules(const lora *l)
{
    for (int64_t i = 0; i < l->adapter.n; i++) {
        const assay_lora_module *m = &l->adapter.modules[i];
        char name[ASSAY_MODULE_NAME + 16];
        snprintf(name, sizeof name, "%s.weight", m->name);
        const assay_tensor_info *w = base_of(l, name);
        ASSAY_CHECK(
            w != NULL, ASSAY_MISMATCH,
            "%s: is adapted, but %s has no tensor '%s' (a tied head is stored once, as the embedding)",
            m->name, l->model.dir, name);
        ASSAY_TRY(check_shape(m, w));
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
    const char *dot = strrchr(module, '.');
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(dot != NULL ? dot + 1 : module, names[i]) == 0)
            return true;
    return false;
}

/* Whether the head is the embedding.  Classes that say nothing in config.json may tie it by default. */
static bool may_be_tied(const parity_model *m)
{
    const json_t *tie = json_object_get(m->config, "tie_word_embeddings");
    const char *class = json_string_value(json_array_get(json_object_get(m->config, "architectures"), 0));
    const bool has_head = class == NULL || strstr(class, "LM") != NULL || strstr(class, "Generation") != NULL;
    return has_head && (json_is_true(tie) || (tie == NULL && assay_tensorfile_find(m->file, head) == NULL));
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
                        assay_tensorfile_find(l->model.file, embedded) != NULL,
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
    while (at < l->n_made && strcmp(l->made[at].name, head) < 0)
        at++;
    memmove(&l->made[at + 1], &l->made[at], (size_t)(l->n_made - at) * sizeof *l->made);
    l->made[at] = parity_made_of(l->o, &l->model, assay_tensorfile_find(l->model.file, embedded));
    l->made[at].name = head;
    l->n_made++;
}

static assay_status list_model(lora *l)
{
    const int64_t n = assay_tensorfile_count(l->model.file);
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
    if (l->untied && assay_tensorfile_find(l->model.file, head) == NULL)
        add_head(l);
    ASSAY_TRY(check_modules(l));
    return check_complete(l);
}

/* --- verbs -------------------------------------------------------------------------------------------------------- */
static void close_all(lora *l)
{
    parity_model_close(&l->model);
    assay_adapter_close(&l->adapter);
    free(l->made);
}

assay_status parity_lora_merge(const parity_weights_options *o, const char *model, const char *adapter,
                               const char *to)
{
    lora l = {.o = o};
    json_t *config = NULL, *origin = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(parity_model_open(&l.model, model), st, done);
    if (o->dtype == ASSAY_F8_E4M3)
        ASSAY_TRY_GOTO(parity_model_linear(&l.model), st, done);
    ASSAY_TRY_GOTO(assay_adapter_open(&l.adapter, adapter), st, done);
    ASSAY_TRY_GOTO(list_model(&l), st, done);
    ASSAY_TRY_GOTO(parity_weights_config(o, &l.model, l.made, l.n_made, &config), st, done);
    ASSAY_CHECK_GOTO(!l.untied || json_object_set_new(config, "tie_word_embeddings", json_false()) == 0,
                     ASSAY_OUT_OF_MEMORY, st, done, "%s: configuration", model);
    origin =
        json_pack("{s:s,s:s,s:s}", "made_by", "assay ckpt lora-merge", "model", model, "adapter", adapter);
    const parity_folder f = {.dir = to,
                             .like = model,
                             .word = "model",
                             .config = config,
                             .config_name = "config.json",
                             .origin = origin,
                             .tensors = l.made,
                             .n = l.n_made,
                             .max_shard_size = o->max_shard_size,
                             .make = make_merged,
                             .user = &l};
    st = parity_folder_write(&f);
done:
    json_decref(config);
    json_decref(origin);
    close_all(&l);
    return st;
}

static assay_status make_same(void *user, const parity_made *t, double **out)
{
    const lora *l = user;
    return read_part(&l->adapter, assay_tensorfile_find(l->adapter.file, t->name), out);
}

/* The name that is written is the one that was read: reading accepts no other. */
static assay_status list_adapter(lora *l)
{
    const int64_t n = assay_tensorfile_count(l->adapter.file);
    l->made = calloc((size_t)n + 1, sizeof *l->made);
    ASSAY_CHECK(l->made != NULL, ASSAY_OUT_OF_MEMORY, "%lld tensors", (long long)n);
    for (; l->n_made < n; l->n_made++) {
        const assay_tensor_info *t = assay_tensorfile_at(l->adapter.file, l->n_made);
        l->made[l->n_made] = parity_made_of(l->o, &l->model, t);
    }
    return ASSAY_OK;
}

assay_status parity_lora_save(const parity_weights_options *o, const char *adapter, const char *to)
{
    lora l = {.o = o};
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(o->dtype != ASSAY_F8_E4M3, ASSAY_INVALID_ARGUMENT,
                "lora-save: adapters are fp64, fp32, bf16 or fp16, not fp8");
    ASSAY_TRY_GOTO(assay_adapter_open(&l.adapter, adapter), st, done);
    ASSAY_TRY_GOTO(list_adapter(&l), st, done);
    const parity_folder f = {.dir = to,
                             .word = "adapter_model",
                             .config = l.adapter.config,
                             .config_name = "adapter_config.json",
                             .tensors = l.made,
                             .n = l.n_made,
                             .max_shard_size = (int64_t)1 << 53,
                             .make = make_same,
                             .user = &l};
    st = parity_folder_write(&f);
done:
    close_all(&l);
    return st;
}
