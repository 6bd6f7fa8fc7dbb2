/* Cooperative launches: every block has an operating system thread of its own, so that blocks can wait for each other.  Under the
 * race checker, whose state is one, the blocks take turns: a block runs until it waits at the grid's barrier, is over, or has
 * looked often at what another block might change. */
#include "simt.hpp"

#include <chrono>
#include <condition_variable>
#include <mutex>

extern "C" {
void assay_sim_grid_barrier(int line);
int assay_sim_grid_is_cooperative(void);
}

namespace sim
{

constexpr unsigned polls_of_a_turn = 256;

enum block_state : unsigned char { MAY_RUN, WAITS, OVER };

struct grid_meeting {
    std::mutex lock;
    std::condition_variable changed;
    uint64_t blocks, arrived = 0, left = 0, round = 0;
    bool failed = false;
    /* under the race checker */
    uint64_t turn = 0;
    std::vector<block_state> state;
};

grid_meeting *meeting_make(uint64_t blocks)
{
    grid_meeting *m = new grid_meeting;
    m->blocks = blocks;
    m->state.assign(static_cast<size_t>(blocks), MAY_RUN);
    return m;
}

void meeting_free(grid_meeting *m)
{
    delete m;
}

/* The next block that may run has the turn; the caller holds the lock. */
static void pass_turn(grid_meeting *m, uint64_t from)
{
    if (m->turn != from)
        return;
    for (uint64_t i = 1; i <= m->blocks; ++i) {
        const uint64_t next = (from + i) % m->blocks;
        if (m->state[static_cast<size_t>(next)] == MAY_RUN) {
            m->turn = next;
            break;
        }
    }
    m->changed.notify_all();
}

static void wake_all(grid_meeting *m)
{
    for (block_state &s : m->state)
        s = s == WAITS ? MAY_RUN : s;
    m->changed.notify_all();
}

/* false: another block has failed. */
static bool wait_turn(worker &w, std::unique_lock<std::mutex> &hold)
{
    grid_meeting *m = w.meeting;
    w.waiting = true;
    m->changed.wait(hold, [&] { return m->turn == w.place || m->failed; });
    w.waiting = false;
    return !m->failed;
}

bool meeting_begin(worker &w)
{
    w.polls = 0;
    if (!ASSAY_SIM_RACES)
        return true;
    std::unique_lock<std::mutex> hold(w.meeting->lock);
    return wait_turn(w, hold);
}

void meeting_left(worker &w, bool failed)
{
    grid_meeting *m = w.meeting;
    std::lock_guard<std::mutex> hold(m->lock);
    ++m->left;
    m->failed = m->failed || failed;
    m->state[static_cast<size_t>(w.place)] = OVER;
    wake_all(m); /* those who wait for this block wait in vain, and say so */
    pass_turn(m, w.place);
}

void meeting_poll(worker &w)
{
    if (!ASSAY_SIM_RACES || w.meeting == nullptr || ++w.polls % polls_of_a_turn != 0)
        return;
    std::unique_lock<std::mutex> hold(w.meeting->lock);
    pass_turn(w.meeting, w.place);
    if (wait_turn(w, hold))
        return;
    hold.unlock();
    abandon(w);
}

/* 0: all blocks have come; 1: some are over and will not come; 2: another block has failed. */
static int meet(worker &w)
{
    grid_meeting *m = w.meeting;
    std::unique_lock<std::mutex> hold(m->lock);
    const uint64_t round = m->round;
    const bool last = ++m->arrived == m->blocks;
    race_grid(w, last);
    if (last) {
        m->arrived = 0;
        ++m->round;
        wake_all(m);
        return 0;
    }
    if (ASSAY_SIM_RACES) {
        m->state[static_cast<size_t>(w.place)] = m->left == 0 ? WAITS : MAY_RUN;
        pass_turn(m, w.place);
        wait_turn(w, hold);
    } else {
        w.waiting = true;
        m->changed.wait(hold, [&] { return m->round != round || m->left != 0 || m->failed; });
        w.waiting = false;
    }
    return m->round != round ? 0 : m->failed ? 2 : 1;
}

/* The first thread of a block arrives for all of them: without it nobody does. */
static void check_first(worker &w, int line)
{
    const unsigned gone = w.exited;
    if (gone == 0 || (w.state[0] != EXITED && !w.strict))
        return;
    unsigned first = 0;
    while (w.state[first] != EXITED)
        ++first;
    const uint3 id = w.fibers[first].id;
    assay_sim_report("divergent barrier",
                     WHERE "the grid's barrier, but %u threads of the block have exited, the first of them "
                           "thread (%u,%u,%u)",
                     WHERE_ARGS(w, threadIdx, line), gone, id.x, id.y, id.z);
    meeting_left(w, true);
    abandon(w);
}

} /* namespace sim */

using namespace sim;

void assay_sim_grid_barrier(int line)
{
    worker &w = running_worker("grid_group::sync");
    if (w.meeting == nullptr) {
        assay_sim_report("unsupported",
                         WHERE
                         "grid_group::sync in a launch that is not cooperative (cudaLaunchCooperativeKernel)",
                         WHERE_ARGS(w, threadIdx, line));
        abandon(w);
    }
    assay_sim_block_barrier(ASSAY_SIM_BLOCK_SYNC, 0, line);
    if (!w.met) { /* the first thread that goes on waits for the other blocks */
        w.met = true;
        check_first(w, line);
        const int how = meet(w);
        if (how == 1)
            assay_sim_report("divergent barrier",
                             WHERE "this block waits at the grid's barrier, but other blocks have ended",
                             WHERE_ARGS(w, threadIdx, line));
        if (how != 0) {
            meeting_left(w, true);
            abandon(w);
        }
    }
    assay_sim_block_barrier(ASSAY_SIM_BLOCK_SYNC, 0, line);
    w.met = false;
}

int assay_sim_grid_is_cooperative(void)
{
    return running_worker("grid_group::is_valid").meeting != nullptr;
}
