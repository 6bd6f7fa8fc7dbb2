/* Ranks meet without leaving anything behind, and do not trust whom they meet. */
#include "tests/support/sim_ranks.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

static void pause_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static bool name_is_bound(const char *name)
{
    char line[512];
    bool found = false;
    FILE *f = fopen("/proc/net/unix", "r");
    cr_assert_not_null(f);
    while (!found && fgets(line, sizeof line, f) != NULL) {
        found = strstr(line, name) != NULL;
    }
    fclose(f);
    return found;
}

static int one_of_two(int rank, int ranks, ncclUniqueId id, void *arg)
{
    ncclComm_t comm;
    (void)ranks;
    (void)arg;
    setenv("ASSAY_SIM_NCCL_TIMEOUT_S", "1", 1);
    return ncclCommInitRank(&comm, 2, id, rank) == ncclSystemError ? 0 : 1;
}

/* An id that no other test of this machine has. */
static void take_id(int number)
{
    char address[64];
    snprintf(address, sizeof address, "127.0.%d.1:%d", number, 1024 + (int)getpid() % 60000);
    setenv("NCCL_COMM_ID", address, 1);
}

/* The name under which the ranks of the present NCCL_COMM_ID meet: the report of a rank that waits in vain has the id. */
static void learn_name(char *name, size_t bytes)
{
    char log[8192];
    int code;
    run_ranks_logged(1, one_of_two, NULL, &code, log, sizeof log);
    const char *at = strstr(log, "communicator ");
    cr_assert(code == 0 && at != NULL, "%s", log);
    snprintf(name, bytes, "assay-sim-nccl-%u-%.16s", (unsigned)geteuid(), at + strlen("communicator "));
}

static int join_and_add(int rank, int ranks, ncclUniqueId id, void *arg)
{
    ncclComm_t comm;
    float *d, h = (float)(rank + 1);
    (void)arg;
    RANK_CHECK(ncclCommInitRank(&comm, ranks, id, rank) == ncclSuccess);
    RANK_CHECK(cudaMalloc((void **)&d, sizeof h) == cudaSuccess);
    RANK_CHECK(cudaMemcpy(d, &h, sizeof h, cudaMemcpyHostToDevice) == cudaSuccess);
    RANK_CHECK(ncclAllReduce(d, d, 1, ncclFloat, ncclSum, comm, NULL) == ncclSuccess);
    RANK_CHECK(cudaMemcpy(&h, d, sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess);
    RANK_CHECK(h == (float)(ranks * (ranks + 1) / 2));
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
    return 0;
}

/* 100 jobs with one id, killed at moments of their first 100 ms: nothing is left, and the next job is unharmed. */
Test(sim_nccl_join, killed_jobs_leave_nothing_behind, .timeout = 300)
{
    take_id(0);
    unsigned draw = 12345;
    char name[128];
    learn_name(name, sizeof name);
    for (int k = 0; k < 100; ++k) {
        ncclUniqueId id;
        pid_t pid[3];
        cr_assert(ncclGetUniqueId(&id) == ncclSuccess);
        for (int r = 0; r < 3; ++r) {
            pid[r] = fork();
            if (pid[r] == 0) {
                for (;;) {
                    if (join_and_add(r, 3, id, NULL) != 0) {
                        _exit(1);
                    }
                }
            }
        }
        draw = draw * 1664525u + 1013904223u;
        pause_ms((int)(draw >> 16) % 100);
        for (int r = 0; r < 3; ++r) {
            kill(pid[r], draw >> 12 & 1 ? SIGKILL : SIGTERM);
        }
        for (int r = 0; r < 3; ++r) {
            waitpid(pid[r], NULL, 0);
        }
        cr_assert(!name_is_bound(name), "kill %d left @%s", k, name);
    }
    run_ranks(3, join_and_add, NULL);
}

/* What somebody who is no rank does with the name. */
enum impostor {
    IMPOSTOR_SILENT,
    IMPOSTOR_CLOSES,
    IMPOSTOR_TALKS,
    IMPOSTOR_SHORT_MEMORY,
    IMPOSTOR_OTHER_USER
};

static int listen_as(const char *name)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    memcpy(a.sun_path + 1, name, strlen(name));
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    const socklen_t n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    return bind(fd, (struct sockaddr *)&a, n) == 0 && listen(fd, 8) == 0 ? fd : -1;
}

static void send_short_memory(int fd)
{
    struct {
        unsigned magic;
        int code;
        char why[160];
    } reply = {0x61736d35, 0, ""};
    struct iovec io = {&reply, sizeof reply};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr m = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    FILE *file = tmpfile();
    const int memory = fileno(file);
    memset(&control, 0, sizeof control);
    if (ftruncate(memory, 4096) == 0) {
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &memory, sizeof memory);
        sendmsg(fd, &m, MSG_NOSIGNAL);
    }
    fclose(file);
}

static pid_t impostor_start(const char *name, enum impostor kind)
{
    int ready[2];
    char byte = 0;
    cr_assert(pipe(ready) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        if (kind == IMPOSTOR_OTHER_USER && (setgid(65534) != 0 || setuid(65534) != 0)) {
            _exit(3);
        }
        const int l = listen_as(name);
        if (l < 0 || write(ready[1], "r", 1) != 1) {
            _exit(3);
        }
        for (;;) {
            char ask[4096];
            const int fd = accept(l, NULL, NULL);
            if (kind == IMPOSTOR_CLOSES) {
                close(fd);
                continue;
            }
            if (recv(fd, ask, sizeof ask, 0) <= 0) {
                continue;
            }
            if (kind == IMPOSTOR_TALKS) {
                memset(ask, 'x', 168);
                send(fd, ask, 168, MSG_NOSIGNAL);
            } else if (kind == IMPOSTOR_SHORT_MEMORY) {
                send_short_memory(fd);
            }
        }
    }
    close(ready[1]);
    cr_assert(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    return pid;
}

static int expect_refused(int rank, int ranks, ncclUniqueId id, void *arg)
{
    ncclComm_t comm;
    (void)arg;
    return ncclCommInitRank(&comm, ranks, id, rank) == ncclSystemError ? 0 : 1;
}

Test(sim_nccl_join, who_is_no_rank_of_this_user_is_refused_in_time)
{
    static const struct {
        enum impostor kind;
        const char *says;
    } rows[] = {{IMPOSTOR_SILENT, "does not answer as a rank does"},
                {IMPOSTOR_CLOSES, "answer"},
                {IMPOSTOR_TALKS, "does not answer as a rank does"},
                {IMPOSTOR_SHORT_MEMORY, "has 4096 bytes of user"},
                {IMPOSTOR_OTHER_USER, "of user 65534, expected user"}};
    setenv("ASSAY_SIM_NCCL_TIMEOUT_S", "1", 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        if (rows[i].kind == IMPOSTOR_OTHER_USER && geteuid() != 0) {
            cr_log_warn("not root: another user's name is not tried");
            continue;
        }
        char name[128], log[8192];
        int code;
        take_id(1 + (int)i);
        learn_name(name, sizeof name);
        const pid_t impostor = impostor_start(name, rows[i].kind);
        const time_t since = time(NULL);
        run_ranks_logged(1, expect_refused, NULL, &code, log, sizeof log);
        kill(impostor, SIGKILL);
        waitpid(impostor, NULL, 0);
        cr_expect(code == 0 && strstr(log, rows[i].says) != NULL, "row %zu: code %d, %s", i, code, log);
        cr_expect(time(NULL) - since < 20);
    }
}
