/* Messages, a step at a time: a queue of two buffers per ordered pair.  A send ends when the receiver has taken everything, so that an order
 * of sends and receives that would hang on a GPU hangs, and is reported, here. */
#include "nccl_comm.hpp"

#include <algorithm>
#include <string.h>

namespace sim
{

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
        const size_t n = std::min(c->shm.pair_bytes, bytes - t.offset);
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
        const size_t n = std::min(ch.bytes[received & 1], bytes - t.offset);
        memcpy(t.recv + t.offset, c->shm.pair_buffer(t.call.root, c->rank, received), n);
        t.offset += n;
        ch.received.store(received + 1, std::memory_order_release);
        c->shm.ring(t.call.root);
        moved = true;
    }
    t.finished = true;
    return true;
}

bool nccl_messages_step(ncclComm *c, std::vector<nccl_task> &tasks)
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
            nccl_note_running(c, t.call);
        }
        moved |= t.call.func == NCCL_SEND ? send_step(c, t) : recv_step(c, t);
        if (t.finished) {
            nccl_touch(c, t);
            nccl_note_finished(c);
        } else {
            busy[static_cast<size_t>(t.call.root)] = 1;
        }
    }
    return moved;
}

} /* namespace sim */
