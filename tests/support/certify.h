/* Runs of assay certify on libraries of the build. */
#ifndef TESTS_CERTIFY_SUPPORT_H
#define TESTS_CERTIFY_SUPPORT_H

#include "tests/support/cli.h"

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

#endif
