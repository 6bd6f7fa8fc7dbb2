/* A folder of product plans for a test, and what is said about it on stderr. */
#ifndef TESTS_GPU_PLANS_H
#define TESTS_GPU_PLANS_H

#include "core/base/file.h"
#include "gpu/product_plans.h"
#include "tests/support/gpu_judge.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

static char plans_folder[256];
static int plans_stderr = -1, plans_stderr_before = -1;

static inline void no_plans(void)
{
    unsetenv("ASSAY_PRODUCT_PLANS");
    unsetenv("ASSAY_PRODUCT_PLANS_TIME");
}

static inline void plans_begin(bool time)
{
    cr_assert_eq(assay_scratch_make("plans", plans_folder, sizeof plans_folder), ASSAY_OK);
    setenv("ASSAY_FSYNC", "0", 1); /* a scratch folder */
    setenv("ASSAY_PRODUCT_PLANS", plans_folder, 1);
    setenv("ASSAY_PRODUCT_PLANS_TIME", time ? "1" : "0", 1);
    char path[] = "/tmp/assay-plans-said-XXXXXX";
    fflush(stderr);
    plans_stderr = mkstemp(path);
    unlink(path);
    plans_stderr_before = dup(STDERR_FILENO);
    cr_assert(plans_stderr >= 0 && plans_stderr_before >= 0 && dup2(plans_stderr, STDERR_FILENO) >= 0);
}

/* All of it since plans_begin. */
static inline const char *plans_said(void)
{
    static char text[4096];
    fflush(stderr);
    const ssize_t n = pread(plans_stderr, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static inline void plans_end(void)
{
    fflush(stderr);
    dup2(plans_stderr_before, STDERR_FILENO);
    close(plans_stderr_before);
    close(plans_stderr);
    assay_scratch_remove(plans_folder);
    no_plans();
}

/* The path of the folder's file; false: there is none. */
static inline bool plans_file(char path[512])
{
    bool found = false;
    DIR *d = opendir(plans_folder);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
        if (e->d_name[0] != '.') {
            snprintf(path, 512, "%.250s/%.250s", plans_folder, e->d_name);
            found = true;
        }
    if (d)
        closedir(d);
    return found;
}

#endif
