/* Runs a function as several ranks, each a process, inside one test. */
#ifndef ASSAY_TEST_SIM_RANKS_H
#define ASSAY_TEST_SIM_RANKS_H

#include <criterion/criterion.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*rank_main)(int rank, int ranks, ncclUniqueId id, void *arg);

/* No rank begins before all have been started: on a loaded machine a fork may take longer than a test's time limit. */
static inline void rank_begin(_Atomic int *begun, int ranks)
{
    ++*begun;
    while (*begun < ranks)
        usleep(1000);
}

/* The ranks' exit codes; -signal for one that a signal ended.  Their standard error goes into `log`
 * (NUL-terminated). */
static inline void run_ranks_logged(int ranks, rank_main fn, void *arg, int *codes, char *log,
                                    size_t log_bytes)
{
    ncclUniqueId id;
    pid_t pid[16];
    FILE *file = tmpfile();
    _Atomic int *begun = mmap(NULL, sizeof *begun, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(ncclGetUniqueId(&id) == ncclSuccess && file != NULL && begun != MAP_FAILED);
    const int capture = fileno(file);
    for (int r = 0; r < ranks; ++r) {
        pid[r] = fork();
        if (pid[r] == 0) {
            dup2(capture, STDERR_FILENO);
            alarm(100);
            rank_begin(begun, ranks);
            _exit(fn(r, ranks, id, arg));
        }
    }
    for (int r = 0; r < ranks; ++r) {
        int status = 0;
        waitpid(pid[r], &status, 0);
        codes[r] = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    const ssize_t n = pread(capture, log, log_bytes - 1, 0);
    log[n > 0 ? n : 0] = '\0';
    fclose(file);
    munmap(begun, sizeof *begun);
}

static inline void run_ranks(int ranks, rank_main fn, void *arg)
{
    int codes[16];
    char log[8192];
    run_ranks_logged(ranks, fn, arg, codes, log, sizeof log);
    for (int r = 0; r < ranks; ++r) {
        cr_expect(codes[r] == 0, "rank %d of %d ended with %d; %s", r, ranks, codes[r], log);
    }
}

/* In a rank: the line that failed becomes the exit code. */
#define RANK_CHECK(condition)                                                                                \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                          \
            return 100;                                                                                      \
        }                                                                                                    \
    } while (0)

#endif
