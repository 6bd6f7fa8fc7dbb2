/* cooperative_groups::inclusive_scan and exclusive_scan over tiles and coalesced groups, added in the order of ranks. */
#ifndef ASSAY_SIM_COOPERATIVE_GROUPS_SCAN_H
#define ASSAY_SIM_COOPERATIVE_GROUPS_SCAN_H

#include "../cooperative_groups.h"

namespace cooperative_groups
{

template <class Group, class T, class Op>
static inline T inclusive_scan(const Group &g, T value, Op op, int line = ASSAY_SIM_HERE)
{
    T sum = g.shfl(value, 0, line), mine = sum;
    for (unsigned r = 1; r < g.size(); ++r) {
        sum = op(sum, g.shfl(value, static_cast<int>(r), line));
        mine = r <= g.thread_rank() ? sum : mine;
    }
    return mine;
}
template <class Group, class T>
static inline T inclusive_scan(const Group &g, T value, int line = ASSAY_SIM_HERE)
{
    return inclusive_scan(g, value, plus<T>(), line);
}
template <class Group, class T, class Op>
static inline T exclusive_scan(const Group &g, T value, Op op, int line = ASSAY_SIM_HERE)
{
    const T upto = inclusive_scan(g, value, op, line);
    const T before = g.shfl_up(upto, 1, line);
    return g.thread_rank() == 0 ? T() : before;
}
template <class Group, class T>
static inline T exclusive_scan(const Group &g, T value, int line = ASSAY_SIM_HERE)
{
    return exclusive_scan(g, value, plus<T>(), line);
}

} /* namespace cooperative_groups */

#endif
