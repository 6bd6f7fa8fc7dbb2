/* A communicator's shared memory: who is in it, its bell, and its tables.  nccl_join.cpp attaches to it. */
#include "nccl_shm.hpp"

#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace sim
{

void nccl_call_note::set(const nccl_call &c)
{
    number.store(c.number, std::memory_order_relaxed);
    count.store(c.count, std::memory_order_relaxed);
    type.store(c.type, std::memory_order_relaxed);
    op.store(c.op, std::memory_order_relaxed);
    root.store(c.root, std::memory_order_relaxed);
    func.store(c.func, std::memory_order_release);
}

nccl_call nccl_call_note::get() const
{
    nccl_call c;
    c.func = func.load(std::memory_order_acquire);
    c.number = number.load(std::memory_order_relaxed);
    c.count = count.load(std::memory_order_relaxed);
    c.type = type.load(std::memory_order_relaxed);
    c.op = op.load(std::memory_order_relaxed);
    c.root = root.load(std::memory_order_relaxed);
    return c;
}

/* --- processes ---------------------------------------------------------------------------------------------- */

/* The state letter and the start time of a process, from /proc/<pid>/stat; false when there is none. */
static bool process_stat(int pid, char *state, uint64_t *born)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    if (f == nullptr) {
        return false;
    }
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *p = strrchr(text, ')'); /* the name before it may hold anything */
    unsigned long long start = 0;
    if (p == nullptr ||
        sscanf(p + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               state, &start) != 2) {
        return false;
    }
    *born = start;
    return true;
}

uint64_t process_born()
{
    char state = '?';
    uint64_t born = 0;
    process_stat(getpid(), &state, &born);
    return born;
}

bool segment::alive(int r) const
{
    char state = '?';
    uint64_t born = 0;
    if (!process_stat(slots[r].pid, &state, &born)) {
        return kill(slots[r].pid, 0) == 0; /* no /proc: the signal test is all there is */
    }
    return born == slots[r].born && state != 'Z' && state != 'X';
}

/* --- layout ------------------------------------------------------------------------------------------------- */

static size_t up(size_t v)
{
    return (v + 4095) / 4096 * 4096;
}

void segment_layout(segment *s, void *base, int ranks)
{
    const size_t n = static_cast<size_t>(ranks);
    size_t at = up(sizeof(segment_head));
    unsigned char *p = static_cast<unsigned char *>(base);
    s->pair_bytes = ranks <= 16 ? 32768 : 4096;
    s->base = base;
    s->head = reinterpret_cast<segment_head *>(p);
    s->slots = reinterpret_cast<rank_slot *>(p + at);
    at += up(n * sizeof(rank_slot));
    s->channels = reinterpret_cast<pair_channel *>(p + at);
    at += up(n * n * sizeof(pair_channel));
    s->order = reinterpret_cast<std::atomic<uint64_t> *>(p + at);
    at += n * order_places * sizeof *s->order;
    s->stage = p + at;
    at += n * 2 * stage_bytes;
    s->pair_stage = p + at;
    at += n * n * 2 * s->pair_bytes;
    s->bytes = at;
}

unsigned char *segment::buffer(int r, uint64_t round) const
{
    return stage + (static_cast<size_t>(r) * 2 + (round & 1)) * stage_bytes;
}

unsigned char *segment::pair_buffer(int from, int to, uint64_t chunk) const
{
    const size_t pair =
        static_cast<size_t>(from) * static_cast<size_t>(head->ranks) + static_cast<size_t>(to);
    return pair_stage + (pair * 2 + (chunk & 1)) * pair_bytes;
}

/* Ranks share one word to sleep on, so that one call wakes all; a rank's bit tells its sleepers from others'. */
static uint32_t bit_of(int r)
{
    return 1u << (static_cast<uint32_t>(r) % 32);
}

static void wake(std::atomic<uint32_t> *bell, uint32_t bits)
{
    syscall(SYS_futex, bell, FUTEX_WAKE_BITSET, INT32_MAX, nullptr, nullptr, bits);
}

void segment::ring(int r) const
{
    head->bell.fetch_add(1);
    if (slot(r).sleepers.load() != 0) {
        wake(&head->bell, bit_of(r));
    }
}

void segment::ring_all() const
{
    head->bell.fetch_add(1);
    if (head->sleepers.load() != 0) {
        wake(&head->bell, FUTEX_BITSET_MATCH_ANY);
    }
}

void segment::listen(int r, uint32_t seen, double seconds) const
{
    const double until = now_seconds() + seconds;
    struct timespec t;
    t.tv_sec = static_cast<time_t>(until);
    t.tv_nsec = static_cast<long>((until - static_cast<double>(t.tv_sec)) * 1e9);
    head->sleepers.fetch_add(1);
    slot(r).sleepers.fetch_add(1);
    syscall(SYS_futex, &head->bell, FUTEX_WAIT_BITSET, seen, &t, nullptr, bit_of(r));
    slot(r).sleepers.fetch_sub(1);
    head->sleepers.fetch_sub(1);
}

/* --- words -------------------------------------------------------------------------------------------------- */

/* FNV-1a, then mixed: names segments, protects nothing. */
uint64_t nccl_hash(const void *data, size_t bytes, uint64_t seed)
{
    const unsigned char *p = static_cast<const unsigned char *>(data);
    uint64_t h = 0xcbf29ce484222325ull ^ seed;
    for (size_t i = 0; i < bytes; ++i) {
        h = (h ^ p[i]) * 0x100000001b3ull;
    }
    return mix(h, seed);
}

const char *nccl_func_name(int func)
{
    static const char *const names[] = {"nothing",       "ncclAllReduce", "ncclReduce",
                                        "ncclBroadcast", "ncclAllGather", "ncclReduceScatter",
                                        "ncclSend",      "ncclRecv",      "ncclCommSplit"};
    return func >= 0 && func <= NCCL_SPLIT ? names[func] : "?";
}

const char *nccl_type_name(int type)
{
    static const char *const names[] = {"int8",    "uint8",    "int32",      "uint32",
                                        "int64",   "uint64",   "float16",    "float32",
                                        "float64", "bfloat16", "float8e4m3", "float8e5m2"};
    return type >= 0 && type < ncclNumTypes ? names[type] : "?";
}

const char *nccl_op_name(int op)
{
    static const char *const names[] = {"sum", "prod", "max", "min", "avg", "premulsum"};
    return op >= 0 && op <= ncclNumOps ? names[op] : "?";
}

size_t nccl_type_bytes(int type)
{
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < ncclNumTypes ? bytes[type] : 0;
}

std::string nccl_describe(const nccl_call &c)
{
    char text[160];
    const unsigned long long number = c.number, count = c.count;
    switch (c.func) {
    case NCCL_NONE:
        return "nothing";
    case NCCL_SPLIT:
        snprintf(text, sizeof text, "ncclCommSplit number %llu", number);
        break;
    case NCCL_SEND:
    case NCCL_RECV:
        snprintf(text, sizeof text, "%s count %llu %s peer %d", nccl_func_name(c.func), count,
                 nccl_type_name(c.type), c.root);
        break;
    case NCCL_ALL_REDUCE:
    case NCCL_REDUCE_SCATTER:
        snprintf(text, sizeof text, "%s count %llu %s %s (call %llu)", nccl_func_name(c.func), count,
                 nccl_type_name(c.type), nccl_op_name(c.op), number);
        break;
    case NCCL_REDUCE:
        snprintf(text, sizeof text, "%s count %llu %s %s root %d (call %llu)", nccl_func_name(c.func), count,
                 nccl_type_name(c.type), nccl_op_name(c.op), c.root, number);
        break;
    case NCCL_BROADCAST:
        snprintf(text, sizeof text, "%s count %llu %s root %d (call %llu)", nccl_func_name(c.func), count,
                 nccl_type_name(c.type), c.root, number);
        break;
    default:
        snprintf(text, sizeof text, "%s count %llu %s (call %llu)", nccl_func_name(c.func), count,
                 nccl_type_name(c.type), number);
    }
    return text;
}

std::string nccl_table(const segment &s, const std::string &headline)
{
    char text[256];
    snprintf(text, sizeof text, "assay-sim: nccl: communicator %016llx (%d ranks): ",
             static_cast<unsigned long long>(s.head->id), s.head->ranks);
    std::string out = text + headline + "\n";
    for (int r = 0; r < s.head->ranks; ++r) {
        const rank_slot &k = s.slots[r];
        const int state = k.state;
        snprintf(text, sizeof text, "assay-sim:   rank %d", r);
        out += text;
        if (state == RANK_ABSENT) {
            out += ": never joined\n";
            continue;
        }
        const char *how = state == RANK_LEFT      ? " has left the communicator"
                          : state == RANK_ABORTED ? " has aborted the communicator"
                          : s.alive(r)            ? ""
                                                  : " is dead";
        snprintf(text, sizeof text, " (process %d%s): ", k.pid.load(), how);
        out += text;
        const nccl_call now = k.running.get(), last = k.issued.get();
        if (now.func != NCCL_NONE) {
            out += "in " + nccl_describe(now);
        } else if (last.func == NCCL_NONE) {
            out += "has called nothing yet";
        } else {
            out += "in nothing; last issued " + nccl_describe(last);
        }
        snprintf(text, sizeof text, "; %llu finished\n", static_cast<unsigned long long>(k.finished.load()));
        out += text;
    }
    return out;
}

} /* namespace sim */
