/* Executes kernels: one stackful fiber per CUDA thread, one block at a time per operating system thread.
 *
 * A fiber runs until it waits (barrier, warp intrinsic) or ends; then the processor goes straight to the next
 * runnable thread in the block's order.  A thread that ends hands its stack to the next thread that has not
 * begun, so that a kernel without barriers uses one stack and two jumps per block.  A barrier releases when
 * all threads of the block have arrived; arrival at different source lines, an exited thread and a wait that
 * can never end are reported with kernel, block, thread and line, and abandon the launch.  Abandoned fibers
 * are dropped without unwinding: kernels are CUDA C and own nothing. */
#include "simt.hpp"
#include "sim.hpp"

#include <stdio.h>
#include <stdlib.h>

#if SIM_ASAN
#include <pthread.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if SIM_TSAN
#include <sanitizer/tsan_interface.h>
#endif

__thread uint3 threadIdx;
__thread uint3 blockIdx;
__thread uint3 blockDim;
__thread uint3 gridDim;
#if defined(__x86_64__)
const bool assay_sim_has_fma = __builtin_cpu_supports("fma") != 0;
#else
const bool assay_sim_has_fma = false;
#endif

namespace sim
{

__thread worker *self;

/* --- switching ---------------------------------------------------------------------------------------------- */

static void set_thread(const worker &w, unsigned t)
{
    threadIdx = w.fibers[t].id;
}

void jump(worker &w, stop_point to, stack *target, stop_point *slot, void **fake)
{
#if SIM_ASAN
    __sanitizer_start_switch_fiber(fake, target ? target->base : w.scheduler_bottom,
                                   target ? target->bytes : w.scheduler_size);
#else
    (void)fake;
#endif
#if SIM_TSAN
    __tsan_switch_to_fiber(target ? target->tsan : w.scheduler_tsan, 0);
#else
    (void)target;
    (void)w;
#endif
    assay_sim_switch(slot, to);
#if SIM_ASAN
    __sanitizer_finish_switch_fiber(fake ? *fake : nullptr, nullptr, nullptr);
#endif
}

void jump_to_scheduler(worker &w, stop_point *slot, void **fake)
{
    jump(w, w.scheduler, nullptr, slot, fake);
}

[[noreturn]] void abandon(worker &w, cudaError_t error)
{
    static __thread stop_point nowhere;
    w.failed = true;
    w.error = error;
    jump_to_scheduler(w, &nowhere, nullptr);
    abort(); /* nobody resumes an abandoned fiber */
}

/* --- reports ------------------------------------------------------------------------------------------------ */

[[noreturn]] static __attribute__((noinline)) void report_exit(worker &w)
{
    unsigned waiting = 0, gone = 0;
    for (unsigned t = w.n; t-- > 0;) {
        if (w.state[t] == AT_BLOCK)
            waiting = t;
        if (w.state[t] == EXITED)
            gone = t;
    }
    const uint3 a = w.fibers[waiting].id, b = w.fibers[gone].id;
    assay_sim_report(
        "divergent barrier",
        WHERE "%u of %u threads wait at the block barrier, but %u have exited, the first of them thread "
              "(%u,%u,%u)",
        WHERE_ARGS(w, a, w.fibers[waiting].line), w.arrived, w.n, w.exited, b.x, b.y, b.z);
    abandon(w);
}

static void describe(const worker &w, unsigned t, char *text, size_t bytes)
{
    const fiber &f = w.fibers[t];
    switch (w.state[t]) {
    case EXITED:
        snprintf(text, bytes, "thread (%u,%u,%u) has exited", f.id.x, f.id.y, f.id.z);
        break;
    case AT_BLOCK:
        snprintf(text, bytes, "thread (%u,%u,%u) waits at the block barrier in line %d", f.id.x, f.id.y,
                 f.id.z, line_of(f.line));
        break;
    case AT_WARP:
        snprintf(text, bytes, "thread (%u,%u,%u) waits with mask 0x%08x in line %d", f.id.x, f.id.y, f.id.z,
                 f.mask, line_of(f.line));
        break;
    default:
        snprintf(text, bytes, "thread (%u,%u,%u) runs", f.id.x, f.id.y, f.id.z);
    }
}

/* Nobody can run and not all have ended: some warp waits for lanes that will never come. */
[[noreturn]] static __attribute__((noinline)) void report_deadlock(worker &w)
{
    for (unsigned k = 0; k * lanes < w.n; ++k) {
        const warp &p = w.warps[k];
        for (int g = 0; g < p.groups; ++g) {
            const warp_group &q = p.group[g];
            const unsigned missing = q.mask & p.exist & ~q.arrived & ~(w.strict ? 0 : p.exited);
            if (missing == 0)
                continue;
            const unsigned who = k * lanes + static_cast<unsigned>(__builtin_ctz(q.arrived));
            const unsigned absent = k * lanes + static_cast<unsigned>(__builtin_ctz(missing));
            char text[160];
            describe(w, absent, text, sizeof text);
            assay_sim_report("divergent warp",
                             WHERE "mask 0x%08x waits for lanes 0x%08x that never arrive: %s",
                             WHERE_ARGS(w, w.fibers[who].id, q.line), q.mask, missing, text);
            abandon(w);
        }
    }
    report_exit(w);
}

/* --- choosing who is next ----------------------------------------------------------------------------------- */

void draw_order(worker &w)
{
    if (config().order != ASSAY_SIM_ORDER_RANDOM)
        return;
    for (unsigned i = w.n; i > 1; --i) {
        const unsigned j = static_cast<unsigned>(w.random.below(i));
        const unsigned t = w.order[i - 1];
        w.order[i - 1] = w.order[j];
        w.order[j] = t;
    }
}

/* Gives the processor away.  `ended`: the current thread is over; returns with a fresh thread to run on the
 * same stack. */
void advance(worker &w, bool ended)
{
    const unsigned me = w.current;
    unsigned t;
    __atomic_store_n(&w.turns, w.turns + 1, __ATOMIC_RELAXED);
    for (;;) {
        while (w.position < w.n && w.state[w.order[w.position]] > READY)
            ++w.position;
        if (w.position < w.n)
            break;
        if (w.runnable == 0) {
            if (w.exited != w.n && !hurt(w))
                report_deadlock(w);
            static __thread stop_point nowhere;
            jump_to_scheduler(w, &nowhere, nullptr); /* the block is done */
            abort();
        }
        draw_order(w);
        w.position = 0;
    }
    t = w.order[w.position++];
    if (w.position < w.n) { /* where the next one stopped: nobody has touched its stack for a round */
        const char *at = static_cast<const char *>(w.fibers[w.order[w.position]].at);
        for (int line = 0; line < 4; ++line)
            __builtin_prefetch(at + line * 64);
    }
    w.current = t;
    if (t == me && !ended)
        return;
    fiber &f = w.fibers[t];
    if (w.state[t] == FRESH) {
        w.state[t] = READY;
        if (ended) {
            f.on = w.fibers[me].on;
            set_thread(w, t);
            return;
        }
        f.on = stack_take(w);
        f.at = stop_make(f.on->top, static_cast<size_t>(f.on->top - f.on->base), fiber_entry);
    }
    if (ended) {
        /* Nobody else runs on this operating system thread before the jump has left the stack. */
        static __thread stop_point nowhere;
        jump(w, f.at, f.on, &nowhere, nullptr);
        abort();
    }
    jump(w, f.at, f.on, &w.fibers[me].at, &w.fibers[me].asan_fake);
    set_thread(w, me);
}

static void block_release(worker &w);

/* Since Volta a barrier waits for the threads that have not returned, and so does a warp intrinsic for the lanes of its
 * mask; in strict mode, as CUDA's text has it for all devices, a thread that has returned is missing. */
static void thread_ended(worker &w)
{
    const unsigned t = w.current;
    if (w.tracing)
        shared_trace(w, "when it ended, after this line", w.fibers[t].line);
    w.state[t] = EXITED;
    ++w.exited;
    --w.runnable;
    w.warps[t / lanes].exited |= 1u << t % lanes;
    if (!w.strict && w.warps[t / lanes].groups != 0)
        warp_left(w, t / lanes);
    if (w.arrived != 0 && w.arrived + w.exited == w.n &&
        !hurt(w)) /* else they wait for one that is no more */
        block_release(w);
}

void fiber_entry()
{
    entered();
    worker &w = *self;
    const kernel_call &c = *w.call;
    set_thread(w, w.current);
    for (;;) {
        w.fibers[w.current].line = 0;
        c.run(c.args);
        thread_ended(w);
        advance(w, true);
    }
}

/* --- barriers ----------------------------------------------------------------------------------------------- */

[[noreturn]] void report_promise(worker &w, const char *what, int line)
{
    assay_sim_report("broken promise", WHERE "%s in a kernel that was launched with GPU_LAUNCH_NO_BARRIER",
                     WHERE_ARGS(w, threadIdx, line), what);
    abandon(w);
}

static void block_release(worker &w)
{
    if (w.exited != 0 && w.strict)
        report_exit(w);
    if (w.exited == 0) {
        memset(w.state, READY, w.n);
    } else {
        for (unsigned t = 0; t < w.n; ++t) {
            if (w.state[t] == AT_BLOCK)
                w.state[t] = READY;
        }
    }
    race_barrier(w);
    w.runnable = w.arrived;
    w.result = w.op == ASSAY_SIM_BLOCK_AND  ? w.sum == static_cast<int>(w.arrived)
               : w.op == ASSAY_SIM_BLOCK_OR ? w.sum != 0
                                            : w.sum;
    w.arrived = 0;
    w.sum = 0;
    draw_order(w);
    w.position = 0;
}

void other_place(int here, int there, const call_path &here_by, const call_path &there_by, char *text,
                 size_t bytes)
{
    if (here == there)
        snprintf(text, bytes, "in line %d, reached by %s (here by %s)", line_of(there),
                 path_text(there_by).c_str(), path_text(here_by).c_str());
    else if (line_of(here) == line_of(there))
        snprintf(text, bytes, "in line %d, column %d (here column %d)", line_of(there), column_of(there),
                 column_of(here));
    else
        snprintf(text, bytes, "in line %d", line_of(there));
}

[[noreturn]] static __attribute__((noinline)) void report_barrier(worker &w, int line, const call_path &path)
{
    const uint3 a = w.fibers[w.first].id;
    char there[512];
    other_place(line, w.line, path, w.path, there, sizeof there);
    assay_sim_report("divergent barrier",
                     WHERE "arrives at this block barrier while thread (%u,%u,%u) waits at the one %s",
                     WHERE_ARGS(w, w.fibers[w.current].id, line), a.x, a.y, a.z, there);
    abandon(w);
}

/* The place of this thread is that of the first to arrive.  On its own, like the report: what a thread keeps on its stack while it waits is
 * read again when it goes on, and there are as many stacks as threads. */
static __attribute__((noinline)) void barrier_place(worker &w, int op, int line, const void *pc,
                                                    const void *stack)
{
    call_path path;
    path_from(w, pc, stack, &path);
    if (w.arrived == 0) {
        w.first = w.current;
        w.line = line;
        w.op = op;
        w.path = path;
    } else if (line != w.line || op != w.op || (!(path == w.path) && path_differs(path, w.path))) {
        report_barrier(w, line, path);
    }
}

static int block_barrier(worker &w, int op, int predicate, int line, const void *pc, const void *stack)
{
    if (w.looping)
        report_promise(w, "block barrier", line);
    if (hurt(w))
        leave_block(w);
    if (w.tracing)
        shared_trace(w, "when it reached this line", line);
    barrier_place(w, op, line, pc, stack);
    w.fibers[w.current].line = line;
    w.sum += predicate != 0;
    w.state[w.current] = AT_BLOCK;
    --w.runnable;
    if (++w.arrived + w.exited == w.n)
        block_release(w);
    advance(w, false);
    return w.result;
}

void first_jump(worker &w, void (*entry)())
{
    stack *s = stack_take(w);
    if (!w.looping)
        w.fibers[w.current].on = s;
    const stop_point c = stop_make(s->top, static_cast<size_t>(s->top - s->base), entry);
#if SIM_TSAN
    w.scheduler_tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(s->tsan, 0);
#endif
#if SIM_ASAN
    __sanitizer_start_switch_fiber(&w.scheduler_fake, s->base, s->bytes);
#endif
    assay_sim_switch(&w.scheduler, c);
#if SIM_ASAN
    __sanitizer_finish_switch_fiber(w.scheduler_fake, nullptr, nullptr);
#endif
    stacks_reclaim(w);
}

} /* namespace sim */

int assay_sim_block_barrier(assay_sim_block_op op, int predicate, int line)
{
    return sim::block_barrier(sim::running_worker("__syncthreads"), op, predicate, line,
                              __builtin_return_address(0), __builtin_dwarf_cfa());
}
