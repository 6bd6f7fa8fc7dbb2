/* Sharded safetensors folders: NAME.safetensors.index.json with a weight_map, and the shards beside it.  The
 * index is untrusted: a shard is a plain file name in the same folder, and the keys of the index equal the
 * keys of the files both ways, so that a stale or a foreign shard cannot slip in.  total_size is not checked:
 * folders in the wild carry wrong ones. */
#include "core/files/tensorfile_internal.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static assay_status check_shard_name(const char *tensor, const json_t *value)
{
    ASSAY_CHECK(json_is_string(value), ASSAY_FORMAT,
                "weight_map: the file of tensor '%.160s' must be a string", tensor);
    const char *name = json_string_value(value);
    ASSAY_CHECK(name[0] != '\0' && strcmp(name, ".") != 0 && !strstr(name, "..") && !strchr(name, '/') &&
                    strlen(name) <= NAME_MAX,
                ASSAY_FORMAT,
                "weight_map: tensor '%.160s' is in '%.160s', expected a plain file name in the same folder",
                tensor, name);
    return ASSAY_OK;
}

static int compare_names(const void *pa, const void *pb)
{
    return strcmp(((const assay_tensor_info *)pa)->name, ((const assay_tensor_info *)pb)->name);
}

/* The first tensor that the index places in `shard` and that is not among infos[first...]. */
static const char *first_missing(const assay_tensorfile *f, int64_t first, const char *shard,
                                 json_t *weight_map)
{
    const size_t n = (size_t)(f->n - first);
    if (n > 0)
        qsort(f->infos + first, n, sizeof *f->infos, compare_names);
    for (void *it = json_object_iter(weight_map); it; it = json_object_iter_next(weight_map, it)) {
        const assay_tensor_info key = {.name = json_object_iter_key(it)};
        if (strcmp(json_string_value(json_object_iter_value(it)), shard) != 0)
            continue;
        if (n == 0 || !bsearch(&key, f->infos + first, n, sizeof *f->infos, compare_names))
            return key.name;
    }
    return "";
}

/* One shard: every tensor in it must be one that the index places there, and all of those must be in it. */
static assay_status add_shard(assay_tensorfile *f, const char *folder, int folder_length, const char *shard,
                              json_t *weight_map, int64_t expected)
{
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%.*s/%s", folder_length, folder, shard);
    ASSAY_CHECK(n > 0 && (size_t)n < sizeof path, ASSAY_LIMIT, "%s: the path is too long", shard);
    const int64_t first = f->n;
    ASSAY_TRY(assay_tensorfile_map(f, path));
    for (int64_t i = first; i < f->n; i++) {
        const char *name = f->infos[i].name;
        const char *place = json_string_value(json_object_get(weight_map, name));
        ASSAY_CHECK(place, ASSAY_MISMATCH, "%s: tensor '%.160s' is in the file but not in the index", path,
                    name);
        ASSAY_CHECK(strcmp(place, shard) == 0, ASSAY_MISMATCH,
                    "%s: tensor '%.160s' is in this file, but the index says it is in '%.160s'", path, name,
                    place);
    }
    ASSAY_CHECK(f->n - first == expected, ASSAY_MISMATCH,
                "%s: the index places %lld tensors in this file, it holds %lld of them; the first that is "
                "missing is '%.160s'",
                path, (long long)expected, (long long)(f->n - first),
                first_missing(f, first, shard, weight_map));
    return ASSAY_OK;
}

static assay_status add_shards(assay_tensorfile *f, const char *index_path, json_t *weight_map)
{
    /* Shard name -> number of tensors that the index places there. */
    assay_status st = ASSAY_OK;
    json_t *counts = json_object();
    const char *slash = strrchr(index_path, '/');
    const char *folder = slash ? index_path : ".";
    const int folder_length = slash ? (int)(slash - index_path) : 1;
    ASSAY_CHECK(counts, ASSAY_OUT_OF_MEMORY, "out of memory");
    for (void *it = json_object_iter(weight_map); it; it = json_object_iter_next(weight_map, it)) {
        const json_t *value = json_object_iter_value(it);
        ASSAY_TRY_GOTO(check_shard_name(json_object_iter_key(it), value), st, done);
        const char *shard = json_string_value(value);
        const json_int_t so_far = json_integer_value(json_object_get(counts, shard));
        ASSAY_CHECK_GOTO(json_object_set_new(counts, shard, json_integer(so_far + 1)) == 0,
                         ASSAY_OUT_OF_MEMORY, st, done, "out of memory");
    }
    for (void *it = json_object_iter(counts); it; it = json_object_iter_next(counts, it)) {
        const char *shard = json_object_iter_key(it);
        const int64_t expected = (int64_t)json_integer_value(json_object_iter_value(it));
        ASSAY_TRY_GOTO(add_shard(f, folder, folder_length, shard, weight_map, expected), st, done);
    }
done:
    json_decref(counts);
    return st;
}

assay_status assay_tensorfile_add_index(assay_tensorfile *f, const char *index_path)
{
    json_t *index = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(assay_json_load(&index, index_path));
    json_t *weight_map = json_object_get(index, "weight_map");
    if (json_is_object(weight_map))
        st = add_shards(f, index_path, weight_map);
    else
        st = ASSAY_ERROR(ASSAY_FORMAT, "expected an object with the object 'weight_map'");
    json_decref(index);
    return st == ASSAY_OK ? st : assay_context(st, "%s", index_path);
}

/* The names that Hugging Face gives them. */
#define SINGLE "model.safetensors"
#define INDEX SINGLE ".index.json"

static assay_status path_in(const char *folder, const char *name, char path[PATH_MAX])
{
    const int n = snprintf(path, PATH_MAX, "%s/%s", folder, name);
    ASSAY_CHECK(n > 0 && n < PATH_MAX, ASSAY_LIMIT, "%s: the path is too long", folder);
    return ASSAY_OK;
}

assay_status assay_tensorfile_add_folder(assay_tensorfile *f, const char *folder)
{
    char path[PATH_MAX];
    struct stat sb;
    /* The single file wins when both are there, as in Hugging Face from_pretrained. */
    ASSAY_TRY(path_in(folder, SINGLE, path));
    if (stat(path, &sb) == 0)
        return assay_tensorfile_map(f, path);
    ASSAY_TRY(path_in(folder, INDEX, path));
    if (stat(path, &sb) == 0)
        return assay_tensorfile_add_index(f, path);
    ASSAY_FAIL(ASSAY_NOT_FOUND, "%s: expected " SINGLE " or " INDEX " in this folder, found neither", folder);
}

/* --- whether there are weights at all --------------------------------------------------------------------- */
/* A name that is there, also as a link that leads nowhere: then opening it says so. */
static assay_status look_for(const char *folder, const char *name, bool *there)
{
    char path[PATH_MAX];
    struct stat sb;
    ASSAY_TRY(path_in(folder, name, path));
    *there = *there || lstat(path, &sb) == 0;
    return ASSAY_OK;
}

static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

static bool ends(const char *name, const char *with)
{
    const size_t n = strlen(name), m = strlen(with);
    return n >= m && strcmp(name + n - m, with) == 0;
}

bool assay_is_weights_name(const char *name)
{
    static const char *const last[] = {".bin",  ".bin.index.json", ".pt",       ".pth",   ".ckpt",
                                       ".gguf", ".ggml",           ".distcp",   ".h5",    ".msgpack",
                                       ".npz",  ".onnx",           ".pdparams", ".pdopt", ".nemo"};
    for (size_t i = 0; i < sizeof last / sizeof *last; i++)
        if (ends(name, last[i]))
            return true;
    /* Anywhere: an index and what is left of a download have it in the middle. */
    return strstr(name, ".safetensors") != NULL || begins(name, "adapter_model.");
}

/* A batch file lies beside a configuration, too. */
static bool is_batch(const char *path)
{
    assay_tensorfile *f = NULL;
    if (assay_tensorfile_open(&f, path) != ASSAY_OK) {
        assay_error_clear();
        return false;
    }
    const bool batch =
        (assay_tensorfile_find(f, "input_ids") != NULL || assay_tensorfile_find(f, "tokens") != NULL) &&
        assay_tensorfile_find(f, "labels") != NULL;
    assay_tensorfile_close(f);
    return batch;
}

/* Weights that are not read here: other names, other formats, shards whose index is missing.  No weights: the data of an indexed
 * dataset, X.bin beside X.idx, and batch files. */
static bool is_foreign(const char *folder, const char *name)
{
    char path[PATH_MAX];
    struct stat sb;
    if (!assay_is_weights_name(name))
        return false;
    if (path_in(folder, name, path) != ASSAY_OK) {
        assay_error_clear();
        return true;
    }
    if (ends(name, ".safetensors"))
        return !is_batch(path);
    if (!ends(name, ".bin"))
        return true;
    memcpy(path + strlen(path) - 4, ".idx", 4);
    return stat(path, &sb) != 0;
}

assay_status assay_tensorfile_in_folder(const char *folder, bool *stored)
{
    char found[256] = "";
    *stored = false;
    ASSAY_TRY(look_for(folder, SINGLE, stored));
    ASSAY_TRY(look_for(folder, INDEX, stored));
    DIR *d = *stored ? NULL : opendir(folder);
    for (const struct dirent *e = d ? readdir(d) : NULL; e != NULL && found[0] == '\0'; e = readdir(d))
        if (is_foreign(folder, e->d_name))
            snprintf(found, sizeof found, "%s", e->d_name);
    if (d)
        closedir(d);
    ASSAY_CHECK(found[0] == '\0', ASSAY_UNSUPPORTED,
                "%s: holds %s, which is not read: expected " SINGLE ", or " INDEX
                " with its shards, or a configuration alone",
                folder, found);
    return ASSAY_OK;
}
