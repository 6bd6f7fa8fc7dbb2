/* Calls as stream work: stepped without blocking until all ranks have done their part (nccl_rounds.cpp, nccl_messages.cpp). */
#include "nccl_comm.hpp"

#include <unistd.h>

namespace sim
{

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

/* The communicator's first error is that of every rank: one that failed and ended must not become another error, of a dead rank, on those
 * that look for it at that moment. */
void nccl_fail(ncclComm *comm, ncclResult_t code, const std::string &text)
{
    int32_t first = 0;
    nccl_remember(text);
    const bool mine = comm->shm.head->error.compare_exchange_strong(first, code);
    comm->async_error = mine ? code : first;
    if (mine) {
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

/* --- what others see, and the race checker ------------------------------------------------------------------- */

void nccl_note_running(ncclComm *c, const nccl_call &call)
{
    c->shm.slot(c->rank).running.set(call);
}

void nccl_note_finished(ncclComm *c)
{
    rank_slot &me = c->shm.slot(c->rank);
    me.running.set(nccl_call{});
    me.finished.fetch_add(1);
}

void nccl_touch(const ncclComm *c, const nccl_task &t)
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
            again |= nccl_collective_step(c, w.collectives[w.current]);
            if (w.collectives[w.current].finished) {
                ++w.current;
            }
        }
        again |= nccl_messages_step(c, w.messages);
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
