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
                                 (g.mask >> from & 1u) == 0             ? "the mask does not name"
                                 : (w.warps[k].exist >> from & 1u) == 0 ? "does not exist in this block"
                                                                        : "has returned");
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

static warp_group *warp_join(worker &w, warp &p, unsigned mask, int op, int line, const call_path &path)
{
    const fiber &f = w.fibers[w.current];
    for (int i = 0; i < p.groups; ++i) {
        warp_group &g = p.group[i];
        if (g.mask != mask)
            continue;
        if (g.line != line || g.op != op || (!(path == g.path) && path_differs(path, g.path))) {
            char there[512];
            other_place(line, g.line, path, g.path, there, sizeof there);
            const uint3 a =
                w.fibers[w.current / lanes * lanes + static_cast<unsigned>(__builtin_ctz(g.arrived))].id;
            assay_sim_report("divergent warp",
                             WHERE "arrives here with mask 0x%08x while thread (%u,%u,%u) waits with it %s",
                             WHERE_ARGS(w, f.id, line), mask, a.x, a.y, a.z, there);
            abandon(w);
        }
        return &g;
    }
    p.group[p.groups] = warp_group{mask, 0, line, op, path};
    return &p.group[p.groups++];
}

void warp_left(worker &w, unsigned k)
{
    warp &p = w.warps[k];
    for (int i = 0; i < p.groups;) {
        const warp_group whole = p.group[i];
        if (whole.arrived == (whole.mask & p.exist & ~p.exited)) {
            p.group[i] = p.group[--p.groups];
            warp_complete(w, k, whole);
        } else {
            ++i;
        }
    }
}

uint64_t warp_exchange(worker &w, int op, unsigned mask, uint64_t value, int operand, int width, int line,
                       const call_path &path)
{
    if (w.looping)
        report_promise(w, "warp intrinsic", line);
    if (w.tracing)
        shared_trace(w, "when it reached this line", line);
    const unsigned k = w.current / lanes, bit = 1u << w.current % lanes;
    warp &p = w.warps[k];
    fiber &f = w.fibers[w.current];
    if ((mask & bit) == 0) {
        assay_sim_report("wrong mask", WHERE "mask 0x%08x does not name the calling lane %u",
                         WHERE_ARGS(w, f.id, line), mask, w.current % lanes);
        abandon(w);
    }
    if (config().strict && (mask & p.exited) != 0) {
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
    warp_group *g = warp_join(w, p, mask, op, line, path);
    f.line = line;
    f.mask = mask;
    f.value = value;
    f.operand = operand;
    f.width = width;
    g->arrived |= bit;
    if (g->arrived == (mask & p.exist & ~p.exited)) {
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

} /* namespace sim */
