/* Executes kernels: one stackful fiber per CUDA thread, one block at a time per operating system thread.
 *
 * A fiber runs until it waits (barrier, warp intrinsic) or ends; then the processor goes straight to the next
 * runnable thread in the block's order.  A thread that ends hands its stack to the next thread that has not
 * begun, so that a kernel without barriers uses one stack and two jumps per block.  A barrier releases when
 * all threads of the block have arrived; arrival at different source lines, an exited thread and a wait that
 * can never end are reported with kernel, block, thread and line, and abandon the launch.  Abandoned fibers
 * are dropped without unwinding: kernels are CUDA C and own nothing.
 *
 * The jump is Boost.Context's assembly (Oliver Kowalke), which neither saves the signal mask nor enters the
 * kernel. */
#include "sim.hpp"

#define ASSAY_SIM 1
#include "assay_sim_device.h"

#include <atomic>
#include <boost/context/detail/fcontext.hpp>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#if SIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#if SIM_TSAN
#include <sanitizer/tsan_interface.h>
#endif

__thread uint3 threadIdx;
__thread uint3 blockIdx;
__thread uint3 blockDim;
__thread uint3 gridDim;

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

static __thread worker *self;
static std::atomic<uint64_t> launch_count;

/* ---- switching
 * ---------------------------------------------------------------------------------------------------- */

static void set_thread(const worker &w, unsigned t)
{
    threadIdx = w.fibers[t].id;
}

static uint3 block_id(uint64_t linear, uint3 grid)
{
    return uint3{static_cast<unsigned>(linear % grid.x), static_cast<unsigned>(linear / grid.x % grid.y),
                 static_cast<unsigned>(linear / grid.x / grid.y)};
}

static stack *stack_take(worker &w)
{
    stack *s;
    if (!w.idle.empty()) {
        s = w.idle.back();
        w.idle.pop_back();
    } else {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        const size_t bytes = (config().stack_bytes + page - 1) / page * page + 2 * page;
        void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (p == MAP_FAILED || mprotect(p, page, PROT_NONE) != 0) {
            assay_sim_report("fatal", "no memory for the stack of thread %zu of a block (%zu bytes)",
                             w.stacks_made, bytes);
            abort();
        }
        s = new stack{};
        s->base = static_cast<char *>(p) + page;
        s->bytes = bytes - page;
        s->top = s->base + s->bytes - (w.stacks_made * 192) % page;
#if SIM_TSAN
        s->tsan = __tsan_create_fiber(0);
#endif
        ++w.stacks_made;
    }
    w.busy.push_back(s);
    return s;
}

/* All stacks are idle again after a block, finished or abandoned. */
static void stacks_reclaim(worker &w)
{
    for (stack *s : w.busy) {
        memory_asan_unpoison(s->base, s->bytes);
        w.idle.push_back(s);
    }
    w.busy.clear();
}

/* Jumps; the one who arrives stores the context of the one who left into the slot that came along. */
static void jump(worker &w, fcontext_t to, stack *target, fcontext_t *slot, void **fake)
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
    const transfer_t from = jump_fcontext(to, slot);
    *static_cast<fcontext_t *>(from.data) = from.fctx;
#if SIM_ASAN
    __sanitizer_finish_switch_fiber(fake ? *fake : nullptr, nullptr, nullptr);
#endif
}

static void jump_to_scheduler(worker &w, fcontext_t *slot, void **fake)
{
    jump(w, w.scheduler, nullptr, slot, fake);
}

[[noreturn]] static void abandon(worker &w)
{
    static __thread fcontext_t nowhere;
    w.failed = true;
    jump_to_scheduler(w, &nowhere, nullptr);
    abort(); /* nobody resumes an abandoned fiber */
}

/* ---- reports
 * ------------------------------------------------------------------------------------------------------ */

#define WHERE "kernel %s block (%u,%u,%u) thread (%u,%u,%u) line %d: "
#define WHERE_ARGS(w, id, line)                                                                              \
    (w).call->name, blockIdx.x, blockIdx.y, blockIdx.z, (id).x, (id).y, (id).z, line

[[noreturn]] static void report_exit(worker &w)
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
                 f.id.z, f.line);
        break;
    case AT_WARP:
        snprintf(text, bytes, "thread (%u,%u,%u) waits with mask 0x%08x in line %d", f.id.x, f.id.y, f.id.z,
                 f.mask, f.line);
        break;
    default:
        snprintf(text, bytes, "thread (%u,%u,%u) runs", f.id.x, f.id.y, f.id.z);
    }
}

/* Nobody can run and not all have ended: some warp waits for lanes that will never come. */
[[noreturn]] static void report_deadlock(worker &w)
{
    for (unsigned k = 0; k * lanes < w.n; ++k) {
        const warp &p = w.warps[k];
        for (int g = 0; g < p.groups; ++g) {
            const warp_group &q = p.group[g];
            const unsigned missing = q.mask & p.exist & ~q.arrived;
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

/* ---- choosing who is next
 * ----------------------------------------------------------------------------------------- */

static void draw_order(worker &w)
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

static void fiber_entry(transfer_t from);

/* Gives the processor away.  `ended`: the current thread is over; returns with a fresh thread to run on the
 * same stack. */
static void advance(worker &w, bool ended)
{
    const unsigned me = w.current;
    unsigned t;
    for (;;) {
        while (w.position < w.n && w.state[w.order[w.position]] > READY)
            ++w.position;
        if (w.position < w.n)
            break;
        if (w.runnable == 0) {
            if (w.exited != w.n)
                report_deadlock(w);
            static __thread fcontext_t nowhere;
            jump_to_scheduler(w, &nowhere, nullptr); /* the block is done */
            abort();
        }
        draw_order(w);
        w.position = 0;
    }
    t = w.order[w.position++];
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
        f.context = make_fcontext(f.on->top, static_cast<size_t>(f.on->top - f.on->base), fiber_entry);
    }
    if (ended) {
        /* Nobody else runs on this operating system thread before the jump has left the stack. */
        static __thread fcontext_t nowhere;
        jump(w, f.context, f.on, &nowhere, nullptr);
        abort();
    }
    jump(w, f.context, f.on, &w.fibers[me].context, &w.fibers[me].asan_fake);
    set_thread(w, me);
}

static void thread_ended(worker &w)
{
    const unsigned t = w.current;
    w.state[t] = EXITED;
    ++w.exited;
    --w.runnable;
    w.warps[t / lanes].exited |= 1u << t % lanes;
    if (w.arrived != 0 && w.arrived + w.exited == w.n)
        report_exit(w);
}

static void fiber_entry(transfer_t from)
{
    *static_cast<fcontext_t *>(from.data) = from.fctx;
#if SIM_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    worker &w = *self;
    const kernel_call &c = *w.call;
    set_thread(w, w.current);
    for (;;) {
        c.run(c.args);
        thread_ended(w);
        advance(w, true);
    }
}

/* ---- barriers
 * ----------------------------------------------------------------------------------------------------- */

[[noreturn]] static void report_promise(worker &w, const char *what, int line)
{
    assay_sim_report("broken promise", WHERE "%s in a kernel that was launched with GPU_LAUNCH_NO_BARRIER",
                     WHERE_ARGS(w, threadIdx, line), what);
    abandon(w);
}

static void block_release(worker &w)
{
    if (w.exited != 0)
        report_exit(w);
    memset(w.state, READY, w.n);
    w.runnable = w.n;
    w.result = w.op == ASSAY_SIM_BLOCK_AND  ? w.sum == static_cast<int>(w.n)
               : w.op == ASSAY_SIM_BLOCK_OR ? w.sum != 0
                                            : w.sum;
    w.arrived = 0;
    w.sum = 0;
    draw_order(w);
    w.position = 0;
}

static int block_barrier(worker &w, int op, int predicate, int line)
{
    fiber &f = w.fibers[w.current];
    if (w.looping)
        report_promise(w, "block barrier", line);
    if (w.arrived == 0) {
        w.first = w.current;
        w.line = line;
        w.op = op;
    } else if (line != w.line || op != w.op) {
        const uint3 a = w.fibers[w.first].id;
        assay_sim_report("divergent barrier",
                         WHERE
                         "arrives at this block barrier while thread (%u,%u,%u) waits at the one in line %d",
                         WHERE_ARGS(w, f.id, line), a.x, a.y, a.z, w.line);
        abandon(w);
    }
    f.line = line;
    w.sum += predicate != 0;
    w.state[w.current] = AT_BLOCK;
    --w.runnable;
    if (++w.arrived + w.exited == w.n)
        block_release(w);
    advance(w, false);
    return w.result;
}

/* ---- warps
 * -------------------------------------------------------------------------------------------------------- */

/* The lane that a shuffle reads, by the PTX manual's shfl: outside the segment the caller keeps its own
 * value. */
static unsigned source_lane(int op, unsigned lane, int operand, int width)
{
    const unsigned w = static_cast<unsigned>(width);
    const unsigned base = lane & ~(w - 1), last = base + w - 1;
    const unsigned b = static_cast<unsigned>(operand) & 31u;
    switch (op) {
    case ASSAY_SIM_WARP_SHFL:
        return base + (b & (w - 1));
    case ASSAY_SIM_WARP_SHFL_UP:
        return lane < base + b ? lane : lane - b;
    case ASSAY_SIM_WARP_SHFL_DOWN:
        return lane + b > last ? lane : lane + b;
    default:
        return (lane ^ b) > last ? lane : lane ^ b;
    }
}

static uint64_t reduce_lanes(int op, const fiber *lane, unsigned members)
{
    uint32_t acc = 0;
    bool any = false;
    for (unsigned m = members; m != 0; m &= m - 1) {
        const uint32_t v = static_cast<uint32_t>(lane[__builtin_ctz(m)].value);
        const int32_t sa = static_cast<int32_t>(acc), sv = static_cast<int32_t>(v);
        if (!any)
            acc = v;
        else if (op == ASSAY_SIM_WARP_ADD_U32)
            acc += v;
        else if (op == ASSAY_SIM_WARP_MIN_U32)
            acc = v < acc ? v : acc;
        else if (op == ASSAY_SIM_WARP_MAX_U32)
            acc = v > acc ? v : acc;
        else if (op == ASSAY_SIM_WARP_MIN_S32)
            acc = sv < sa ? v : acc;
        else if (op == ASSAY_SIM_WARP_MAX_S32)
            acc = sv > sa ? v : acc;
        else if (op == ASSAY_SIM_WARP_AND_U32)
            acc &= v;
        else if (op == ASSAY_SIM_WARP_OR_U32)
            acc |= v;
        else
            acc ^= v;
        any = true;
    }
    return acc;
}

/* All lanes of the group have arrived: every lane's result is computed here, before anyone can post the next
 * value. */
static void warp_complete(worker &w, unsigned k, const warp_group &g)
{
    fiber *lane = &w.fibers[k * lanes];
    const unsigned members = g.arrived;
    uint64_t all = 0;
    if (g.op >= ASSAY_SIM_WARP_ALL && g.op <= ASSAY_SIM_WARP_BALLOT) {
        unsigned ballot = 0;
        for (unsigned m = members; m != 0; m &= m - 1) {
            const int i = __builtin_ctz(m);
            if (lane[i].value)
                ballot |= 1u << i;
        }
        all = g.op == ASSAY_SIM_WARP_ALL   ? ballot == members
              : g.op == ASSAY_SIM_WARP_ANY ? ballot != 0
                                           : ballot;
    } else if (g.op >= ASSAY_SIM_WARP_ADD_U32) {
        all = reduce_lanes(g.op, lane, members);
    }
    for (unsigned m = members; m != 0; m &= m - 1) {
        const unsigned i = static_cast<unsigned>(__builtin_ctz(m));
        fiber &f = lane[i];
        f.result = all;
        if (g.op >= ASSAY_SIM_WARP_SHFL && g.op <= ASSAY_SIM_WARP_SHFL_XOR) {
            const unsigned from = source_lane(g.op, i, f.operand, f.width);
            if ((members >> from & 1u) == 0) {
                assay_sim_report("absent lane", WHERE "shuffle with mask 0x%08x reads lane %u, which %s",
                                 WHERE_ARGS(w, f.id, g.line), g.mask, from,
                                 g.mask >> from & 1u ? "does not exist in this block"
                                                     : "the mask does not name");
                abandon(w);
            }
            f.result = lane[from].value;
        } else if (g.op == ASSAY_SIM_WARP_MATCH_ANY) {
            f.result = 0;
            for (unsigned r = members; r != 0; r &= r - 1) {
                if (lane[__builtin_ctz(r)].value == f.value)
                    f.result |= 1u << __builtin_ctz(r);
            }
        }
        const unsigned t = k * lanes + i;
        if (w.state[t] == AT_WARP) {
            w.state[t] = READY;
            ++w.runnable;
        }
    }
}

static warp_group *warp_join(worker &w, warp &p, unsigned mask, int op, int line)
{
    const fiber &f = w.fibers[w.current];
    for (int i = 0; i < p.groups; ++i) {
        warp_group &g = p.group[i];
        if (g.mask != mask)
            continue;
        if (g.line != line || g.op != op) {
            const uint3 a =
                w.fibers[w.current / lanes * lanes + static_cast<unsigned>(__builtin_ctz(g.arrived))].id;
            assay_sim_report("divergent warp",
                             WHERE
                             "arrives here with mask 0x%08x while thread (%u,%u,%u) waits with it in line %d",
                             WHERE_ARGS(w, f.id, line), mask, a.x, a.y, a.z, g.line);
            abandon(w);
        }
        return &g;
    }
    p.group[p.groups] = warp_group{mask, 0, line, op};
    return &p.group[p.groups++];
}

static uint64_t warp_exchange(worker &w, int op, unsigned mask, uint64_t value, int operand, int width,
                              int line)
{
    if (w.looping)
        report_promise(w, "warp intrinsic", line);
    const unsigned k = w.current / lanes, bit = 1u << w.current % lanes;
    warp &p = w.warps[k];
    fiber &f = w.fibers[w.current];
    if ((mask & bit) == 0) {
        assay_sim_report("wrong mask", WHERE "mask 0x%08x does not name the calling lane %u",
                         WHERE_ARGS(w, f.id, line), mask, w.current % lanes);
        abandon(w);
    }
    if (mask & p.exited) {
        const unsigned gone = static_cast<unsigned>(__builtin_ctz(mask & p.exited));
        assay_sim_report("wrong mask", WHERE "mask 0x%08x names lane %u, whose thread has exited",
                         WHERE_ARGS(w, f.id, line), mask, gone);
        abandon(w);
    }
    if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
        assay_sim_report("wrong mask", WHERE "shuffle width %d is not a power of two of at most 32",
                         WHERE_ARGS(w, f.id, line), width);
        abandon(w);
    }
    warp_group *g = warp_join(w, p, mask, op, line);
    f.line = line;
    f.mask = mask;
    f.value = value;
    f.operand = operand;
    f.width = width;
    g->arrived |= bit;
    if (g->arrived == (mask & p.exist)) {
        const warp_group whole = *g;
        *g = p.group[--p.groups];
        warp_complete(w, k, whole);
        return f.result;
    }
    w.state[w.current] = AT_WARP;
    --w.runnable;
    advance(w, false);
    return f.result;
}

/* ---- shared memory
 * ------------------------------------------------------------------------------------------------ */

static void shared_begin(worker &w)
{
    const size_t dynamic = (w.call->shared_bytes + 15) / 16 * 16;
    memory_asan_unpoison(w.arena, w.arena_used ? w.arena_used : arena_bytes);
    memset(w.arena + shared_guard, 0xff, dynamic);
    memory_fill_guard(w.arena, shared_guard);
    memory_fill_guard(w.arena + shared_guard + w.call->shared_bytes,
                      dynamic - w.call->shared_bytes + shared_guard);
    memory_asan_poison(w.arena, shared_guard);
    memory_asan_poison(w.arena + shared_guard + w.call->shared_bytes,
                       dynamic - w.call->shared_bytes + shared_guard);
    w.arena_used = dynamic + 2 * shared_guard;
    w.static_used = 0;
    w.arrays.clear();
}

static bool shared_guard_intact(worker &w, const unsigned char *array, size_t bytes, const char *name)
{
    size_t at;
    if (memory_guard_intact(array + bytes, (bytes + 15) / 16 * 16 - bytes + shared_guard, &at))
        return true;
    assay_sim_report(
        "out of bounds",
        "kernel %s block (%u,%u,%u) thread (?,?,?) line 0: a write past the end of shared array %s, %zu "
        "bytes behind it",
        w.call->name, blockIdx.x, blockIdx.y, blockIdx.z, name, at);
    return false;
}

static bool shared_end(worker &w)
{
#if SIM_ASAN
    (void)w;
    (void)shared_guard_intact; /* the address sanitizer has caught the write itself */
    return true;
#else
    if (!shared_guard_intact(w, w.arena + shared_guard, w.call->shared_bytes, "(dynamic)"))
        return false;
    for (const shared_array &a : w.arrays) {
        if (!shared_guard_intact(w, a.at, a.bytes, a.name))
            return false;
    }
    return true;
#endif
}

static void *shared_array_at(worker &w, const void *site, const char *name, size_t bytes, size_t align,
                             int line)
{
    for (const shared_array &a : w.arrays) {
        if (a.site == site)
            return a.at;
    }
    if (w.looping)
        report_promise(w, "shared memory", line);
    const size_t unit = align < 16 ? 16 : align;
    const size_t start = (w.arena_used + unit - 1) / unit * unit, padded = (bytes + 15) / 16 * 16;
    w.static_used += padded;
    if (w.static_used > max_shared_default || w.static_used + w.call->shared_bytes > max_shared_optin) {
        assay_sim_report("shared memory",
                         WHERE
                         "array %s brings the block to %zu static and %zu dynamic bytes of shared memory; at "
                         "most %zu and %zu together are possible",
                         WHERE_ARGS(w, threadIdx, line), name, w.static_used, w.call->shared_bytes,
                         max_shared_default, max_shared_optin);
        abandon(w);
    }
    unsigned char *at = w.arena + start;
    memory_asan_unpoison(at, padded + shared_guard);
    memset(at, 0xff, padded);
    memory_fill_guard(at + bytes, padded - bytes + shared_guard);
    memory_asan_poison(at + bytes, padded - bytes + shared_guard);
    w.arena_used = start + padded + shared_guard;
    w.arrays.push_back(shared_array{site, name, at, bytes});
    return at;
}

/* ---- blocks and grids
 * --------------------------------------------------------------------------------------------- */

static worker *worker_make()
{
    worker *w = new worker{};
    void *p = mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        assay_sim_report("fatal", "no memory for a block's shared memory (%zu bytes)", arena_bytes);
        abort();
    }
    w->arena = static_cast<unsigned char *>(p);
    return w;
}

static void first_jump(worker &w, void (*entry)(transfer_t))
{
    stack *s = stack_take(w);
    if (!w.looping)
        w.fibers[w.current].on = s;
    const fcontext_t c = make_fcontext(s->top, static_cast<size_t>(s->top - s->base), entry);
#if SIM_TSAN
    w.scheduler_tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(s->tsan, 0);
#endif
#if SIM_ASAN
    __sanitizer_start_switch_fiber(&w.scheduler_fake, s->base, s->bytes);
#endif
    const transfer_t from = jump_fcontext(c, &w.scheduler);
    *static_cast<fcontext_t *>(from.data) = from.fctx;
#if SIM_ASAN
    __sanitizer_finish_switch_fiber(w.scheduler_fake, nullptr, nullptr);
#endif
    stacks_reclaim(w);
}

static void order_begin(worker &w, uint64_t linear, uint64_t launch)
{
    const assay_sim_order order = config().order;
    for (unsigned i = 0; i < w.n; ++i)
        w.order[i] = order == ASSAY_SIM_ORDER_REVERSE ? w.n - 1 - i : i;
    w.random.state = mix(mix(config().order_seed, launch), linear);
    draw_order(w);
}

static bool block_run(worker &w, uint64_t linear, uint64_t launch)
{
    blockIdx = block_id(linear, w.call->grid);
    memset(w.state, FRESH, w.n);
    w.runnable = w.n;
    w.exited = w.arrived = 0;
    w.sum = 0;
    for (unsigned k = 0; k * lanes < w.n; ++k) {
        const unsigned left = w.n - k * lanes;
        w.warps[k].exist = left >= lanes ? 0xffffffffu : (1u << left) - 1u;
        w.warps[k].exited = 0;
        w.warps[k].groups = 0;
    }
    order_begin(w, linear, launch);
    shared_begin(w);
    w.position = 1;
    w.current = w.order[0];
    w.state[w.current] = READY;
    first_jump(w, fiber_entry);
    return !w.failed && shared_end(w);
}

struct grid_run {
    const kernel_call *call;
    uint64_t blocks, launch, factor, offset;
    std::atomic<uint64_t> next;
    std::atomic<bool> failed;
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

static void loop_entry(transfer_t from)
{
    *static_cast<fcontext_t *>(from.data) = from.fctx;
#if SIM_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    worker &w = *self;
    const kernel_call &c = *w.call;
    static __thread fcontext_t nowhere;
    for (uint64_t i = w.block_from; i < w.block_to; ++i) {
        const uint64_t linear = block_at(*running, i);
        blockIdx = block_id(linear, c.grid);
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
    w.failed = false;
    w.looping = g.call->no_barrier;
    w.arena_used = 0;
    w.arrays.clear();
    scheduler_bounds(w);
    blockDim = g.call->block;
    gridDim = g.call->grid;
    for (unsigned t = 0; t < w.n; ++t) {
        w.fibers[t].id = uint3{t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
    }
    while (!g.failed) {
        const uint64_t from = g.next.fetch_add(chunk);
        if (from >= g.blocks)
            break;
        if (w.looping) {
            w.block_from = from;
            w.block_to = from + chunk < g.blocks ? from + chunk : g.blocks;
            first_jump(w, loop_entry);
        } else if (!block_run(w, block_at(g, from), g.launch)) {
            w.failed = true;
        }
        if (w.failed)
            g.failed = true;
    }
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
        workers->push_back(worker_make());
    return (*workers)[slot];
}

/* The caller holds the runtime's lock: one grid at a time. */
bool kernel_run(const kernel_call &call)
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
    const size_t helpers = config().threads > 1 && most > 1
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
    return !g.failed;
}

} /* namespace sim */

/* ---- what kernels call
 * -------------------------------------------------------------------------------------------- */

static sim::worker &running_worker(const char *what)
{
    if (sim::self == nullptr) {
        fprintf(stderr, "assay-sim: fatal: %s called outside a kernel\n", what);
        abort();
    }
    return *sim::self;
}

int assay_sim_block_barrier(assay_sim_block_op op, int predicate, int line)
{
    return sim::block_barrier(running_worker("__syncthreads"), op, predicate, line);
}

uint64_t assay_sim_warp_exchange(assay_sim_warp_op op, unsigned mask, uint64_t value, int operand, int width,
                                 int line)
{
    return sim::warp_exchange(running_worker("a warp intrinsic"), op, mask, value, operand, width, line);
}

unsigned assay_sim_lane(void)
{
    const sim::worker &w = running_worker("__activemask");
    return w.looping ? (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32
                     : w.current % 32;
}

void *assay_sim_dynamic_shared(int line)
{
    sim::worker &w = running_worker("dynamic shared memory");
    if (w.looping)
        sim::report_promise(w, "shared memory", line);
    return w.arena + sim::shared_guard;
}

void *assay_sim_shared_array(const void *site, const char *name, size_t bytes, size_t align, int line)
{
    return sim::shared_array_at(running_worker("shared memory"), site, name, bytes, align, line);
}

void assay_sim_trap(int line)
{
    sim::worker &w = running_worker("__trap");
    assay_sim_report("trap", WHERE "__trap()", WHERE_ARGS(w, threadIdx, line));
    sim::abandon(w);
}
