/* Checkpoint writer: each rank writes its pieces into DIR.tmp-JOB, rank 0 publishes with the manifest. */
#include "core/base/file.h"
#include "core/files/checkpoint_internal.h"
#include "core/files/tensorwriter.h"
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct assay_checkpoint_writer {
    char dir[ASSAY_CHECKPOINT_PATH];
    char tmp[ASSAY_CHECKPOINT_PATH];
    char job[ASSAY_JOB_HEX];
    int64_t step;
    int rank, world;
    assay_tensorwriter *tensors;
    json_t *pieces;
    bool finished;
};

void assay_checkpoint_rank_file(char *out, const char *dir, int rank, const char *extension)
{
    snprintf(out, ASSAY_CHECKPOINT_PATH + 32, "%s/rank-%05d.%s", dir, rank, extension);
}

json_t *assay_shard_to_json(const assay_shard *s)
{
    json_t *global = json_array(), *segments = json_array();
    for (int d = 0; d < s->ndim; d++) {
        json_t *list = json_array();
        json_array_append_new(global, json_integer(s->global_shape[d]));
        for (int i = 0; i < s->n_segments[d]; i++)
            json_array_append_new(list, json_pack("[II]", (json_int_t)s->segments[d][i].start,
                                                  (json_int_t)s->segments[d][i].length));
        json_array_append_new(segments, list);
    }
    return json_pack("{s:o,s:o}", "global_shape", global, "segments", segments);
}

uint64_t assay_checkpoint_job(void)
{
    uint64_t job = 0;
    randombytes_buf(&job, sizeof job);
    return job >> 11;
}

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

/* Rank 0 makes the folder, alone; the others look for it. */
static assay_status stage(const assay_checkpoint_writer *w)
{
    char parent[ASSAY_CHECKPOINT_PATH];
    struct stat sb;
    if (w->rank > 0) {
        ASSAY_CHECK(lstat(w->tmp, &sb) == 0 && S_ISDIR(sb.st_mode), ASSAY_IO,
                    "%s: expected the folder that rank 0 made, found none: do all ranks see one file system?",
                    w->tmp);
        return ASSAY_OK;
    }
    snprintf(parent, sizeof parent, "%s", w->tmp);
    char *slash = strrchr(parent, '/');
    if (slash != NULL && slash != parent) {
        *slash = 0;
        ASSAY_TRY(assay_mkdir_p(parent));
    }
    ASSAY_CHECK(mkdir(w->tmp, 0777) == 0, ASSAY_IO, "%s: cannot make this folder: %s", w->tmp,
                strerror(errno));
    return ASSAY_OK;
}

assay_status assay_checkpoint_writer_open(assay_checkpoint_writer **out, const char *dir, uint64_t job,
                                          int64_t step, int rank, int world)
{
    assay_status st = ASSAY_OK;
    struct stat sb;
    *out = NULL;
    ASSAY_TRY(assay_hash_init());
    ASSAY_CHECK(dir[0] != 0 && strlen(dir) < ASSAY_CHECKPOINT_PATH - 64, ASSAY_INVALID_ARGUMENT,
                "checkpoint: expected a path of 1 to %d bytes", ASSAY_CHECKPOINT_PATH - 64);
    ASSAY_CHECK(rank >= 0 && rank < world && step >= 0, ASSAY_INVALID_ARGUMENT,
                "checkpoint: rank %d of %d, step %lld", rank, world, (long long)step);
    ASSAY_CHECK(lstat(dir, &sb) != 0, ASSAY_INVALID_ARGUMENT,
                "%s: exists already; a checkpoint overwrites nothing", dir);
    assay_checkpoint_writer *w = calloc(1, sizeof *w);
    ASSAY_CHECK(w != NULL, ASSAY_OUT_OF_MEMORY, "checkpoint writer: %zu bytes", sizeof *w);
    char path[ASSAY_CHECKPOINT_PATH + 32];
    snprintf(w->dir, sizeof w->dir, "%s", dir);
    for (size_t n = strlen(w->dir); n > 1 && w->dir[n - 1] == '/'; n--)
        w->dir[n - 1] = 0; /* DIR/ and DIR are one folder; the staging one stands beside it */
    snprintf(w->job, sizeof w->job, "%014llx", (unsigned long long)job);
    snprintf(w->tmp, sizeof w->tmp, "%s.tmp-%s", w->dir, w->job);
    w->step = step;
    w->rank = rank;
    w->world = world;
    w->pieces = json_array();
    ASSAY_TRY_GOTO(stage(w), st, fail);
    assay_checkpoint_rank_file(path, w->tmp, rank, "safetensors");
    ASSAY_TRY_GOTO(assay_tensorwriter_create(&w->tensors, path), st, fail);
    *out = w;
    return ASSAY_OK;
fail:
    assay_checkpoint_writer_destroy(w);
    return st;
}

assay_status assay_checkpoint_add(assay_checkpoint_writer *w, const char *family, const char *name,
                                  assay_dtype dtype, const assay_shard *shard, const void *data)
{
    char key[32];
    ASSAY_CHECK(strlen(family) < ASSAY_FAMILY && strlen(name) < ASSAY_NAME, ASSAY_INVALID_ARGUMENT,
                "checkpoint: name too long: %s/%s", family, name);
    ASSAY_TRY(assay_shard_check(shard, name));
    if (assay_shard_count(shard) == 0)
        return ASSAY_OK;
    snprintf(key, sizeof key, "%zu", json_array_size(w->pieces));
    ASSAY_TRY(assay_tensorwriter_add_copy(w->tensors, key, dtype, shard->local_shape, shard->ndim, data));
    json_t *piece = assay_shard_to_json(shard);
    ASSAY_CHECK(piece != NULL, ASSAY_OUT_OF_MEMORY, "checkpoint: index of %s", name);
    json_object_set_new(piece, "family", json_string(family));
    json_object_set_new(piece, "name", json_string(name));
    json_object_set_new(piece, "dtype", json_string(assay_dtype_name(dtype)));
    json_object_set_new(piece, "key", json_string(key));
    json_array_append_new(w->pieces, piece);
    return ASSAY_OK;
}

assay_status assay_checkpoint_writer_finish(assay_checkpoint_writer *w)
{
    char path[ASSAY_CHECKPOINT_PATH + 32];
    ASSAY_TRY(assay_tensorwriter_finish(w->tensors));
    assay_checkpoint_rank_file(path, w->tmp, w->rank, "json");
    json_t *index = json_pack("{s:s,s:i,s:s,s:I,s:i,s:O}", "format", ASSAY_CHECKPOINT_FORMAT, "version",
                              ASSAY_CHECKPOINT_VERSION, "job", w->job, "step", (json_int_t)w->step, "rank",
                              w->rank, "pieces", w->pieces);
    ASSAY_CHECK(index != NULL, ASSAY_OUT_OF_MEMORY, "checkpoint: index of rank %d", w->rank);
    const assay_status st = assay_json_save(index, path);
    json_decref(index);
    ASSAY_TRY(st);
    w->finished = true;
    return ASSAY_OK;
}

static assay_status list_file(json_t *files, const char *dir, int rank, const char *extension)
{
    char path[ASSAY_CHECKPOINT_PATH + 32], hash[ASSAY_SHA256_HEX];
    struct stat sb;
    assay_checkpoint_rank_file(path, dir, rank, extension);
    ASSAY_CHECK(stat(path, &sb) == 0, ASSAY_NOT_FOUND,
                "%s: rank %d did not finish its part of the checkpoint (%s)", path, rank, strerror(errno));
    ASSAY_TRY(assay_sha256_file(path, hash));
    json_array_append_new(files, json_pack("{s:s,s:I,s:s}", "name", strrchr(path, '/') + 1, "bytes",
                                           (json_int_t)sb.st_size, "sha256", hash));
    return ASSAY_OK;
}

static assay_status write_manifest(const assay_checkpoint_writer *w, json_t *files, json_t *header)
{
    char path[ASSAY_CHECKPOINT_PATH + 32], hash[ASSAY_SHA256_HEX];
    json_t *manifest = json_pack("{s:s,s:i,s:s,s:i,s:O,s:O}", "format", ASSAY_CHECKPOINT_FORMAT, "version",
                                 ASSAY_CHECKPOINT_VERSION, "job", w->job, "world_size", w->world, "header",
                                 header, "files", files);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(manifest != NULL && json_object_set_new(header, "step", json_integer(w->step)) == 0,
                     ASSAY_OUT_OF_MEMORY, st, done, "%s: manifest", w->dir);
    ASSAY_TRY_GOTO(assay_checkpoint_manifest_hash(manifest, hash), st, done);
    ASSAY_CHECK_GOTO(json_object_set_new(manifest, "sha256", json_string(hash)) == 0, ASSAY_OUT_OF_MEMORY, st,
                     done, "%s: manifest", w->dir);
    snprintf(path, sizeof path, "%s/manifest.json", w->tmp);
    st = assay_json_save(manifest, path);
done:
    json_decref(manifest);
    return st;
}

assay_status assay_checkpoint_publish(assay_checkpoint_writer *w, json_t *header)
{
    assay_status st = ASSAY_OK;
    json_t *files = json_array();
    ASSAY_CHECK_GOTO(w->rank == 0 && w->finished, ASSAY_INVALID_ARGUMENT, st, done,
                     "%s: only rank 0 publishes, after it finished its own part", w->dir);
    for (int r = 0; r < w->world; r++) {
        ASSAY_TRY_GOTO(list_file(files, w->tmp, r, "json"), st, done);
        ASSAY_TRY_GOTO(list_file(files, w->tmp, r, "safetensors"), st, done);
    }
    ASSAY_TRY_GOTO(write_manifest(w, files, header), st, done);
    /* rename alone would replace an empty folder. */
    ASSAY_CHECK_GOTO(renameat2(AT_FDCWD, w->tmp, AT_FDCWD, w->dir, RENAME_NOREPLACE) == 0, ASSAY_IO, st, done,
                     "%s: cannot publish as %s: %s; the staged checkpoint stays where it is", w->tmp, w->dir,
                     strerror(errno));
    ASSAY_TRY_GOTO(assay_sync_folder_of(w->dir), st, done);
done:
    json_decref(files);
    return st;
}

void assay_checkpoint_writer_destroy(assay_checkpoint_writer *w)
{
    if (w == NULL)
        return;
    assay_tensorwriter_destroy(w->tensors);
    json_decref(w->pieces);
    free(w);
}
