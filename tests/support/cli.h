/* Runs of the built programs as a user starts them: arguments in, exit code and both outputs out. */
#ifndef TESTS_CLI_SUPPORT_H
#define TESTS_CLI_SUPPORT_H

#include "core/base/file.h"
#include "core/base/log.h"
#include "core/files/tensorfile.h"
#include "tests/support/difference.h"
#include "tests/support/training_out.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MODELS ASSAY_SOURCE_DIR "/golden/models/"
enum { CLI_ARGS = 320, CLI_PATH = 600, CLI_LINE = 6000 };
/* Of a program that hangs: what is slow is measured elsewhere, and three programs share two processors. */
enum { CLI_LIMIT_S = 400 };

typedef struct cli_result {
    int code;        /* exit code, -1 when killed by a signal or by the time limit */
    char *out, *err; /* what the program wrote; never NULL */
} cli_result;

static char cli_folder[64];

static inline void cli_setup(void)
{
    snprintf(cli_folder, sizeof cli_folder, "/tmp/assay-cli-XXXXXX");
    cr_assert_not_null(mkdtemp(cli_folder));
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    setenv("OMP_NUM_THREADS", "1", 1);
}

static inline void cli_teardown(void)
{
    cr_assert_eq(assay_remove_tree(cli_folder, "/tmp"), ASSAY_OK, "%s", assay_error_message());
}

/* Path of a file in the test's folder; eight may be in use at a time. */
static inline const char *cli_file(const char *name)
{
    static char paths[8][CLI_PATH];
    static int next;
    next = (next + 1) % 8;
    snprintf(paths[next], sizeof paths[next], "%s/%s", cli_folder, name);
    return paths[next];
}

/* The text of a file, empty when there is none; freed by the caller. */
static inline char *cli_read(const char *path)
{
    size_t n = 0, capacity = 1 << 16;
    char *text = calloc(capacity, 1);
    FILE *f = fopen(path, "r");
    cr_assert_not_null(text);
    for (size_t got = 1; f != NULL && got > 0; n += got) {
        if (capacity - n < 2) {
            capacity *= 2;
            text = realloc(text, capacity);
            cr_assert_not_null(text);
        }
        got = fread(text + n, 1, capacity - n - 1, f);
        text[n + got] = 0;
    }
    if (f != NULL)
        fclose(f);
    return text;
}

static inline void cli_write(const char *path, const void *data, size_t bytes)
{
    cr_assert_eq(assay_write_file(path, data, bytes), ASSAY_OK, "%s", assay_error_message());
}

static inline void cli_write_text(const char *path, const char *text)
{
    cli_write(path, text, strlen(text));
}

static inline bool cli_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* Replaces a child by `line`, words separated by blanks, in the test's folder. */
static inline void cli_exec(char *line, const char *out, const char *err)
{
    char *argv[CLI_ARGS];
    int n = 0;
    for (char *word = strtok(line, " "); word != NULL && n < CLI_ARGS - 1; word = strtok(NULL, " "))
        argv[n++] = word;
    argv[n] = NULL;
    setpgid(0, 0);
    const int o = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600),
              e = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (o < 0 || e < 0 || dup2(o, STDOUT_FILENO) < 0 || dup2(e, STDERR_FILENO) < 0 || chdir(cli_folder) != 0)
        _exit(126);
    execv(argv[0], argv);
    _exit(127);
}

static inline pid_t cli_start(const char *line)
{
    char *copy = strdup(line);
    const pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0)
        cli_exec(copy, cli_file("stdout"), cli_file("stderr"));
    free(copy);
    return pid;
}

/* Waits for a started program; one that outlives the limit is killed with all its ranks. */
static inline cli_result cli_wait(pid_t pid)
{
    cli_result r = {.code = -1};
    const double end = assay_monotonic_s() + CLI_LIMIT_S;
    int status = 0;
    pid_t got;
    while ((got = waitpid(pid, &status, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (assay_monotonic_s() > end) {
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
            cr_expect_fail("the program did not end within %d seconds", CLI_LIMIT_S);
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    }
    if (WIFEXITED(status))
        r.code = WEXITSTATUS(status);
    r.out = cli_read(cli_file("stdout"));
    r.err = cli_read(cli_file("stderr"));
    return r;
}

static inline void cli_free(cli_result *r)
{
    free(r->out);
    free(r->err);
}

/* `assay` with the words of the text. */
__attribute__((format(printf, 1, 2))) static inline cli_result cli_run(const char *format, ...)
{
    static char line[CLI_LINE];
    va_list args;
    int n = snprintf(line, sizeof line, ASSAY_BIN_DIR "/assay ");
    va_start(args, format);
    n += vsnprintf(line + n, sizeof line - (size_t)n, format, args);
    va_end(args);
    cr_assert_lt(n, CLI_LINE);
    return cli_wait(cli_start(line));
}

static inline int cli_count(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = strstr(text, word); at != NULL; at = strstr(at + 1, word))
        n++;
    return n;
}

static inline bool cli_unclean(const cli_result *r)
{
    return strstr(r->err, "Sanitizer") != NULL || strstr(r->err, "runtime error") != NULL;
}

static inline void cli_expect_success(const cli_result *r, const char *what)
{
    cr_expect(r->code == 0 && !cli_unclean(r), "%s: exit code %d\n%s%s", what, r->code, r->out, r->err);
}

/* Exit code 2, and every word of the NULL-terminated list in the message. */
static inline void cli_expect_refusal(const cli_result *r, const char *what, const char *const *words)
{
    cr_expect(r->code == 2 && !cli_unclean(r), "%s: expected exit code 2, found %d\n%s%s", what, r->code,
              r->out, r->err);
    cr_expect(strstr(r->err, "error: ") != NULL || strstr(r->err, "expected") != NULL,
              "%s: no message in\n%s", what, r->err);
    for (; *words != NULL; words++)
        cr_expect(strstr(r->err, *words) != NULL, "%s: expected '%s' in\n%s", what, *words, r->err);
}

static inline void cli_copy(const char *from, const char *to)
{
    char *data = NULL;
    uint64_t bytes;
    cr_assert_eq(assay_read_file(from, 1 << 26, &data, &bytes), ASSAY_OK, "%s", assay_error_message());
    cli_write(to, data, bytes);
    free(data);
}

/* --- result files ------------------------------------------------------------------------------------------
 */
/* The file holds exactly the tensors of `expected_path`, with its shapes, as `dtype`, within `tolerance`.
 * Returns the worst difference. */
static inline double cli_compare(const char *found_path, const char *expected_path, assay_dtype dtype,
                                 double tolerance, const char *what)
{
    assay_tensorfile *found, *expected;
    double worst = 0.0;
    cr_assert_eq(assay_tensorfile_open(&found, found_path), ASSAY_OK, "%s: %s", what, assay_error_message());
    cr_assert_eq(assay_tensorfile_open(&expected, expected_path), ASSAY_OK, "%s", assay_error_message());
    const int64_t extras = training_extras(found, expected);
    cr_expect(extras >= 0 && assay_tensorfile_count(found) - extras == assay_tensorfile_count(expected),
              "%s: %lld tensors, %lld of them of training alone, expected %lld", what,
              (long long)assay_tensorfile_count(found), (long long)extras,
              (long long)assay_tensorfile_count(expected));
    cr_assert_gt(assay_tensorfile_count(expected), 2);
    for (int64_t i = 0; i < assay_tensorfile_count(expected); i++) {
        const assay_tensor_info *e = assay_tensorfile_at(expected, i), *f = NULL;
        const assay_status st = assay_tensorfile_get(found, e->name, dtype, e->shape, e->ndim, &f);
        cr_expect_eq(st, ASSAY_OK, "%s: %s", what, assay_error_message());
        if (st != ASSAY_OK)
            continue;
        const double d = tensor_difference(f, e);
        cr_expect(d <= tolerance, "%s: %s differs by %g of its largest magnitude, allowed %g", what, e->name,
                  d, tolerance);
        worst = worse_of(worst, d);
    }
    assay_tensorfile_close(found);
    assay_tensorfile_close(expected);
    return worst;
}

#endif
