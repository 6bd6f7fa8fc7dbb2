/* Pointers and rotation of a folder of checkpoints.  What is removed first gets another name, so that half a one is never taken
 * for a checkpoint. */
#include "core/files/checkpoint_folder.h"

#include "core/base/file.h"
#include "core/base/json.h"
#include "core/files/checkpoint_internal.h"
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH = 1200, NAME = 64 };

static bool exists(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0;
}

static bool is_checkpoint(const char *path)
{
    char manifest[PATH + 32];
    snprintf(manifest, sizeof manifest, "%s/manifest.json", path);
    return exists(manifest);
}

static assay_status join(const char *folder, const char *name, char out[PATH])
{
    const int n = snprintf(out, PATH, "%s/%s", folder, name);
    ASSAY_CHECK(n > 0 && n < PATH, ASSAY_LIMIT, "%s: the path is too long", folder);
    return ASSAY_OK;
}

void assay_checkpoint_folder_name(const char *run, int64_t step, char *out, size_t capacity)
{
    snprintf(out, capacity, "%s/iter_%07lld", run, (long long)step);
}

/* The step of "iter_0000010", -1: another name; "iter_10" is one, a step has one folder. */
static int64_t step_of(const char *name)
{
    char *end = NULL;
    const long long step =
        strncmp(name, "iter_", 5) == 0 && name[5] >= '0' && name[5] <= '9' ? strtoll(name + 5, &end, 10) : -1;
    char own[NAME];
    snprintf(own, sizeof own, "iter_%07lld", step);
    return step >= 0 && *end == '\0' && strcmp(own, name) == 0 ? step : -1;
}

/* --- pointers ----------------------------------------------------------------------------------------------- */
typedef struct pointer {
    char name[NAME]; /* "": none, or its checkpoint is gone */
    double loss;
} pointer;

static assay_status read_pointer(const char *run, const char *word, pointer *out)
{
    char path[PATH], target[PATH];
    json_t *json = NULL;
    *out = (pointer){.loss = 0.0};
    ASSAY_TRY(join(run, word, path));
    if (!exists(path))
        return ASSAY_OK;
    ASSAY_TRY(assay_json_load(&json, path));
    assay_status st = assay_json_get_string(json, "checkpoint", true, path, out->name, sizeof out->name);
    if (st == ASSAY_OK && step_of(out->name) < 0)
        st = ASSAY_ERROR(ASSAY_FORMAT, "%s: checkpoint: expected iter_ and a number, found %s", path,
                         out->name);
    out->loss = json_number_value(json_object_get(json, "loss"));
    json_decref(json);
    ASSAY_TRY(st);
    ASSAY_TRY(join(run, out->name, target));
    if (!is_checkpoint(target))
        out->name[0] = '\0';
    return ASSAY_OK;
}

static assay_status write_pointer(const char *run, const char *word, int64_t step, double loss)
{
    char path[PATH], name[NAME];
    ASSAY_TRY(join(run, word, path));
    snprintf(name, sizeof name, "iter_%07lld", (long long)step);
    json_t *json = json_pack("{s:s, s:I}", "checkpoint", name, "step", (json_int_t)step);
    ASSAY_CHECK(json != NULL, ASSAY_OUT_OF_MEMORY, "%s", path);
    json_t *number = json_real(loss); /* NULL where it is not finite */
    if (number != NULL)
        json_object_set_new(json, "loss", number);
    const assay_status st = assay_json_save(json, path);
    json_decref(json);
    return st;
}

/* --- rotation ----------------------------------------------------------------------------------------------- */
static int compare_steps(const void *pa, const void *pb)
{
    const int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;
    return (a < b) - (a > b); /* the greatest first */
}

/* Steps of the published checkpoints, the greatest first; the caller frees. */
static assay_status list_steps(const char *run, int64_t **out, int64_t *n)
{
    int64_t capacity = 0;
    assay_status st = ASSAY_OK;
    char path[PATH];
    DIR *d = opendir(run);
    *out = NULL;
    *n = 0;
    ASSAY_CHECK(d != NULL, errno == ENOENT ? ASSAY_NOT_FOUND : ASSAY_IO, "%s: %s", run, strerror(errno));
    for (const struct dirent *e = readdir(d); e != NULL && st == ASSAY_OK; e = readdir(d)) {
        const int64_t step = step_of(e->d_name);
        if (step < 0 || join(run, e->d_name, path) != ASSAY_OK || !is_checkpoint(path))
            continue;
        if (*n == capacity) {
            capacity = capacity > 0 ? 2 * capacity : 64;
            int64_t *grown = realloc(*out, (size_t)capacity * sizeof **out);
            if (grown == NULL) {
                st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%s: %lld checkpoints", run, (long long)capacity);
                break;
            }
            *out = grown;
        }
        (*out)[(*n)++] = step;
    }
    closedir(d);
    if (*n > 0)
        qsort(*out, (size_t)*n, sizeof **out, compare_steps);
    return st;
}

static assay_status remove_checkpoint(const char *run, int64_t step)
{
    char path[PATH], gone[PATH], name[NAME];
    assay_checkpoint_folder_name(run, step, path, sizeof path);
    snprintf(name, sizeof name, "removed_%07lld", (long long)step);
    ASSAY_TRY(join(run, name, gone));
    ASSAY_TRY(assay_remove_tree(gone, run)); /* of a run that was killed meanwhile */
    ASSAY_CHECK(rename(path, gone) == 0, ASSAY_IO, "%s: cannot be removed: %s", path, strerror(errno));
    return assay_remove_tree(gone, run);
}

static assay_status rotate(const char *run, int64_t keep, const pointer *best, int64_t latest)
{
    int64_t *steps, n;
    assay_status st = list_steps(run, &steps, &n);
    for (int64_t i = keep; i < n && st == ASSAY_OK; i++)
        if (steps[i] != latest && (best->name[0] == '\0' || steps[i] != step_of(best->name)))
            st = remove_checkpoint(run, steps[i]);
    free(steps);
    return st;
}

assay_status assay_checkpoint_folder_add(const char *run, int64_t step, double loss, int64_t keep)
{
    pointer best;
    ASSAY_TRY(write_pointer(run, "latest", step, loss));
    ASSAY_TRY(read_pointer(run, "best", &best));
    if (loss == loss && (best.name[0] == '\0' || loss < best.loss)) { /* NaN is never the best */
        ASSAY_TRY(write_pointer(run, "best", step, loss));
        ASSAY_TRY(read_pointer(run, "best", &best));
    }
    return keep > 0 ? rotate(run, keep, &best, step) : ASSAY_OK;
}

/* --- what a path means -------------------------------------------------------------------------------------- */
/* RUN/latest, RUN/best. */
static assay_status follow(const char *path, char *out, size_t capacity)
{
    const char *slash = strrchr(path, '/');
    char run[PATH];
    pointer p;
    snprintf(run, sizeof run, "%.*s", slash != NULL ? (int)(slash - path) : 1, slash != NULL ? path : ".");
    ASSAY_TRY(read_pointer(run, slash != NULL ? slash + 1 : path, &p));
    ASSAY_CHECK(p.name[0] != '\0', ASSAY_NOT_FOUND, "%s: the checkpoint that it names is not there", path);
    const int n = snprintf(out, capacity, "%s/%s", run, p.name);
    ASSAY_CHECK(n > 0 && (size_t)n < capacity, ASSAY_LIMIT, "%s: the path is too long", path);
    return ASSAY_OK;
}

assay_status assay_checkpoint_refuse_torch(const char *dir)
{
    char metadata[PATH];
    if (is_checkpoint(dir) || join(dir, ".metadata", metadata) != ASSAY_OK) {
        assay_error_clear();
        return ASSAY_OK;
    }
    ASSAY_CHECK(!exists(metadata), ASSAY_UNSUPPORTED,
                "%s: of torch.distributed.checkpoint: its .metadata is pickled, and reading a pickle "
                "executes what it says; in an "
                "environment that may, python -m torch.distributed.checkpoint.format_utils dcp_to_torch, "
                "then save_pretrained",
                dir);
    return ASSAY_OK;
}

/* The folder itself, or those of its steps, as Megatron-LM's torch_dist has them. */
static assay_status refuse_torch_steps(const char *run)
{
    char path[PATH];
    assay_status st = assay_checkpoint_refuse_torch(run);
    DIR *d = st == ASSAY_OK ? opendir(run) : NULL;
    for (const struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL && st == ASSAY_OK; e = readdir(d))
        if (step_of(e->d_name) >= 0 && join(run, e->d_name, path) == ASSAY_OK)
            st = assay_checkpoint_refuse_torch(path);
    if (d != NULL)
        closedir(d);
    return st;
}

assay_status assay_checkpoint_folder_find(const char *path, char *out, size_t capacity)
{
    struct stat sb;
    int64_t *steps = NULL, n = 0;
    ASSAY_CHECK(strlen(path) < PATH - NAME && strlen(path) < capacity, ASSAY_LIMIT,
                "%s: the path is too long", path);
    if (is_checkpoint(path)) {
        memcpy(out, path, strlen(path) + 1);
        return ASSAY_OK;
    }
    ASSAY_CHECK(stat(path, &sb) == 0, ASSAY_NOT_FOUND, "%s: %s", path, strerror(errno));
    if (S_ISREG(sb.st_mode))
        return follow(path, out, capacity);
    assay_status st = list_steps(path, &steps, &n);
    if (st == ASSAY_OK && n == 0)
        st = refuse_torch_steps(path);
    if (st == ASSAY_OK && n == 0)
        st = ASSAY_ERROR(ASSAY_NOT_FOUND,
                         "%s: neither a checkpoint nor a folder of iter_0000010 and the like", path);
    if (st == ASSAY_OK)
        assay_checkpoint_folder_name(path, steps[0], out, capacity);
    free(steps);
    return st;
}

/* --- where nothing may be written --------------------------------------------------------------------------- */
/* Of ours: other programs have files of this name, too. */
static bool is_ours(const char *folder)
{
    char path[PATH_MAX + 32];
    json_t *manifest = NULL;
    snprintf(path, sizeof path, "%s/manifest.json", folder);
    if (!exists(path))
        return false;
    if (assay_json_load(&manifest, path) != ASSAY_OK)
        assay_error_clear();
    const char *format = json_string_value(json_object_get(manifest, "format"));
    const bool ours = format != NULL && strcmp(format, ASSAY_CHECKPOINT_FORMAT) == 0;
    json_decref(manifest);
    return ours;
}

assay_status assay_checkpoint_outside(const char *option, const char *path)
{
    char given[PATH_MAX], folder[PATH_MAX];
    bool found = false;
    ASSAY_CHECK(path[0] != '\0' && strlen(path) < sizeof given, ASSAY_LIMIT,
                "%s%.200s: expected a path of 1 to %d bytes", option, path, PATH_MAX - 1);
    snprintf(given, sizeof given, "%s", path);
    do { /* what is not there will be made in the last folder that is */
        assay_cut_name(given);
        found = realpath(given, folder) != NULL;
    } while (!found && strcmp(given, ".") != 0 && strcmp(given, "/") != 0);
    while (found) {
        ASSAY_CHECK(!is_ours(folder), ASSAY_INVALID_ARGUMENT,
                    "%s%s: would be written among the files of the checkpoint %s", option, path, folder);
        found = strcmp(folder, "/") != 0;
        assay_cut_name(folder);
    }
    return ASSAY_OK;
}
