/* Runs of the reference on disk: one safetensors file for each, named by the hash of all that decides it. */
#include "parity/checks/whole_store.h"

#include "core/base/log.h"
#include "core/files/tensorfile.h"
#include "core/files/tensorwriter.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

/* --- identity ----------------------------------------------------------------------------------------------- */

/* Options that say where files lie or how the candidate computes; the reference reads none of them. */
static const char *const not_of_the_reference[] = {"model",
                                                   "batch",
                                                   "out",
                                                   "trace",
                                                   "load",
                                                   "save",
                                                   "save_after",
                                                   "layout",
                                                   "variant",
                                                   "precision",
                                                   "fault",
                                                   "trace_hash_only",
                                                   "collective_timeout",
                                                   NULL};

static assay_status hash_of_training(const parity_whole_cache *c, char out[ASSAY_SHA256_HEX])
{
    json_t *options = assay_train_options_to_json(&c->options, ASSAY_FOR_STEP | ASSAY_FOR_CASE),
           *model = NULL;
    char *text = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(options != NULL, ASSAY_OUT_OF_MEMORY, st, done, "reference runs: options");
    for (int i = 0; not_of_the_reference[i] != NULL; i++)
        json_object_del(options, not_of_the_reference[i]);
    ASSAY_TRY_GOTO(assay_config_to_json(&c->spec->config, &model), st, done);
    json_object_set(options, "model config", model);
    text = json_dumps(options, JSON_COMPACT | JSON_SORT_KEYS);
    ASSAY_CHECK_GOTO(text != NULL, ASSAY_OUT_OF_MEMORY, st, done, "reference runs: options");
    assay_sha256_bytes(text, strlen(text), out);
done:
    free(text);
    json_decref(model);
    json_decref(options);
    return st;
}

assay_status parity_whole_identity(const parity_whole_cache *c, char out[ASSAY_SHA256_HEX])
{
    const assay_batches *b = c->batches;
    const size_t bytes = (size_t)(b->steps * b->microbatches * b->b * b->s) * sizeof(int64_t);
    const int64_t shape[4] = {b->steps, b->microbatches, b->b, b->s};
    const size_t n = (size_t)c->spec->n_params + 4;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(assay_hash_init());
    char(*parts)[ASSAY_SHA256_HEX] = calloc(n, sizeof *parts);
    ASSAY_CHECK(parts != NULL, ASSAY_OUT_OF_MEMORY, "reference runs: identity");
    ASSAY_TRY_GOTO(hash_of_training(c, parts[0]), st, done);
    assay_hash_tensor(ASSAY_I64, shape, 4, b->input_ids, bytes, parts[1]);
    assay_hash_tensor(ASSAY_I64, shape, 4, b->labels, bytes, parts[2]);
    assay_sha256_bytes(&b->shifted, sizeof b->shifted, parts[3]);
    for (int64_t i = 0; i < c->spec->n_params; i++)
        assay_sha256_bytes(c->weights[i], (size_t)assay_param_elements(&c->spec->params[i]) * sizeof(double),
                           parts[4 + i]);
    assay_sha256_bytes(parts, n * sizeof *parts, out);
done:
    free(parts);
    return st;
}

/* --- one run as a file -------------------------------------------------------------------------------------- */

static const char *const numbers[] = {"loss", "grad_norm", "aux_loss", "z_loss"};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers, PREFIX = 6 };

static double **number_of(ref_run_result *r, int k)
{
    double **const all[N_NUMBERS] = {&r->loss, &r->grad_norm, &r->aux_loss, &r->z_loss};
    return all[k];
}

static assay_status save_run(const char *path, const char *key, ref_run_result *r)
{
    assay_tensorwriter *w = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(assay_tensorwriter_create(&w, path), st, done);
    assay_tensorwriter_unsynced(w); /* of this run alone: nobody reads it after a machine has stopped */
    ASSAY_TRY_GOTO(assay_tensorwriter_metadata(w, "key", key), st, done);
    for (int k = 0; k < N_NUMBERS; k++)
        ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(w, numbers[k], ASSAY_F64, &r->steps, 1, *number_of(r, k)),
                       st, done);
    for (int64_t i = 0; i < r->n_tensors; i++) {
        const ref_named_tensor *t = &r->tensors[i];
        char name[ASSAY_NAME + 64];
        snprintf(name, sizeof name, "%0*" PRId64 "|%s|%" PRId64 "|%s", PREFIX, i, t->kind, t->step, t->name);
        ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(w, name, ASSAY_F64, t->shape, t->ndim, t->data), st, done);
    }
    st = assay_tensorwriter_finish(w);
done:
    assay_tensorwriter_destroy(w);
    return st;
}

static assay_status copy_values(const assay_tensor_info *t, double **out)
{
    *out = malloc(t->bytes + 1);
    ASSAY_CHECK(*out != NULL, ASSAY_OUT_OF_MEMORY, "reference run: %zu bytes", t->bytes);
    memcpy(*out, t->data, t->bytes);
    return ASSAY_OK;
}

/* "000003|grad|0|embedding.word_embeddings.weight" */
static assay_status load_tensor(const assay_tensor_info *from, const char *path, ref_named_tensor *to)
{
    char kind[16];
    int at = 0;
    char *bar = NULL;
    const bool has_kind = sscanf(from->name + PREFIX, "|%15[a-z_]|%n", kind, &at) == 1 && at > 0;
    to->step = has_kind ? strtoll(from->name + PREFIX + at, &bar, 10) : -1;
    ASSAY_CHECK(has_kind && to->step >= 0 && *bar == '|' && from->dtype == ASSAY_F64 &&
                    from->ndim <= ASSAY_MAX_DIMS && strlen(bar + 1) < sizeof to->name,
                ASSAY_FORMAT, "%s: unexpected tensor %s", path, from->name);
    memcpy(to->kind, kind, sizeof to->kind);
    snprintf(to->name, sizeof to->name, "%s", bar + 1);
    to->ndim = from->ndim;
    memcpy(to->shape, from->shape, sizeof to->shape);
    return copy_values(from, &to->data);
}

static assay_status load_tensors(const assay_tensorfile *f, const char *path, ref_run_result *r)
{
    const int64_t n = assay_tensorfile_count(f);
    r->tensors = calloc((size_t)n + 1, sizeof *r->tensors);
    ASSAY_CHECK(r->tensors != NULL, ASSAY_OUT_OF_MEMORY, "%s: %" PRId64 " tensors", path, n);
    for (int64_t i = 0; i < n; i++) {
        const assay_tensor_info *t = assay_tensorfile_at(f, i);
        if (t->name[0] >= '0' && t->name[0] <= '9' && strlen(t->name) > PREFIX)
            ASSAY_TRY(load_tensor(t, path, &r->tensors[r->n_tensors++]));
    }
    return ASSAY_OK;
}

static assay_status load_run(const char *path, const char *key, ref_run_result *r)
{
    assay_tensorfile *f = NULL;
    const assay_tensor_info *t;
    assay_status st = ASSAY_OK;
    *r = (ref_run_result){0};
    ASSAY_TRY(assay_tensorfile_open(&f, path));
    const char *found = assay_tensorfile_metadata(f, "key");
    ASSAY_CHECK_GOTO(found != NULL && strcmp(found, key) == 0, ASSAY_FORMAT, st, done,
                     "%s: expected the reference run %s, found %s", path, key,
                     found != NULL ? found : "no key");
    for (int k = 0; k < N_NUMBERS; k++) {
        ASSAY_TRY_GOTO(assay_tensorfile_get(f, numbers[k], ASSAY_F64, NULL, -1, &t), st, done);
        ASSAY_TRY_GOTO(copy_values(t, number_of(r, k)), st, done);
        r->steps = t->count;
    }
    st = load_tensors(f, path, r);
done:
    assay_tensorfile_close(f);
    if (st != ASSAY_OK)
        ref_run_result_free(r);
    return st;
}

/* --- waiting -------------------------------------------------------------------------------------------------- */

/* Seconds to wait for another process that makes the run: ASSAY_REFERENCE_WAIT, else an hour. */
static assay_status wait_limit(double *seconds)
{
    const char *text = getenv("ASSAY_REFERENCE_WAIT");
    char *end = NULL;
    *seconds = 3600;
    if (text == NULL || text[0] == '\0')
        return ASSAY_OK;
    *seconds = strtod(text, &end);
    ASSAY_CHECK(*end == '\0' && *seconds > 0 && *seconds <= 1e7, ASSAY_INVALID_ARGUMENT,
                "ASSAY_REFERENCE_WAIT: expected seconds, found %s", text);
    return ASSAY_OK;
}

/* Locks the file and writes into it who holds it.  A process that ends gives up its lock; one that hangs is named. */
static assay_status take_lock(int fd, const char *path)
{
    char holder[64] = "";
    double limit_s;
    ASSAY_TRY(wait_limit(&limit_s));
    const double end = assay_monotonic_s() + limit_s;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        ASSAY_CHECK(errno == EWOULDBLOCK || errno == EINTR, ASSAY_IO, "%s: %s", path, strerror(errno));
        if (assay_monotonic_s() > end) {
            const ssize_t n = pread(fd, holder, sizeof holder - 1, 0);
            holder[n > 0 ? n : 0] = '\0';
            holder[strcspn(holder, "\n")] = '\0';
            ASSAY_FAIL(
                ASSAY_TIMEOUT,
                "%s: expected the reference run of another process (%s) within %g s (ASSAY_REFERENCE_WAIT), "
                "found it still at work",
                path, holder[0] != '\0' ? holder : "unknown", limit_s);
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    const int n = snprintf(holder, sizeof holder, "process %-20ld\n", (long)getpid());
    ASSAY_CHECK(pwrite(fd, holder, (size_t)n, 0) == n, ASSAY_IO, "%s: %s", path, strerror(errno));
    return ASSAY_OK;
}

/* --- once --------------------------------------------------------------------------------------------------- */

assay_status parity_whole_run(const char *folder, const char *key, const ref_run_config *config,
                              double *const *weights, ref_run_result *result)
{
    char path[ASSAY_PATH], lock[ASSAY_PATH], hash[ASSAY_SHA256_HEX];
    assay_status st = ASSAY_OK;
    ASSAY_TRY(assay_hash_init());
    assay_sha256_bytes(key, strlen(key), hash);
    ASSAY_CHECK(snprintf(path, sizeof path, "%s/%s.safetensors", folder, hash) < ASSAY_PATH &&
                    snprintf(lock, sizeof lock, "%s/%s.lock", folder, hash) < ASSAY_PATH,
                ASSAY_LIMIT, "%s: path too long", folder);
    const int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    ASSAY_CHECK(fd >= 0, ASSAY_IO, "%s: %s", lock, strerror(errno));
    ASSAY_TRY_GOTO(take_lock(fd, lock), st, done);
    if (access(path, F_OK) == 0) {
        st = load_run(path, key, result);
    } else {
        ASSAY_TRY_GOTO(ref_run(config, weights, result), st, done);
        st = save_run(path, key, result);
        if (st != ASSAY_OK)
            ref_run_result_free(result);
    }
done:
    close(fd); /* gives up the lock */
    return st;
}
