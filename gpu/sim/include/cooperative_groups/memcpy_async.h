/* cooperative_groups::memcpy_async: each thread of the group copies its part, which arrives when it waits (assay_sim_late.h); wait() and
 * wait_prior() synchronize the group behind it. */
#ifndef ASSAY_SIM_COOPERATIVE_GROUPS_MEMCPY_ASYNC_H
#define ASSAY_SIM_COOPERATIVE_GROUPS_MEMCPY_ASYNC_H

#include "../assay_sim_late.h"
#include "../cooperative_groups.h"

namespace cooperative_groups
{

template <class Group, class Size>
ASSAY_SIM_LATE_INLINE void memcpy_async(const Group &g, void *to, const void *from, const Size &bytes,
                                        int line = ASSAY_SIM_HERE)
{
    assay_sim::check_promise(to, from, bytes, line);
    assay_sim::late_part(ASSAY_SIM_LATE_GROUPS, assay_sim_late_stage(ASSAY_SIM_LATE_GROUPS, 1), to, from,
                         static_cast<size_t>(bytes), g.thread_rank(), g.size(), line);
}
/* As many elements as both have. */
template <class Group, class T>
ASSAY_SIM_LATE_INLINE void memcpy_async(const Group &g, T *to, size_t to_count, const T *from,
                                        size_t from_count, int line = ASSAY_SIM_HERE)
{
    assay_sim::late_part(ASSAY_SIM_LATE_GROUPS, assay_sim_late_stage(ASSAY_SIM_LATE_GROUPS, 1), to, from,
                         (to_count < from_count ? to_count : from_count) * sizeof(T), g.thread_rank(),
                         g.size(), line);
}
/* All copies but the last `Prior`. */
template <unsigned Prior, class Group>
static inline void wait_prior(const Group &g, int line = ASSAY_SIM_HERE)
{
    const uint64_t issued = assay_sim_late_stage(ASSAY_SIM_LATE_GROUPS, 0);
    assay_sim_late_complete(ASSAY_SIM_LATE_GROUPS, issued > Prior ? issued - Prior : 0, 0, line);
    g.sync(line);
}
template <class Group> static inline void wait(const Group &g, int line = ASSAY_SIM_HERE)
{
    wait_prior<0>(g, line);
}

} /* namespace cooperative_groups */

#endif
