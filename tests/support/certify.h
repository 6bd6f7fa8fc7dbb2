/* Runs of assay certify on libraries of the build. */
#ifndef TESTS_CERTIFY_SUPPORT_H
#define TESTS_CERTIFY_SUPPORT_H

#include "tests/support/cli.h"

/* For libraries of kernels: under the address sanitizer -O1 compiles in two thirds of the time, and kernels of a few rows run as fast. */
#if defined(__SANITIZE_ADDRESS__)
#define CERTIFY_LEVEL "-O1"
#else
#define CERTIFY_LEVEL "-O2"
#endif

static inline void certify_setup(void)
{
    cli_setup();
    setenv("XDG_CONFIG_HOME", cli_folder, 1);
    setenv("TMPDIR", cli_folder, 1);
}

/* Whether the report says that this trial failed. */
static inline bool certify_failed(const cli_result *r, const char *trial)
{
    char line[48];
    snprintf(line, sizeof line, "FAIL %s ", trial);
    return strstr(r->out, line) != NULL;
}

static inline bool certify_passed(const cli_result *r, const char *trial)
{
    char line[48];
    snprintf(line, sizeof line, "pass %s ", trial);
    return strstr(r->out, line) != NULL;
}

/* The certificate that a run wrote, as it says; "" where it wrote none. */
static inline const char *certify_written(const cli_result *r)
{
    static char path[CLI_LINE];
    static const char word[] = "\ncertificate: ";
    const char *at = strstr(r->out, word);
    snprintf(path, sizeof path, "%.*s", at != NULL ? (int)strcspn(at + sizeof word - 1, "\n") : 0,
             at != NULL ? at + sizeof word - 1 : "");
    return path;
}

/* Part of an example, replaced. */
typedef struct certify_change {
    const char *is, *becomes;
} certify_change;

static inline char *certify_replaced(char *text, const char *is, const char *becomes)
{
    char *at = strstr(text, is), *out = malloc(strlen(text) + strlen(becomes) + 1);
    cr_assert_not_null(at, "%s", is);
    cr_assert_not_null(out);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, becomes, at + strlen(is));
    free(text);
    return out;
}

/* The address sanitizer ends the trial's process at a bad access before the simulator can name it. */
static inline bool certify_stopped(const cli_result *r)
{
#if defined(__SANITIZE_ADDRESS__)
    return certify_failed(r, "crash");
#else
    (void)r;
    return false;
#endif
}

/* assay certify of a kernel with a fault, which has to fail.  --fail-fast stops where the fault is first seen, mostly by the trial that
 * names it; where it is seen by another, or in other words, the whole trial is run. */
static inline cli_result certify_caught(const char *trial, const char *word, const char *arguments)
{
    cli_result r = cli_run("certify --seeds 1 --fail-fast %s", arguments);
    cr_expect_eq(r.code, 1, "--fail-fast %s: exit code %d\n%s%s", arguments, r.code, r.out, r.err);
    if (certify_stopped(&r) || (certify_failed(&r, trial) && (word == NULL || strstr(r.out, word) != NULL)))
        return r;
    cli_free(&r);
    return cli_run("certify --seeds 1 %s", arguments);
}

#endif
