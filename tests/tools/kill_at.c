/* kill_at N WHO FOLDER COMMAND...: runs a command and kills, in front of the N-th system call that changes the file system below
 * FOLDER (its canonical path), WHO of its processes: `all`, `caller`: the one that makes the call, `writer`: the caller, counting
 * the calls of writers of asynchronous saves alone, `trainers`: all but these.  N 0: kills nothing.  Prints the command's exit
 * code (-1: killed) and how many such calls there were until then.  Exit code: 0 killed, 1 ended before.  x86-64 Linux;
 * ci/kill_saves.sh, ci/kill_tools.sh. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 4096, TEXT = 4200 };

static const char *folder;
static pid_t tracees[PROCESSES];
static bool inside[PROCESSES]; /* between entry and return of a call */
static int n_tracees;

static int number_of(pid_t pid)
{
    for (int i = 0; i < n_tracees; i++)
        if (tracees[i] == pid)
            return i;
    if (n_tracees == PROCESSES) {
        fputs("kill_at: too many processes\n", stderr);
        exit(2);
    }
    tracees[n_tracees] = pid;
    return n_tracees++;
}

static void read_text(pid_t pid, unsigned long long address, char out[TEXT])
{
    size_t n = 0;
    for (; n + sizeof(long) < TEXT; n += sizeof(long)) {
        errno = 0;
        const long word = ptrace(PTRACE_PEEKDATA, pid, (void *)(address + n), NULL);
        if (errno != 0)
            break;
        memcpy(out + n, &word, sizeof word);
        if (memchr(&word, 0, sizeof word) != NULL)
            break;
    }
    out[TEXT - 1] = '\0';
    if (n == 0 && address == 0)
        out[0] = '\0';
}

static bool below(const char *path)
{
    return strncmp(path, folder, strlen(folder)) == 0;
}

static bool path_below(pid_t pid, unsigned long long address)
{
    static char text[TEXT];
    memset(text, 0, sizeof text);
    read_text(pid, address, text);
    if (text[0] == '/')
        return below(text);
    char link[64], cwd[TEXT];
    snprintf(link, sizeof link, "/proc/%d/cwd", (int)pid);
    const ssize_t n = readlink(link, cwd, sizeof cwd - 1);
    return n > 0 && (cwd[n] = '\0', below(cwd));
}

static bool file_below(pid_t pid, unsigned long long fd)
{
    char link[64], path[TEXT];
    snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)pid, (int)fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    return n > 0 && (path[n] = '\0', below(path));
}

/* Whether the call that is about to be made changes something below the folder. */
static bool changes(pid_t pid, const struct user_regs_struct *r)
{
    switch (r->orig_rax) {
    case SYS_open:
        return (r->rsi & (O_CREAT | O_TRUNC)) != 0 && path_below(pid, r->rdi);
    case SYS_openat:
        return (r->rdx & (O_CREAT | O_TRUNC | O_TMPFILE)) != 0 && path_below(pid, r->rsi);
    case SYS_mkdir:
    case SYS_rmdir:
    case SYS_unlink:
    case SYS_rename:
        return path_below(pid, r->rdi);
    case SYS_mkdirat:
    case SYS_unlinkat:
        return path_below(pid, r->rsi);
    case SYS_renameat:
    case SYS_renameat2:
    case SYS_linkat:
        return path_below(pid, r->r10);
    case SYS_write:
    case SYS_writev:
    case SYS_pwrite64:
    case SYS_fallocate:
    case SYS_ftruncate:
    case SYS_fsync:
    case SYS_fdatasync:
        return file_below(pid, r->rdi);
    default:
        return false;
    }
}

/* The writer process of an asynchronous save (core/files/checkpoint_async.c). */
static bool is_writer(pid_t pid)
{
    static const char command[] = "assay\0checkpoint-writer";
    char link[64], text[sizeof command] = "";
    snprintf(link, sizeof link, "/proc/%d/cmdline", (int)pid);
    const int fd = open(link, O_RDONLY);
    const ssize_t n = fd >= 0 ? read(fd, text, sizeof text) : 0;
    if (fd >= 0)
        close(fd);
    return n == (ssize_t)sizeof command && memcmp(text, command, sizeof command) == 0;
}

static void kill_them(const char *who, pid_t caller)
{
    for (int i = 0; i < n_tracees; i++)
        if (strcmp(who, "all") == 0 || (strcmp(who, "trainers") == 0 && !is_writer(tracees[i])) ||
            ((strcmp(who, "caller") == 0 || strcmp(who, "writer") == 0) && tracees[i] == caller))
            kill(tracees[i], SIGKILL);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    const long wanted = atol(argv[1]);
    long found = 0;
    bool killed = false;
    int code = -1; /* of the command */
    const char *who = argv[2];
    folder = argv[3];
    const pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        execvp(argv[4], argv + 4);
        _exit(127);
    }
    int status;
    if (waitpid(child, &status, 0) != child ||
        ptrace(PTRACE_SETOPTIONS, child, NULL,
               PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE |
                   PTRACE_O_EXITKILL) != 0) {
        perror("kill_at: ptrace");
        return 2;
    }
    (void)number_of(child);
    ptrace(PTRACE_SYSCALL, child, NULL, NULL);
    for (pid_t pid = waitpid(-1, &status, __WALL); pid > 0; pid = waitpid(-1, &status, __WALL)) {
        const int i = number_of(pid);
        if (pid == child && WIFEXITED(status))
            code = WEXITSTATUS(status);
        if (!WIFSTOPPED(status)) { /* its number may be another process's next */
            tracees[i] = tracees[n_tracees - 1];
            inside[i] = inside[--n_tracees];
            continue;
        }
        const int signal = WSTOPSIG(status);
        int pass = 0;
        if (signal == (SIGTRAP | 0x80)) {
            struct user_regs_struct r;
            inside[i] = !inside[i];
            if (inside[i] && !killed && ptrace(PTRACE_GETREGS, pid, NULL, &r) == 0 && changes(pid, &r) &&
                (strcmp(who, "writer") != 0 || is_writer(pid)) && ++found == wanted) {
                killed = true;
                kill_them(who, pid);
            }
        } else if (signal != SIGTRAP && signal != SIGSTOP) {
            pass = signal;
        }
        ptrace(PTRACE_SYSCALL, pid, NULL, (void *)(long)pass);
    }
    printf("%d %ld\n", code, found);
    return killed ? 0 : 1;
}
