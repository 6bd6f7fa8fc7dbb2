/* Publishing a sealed checkpoint: state, configuration, indexes, the manifest over all of it, and the folder's name. */
#include "core/base/file.h"
#include "core/files/checkpoint_internal.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the ranks hashed, and what rank 0 writes beside. */
typedef struct publication {
    assay_checkpoint_writer *w;
    json_t *tensors; /* kind -> name -> SHA-256 */
    json_t *hashes;  /* file -> SHA-256 */
    json_t *files;   /* entries of the manifest */
    json_t *differing;
} publication;

assay_status assay_checkpoint_manifest_hash(const json_t *manifest, char out[ASSAY_SHA256_HEX])
{
    json_t *rest = json_copy((json_t *)(uintptr_t)manifest); /* shallow */
    char *text = NULL;
    if (rest != NULL && (json_object_get(rest, "sha256") == NULL || json_object_del(rest, "sha256") == 0))
        text = json_dumps(rest, JSON_SORT_KEYS | JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(rest);
    ASSAY_CHECK(text != NULL, ASSAY_OUT_OF_MEMORY, "manifest");
    assay_sha256_bytes(text, strlen(text), out);
    free(text);
    return ASSAY_OK;
}

static assay_status read_hashes(publication *p)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    for (int r = 0; r < p->w->world; r++) {
        json_t *all = NULL;
        assay_checkpoint_rank_file(path, p->w->tmp, ASSAY_RANK_HASHES, r);
        ASSAY_TRY(assay_checkpoint_rank_load(p->w, ASSAY_RANK_HASHES, r, &all));
        int failed = json_object_update(p->hashes, json_object_get(all, "files"));
        for (int k = 0; k < ASSAY_STORED_COUNT; k++) {
            const char *word = assay_stored_word((assay_stored_kind)k);
            failed |= json_object_update(json_object_get(p->tensors, word),
                                         json_object_get(json_object_get(all, "tensors"), word));
        }
        failed |= json_array_extend(p->differing, json_object_get(all, "differing_replicas"));
        json_decref(all);
        ASSAY_CHECK(failed == 0, ASSAY_FORMAT, "%s: expected hashes of tensors and files", path);
    }
    return ASSAY_OK;
}

/* Every tensor and every shard was somebody's share. */
static assay_status check_hashes(const publication *p)
{
    const assay_checkpoint_plan *plan = &p->w->plan;
    for (int64_t i = 0; i < plan->n_tensors; i++)
        ASSAY_CHECK(json_object_get(json_object_get(p->tensors, assay_stored_word(plan->tensors[i].kind)),
                                    plan->tensors[i].name) != NULL,
                    ASSAY_INTERNAL, "%s: no rank sealed %s", p->w->dir, plan->tensors[i].name);
    for (int64_t i = 0; i < plan->n_shards; i++)
        ASSAY_CHECK(json_object_get(p->hashes, plan->shards[i].file) != NULL, ASSAY_INTERNAL,
                    "%s: no rank hashed %s", p->w->dir, plan->shards[i].file);
    return ASSAY_OK;
}

static assay_status list_file(publication *p, const char *name)
{
    char path[ASSAY_CHECKPOINT_PATH + 64], own[ASSAY_SHA256_HEX];
    struct stat sb;
    assay_checkpoint_file(path, p->w->tmp, name);
    const char *hash = json_string_value(json_object_get(p->hashes, name));
    ASSAY_CHECK(stat(path, &sb) == 0, ASSAY_NOT_FOUND, "%s: %s", path, strerror(errno));
    if (hash == NULL) {
        ASSAY_TRY(assay_sha256_file(path, own));
        hash = own;
    }
    json_t *entry = json_pack("{s:s,s:I,s:s}", "name", name, "bytes", (json_int_t)sb.st_size, "sha256", hash);
    ASSAY_CHECK(entry != NULL && json_array_append_new(p->files, entry) == 0, ASSAY_OUT_OF_MEMORY,
                "%s: manifest", p->w->dir);
    return ASSAY_OK;
}

static assay_status save_json(publication *p, const json_t *value, const char *name)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    assay_checkpoint_file(path, p->w->tmp, name);
    ASSAY_TRY(assay_json_save(value, path));
    return list_file(p, name);
}

static assay_status write_index(publication *p, assay_stored_kind kind)
{
    const assay_checkpoint_plan *plan = &p->w->plan;
    char name[64];
    int64_t bytes = 0, n = 0;
    assay_status st = ASSAY_OK;
    json_t *map = json_object(), *index = NULL;
    ASSAY_CHECK(map != NULL, ASSAY_OUT_OF_MEMORY, "%s: index", p->w->dir);
    for (int64_t i = 0; i < plan->n_tensors; i++) {
        const assay_planned_tensor *t = &plan->tensors[i];
        if (t->kind != kind)
            continue;
        bytes += t->bytes;
        n++;
        ASSAY_CHECK_GOTO(json_object_set_new(map, t->name, json_string(plan->shards[t->shard].file)) == 0,
                         ASSAY_OUT_OF_MEMORY, st, done, "%s: index", p->w->dir);
    }
    if (n == 0)
        goto done;
    index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
    ASSAY_CHECK_GOTO(index != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%s: index", p->w->dir);
    snprintf(name, sizeof name, "%s.safetensors.index.json", assay_stored_word(kind));
    st = save_json(p, index, name);
done:
    json_decref(index);
    json_decref(map);
    return st;
}

static const char *torch_name(assay_dtype dtype)
{
    return dtype == ASSAY_BF16  ? "bfloat16"
           : dtype == ASSAY_F16 ? "float16"
           : dtype == ASSAY_F64 ? "float64"
           : dtype == ASSAY_F32 ? "float32"
                                : NULL;
}

static assay_status write_config(publication *p)
{
    const assay_checkpoint_content *c = &p->w->plan.content;
    json_t *config = NULL;
    ASSAY_TRY(assay_config_to_json(&c->spec->config, &config));
    const char *dtype = torch_name(c->weight);
    if (c->spec->config.arch != ASSAY_ARCH_MEGATRON && dtype != NULL) { /* both spellings of transformers */
        json_object_set_new(config, "torch_dtype", json_string(dtype));
        json_object_set_new(config, "dtype", json_string(dtype));
    }
    const assay_status st = save_json(p, config, "config.json");
    json_decref(config);
    return st;
}

static assay_status write_state(publication *p, json_t *state)
{
    const assay_checkpoint_content *c = &p->w->plan.content;
    json_t *model = NULL;
    ASSAY_TRY(assay_config_to_json(&c->spec->config, &model));
    int failed = json_object_set_new(state, "format", json_string(ASSAY_CHECKPOINT_FORMAT));
    failed |= json_object_set_new(state, "version", json_integer(ASSAY_CHECKPOINT_VERSION));
    failed |= json_object_set_new(state, "job", json_string(p->w->job));
    failed |= json_object_set_new(state, "step", json_integer(p->w->step));
    if (json_object_get(state, "world_size") == NULL) /* a copy keeps who saved it */
        failed |= json_object_set_new(state, "world_size", json_integer(p->w->world));
    failed |= json_object_set_new(state, "content", assay_checkpoint_content_to_json(c));
    failed |= json_object_set_new(state, "model", model);
    ASSAY_CHECK(failed == 0, ASSAY_OUT_OF_MEMORY, "%s: state", p->w->dir);
    return save_json(p, state, "state.json");
}

static assay_status write_manifest(publication *p)
{
    char path[ASSAY_CHECKPOINT_PATH + 64], hash[ASSAY_SHA256_HEX];
    json_t *manifest = json_pack("{s:s,s:i,s:s,s:I,s:O,s:O}", "format", ASSAY_CHECKPOINT_FORMAT, "version",
                                 ASSAY_CHECKPOINT_VERSION, "job", p->w->job, "step", (json_int_t)p->w->step,
                                 "files", p->files, "tensors", p->tensors);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(manifest != NULL, ASSAY_OUT_OF_MEMORY, "%s: manifest", p->w->dir);
    if (json_array_size(p->differing) > 0) /* only where they are kept */
        json_object_set(manifest, "differing_replicas", p->differing);
    ASSAY_TRY_GOTO(assay_checkpoint_manifest_hash(manifest, hash), st, done);
    ASSAY_CHECK_GOTO(json_object_set_new(manifest, "sha256", json_string(hash)) == 0, ASSAY_OUT_OF_MEMORY, st,
                     done, "%s: manifest", p->w->dir);
    assay_checkpoint_file(path, p->w->tmp, "manifest.json");
    st = assay_json_save(manifest, path);
done:
    json_decref(manifest);
    return st;
}

/* What only the ranks read. */
static assay_status remove_rank_files(const assay_checkpoint_writer *w)
{
    static const char *const words[] = {ASSAY_RANK_PIECES, ASSAY_RANK_HASHES};
    char path[ASSAY_CHECKPOINT_PATH + 64];
    for (int r = 0; r < w->world; r++)
        for (int k = 0; k < 2; k++) {
            assay_checkpoint_rank_file(path, w->tmp, words[k], r);
            ASSAY_CHECK(unlink(path) == 0, ASSAY_IO, "%s: cannot remove: %s", path, strerror(errno));
        }
    for (int r = 0; w->attached && r < w->world; r++) {
        assay_checkpoint_lock_file(path, w->tmp, r);
        ASSAY_CHECK(unlink(path) == 0, ASSAY_IO, "%s: cannot remove: %s", path, strerror(errno));
    }
    return ASSAY_OK;
}

static assay_status write_all(publication *p, json_t *state)
{
    const assay_checkpoint_writer *w = p->w;
    ASSAY_TRY(read_hashes(p));
    ASSAY_TRY(check_hashes(p));
    for (int64_t i = 0; i < w->plan.n_shards; i++)
        ASSAY_TRY(list_file(p, w->plan.shards[i].file));
    ASSAY_TRY(remove_rank_files(w));
    ASSAY_TRY(write_state(p, state));
    ASSAY_TRY(write_config(p));
    for (int k = 0; k < ASSAY_STORED_COUNT; k++)
        ASSAY_TRY(write_index(p, (assay_stored_kind)k));
    return write_manifest(p);
}

assay_status assay_checkpoint_publish(assay_checkpoint_writer *w, json_t *state)
{
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(w->rank == 0 && w->sealed, ASSAY_INVALID_ARGUMENT,
                "%s: only rank 0 publishes, after it sealed its own part", w->dir);
    publication p = {.w = w,
                     .tensors = json_object(),
                     .hashes = json_object(),
                     .files = json_array(),
                     .differing = json_array()};
    for (int k = 0; k < ASSAY_STORED_COUNT; k++)
        json_object_set_new(p.tensors, assay_stored_word((assay_stored_kind)k), json_object());
    ASSAY_TRY_GOTO(write_all(&p, state), st, done);
    const int failed = assay_rename_folder(w->tmp, w->dir);
    ASSAY_CHECK_GOTO(failed == 0, ASSAY_IO, st, done,
                     "%s: cannot publish as %s: %s; the staged checkpoint stays where it is", w->tmp, w->dir,
                     strerror(failed));
    ASSAY_TRY_GOTO(assay_sync_folder_of(w->dir), st, done);
done:
    json_decref(p.tensors);
    json_decref(p.hashes);
    json_decref(p.files);
    json_decref(p.differing);
    return st;
}

assay_status assay_checkpoint_write_alone(assay_checkpoint_writer *w, json_t *state)
{
    ASSAY_TRY(assay_checkpoint_writer_finish(w));
    ASSAY_TRY(assay_checkpoint_seal(w));
    return assay_checkpoint_publish(w, state);
}
