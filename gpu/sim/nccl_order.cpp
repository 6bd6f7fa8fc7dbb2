/* One issue order for all ranks: two ranks that are both in two communicators issue the collectives of both in one order.
 *
 * Every rank writes down, beside the communicator's slots, the moment at which it issued each of its collectives: a number that
 * grows with every issue of the process (a group issues for one communicator after the other).  Whoever is the second of two ranks to issue a call
 * compares the places that it has among the calls of every other communicator of both.  A rank is known by process and device. */
#include "nccl_comm.hpp"

#include <algorithm>
#include <stdio.h>

namespace sim
{

static std::mutex order_lock;
static std::vector<ncclComm *> known; /* of this process */

enum : uint64_t { NOT_ISSUED = UINT64_MAX, FORGOTTEN = UINT64_MAX - 1 };

/* The moment of a rank's collective; FORGOTTEN: more calls than the list has places came after it. */
static uint64_t moment_of(const segment &s, int rank, uint64_t call)
{
    const std::atomic<uint64_t> &issued = s.slot(rank).order_issued;
    if (issued.load() <= call) {
        return NOT_ISSUED;
    }
    const uint64_t moment = s.order_of(rank)[call % order_places].load();
    return issued.load() - call > order_places ? FORGOTTEN : moment;
}

static bool same_rank(const rank_slot &a, const rank_slot &b)
{
    return a.pid == b.pid && a.born == b.born && a.order_device == b.order_device;
}

static bool all_named(const ncclComm *c)
{
    for (int r = 0; r < c->ranks; ++r) {
        if (c->shm.slot(r).order_device == 0) {
            return false;
        }
    }
    return true;
}

/* The place of c's rank r in x; -1: it is not there, or two ranks there have its process and device. */
static int place_in(const ncclComm *c, int r, const ncclComm *x)
{
    int place = -1;
    for (int q = 0; q < x->ranks; ++q) {
        if (same_rank(c->shm.slot(r), x->shm.slot(q))) {
            if (place >= 0) {
                return -1;
            }
            place = q;
        }
    }
    return place;
}

/* Other ranks that are in both; NULL while some have not joined. */
static const nccl_shared *shared_with(ncclComm *c, ncclComm *x)
{
    for (const nccl_shared &s : c->shared) {
        if (s.other == x) {
            return &s;
        }
    }
    if (!all_named(c) || !all_named(x)) {
        return nullptr;
    }
    nccl_shared s = {x, {}};
    for (int r = 0; r < c->ranks; ++r) {
        const int place = r == c->rank ? -1 : place_in(c, r, x);
        if (place >= 0 && place_in(c, c->rank, x) == x->rank && place_in(x, place, c) == r) {
            s.ranks.emplace_back(r, place);
        }
    }
    c->shared.push_back(s);
    return &c->shared.back();
}

void nccl_order_enter(ncclComm *c)
{
    std::lock_guard<std::mutex> hold(order_lock);
    c->shm.slot(c->rank).order_device = c->device + 1;
    known.push_back(c);
}

void nccl_order_leave(ncclComm *c)
{
    std::lock_guard<std::mutex> hold(order_lock);
    known.erase(std::remove(known.begin(), known.end(), c), known.end());
    for (ncclComm *x : known) {
        x->shared.erase(std::remove_if(x->shared.begin(), x->shared.end(),
                                       [c](const nccl_shared &s) { return s.other == c; }),
                        x->shared.end());
    }
}

static std::string line_of(const ncclComm *c, int r, int q, const std::string &what)
{
    char text[128];
    snprintf(text, sizeof text, "assay-sim:   rank %d of the first and %d of the second (process %d) issued ",
             r, q, c->shm.slot(r).pid.load());
    return text + what + "\n";
}

/* One rank issued call `mine` of c before (or after) call `theirs` of x, rank r of c, which is rank q of x, the other way. */
static void fail_both(ncclComm *c, const nccl_call &mine, ncclComm *x, uint64_t theirs, bool before, int r,
                      int q)
{
    char head[256];
    snprintf(
        head, sizeof head,
        "assay-sim: nccl: communicators %016llx (%d ranks) and %016llx (%d ranks): two ranks of both issue "
        "their collectives in different orders, and may wait for each other for ever\n",
        static_cast<unsigned long long>(c->id), c->ranks, static_cast<unsigned long long>(x->id), x->ranks);
    const std::string first = nccl_describe(mine) + " of the first ",
                      second = " call " + std::to_string(theirs) + " of the second";
    const std::string text = head +
                             line_of(c, c->rank, x->rank, first + (before ? "before" : "after") + second) +
                             line_of(c, r, q, first + (before ? "after" : "before") + second) +
                             nccl_table(c->shm, "the first") + nccl_table(x->shm, "the second");
    /* c first: of two ranks that see it at once, each as a call of its own c, one speaks. */
    nccl_fail(c, ncclInvalidUsage, text);
    nccl_fail(x, ncclInvalidUsage, "");
    nccl_remember(text);
}

/* False: said, and both communicators have failed. */
static bool agree(ncclComm *c, const nccl_call &call, ncclComm *x, const nccl_shared &s)
{
    const uint64_t before = x->shm.slot(x->rank).order_issued; /* calls of x before this one */
    for (const auto &pair : s.ranks) {
        const uint64_t there = moment_of(c->shm, pair.first, call.number);
        if (there == NOT_ISSUED || there == FORGOTTEN) {
            continue; /* not issued: it will look here when it comes */
        }
        const uint64_t last = before > 0 ? moment_of(x->shm, pair.second, before - 1) : 0,
                       next = moment_of(x->shm, pair.second, before);
        if (last != FORGOTTEN && last > there) {
            fail_both(c, call, x, before - 1, false, pair.first, pair.second);
            return false;
        }
        if (next < there) {
            fail_both(c, call, x, before, true, pair.first, pair.second);
            return false;
        }
    }
    return true;
}

bool nccl_order_agrees(ncclComm *c, const std::vector<nccl_task> &tasks)
{
    static uint64_t moments = 0;
    std::lock_guard<std::mutex> hold(order_lock);
    const uint64_t moment = moments++;
    rank_slot &me = c->shm.slot(c->rank);
    for (const nccl_task &t : tasks) {
        c->shm.order_of(c->rank)[t.call.number % order_places].store(moment);
        me.order_issued.store(t.call.number + 1);
    }
    for (ncclComm *x : known) {
        if (x == c || x->device != c->device || x->aborted || nccl_error(x) != ncclSuccess) {
            continue;
        }
        const nccl_shared *s = tasks.empty() ? nullptr : shared_with(c, x);
        for (size_t i = 0; s != nullptr && i < tasks.size(); ++i) {
            if (!agree(c, tasks[i].call, x, *s)) {
                return false;
            }
        }
    }
    return true;
}

} /* namespace sim */
