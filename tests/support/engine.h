/* Runs of the engine program in the simulator, and comparison of its result files. */
#ifndef TESTS_ENGINE_SUPPORT_H
#define TESTS_ENGINE_SUPPORT_H

#include "core/base/file.h"
#include "core/files/tensorfile.h"
#include "core/files/tensorwriter.h"
#include "core/run/launch.h"
#include "tests/support/difference.h"
#include "tests/support/training_out.h"
#include <criterion/criterion.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOLDEN ASSAY_SOURCE_DIR "/golden/models/"
enum { ENGINE_ARGS = 64, ENGINE_PATH = 512 };

static char engine_folder[64];

static inline void engine_setup(void)
{
    snprintf(engine_folder, sizeof engine_folder, "/tmp/assay-engine-XXXXXX");
    cr_assert_not_null(mkdtemp(engine_folder));
}

static inline void engine_teardown(void)
{
    cr_assert_eq(assay_remove_tree(engine_folder, "/tmp"), ASSAY_OK, "%s", assay_error_message());
}

/* Path of a file in the test's folder; four may be in use at a time. */
static inline const char *engine_file(const char *name)
{
    static char paths[4][ENGINE_PATH];
    static int next;
    next = (next + 1) % 4;
    snprintf(paths[next], sizeof paths[next], "%s/%s", engine_folder, name);
    return paths[next];
}

/* `world` ranks of `assay-sim` with the words of `line`, separated by blanks; output goes to the file `log`.
 */
__attribute__((format(printf, 2, 3))) static inline assay_status engine_run(int world, const char *format,
                                                                            ...)
{
    static char line[4096];
    const char *argv[ENGINE_ARGS];
    int n = 0;
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    argv[n++] = ASSAY_BIN_DIR "/assay-sim";
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) {
        cr_assert_lt(n, ENGINE_ARGS - 1);
        argv[n++] = word;
    }
    argv[n] = NULL;
    const char *log = engine_file("log");
    (void)unlink(log);
    const assay_launch_options o = {
        .world = world, .timeout_s = 120, .prefix_output = true, .log_path = log, .quiet = true};
    assay_launch_result r;
    return assay_launch(argv, &o, &r);
}

/* The log of the last run; freed by the caller. */
static inline char *engine_log(void)
{
    char *text = NULL;
    uint64_t bytes;
    if (assay_read_file(engine_file("log"), 1 << 24, &text, &bytes) != ASSAY_OK)
        text = calloc(1, 1);
    return text;
}

static inline void engine_must_run(assay_status st, const char *what)
{
    char *log = engine_log();
    cr_assert_eq(st, ASSAY_OK, "%s: %s\n%s", what, assay_error_message(), log);
    free(log);
}

#define ENGINE_RUN(world, ...) engine_must_run(engine_run(world, __VA_ARGS__), #__VA_ARGS__)

/* Order among the streams of the engines that follow: 0 runs what is needed and no more, another seed whatever may run. */
static inline void engine_set_stream_seed(int seed)
{
    char text[16];
    snprintf(text, sizeof text, "%d", seed);
    cr_assert_eq(setenv("ASSAY_SIM_STREAM_SEED", text, 1), 0);
}

/* Tensors of `expected_path` that are not in the other file with the same bytes. */
static inline int64_t engine_n_different(const char *found_path, const char *expected_path)
{
    assay_tensorfile *found, *expected;
    int64_t differ = 0;
    cr_assert_eq(assay_tensorfile_open(&found, found_path), ASSAY_OK);
    cr_assert_eq(assay_tensorfile_open(&expected, expected_path), ASSAY_OK);
    for (int64_t i = 0; i < assay_tensorfile_count(expected); i++) {
        const assay_tensor_info *e = assay_tensorfile_at(expected, i),
                                *f = assay_tensorfile_find(found, e->name);
        differ += f == NULL || memcmp(f->data, e->data, e->bytes) != 0;
    }
    assay_tensorfile_close(found);
    assay_tensorfile_close(expected);
    return differ;
}

/* Every tensor of `expected` is in `found` and nothing else, same shapes, within `tolerance`; 0: equal bytes.
 * `only`: prefix of the names that are compared, "" for all. */
static inline void engine_compare(const char *found_path, const char *expected_path, double tolerance,
                                  const char *only)
{
    assay_tensorfile *found, *expected;
    cr_assert_eq(assay_tensorfile_open(&found, found_path), ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(assay_tensorfile_open(&expected, expected_path), ASSAY_OK, "%s", assay_error_message());
    int64_t compared = 0;
    const int64_t extras = training_extras(found, expected);
    cr_expect(only[0] ||
                  (extras >= 0 && assay_tensorfile_count(found) - extras == assay_tensorfile_count(expected)),
              "%lld tensors, %lld of them of training alone, expected %lld",
              (long long)assay_tensorfile_count(found), (long long)extras,
              (long long)assay_tensorfile_count(expected));
    for (int64_t i = 0; i < assay_tensorfile_count(expected); i++) {
        const assay_tensor_info *e = assay_tensorfile_at(expected, i), *f;
        if (strncmp(e->name, only, strlen(only)) != 0)
            continue;
        cr_assert_eq(assay_tensorfile_get(found, e->name, ASSAY_F32, e->shape, e->ndim, &f), ASSAY_OK, "%s",
                     assay_error_message());
        if (tolerance > 0.0)
            cr_expect(tensor_difference(f, e) <= tolerance, "%s: %g", e->name, tensor_difference(f, e));
        else
            cr_expect(f->bytes == e->bytes && memcmp(f->data, e->data, e->bytes) == 0, "%s: bits differ",
                      e->name);
        compared++;
    }
    cr_expect_gt(compared, 0);
    assay_tensorfile_close(found);
    assay_tensorfile_close(expected);
}

/* Largest difference over all tensors, for runs that must not agree. */
static inline double engine_worst(const char *found_path, const char *expected_path)
{
    assay_tensorfile *found, *expected;
    cr_assert_eq(assay_tensorfile_open(&found, found_path), ASSAY_OK);
    cr_assert_eq(assay_tensorfile_open(&expected, expected_path), ASSAY_OK);
    double worst = 0.0;
    for (int64_t i = 0; i < assay_tensorfile_count(expected); i++) {
        const assay_tensor_info *e = assay_tensorfile_at(expected, i);
        const assay_tensor_info *f = assay_tensorfile_find(found, e->name);
        cr_assert(f);
        worst = fmax(worst, tensor_difference(f, e)); /* drops a NaN: both runs may hold it */
    }
    assay_tensorfile_close(found);
    assay_tensorfile_close(expected);
    return worst;
}

/* A run that must fail with exit code 2 and a message that holds `text`, and must not write `out`. */
static inline void engine_must_fail(int world, const char *text, const char *arguments)
{
    const assay_status st = engine_run(world, "%s", arguments);
    char *log = engine_log();
    cr_expect_eq(st, ASSAY_CHILD, "%s: %s", arguments, assay_error_message());
    cr_expect(strstr(assay_error_message(), "code 2"), "%s", assay_error_message());
    cr_expect(strstr(log, text), "expected '%s' in:\n%s", text, log);
    cr_expect(strstr(log, "Sanitizer") == NULL && strstr(log, "runtime error") == NULL, "%s", log);
    free(log);
    cr_expect_neq(access(engine_file("out"), F_OK), 0);
}

/* A batch file of I64 [shape] whose ids come from a small generator; every `mask`-th label is ignored. */
static inline void engine_write_batch(const char *path, const int64_t *shape, int ndim, int64_t vocab,
                                      int mask)
{
    int64_t n = 1;
    for (int d = 0; d < ndim; d++)
        n *= shape[d];
    int64_t *ids = malloc(2 * (size_t)n * sizeof *ids), *labels = ids + n;
    uint64_t state = 1;
    for (int64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int64_t)((state >> 33) % (uint64_t)vocab);
        labels[i] = mask > 0 && i % mask == mask - 1 ? -100 : ids[i];
    }
    assay_tensorwriter *w;
    cr_assert_eq(assay_tensorwriter_create(&w, path), ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(assay_tensorwriter_add_copy(w, "input_ids", ASSAY_I64, shape, ndim, ids), ASSAY_OK);
    cr_assert_eq(assay_tensorwriter_add_copy(w, "labels", ASSAY_I64, shape, ndim, labels), ASSAY_OK);
    cr_assert_eq(assay_tensorwriter_finish(w), ASSAY_OK, "%s", assay_error_message());
    assay_tensorwriter_destroy(w);
    free(ids);
}

/* A model folder without weights: its runs need DRAWN. */
#define DRAWN "--draw-weights 1234 "
static inline void engine_write_config(const char *folder, const char *json)
{
    char path[ENGINE_PATH + 16];
    cr_assert_eq(assay_mkdir_p(folder), ASSAY_OK, "%s", assay_error_message());
    snprintf(path, sizeof path, "%s/config.json", folder);
    cr_assert_eq(assay_write_file(path, json, strlen(json)), ASSAY_OK, "%s", assay_error_message());
}

#endif
