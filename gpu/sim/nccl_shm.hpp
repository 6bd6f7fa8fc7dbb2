/* The shared memory of one simulated communicator: who is in it, what they call, and the staging buffers. */
#ifndef ASSAY_SIM_NCCL_SHM_HPP
#define ASSAY_SIM_NCCL_SHM_HPP

#include "nccl.h"
#include "sim.hpp"

#include <atomic>
#include <string>

namespace sim
{

enum nccl_func {
    NCCL_NONE,
    NCCL_ALL_REDUCE,
    NCCL_REDUCE,
    NCCL_BROADCAST,
    NCCL_ALL_GATHER,
    NCCL_REDUCE_SCATTER,
    NCCL_SEND,
    NCCL_RECV,
    NCCL_SPLIT
};

/* What a rank calls; plain words, so that they can be compared with memcmp. */
struct nccl_call {
    uint64_t number; /* of the communicator's collectives, or of the pair's messages, from 0 */
    uint64_t count;
    int32_t func, type, op, root; /* root: the peer of a send or receive */
};

inline bool nccl_is_message(const nccl_call &c)
{
    return c.func == NCCL_SEND || c.func == NCCL_RECV;
}

/* A call that others read for diagnosis only, at any moment. */
struct nccl_call_note {
    std::atomic<uint64_t> number, count;
    std::atomic<int32_t> func, type, op, root;
    void set(const nccl_call &c);
    nccl_call get() const;
};

enum rank_state { RANK_ABSENT, RANK_PRESENT, RANK_LEFT, RANK_ABORTED };

struct alignas(64) rank_slot {
    std::atomic<int32_t> state, pid;
    std::atomic<uint64_t> born;             /* the process's start time: a reused pid is another process */
    std::atomic<uint64_t> posted, consumed; /* rounds: data offered, everyone's data read */
    std::atomic<uint32_t> sleepers;         /* threads of this rank that wait on the bell */
    std::atomic<uint64_t> split_posted, split_done;
    std::atomic<uint64_t> finished;     /* calls, for the table */
    std::atomic<int32_t> order_device;  /* 1 + device; 0: not joined yet */
    std::atomic<uint64_t> order_issued; /* collectives whose moment is written down */
    int32_t split_color[2], split_key[2];
    nccl_call call[2]; /* of rounds with even and odd number */
    nccl_call_note issued, running;
};

/* From one rank to another: a queue of two buffers. */
struct alignas(64) pair_channel {
    std::atomic<uint64_t> sent, received;
    nccl_call call[2];
    uint64_t bytes[2];
};

struct segment_head {
    std::atomic<uint32_t> ready, attached;
    std::atomic<uint32_t> bell, sleepers; /* the futex word, and how many wait on it */
    std::atomic<uint32_t> cramped;        /* a rank waits until everybody has read the round before last */
    std::atomic<int32_t> error;           /* ncclResult_t of the first failure, which ends the communicator */
    int32_t ranks;
    uint64_t id;
};

constexpr size_t order_places = 8192;

struct segment_server; /* of the first rank to come */

struct segment {
    void *base = nullptr;
    size_t bytes = 0;
    segment_head *head = nullptr;
    rank_slot *slots = nullptr;
    pair_channel *channels = nullptr;
    std::atomic<uint64_t> *order = nullptr;
    unsigned char *stage = nullptr, *pair_stage = nullptr;
    size_t pair_bytes = 0;
    std::string name;
    segment_server *server = nullptr;

    rank_slot &slot(int r) const
    {
        return slots[r];
    }
    pair_channel &channel(int from, int to) const
    {
        return channels[static_cast<size_t>(from) * static_cast<size_t>(head->ranks) +
                        static_cast<size_t>(to)];
    }
    /* The moments of a rank's last collectives. */
    std::atomic<uint64_t> *order_of(int r) const
    {
        return order + static_cast<size_t>(r) * order_places;
    }
    unsigned char *buffer(int r, uint64_t round) const;
    unsigned char *pair_buffer(int from, int to, uint64_t chunk) const;
    /* Wakes who listens as rank r.  A rank is woken for what it may wait for, and by whoever brings the last part of it: with all
     * woken by everything, most would find that they still wait and sleep again. */
    void ring(int r) const;
    void ring_all() const;
    /* Sleeps as rank r until the bell differs from `seen` and rings for it, at most `seconds`. */
    void listen(int r, uint32_t seen, double seconds) const;
    bool alive(int r) const;
};

constexpr size_t stage_bytes = 128 * 1024;
constexpr int max_ranks = 1024;

/* Where everything lies in the segment of so many ranks; base may be NULL, to know the size. */
void segment_layout(segment *s, void *base, int ranks);
/* The start time of this process, which tells it from a later one with its number. */
uint64_t process_born();
/* Joins (or makes) the segment of this id.  Does not wait for ranks that have not come, and gives up after the time limit.
 * On failure `why` says what was expected and found. */
ncclResult_t segment_join(segment *s, uint64_t id, int ranks, int rank, std::string *why);
void segment_leave(segment *s);
void segment_close(const segment &s); /* no further rank is let in */

uint64_t nccl_hash(const void *data, size_t bytes, uint64_t seed);
const char *nccl_func_name(int func);
const char *nccl_type_name(int type);
const char *nccl_op_name(int op);
size_t nccl_type_bytes(int type); /* 0: unknown */
std::string nccl_describe(const nccl_call &c);
/* One text of several lines: every rank, its process, what it calls or called last. */
std::string nccl_table(const segment &s, const std::string &headline);

/* out[i] = in[0][i] op in[1][i] op ..., in this order; nccl.h declares the arithmetic.  out overlaps no
 * input. */
void nccl_reduce_elements(void *out, const void *const *in, int ranks, size_t count, int type, int op);
/* x[i] = x[i] * *factor, rounded to the type once. */
void nccl_scale_elements(void *x, size_t count, int type, const void *factor);

} /* namespace sim */

#endif
