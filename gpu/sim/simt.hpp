/* The state of the fibers that execute a block, shared by simt.cpp (switching, the block barrier),
 * simt_warp.cpp, simt_shared.cpp and simt_grid.cpp. */
#ifndef ASSAY_SIM_SIMT_HPP
#define ASSAY_SIM_SIMT_HPP

#include "sim.hpp"

#ifndef ASSAY_SIM
#define ASSAY_SIM 1
#endif
#include "assay_sim_device.h"

#include <boost/context/detail/fcontext.hpp>
#include <vector>

namespace sim
{

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr unsigned lanes = 32;
constexpr size_t shared_guard = 64;
constexpr size_t arena_bytes = max_shared_optin + 64 * 1024;

enum thread_state : unsigned char { FRESH, READY, AT_BLOCK, AT_WARP, EXITED };

struct stack {
    char *base;
    size_t bytes;
    char *top; /* coloured: equal page offsets would fall into the same cache sets */
    void *tsan;
};

struct fiber {
    fcontext_t context;
    stack *on;
    uint3 id;
    int line;
    unsigned mask;
    uint64_t value, result;
    int operand, width;
    void *asan_fake;
};

struct warp_group { /* lanes that wait with one mask */
    unsigned mask, arrived;
    int line, op;
};

struct warp {
    unsigned exist, exited;
    int groups;
    warp_group group[lanes];
};

struct shared_array {
    const void *site;
    const char *name;
    unsigned char *at;
    size_t bytes;
};

struct worker {
    const kernel_call *call;
    unsigned n, current, position, runnable, exited;
    bool failed, looping;
    fcontext_t scheduler;
    random_stream random;
    /* the block barrier */
    unsigned arrived, first;
    int line, op, sum, result;
    unsigned char state[max_block_threads];
    unsigned order[max_block_threads];
    fiber fibers[max_block_threads];
    warp warps[max_block_threads / lanes];
    /* shared memory */
    unsigned char *arena;
    size_t arena_used, static_used;
    std::vector<shared_array> arrays;
    /* stacks */
    std::vector<stack *> idle;
    std::vector<stack *> busy;
    size_t stacks_made;
    /* the loop mode's range of blocks */
    uint64_t block_from, block_to;
    void *scheduler_fake, *scheduler_tsan;
    const void *scheduler_bottom;
    size_t scheduler_size;
};

extern __thread worker *self; /* of the kernel that this operating system thread runs */

#define WHERE "kernel %s block (%u,%u,%u) thread (%u,%u,%u) line %d: "
#define WHERE_ARGS(w, id, line)                                                                              \
    (w).call->name, blockIdx.x, blockIdx.y, blockIdx.z, (id).x, (id).y, (id).z, line

[[noreturn]] void abandon(worker &w);
[[noreturn]] void report_promise(worker &w, const char *what, int line);
void draw_order(worker &w);
/* Gives the processor away.  `ended`: the current thread is over; returns with a fresh thread to run on the
 * same stack. */
void advance(worker &w, bool ended);
void fiber_entry(boost::context::detail::transfer_t from);
void jump_to_scheduler(worker &w, fcontext_t *slot, void **fake);
/* From the scheduler into a fresh stack; returns when that block, or loop over blocks, is over. */
void first_jump(worker &w, void (*entry)(transfer_t));

int block_barrier(worker &w, int op, int predicate, int line);
uint64_t warp_exchange(worker &w, int op, unsigned mask, uint64_t value, int operand, int width, int line);

void shared_begin(worker &w);
bool shared_end(worker &w);
void *shared_array_at(worker &w, const void *site, const char *name, size_t bytes, size_t align, int line);

} /* namespace sim */

#endif
