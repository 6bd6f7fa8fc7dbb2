/* What libraries are told before they are loaded. */
#include "ref/fast/restart.h"

#include "ref/fast/blas_core.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char chosen[] = "ASSAY_OMP_WAIT_CHOSEN", policy[] = "OMP_WAIT_POLICY",
                  spins[] = "GOMP_SPINCOUNT", blas_threads[] = "OPENBLAS_NUM_THREADS",
                  threads_chosen[] = "ASSAY_OPENBLAS_THREADS_CHOSEN";

/* Both libraries have one thread then, and nothing waits. */
static bool one_thread(void)
{
    const char *threads = getenv("OMP_NUM_THREADS");
    return threads != NULL && strcmp(threads, "1") == 0;
}

static bool tell_omp(void)
{
    if (getenv(policy) != NULL || getenv(spins) != NULL || one_thread())
        return false;
    return setenv(policy, "passive", 1) == 0 && setenv(chosen, "1", 1) == 0;
}

static bool tell_blas_threads(void)
{
    return getenv(blas_threads) == NULL && !one_thread() && setenv(blas_threads, "1", 1) == 0 &&
           setenv(threads_chosen, "1", 1) == 0;
}

void ref_restart_untell(void)
{
    if (getenv(chosen) != NULL)
        unsetenv(policy);
    if (getenv(threads_chosen) != NULL)
        unsetenv(blas_threads);
    unsetenv(chosen);
    unsetenv(threads_chosen);
    ref_blas_core_untell();
}

void ref_restart(char *const argv[])
{
    const bool omp = tell_omp(), blas = ref_blas_core_tell(), threads = tell_blas_threads();
    if (!omp && !blas && !threads)
        return;
    char self[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) { /* by its path: who lists processes finds it under its name, not as "exe" */
        self[n] = '\0';
        execv(self, argv);
    }
    execv("/proc/self/exe", argv);
    ref_restart_untell(); /* slower, and otherwise the same */
}

void ref_omp_wait_describe(char *out, size_t capacity)
{
    const char *wait = getenv(policy), *count = getenv(spins);
    if (getenv(chosen) != NULL && wait != NULL && strcmp(wait, "passive") == 0)
        snprintf(out, capacity, "%s, chosen by assay", wait);
    else if (wait != NULL)
        snprintf(out, capacity, "%s, chosen by the user (%s)", wait, policy);
    else if (count != NULL)
        snprintf(out, capacity, "%s turns, chosen by the user (%s)", count, spins);
    else
        snprintf(out, capacity, "as the library chose");
}
