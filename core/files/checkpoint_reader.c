/* Checkpoint reader: any piece of any layout from the stored tensors. */
#include "core/files/checkpoint_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- what it holds ------------------------------------------------------------------------------------------ */
/* In Megatron-LM's form the folder's tensors say how experts and norms are kept, no word of the model does. */
static assay_status read_model(assay_checkpoint *c, const char *path)
{
    assay_model_config *config = malloc(sizeof *config);
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "%s: model", path);
    assay_status st = assay_config_from_json(json_object_get(c->state, "model"), path, config);
    if (st == ASSAY_OK && config->arch == ASSAY_ARCH_MEGATRON)
        st = assay_config_find_files(c->dir, config);
    if (st == ASSAY_OK)
        st = assay_spec_build(config, &c->spec);
    free(config);
    return st;
}

static assay_status read_state(assay_checkpoint *c)
{
    char path[ASSAY_CHECKPOINT_PATH + 64], here[ASSAY_JOB_HEX], there[ASSAY_JOB_HEX];
    int64_t step, said;
    assay_checkpoint_content content;
    assay_checkpoint_file(path, c->dir, "state.json");
    ASSAY_TRY(assay_json_load(&c->state, path));
    ASSAY_TRY(assay_json_get_string(c->state, "job", true, path, here, sizeof here));
    ASSAY_TRY(assay_json_get_string(c->manifest, "job", true, c->dir, there, sizeof there));
    ASSAY_TRY(assay_json_get_i64(c->state, "step", true, 0, INT64_MAX, path, &step));
    ASSAY_TRY(assay_json_get_i64(c->manifest, "step", true, 0, INT64_MAX, c->dir, &said));
    ASSAY_CHECK(strcmp(here, there) == 0 && step == said, ASSAY_MISMATCH,
                "%s: of another save: expected job %s, step %lld, found job %s, step %lld", path, there,
                (long long)said, here, (long long)step);
    ASSAY_CHECK(json_is_object(json_object_get(c->state, "model")), ASSAY_FORMAT,
                "%s: model: expected an object", path);
    ASSAY_TRY(read_model(c, path));
    ASSAY_TRY(assay_checkpoint_content_from_json(json_object_get(c->state, "content"), path, c->spec,
                                                 &c->words, &content));
    return assay_checkpoint_plan_make(&c->plan, &content);
}

/* --- its tensors -------------------------------------------------------------------------------------------- */
static int64_t planned(const assay_checkpoint *c, assay_stored_kind kind)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->plan.n_tensors; i++)
        n += c->plan.tensors[i].kind == kind;
    return n;
}

static bool has_place(const assay_checkpoint *c, assay_stored_kind kind, const char *name)
{
    for (int64_t k = 0; k < c->plan.n_tensors; k++)
        if (c->plan.tensors[k].kind == kind && strcmp(c->plan.tensors[k].name, name) == 0)
            return true;
    return false;
}

static assay_status check_unexpected(assay_checkpoint *c, assay_stored_kind kind, const char *path)
{
    for (int64_t i = 0; i < assay_tensorfile_count(c->files[kind]); i++) {
        const char *name = assay_tensorfile_at(c->files[kind], i)->name;
        ASSAY_CHECK(has_place(c, kind, name) || assay_checkpoint_ignores(c, ASSAY_KEY_UNEXPECTED, name),
                    ASSAY_MISMATCH, "%s: tensor '%s' has no place in this model", path, name);
    }
    return ASSAY_OK;
}

static assay_status find_tensor(assay_checkpoint *c, int64_t i)
{
    const assay_planned_tensor *t = &c->plan.tensors[i];
    const assay_hf_part *h = &c->spec->params[t->param].parts[t->part];
    const bool there = assay_tensorfile_find(c->files[t->kind], t->name) != NULL;
    const assay_status st =
        assay_tensorfile_get(c->files[t->kind], t->name, t->dtype, h->shape, h->ndim, &c->infos[i]);
    if (st == ASSAY_OK ||
        !assay_checkpoint_ignores(c, there ? ASSAY_KEY_MISMATCHED : ASSAY_KEY_MISSING, t->name))
        return st;
    assay_error_clear();
    c->infos[i] = NULL;
    return ASSAY_OK;
}

static assay_status open_kind(assay_checkpoint *c, assay_stored_kind kind)
{
    char path[ASSAY_CHECKPOINT_PATH + 64], name[64];
    int64_t found = 0;
    if (planned(c, kind) == 0)
        return ASSAY_OK;
    snprintf(name, sizeof name, "%s.safetensors.index.json", assay_stored_word(kind));
    assay_checkpoint_file(path, c->dir, name);
    ASSAY_TRY(assay_tensorfile_open(&c->files[kind], path));
    for (int64_t i = 0; i < c->plan.n_tensors; i++) {
        if (c->plan.tensors[i].kind != kind)
            continue;
        ASSAY_TRY(find_tensor(c, i));
        found += c->infos[i] != NULL;
    }
    return assay_tensorfile_count(c->files[kind]) == found ? ASSAY_OK : check_unexpected(c, kind, path);
}

/* An item and its words, to sort by. */
typedef struct item {
    int64_t number;
    const char *family, *name;
} item;

static int compare_items(const void *pa, const void *pb)
{
    const item *a = pa, *b = pb;
    const int f = strcmp(a->family, b->family);
    return f != 0 ? f : strcmp(a->name, b->name);
}

static assay_status list_items(assay_checkpoint *c)
{
    const int64_t n = assay_checkpoint_families(&c->plan.content) * c->spec->n_params;
    item *list = calloc((size_t)n + 1, sizeof *list);
    c->items = calloc((size_t)n + 1, sizeof *c->items);
    if (list == NULL || c->items == NULL) {
        free(list);
        ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "%s: %lld tensors", c->dir, (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        const int family = (int)(i / c->spec->n_params);
        const assay_param_spec *p = &c->spec->params[i % c->spec->n_params];
        if (assay_checkpoint_plan_find(&c->plan, family, i % c->spec->n_params) >= 0)
            list[c->n_items++] =
                (item){i, assay_checkpoint_family_word(&c->plan.content, family, p), p->name};
    }
    qsort(list, (size_t)c->n_items, sizeof *list, compare_items);
    for (int64_t i = 0; i < c->n_items; i++)
        c->items[i] = list[i].number;
    free(list);
    return ASSAY_OK;
}

assay_status assay_checkpoint_open(assay_checkpoint **out, const char *dir)
{
    return assay_checkpoint_open_ignoring(out, dir, &(assay_checkpoint_ignore){.missing = NULL});
}

assay_status assay_checkpoint_open_ignoring(assay_checkpoint **out, const char *dir,
                                            const assay_checkpoint_ignore *ignore)
{
    assay_status st = ASSAY_OK;
    *out = NULL;
    ASSAY_CHECK(strlen(dir) < ASSAY_CHECKPOINT_PATH - 32, ASSAY_INVALID_ARGUMENT,
                "checkpoint: path too long");
    assay_checkpoint *c = calloc(1, sizeof *c);
    ASSAY_CHECK(c != NULL, ASSAY_OUT_OF_MEMORY, "checkpoint: %zu bytes", sizeof *c);
    snprintf(c->dir, sizeof c->dir, "%s", dir);
    c->ignore = *ignore;
    c->ignored = json_array();
    ASSAY_TRY_GOTO(assay_hash_init(), st, fail);
    ASSAY_TRY_GOTO(assay_checkpoint_verify(dir, &c->manifest), st, fail);
    ASSAY_TRY_GOTO(read_state(c), st, fail);
    c->infos = calloc((size_t)c->plan.n_tensors + 1, sizeof(const assay_tensor_info *));
    ASSAY_CHECK_GOTO(c->infos != NULL, ASSAY_OUT_OF_MEMORY, st, fail, "%s: %lld tensors", dir,
                     (long long)c->plan.n_tensors);
    for (int k = 0; k < ASSAY_STORED_COUNT; k++)
        ASSAY_TRY_GOTO(open_kind(c, (assay_stored_kind)k), st, fail);
    ASSAY_TRY_GOTO(list_items(c), st, fail);
    *out = c;
    return ASSAY_OK;
fail:
    assay_checkpoint_close(c);
    return st;
}

void assay_checkpoint_close(assay_checkpoint *c)
{
    if (c == NULL)
        return;
    for (int k = 0; k < ASSAY_STORED_COUNT; k++)
        assay_tensorfile_close(c->files[k]);
    free((void *)c->infos);
    free(c->items);
    assay_checkpoint_plan_free(&c->plan);
    assay_spec_destroy(c->spec);
    json_decref(c->state);
    json_decref(c->manifest);
    json_decref(c->ignored);
    free(c);
}

const json_t *assay_checkpoint_header(const assay_checkpoint *c)
{
    return c->state;
}

const assay_checkpoint_content *assay_checkpoint_content_of(const assay_checkpoint *c)
{
    return &c->plan.content;
}

/* --- lists -------------------------------------------------------------------------------------------------- */
int64_t assay_checkpoint_count(const assay_checkpoint *c)
{
    return c->n_items;
}

void assay_checkpoint_at(const assay_checkpoint *c, int64_t index, const char **family, const char **name,
                         assay_dtype *dtype, assay_shard *whole)
{
    const int f = (int)(c->items[index] / c->spec->n_params);
    const assay_param_spec *p = &c->spec->params[c->items[index] % c->spec->n_params];
    *family = assay_checkpoint_family_word(&c->plan.content, f, p);
    *name = p->name;
    *dtype = assay_checkpoint_dtype_of(&c->plan.content, f, p);
    assay_shard_whole(whole, p->shape, p->ndim);
}

int64_t assay_checkpoint_stored_count(const assay_checkpoint *c)
{
    return c->plan.n_tensors;
}

assay_status assay_checkpoint_stored_at(const assay_checkpoint *c, int64_t index,
                                        assay_checkpoint_stored *out)
{
    const assay_planned_tensor *t = &c->plan.tensors[index];
    const assay_tensor_info *info = c->infos[index];
    ASSAY_CHECK(info != NULL, ASSAY_NOT_FOUND, "%s: no tensor %s, and that is ignored", c->dir, t->name);
    *out = (assay_checkpoint_stored){.kind = assay_stored_word(t->kind),
                                     .name = t->name,
                                     .file = c->plan.shards[t->shard].file,
                                     .dtype = info->dtype,
                                     .ndim = info->ndim,
                                     .bytes = info->bytes,
                                     .data = info->data};
    memcpy(out->shape, info->shape, sizeof out->shape);
    out->sha256 = json_string_value(
        json_object_get(json_object_get(json_object_get(c->manifest, "tensors"), out->kind), t->name));
    ASSAY_CHECK(out->sha256 != NULL, ASSAY_FORMAT, "%s/manifest.json: tensors: %s: no hash of %s", c->dir,
                out->kind, t->name);
    return ASSAY_OK;
}

/* --- reading ------------------------------------------------------------------------------------------------ */
typedef struct piece_read {
    const assay_tensor_info *const *infos; /* one for each part */
    char *dst;
    int64_t width;
} piece_read;

static assay_status read_run(void *user, int part, int64_t in_part, int64_t in_piece, int64_t count)
{
    const piece_read *p = user;
    memcpy(p->dst + in_piece * p->width, (const char *)p->infos[part]->data + in_part * p->width,
           (size_t)(count * p->width));
    return ASSAY_OK;
}

/* Ranks did not agree on a tensor when it was saved: nobody knows whose is right. */
static assay_status check_replicas(const assay_checkpoint *c, int family, const char *name)
{
    const json_t *list = json_object_get(c->manifest, "differing_replicas");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *word = json_string_value(json_array_get(entry, 0));
        const char *param = json_string_value(json_array_get(entry, 1));
        ASSAY_CHECK(word != NULL && param != NULL, ASSAY_FORMAT,
                    "%s/manifest.json: differing_replicas: expected [family, parameter, rank]", c->dir);
        const int there = assay_checkpoint_family_of(&c->plan.content, word);
        ASSAY_CHECK(there < 0 || strcmp(param, name) != 0 ||
                        assay_checkpoint_stored_family(&c->plan.content, there) !=
                            assay_checkpoint_stored_family(&c->plan.content, family),
                    ASSAY_MISMATCH,
                    "%s: %s/%s: replicas differ: when it was saved, the piece of rank %lld was not what the "
                    "file holds",
                    c->dir, word, name, (long long)json_integer_value(json_array_get(entry, 2)));
    }
    return ASSAY_OK;
}

assay_status assay_checkpoint_read(const assay_checkpoint *c, const char *family, const char *name,
                                   assay_dtype dtype, const assay_shard *want, void *dst)
{
    const int f = assay_checkpoint_family_of(&c->plan.content, family);
    const int64_t param = f >= 0 ? assay_checkpoint_find_param(&c->plan.content, name) : -1;
    ASSAY_CHECK(param >= 0 && assay_checkpoint_plan_find(&c->plan, f, param) >= 0, ASSAY_NOT_FOUND,
                "%s: no tensor %s/%s", c->dir, family, name);
    const assay_param_spec *spec = &c->spec->params[param];
    const assay_dtype found = assay_checkpoint_dtype_of(&c->plan.content, f, spec);
    ASSAY_CHECK(found == dtype, ASSAY_MISMATCH, "%s: %s/%s: expected dtype %s, found %s", c->dir, family,
                name, assay_dtype_name(dtype), assay_dtype_name(found));
    ASSAY_CHECK(spec->ndim == want->ndim, ASSAY_MISMATCH, "%s: %s/%s: expected %d dimensions, found %d",
                c->dir, family, name, want->ndim, spec->ndim);
    for (int d = 0; d < want->ndim; d++)
        ASSAY_CHECK(spec->shape[d] == want->global_shape[d], ASSAY_MISMATCH,
                    "%s: %s/%s: dimension %d: expected %lld, found %lld (a checkpoint of another model?)",
                    c->dir, family, name, d, (long long)want->global_shape[d], (long long)spec->shape[d]);
    ASSAY_TRY(check_replicas(c, f, name));
    const int64_t first = assay_checkpoint_plan_find(&c->plan, f, param);
    for (int k = 0; k < spec->n_parts; k++)
        ASSAY_CHECK(c->infos[first + k] != NULL, ASSAY_NOT_FOUND, "%s: %s/%s: part %s is not there", c->dir,
                    family, name, c->plan.tensors[first + k].name);
    piece_read p = {.infos = &c->infos[first], .dst = dst, .width = assay_dtype_bytes(dtype)};
    return assay_param_runs(spec, want, read_run, &p);
}
