/* A new model folder: shards filled in the order of names, an index where there are several, and what belongs to the tokenizer.
 * It appears whole or not at all. */
#include "core/base/file.h"
#include "core/files/checkpoint.h"
#include "core/files/tensorwriter.h"
#include "parity/weights/weights.h"
#include "ref/weights_read.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_SHARD ((int64_t)5000000000) /* transformers' */

static assay_status path_in(char out[PATH_MAX], const char *folder, const char *name)
{
    const int n = snprintf(out, PATH_MAX, "%s/%s", folder, name);
    ASSAY_CHECK(n > 0 && n < PATH_MAX, ASSAY_LIMIT, "%.200s: the path is too long", folder);
    return ASSAY_OK;
}

static int64_t scales_of(const parity_made *t)
{
    const ref_fp8_blocks b = parity_made_blocks(t);
    return ref_fp8_grid_rows(&b) * ref_fp8_grid_columns(&b);
}

static int64_t bytes_of(const parity_made *t)
{
    const int64_t scales = t->dtype == ASSAY_F8_E4M3 ? scales_of(t) * assay_dtype_bytes(t->scale) : 0;
    return t->count * assay_dtype_bytes(t->dtype) + scales;
}

/* shard [n] of each tensor; returns how many there are. */
static int64_t cut(const parity_folder *f, int64_t *shard)
{
    const int64_t most = f->max_shard_size > 0 ? f->max_shard_size : DEFAULT_SHARD;
    int64_t used = 0, current = 0;
    for (int64_t i = 0; i < f->n; i++) {
        const int64_t bytes = bytes_of(&f->tensors[i]);
        if (used > 0 && bytes > most - used) {
            current++;
            used = 0;
        }
        used += bytes;
        shard[i] = current;
    }
    return current + 1;
}

static void shard_name(const parity_folder *f, int64_t i, int64_t n, char *out, size_t capacity)
{
    if (n == 1)
        snprintf(out, capacity, "%s.safetensors", f->word);
    else
        snprintf(out, capacity, "%s-%05lld-of-%05lld.safetensors", f->word, (long long)i + 1, (long long)n);
}

/* Rounded once. */
static assay_status add_plain(const parity_made *t, const double *values, void *data, assay_tensorwriter *w)
{
    int64_t overflow = -1;
    ASSAY_TRY(ref_stored_write(values, t->count, t->dtype, data, &overflow));
    ASSAY_CHECK(overflow < 0, ASSAY_LIMIT, "%s: element %lld is %.9g, more than %s holds", t->name,
                (long long)overflow, values[overflow], assay_dtype_name(t->dtype));
    return assay_tensorwriter_add_spooled(w, t->name, t->dtype, t->shape, t->ndim, data);
}

/* Codes, and behind them in `data` their scales. */
static assay_status add_blocks(const parity_made *t, const double *values, char *data, assay_tensorwriter *w)
{
    char name[PARITY_TENSOR_NAME];
    const ref_fp8_blocks b = parity_made_blocks(t);
    const int64_t grid[2] = {ref_fp8_grid_rows(&b), ref_fp8_grid_columns(&b)};
    const assay_status st = ref_fp8_quantize(values, &b, (uint8_t *)data, data + t->count);
    if (st != ASSAY_OK)
        return assay_context(st, "%s", t->name);
    parity_scale_name(t, name);
    ASSAY_TRY(assay_tensorwriter_add_spooled(w, t->name, t->dtype, t->shape, t->ndim, data));
    return assay_tensorwriter_add_spooled(w, name, t->scale, grid, 2, data + t->count);
}

static assay_status add_tensor(const parity_folder *f, const parity_made *t, assay_tensorwriter *w)
{
    double *values = NULL;
    char *data = malloc((size_t)bytes_of(t) + 1);
    ASSAY_CHECK(data != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld bytes", t->name, (long long)bytes_of(t));
    assay_status st = f->make(f->user, t, &values);
    if (st == ASSAY_OK)
        st = t->dtype == ASSAY_F8_E4M3 ? add_blocks(t, values, data, w) : add_plain(t, values, data, w);
    free(values);
    free(data);
    return st;
}

static assay_status write_shard(const parity_folder *f, const char *path, const int64_t *shard,
                                int64_t number)
{
    assay_status st = ASSAY_OK;
    assay_tensorwriter *w = NULL;
    ASSAY_TRY(assay_tensorwriter_create(&w, path));
    ASSAY_TRY_GOTO(assay_tensorwriter_metadata(w, "format", "pt"), st, done);
    for (int64_t i = 0; i < f->n; i++)
        if (shard[i] == number)
            ASSAY_TRY_GOTO(add_tensor(f, &f->tensors[i], w), st, done);
    st = assay_tensorwriter_finish(w);
done:
    assay_tensorwriter_destroy(w);
    return st;
}

static assay_status write_index(const parity_folder *f, const char *dir, const int64_t *shard, int64_t n)
{
    char path[PATH_MAX], name[256], scale[PARITY_TENSOR_NAME];
    int64_t bytes = 0;
    assay_status st = ASSAY_OK;
    json_t *map = json_object(), *index = NULL;
    for (int64_t i = 0; i < f->n; i++) {
        shard_name(f, shard[i], n, name, sizeof name);
        bytes += bytes_of(&f->tensors[i]);
        json_object_set_new(map, f->tensors[i].name, json_string(name));
        if (f->tensors[i].dtype == ASSAY_F8_E4M3) {
            parity_scale_name(&f->tensors[i], scale);
            json_object_set_new(map, scale, json_string(name));
        }
    }
    index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
    ASSAY_CHECK_GOTO(index != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%s: index", dir);
    snprintf(name, sizeof name, "%s.safetensors.index.json", f->word);
    ASSAY_TRY_GOTO(path_in(path, dir, name), st, done);
    st = assay_json_save(index, path);
done:
    json_decref(index);
    json_decref(map);
    return st;
}

static assay_status write_tensors(const parity_folder *f, const char *dir)
{
    char path[PATH_MAX], name[256];
    assay_status st = ASSAY_OK;
    int64_t *shard = calloc((size_t)f->n + 1, sizeof *shard);
    ASSAY_CHECK(shard != NULL, ASSAY_OUT_OF_MEMORY, "%s: %lld tensors", f->dir, (long long)f->n);
    const int64_t n = cut(f, shard);
    for (int64_t i = 0; i < n; i++) {
        shard_name(f, i, n, name, sizeof name);
        ASSAY_TRY_GOTO(path_in(path, dir, name), st, done);
        ASSAY_TRY_GOTO(write_shard(f, path, shard, i), st, done);
    }
    if (n > 1)
        ASSAY_TRY_GOTO(write_index(f, dir, shard, n), st, done);
done:
    free(shard);
    return st;
}

static assay_status fill(const parity_folder *f, const char *dir)
{
    char path[PATH_MAX];
    ASSAY_TRY(write_tensors(f, dir));
    ASSAY_TRY(f->like != NULL ? parity_folder_copy(f->like, dir) : ASSAY_OK);
    ASSAY_TRY(path_in(path, dir, f->config_name));
    ASSAY_TRY(assay_json_save(f->config, path));
    if (f->origin != NULL) {
        ASSAY_TRY(path_in(path, dir, "assay_origin.json"));
        ASSAY_TRY(assay_json_save(f->origin, path));
    }
    return ASSAY_OK;
}

/* `a/b//` is a/b: what lies beside it begins with another name. */
static assay_status without_slashes(const char *dir, char out[PATH_MAX])
{
    size_t n = strlen(dir);
    ASSAY_CHECK(n > 0 && n < PATH_MAX, ASSAY_LIMIT, "%.200s: expected a path of 1 to %d bytes", dir,
                PATH_MAX - 1);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    memcpy(out, dir, n);
    out[n] = '\0';
    return ASSAY_OK;
}

/* Staging is beside the folder, so that renaming is one step of one file system. */
assay_status parity_folder_write(const parity_folder *f)
{
    char dir[PATH_MAX], staged[PATH_MAX], parent[PATH_MAX];
    struct stat sb;
    ASSAY_TRY(without_slashes(f->dir, dir));
    ASSAY_CHECK(lstat(dir, &sb) != 0, ASSAY_INVALID_ARGUMENT, "%s: exists already, nothing is overwritten",
                dir);
    const int n =
        snprintf(staged, sizeof staged, "%s.tmp-%013llx", dir, (unsigned long long)assay_checkpoint_job());
    ASSAY_CHECK(n > 0 && (size_t)n < sizeof staged, ASSAY_LIMIT, "%.200s: the path is too long", dir);
    snprintf(parent, sizeof parent, "%s", staged);
    char *slash = strrchr(parent, '/');
    if (slash == NULL)
        snprintf(parent, sizeof parent, ".");
    else
        *(slash == parent ? slash + 1 : slash) = '\0';
    ASSAY_TRY(assay_mkdir_above(staged));
    ASSAY_CHECK(mkdir(staged, 0777) == 0, ASSAY_IO, "%s: %s", staged, strerror(errno));
    assay_status st = fill(f, staged);
    const int failed = st == ASSAY_OK ? assay_rename_folder(staged, dir) : 0;
    if (failed != 0)
        st = ASSAY_ERROR(ASSAY_IO, "%s: cannot publish: %s", dir, strerror(failed));
    if (st == ASSAY_OK)
        return assay_sync_folder_of(dir);
    /* The message is the first failure's: removing what was staged must not replace it. */
    char message[1200];
    snprintf(message, sizeof message, "%s", assay_error_message());
    (void)assay_remove_tree(staged, parent);
    return ASSAY_ERROR(st, "%s", message);
}
