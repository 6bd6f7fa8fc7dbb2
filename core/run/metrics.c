/* Lines and metrics.jsonl of a training run. */
#include "core/run/metrics.h"

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/files/checkpoint.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_MAX ((uint64_t)1 << 32)

bool assay_metrics_wanted(const assay_train_options *o)
{
    return o->log_interval > 0 || o->metrics[0] != '\0';
}

void assay_metrics_new_run(char run[ASSAY_RUN_ID])
{
    snprintf(run, ASSAY_RUN_ID, "%014llx", (unsigned long long)assay_checkpoint_job());
}

/* --- the file ----------------------------------------------------------------------------------------------- */

/* One line: its step, and that it is of this run and follows the line before. */
static assay_status check_line(const assay_metrics *m, const char *path, const char *line, size_t n,
                               int64_t before, int64_t *iteration)
{
    json_t *object = NULL;
    ASSAY_TRY(assay_json_parse(&object, line, n, path));
    const char *run = json_string_value(json_object_get(object, "run"));
    assay_status st = assay_json_get_i64(object, "iteration", true, 1, INT64_MAX, path, iteration);
    if (st == ASSAY_OK && (run == NULL || strcmp(run, m->run) != 0))
        st = ASSAY_ERROR(ASSAY_MISMATCH, "%s: iteration %lld is of run %.32s, the checkpoint of run %s", path,
                         (long long)*iteration, run != NULL ? run : "?", m->run);
    if (st == ASSAY_OK && before > 0 && *iteration != before + 1)
        st = ASSAY_ERROR(ASSAY_FORMAT, "%s: iteration %lld follows iteration %lld", path,
                         (long long)*iteration, (long long)before);
    json_decref(object);
    return st;
}

/* Bytes of the lines up to step m->first. */
static assay_status keep_of(const assay_metrics *m, const char *path, const char *text, uint64_t n,
                            uint64_t *keep)
{
    int64_t last = 0;
    *keep = 0;
    for (uint64_t at = 0; at < n && last < m->first;) {
        const char *end = memchr(text + at, '\n', n - at);
        if (end == NULL)
            break; /* cut off while it was written */
        const size_t length = (size_t)(end - text) - at;
        ASSAY_TRY(check_line(m, path, text + at, length, last, &last));
        at += length + 1;
        *keep = at;
    }
    ASSAY_CHECK(last == m->first, ASSAY_MISMATCH,
                "%s: ends at iteration %lld, the checkpoint is of iteration %lld", path, (long long)last,
                (long long)m->first);
    return ASSAY_OK;
}

static assay_status append_to(assay_metrics *m, const char *path)
{
    char *text = NULL;
    uint64_t n = 0, keep = 0;
    ASSAY_TRY(assay_read_file(path, FILE_MAX, &text, &n));
    const assay_status st = keep_of(m, path, text, n, &keep);
    free(text);
    ASSAY_TRY(st);
    if (keep < n) {
        fprintf(stderr, "%s: what lies behind iteration %lld is made again\n", path, (long long)m->first);
        ASSAY_CHECK(truncate(path, (off_t)keep) == 0, ASSAY_IO, "%s: cannot be cut: %s", path,
                    strerror(errno));
    }
    m->file = fopen(path, "ae");
    ASSAY_CHECK(m->file != NULL, ASSAY_IO, "%s: cannot open: %s", path, strerror(errno));
    return ASSAY_OK;
}

assay_status assay_metrics_open(assay_metrics *m, const assay_train_options *o, const char *run,
                                int64_t first, int64_t last, const assay_batches *b)
{
    *m = (assay_metrics){.first = first,
                         .last = last,
                         .interval = o->log_interval,
                         .samples = b->microbatches * b->b,
                         .tokens = b->microbatches * b->b * b->s,
                         .begin = assay_monotonic_s()};
    snprintf(m->run, sizeof m->run, "%s", run);
    if (o->metrics[0] == '\0')
        return ASSAY_OK;
    if (first > 0 && access(o->metrics, F_OK) == 0)
        return append_to(m, o->metrics);
    m->file = fopen(o->metrics, "wxe");
    ASSAY_CHECK(m->file != NULL, ASSAY_IO, "--metrics %s: expected a new file: %s", o->metrics,
                strerror(errno));
    return ASSAY_OK;
}

void assay_metrics_close(assay_metrics *m)
{
    if (m->file != NULL)
        fclose(m->file);
    m->file = NULL;
}

/* --- a step ------------------------------------------------------------------------------------------------- */

/* JSON has no word for what is not finite. */
static void number(FILE *out, const char *name, double value)
{
    if (value - value == 0.0)
        fprintf(out, "\"%s\": %.17g, ", name, value);
    else
        fprintf(out, "\"%s\": null, ", name);
}

static void say(const assay_metrics *m, int64_t done, double loss, double grad_norm, double rate,
                double seconds)
{
    const double ran = (double)(done - m->first);
    const double left = seconds / ran * (double)(m->last - done);
    const long long s = (long long)left;
    printf(
        "iteration %*lld/%lld  loss %.6f  grad norm %.4g  lr %.4g  %.0f tokens/s  left %lld:%02lld:%02lld\n",
        snprintf(NULL, 0, "%lld", (long long)m->last), (long long)done, (long long)m->last, loss, grad_norm,
        rate, seconds > 0.0 ? ran * (double)m->tokens / seconds : 0.0, s / 3600, s / 60 % 60, s % 60);
    fflush(stdout);
}

assay_status assay_metrics_step(assay_metrics *m, int64_t step, double loss, double grad_norm,
                                double learning_rate)
{
    const int64_t done = step + 1;
    const double seconds = assay_monotonic_s() - m->begin;
    if (m->interval > 0 && (done % m->interval == 0 || done == m->last || done == m->first + 1))
        say(m, done, loss, grad_norm, learning_rate, seconds);
    if (m->file == NULL)
        return ASSAY_OK;
    fprintf(m->file, "{\"iteration\": %lld, ", (long long)done);
    number(m->file, "loss", loss);
    number(m->file, "grad_norm", grad_norm);
    number(m->file, "learning_rate", learning_rate);
    fprintf(m->file,
            "\"consumed_samples\": %lld, \"consumed_tokens\": %lld, \"seconds\": %.3f, \"run\": \"%s\"}\n",
            (long long)(done * m->samples), (long long)(done * m->tokens), seconds, m->run);
    ASSAY_CHECK(fflush(m->file) == 0 && !ferror(m->file), ASSAY_IO, "metrics of iteration %lld: %s",
                (long long)done, strerror(errno));
    return ASSAY_OK;
}

/* --- the data of a run -------------------------------------------------------------------------------------- */

json_t *assay_consumed_to_json(const assay_batches *b, int64_t steps)
{
    char ids[ASSAY_SHA256_HEX], labels[ASSAY_SHA256_HEX];
    const size_t bytes = (size_t)(steps * b->microbatches * b->b * b->s) * sizeof *b->input_ids;
    if (assay_hash_init() != ASSAY_OK)
        return NULL;
    assay_sha256_bytes(b->input_ids, bytes, ids);
    assay_sha256_bytes(b->labels, bytes, labels);
    return json_pack("{s:I, s:s, s:s}", "consumed_samples", (json_int_t)(steps * b->microbatches * b->b),
                     "input_ids", ids, "labels", labels);
}

assay_status assay_consumed_check(const char *dir, const json_t *header, const assay_batches *b,
                                  const assay_train_options *o, int64_t steps, FILE *out)
{
    const json_t *there = json_object_get(header, "data");
    if (there == NULL || steps > b->steps)
        return ASSAY_OK; /* a checkpoint without; the number of steps is refused elsewhere */
    json_t *here = assay_consumed_to_json(b, steps);
    ASSAY_CHECK(here != NULL, ASSAY_OUT_OF_MEMORY, "checkpoint %s: data", dir);
    const bool same = json_equal(there, here);
    json_decref(here);
    ASSAY_CHECK(
        same || o->override_checkpoint_args, ASSAY_MISMATCH,
        "checkpoint %s: its %lld steps read %lld samples, which are not the first of this run's data: other "
        "data, order, tokenizer or shape of a step; to continue all the same: --override-checkpoint-args",
        dir, (long long)steps, (long long)json_integer_value(json_object_get(there, "consumed_samples")));
    if (!same && out != NULL)
        fprintf(out, "WARNING: checkpoint %s: continued on other data than it was trained on\n", dir);
    return ASSAY_OK;
}
