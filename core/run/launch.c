/* Starting ranks on this machine.
 *
 * Each rank is a process group of its own: when a rank ends, whatever it started ends with it; when one dies,
 * the others get SIGTERM and, two seconds later, SIGKILL.  Ranks die with the launcher (PR_SET_PDEATHSIG), so
 * an interrupted run leaves nothing behind. */
#include "core/run/launch.h"

#include "core/base/log.h"
#include "core/model/layout.h"
#include "core/run/launch_output.h"
#include "core/run/launch_port.h"
#include "core/run/launch_process.h"
#include "core/run/stop.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { N_OURS = 10, OURS_BYTES = 320, FDS = 3, TICK_MS = 10 };
#define GRACE_S 2.0 /* between SIGTERM and SIGKILL */
#define DRAIN_S 1.0 /* for output that a process outside the rank's group still holds open */

typedef struct child {
    pid_t pid; /* 0: not started, or reaped */
    int ended; /* readable when the process has ended; -1: none */
    assay_stream streams[2];
    /* environment: ours, then pointers into environ */
    char ours[N_OURS][OURS_BYTES];
    char **envp;
} child;

typedef struct launch {
    const assay_launch_options *o;
    char *const *argv;
    char comm_id[64];
    int port; /* the socket that keeps the port of comm_id for this launch */
    child *children;
    struct pollfd *fds; /* FDS per child */
    FILE *log;
    double start, stop_at; /* stop_at: when SIGTERM was sent, 0 before */
    bool killed;           /* SIGKILL was sent */
    bool asked;            /* SIGINT was passed on */
    assay_launch_result r;
} launch;

/* --- environment of a rank ---------------------------------------------------------------------------------
 */

/* Entry `index` of the comma separated CUDA_VISIBLE_DEVICES that we were given, or the number itself. */
static void visible_device(int index, char *out, size_t capacity)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; list && list[0] != '\0'; i++) {
        const size_t n = strcspn(list, ",");
        if (i == index && n > 0 && n < capacity) {
            snprintf(out, capacity, "%.*s", (int)n, list);
            return;
        }
        list = list[n] == ',' ? list + n + 1 : NULL;
    }
    snprintf(out, capacity, "%d", index);
}

static bool same_variable(const char *a, const char *b)
{
    const size_t n = strcspn(a, "=");
    return strncmp(a, b, n) == 0 && b[n] == '=';
}

static assay_status make_environment(const launch *l, child *c, int rank)
{
    char device[256];
    int n = 0;
    snprintf(c->ours[n++], OURS_BYTES, "ASSAY_RANK=%d", rank);
    snprintf(c->ours[n++], OURS_BYTES, "ASSAY_WORLD_SIZE=%d", l->o->world);
    snprintf(c->ours[n++], OURS_BYTES, "ASSAY_LOCAL_RANK=%d", rank);
    snprintf(c->ours[n++], OURS_BYTES, "ASSAY_LOCAL_WORLD_SIZE=%d", l->o->world);
    snprintf(c->ours[n++], OURS_BYTES, "NCCL_COMM_ID=%s", l->comm_id);
    if (l->o->distinct_nccl_hosts) {
        /* NCCL then takes the ranks for different hosts and goes through sockets, which must meet on lo. */
        snprintf(c->ours[n++], OURS_BYTES, "NCCL_HOSTID=assay-rank-%d", rank);
        snprintf(c->ours[n++], OURS_BYTES, "NCCL_NET=Socket");
        snprintf(c->ours[n++], OURS_BYTES, "NCCL_SOCKET_IFNAME=lo");
    }
    if (l->o->n_devices > 0) {
        visible_device(rank % l->o->n_devices, device, sizeof device);
        snprintf(c->ours[n++], OURS_BYTES, "CUDA_VISIBLE_DEVICES=%s", device);
    }
    /* A kernel that is loaded at its first launch waits for the device, which a collective may hold that waits for this rank. */
    if (l->o->n_devices > 0 && l->o->world > 1 && getenv("CUDA_MODULE_LOADING") == NULL)
        snprintf(c->ours[n++], OURS_BYTES, "CUDA_MODULE_LOADING=EAGER");
    size_t n_inherited = 0;
    while (environ && environ[n_inherited])
        n_inherited++;
    c->envp = calloc(n_inherited + N_OURS + 1, sizeof *c->envp);
    ASSAY_CHECK(c->envp, ASSAY_OUT_OF_MEMORY, "out of memory");
    size_t used = 0;
    for (int i = 0; i < n; i++)
        c->envp[used++] = c->ours[i];
    for (size_t k = 0; k < n_inherited; k++) {
        bool replaced = false;
        for (int i = 0; i < n && !replaced; i++)
            replaced = same_variable(c->ours[i], environ[k]);
        if (!replaced)
            c->envp[used++] = environ[k];
    }
    return ASSAY_OK;
}

/* --- starting ----------------------------------------------------------------------------------------------
 */

static assay_status open_stream(const launch *l, assay_stream *s, int rank, FILE *to, int *write_end)
{
    int ends[2];
    ASSAY_CHECK(pipe(ends) == 0, ASSAY_IO, "rank %d: cannot create a pipe: %s", rank, strerror(errno));
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    *s = (assay_stream){.fd = ends[0],
                        .rank = rank,
                        .to = l->o->quiet ? NULL : to,
                        .log = l->log,
                        .prefix = l->o->prefix_output};
    *write_end = ends[1];
    return ASSAY_OK;
}

static assay_status start_rank(launch *l, int rank)
{
    child *c = &l->children[rank];
    int out = -1, err = -1;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(make_environment(l, c, rank));
    ASSAY_TRY_GOTO(open_stream(l, &c->streams[0], rank, stdout, &out), st, done);
    ASSAY_TRY_GOTO(open_stream(l, &c->streams[1], rank, stderr, &err), st, done);
    const assay_process_start start = {.argv = l->argv, .envp = c->envp, .out = out, .err = err};
    pid_t pid = 0;
    if ((st = assay_process_begin(&start, &pid, &c->ended)) != ASSAY_OK)
        assay_context(st, "rank %d", rank);
    else
        c->pid = pid;
done:
    if (out >= 0)
        close(out);
    if (err >= 0)
        close(err);
    return st;
}

/* --- ending ------------------------------------------------------------------------------------------------
 */

static void signal_all(const launch *l, int signal_number)
{
    for (int rank = 0; rank < l->o->world; rank++)
        if (l->children[rank].pid > 0)
            kill(-l->children[rank].pid, signal_number);
}

static void stop_all(launch *l)
{
    if (l->stop_at > 0.0)
        return;
    l->stop_at = assay_monotonic_s();
    signal_all(l, SIGTERM);
}

/* A signal outranks an exit code when both are found at once: the code is often only the echo of the crash. */
static void note_failure(launch *l, int rank, const siginfo_t *info, bool same_scan)
{
    const bool by_signal = info->si_code != CLD_EXITED;
    if (l->stop_at > 0.0 || (!by_signal && info->si_status == 0))
        return;
    if (l->r.failed_rank >= 0 && !(same_scan && by_signal && l->r.signal == 0))
        return;
    l->r.failed_rank = rank;
    l->r.exit_code = by_signal ? -1 : info->si_status;
    l->r.signal = by_signal ? info->si_status : 0;
}

static void forget_end(child *c)
{
    if (c->ended >= 0)
        close(c->ended);
    c->ended = -1;
}

/* Reaps the ranks that have ended; returns how many still run. */
static int scan(launch *l, bool none_failed)
{
    int n_running = 0;
    for (int rank = 0; rank < l->o->world; rank++) {
        child *c = &l->children[rank];
        siginfo_t info = {0};
        if (c->pid <= 0)
            continue;
        if (waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
            n_running++;
            continue;
        }
        note_failure(l, rank, &info, none_failed);
        /* The zombie still holds its number: its group cannot be anybody else's. */
        kill(-c->pid, SIGKILL);
        waitpid(c->pid, NULL, 0);
        c->pid = 0;
        forget_end(c);
    }
    return n_running;
}

static int reap(launch *l)
{
    const bool none_failed = l->r.failed_rank < 0;
    int n_running = scan(l, none_failed);
    /* A crash that came before the code may be of a rank that the scan had already passed. */
    if (none_failed && l->r.failed_rank >= 0 && l->r.signal == 0)
        n_running = scan(l, true);
    if (l->r.failed_rank >= 0)
        stop_all(l);
    return n_running;
}

static void check_clock(launch *l)
{
    const double now = assay_monotonic_s();
    if (l->stop_at <= 0.0 && l->o->timeout_s > 0.0 && now - l->start >= l->o->timeout_s) {
        l->r.timed_out = true;
        stop_all(l);
    }
    if (l->stop_at > 0.0 && !l->killed && now - l->stop_at >= GRACE_S) {
        l->killed = true;
        signal_all(l, SIGKILL);
    }
}

/* A rank is a group of its own: the terminal's signals come to the launcher alone. */
static void pass_on_signals(launch *l)
{
    if (!l->o->graceful || assay_stop_asked() == 0)
        return;
    if (!l->asked)
        signal_all(l, SIGINT);
    l->asked = true;
    if (assay_stop_asked() > 1)
        stop_all(l);
}

/* One turn: waits for output, or the end of a rank, at most a tick, and forwards it.  Returns how many streams are open. */
static assay_status pump(launch *l, int *n_open)
{
    *n_open = 0;
    for (int rank = 0; rank < l->o->world; rank++) {
        const child *c = &l->children[rank];
        struct pollfd *fds = l->fds + (ptrdiff_t)FDS * rank;
        /* poll passes over negative descriptors. */
        fds[0] = (struct pollfd){.fd = c->streams[0].fd, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = c->streams[1].fd, .events = POLLIN};
        fds[2] = (struct pollfd){.fd = c->ended, .events = POLLIN};
        *n_open += (fds[0].fd >= 0) + (fds[1].fd >= 0);
    }
    const int ready = poll(l->fds, (nfds_t)(FDS * l->o->world), TICK_MS);
    for (int rank = 0; ready > 0 && rank < l->o->world; rank++)
        for (int i = 0; i < 2; i++)
            if (l->fds[FDS * rank + i].fd >= 0 && l->fds[FDS * rank + i].revents)
                ASSAY_TRY(assay_stream_pump(&l->children[rank].streams[i]));
    return ASSAY_OK;
}

static assay_status supervise(launch *l)
{
    double ended_at = 0.0;
    for (;;) {
        int n_open = 0;
        ASSAY_TRY(pump(l, &n_open));
        const int n_running = reap(l);
        check_clock(l);
        pass_on_signals(l);
        if (n_running > 0)
            continue;
        const double now = assay_monotonic_s();
        if (ended_at <= 0.0)
            ended_at = now;
        if (n_open == 0 || now - ended_at > DRAIN_S)
            return ASSAY_OK;
    }
}

/* --- the whole ---------------------------------------------------------------------------------------------
 */

static assay_status check_options(const char *const *argv, const assay_launch_options *o)
{
    struct stat sb;
    ASSAY_CHECK(argv && argv[0], ASSAY_INVALID_ARGUMENT, "launch: no program");
    ASSAY_CHECK(o->world >= 1 && o->world <= ASSAY_MAX_WORLD, ASSAY_INVALID_ARGUMENT,
                "launch: expected 1...%d ranks, found %d", ASSAY_MAX_WORLD, o->world);
    ASSAY_CHECK(o->timeout_s >= 0.0 && o->n_devices >= 0, ASSAY_INVALID_ARGUMENT,
                "launch: the time limit is %g s with %d devices, neither may be negative", o->timeout_s,
                o->n_devices);
    ASSAY_CHECK(stat(argv[0], &sb) == 0 && S_ISREG(sb.st_mode) && access(argv[0], X_OK) == 0, ASSAY_NOT_FOUND,
                "%s: expected an executable program", argv[0]);
    return ASSAY_OK;
}

static void clean_up(launch *l)
{
    for (int rank = 0; l->children && rank < l->o->world; rank++) {
        child *c = &l->children[rank];
        if (c->pid > 0) {
            kill(-c->pid, SIGKILL);
            waitpid(c->pid, NULL, 0);
        }
        forget_end(c);
        assay_stream_close(&c->streams[0]);
        assay_stream_close(&c->streams[1]);
        free(c->envp);
    }
    if (l->log)
        fclose(l->log);
    if (l->port >= 0)
        close(l->port);
    free(l->children);
    free(l->fds);
}

static assay_status prepare(launch *l)
{
    const size_t world = (size_t)l->o->world;
    ASSAY_TRY(assay_launch_port(&l->port, l->comm_id, sizeof l->comm_id));
    l->fds = calloc(FDS * world, sizeof *l->fds);
    l->children = calloc(world, sizeof *l->children);
    ASSAY_CHECK(l->fds && l->children, ASSAY_OUT_OF_MEMORY, "launch: out of memory for %zu ranks", world);
    for (size_t i = 0; i < world; i++)
        l->children[i].ended = l->children[i].streams[0].fd = l->children[i].streams[1].fd = -1;
    if (l->o->log_path) {
        l->log = fopen(l->o->log_path, "ae");
        ASSAY_CHECK(l->log, ASSAY_IO, "%s: cannot open: %s", l->o->log_path, strerror(errno));
    }
    return ASSAY_OK;
}

static assay_status outcome(const launch *l)
{
    const assay_launch_result *r = &l->r;
    if (r->timed_out)
        ASSAY_FAIL(ASSAY_TIMEOUT, "the time limit of %g s is over: all %d ranks were stopped",
                   l->o->timeout_s, l->o->world);
    if (l->asked)
        ASSAY_FAIL(ASSAY_STOPPED, "all %d ranks ended when a signal asked them to", l->o->world);
    if (r->failed_rank < 0)
        return ASSAY_OK;
    if (r->signal != 0)
        ASSAY_FAIL(ASSAY_CHILD, "rank %d died of signal %d (%s)", r->failed_rank, r->signal,
                   strsignal(r->signal));
    ASSAY_FAIL(ASSAY_CHILD, "rank %d exited with code %d", r->failed_rank, r->exit_code);
}

assay_status assay_launch(const char *const *argv, const assay_launch_options *o, assay_launch_result *result)
{
    assay_status st = ASSAY_OK;
    launch l = {.o = o,
                .argv = (char *const *)(uintptr_t)argv,
                .port = -1,
                .start = assay_monotonic_s(),
                .r = {.failed_rank = -1, .exit_code = -1}};
    if (result)
        *result = l.r;
    ASSAY_TRY(check_options(argv, o));
    fflush(NULL); /* so that our own text keeps its place among that of the ranks */
    ASSAY_TRY_GOTO(prepare(&l), st, done);
    if (o->graceful)
        assay_stop_catch();
    for (int rank = 0; rank < o->world; rank++)
        ASSAY_TRY_GOTO(start_rank(&l, rank), st, done);
    ASSAY_TRY_GOTO(supervise(&l), st, done);
    l.r.wall_s = assay_monotonic_s() - l.start;
    if (l.r.failed_rank < 0)
        l.r.exit_code = l.r.timed_out ? -1 : 0;
    st = outcome(&l);
done:
    clean_up(&l);
    if (result)
        *result = l.r;
    return st;
}

assay_status assay_sibling_program(const char *name, char *out, uint64_t capacity)
{
    char self[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    ASSAY_CHECK(n > 0, ASSAY_IO, "/proc/self/exe: cannot read: %s", strerror(errno));
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    ASSAY_CHECK(slash && !strchr(name, '/'), ASSAY_INVALID_ARGUMENT, "'%s': expected a plain program name",
                name);
    const int length = snprintf(out, capacity, "%.*s/%s", (int)(slash - self), self, name);
    ASSAY_CHECK(length > 0 && (uint64_t)length < capacity, ASSAY_LIMIT, "%s: the path is too long", name);
    ASSAY_CHECK(access(out, X_OK) == 0, ASSAY_NOT_FOUND, "%s: expected an executable program beside %s", out,
                self);
    return ASSAY_OK;
}
