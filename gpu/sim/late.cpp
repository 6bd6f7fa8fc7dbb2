/* Copies that arrive late: a destination is poison, and source and destination must stay as they are, until the copy's stage is waited for.
 * And threads that wait by looking again, of which some must be able to go on. */
#include "assay_sim_late.h"
#include "simt.hpp"

#include <stdio.h>
#include <string.h>

namespace sim
{

struct late_copy {
    uint64_t queue, stage;
    unsigned char *to;
    const unsigned char *from;
    size_t bytes, zeros;
    unsigned thread;
    int line;
    bool early;                       /* the destination holds the bytes already */
    std::vector<unsigned char> saved; /* what the source held when the copy was issued, and the zeros */
};

struct late_block {
    std::vector<late_copy> copies; /* in the order of issue */
    uint64_t stage[2][max_block_threads];
    uint64_t queues;
    /* since the last wait that ended: how often threads looked again, and how often they had switched before */
    uint64_t looks, turns;
};

static late_block &state_of(worker &w)
{
    if (w.late == nullptr)
        w.late = new late_block{};
    return *w.late;
}

void late_begin(worker &w)
{
    if (w.late == nullptr)
        return;
    w.late->copies.clear();
    memset(w.late->stage, 0, sizeof w.late->stage);
    w.late->queues = w.late->looks = 0;
}

void late_end(worker &w)
{
    if (w.late == nullptr || w.late->copies.empty() || w.failed || w.hurt_block)
        return;
    const late_copy &c = w.late->copies.front();
    const uint3 id = w.fibers[c.thread].id;
    assay_sim_report("late read",
                     WHERE "the block is over before anybody has waited for this asynchronous copy",
                     WHERE_ARGS(w, id, c.line));
    w.failed = true;
    w.error = cudaErrorLaunchFailure;
}

[[noreturn]] static void report_copy(worker &w, const late_copy &c, int line, const char *what)
{
    const uint3 id = w.fibers[c.thread].id;
    assay_sim_report("late read", WHERE "the asynchronous copy of thread (%u,%u,%u) in line %d: %s",
                     WHERE_ARGS(w, threadIdx, line), id.x, id.y, id.z, line_of(c.line), what);
    abandon(w);
}

static void arrive(worker &w, const late_copy &c, int line)
{
    if (c.bytes != 0 && memcmp(c.saved.data(), c.from, c.bytes) != 0)
        report_copy(w, c, line, "its source was written before the copy was waited for");
    size_t i = 0;
    while (i < c.saved.size() && c.to[i] == (c.early ? c.saved[i] : 0xff))
        ++i;
    if (i < c.saved.size())
        report_copy(w, c, line, "its destination was written before the copy was waited for");
    memcpy(c.to, c.saved.data(), c.saved.size());
    race_initialized(c.to, c.saved.size());
}

bool look_in_vain(worker &w, int line)
{
    late_block &b = state_of(w);
    w.fibers[w.current].line = line;
    if (b.looks == 0 || w.turns - b.turns != b.looks) { /* some thread has done something else */
        b.looks = 0;
        b.turns = w.turns;
    }
    if (b.looks > 2 * w.n && w.meeting == nullptr)
        return true;
    ++b.looks;
    return false;
}

} /* namespace sim */

using namespace sim;

void assay_sim_late_copy(uint64_t queue, uint64_t stage, void *to, const void *from, size_t bytes,
                         size_t zeros, int line)
{
    worker &w = running_worker("an asynchronous copy");
    if (w.looping)
        report_promise(w, "asynchronous copy", line);
    if (bytes + zeros == 0)
        return;
    w.fibers[w.current].line = line;
    late_copy c = {queue,
                   stage,
                   static_cast<unsigned char *>(to),
                   static_cast<const unsigned char *>(from),
                   bytes,
                   zeros,
                   w.current,
                   line,
                   false,
                   {}};
    for (const late_copy &other : state_of(w).copies) {
        if (c.to < other.to + other.saved.size() && other.to < c.to + bytes + zeros)
            report_copy(w, other, line, "another copy goes to where it is under way");
    }
    race_touch(w, from, bytes, false, __builtin_return_address(0));
    race_touch(w, to, bytes + zeros, true, __builtin_return_address(0));
    c.saved.resize(bytes + zeros, 0);
    memcpy(c.saved.data(), from, bytes);
    c.early = config().order == ASSAY_SIM_ORDER_RANDOM && w.random.below(2) != 0;
    if (c.early)
        memcpy(to, c.saved.data(), c.saved.size());
    else
        memset(to, 0xff, c.saved.size());
    race_coming(to, c.saved.size());
    state_of(w).copies.push_back(std::move(c));
}

void assay_sim_late_complete(uint64_t queue, uint64_t end, int everybody, int line)
{
    worker &w = running_worker("an asynchronous copy");
    if (w.looping)
        report_promise(w, "asynchronous copy", line);
    std::vector<late_copy> &copies = state_of(w).copies;
    size_t kept = 0;
    for (size_t i = 0; i < copies.size(); ++i) {
        const late_copy &c = copies[i];
        if (c.queue == queue && c.stage < end && (everybody || c.thread == w.current)) {
            arrive(w, c, line);
            if (!everybody) { /* its thread alone knows of it: others race with it as late as now */
                race_touch(w, c.from, c.bytes, false, __builtin_return_address(0));
                race_touch(w, c.to, c.saved.size(), true, __builtin_return_address(0));
            }
        } else {
            if (kept != i)
                copies[kept] = std::move(copies[i]);
            ++kept;
        }
    }
    copies.resize(kept);
}

uint64_t assay_sim_late_stage(enum assay_sim_late_own which, int advance)
{
    worker &w = running_worker("an asynchronous copy");
    uint64_t &stage = state_of(w).stage[which][w.current];
    const uint64_t now = stage;
    stage += advance != 0;
    return now;
}

uint64_t assay_sim_late_queue(void)
{
    worker &w = running_worker("an asynchronous copy");
    return 16 + 2 * ++state_of(w).queues + 1; /* odd: those that are addresses of objects are even */
}

void assay_sim_look(const char *what, int line)
{
    worker &w = running_worker(what);
    if (w.looping)
        report_promise(w, what, line);
    w.fibers[w.current].line = line;
    if (hurt(w))
        leave_block(w);
    if (look_in_vain(w, line)) {
        assay_sim_report("divergent barrier", WHERE "%s waits for ever: no thread of the block can go on",
                         WHERE_ARGS(w, threadIdx, line), what);
        abandon(w);
    }
    assay_sim_yield();
}

void assay_sim_seen(void)
{
    worker &w = running_worker("a barrier");
    state_of(w).looks = 0;
}

int assay_sim_is_shared(const void *p)
{
    char text[256];
    return shared_describe(running_worker("shared memory"), p, text, sizeof text);
}

void assay_sim_misuse(const char *kind, const char *what, int line)
{
    worker &w = running_worker(what);
    assay_sim_report(kind, WHERE "%s", WHERE_ARGS(w, threadIdx, line), what);
    abandon(w);
}
