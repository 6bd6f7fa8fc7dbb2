/* How the ranks of a communicator find its shared memory, without a name in any file system.
 *
 * The first rank binds an abstract unix socket that is named after the user and the communicator's id, makes the segment as
 * a sealed memfd and hands it to every other rank, from a thread that serves until all ranks have come.  The name and the
 * memory vanish with the processes, however they end.  Both sides ask the kernel who the other is (SO_PEERCRED) and deal
 * with their own user only; the size and the seals of what comes are checked before it is mapped.  The thread alone gives
 * out the ranks' places, one caller after the other, so that no lock is needed; before it lets the last one go on it closes
 * the socket, and the id can be used again. */
#include "nccl_shm.hpp"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <thread>
#include <time.h>
#include <unistd.h>

namespace sim
{

constexpr double caller_limit_s = 5; /* a caller that says nothing holds up the others no longer */
constexpr uint32_t join_magic = 0x61736d35;
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct join_request {
    uint32_t magic;
    int32_t rank, ranks, pid;
    uint64_t id, born;
};

struct join_reply { /* with the memfd, when code is ncclSuccess */
    uint32_t magic;
    int32_t code;
    char why[160];
};

struct segment_server {
    std::thread thread;
    int listener = -1, memory = -1, stop = -1;
    segment shape; /* the same mapping as the first rank's */
};

/* --- sockets ---------------------------------------------------------------------------------------------------------- */

static ncclResult_t fail(std::string *why, const char *what, const std::string &name)
{
    *why = std::string(what) + " " + name + ": " + strerror(errno);
    return ncclSystemError;
}

static socklen_t address_of(const std::string &name, struct sockaddr_un *a)
{
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX; /* a name that begins with a NUL is abstract: it lives as long as the socket */
    memcpy(a->sun_path + 1, name.data(), name.size());
    return static_cast<socklen_t>(offsetof(struct sockaddr_un, sun_path) + 1 + name.size());
}

static void set_limits(int fd, double seconds)
{
    struct timeval t = {};
    t.tv_sec = static_cast<time_t>(seconds);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}

static bool peer_is_mine(int fd, struct ucred *who)
{
    socklen_t n = sizeof *who;
    *who = {};
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, who, &n) == 0 && who->uid == geteuid();
}

static bool send_reply(int fd, const join_reply &reply, int memory)
{
    struct iovec io = {const_cast<join_reply *>(&reply), sizeof reply};
    alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    struct msghdr m = {};
    m.msg_iov = &io;
    m.msg_iovlen = 1;
    if (memory >= 0) {
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &memory, sizeof memory);
    }
    return sendmsg(fd, &m, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof reply);
}

/* The bytes that came; 0 when the other side has gone. */
static ssize_t receive_reply(int fd, join_reply *reply, int *memory)
{
    struct iovec io = {reply, sizeof *reply};
    alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    struct msghdr m = {};
    m.msg_iov = &io;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    *memory = -1;
    const ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_WAITALL);
    const struct cmsghdr *c = n < 0 ? nullptr : CMSG_FIRSTHDR(&m);
    if (c != nullptr && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int))) {
        memcpy(memory, CMSG_DATA(c), sizeof *memory);
    }
    reply->why[sizeof reply->why - 1] = '\0';
    return n < 0 && errno == ECONNRESET ? 0 : n;
}

/* --- the first rank ----------------------------------------------------------------------------------------------------- */

static void take_slot(const segment &s, int rank, int pid, uint64_t born)
{
    s.slots[rank].pid = pid;
    s.slots[rank].born = born;
    s.slots[rank].state = RANK_PRESENT;
    s.head->attached.fetch_add(1);
}

static bool complete(const segment &s)
{
    return s.head->attached.load() == static_cast<uint32_t>(s.head->ranks);
}

/* Decides about one caller; true: it has a place and the memory. */
static bool admit(const segment_server &v, int fd)
{
    const segment &s = v.shape;
    struct ucred who;
    join_request ask = {};
    join_reply reply = {join_magic, ncclInvalidUsage, ""};
    set_limits(fd, caller_limit_s);
    if (!peer_is_mine(fd, &who) ||
        recv(fd, &ask, sizeof ask, MSG_WAITALL) != static_cast<ssize_t>(sizeof ask) ||
        ask.magic != join_magic || ask.id != s.head->id) {
        return false;
    }
    if (ask.ranks != s.head->ranks) {
        snprintf(reply.why, sizeof reply.why, "rank %d says %d ranks, the first to come said %d", ask.rank,
                 ask.ranks, s.head->ranks);
    } else if (ask.rank < 0 || ask.rank >= ask.ranks) {
        snprintf(reply.why, sizeof reply.why, "rank %d of %d", ask.rank, ask.ranks);
    } else if (s.slots[ask.rank].state != RANK_ABSENT) {
        snprintf(reply.why, sizeof reply.why, "rank %d is taken by process %d", ask.rank,
                 s.slots[ask.rank].pid.load());
    } else {
        reply.code = ncclSuccess;
    }
    if (reply.code != ncclSuccess) {
        send_reply(fd, reply, -1);
        return false;
    }
    take_slot(s, ask.rank, ask.pid, ask.born);
    if (!send_reply(fd, reply, v.memory)) { /* it has gone */
        s.slots[ask.rank].state = RANK_ABSENT;
        s.head->attached.fetch_sub(1);
        return false;
    }
    return true;
}

static void serve(segment_server *v)
{
    struct pollfd wait[2] = {{v->listener, POLLIN, 0}, {v->stop, POLLIN, 0}};
    while (!complete(v->shape)) {
        if (poll(wait, 2, -1) < 0 && errno != EINTR) {
            break;
        }
        if (wait[1].revents != 0) {
            break;
        }
        if ((wait[0].revents & POLLIN) == 0) {
            continue;
        }
        const int fd = accept4(v->listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd >= 0) {
            if (admit(*v, fd)) {
                v->shape.ring_all();
            }
            close(fd);
        }
    }
    close(v->listener);
    close(v->memory);
    v->listener = v->memory = -1;
    if (complete(v->shape)) {
        v->shape.head->ready = 1; /* the name is free before anyone returns */
        v->shape.ring_all();
    }
}

static ncclResult_t open_segment(segment *s, int listener, uint64_t id, int ranks, int rank, std::string *why)
{
    segment shape;
    segment_layout(&shape, nullptr, ranks);
    segment_server *v = new segment_server{};
    v->listener = listener;
    v->memory = memfd_create("assay-sim-nccl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    v->stop = eventfd(0, EFD_CLOEXEC);
    void *base = MAP_FAILED;
    if (v->memory >= 0 && v->stop >= 0 && ftruncate(v->memory, static_cast<off_t>(shape.bytes)) == 0 &&
        fcntl(v->memory, F_ADD_SEALS, seals) == 0) {
        base = mmap(nullptr, shape.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, v->memory, 0);
    }
    if (base == MAP_FAILED || listen(listener, max_ranks) != 0) {
        fail(why, "shared memory for", s->name);
        if (base != MAP_FAILED) {
            munmap(base, shape.bytes);
        }
        for (int fd : {v->memory, v->stop, listener}) {
            if (fd >= 0) {
                close(fd);
            }
        }
        delete v;
        return ncclSystemError;
    }
    segment_layout(s, base, ranks);
    s->head->ranks = ranks;
    s->head->id = id;
    v->shape = *s;
    take_slot(*s, rank, getpid(), process_born());
    s->server = v;
    if (complete(*s)) {
        serve(v);
        return ncclSuccess;
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
    v->thread = std::thread(serve, v);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return ncclSuccess;
}

/* --- the others --------------------------------------------------------------------------------------------------------- */

/* JOIN_AGAIN: the socket's owner has gone, or is not ready. */
enum join_result { JOIN_DONE, JOIN_AGAIN, JOIN_REFUSED };

static join_result take_segment(segment *s, int memory, uint64_t id, int ranks, std::string *why)
{
    struct stat st;
    segment shape;
    segment_layout(&shape, nullptr, ranks);
    if (fstat(memory, &st) != 0 || static_cast<size_t>(st.st_size) != shape.bytes || st.st_uid != geteuid() ||
        (fcntl(memory, F_GET_SEALS) & seals) != seals) {
        char text[200];
        snprintf(text, sizeof text,
                 "the memory from %s has %lld bytes of user %u, expected %zu sealed ones of user %u",
                 s->name.c_str(), static_cast<long long>(st.st_size), st.st_uid, shape.bytes, geteuid());
        *why = text;
        return JOIN_REFUSED;
    }
    void *base = mmap(nullptr, shape.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (base == MAP_FAILED) {
        fail(why, "mmap", s->name);
        return JOIN_REFUSED;
    }
    segment_layout(s, base, ranks);
    if (s->head->id != id || s->head->ranks != ranks) {
        *why = "the memory from " + s->name + " is another communicator's";
        segment_leave(s);
        return JOIN_REFUSED;
    }
    return JOIN_DONE;
}

static join_result connect_segment(segment *s, int fd, const join_request &ask, std::string *why,
                                   ncclResult_t *code)
{
    struct sockaddr_un address;
    const socklen_t length = address_of(s->name, &address);
    struct ucred who;
    join_reply reply = {};
    int memory;
    *code = ncclSystemError;
    set_limits(fd, config().nccl_timeout_s);
    if (connect(fd, reinterpret_cast<const struct sockaddr *>(&address), length) != 0) {
        if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) {
            return JOIN_AGAIN;
        }
        fail(why, "connect", s->name);
        return JOIN_REFUSED;
    }
    if (!peer_is_mine(fd, &who)) {
        char text[160];
        snprintf(text, sizeof text, "%s belongs to process %d of user %u, expected user %u", s->name.c_str(),
                 who.pid, who.uid, geteuid());
        *why = text;
        return JOIN_REFUSED;
    }
    if (send(fd, &ask, sizeof ask, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof ask)) {
        return JOIN_AGAIN;
    }
    const ssize_t came = receive_reply(fd, &reply, &memory);
    join_result r = came == 0 ? JOIN_AGAIN : JOIN_REFUSED;
    if (came != static_cast<ssize_t>(sizeof reply) || reply.magic != join_magic) {
        char text[160];
        snprintf(text, sizeof text, "%s: process %d does not answer as a rank does", s->name.c_str(),
                 who.pid);
        *why = text;
    } else if (reply.code != ncclSuccess) {
        *code = static_cast<ncclResult_t>(reply.code);
        *why = reply.why;
    } else if (memory >= 0) {
        r = take_segment(s, memory, ask.id, ask.ranks, why);
    } else {
        *why = s->name + ": no memory came with the answer";
    }
    if (memory >= 0) {
        close(memory);
    }
    return r;
}

ncclResult_t segment_join(segment *s, uint64_t id, int ranks, int rank, std::string *why)
{
    char name[80];
    struct sockaddr_un address;
    const join_request ask = {join_magic, rank, ranks, getpid(), id, process_born()};
    const double since = now_seconds();
    snprintf(name, sizeof name, "assay-sim-nccl-%u-%016llx", static_cast<unsigned>(geteuid()),
             static_cast<unsigned long long>(id));
    s->name = name;
    const socklen_t length = address_of(s->name, &address);
    *why = "nobody answers at " + s->name;
    while (now_seconds() - since < config().nccl_timeout_s) {
        ncclResult_t code = ncclSystemError;
        const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            return fail(why, "socket", s->name);
        }
        if (bind(fd, reinterpret_cast<const struct sockaddr *>(&address), length) == 0) {
            return open_segment(s, fd, id, ranks, rank, why);
        }
        if (errno != EADDRINUSE) {
            close(fd);
            return fail(why, "bind", s->name);
        }
        const join_result r = connect_segment(s, fd, ask, why, &code);
        close(fd);
        if (r != JOIN_AGAIN) {
            return r == JOIN_DONE ? ncclSuccess : code;
        }
        const struct timespec pause = {0, 1000 * 1000};
        nanosleep(&pause, nullptr);
    }
    return ncclSystemError;
}

void segment_close(const segment &s)
{
    const uint64_t one = 1;
    if (s.server != nullptr) {
        const ssize_t ignored = write(s.server->stop, &one, sizeof one);
        (void)ignored;
    }
}

void segment_leave(segment *s)
{
    if (s->server != nullptr) {
        segment_close(*s);
        if (s->server->thread.joinable()) {
            s->server->thread.join();
        }
        close(s->server->stop);
        delete s->server;
        s->server = nullptr;
    }
    if (s->base != nullptr) {
        munmap(s->base, s->bytes);
    }
    s->base = nullptr;
}

} /* namespace sim */
