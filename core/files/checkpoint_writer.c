/* Checkpoint writer: rank 0 stages the shards in DIR.tmp-JOB, every rank writes its pieces into their places.  Sealing and
 * publishing: checkpoint_seal.c, checkpoint_publish.c. */
#include "core/base/file.h"
#include "core/files/checkpoint_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void assay_checkpoint_file(char *out, const char *dir, const char *name)
{
    snprintf(out, ASSAY_CHECKPOINT_PATH + 64, "%s/%s", dir, name);
}

uint64_t assay_checkpoint_job(void)
{
    uint64_t job = 0;
    randombytes_buf(&job, sizeof job);
    return job >> 11;
}

/* --- staging ------------------------------------------------------------------------------------------------ */
static assay_status make_folder(const assay_checkpoint_writer *w)
{
    ASSAY_TRY(assay_mkdir_above(w->tmp));
    ASSAY_CHECK(mkdir(w->tmp, 0777) == 0, ASSAY_IO, "%s: cannot make this folder: %s", w->tmp,
                strerror(errno));
    return ASSAY_OK;
}

static assay_status write_at(int fd, const char *path, const char *data, int64_t bytes, int64_t offset)
{
    const int failed = assay_pwrite_all(fd, data, bytes, offset);
    ASSAY_CHECK(failed == 0, ASSAY_IO, "%s: cannot write: %s", path, strerror(failed));
    return ASSAY_OK;
}

/* A shard with its header and room for its tensors. */
static assay_status make_shard(assay_checkpoint_writer *w, int64_t i)
{
    const assay_planned_shard *s = &w->plan.shards[i];
    char path[ASSAY_CHECKPOINT_PATH + 64];
    assay_checkpoint_file(path, w->tmp, s->file);
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    ASSAY_CHECK(fd >= 0, ASSAY_IO, "%s: cannot create: %s", path, strerror(errno));
    w->files[i] = (assay_open_shard){true, fd};
    const int failed = posix_fallocate(fd, 0, (off_t)s->bytes);
    ASSAY_CHECK(failed == 0, ASSAY_IO, "%s: no room for its %lld bytes: %s", path, (long long)s->bytes,
                strerror(failed));
    return write_at(fd, path, s->header, s->header_bytes, 0);
}

/* What rank 0 made before it failed. */
static void remove_staged(const assay_checkpoint_writer *w)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    for (int64_t i = 0; i < w->plan.n_shards; i++) {
        assay_checkpoint_file(path, w->tmp, w->plan.shards[i].file);
        if (w->files[i].open)
            unlink(path);
    }
    rmdir(w->tmp);
}

/* Rank 0 makes the folder and its shards, alone; the others look for it. */
static assay_status stage(assay_checkpoint_writer *w)
{
    struct stat sb;
    if (w->rank > 0) {
        ASSAY_CHECK(lstat(w->tmp, &sb) == 0 && S_ISDIR(sb.st_mode), ASSAY_IO,
                    "%s: expected the folder that rank 0 made, found none: do all ranks see one file system?",
                    w->tmp);
        return ASSAY_OK;
    }
    ASSAY_TRY(make_folder(w));
    for (int64_t i = 0; i < w->plan.n_shards; i++) {
        const assay_status st = make_shard(w, i);
        if (st == ASSAY_OK)
            continue;
        remove_staged(w);
        return st;
    }
    return ASSAY_OK;
}

static assay_status alloc_writer(assay_checkpoint_writer *w, const assay_checkpoint_content *content)
{
    ASSAY_TRY(assay_checkpoint_plan_make(&w->plan, content));
    w->pieces = json_array();
    assay_json_text_open(&w->said, '[');
    w->files = calloc((size_t)w->plan.n_shards + 1, sizeof *w->files);
    ASSAY_CHECK(w->pieces != NULL && w->files != NULL, ASSAY_OUT_OF_MEMORY, "checkpoint writer: %lld shards",
                (long long)w->plan.n_shards);
    return ASSAY_OK;
}

static assay_status new_writer(assay_checkpoint_writer **out, const char *dir, const char *job, int64_t step,
                               int rank, int world, const assay_checkpoint_content *content)
{
    *out = NULL;
    ASSAY_TRY(assay_hash_init());
    ASSAY_CHECK(dir[0] != 0 && strlen(dir) < ASSAY_CHECKPOINT_PATH - 64, ASSAY_INVALID_ARGUMENT,
                "checkpoint: expected a path of 1 to %d bytes", ASSAY_CHECKPOINT_PATH - 64);
    ASSAY_CHECK(rank >= 0 && rank < world && step >= 0, ASSAY_INVALID_ARGUMENT,
                "checkpoint: rank %d of %d, step %lld", rank, world, (long long)step);
    assay_checkpoint_writer *w = calloc(1, sizeof *w);
    ASSAY_CHECK(w != NULL, ASSAY_OUT_OF_MEMORY, "checkpoint writer: %zu bytes", sizeof *w);
    snprintf(w->dir, sizeof w->dir, "%s", dir);
    for (size_t n = strlen(w->dir); n > 1 && w->dir[n - 1] == '/'; n--)
        w->dir[n - 1] = 0; /* DIR/ and DIR are one folder; the staging one stands beside it */
    snprintf(w->job, sizeof w->job, "%s", job);
    snprintf(w->tmp, sizeof w->tmp, "%s.tmp-%s", w->dir, w->job);
    w->step = step;
    w->rank = rank;
    w->world = world;
    w->memory = -1;
    const assay_status st = alloc_writer(w, content);
    if (st == ASSAY_OK)
        *out = w;
    else
        assay_checkpoint_writer_destroy(w);
    return st;
}

assay_status assay_checkpoint_writer_open(assay_checkpoint_writer **out, const char *dir, uint64_t job,
                                          int64_t step, int rank, int world,
                                          const assay_checkpoint_content *content)
{
    char word[ASSAY_JOB_HEX];
    struct stat sb;
    *out = NULL;
    ASSAY_CHECK(lstat(dir, &sb) != 0, ASSAY_INVALID_ARGUMENT,
                "%s: exists already; a checkpoint overwrites nothing", dir);
    snprintf(word, sizeof word, "%014llx", (unsigned long long)job);
    ASSAY_TRY(new_writer(out, dir, word, step, rank, world, content));
    const assay_status st = stage(*out);
    if (st != ASSAY_OK) {
        assay_checkpoint_writer_destroy(*out);
        *out = NULL;
    }
    return st;
}

/* Rank 0 syncs every shard, as the one who made them. */
assay_status assay_checkpoint_writer_attach(assay_checkpoint_writer **out, const char *dir, const char *job,
                                            int64_t step, int rank, int world,
                                            const assay_checkpoint_content *content)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    ASSAY_TRY(new_writer(out, dir, job, step, rank, world, content));
    assay_checkpoint_writer *w = *out;
    w->attached = true;
    for (int64_t i = 0; rank == 0 && i < w->plan.n_shards; i++) {
        assay_checkpoint_file(path, w->tmp, w->plan.shards[i].file);
        const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        ASSAY_CHECK(fd >= 0, ASSAY_IO, "%s: cannot open: %s", path, strerror(errno));
        w->files[i] = (assay_open_shard){true, fd};
    }
    return ASSAY_OK;
}

void assay_checkpoint_writer_destroy(assay_checkpoint_writer *w)
{
    if (w == NULL)
        return;
    for (int64_t i = 0; w->files != NULL && i < w->plan.n_shards; i++)
        if (w->files[i].open)
            close(w->files[i].fd);
    free(w->files);
    if (w->memory >= 0)
        close(w->memory);
    assay_checkpoint_plan_free(&w->plan);
    json_decref(w->pieces);
    assay_json_text_free(&w->said);
    free(w);
}

/* --- pieces ------------------------------------------------------------------------------------------------- */
typedef struct piece_write {
    assay_checkpoint_writer *w;
    const assay_planned_tensor *tensors; /* of the parameter, one for each part */
    const char *data;
    int64_t width;
} piece_write;

static assay_status write_run(void *user, int part, int64_t in_part, int64_t in_piece, int64_t count)
{
    const piece_write *p = user;
    const assay_planned_tensor *t = &p->tensors[part];
    char path[ASSAY_CHECKPOINT_PATH + 64];
    assay_open_shard *f = &p->w->files[t->shard];
    const char *name = p->w->plan.shards[t->shard].file;
    if (!f->open) {
        assay_checkpoint_file(path, p->w->tmp, name);
        f->fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        ASSAY_CHECK(f->fd >= 0, ASSAY_IO, "%s: cannot open: %s", path, strerror(errno));
        f->open = true;
    }
    const int failed = assay_pwrite_all(f->fd, p->data + in_piece * p->width, count * p->width,
                                        t->offset + in_part * p->width);
    ASSAY_CHECK(failed == 0, ASSAY_IO, "%s/%s: cannot write: %s", p->w->tmp, name, strerror(failed));
    return ASSAY_OK;
}

static assay_status check_piece(const assay_checkpoint_writer *w, int family, int64_t param,
                                const char *family_word, assay_dtype dtype, const assay_shard *shard)
{
    const assay_param_spec *spec = &w->plan.content.spec->params[param];
    ASSAY_CHECK(assay_checkpoint_plan_find(&w->plan, family, param) >= 0, ASSAY_INVALID_ARGUMENT,
                "checkpoint: %s has no %s", spec->name, family_word);
    const assay_dtype planned = assay_checkpoint_dtype_of(&w->plan.content, family, spec);
    ASSAY_CHECK(dtype == planned, ASSAY_INVALID_ARGUMENT, "checkpoint: %s of %s: expected %s, found %s",
                family_word, spec->name, assay_dtype_name(planned), assay_dtype_name(dtype));
    ASSAY_TRY(assay_shard_check(shard, spec->name));
    bool same = shard->ndim == spec->ndim;
    for (int d = 0; same && d < spec->ndim; d++)
        same = shard->global_shape[d] == spec->shape[d];
    ASSAY_CHECK(same, ASSAY_INVALID_ARGUMENT, "checkpoint: %s of %s: a piece of another shape", family_word,
                spec->name);
    return ASSAY_OK;
}

assay_status assay_checkpoint_add(assay_checkpoint_writer *w, const char *family_word, const char *name,
                                  assay_dtype dtype, const assay_shard *shard, const void *data, bool writes)
{
    const int family = assay_checkpoint_family_of(&w->plan.content, family_word);
    const int64_t param = assay_checkpoint_find_param(&w->plan.content, name);
    char hash[ASSAY_HASH_HEX];
    ASSAY_CHECK(family >= 0 && param >= 0, ASSAY_INVALID_ARGUMENT, "checkpoint: no %s of %s in this model",
                family_word, name);
    ASSAY_TRY(check_piece(w, family, param, family_word, dtype, shard));
    const int64_t count = assay_shard_count(shard);
    if (count == 0)
        return ASSAY_OK;
    const assay_param_spec *spec = &w->plan.content.spec->params[param];
    if (w->memory >= 0)
        return assay_checkpoint_keep(w, family_word, name, dtype, shard, data,
                                     count * assay_dtype_bytes(dtype), writes);
    /* Weights that are their masters are compared with them. */
    const bool alias = family == ASSAY_FAMILY_WEIGHT && assay_param_needs_grad(spec) &&
                       w->plan.content.weight == w->plan.content.state;
    const piece_write p = {.w = w,
                           .tensors = &w->plan.tensors[assay_checkpoint_plan_find(&w->plan, family, param)],
                           .data = data,
                           .width = assay_dtype_bytes(dtype)};
    if (writes && !alias)
        ASSAY_TRY(assay_param_runs(spec, shard, write_run, (void *)(uintptr_t)&p));
    assay_checkpoint_piece_hash(data, count * p.width, hash);
    assay_json_text *t = &w->said;
    assay_json_text_open(t, '{');
    assay_json_text_put_integer(t, "family", family);
    assay_json_text_put_integer(t, "param", param);
    assay_json_text_key(t, "writes");
    assay_json_text_value(t, writes && !alias ? json_true() : json_false());
    assay_json_text_key(t, "segments");
    assay_shard_put_segments(t, shard);
    assay_json_text_put_string(t, "hash", hash);
    assay_json_text_close(t, '}');
    return ASSAY_OK;
}

assay_status assay_checkpoint_writer_finish(assay_checkpoint_writer *w)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    for (int64_t i = 0; i < w->plan.n_shards; i++) {
        assay_checkpoint_file(path, w->tmp, w->plan.shards[i].file);
        if (w->files[i].open)
            ASSAY_TRY(assay_sync_file(w->files[i].fd, path));
    }
    assay_json_text_close(&w->said, ']');
    ASSAY_TRY(assay_checkpoint_rank_save(w, ASSAY_RANK_PIECES, &w->said));
    w->finished = true;
    return ASSAY_OK;
}
