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
                  threads_chosen[] = "ASSAY_OPENBLAS_THREADS_CHOSEN", passive[] = "passive", one[] = "1";

/* A mark may come from an assay further up, and the value from a user in between. */
static bool is_ours(const char *mark, const char *name, const char *value)
{
    const char *now = getenv(name);
    return getenv(mark) != NULL && now != NULL && strcmp(now, value) == 0;
}

/* Both libraries have one thread then, and nothing waits. */
static bool one_thread(void)
{
    const char *threads = getenv("OMP_NUM_THREADS");
    return threads != NULL && strcmp(threads, one) == 0;
}

static bool tell_omp(void)
{
    if (getenv(policy) != NULL || getenv(spins) != NULL || one_thread())
        return false;
    return setenv(policy, passive, 1) == 0 && setenv(chosen, one, 1) == 0;
}

static bool tell_blas_threads(void)
{
    return getenv(blas_threads) == NULL && !one_thread() && setenv(blas_threads, one, 1) == 0 &&
           setenv(threads_chosen, one, 1) == 0;
}

void ref_restart_untell(void)
{
    if (is_ours(chosen, policy, passive))
        unsetenv(policy);
    if (is_ours(threads_chosen, blas_threads, one))
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
    if (is_ours(chosen, policy, passive))
        snprintf(out, capacity, "%s, chosen by assay", passive);
    else if (wait != NULL)
        snprintf(out, capacity, "%s, chosen by the user (%s)", wait, policy);
    else if (count != NULL)
        snprintf(out, capacity, "%s turns, chosen by the user (%s)", count, spins);
    else
        snprintf(out, capacity, "as the library chose");
}
