/* cooperative_groups::memcpy_async: the group's threads copy at once; wait() is a synchronization of the group, without which
 * other threads may not read what was copied. */
#ifndef ASSAY_SIM_COOPERATIVE_GROUPS_MEMCPY_ASYNC_H
#define ASSAY_SIM_COOPERATIVE_GROUPS_MEMCPY_ASYNC_H

#include "../cooperative_groups.h"

namespace cooperative_groups
{

template <class Group, class T, class S>
static inline void memcpy_async(const Group &g, T *dst, const S *src, size_t bytes)
{
    unsigned char *to = reinterpret_cast<unsigned char *>(dst);
    const unsigned char *from = reinterpret_cast<const unsigned char *>(src);
    const size_t n = g.size(), unit = bytes % 16 == 0 ? 16 : bytes % 4 == 0 ? 4 : 1;
    for (size_t i = g.thread_rank() * unit; i < bytes; i += n * unit)
        memcpy(to + i, from + i, unit);
}
template <class Group> static inline void wait(const Group &g, int line = ASSAY_SIM_HERE)
{
    g.sync(line);
}
template <unsigned Stages, class Group>
static inline void wait_prior(const Group &g, int line = ASSAY_SIM_HERE)
{
    g.sync(line);
}

} /* namespace cooperative_groups */

#endif
