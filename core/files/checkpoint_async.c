/* The trainer's side of an asynchronous save. */
#include "core/files/checkpoint_async.h"
#include "core/base/file.h"
#include "core/files/checkpoint_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct assay_async_save {
    pid_t pid;
    int talk, rank;
    char dir[ASSAY_CHECKPOINT_PATH];
};

/* --- the copy ----------------------------------------------------------------------------------------------- */
assay_status assay_checkpoint_defer(assay_checkpoint_writer *w)
{
    w->memory = memfd_create("assay-checkpoint", MFD_CLOEXEC);
    ASSAY_CHECK(w->memory >= 0, ASSAY_IO, "%s: no file in memory for an asynchronous save: %s", w->dir,
                strerror(errno));
    return ASSAY_OK;
}

/* By write, not through a mapping: memory that is not there is an error then, and no signal. */
static assay_status append(int fd, const char *what, const char *data, int64_t bytes, int64_t offset)
{
    const int failed = assay_pwrite_all(fd, data, bytes, offset);
    ASSAY_CHECK(failed == 0, ASSAY_OUT_OF_MEMORY, "%s: cannot be copied for an asynchronous save: %s", what,
                strerror(failed));
    return ASSAY_OK;
}

static json_t *shard_to_json(const assay_shard *s)
{
    json_t *segments = json_array();
    for (int d = 0; d < s->ndim; d++) {
        json_t *list = json_array();
        for (int i = 0; i < s->n_segments[d]; i++)
            json_array_append_new(list, json_pack("[II]", (json_int_t)s->segments[d][i].start,
                                                  (json_int_t)s->segments[d][i].length));
        json_array_append_new(segments, list);
    }
    return segments;
}

assay_status assay_checkpoint_keep(assay_checkpoint_writer *w, const char *family, const char *name,
                                   assay_dtype dtype, const assay_shard *shard, const void *data,
                                   int64_t bytes, bool writes)
{
    ASSAY_TRY(append(w->memory, name, data, bytes, w->memory_bytes));
    json_t *piece = json_pack("{s:s, s:s, s:s, s:b, s:o, s:I, s:I}", "family", family, "param", name, "dtype",
                              assay_dtype_name(dtype), "writes", writes, "segments", shard_to_json(shard),
                              "offset", (json_int_t)w->memory_bytes, "bytes", (json_int_t)bytes);
    ASSAY_CHECK(piece != NULL && json_array_append_new(w->pieces, piece) == 0, ASSAY_OUT_OF_MEMORY,
                "checkpoint: list of pieces: %s", name);
    w->memory_bytes += (bytes + 63) / 64 * 64;
    return ASSAY_OK;
}

/* --- the order ---------------------------------------------------------------------------------------------- */
static json_t *order_of(const assay_checkpoint_writer *w, const json_t *state,
                        const assay_async_folder *folder)
{
    const assay_model_config *config = &w->plan.content.spec->config;
    json_t *model = NULL;
    if (assay_config_to_json(config, &model) != ASSAY_OK)
        return NULL;
    json_t *order =
        json_pack("{s:s, s:s, s:I, s:i, s:i, s:o, s:b, s:o, s:i, s:b, s:O}", "dir", w->dir, "job", w->job,
                  "step", (json_int_t)w->step, "rank", w->rank, "world", w->world, "content",
                  assay_checkpoint_content_to_json(&w->plan.content), "keep_differing",
                  w->plan.content.keep_differing, "model", model, "expert_files", (int)config->expert_files,
                  "layer_norm_in_linear", config->layer_norm_in_linear, "pieces", w->pieces);
    int failed = order == NULL;
    if (!failed && state != NULL)
        failed |= json_object_set(order, "state", (json_t *)(uintptr_t)state);
    if (!failed && folder->run != NULL) {
        json_t *loss = json_real(folder->loss); /* NULL where it is not finite */
        failed |= json_object_set_new(order, "folder",
                                      json_pack("{s:s, s:o, s:I}", "run", folder->run, "loss",
                                                loss != NULL ? loss : json_null(), "keep",
                                                (json_int_t)folder->keep));
    }
    if (!failed)
        return order;
    json_decref(order);
    return NULL;
}

static assay_status write_order(const assay_checkpoint_writer *w, const json_t *state,
                                const assay_async_folder *folder, int *fd)
{
    json_t *order = order_of(w, state, folder);
    char *text = order != NULL ? json_dumps(order, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(order);
    ASSAY_CHECK(text != NULL, ASSAY_OUT_OF_MEMORY, "%s: order of an asynchronous save", w->dir);
    assay_status st = ASSAY_OK;
    *fd = memfd_create("assay-checkpoint-order", MFD_CLOEXEC);
    if (*fd < 0)
        st = ASSAY_ERROR(ASSAY_IO, "%s: no file in memory for an asynchronous save: %s", w->dir,
                         strerror(errno));
    else
        st = append(*fd, w->dir, text, (int64_t)strlen(text), 0);
    free(text);
    return st;
}

static assay_status make_lock(const assay_checkpoint_writer *w, int *fd)
{
    char path[ASSAY_CHECKPOINT_PATH + 64];
    assay_checkpoint_lock_file(path, w->tmp, w->rank);
    *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    ASSAY_CHECK(*fd >= 0, ASSAY_IO, "%s: cannot create: %s", path, strerror(errno));
    ASSAY_CHECK(flock(*fd, LOCK_EX | LOCK_NB) == 0, ASSAY_IO, "%s: cannot lock: %s", path, strerror(errno));
    return ASSAY_OK;
}

/* --- the process -------------------------------------------------------------------------------------------- */
/* Out of the way of the numbers that the writer has them under. */
static assay_status move_up(int *fd)
{
    const int up = fcntl(*fd, F_DUPFD_CLOEXEC, ASSAY_WRITER_REST);
    ASSAY_CHECK(up >= 0, ASSAY_IO, "asynchronous save: %s", strerror(errno));
    close(*fd);
    *fd = up;
    return ASSAY_OK;
}

/* A session of its own: signals of the terminal and of the launcher's group do not reach it. */
static int spawn(const int *fds, pid_t *pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, standard;
    char program[] = "assay", verb[] = ASSAY_WRITER_VERB, *argv[] = {program, verb, NULL};
    sigemptyset(&none);
    sigemptyset(&standard);
    sigaddset(&standard, SIGINT);
    sigaddset(&standard, SIGTERM);
    sigaddset(&standard, SIGHUP);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&how);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &standard);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    for (int i = 0; i < 3; i++) /* a launcher reads the outputs of its ranks to their end */
        posix_spawn_file_actions_addopen(&files, i, "/dev/null", O_RDWR, 0);
    for (int i = 0; i < ASSAY_WRITER_REST - ASSAY_WRITER_DATA; i++)
        posix_spawn_file_actions_adddup2(&files, fds[i], ASSAY_WRITER_DATA + i);
    const int failed = posix_spawn(pid, "/proc/self/exe", &files, &how, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&how);
    return failed;
}

static assay_status start(assay_async_save *s, const assay_checkpoint_writer *w, int *fds, int *talk)
{
    int ends[2];
    ASSAY_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, ASSAY_IO,
                "asynchronous save: %s", strerror(errno));
    *talk = ends[0];
    fds[ASSAY_WRITER_TALK - ASSAY_WRITER_DATA] = ends[1];
    fds[0] = fcntl(w->memory, F_DUPFD_CLOEXEC, ASSAY_WRITER_REST);
    ASSAY_CHECK(fds[0] >= 0, ASSAY_IO, "asynchronous save: %s", strerror(errno));
    for (int i = 1; i < ASSAY_WRITER_REST - ASSAY_WRITER_DATA; i++)
        ASSAY_TRY(move_up(&fds[i]));
    const int failed = spawn(fds, &s->pid);
    ASSAY_CHECK(failed == 0, ASSAY_CHILD, "%s: cannot start the writer of an asynchronous save: %s", w->dir,
                strerror(failed));
    return ASSAY_OK;
}

assay_status assay_async_save_start(assay_async_save **out, const assay_checkpoint_writer *w,
                                    const json_t *state, const assay_async_folder *folder)
{
    int fds[ASSAY_WRITER_REST - ASSAY_WRITER_DATA] = {-1, -1, -1, -1}, talk = -1;
    assay_status st = ASSAY_OK;
    *out = NULL;
    ASSAY_CHECK(w->memory >= 0, ASSAY_INVALID_ARGUMENT, "%s: its pieces were not deferred", w->dir);
    assay_async_save *s = calloc(1, sizeof *s);
    ASSAY_CHECK(s != NULL, ASSAY_OUT_OF_MEMORY, "asynchronous save: %zu bytes", sizeof *s);
    ASSAY_TRY_GOTO(write_order(w, state, folder, &fds[ASSAY_WRITER_ORDER - ASSAY_WRITER_DATA]), st, done);
    ASSAY_TRY_GOTO(make_lock(w, &fds[ASSAY_WRITER_LOCK - ASSAY_WRITER_DATA]), st, done);
    ASSAY_TRY_GOTO(start(s, w, fds, &talk), st, done);
    s->talk = talk;
    s->rank = w->rank;
    snprintf(s->dir, sizeof s->dir, "%s", w->dir);
    *out = s;
done:
    for (int i = 0; i < ASSAY_WRITER_REST - ASSAY_WRITER_DATA; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (st != ASSAY_OK) {
        if (talk >= 0)
            close(talk);
        free(s);
    }
    return st;
}

assay_status assay_async_save_commit(assay_async_save *s)
{
    ASSAY_CHECK(send(s->talk, "c", 1, MSG_NOSIGNAL) == 1, ASSAY_CHILD,
                "%s: the writer of rank %d ended before it was told to begin: %s", s->dir, s->rank,
                strerror(errno));
    return ASSAY_OK;
}

static assay_status end_of(assay_async_save **at, int status)
{
    assay_async_save *s = *at;
    char text[1024];
    const ssize_t n = recv(s->talk, text, sizeof text - 1, MSG_DONTWAIT);
    text[n > 0 ? n : 0] = '\0';
    assay_status st = ASSAY_OK;
    if (WIFSIGNALED(status))
        st =
            ASSAY_ERROR(ASSAY_CHILD, "asynchronous save of %s: the writer of rank %d was killed by signal %d",
                        s->dir, s->rank, WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0)
        st = ASSAY_ERROR(ASSAY_CHILD, "asynchronous save of %s: the writer of rank %d: %s", s->dir, s->rank,
                         text[0] != '\0' ? text : "failed without a word");
    close(s->talk);
    free(s);
    *at = NULL;
    return st;
}

static assay_status reap(assay_async_save **at, int options)
{
    int status = 0;
    if (*at == NULL)
        return ASSAY_OK;
    pid_t got;
    while ((got = waitpid((*at)->pid, &status, options)) < 0 && errno == EINTR)
        ;
    ASSAY_CHECK(got >= 0, ASSAY_CHILD, "%s: nothing is known of the writer of rank %d: %s", (*at)->dir,
                (*at)->rank, strerror(errno));
    return got == 0 ? ASSAY_OK : end_of(at, status);
}

assay_status assay_async_save_poll(assay_async_save **s)
{
    return reap(s, WNOHANG);
}

assay_status assay_async_save_wait(assay_async_save **s)
{
    return reap(s, 0);
}

void assay_async_save_leave(assay_async_save **s)
{
    if (*s == NULL)
        return;
    close((*s)->talk);
    free(*s);
    *s = NULL;
}
