/* Warp intrinsics: lanes that name the same mask meet, and the last to arrive computes every lane's result.
 */
#include "simt.hpp"

namespace sim
{

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

static uint64_t vote(int op, const fiber *lane, unsigned members)
{
    unsigned ballot = 0;
    for (unsigned m = members; m != 0; m &= m - 1) {
        const int i = __builtin_ctz(m);
        if (lane[i].value)
            ballot |= 1u << i;
    }
    return op == ASSAY_SIM_WARP_ALL ? ballot == members : op == ASSAY_SIM_WARP_ANY ? ballot != 0 : ballot;
}

[[noreturn]] static void report_absent(worker &w, unsigned k, const warp_group &g, unsigned i, unsigned from)
{
    assay_sim_report("absent lane", WHERE "shuffle with mask 0x%08x reads lane %u, which %s",
                     WHERE_ARGS(w, w.fibers[k * lanes + i].id, g.line), g.mask, from,
                     (g.mask >> from & 1u) == 0             ? "the mask does not name"
                     : (w.warps[k].exist >> from & 1u) == 0 ? "does not exist in this block"
                                                            : "has returned");
    abandon(w);
}

static void shuffle(worker &w, unsigned k, const warp_group &g)
{
    fiber *lane = &w.fibers[k * lanes];
    const unsigned members = g.arrived;
    for (unsigned m = members; m != 0; m &= m - 1) {
        const unsigned i = static_cast<unsigned>(__builtin_ctz(m));
        const unsigned from = source_lane(g.op, i, lane[i].operand, lane[i].width);
        if ((members >> from & 1u) == 0)
            report_absent(w, k, g, i, from);
        lane[i].result = lane[from].value;
    }
}

static void match(fiber *lane, unsigned members)
{
    for (unsigned m = members; m != 0; m &= m - 1) {
        fiber &f = lane[__builtin_ctz(m)];
        f.result = 0;
        for (unsigned r = members; r != 0; r &= r - 1) {
            if (lane[__builtin_ctz(r)].value == f.value)
                f.result |= 1u << __builtin_ctz(r);
        }
    }
}

/* A function of the whole warp: its lanes' operands lie on their stacks, none of which runs. */
static void call(worker &w, unsigned k, const warp_group &g)
{
    void *operands[lanes];
    if (g.arrived != 0xffffffffu) {
        const unsigned absent = static_cast<unsigned>(__builtin_ctz(~g.arrived));
        assay_sim_report(
            "absent lane", WHERE "a function of the whole warp lacks lane %u, which %s",
            WHERE_ARGS(w, w.fibers[k * lanes + static_cast<unsigned>(__builtin_ctz(g.arrived))].id, g.line),
            absent, (w.warps[k].exist >> absent & 1u) == 0 ? "does not exist in this block" : "has returned");
        abandon(w);
    }
    for (unsigned i = 0; i < lanes; ++i)
        operands[i] = reinterpret_cast<void *>(static_cast<uintptr_t>(w.fibers[k * lanes + i].value));
    w.warps[k].calling = true;
    g.run(operands); /* g itself may be gone: it may wait for other warps */
    w.warps[k].calling = false;
    race_warp(w, k, 0xffffffffu);
}

/* A warp whose lanes have met goes on before the others get their turns, while their stacks are in the nearest cache; now and then the
 * others do, because it may wait for them in a loop. */
static void warp_goes_on(worker &w, unsigned k)
{
    if (config().order == ASSAY_SIM_ORDER_RANDOM || ++w.meetings % turns_of_warp == 0)
        return;
    const unsigned behind = (k + 1) * lanes;
    w.position = config().order == ASSAY_SIM_ORDER_FORWARD ? k * lanes : behind < w.n ? w.n - behind : 0;
}

/* All lanes of the group have arrived: every lane's result is computed here, before anyone can post the next
 * value, and all go on. */
static __attribute__((noinline)) void warp_complete(worker &w, unsigned k, const warp_group &g)
{
    fiber *lane = &w.fibers[k * lanes];
    const unsigned members = g.arrived;
    race_warp(w, k, members);
    if (g.op >= ASSAY_SIM_WARP_SHFL && g.op <= ASSAY_SIM_WARP_SHFL_XOR) {
        shuffle(w, k, g);
    } else if (g.op == ASSAY_SIM_WARP_MATCH_ANY) {
        match(lane, members);
    } else if (g.op == ASSAY_SIM_WARP_CALL) {
        call(w, k, g);
    } else if (g.op != ASSAY_SIM_WARP_SYNC) {
        const uint64_t all =
            g.op < ASSAY_SIM_WARP_MATCH_ANY ? vote(g.op, lane, members) : reduce_lanes(g.op, lane, members);
        for (unsigned m = members; m != 0; m &= m - 1)
            lane[__builtin_ctz(m)].result = all;
    }
    unsigned char *state = &w.state[k * lanes];
    for (unsigned m = members; m != 0; m &= m - 1) {
        if (state[__builtin_ctz(m)] == AT_WARP) {
            state[__builtin_ctz(m)] = READY;
            ++w.runnable;
        }
    }
    warp_goes_on(w, k);
}

[[noreturn]] static void report_divergence(worker &w, const warp_group &g, unsigned mask, int line,
                                           const call_path &path)
{
    char there[512];
    other_place(line, g.line, path, g.path, there, sizeof there);
    const uint3 a = w.fibers[w.current / lanes * lanes + static_cast<unsigned>(__builtin_ctz(g.arrived))].id;
    assay_sim_report("divergent warp",
                     WHERE "arrives here with mask 0x%08x while thread (%u,%u,%u) waits with it %s",
                     WHERE_ARGS(w, w.fibers[w.current].id, line), mask, a.x, a.y, a.z, there);
    abandon(w);
}

/* The index of the group of lanes that wait with this mask; a new one, or one whose lanes may wait elsewhere. */
static __attribute__((noinline)) int warp_meet(worker &w, warp &p, unsigned mask, int op, int line,
                                               assay_sim_warp_function *run, const void *pc,
                                               const void *stack)
{
    call_path path;
    path_from(w, pc, stack, &path);
    int i = 0;
    while (i < p.groups && p.group[i].mask != mask)
        ++i;
    if (i == p.groups) {
        p.group[p.groups++] = warp_group{mask, 0, line, op, run, path};
        return i;
    }
    const warp_group &g = p.group[i];
    if (g.line != line || g.op != op || g.run != run || (!(path == g.path) && path_differs(path, g.path)))
        report_divergence(w, g, mask, line, path);
    return i;
}

static void group_remove(warp &p, int i)
{
    if (i != --p.groups)
        p.group[i] = p.group[p.groups];
}

void warp_left(worker &w, unsigned k)
{
    warp &p = w.warps[k];
    for (int i = 0; i < p.groups;) {
        const warp_group &g = p.group[i];
        if (g.arrived == (g.mask & p.exist & ~p.exited)) {
            warp_complete(w, k, g);
            group_remove(p, i);
        } else {
            ++i;
        }
    }
}

/* What no lane may ask for. */
static void check_request(worker &w, const warp &p, unsigned mask, int width, int line)
{
    const fiber &f = w.fibers[w.current];
    if ((mask >> w.current % lanes & 1u) == 0) {
        assay_sim_report("wrong mask", WHERE "mask 0x%08x does not name the calling lane %u",
                         WHERE_ARGS(w, f.id, line), mask, w.current % lanes);
        abandon(w);
    }
    if (w.strict && (mask & p.exited) != 0) {
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
}

/* One lane arrives; what it gets is in its fiber when this returns. */
static inline __attribute__((always_inline)) fiber &arrive(const char *what, int op, unsigned mask,
                                                           uint64_t value, int operand, int width,
                                                           assay_sim_warp_function *run, int line,
                                                           const void *pc, const void *stack)
{
    worker &w = running_worker(what);
    if (w.looping)
        report_promise(w, "warp intrinsic", line);
    if (w.tracing)
        shared_trace(w, "when it reached this line", line);
    const unsigned k = w.current / lanes;
    warp &p = w.warps[k];
    fiber &f = w.fibers[w.current];
    check_request(w, p, mask, width, line);
    const bool met = p.groups == 1 && p.group[0].mask == mask && p.group[0].line == line &&
                     p.group[0].op == op && p.group[0].run == run && !w.callers;
    const int joined = met ? 0 : warp_meet(w, p, mask, op, line, run, pc, stack);
    warp_group &g = p.group[joined];
    f.line = line;
    f.mask = mask;
    f.value = value;
    f.operand = operand;
    f.width = width;
    g.arrived |= 1u << w.current % lanes;
    if (g.arrived == (mask & p.exist & ~p.exited)) {
        warp_complete(w, k, g);
        group_remove(p, joined);
        return f;
    }
    w.state[w.current] = AT_WARP;
    --w.runnable;
    advance(w, false);
    return f;
}

} /* namespace sim */

using namespace sim;

uint64_t assay_sim_warp_exchange(assay_sim_warp_op op, unsigned mask, uint64_t value, int operand, int width,
                                 int line)
{
    return arrive("a warp intrinsic", op, mask, value, operand, width, nullptr, line,
                  __builtin_return_address(0), __builtin_dwarf_cfa())
        .result;
}

void assay_sim_warp_call(assay_sim_warp_function *run, void *operands, int line)
{
    arrive("a function of the warp", ASSAY_SIM_WARP_CALL, 0xffffffffu, reinterpret_cast<uintptr_t>(operands),
           0, 32, run, line, __builtin_return_address(0), __builtin_dwarf_cfa());
}
