/* cooperative_groups::reduce over tiles and coalesced groups: by rank, ((v0 + v1) + v2) + ..., the same in every lane. */
#ifndef ASSAY_SIM_COOPERATIVE_GROUPS_REDUCE_H
#define ASSAY_SIM_COOPERATIVE_GROUPS_REDUCE_H

#include "../cooperative_groups.h"

namespace cooperative_groups
{

template <class Group, class T, class Op>
static inline T reduce(const Group &g, T value, Op op, int line = ASSAY_SIM_HERE)
{
    T sum = g.shfl(value, 0, line);
    for (unsigned r = 1; r < g.size(); ++r)
        sum = op(sum, g.shfl(value, static_cast<int>(r), line));
    return sum;
}
template <class Group, class T, class Op, class Atomic>
static inline void reduce_update_async(const Group &g, Atomic &to, T value, Op op, int line = ASSAY_SIM_HERE)
{
    const T sum = reduce(g, value, op, line);
    if (g.thread_rank() == 0)
        to.fetch_add(sum);
}

} /* namespace cooperative_groups */

#endif
