/* Collectives and messages as stream work: stepped without blocking until all ranks have done their part.
 *
 * Collectives proceed in rounds.  In round k every rank offers data in its buffer k % 2 together with the
 * call it is in; when all have offered, the calls are compared and the data is read.  A buffer is used again
 * when everybody has read the round before last. An all-reduce of a chunk is two rounds: everybody reduces
 * its share of the chunk, then the shares are gathered; a short one is a single round.  Either way each
 * element is reduced in rank order. Messages go through a queue of two buffers per ordered pair; a send ends
 * when the receiver has taken everything, so that an order of sends and receives that would hang on a GPU
 * hangs, and is reported, here. */
#include "nccl_comm.hpp"

#include <string.h>
#include <unistd.h>

namespace sim
{

constexpr size_t direct_bytes = 8192; /* all-reduces up to this size take one round */

static thread_local std::string last_error_text;

void nccl_remember(const std::string &text)
{
    last_error_text = text;
}

extern "C" const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return last_error_text.c_str();
}

void nccl_fail(ncclComm *comm, ncclResult_t code, const std::string &text)
{
    int32_t none = 0;
    nccl_remember(text);
    comm->async_error = code;
    if (comm->shm.head->error.compare_exchange_strong(none, code)) {
        const ssize_t ignored = write(STDERR_FILENO, text.data(), text.size());
        (void)ignored;
    }
    comm->shm.ring_all();
}

ncclResult_t nccl_error(ncclComm *comm)
{
    const int theirs = comm->shm.head->error;
    if (comm->async_error == ncclSuccess && theirs != 0) {
        comm->async_error = theirs;
    }
    return static_cast<ncclResult_t>(comm->async_error.load());
}

void nccl_release(ncclComm *comm)
{
    if (comm->uses.fetch_sub(1) == 1) {
        nccl_order_leave(comm);
        segment_leave(&comm->shm);
        nccl_forget_factors(comm);
        delete comm;
    }
}

/* --- rounds ------------------------------------------------------------------------------------------------- */

static bool all_reached(const ncclComm *c, std::atomic<uint64_t> rank_slot::*counter, uint64_t value)
{
    for (int r = 0; r < c->ranks; ++r) {
        if ((c->shm.slot(r).*counter).load() < value) {
            return false;
        }
    }
    return true;
}

/* A rank that finds no room says so and looks again: either it sees what the others have read since, or they see that it waits. */
static bool may_post(const ncclComm *c)
{
    if (c->round == 0 || all_reached(c, &rank_slot::consumed, c->round - 1)) {
        return true;
    }
    c->shm.head->cramped = 1;
    return all_reached(c, &rank_slot::consumed, c->round - 1);
}

static void post(ncclComm *c, nccl_task &t)
{
    rank_slot &me = c->shm.slot(c->rank);
    me.call[c->round & 1] = t.call;
    me.posted.store(c->round + 1);
    if (all_reached(c, &rank_slot::posted, c->round + 1)) {
        c->shm.ring_all(); /* of two that are the last at the same time, one at least sees it */
    }
    t.posted = true;
}

static void round_done(ncclComm *c, nccl_task &t)
{
    ++c->round;
    c->shm.slot(c->rank).consumed.store(c->round);
    if (c->shm.head->cramped.exchange(0) != 0) {
        c->shm.ring_all();
    }
    t.posted = false;
}

/* All ranks have posted this round: are they in the same call? */
static bool calls_agree(ncclComm *c)
{
    const nccl_call &mine = c->shm.slot(c->rank).call[c->round & 1];
    for (int r = 0; r < c->ranks; ++r) {
        if (memcmp(&mine, &c->shm.slot(r).call[c->round & 1], sizeof mine) != 0) {
            std::string text = nccl_table(c->shm, "the ranks do not make the same call");
            for (int q = 0; q < c->ranks; ++q) {
                text += "assay-sim:   rank " + std::to_string(q) + " called " +
                        nccl_describe(c->shm.slot(q).call[c->round & 1]) + "\n";
            }
            nccl_fail(c, ncclInvalidUsage, text);
            return false;
        }
    }
    return true;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Elements of the current chunk. */
static size_t chunk_elements(const ncclComm *c, const nccl_task &t)
{
    size_t most = stage_bytes / nccl_type_bytes(t.call.type);
    if (t.call.func == NCCL_REDUCE_SCATTER) {
        most /= static_cast<size_t>(c->ranks);
    }
    return least(most, t.call.count - t.offset);
}

static size_t share(size_t n, int r, int ranks)
{
    return n * static_cast<size_t>(r) / static_cast<size_t>(ranks);
}

static bool direct(const nccl_task &t)
{
    return t.call.count * nccl_type_bytes(t.call.type) <= direct_bytes;
}

/* What this rank lays into its buffer is multiplied there. */
static void multiply(const nccl_task &t, unsigned char *to, size_t n)
{
    if (t.factor.given) {
        nccl_scale_elements(to, n, t.call.type, t.factor.at != nullptr ? t.factor.at : t.factor.value);
    }
}

/* Puts this round's data into the own buffer. */
static void offer(ncclComm *c, const nccl_task &t)
{
    const size_t e = nccl_type_bytes(t.call.type), n = chunk_elements(c, t);
    unsigned char *to = c->shm.buffer(c->rank, c->round);
    switch (t.call.func) {
    case NCCL_ALL_REDUCE:
        if (t.gathering) {
            const size_t from = share(n, c->rank, c->ranks), end = share(n, c->rank + 1, c->ranks);
            memcpy(to, t.recv + (t.offset + from) * e, (end - from) * e);
            return;
        }
        break;
    case NCCL_BROADCAST:
        if (c->rank != t.call.root) {
            return;
        }
        break;
    case NCCL_REDUCE_SCATTER:
        for (int r = 0; r < c->ranks && n > 0; ++r) {
            memcpy(to + static_cast<size_t>(r) * n * e,
                   t.send + (static_cast<size_t>(r) * t.call.count + t.offset) * e, n * e);
        }
        multiply(t, to, static_cast<size_t>(c->ranks) * n);
        return;
    default:
        break;
    }
    if (n > 0) {
        memcpy(to, t.send + t.offset * e, n * e);
        multiply(t, to, n);
    }
}

static void reduce_from_all(ncclComm *c, const nccl_task &t, unsigned char *out, size_t at, size_t n)
{
    const void *in[max_ranks];
    for (int r = 0; r < c->ranks; ++r) {
        in[r] = c->shm.buffer(r, c->round) + at * nccl_type_bytes(t.call.type);
    }
    nccl_reduce_elements(out, in, c->ranks, n, t.call.type, t.call.op);
}

/* Reads what this round brought; true when the chunk is complete. */
static bool take(ncclComm *c, nccl_task &t)
{
    const size_t e = nccl_type_bytes(t.call.type), n = chunk_elements(c, t);
    if (n == 0) {
        return true;
    }
    switch (t.call.func) {
    case NCCL_ALL_REDUCE:
        if (direct(t)) {
            reduce_from_all(c, t, t.recv + t.offset * e, 0, n);
        } else if (!t.gathering) {
            const size_t from = share(n, c->rank, c->ranks), end = share(n, c->rank + 1, c->ranks);
            reduce_from_all(c, t, t.recv + (t.offset + from) * e, from, end - from);
            t.gathering = true;
            return false;
        } else {
            for (int r = 0; r < c->ranks; ++r) {
                const size_t from = share(n, r, c->ranks), end = share(n, r + 1, c->ranks);
                if (r != c->rank) {
                    memcpy(t.recv + (t.offset + from) * e, c->shm.buffer(r, c->round), (end - from) * e);
                }
            }
            t.gathering = false;
        }
        break;
    case NCCL_REDUCE:
        if (c->rank == t.call.root) {
            reduce_from_all(c, t, t.recv + t.offset * e, 0, n);
        }
        break;
    case NCCL_BROADCAST:
        if (c->rank != t.call.root || t.recv != t.send) {
            memcpy(t.recv + t.offset * e, c->shm.buffer(t.call.root, c->round), n * e);
        }
        break;
    case NCCL_ALL_GATHER:
        for (int r = 0; r < c->ranks; ++r) {
            memcpy(t.recv + (static_cast<size_t>(r) * t.call.count + t.offset) * e,
                   c->shm.buffer(r, c->round), n * e);
        }
        break;
    default:
        reduce_from_all(c, t, t.recv + t.offset * e, static_cast<size_t>(c->rank) * n, n);
    }
    return true;
}

static void note_running(ncclComm *c, const nccl_call &call)
{
    c->shm.slot(c->rank).running.set(call);
}

static void note_finished(ncclComm *c)
{
    rank_slot &me = c->shm.slot(c->rank);
    me.running.set(nccl_call{});
    me.finished.fetch_add(1);
}

/* What a finished call has read and written here, of its stream's work. */
static void touch(const ncclComm *c, const nccl_task &t)
{
    const size_t bytes = t.call.count * nccl_type_bytes(t.call.type),
                 all = bytes * static_cast<size_t>(c->ranks);
    const int32_t f = t.call.func;
    const bool root = c->rank == t.call.root;
    if (f != NCCL_RECV && !(f == NCCL_BROADCAST && !root))
        race_range(t.send, f == NCCL_REDUCE_SCATTER ? all : bytes, false);
    if (f == NCCL_SEND || (f == NCCL_REDUCE && !root) || (f == NCCL_BROADCAST && root && t.recv == t.send))
        return;
    const size_t before = static_cast<size_t>(c->rank) * bytes;
    if (f == NCCL_ALL_GATHER && t.send == t.recv + before) { /* in place: its own part lies there already */
        race_range(t.recv, before, true);
        race_range(t.recv + before + bytes, all - before - bytes, true);
    } else {
        race_range(t.recv, f == NCCL_ALL_GATHER ? all : bytes, true);
    }
}

/* One attempt; true when something moved. */
static bool collective_step(ncclComm *c, nccl_task &t)
{
    bool moved = false;
    if (!t.started) {
        t.started = true;
        note_running(c, t.call);
    }
    for (;;) {
        if (!t.posted) {
            if (!may_post(c)) {
                return moved;
            }
            offer(c, t);
            post(c, t);
            moved = true;
        }
        if (!all_reached(c, &rank_slot::posted, c->round + 1)) {
            return moved;
        }
        if (!calls_agree(c)) {
            return true;
        }
        const size_t n = chunk_elements(c, t);
        const bool complete = take(c, t);
        round_done(c, t);
        moved = true;
        if (complete) {
            t.offset += n;
            if (t.offset == t.call.count) {
                t.finished = true;
                touch(c, t);
                note_finished(c);
                return true;
            }
        }
    }
}

/* --- messages ----------------------------------------------------------------------------------------------- */

static bool send_step(ncclComm *c, nccl_task &t)
{
    pair_channel &ch = c->shm.channel(c->rank, t.call.root);
    const size_t bytes = t.call.count * nccl_type_bytes(t.call.type);
    bool moved = false;
    for (;;) {
        const uint64_t sent = ch.sent.load(std::memory_order_relaxed);
        const uint64_t received = ch.received.load(std::memory_order_acquire);
        if (t.offset == bytes) {
            if (received == sent) {
                t.finished = moved = true;
            }
            return moved;
        }
        if (sent - received == 2) {
            return moved;
        }
        const size_t n = least(c->shm.pair_bytes, bytes - t.offset);
        memcpy(c->shm.pair_buffer(c->rank, t.call.root, sent), t.send + t.offset, n);
        ch.call[sent & 1] = t.call;
        ch.bytes[sent & 1] = n;
        t.offset += n;
        ch.sent.store(sent + 1, std::memory_order_release);
        c->shm.ring(t.call.root);
        moved = true;
    }
}

static bool messages_agree(ncclComm *c, const nccl_task &t, const nccl_call &theirs)
{
    if (theirs.count == t.call.count && theirs.type == t.call.type) {
        return true;
    }
    std::string text = nccl_table(c->shm, "a receive does not match its send");
    text += "assay-sim:   rank " + std::to_string(t.call.root) + " called " + nccl_describe(theirs) + "\n";
    text += "assay-sim:   rank " + std::to_string(c->rank) + " called " + nccl_describe(t.call) + "\n";
    nccl_fail(c, ncclInvalidUsage, text);
    return false;
}

static bool recv_step(ncclComm *c, nccl_task &t)
{
    pair_channel &ch = c->shm.channel(t.call.root, c->rank);
    const size_t bytes = t.call.count * nccl_type_bytes(t.call.type);
    bool moved = false;
    while (t.offset < bytes) {
        const uint64_t received = ch.received.load(std::memory_order_relaxed);
        if (ch.sent.load(std::memory_order_acquire) == received) {
            return moved;
        }
        if (!messages_agree(c, t, ch.call[received & 1])) {
            return true;
        }
        const size_t n = least(ch.bytes[received & 1], bytes - t.offset);
        memcpy(t.recv + t.offset, c->shm.pair_buffer(t.call.root, c->rank, received), n);
        t.offset += n;
        ch.received.store(received + 1, std::memory_order_release);
        c->shm.ring(t.call.root);
        moved = true;
    }
    t.finished = true;
    return true;
}

/* Messages of one direction to one peer go in order; everything else goes at once. */
static bool messages_step(ncclComm *c, std::vector<nccl_task> &tasks)
{
    std::vector<char> sending(static_cast<size_t>(c->ranks), 0), receiving(static_cast<size_t>(c->ranks), 0);
    bool moved = false;
    for (nccl_task &t : tasks) {
        if (t.finished) {
            continue;
        }
        std::vector<char> &busy = t.call.func == NCCL_SEND ? sending : receiving;
        if (busy[static_cast<size_t>(t.call.root)]) {
            continue;
        }
        if (!t.started) {
            t.started = true;
            note_running(c, t.call);
        }
        moved |= t.call.func == NCCL_SEND ? send_step(c, t) : recv_step(c, t);
        if (t.finished) {
            touch(c, t);
            note_finished(c);
        } else {
            busy[static_cast<size_t>(t.call.root)] = 1;
        }
    }
    return moved;
}

/* --- the work ----------------------------------------------------------------------------------------------- */

static bool all_finished(const nccl_work &w)
{
    for (const nccl_task &t : w.messages) {
        if (!t.finished) {
            return false;
        }
    }
    return w.current == w.collectives.size();
}

/* Does this work wait for rank r right now? */
static bool waits_for(const nccl_work &w, int r)
{
    const ncclComm *c = w.comm;
    if (w.current < w.collectives.size()) {
        const rank_slot &s = c->shm.slot(r);
        const bool posted = w.collectives[w.current].posted;
        if (posted ? s.posted <= c->round : c->round > 0 && s.consumed < c->round - 1) {
            return true;
        }
    }
    for (const nccl_task &t : w.messages) {
        if (!t.finished && t.call.root == r) {
            return true;
        }
    }
    return false;
}

static std::string waited_for(const nccl_work &w)
{
    std::string who;
    for (int r = 0; r < w.comm->ranks; ++r) {
        if (r != w.comm->rank && waits_for(w, r)) {
            who += (who.empty() ? "" : ", ") + std::to_string(r);
        }
    }
    return who;
}

/* Peers that can never come end the wait: a dead process at once, silence after the time limit. */
static void look_around(nccl_work &w, double now)
{
    ncclComm *c = w.comm;
    const int n = c->ranks < looked_at ? c->ranks : looked_at;
    for (int i = 0; i < n; ++i) {
        const int r = (c->rank + 1 + w.look_from++) % c->ranks;
        if (r == c->rank || !waits_for(w, r)) {
            continue;
        }
        const int state = c->shm.slot(r).state;
        const bool dead = state == RANK_PRESENT && !c->shm.alive(r);
        /* It may have done its part between the two looks, and only then have left. */
        if ((dead || state == RANK_LEFT || state == RANK_ABORTED) && waits_for(w, r)) {
            const char *how = dead                 ? " whose process is dead"
                              : state == RANK_LEFT ? " which has left the communicator"
                                                   : " which has aborted the communicator";
            nccl_fail(c, ncclRemoteError,
                      nccl_table(c->shm, "rank " + std::to_string(c->rank) + " waits for rank " +
                                             std::to_string(r) + how));
            return;
        }
    }
    if (now - w.since > config().nccl_timeout_s) {
        char limit[64];
        snprintf(limit, sizeof limit, " after %.0f s without progress", now - w.since);
        nccl_fail(c, ncclSystemError,
                  nccl_table(c->shm, "rank " + std::to_string(c->rank) + " still waits for rank " +
                                         waited_for(w) + limit));
    }
}

assay_sim_step nccl_work_step(void *state)
{
    nccl_work &w = *static_cast<nccl_work *>(state);
    ncclComm *c = w.comm;
    c->heard = c->shm.head->bell.load();
    if (c->aborted) {
        return ASSAY_SIM_DONE;
    }
    if (nccl_error(c) != ncclSuccess) {
        return ASSAY_SIM_FAILED;
    }
    if (c->works_done != w.ticket) {
        return ASSAY_SIM_PENDING;
    }
    bool moved = false, again = true;
    while (again && !all_finished(w) && nccl_error(c) == ncclSuccess) {
        again = false;
        if (w.current < w.collectives.size()) {
            again |= collective_step(c, w.collectives[w.current]);
            if (w.collectives[w.current].finished) {
                ++w.current;
            }
        }
        again |= messages_step(c, w.messages);
        moved |= again;
    }
    const double now = now_seconds();
    if (nccl_error(c) != ncclSuccess) {
        return ASSAY_SIM_FAILED;
    }
    if (all_finished(w)) {
        c->works_done.fetch_add(1);
        c->shm.ring(c->rank); /* other work of this communicator in this process may begin */
        return ASSAY_SIM_DONE;
    }
    if (moved || w.since == 0.0) {
        w.since = w.looked = now;
    } else if (now - w.looked > 0.02 * patience(c->ranks)) {
        w.looked = now;
        look_around(w, now);
        if (nccl_error(c) != ncclSuccess) {
            return ASSAY_SIM_FAILED;
        }
    }
    return ASSAY_SIM_PENDING;
}

void nccl_work_wait(void *state)
{
    const nccl_work &w = *static_cast<const nccl_work *>(state);
    w.comm->shm.listen(w.comm->rank, w.comm->heard, 0.002 * patience(w.comm->ranks));
}

void nccl_work_destroy(void *state)
{
    nccl_work *w = static_cast<nccl_work *>(state);
    nccl_release(w->comm);
    delete w;
}

} /* namespace sim */
