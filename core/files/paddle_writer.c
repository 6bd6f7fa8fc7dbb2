/* Writes a folder that PaddleNLP loads: its names, [in, out], one shard of each kind, its indexes, config, scheduler and trainer state.
 * Staged beside and renamed: an existing folder is never written over. */
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/files/checkpoint.h"
#include "core/files/paddle_internal.h"
#include "core/files/tensorwriter.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct assay_paddle_writer {
    char dir[ASSAY_PADDLE_PATH], tmp[ASSAY_PADDLE_PATH];
    bool staged;
    assay_paddle_target target;
    assay_paddle_slots slots;
    assay_tensorwriter *files[ASSAY_PADDLE_FILES_COUNT];
    json_t *maps[ASSAY_PADDLE_FILES_COUNT];
    int64_t bytes[ASSAY_PADDLE_FILES_COUNT];
    bool *added; /* [roles, parameters] */
};

static assay_status path_in(const assay_paddle_writer *w, const char *name, char out[ASSAY_PADDLE_PATH + 300])
{
    const int n = snprintf(out, ASSAY_PADDLE_PATH + 300, "%s/%s", w->tmp, name);
    ASSAY_CHECK(n > 0 && n < ASSAY_PADDLE_PATH + 300, ASSAY_LIMIT, "%s: the path is too long", w->dir);
    return ASSAY_OK;
}

static bool has_files(const assay_paddle_target *t, int kind)
{
    return kind == ASSAY_PADDLE_FILES_MODEL ||
           (kind == ASSAY_PADDLE_FILES_OPTIMIZER ? t->states : t->masters);
}

/* The only shard: PaddleNLP on one process reads no other, and every layout reads this one. */
static void shard_name(int kind, char out[64])
{
    snprintf(out, 64, "%s-00001-of-00001.safetensors", assay_paddle_words[kind]);
}

static assay_status stage(assay_paddle_writer *w)
{
    struct stat sb;
    char path[ASSAY_PADDLE_PATH + 300], name[64];
    ASSAY_CHECK(lstat(w->dir, &sb) != 0, ASSAY_IO, "%s: exists already", w->dir);
    ASSAY_CHECK(mkdir(w->tmp, 0777) == 0, ASSAY_IO, "%s: cannot make this folder: %s", w->tmp,
                strerror(errno));
    w->staged = true;
    for (int k = 0; k < ASSAY_PADDLE_FILES_COUNT; k++) {
        if (!has_files(&w->target, k))
            continue;
        shard_name(k, name);
        ASSAY_TRY(path_in(w, name, path));
        ASSAY_TRY(assay_tensorwriter_create(&w->files[k], path));
        ASSAY_TRY(assay_tensorwriter_metadata(w->files[k], "format", "np")); /* its loader demands it */
        w->maps[k] = json_object();
        ASSAY_CHECK(w->maps[k] != NULL, ASSAY_OUT_OF_MEMORY, "%s: index", w->dir);
    }
    return ASSAY_OK;
}

assay_status assay_paddle_writer_open(assay_paddle_writer **out, const char *dir,
                                      const assay_paddle_target *target)
{
    assay_status st = ASSAY_OK;
    *out = NULL;
    ASSAY_CHECK(strlen(dir) < ASSAY_PADDLE_PATH - 32, ASSAY_INVALID_ARGUMENT, "%.64s...: path too long", dir);
    ASSAY_CHECK(target->weight == ASSAY_BF16 || target->weight == ASSAY_F32, ASSAY_UNSUPPORTED,
                "weights of %s: PaddleNLP trains in BF16 with masters, or in F32",
                assay_dtype_name(target->weight));
    ASSAY_CHECK(target->step >= 0 && target->step <= INT32_MAX, ASSAY_LIMIT, "step %lld",
                (long long)target->step);
    assay_paddle_writer *w = calloc(1, sizeof *w);
    ASSAY_CHECK(w != NULL, ASSAY_OUT_OF_MEMORY, "%s", dir);
    w->target = *target;
    snprintf(w->dir, sizeof w->dir, "%s", dir);
    ASSAY_TRY_GOTO(assay_hash_init(), st, fail);
    snprintf(w->tmp, sizeof w->tmp, "%s.tmp-%014llx", dir, (unsigned long long)assay_checkpoint_job());
    ASSAY_TRY_GOTO(assay_paddle_slots_make(&w->slots, target->spec, false, false), st, fail);
    w->added = calloc((size_t)target->spec->n_params * ASSAY_PADDLE_ROLES + 1, sizeof *w->added);
    ASSAY_CHECK_GOTO(w->added != NULL, ASSAY_OUT_OF_MEMORY, st, fail, "%s", dir);
    ASSAY_TRY_GOTO(stage(w), st, fail);
    *out = w;
    return ASSAY_OK;
fail:
    assay_paddle_writer_destroy(w);
    return st;
}

void assay_paddle_writer_destroy(assay_paddle_writer *w)
{
    if (w == NULL)
        return;
    for (int k = 0; k < ASSAY_PADDLE_FILES_COUNT; k++) {
        assay_tensorwriter_destroy(w->files[k]);
        json_decref(w->maps[k]);
    }
    if (w->staged) {
        char parent[ASSAY_PADDLE_PATH];
        snprintf(parent, sizeof parent, "%s", w->tmp);
        char *slash = strrchr(parent, '/');
        if (slash != NULL && slash != parent)
            *slash = '\0';
        (void)assay_remove_tree(w->tmp, slash == NULL ? "." : slash == parent ? "/" : parent);
    }
    assay_paddle_slots_free(&w->slots);
    free(w->added);
    free(w);
}

/* --- tensors ------------------------------------------------------------------------------------------------ */
static assay_status put(assay_paddle_writer *w, int kind, const char *name, const char *suffix,
                        assay_dtype dtype, const int64_t *shape, int ndim, const void *data)
{
    char key[ASSAY_NAME + 32], file[64];
    int64_t count;
    snprintf(key, sizeof key, "%s%s%s", name, suffix != NULL ? "/" : "", suffix != NULL ? suffix : "");
    shard_name(kind, file);
    ASSAY_CHECK(assay_shape_count(shape, ndim, &count), ASSAY_LIMIT, "%s: size", key);
    w->bytes[kind] += count * assay_dtype_bytes(dtype);
    ASSAY_CHECK(json_object_set_new(w->maps[kind], key, json_string(file)) == 0, ASSAY_OUT_OF_MEMORY, "%s",
                key);
    return assay_tensorwriter_add_spooled(w->files[kind], key, dtype, shape, ndim, data);
}

static assay_status put_slot(assay_paddle_writer *w, assay_paddle_role role, const assay_paddle_slot *s,
                             const char *data)
{
    const assay_hf_part *part = &w->target.spec->params[s->param].parts[s->part];
    const bool weight = role == ASSAY_PADDLE_WEIGHT;
    const assay_dtype dtype = weight && w->target.weight == ASSAY_BF16 ? ASSAY_U16 : ASSAY_F32;
    const int64_t width = assay_dtype_bytes(dtype), length = assay_hf_part_row_length(part),
                  rows = assay_hf_part_rows(part);
    const int kind = weight                        ? ASSAY_PADDLE_FILES_MODEL
                     : role == ASSAY_PADDLE_MASTER ? ASSAY_PADDLE_FILES_MASTERS
                                                   : ASSAY_PADDLE_FILES_OPTIMIZER;
    char *own = malloc((size_t)(rows * length * width) + 1);
    ASSAY_CHECK(own != NULL, ASSAY_OUT_OF_MEMORY, "%s", s->name);
    for (int k = 0; k < part->n_pieces; k++)
        for (int64_t r = 0; r < part->pieces[k].rows; r++) {
            const char *from = data + (part->pieces[k].dst + r) * length * width;
            const int64_t row = part->pieces[k].src + r;
            for (int64_t c = 0; c < length; c++)
                memcpy(own + (s->transposed ? c * rows + row : row * length + c) * width, from + c * width,
                       (size_t)width);
        }
    assay_status st = put(w, kind, s->name, assay_paddle_suffixes[role], dtype, s->shape, s->ndim, own);
    if (st == ASSAY_OK &&
        s->alias[0] != '\0') /* under both names: one process asks for one, several for the other */
        st = put(w, kind, s->alias, assay_paddle_suffixes[role], dtype, s->shape, s->ndim, own);
    free(own);
    return st;
}

static assay_status put_powers(assay_paddle_writer *w, const assay_paddle_slot *s)
{
    const int64_t one[1] = {1};
    const float pow[2] = {w->target.pow1, w->target.pow2};
    for (int k = 0; k < 2; k++) {
        const char *suffix = assay_paddle_suffixes[ASSAY_PADDLE_POW1 + k];
        ASSAY_TRY(put(w, ASSAY_PADDLE_FILES_OPTIMIZER, s->name, suffix, ASSAY_F32, one, 1, &pow[k]));
        if (s->alias[0] != '\0')
            ASSAY_TRY(put(w, ASSAY_PADDLE_FILES_OPTIMIZER, s->alias, suffix, ASSAY_F32, one, 1, &pow[k]));
    }
    return ASSAY_OK;
}

assay_status assay_paddle_writer_add(assay_paddle_writer *w, assay_paddle_role role, int64_t param,
                                     const void *data)
{
    ASSAY_CHECK(role <= ASSAY_PADDLE_MOMENT2 && (role != ASSAY_PADDLE_MASTER || w->target.masters) &&
                    (role < ASSAY_PADDLE_MOMENT1 || w->target.states),
                ASSAY_INVALID_ARGUMENT, "%s: the folder holds none", assay_paddle_role_name(role));
    w->added[(int64_t)role * w->target.spec->n_params + param] = true;
    for (int64_t i = 0; i < w->slots.n; i++) {
        if (w->slots.slots[i].param != param)
            continue;
        ASSAY_TRY(put_slot(w, role, &w->slots.slots[i], data));
        if (role == ASSAY_PADDLE_MOMENT1)
            ASSAY_TRY(put_powers(w, &w->slots.slots[i]));
    }
    return ASSAY_OK;
}

/* --- the rest ----------------------------------------------------------------------------------------------- */
static assay_status save(const assay_paddle_writer *w, const char *name, json_t *value)
{
    char path[ASSAY_PADDLE_PATH + 300];
    assay_status st = path_in(w, name, path);
    if (st == ASSAY_OK && value == NULL)
        st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%s", path);
    if (st == ASSAY_OK)
        st = assay_json_save(value, path);
    json_decref(value);
    return st;
}

static assay_status write_kind(assay_paddle_writer *w, int kind)
{
    char name[64];
    ASSAY_TRY(assay_tensorwriter_finish(w->files[kind]));
    json_t *index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)w->bytes[kind],
                              "weight_map", w->maps[kind]);
    if (index != NULL && kind == ASSAY_PADDLE_FILES_OPTIMIZER)
        json_object_set_new(index, "master_weights", json_boolean(w->target.masters));
    snprintf(name, sizeof name, "%s.safetensors.index.json", assay_paddle_words[kind]);
    return save(w, name, index);
}

static assay_status write_trainer(const assay_paddle_writer *w)
{
    char path[ASSAY_PADDLE_PATH + 300];
    unsigned char bytes[64];
    const assay_paddle_target *t = &w->target;
    ASSAY_TRY(
        save(w, "trainer_state.json",
             json_pack("{s:n, s:n, s:I, s:f, s:I, s:b, s:b, s:[], s:I, s:i, s:i, s:n, s:n}", "best_metric",
                       "best_model_checkpoint", "consumed_samples", (json_int_t)t->consumed_samples, "epoch",
                       0.0, "global_step", (json_int_t)t->step, "is_local_process_zero", 1,
                       "is_world_process_zero", 1, "log_history", "max_steps", (json_int_t)t->step,
                       "num_train_epochs", 1, "total_flos", 0, "trial_name", "trial_params")));
    ASSAY_TRY(path_in(w, "scheduler.pdparams", path));
    return assay_write_file(path, bytes, assay_paddle_scheduler_format(bytes, t->step, t->learning_rate));
}

assay_status assay_paddle_writer_finish(assay_paddle_writer *w)
{
    json_t *config = NULL;
    const assay_paddle_target *t = &w->target;
    for (int r = 0; r <= ASSAY_PADDLE_MOMENT2; r++)
        for (int64_t i = 0; i < t->spec->n_params; i++)
            ASSAY_CHECK(w->added[r * t->spec->n_params + i] || (r == ASSAY_PADDLE_MASTER && !t->masters) ||
                            (r >= ASSAY_PADDLE_MOMENT1 && !t->states),
                        ASSAY_INTERNAL, "%s: nobody wrote %s of %s", w->dir,
                        assay_paddle_role_name((assay_paddle_role)r), t->spec->params[i].name);
    for (int k = 0; k < ASSAY_PADDLE_FILES_COUNT; k++)
        if (w->files[k] != NULL)
            ASSAY_TRY(write_kind(w, k));
    ASSAY_TRY(assay_paddle_config_to_json(&t->spec->config, t->weight, &config));
    ASSAY_TRY(save(w, "config.json", config));
    if (t->states)
        ASSAY_TRY(write_trainer(w));
    const int failed = assay_rename_folder(w->tmp, w->dir);
    ASSAY_CHECK(failed == 0, ASSAY_IO, "%s: cannot rename to %s: %s", w->tmp, w->dir, strerror(failed));
    w->staged = false;
    return assay_sync_folder_of(w->dir);
}
