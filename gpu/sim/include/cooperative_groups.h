/* CUDA's cooperative groups on the simulator's barriers and warp intrinsics: a block, tiles of a warp, the lanes that meet in
 * one place, and the grid of a cooperative launch.  A group's synchronization is reported like that of the intrinsic which it
 * stands for, at its caller's line.  Not modelled: clusters, multi-grid groups, tiles wider than a warp, their names are not
 * declared.  Collectives are in cooperative_groups/reduce.h, scan.h and memcpy_async.h. */
#ifndef ASSAY_SIM_COOPERATIVE_GROUPS_H
#define ASSAY_SIM_COOPERATIVE_GROUPS_H
#define _COOPERATIVE_GROUPS_H_

#include "cuda_runtime.h"

#if !defined(ASSAY_SIM)
#error "gpu/sim: <cooperative_groups.h> is device code: compile with assay-cc, or with -DASSAY_SIM=1"
#endif

extern "C" {
void assay_sim_grid_barrier(int line);
int assay_sim_grid_is_cooperative(void);
}

namespace cooperative_groups
{

namespace details
{
static inline unsigned block_threads()
{
    return blockDim.x * blockDim.y * blockDim.z;
}
static inline unsigned rank_in_block()
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
/* The threads of the caller's warp, which the block may fill in part. */
static inline unsigned warp_mask()
{
    const unsigned first = rank_in_block() / 32 * 32, left = block_threads() - first;
    return left >= 32 ? 0xffffffffu : (1u << left) - 1u;
}
static inline unsigned bits_below(unsigned mask, unsigned lane)
{
    return static_cast<unsigned>(__builtin_popcount(mask & ((1u << lane) - 1u)));
}
/* The lane that has this rank in the mask. */
static inline int lane_of_rank(unsigned mask, unsigned rank)
{
    for (int lane = 0; lane < 32; ++lane) {
        if (mask >> lane & 1u && rank-- == 0)
            return lane;
    }
    return 32; /* no such lane: the intrinsic reports it */
}
} /* namespace details */

class thread_block;
template <unsigned Size, class Parent = void> class thread_block_tile;
class thread_group;
static inline thread_group tiled_partition(const thread_group &parent, unsigned size);

/* Any group: which lanes, or the whole block (mask 0). */
class thread_group
{
  public:
    void sync(int line = ASSAY_SIM_HERE) const
    {
        if (mask_ == 0)
            assay_sim_block_barrier(ASSAY_SIM_BLOCK_SYNC, 0, line);
        else
            __syncwarp(mask_, line);
    }
    unsigned long long size() const
    {
        return mask_ == 0 ? details::block_threads() : static_cast<unsigned>(__builtin_popcount(mask_));
    }
    unsigned long long num_threads() const
    {
        return size();
    }
    unsigned long long thread_rank() const
    {
        return mask_ == 0 ? details::rank_in_block()
                          : details::bits_below(mask_, details::rank_in_block() % 32);
    }
    bool is_valid() const
    {
        return true;
    }

  protected:
    explicit thread_group(unsigned mask) : mask_(mask)
    {
    }
    unsigned mask_;
    friend thread_group tiled_partition(const thread_group &, unsigned);
};

class thread_block : public thread_group
{
  public:
    thread_block() : thread_group(0)
    {
    }
    static void sync(int line = ASSAY_SIM_HERE)
    {
        assay_sim_block_barrier(ASSAY_SIM_BLOCK_SYNC, 0, line);
    }
    static unsigned size()
    {
        return details::block_threads();
    }
    static unsigned num_threads()
    {
        return details::block_threads();
    }
    static unsigned thread_rank()
    {
        return details::rank_in_block();
    }
    static dim3 group_index()
    {
        return dim3(blockIdx);
    }
    static dim3 thread_index()
    {
        return dim3(threadIdx);
    }
    static dim3 group_dim()
    {
        return dim3(blockDim);
    }
    static dim3 dim_threads()
    {
        return dim3(blockDim);
    }
};

/* Lanes of one warp: shuffles by rank, votes. */
class lane_group : public thread_group
{
  public:
    unsigned size() const
    {
        return static_cast<unsigned>(__builtin_popcount(mask_));
    }
    unsigned num_threads() const
    {
        return size();
    }
    unsigned thread_rank() const
    {
        return details::bits_below(mask_, details::rank_in_block() % 32);
    }
    template <class T> T shfl(T value, int rank, int line = ASSAY_SIM_HERE) const
    {
        return __shfl_sync(mask_, value, details::lane_of_rank(mask_, static_cast<unsigned>(rank) % size()),
                           32, line);
    }
    template <class T> T shfl_up(T value, unsigned delta, int line = ASSAY_SIM_HERE) const
    {
        const unsigned r = thread_rank();
        return __shfl_sync(mask_, value, details::lane_of_rank(mask_, r < delta ? r : r - delta), 32, line);
    }
    template <class T> T shfl_down(T value, unsigned delta, int line = ASSAY_SIM_HERE) const
    {
        const unsigned r = thread_rank();
        return __shfl_sync(mask_, value, details::lane_of_rank(mask_, r + delta < size() ? r + delta : r), 32,
                           line);
    }
    template <class T> T shfl_xor(T value, unsigned lanes, int line = ASSAY_SIM_HERE) const
    {
        const unsigned r = thread_rank() ^ lanes;
        return __shfl_sync(mask_, value, details::lane_of_rank(mask_, r < size() ? r : thread_rank()), 32,
                           line);
    }
    int any(int predicate, int line = ASSAY_SIM_HERE) const
    {
        return __any_sync(mask_, predicate, line);
    }
    int all(int predicate, int line = ASSAY_SIM_HERE) const
    {
        return __all_sync(mask_, predicate, line);
    }
    /* Bit r is the predicate of rank r. */
    unsigned ballot(int predicate, int line = ASSAY_SIM_HERE) const
    {
        return by_rank(__ballot_sync(mask_, predicate, line));
    }
    template <class T> unsigned match_any(T value, int line = ASSAY_SIM_HERE) const
    {
        return by_rank(__match_any_sync(mask_, value, line));
    }
    unsigned lanes() const /* not CUDA's: the mask, for collectives */
    {
        return mask_;
    }

  protected:
    explicit lane_group(unsigned mask) : thread_group(mask)
    {
    }
    unsigned by_rank(unsigned lane_bits) const
    {
        unsigned out = 0, rank = 0;
        for (unsigned lane = 0; lane < 32; ++lane) {
            if (mask_ >> lane & 1u)
                out |= (lane_bits >> lane & 1u) << rank++;
        }
        return out;
    }
};

class coalesced_group : public lane_group
{
  public:
    explicit coalesced_group(unsigned mask) : lane_group(mask)
    {
    }
    unsigned meta_group_size() const
    {
        return 1;
    }
    unsigned meta_group_rank() const
    {
        return 0;
    }
};

template <unsigned Size, class Parent> class thread_block_tile : public lane_group
{
    static_assert(Size >= 1 && Size <= 32 && (Size & (Size - 1)) == 0,
                  "gpu/sim: a tile has 1, 2, 4, 8, 16 or 32 threads; wider ones are not modelled");

  public:
    thread_block_tile() : lane_group(tile_mask())
    {
    }
    template <class Other> thread_block_tile(const thread_block_tile<Size, Other> &) : lane_group(tile_mask())
    {
    }
    static constexpr unsigned size()
    {
        return Size;
    }
    static constexpr unsigned num_threads()
    {
        return Size;
    }
    static unsigned thread_rank()
    {
        return details::rank_in_block() % Size;
    }
    unsigned meta_group_size() const
    {
        return (details::block_threads() + Size - 1) / Size;
    }
    unsigned meta_group_rank() const
    {
        return details::rank_in_block() / Size;
    }

  private:
    static unsigned tile_mask()
    {
        const unsigned lane = details::rank_in_block() % 32;
        const unsigned tile = Size == 32 ? 0xffffffffu : ((1u << (Size % 32)) - 1u) << (lane / Size * Size);
        return tile & details::warp_mask();
    }
};

static inline thread_block this_thread_block()
{
    return thread_block();
}
/* Which lanes happen to be together is up to the hardware: the least that CUDA promises is the caller alone, as for
 * __activemask(). */
static inline coalesced_group coalesced_threads()
{
    return coalesced_group(__activemask());
}
template <unsigned Size, class Parent> thread_block_tile<Size, Parent> tiled_partition(const Parent &)
{
    return thread_block_tile<Size, Parent>();
}
static inline thread_group tiled_partition(const thread_group &parent, unsigned size)
{
    const unsigned rank = static_cast<unsigned>(parent.thread_rank());
    if (parent.mask_ == 0 && size >= details::block_threads())
        return thread_group(0);
    const unsigned lanes = parent.mask_ == 0 ? details::warp_mask() : parent.mask_;
    const unsigned rank_in_lanes = parent.mask_ == 0 ? rank % 32 : rank;
    unsigned mask = 0, k = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
        if (lanes >> lane & 1u && k++ / size == rank_in_lanes / size)
            mask |= 1u << lane;
    }
    return thread_group(mask);
}
template <class Group>
static inline coalesced_group binary_partition(const Group &g, bool predicate, int line = ASSAY_SIM_HERE)
{
    const unsigned yes = __ballot_sync(g.lanes(), predicate, line);
    return coalesced_group(predicate ? yes : g.lanes() & ~yes);
}
template <class Group, class Label>
static inline coalesced_group labeled_partition(const Group &g, Label label, int line = ASSAY_SIM_HERE)
{
    return coalesced_group(__match_any_sync(g.lanes(), label, line));
}

/* The grid of a launch; sync() needs a cooperative one (cudaLaunchCooperativeKernel). */
class grid_group
{
  public:
    void sync(int line = ASSAY_SIM_HERE) const
    {
        assay_sim_grid_barrier(line);
    }
    bool is_valid() const
    {
        return assay_sim_grid_is_cooperative() != 0;
    }
    unsigned long long size() const
    {
        return num_blocks() * details::block_threads();
    }
    unsigned long long num_threads() const
    {
        return size();
    }
    unsigned long long num_blocks() const
    {
        return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z;
    }
    unsigned long long block_rank() const
    {
        return blockIdx.x + static_cast<unsigned long long>(gridDim.x) *
                                (blockIdx.y + static_cast<unsigned long long>(gridDim.y) * blockIdx.z);
    }
    unsigned long long thread_rank() const
    {
        return block_rank() * details::block_threads() + details::rank_in_block();
    }
    dim3 group_dim() const
    {
        return dim3(gridDim);
    }
    dim3 dim_blocks() const
    {
        return dim3(gridDim);
    }
    dim3 block_index() const
    {
        return dim3(blockIdx);
    }
};
static inline grid_group this_grid()
{
    return grid_group();
}

template <class Group> static inline void sync(const Group &g, int line = ASSAY_SIM_HERE)
{
    g.sync(line);
}
static inline void sync(const thread_block &, int line = ASSAY_SIM_HERE)
{
    thread_block::sync(line);
}
template <class Group> static inline unsigned long long group_size(const Group &g)
{
    return g.size();
}
namespace this_thread
{
}

/* --- operators, for reduce and scan --------------------------------------------------------------------------------- */

#define ASSAY_SIM_CG_OPERATOR(name, expression)                                                              \
    template <class T = void> struct name {                                                                  \
        T operator()(T a, T b) const                                                                         \
        {                                                                                                    \
            return static_cast<T>(expression);                                                               \
        }                                                                                                    \
    };
ASSAY_SIM_CG_OPERATOR(plus, a + b)
ASSAY_SIM_CG_OPERATOR(less, b < a ? b : a)
ASSAY_SIM_CG_OPERATOR(greater, a < b ? b : a)
ASSAY_SIM_CG_OPERATOR(bit_and, a &b)
ASSAY_SIM_CG_OPERATOR(bit_or, a | b)
ASSAY_SIM_CG_OPERATOR(bit_xor, a ^ b)
#undef ASSAY_SIM_CG_OPERATOR

} /* namespace cooperative_groups */

#endif
