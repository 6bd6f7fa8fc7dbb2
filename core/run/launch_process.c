/* A child without a copy of the caller: a judge that has read a trace starts thousands of ranks, and fork copies its page tables and
 * makes it copy, page by page, what it writes next.  posix_spawn would do, but has no PR_SET_PDEATHSIG. */
#include "core/run/launch_process.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EXEC_FAILED = 127, STACK_BYTES = 1 << 16 };

typedef struct child {
    const assay_process_start *start;
    pid_t parent;
} child;

/* Handlers are the parent's functions on the parent's memory: a signal that comes before the program is executed must not run one. */
static void forget_handlers(void)
{
    for (int s = 1; s < NSIG; s++) {
        struct sigaction now;
        if (sigaction(s, NULL, &now) != 0 || now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)
            continue;
        now.sa_handler = SIG_DFL;
        now.sa_flags = 0;
        sigaction(s, &now, NULL);
    }
}

/* Runs on the parent's memory, the parent's thread standing still: async-signal-safe calls only, and nothing of the parent's is written.
 * It returns where a function that does not would have the address sanitizer clear a stack that is not this one. */
static int become_program(void *user)
{
    static const char message[] = "cannot execute the program of this rank\n";
    const child *c = user;
    sigset_t none;
    forget_handlers();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != c->parent)
        return EXEC_FAILED; /* the launcher died before prctl */
    const int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (in >= 0)
        dup2(in, STDIN_FILENO);
    dup2(c->start->out, STDOUT_FILENO);
    dup2(c->start->err, STDERR_FILENO);
    execve(c->start->argv[0], c->start->argv, c->start->envp);
    (void)!write(STDERR_FILENO, message, sizeof message - 1); /* the exit code says it, too */
    return EXEC_FAILED;
}

assay_status assay_process_begin(const assay_process_start *start, pid_t *pid, int *ended)
{
    sigset_t all, before;
    child c = {.start = start, .parent = getpid()};
    char *stack = malloc(STACK_BYTES);
    *ended = -1;
    ASSAY_CHECK(stack != NULL, ASSAY_OUT_OF_MEMORY, "stack of a new process");
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    *pid = clone(become_program, stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, &c);
    const int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    free(stack);
    ASSAY_CHECK(*pid > 0, ASSAY_IO, "%s: cannot start a process: %s", start->argv[0], strerror(error));
#ifdef SYS_pidfd_open
    *ended = (int)syscall(SYS_pidfd_open, *pid, 0);
#endif
    return ASSAY_OK;
}
