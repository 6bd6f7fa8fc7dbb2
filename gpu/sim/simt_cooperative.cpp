/* Cooperative launches: every block has an operating system thread of its own, so that blocks can wait for each other. */
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

struct grid_meeting {
    std::mutex lock;
    std::condition_variable changed;
    uint64_t blocks, arrived = 0, left = 0, round = 0;
    bool failed = false;
};

grid_meeting *meeting_make(uint64_t blocks)
{
    grid_meeting *m = new grid_meeting;
    m->blocks = blocks;
    return m;
}

void meeting_free(grid_meeting *m)
{
    delete m;
}

void meeting_left(grid_meeting *m, bool failed)
{
    std::lock_guard<std::mutex> hold(m->lock);
    ++m->left;
    m->failed = m->failed || failed;
    m->changed.notify_all();
}

/* 0: all blocks have come; 1: some are over and will not come; 2: another block has failed. */
static int meet(grid_meeting *m)
{
    std::unique_lock<std::mutex> hold(m->lock);
    const uint64_t round = m->round;
    if (++m->arrived == m->blocks) {
        m->arrived = 0;
        ++m->round;
        m->changed.notify_all();
        return 0;
    }
    m->changed.wait(hold, [&] { return m->round != round || m->left != 0 || m->failed; });
    return m->round != round ? 0 : m->failed ? 2 : 1;
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
        const int how = meet(w.meeting);
        if (how == 1)
            assay_sim_report("divergent barrier",
                             WHERE "this block waits at the grid's barrier, but other blocks have ended",
                             WHERE_ARGS(w, threadIdx, line));
        if (how != 0) {
            meeting_left(w.meeting, true);
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
