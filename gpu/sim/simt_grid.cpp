/* Runs grids: blocks in their order, on one or several operating system threads, as fibers or as plain loops.
 */
#include "simt.hpp"

#include <atomic>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <thread>

#if SIM_ASAN
#include <pthread.h>
#endif

namespace sim
{

static std::atomic<uint64_t> launch_count;

static uint3 block_id(uint64_t linear, uint3 grid)
{
    return uint3{static_cast<unsigned>(linear % grid.x), static_cast<unsigned>(linear / grid.x % grid.y),
                 static_cast<unsigned>(linear / grid.x / grid.y)};
}

static void order_begin(worker &w, uint64_t linear, uint64_t launch)
{
    const assay_sim_order order = config().order;
    for (unsigned i = 0; i < w.n; ++i)
        w.order[i] = order == ASSAY_SIM_ORDER_REVERSE ? w.n - 1 - i : i;
    w.random.state = mix(mix(config().order_seed, launch), linear);
    draw_order(w);
}

static void block_once(worker &w, uint64_t linear, uint64_t launch)
{
    blockIdx = block_id(linear, w.call->grid);
    memset(w.state, FRESH, w.n);
    w.runnable = w.n;
    w.exited = w.arrived = 0;
    w.hurt_block = false;
    w.sum = 0;
    for (unsigned k = 0; k * lanes < w.n; ++k) {
        const unsigned left = w.n - k * lanes;
        w.warps[k].exist = left >= lanes ? 0xffffffffu : (1u << left) - 1u;
        w.warps[k].exited = 0;
        w.warps[k].calling = false;
        w.warps[k].groups = 0;
    }
    order_begin(w, linear, launch);
    race_block(w, linear, false);
    shared_begin(w);
    async_begin(w);
    late_begin(w);
    tiles_begin(w);
    w.position = 1;
    w.current = w.order[0];
    w.state[w.current] = READY;
    first_jump(w, fiber_entry);
    async_end(w);
    late_end(w);
    tiles_end(w);
}

static bool block_run(worker &w, uint64_t linear, uint64_t launch)
{
    char damage[256];
    block_once(w, linear, launch);
    if (w.failed)
        return false;
#if !SIM_ASAN /* which has caught the write itself */
    if (shared_damage(w, damage, sizeof damage)) {
        if (w.meeting == nullptr && !w.hurt_block) { /* the other blocks would have to run again, too */
            w.tracing = true;
            block_once(w, linear, launch);
            w.tracing = false;
        }
        if (!w.failed) { /* what the first run wrote has led the second one elsewhere */
            assay_sim_report("out of bounds", "kernel %s block (%u,%u,%u): some thread: %s", w.call->name,
                             blockIdx.x, blockIdx.y, blockIdx.z, damage);
            w.failed = true;
            w.error = cudaErrorLaunchFailure;
        }
    }
#else
    (void)damage;
#endif
    return !w.failed;
}

struct grid_run {
    const kernel_call *call;
    uint64_t blocks, launch, factor, offset;
    std::atomic<uint64_t> next;
    std::atomic<bool> failed;
    std::atomic<cudaError_t> error;
    grid_meeting *meeting;
};
static __thread grid_run *running;

/* The i-th block to run: an affine permutation, which needs no table however large the grid is. */
static uint64_t block_at(const grid_run &g, uint64_t i)
{
    if (config().order == ASSAY_SIM_ORDER_FORWARD)
        return i;
    if (config().order == ASSAY_SIM_ORDER_REVERSE)
        return g.blocks - 1 - i;
    return static_cast<uint64_t>((static_cast<assay_sim_uint128>(i) * g.factor + g.offset) % g.blocks);
}

static void loop_entry()
{
    entered();
    worker &w = *self;
    const kernel_call &c = *w.call;
    static __thread stop_point nowhere;
    for (uint64_t i = w.block_from; i < w.block_to; ++i) {
        const uint64_t linear = block_at(*running, i);
        blockIdx = block_id(linear, c.grid);
        threadIdx =
            uint3{0, 0, 0}; /* not one of another kernel's: the loop reads its order before it is a thread */
        race_block(w, linear, true);
        const bool forward = config().order == ASSAY_SIM_ORDER_FORWARD;
        if (!forward)
            order_begin(w, linear, running->launch);
        c.run_loop(c.args, w.n, forward ? nullptr : w.order);
    }
    jump_to_scheduler(w, &nowhere, nullptr);
    abort();
}

static void scheduler_bounds(worker &w)
{
#if SIM_ASAN
    /* The scheduler's stack is the operating system thread's; its exact bounds come from pthread. */
    static __thread void *base;
    static __thread size_t bytes;
    pthread_attr_t attr;
    if (base == nullptr && pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstack(&attr, &base, &bytes);
        pthread_attr_destroy(&attr);
    }
    w.scheduler_bottom = base;
    w.scheduler_size = bytes;
#else
    (void)w;
#endif
}

static void worker_run(worker &w, grid_run &g)
{
    const uint64_t chunk = g.call->no_barrier ? 64 : 1;
    self = &w;
    running = &g;
    w.call = g.call;
    w.n = g.call->block.x * g.call->block.y * g.call->block.z;
    w.failed = w.tracing = w.met = w.waiting = w.hurt = w.hurt_block = false;
    w.hurts = 0;
    w.meeting = g.meeting;
    w.looping = g.call->no_barrier;
    w.strict = config().strict;
    w.callers = config().callers;
    w.arrays.clear();
    assay_sim_has_shared = 0;
    faults_watch();
    race_thread();
    scheduler_bounds(w);
    blockDim = g.call->block;
    gridDim = g.call->grid;
    uint3 id = {0, 0, 0};
    for (unsigned t = 0; t < w.n; ++t) {
        w.fibers[t].id = id;
        if (++id.x == blockDim.x) {
            id.x = 0;
            if (++id.y == blockDim.y) {
                id.y = 0;
                ++id.z;
            }
        }
    }
    watch_begin(w);
    while (!g.failed) {
        const uint64_t from = g.next.fetch_add(chunk);
        if (from >= g.blocks)
            break;
        w.place = from;
        if (w.meeting != nullptr && !meeting_begin(w))
            break;
        if (w.looping) {
            w.block_from = from;
            w.block_to = from + chunk < g.blocks ? from + chunk : g.blocks;
            first_jump(w, loop_entry);
        } else if (!block_run(w, block_at(g, from), g.launch)) {
            w.failed = true;
        }
        if (w.failed) {
            g.error = w.error;
            g.failed = true;
        }
        if (g.meeting != nullptr)
            meeting_left(w, w.failed);
    }
    if (w.hurt && !g.failed) {
        g.error = w.hurt_by;
        g.failed = true;
    }
    watch_end(w);
    self = nullptr;
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        const uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

static worker *worker_of_slot(size_t slot)
{
    static std::mutex lock;
    static std::vector<worker *> *workers = new std::vector<worker *>; /* kept for the life of the process */
    std::lock_guard<std::mutex> hold(lock);
    while (workers->size() <= slot)
        workers->push_back(new worker{});
    return (*workers)[slot];
}

/* The caller holds the runtime's lock: one grid at a time. */
cudaError_t kernel_run(const kernel_call &call)
{
    grid_run g;
    g.call = &call;
    g.blocks = static_cast<uint64_t>(call.grid.x) * call.grid.y * call.grid.z;
    g.launch = launch_count.fetch_add(1);
    random_stream r = {mix(config().order_seed, g.launch)};
    g.offset = r.below(g.blocks);
    do {
        g.factor = 1 + r.below(g.blocks);
    } while (common_divisor(g.factor, g.blocks) != 1);
    g.next = 0;
    g.failed = false;
    const uint64_t most = g.blocks / (call.no_barrier ? 64 : 1);
    race_kernel(call);
    g.meeting = call.cooperative ? meeting_make(g.blocks) : nullptr;
    const size_t helpers = call.cooperative ? static_cast<size_t>(g.blocks) - 1
                           : !ASSAY_SIM_RACES && config().threads > 1 && most > 1
                               ? static_cast<size_t>(most < static_cast<uint64_t>(config().threads)
                                                         ? most
                                                         : static_cast<uint64_t>(config().threads)) -
                                     1
                               : 0;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < helpers; ++i) {
        worker *w = worker_of_slot(i + 1);
        threads.emplace_back([w, &g] { worker_run(*w, g); });
    }
    worker_run(*worker_of_slot(0), g);
    for (std::thread &t : threads)
        t.join();
    meeting_free(g.meeting);
    return g.failed ? g.error.load() : cudaSuccess;
}

bool in_kernel()
{
    return self != nullptr;
}

void outside_kernel(const char *what)
{
    fprintf(stderr, "assay-sim: fatal: %s called outside a kernel\n", what);
    abort();
}

} /* namespace sim */

/* --- what kernels call -------------------------------------------------------------------------------------- */

unsigned assay_sim_lane(void)
{
    const sim::worker &w = sim::running_worker("__activemask");
    return w.looping ? (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32
                     : w.current % 32;
}

void *assay_sim_dynamic_shared(int line)
{
    sim::worker &w = sim::running_worker("dynamic shared memory");
    if (w.looping)
        sim::report_promise(w, "shared memory", line);
    w.fibers[w.current].line = line;
    return sim::shared_dynamic(w);
}

void *assay_sim_shared_array(const void *site, const char *name, size_t bytes, size_t align, int line)
{
    return sim::shared_array_at(sim::running_worker("shared memory"), site, name, bytes, align, line);
}

int assay_sim_is_global(const void *p)
{
    return sim::memory_find(p, nullptr, nullptr, nullptr) != sim::MEMORY_NONE;
}

void assay_sim_yield(void)
{
    sim::worker &w = sim::running_worker("__nanosleep");
    if (!w.looping) {
        sim::meeting_poll(w);
        sim::advance(w, false);
    }
}

void assay_sim_trap(int line)
{
    sim::worker &w = sim::running_worker("__trap");
    assay_sim_report("trap", WHERE "__trap()", WHERE_ARGS(w, threadIdx, line));
    sim::abandon(w);
}
