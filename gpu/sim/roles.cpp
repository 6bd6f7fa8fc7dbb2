/* Roles of warps: named barriers, registers that a warpgroup gives up or takes, and the lane that is elected. */
#include "wgmma.hpp"

#include <algorithm>

#include "assay_sim_late.h"

namespace sim
{

constexpr int registers_of_block = 65536;

struct warp_request {
    int id, threads, more, line, elected;
};
static warp_request &request_of(void *const *lane, unsigned l)
{
    return *static_cast<warp_request *>(lane[l]);
}

static void barrier_of_warp(void *const *lane)
{
    worker &w = *self;
    const warp_request r = request_of(lane, 0);
    tile_block &b = tiles_of(w, "named barrier", r.line);
    if (r.id < 1 || r.id > 15)
        misuse(w, "wrong barrier", r.line, "named barrier %d: expected 1 to 15 (0 is __syncthreads)", r.id);
    if (r.threads < 32 || r.threads % 32 != 0 || static_cast<unsigned>(r.threads) > w.n)
        misuse(w, "wrong barrier", r.line,
               "named barrier %d of %d threads: expected whole warps, and not more than the "
               "block's %u threads",
               r.id, r.threads, w.n);
    named_state &n = b.named[r.id];
    if (n.arrived == 0) {
        n.threads = r.threads;
        n.line = r.line;
    } else if (n.threads != r.threads) {
        misuse(w, "wrong barrier", r.line,
               "named barrier %d of %d threads; others wait for %d of them, in line %d", r.id, r.threads,
               n.threads, line_of(n.line));
    }
    race_arrive(w, &n);
    n.arrived += static_cast<int>(lanes);
    const uint64_t turn = n.turn;
    if (n.arrived == n.threads) {
        n.arrived = 0;
        ++n.turn;
        assay_sim_seen();
    }
    while (r.more != 0 && n.turn == turn) {
        if (look_in_vain(w, r.line))
            misuse(w, "divergent barrier", r.line,
                   "waits for ever at named barrier %d: %d of %d threads have come", r.id, n.arrived,
                   n.threads);
        assay_sim_yield();
    }
    if (r.more != 0)
        race_pass(w, &n);
}

static void registers_of_warp(void *const *lane)
{
    worker &w = *self;
    const warp_request r = request_of(lane, 0);
    tile_block &b = tiles_of(w, "setmaxnreg", r.line);
    const unsigned warp = w.current / lanes, group = warp / group_warps;
    check_warpgroup(w, "setmaxnreg", r.line);
    if (r.threads < 24 || r.threads > 256 || r.threads % 8 != 0)
        misuse(w, "wrong registers", r.line, "setmaxnreg of %d: expected a multiple of 8 from 24 to 256",
               r.threads);
    const group_call mine = {r.line, warp, {}, r.threads, r.more};
    const size_t n = b.warp[warp].registers++;
    same_call(w, b.registers[group], n, mine, "setmaxnreg");
    if (n > 0 && (r.more != 0) != (r.threads >= b.registers[group][n - 1].registers))
        misuse(w, "wrong registers", r.line, "setmaxnreg.%s from %d to %d", r.more ? "inc" : "dec",
               b.registers[group][n - 1].registers, r.threads);
    int all = 0;
    for (const std::vector<group_call> &calls : b.registers)
        all += calls.empty() ? 0 : calls.back().registers * static_cast<int>(group_warps * lanes);
    /* what all share is what the launch got; the compiler may have given a thread fewer */
    const int most = std::min(registers_of_block / static_cast<int>(w.n) / 8 * 8, 256);
    if (all > most * static_cast<int>(w.n))
        misuse(w, "wrong registers", r.line,
               "the warpgroups of the block ask for %d registers: it got at most %d at its launch, %d a "
               "thread",
               all, most * static_cast<int>(w.n), most);
}

static void elect_of_warp(void *const *lane)
{
    worker &w = *self;
    const warp_request &r = request_of(lane, 0);
    tiles_of(w, "elect", r.line);
    const unsigned chosen = late_now(w) ? 0 : static_cast<unsigned>(w.random.below(lanes));
    for (unsigned l = 0; l < lanes; ++l)
        request_of(lane, l).elected = l == chosen;
}

bool roles_end(worker &w, tile_block &b)
{
    for (const named_state &n : b.named) {
        if (n.arrived == 0)
            continue;
        assay_sim_report("divergent barrier",
                         WHERE "the block is over, and %d of %d threads have come to named barrier %td",
                         WHERE_ARGS(w, w.fibers[0].id, n.line), n.arrived, n.threads, &n - b.named);
        return false;
    }
    for (unsigned g = 0; g * group_warps * lanes < w.n; ++g) {
        if (!same_count(w, b.registers[g], g, &wgmma_warp::registers, "setmaxnreg"))
            return false;
    }
    return true;
}

} /* namespace sim */

using namespace sim;

static int of_warp(assay_sim_warp_function *run, int id, int threads, int more, int line)
{
    warp_request r = {id, threads, more, line, 0};
    assay_sim_warp_call(run, &r, line);
    return r.elected;
}

void assay_sim_named_barrier(int id, int threads, int waits, int line)
{
    of_warp(barrier_of_warp, id, threads, waits, line);
}

void assay_sim_set_registers(int registers, int more, int line)
{
    of_warp(registers_of_warp, 0, registers, more, line);
}

int assay_sim_elect(int line)
{
    return of_warp(elect_of_warp, 0, 0, 0, line);
}
