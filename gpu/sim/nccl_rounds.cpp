/* Collectives, a step at a time.
 *
 * They proceed in rounds.  In round k every rank offers data in its buffer k % 2 together with the call it is in; when all have offered,
 * the calls are compared and the data is read.  A buffer is used again when everybody has read the round before last.  An all-reduce of a
 * chunk is two rounds: everybody reduces its share of the chunk, then the shares are gathered; a short one is a single round.  Either way
 * each element is reduced in rank order. */
#include "nccl_comm.hpp"

#include <algorithm>
#include <string.h>

namespace sim
{

constexpr size_t direct_bytes = 8192; /* all-reduces up to this size take one round */

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

/* Elements of the current chunk. */
static size_t chunk_elements(const ncclComm *c, const nccl_task &t)
{
    size_t most = stage_bytes / nccl_type_bytes(t.call.type);
    if (t.call.func == NCCL_REDUCE_SCATTER) {
        most /= static_cast<size_t>(c->ranks);
    }
    return std::min(most, t.call.count - t.offset);
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

/* The rank whose term is the first of the sum: 0, or as NCCL's rings have it, another for each piece.  All ranks of the
 * communicator come to the same one, whoever adds. */
static int first_term(const ncclComm *c, const nccl_task &t, size_t at)
{
    return config().nccl_rings
               ? static_cast<int>(mix(c->order, t.offset + at) % static_cast<uint64_t>(c->ranks))
               : 0;
}

static void reduce_from_all(ncclComm *c, const nccl_task &t, unsigned char *out, size_t at, size_t n)
{
    const void *in[max_ranks];
    const int first = first_term(c, t, at);
    for (int i = 0; i < c->ranks; ++i) {
        const int r = (first + i) % c->ranks;
        in[i] = c->shm.buffer(r, c->round) + at * nccl_type_bytes(t.call.type);
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

bool nccl_collective_step(ncclComm *c, nccl_task &t)
{
    bool moved = false;
    if (!t.started) {
        t.started = true;
        nccl_note_running(c, t.call);
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
                nccl_touch(c, t);
                nccl_note_finished(c);
                return true;
            }
        }
    }
}

} /* namespace sim */
