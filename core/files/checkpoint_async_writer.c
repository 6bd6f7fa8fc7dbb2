/* The writer process of an asynchronous save: one for each rank, started by checkpoint_async.c with its order, its pieces, a lock
 * that says that it lives and a line to its trainer. */
#include "core/base/file.h"
#include "core/files/checkpoint_async.h"
#include "core/files/checkpoint_folder.h"
#include "core/files/checkpoint_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char what[] = "order of an asynchronous save";

typedef struct job {
    json_t *order;
    assay_model_spec *spec;
    assay_state_words words;
    assay_checkpoint_content content;
    assay_checkpoint_writer *w;
    const char *data;
    int64_t bytes;
} job;

/* --- the order ---------------------------------------------------------------------------------------------- */
static assay_status map_file(int fd, const char **out, int64_t *bytes)
{
    struct stat sb;
    *out = NULL;
    *bytes = 0;
    ASSAY_CHECK(fstat(fd, &sb) == 0, ASSAY_IO, "%s: %s", what, strerror(errno));
    if (sb.st_size == 0)
        return ASSAY_OK;
    void *at = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_SHARED, fd, 0);
    ASSAY_CHECK(at != MAP_FAILED, ASSAY_IO, "%s: %s", what, strerror(errno));
    *out = at;
    *bytes = (int64_t)sb.st_size;
    return ASSAY_OK;
}

static assay_status read_order(job *j)
{
    const char *text;
    int64_t bytes;
    ASSAY_TRY(map_file(ASSAY_WRITER_ORDER, &text, &bytes));
    ASSAY_CHECK(text != NULL, ASSAY_FORMAT, "%s: empty", what);
    const assay_status st = assay_json_parse(&j->order, text, (size_t)bytes, what);
    munmap((void *)(uintptr_t)text, (size_t)bytes);
    ASSAY_TRY(st);
    return map_file(ASSAY_WRITER_DATA, &j->data, &j->bytes);
}

static assay_status build_model(job *j)
{
    int64_t files;
    assay_model_config *config = malloc(sizeof *config);
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "%s: model", what);
    assay_status st = assay_config_from_json(json_object_get(j->order, "model"), what, config);
    if (st == ASSAY_OK)
        st = assay_json_get_i64(j->order, "expert_files", true, 0, ASSAY_EXPERTS_LOCAL, what, &files);
    if (st == ASSAY_OK) {
        config->expert_files = (assay_expert_files)files;
        st = assay_json_get_bool(j->order, "layer_norm_in_linear", true, what, &config->layer_norm_in_linear);
    }
    if (st == ASSAY_OK)
        st = assay_spec_build(config, &j->spec);
    free(config);
    return st;
}

static assay_status attach(job *j)
{
    char dir[ASSAY_CHECKPOINT_PATH], word[ASSAY_JOB_HEX];
    int64_t step, rank, world;
    ASSAY_TRY(build_model(j));
    ASSAY_TRY(assay_checkpoint_frozen_from_json(json_object_get(j->order, "content"), what, j->spec));
    ASSAY_TRY(assay_checkpoint_content_from_json(json_object_get(j->order, "content"), what, j->spec,
                                                 &j->words, &j->content));
    ASSAY_TRY(assay_json_get_bool(j->order, "keep_differing", true, what, &j->content.keep_differing));
    ASSAY_TRY(assay_json_get_string(j->order, "dir", true, what, dir, sizeof dir));
    ASSAY_TRY(assay_json_get_string(j->order, "job", true, what, word, sizeof word));
    ASSAY_TRY(assay_json_get_i64(j->order, "step", true, 0, INT64_MAX, what, &step));
    ASSAY_TRY(assay_json_get_i64(j->order, "world", true, 1, INT32_MAX, what, &world));
    ASSAY_TRY(assay_json_get_i64(j->order, "rank", true, 0, world - 1, what, &rank));
    return assay_checkpoint_writer_attach(&j->w, dir, word, step, (int)rank, (int)world, &j->content);
}

/* --- the pieces --------------------------------------------------------------------------------------------- */
/* Of a parameter's piece: extents are the table's. */
static assay_status shard_from_json(const json_t *segments, const assay_param_spec *p, assay_shard *out)
{
    assay_shard_whole(out, p->shape, p->ndim);
    ASSAY_CHECK(json_is_array(segments) && (int)json_array_size(segments) == p->ndim, ASSAY_FORMAT,
                "%s: %s: segments: expected %d lists", what, p->name, p->ndim);
    for (int d = 0; d < p->ndim; d++) {
        const json_t *list = json_array_get(segments, (size_t)d);
        assay_segment read[ASSAY_MAX_SEGMENTS];
        const size_t n = json_array_size(list);
        ASSAY_CHECK(json_is_array(list) && n <= ASSAY_MAX_SEGMENTS, ASSAY_FORMAT,
                    "%s: %s: segments of dimension %d: expected at most %d", what, p->name, d,
                    ASSAY_MAX_SEGMENTS);
        out->local_shape[d] = 0;
        for (size_t i = 0; i < n; i++) {
            const json_t *pair = json_array_get(list, i);
            const json_t *start = json_array_get(pair, 0), *length = json_array_get(pair, 1);
            ASSAY_CHECK(json_array_size(pair) == 2 && json_is_integer(start) && json_is_integer(length),
                        ASSAY_FORMAT, "%s: %s: segment %zu of dimension %d: expected [start, length]", what,
                        p->name, i, d);
            read[i] = (assay_segment){json_integer_value(start), json_integer_value(length)};
            ASSAY_CHECK(assay_add_i64(out->local_shape[d], read[i].length, &out->local_shape[d]),
                        ASSAY_FORMAT, "%s: %s: dimension %d: lengths overflow", what, p->name, d);
        }
        assay_shard_set(out, d, read, (int)n);
    }
    return assay_shard_check(out, what);
}

static assay_status add_piece(const job *j, const json_t *piece)
{
    char family[64], name[ASSAY_NAME], word[16];
    assay_dtype dtype;
    assay_shard shard;
    int64_t offset, bytes, wanted;
    bool writes;
    ASSAY_TRY(assay_json_get_string(piece, "family", true, what, family, sizeof family));
    ASSAY_TRY(assay_json_get_string(piece, "param", true, what, name, sizeof name));
    ASSAY_TRY(assay_json_get_string(piece, "dtype", true, what, word, sizeof word));
    ASSAY_TRY(assay_dtype_from_name(word, &dtype));
    ASSAY_TRY(assay_json_get_bool(piece, "writes", true, what, &writes));
    const assay_param_spec *p = assay_spec_find(j->spec, name);
    ASSAY_CHECK(p != NULL, ASSAY_FORMAT, "%s: no parameter %s", what, name);
    ASSAY_TRY(shard_from_json(json_object_get(piece, "segments"), p, &shard));
    ASSAY_TRY(assay_json_get_i64(piece, "offset", true, 0, j->bytes, what, &offset));
    ASSAY_TRY(assay_json_get_i64(piece, "bytes", true, 0, j->bytes - offset, what, &bytes));
    ASSAY_CHECK(assay_mul_i64(assay_shard_count(&shard), assay_dtype_bytes(dtype), &wanted) &&
                    wanted == bytes,
                ASSAY_FORMAT, "%s: %s of %s: expected %lld bytes, found %lld", what, family, name,
                (long long)wanted, (long long)bytes);
    return assay_checkpoint_add(j->w, family, name, dtype, &shard, j->data + offset, writes);
}

static assay_status add_pieces(const job *j)
{
    const json_t *pieces = json_object_get(j->order, "pieces");
    for (size_t i = 0; i < json_array_size(pieces); i++)
        ASSAY_TRY(add_piece(j, json_array_get(pieces, i)));
    return assay_checkpoint_writer_finish(j->w);
}

/* --- the other writers -------------------------------------------------------------------------------------- */
/* Its lock went with it, or the folder did. */
static bool is_gone(const assay_checkpoint_writer *w, int rank)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    assay_checkpoint_lock_file(path, w->tmp, rank);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    const bool gone = fd < 0 ? errno == ENOENT : flock(fd, LOCK_SH | LOCK_NB) == 0;
    if (fd >= 0)
        close(fd);
    return gone;
}

static assay_status wait_for(const assay_checkpoint_writer *w, const char *word)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    for (int r = 0; r < w->world; r++) {
        assay_checkpoint_rank_file(path, w->tmp, word, r);
        while (access(path, F_OK) != 0) {
            ASSAY_CHECK(!is_gone(w, r) || access(path, F_OK) == 0, ASSAY_CHILD,
                        "the writer of rank %d ended before its %s were there", r, word);
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        }
    }
    return ASSAY_OK;
}

/* --- all of it ---------------------------------------------------------------------------------------------- */
static assay_status add_to_folder(const job *j)
{
    const json_t *folder = json_object_get(j->order, "folder");
    const json_t *loss = json_object_get(folder, "loss");
    char run[ASSAY_CHECKPOINT_PATH];
    int64_t keep;
    if (folder == NULL)
        return ASSAY_OK;
    ASSAY_TRY(assay_json_get_string(folder, "run", true, what, run, sizeof run));
    ASSAY_TRY(assay_json_get_i64(folder, "keep", true, 0, INT64_MAX, what, &keep));
    const double not_finite = strtod("nan", NULL);
    return assay_checkpoint_folder_add(run, j->w->step,
                                       json_is_null(loss) ? not_finite : json_real_value(loss), keep);
}

static assay_status save(const job *j)
{
    ASSAY_TRY(add_pieces(j));
    ASSAY_TRY(wait_for(j->w, ASSAY_RANK_PIECES));
    ASSAY_TRY(assay_checkpoint_seal(j->w));
    if (j->w->rank > 0)
        return ASSAY_OK;
    ASSAY_TRY(wait_for(j->w, ASSAY_RANK_HASHES));
    ASSAY_TRY(assay_checkpoint_publish(j->w, json_object_get(j->order, "state")));
    return add_to_folder(j);
}

/* Whether every rank's trainer has copied its pieces; false: this one died before. */
static bool committed(void)
{
    char c;
    ssize_t n;
    while ((n = recv(ASSAY_WRITER_TALK, &c, 1, 0)) < 0 && errno == EINTR)
        ;
    return n == 1;
}

/* To the trainer; it is gone: into the staged folder, which nobody publishes. */
static void tell(const job *j)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    const char *message = assay_error_message();
    if (send(ASSAY_WRITER_TALK, message, strlen(message), MSG_NOSIGNAL) >= 0 || j->w == NULL)
        return;
    snprintf(path, sizeof path, "%s/writer-%05d.error", j->w->tmp, j->w->rank);
    FILE *out = fopen(path, "w");
    if (out == NULL)
        return;
    fprintf(out, "%s\n", message);
    fclose(out);
}

static void remove_staged(const job *j)
{
    char parent[ASSAY_CHECKPOINT_PATH];
    snprintf(parent, sizeof parent, "%s", j->w->tmp);
    char *slash = strrchr(parent, '/');
    if (slash == NULL)
        snprintf(parent, sizeof parent, ".");
    else
        slash[slash == parent ? 1 : 0] = '\0';
    (void)assay_remove_tree(j->w->tmp, parent);
}

bool assay_async_writer(int argc, char **argv, int *code)
{
    job j = {.order = NULL};
    if (argc != 2 || strcmp(argv[1], ASSAY_WRITER_VERB) != 0)
        return false;
    (void)syscall(SYS_close_range, ASSAY_WRITER_REST, ~0u, 0u); /* what the trainer had open */
    assay_status st = read_order(&j);
    if (st == ASSAY_OK)
        st = attach(&j);
    const bool go = st == ASSAY_OK && committed();
    if (go)
        st = save(&j);
    else if (st == ASSAY_OK &&
             j.w->rank == 0) /* the trainers ended before all was copied: nobody hears about it */
        remove_staged(&j);
    if (st != ASSAY_OK)
        tell(&j);
    *code = go && st == ASSAY_OK ? 0 : 1;
    assay_checkpoint_writer_destroy(j.w);
    assay_spec_destroy(j.spec);
    json_decref(j.order);
    return true;
}
