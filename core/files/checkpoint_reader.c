/* Checkpoint reader: verifies the manifest, then assembles any piece of any layout from the recorded pieces.
 */
#include "core/files/checkpoint_internal.h"
#include "core/files/tensorfile.h"
#include "core/model/layout.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct piece {
    char family[ASSAY_FAMILY];
    char name[ASSAY_NAME];
    assay_dtype dtype;
    assay_shard shard;
    const assay_tensor_info *info;
} piece;

struct assay_checkpoint {
    char dir[ASSAY_CHECKPOINT_PATH];
    json_t *manifest;
    char job[ASSAY_JOB_HEX];
    int64_t step;
    int world;
    assay_tensorfile **files; /* [world] */
    piece *pieces;            /* sorted by family, then name, then file order */
    int64_t n_pieces;
    int64_t *first; /* index of the first piece of each distinct tensor */
    int64_t n_tensors;
};

static assay_status read_extents(const json_t *list, const char *what, int64_t *out, int *n)
{
    ASSAY_CHECK(json_is_array(list) && json_array_size(list) <= ASSAY_MAX_DIMS, ASSAY_FORMAT,
                "%s: expected an array of at most %d extents", what, ASSAY_MAX_DIMS);
    *n = (int)json_array_size(list);
    for (int d = 0; d < *n; d++) {
        const json_t *e = json_array_get(list, (size_t)d);
        ASSAY_CHECK(json_is_integer(e) && json_integer_value(e) >= 0, ASSAY_FORMAT,
                    "%s: extent %d: expected an integer of at least 0", what, d);
        out[d] = json_integer_value(e);
    }
    return ASSAY_OK;
}

assay_status assay_shard_from_json(const json_t *object, const char *what, assay_shard *out)
{
    *out = (assay_shard){0};
    ASSAY_TRY(read_extents(json_object_get(object, "global_shape"), what, out->global_shape, &out->ndim));
    const json_t *segments = json_object_get(object, "segments");
    ASSAY_CHECK(json_is_array(segments) && (int)json_array_size(segments) == out->ndim, ASSAY_FORMAT,
                "%s: segments: expected %d lists", what, out->ndim);
    for (int d = 0; d < out->ndim; d++) {
        const json_t *list = json_array_get(segments, (size_t)d);
        ASSAY_CHECK(json_is_array(list) && json_array_size(list) <= ASSAY_MAX_SEGMENTS, ASSAY_FORMAT,
                    "%s: segments of dimension %d: expected at most %d", what, d, ASSAY_MAX_SEGMENTS);
        assay_segment read[ASSAY_MAX_SEGMENTS];
        const int n_read = (int)json_array_size(list);
        for (int i = 0; i < n_read; i++) {
            int64_t pair[ASSAY_MAX_DIMS] = {0};
            int n = 0;
            ASSAY_TRY(read_extents(json_array_get(list, (size_t)i), what, pair, &n));
            ASSAY_CHECK(n == 2, ASSAY_FORMAT, "%s: segment %d of dimension %d: expected [start, length]",
                        what, i, d);
            read[i] = (assay_segment){pair[0], pair[1]};
            ASSAY_CHECK(assay_add_i64(out->local_shape[d], pair[1], &out->local_shape[d]), ASSAY_FORMAT,
                        "%s: dimension %d: lengths overflow", what, d);
        }
        assay_shard_set(out, d, read, n_read);
    }
    return assay_shard_check(out, what);
}

/* Entry i of the manifest: rank-00000.json, rank-00000.safetensors, rank-00001.json, ... */
static assay_status verify_file(const char *dir, const json_t *entry, int i)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    const char *want = json_string_value(json_object_get(entry, "sha256"));
    const json_t *bytes = json_object_get(entry, "bytes");
    char path[ASSAY_CHECKPOINT_PATH + 32], hash[ASSAY_SHA256_HEX];
    struct stat sb;
    assay_checkpoint_rank_file(path, dir, i / 2, i % 2 == 0 ? "json" : "safetensors");
    ASSAY_CHECK(
        name != NULL && want != NULL && json_is_integer(bytes) && strcmp(name, strrchr(path, '/') + 1) == 0,
        ASSAY_FORMAT, "%s/manifest.json: files: entry %d: expected %s with bytes and sha256, found %s", dir,
        i, strrchr(path, '/') + 1, name != NULL ? name : "no name");
    ASSAY_CHECK(stat(path, &sb) == 0, ASSAY_NOT_FOUND, "%s: listed in the manifest: %s", path,
                strerror(errno));
    ASSAY_CHECK(sb.st_size == json_integer_value(bytes), ASSAY_FORMAT, "%s: expected %lld bytes, found %lld",
                path, (long long)json_integer_value(bytes), (long long)sb.st_size);
    ASSAY_TRY(assay_sha256_file(path, hash));
    ASSAY_CHECK(strcmp(hash, want) == 0, ASSAY_FORMAT, "%s: expected SHA-256 %s, found %s", path, want, hash);
    return ASSAY_OK;
}

/* The folder holds the manifest and its files, and nothing else. */
static assay_status verify_set(const char *dir, int world)
{
    DIR *d = opendir(dir);
    char extra[256] = "";
    ASSAY_CHECK(d != NULL, ASSAY_IO, "%s: %s", dir, strerror(errno));
    for (const struct dirent *e = readdir(d); e != NULL && extra[0] == 0; e = readdir(d)) {
        const char *name = e->d_name;
        bool known = strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, "manifest.json") == 0;
        const bool numbered = strncmp(name, "rank-", 5) == 0 && name[5] >= '0' && name[5] <= '9';
        const long rank = numbered ? strtol(name + 5, NULL, 10) : -1;
        if (rank >= 0 && rank < world) {
            char expected[ASSAY_CHECKPOINT_PATH + 32];
            for (int k = 0; k < 2; k++) {
                assay_checkpoint_rank_file(expected, "", (int)rank, k == 0 ? "json" : "safetensors");
                known = known || strcmp(expected + 1, name) == 0;
            }
        }
        if (!known)
            snprintf(extra, sizeof extra, "%s", name);
    }
    closedir(d);
    ASSAY_CHECK(extra[0] == 0, ASSAY_FORMAT, "%s/%s: the manifest does not name this file", dir, extra);
    return ASSAY_OK;
}

static assay_status verify_own_hash(const json_t *manifest, const char *path)
{
    char said[ASSAY_SHA256_HEX], found[ASSAY_SHA256_HEX];
    ASSAY_TRY(assay_json_get_string(manifest, "sha256", true, path, said, sizeof said));
    ASSAY_TRY(assay_checkpoint_manifest_hash(manifest, found));
    ASSAY_CHECK(strcmp(said, found) == 0, ASSAY_FORMAT,
                "%s: was changed: it says SHA-256 %s, its content has %s", path, said, found);
    return ASSAY_OK;
}

static assay_status verify_manifest(assay_checkpoint *c)
{
    char path[ASSAY_CHECKPOINT_PATH + 32], format[64] = "";
    int64_t version = 0, world = 0;
    snprintf(path, sizeof path, "%s/manifest.json", c->dir);
    ASSAY_TRY(assay_json_load(&c->manifest, path));
    ASSAY_TRY(assay_json_get_string(c->manifest, "format", true, path, format, sizeof format));
    ASSAY_CHECK(strcmp(format, ASSAY_CHECKPOINT_FORMAT) == 0, ASSAY_FORMAT,
                "%s: format: expected %s, found %s", path, ASSAY_CHECKPOINT_FORMAT, format);
    ASSAY_TRY(assay_json_get_i64(c->manifest, "version", true, 1, INT32_MAX, path, &version));
    ASSAY_CHECK(version == ASSAY_CHECKPOINT_VERSION, ASSAY_UNSUPPORTED,
                "%s: version: expected %d, found %lld", path, ASSAY_CHECKPOINT_VERSION, (long long)version);
    ASSAY_TRY(verify_own_hash(c->manifest, path));
    ASSAY_TRY(assay_json_get_string(c->manifest, "job", true, path, c->job, sizeof c->job));
    ASSAY_TRY(assay_json_get_i64(c->manifest, "world_size", true, 1, ASSAY_MAX_WORLD, path, &world));
    c->world = (int)world;
    const json_t *files = json_object_get(c->manifest, "files");
    ASSAY_CHECK(json_is_array(files) && json_array_size(files) == 2 * (size_t)world, ASSAY_FORMAT,
                "%s: files: expected %lld entries", path, 2 * (long long)world);
    ASSAY_CHECK(json_is_object(json_object_get(c->manifest, "header")), ASSAY_FORMAT,
                "%s: header: expected an object", path);
    ASSAY_TRY(assay_json_get_i64(json_object_get(c->manifest, "header"), "step", true, 0, INT64_MAX, path,
                                 &c->step));
    for (size_t i = 0; i < json_array_size(files); i++)
        ASSAY_TRY(verify_file(c->dir, json_array_get(files, i), (int)i));
    return verify_set(c->dir, c->world);
}

static assay_status read_piece(assay_checkpoint *c, const json_t *entry, int rank, const char *what)
{
    piece *p = &c->pieces[c->n_pieces];
    char dtype[32], key[64];
    ASSAY_TRY(assay_json_get_string(entry, "family", true, what, p->family, sizeof p->family));
    ASSAY_TRY(assay_json_get_string(entry, "name", true, what, p->name, sizeof p->name));
    ASSAY_TRY(assay_json_get_string(entry, "dtype", true, what, dtype, sizeof dtype));
    ASSAY_TRY(assay_json_get_string(entry, "key", true, what, key, sizeof key));
    ASSAY_TRY(assay_dtype_from_name(dtype, &p->dtype));
    ASSAY_TRY(assay_shard_from_json(entry, what, &p->shard));
    ASSAY_CHECK(assay_dtype_bytes(p->dtype) > 0, ASSAY_UNSUPPORTED, "%s: %s: dtype %s", what, p->name, dtype);
    ASSAY_TRY(
        assay_tensorfile_get(c->files[rank], key, p->dtype, p->shard.local_shape, p->shard.ndim, &p->info));
    c->n_pieces++;
    return ASSAY_OK;
}

/* A rank's file is of the same save as the manifest. */
static assay_status check_origin(const assay_checkpoint *c, const json_t *index, const char *path, int rank)
{
    char job[ASSAY_JOB_HEX];
    int64_t step, said;
    ASSAY_TRY(assay_json_get_string(index, "job", true, path, job, sizeof job));
    ASSAY_TRY(assay_json_get_i64(index, "step", true, 0, INT64_MAX, path, &step));
    ASSAY_TRY(assay_json_get_i64(index, "rank", true, 0, ASSAY_MAX_WORLD, path, &said));
    ASSAY_CHECK(
        strcmp(job, c->job) == 0 && step == c->step && said == rank, ASSAY_MISMATCH,
        "%s: of another save: expected job %s, step %lld, rank %d, found job %s, step %lld, rank %lld", path,
        c->job, (long long)c->step, rank, job, (long long)step, (long long)said);
    return ASSAY_OK;
}

static assay_status read_rank(assay_checkpoint *c, int rank)
{
    char path[ASSAY_CHECKPOINT_PATH + 32];
    assay_status st = ASSAY_OK;
    json_t *index = NULL;
    assay_checkpoint_rank_file(path, c->dir, rank, "safetensors");
    ASSAY_TRY(assay_tensorfile_open(&c->files[rank], path));
    assay_checkpoint_rank_file(path, c->dir, rank, "json");
    ASSAY_TRY(assay_json_load(&index, path));
    ASSAY_TRY_GOTO(check_origin(c, index, path, rank), st, done);
    const json_t *pieces = json_object_get(index, "pieces");
    ASSAY_CHECK_GOTO(json_is_array(pieces), ASSAY_FORMAT, st, done, "%s: pieces: expected an array", path);
    const size_t n = json_array_size(pieces);
    piece *grown = realloc(c->pieces, ((size_t)c->n_pieces + n + 1) * sizeof *grown);
    ASSAY_CHECK_GOTO(grown != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%s: %zu pieces", path, n);
    c->pieces = grown;
    for (size_t i = 0; i < n; i++)
        ASSAY_TRY_GOTO(read_piece(c, json_array_get(pieces, i), rank, path), st, done);
done:
    json_decref(index);
    return st;
}

static int compare_names(const piece *a, const piece *b)
{
    const int f = strcmp(a->family, b->family);
    return f != 0 ? f : strcmp(a->name, b->name);
}

static int compare_pieces(const void *a, const void *b)
{
    return compare_names(a, b);
}

/* Pieces of one tensor must agree on dtype and global shape. */
static assay_status index_tensors(assay_checkpoint *c)
{
    qsort(c->pieces, (size_t)c->n_pieces, sizeof *c->pieces, compare_pieces);
    c->first = calloc((size_t)c->n_pieces + 1, sizeof *c->first);
    ASSAY_CHECK(c->first != NULL, ASSAY_OUT_OF_MEMORY, "%s: index of %lld pieces", c->dir,
                (long long)c->n_pieces);
    for (int64_t i = 0; i < c->n_pieces; i++) {
        const piece *p = &c->pieces[i];
        if (i == 0 || compare_names(p, p - 1) != 0) {
            c->first[c->n_tensors++] = i;
            continue;
        }
        const piece *q = p - 1;
        ASSAY_CHECK(p->dtype == q->dtype && p->shard.ndim == q->shard.ndim &&
                        memcmp(p->shard.global_shape, q->shard.global_shape, sizeof p->shard.global_shape) ==
                            0,
                    ASSAY_MISMATCH, "%s: %s/%s: pieces disagree on dtype or global shape", c->dir, p->family,
                    p->name);
    }
    c->first[c->n_tensors] = c->n_pieces;
    return ASSAY_OK;
}

assay_status assay_checkpoint_open(assay_checkpoint **out, const char *dir)
{
    assay_status st = ASSAY_OK;
    *out = NULL;
    ASSAY_CHECK(strlen(dir) < ASSAY_CHECKPOINT_PATH - 32, ASSAY_INVALID_ARGUMENT,
                "checkpoint: path too long");
    assay_checkpoint *c = calloc(1, sizeof *c);
    ASSAY_CHECK(c != NULL, ASSAY_OUT_OF_MEMORY, "checkpoint: %zu bytes", sizeof *c);
    snprintf(c->dir, sizeof c->dir, "%s", dir);
    ASSAY_TRY_GOTO(assay_hash_init(), st, fail);
    ASSAY_TRY_GOTO(verify_manifest(c), st, fail);
    c->files = calloc((size_t)c->world, sizeof(assay_tensorfile *));
    ASSAY_CHECK_GOTO(c->files != NULL, ASSAY_OUT_OF_MEMORY, st, fail, "%s: %d files", dir, c->world);
    for (int r = 0; r < c->world; r++)
        ASSAY_TRY_GOTO(read_rank(c, r), st, fail);
    ASSAY_TRY_GOTO(index_tensors(c), st, fail);
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
    for (int r = 0; c->files != NULL && r < c->world; r++)
        assay_tensorfile_close(c->files[r]);
    free(c->files);
    free(c->pieces);
    free(c->first);
    json_decref(c->manifest);
    free(c);
}

const json_t *assay_checkpoint_header(const assay_checkpoint *c)
{
    return json_object_get(c->manifest, "header");
}

int64_t assay_checkpoint_count(const assay_checkpoint *c)
{
    return c->n_tensors;
}

void assay_checkpoint_at(const assay_checkpoint *c, int64_t index, const char **family, const char **name,
                         assay_dtype *dtype, assay_shard *whole)
{
    const piece *p = &c->pieces[c->first[index]];
    *family = p->family;
    *name = p->name;
    *dtype = p->dtype;
    assay_shard_whole(whole, p->shard.global_shape, p->shard.ndim);
}

static int64_t find_tensor(const assay_checkpoint *c, const char *family, const char *name)
{
    int64_t low = 0, high = c->n_tensors;
    while (low < high) {
        const int64_t mid = low + (high - low) / 2;
        const piece *p = &c->pieces[c->first[mid]];
        int order = strcmp(family, p->family);
        if (order == 0)
            order = strcmp(name, p->name);
        if (order == 0)
            return mid;
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return -1;
}

static assay_status check_request(const assay_checkpoint *c, const piece *p, assay_dtype dtype,
                                  const assay_shard *want)
{
    ASSAY_CHECK(p->dtype == dtype, ASSAY_MISMATCH, "%s: %s/%s: expected dtype %s, found %s", c->dir,
                p->family, p->name, assay_dtype_name(dtype), assay_dtype_name(p->dtype));
    ASSAY_CHECK(p->shard.ndim == want->ndim, ASSAY_MISMATCH, "%s: %s/%s: expected %d dimensions, found %d",
                c->dir, p->family, p->name, want->ndim, p->shard.ndim);
    for (int d = 0; d < want->ndim; d++)
        ASSAY_CHECK(p->shard.global_shape[d] == want->global_shape[d], ASSAY_MISMATCH,
                    "%s: %s/%s: dimension %d: expected %lld, found %lld (a checkpoint of another model?)",
                    c->dir, p->family, p->name, d, (long long)want->global_shape[d],
                    (long long)p->shard.global_shape[d]);
    return ASSAY_OK;
}

assay_status assay_checkpoint_read(const assay_checkpoint *c, const char *family, const char *name,
                                   assay_dtype dtype, const assay_shard *want, void *dst)
{
    const int64_t t = find_tensor(c, family, name);
    ASSAY_CHECK(t >= 0, ASSAY_NOT_FOUND, "%s: no tensor %s/%s", c->dir, family, name);
    ASSAY_TRY(check_request(c, &c->pieces[c->first[t]], dtype, want));
    const int64_t count = assay_shard_count(want);
    unsigned char *covered = calloc((size_t)count + 1, 1);
    ASSAY_CHECK(covered != NULL, ASSAY_OUT_OF_MEMORY, "%s: %s/%s: %lld elements", c->dir, family, name,
                (long long)count);
    assay_status st = ASSAY_OK;
    for (int64_t i = c->first[t]; i < c->first[t + 1]; i++) {
        const piece *p = &c->pieces[i];
        int64_t differs = -1;
        assay_shard_copy(dst, want, p->info->data, &p->shard, assay_dtype_bytes(dtype), covered, true,
                         &differs);
        ASSAY_CHECK_GOTO(differs < 0, ASSAY_MISMATCH, st, done,
                         "%s: %s/%s: replicas differ at local element %lld", c->dir, family, name,
                         (long long)differs);
    }
    for (int64_t i = 0; i < count; i++)
        ASSAY_CHECK_GOTO(covered[i], ASSAY_FORMAT, st, done,
                         "%s: %s/%s: no piece holds local element %lld of %lld", c->dir, family, name,
                         (long long)i, (long long)count);
done:
    free(covered);
    return st;
}
