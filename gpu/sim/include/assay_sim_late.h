/* Copies that arrive late, for cuda::pipeline, cuda::barrier, cooperative_groups::memcpy_async and <cuda_pipeline_primitives.h>, and
 * waiting by looking again.  Not CUDA's. */
#ifndef ASSAY_SIM_LATE_H
#define ASSAY_SIM_LATE_H

#include "assay_sim_device.h"

#include <cstddef>

extern "C" {

/* `bytes` from `from` and then `zeros` of 0 to `to`.  Until its stage of its queue is completed, the destination is poisoned (in random
 * orders, drawn by the seed, it holds the bytes already), and neither source nor destination may change. */
void assay_sim_late_copy(uint64_t queue, uint64_t stage, void *to, const void *from, size_t bytes,
                         size_t zeros, int line);
/* All copies of the queue's stages [0, end) arrive: those of the calling thread, or (everybody) of all threads of the block. */
void assay_sim_late_complete(uint64_t queue, uint64_t end, int everybody, int line);
/* The queues that a thread has without an object, and the stage that is open there; advance: it ends. */
enum assay_sim_late_own { ASSAY_SIM_LATE_PRIMITIVES, ASSAY_SIM_LATE_GROUPS };
uint64_t assay_sim_late_stage(enum assay_sim_late_own which, int advance);
uint64_t assay_sim_late_queue(void); /* a new one */
/* Lets the other threads run; a report when none of the block can go on. */
void assay_sim_look(const char *what, int line);
void assay_sim_seen(void); /* what was waited for has come */
int assay_sim_is_shared(const void *p);
void assay_sim_misuse(const char *kind, const char *what, int line) __attribute__((noreturn));
}

#define ASSAY_SIM_LATE_INLINE                                                                                \
    static inline __attribute__((always_inline)) /* a bad access is reported at its caller */

namespace cuda
{

enum thread_scope {
    thread_scope_system = 0,
    thread_scope_device = 1,
    thread_scope_block = 2,
    thread_scope_thread = 10
};

/* A size; pointers and size are multiples of the alignment, by the caller's promise. */
template <std::size_t Alignment> struct aligned_size_t {
    static_assert(Alignment != 0 && (Alignment & (Alignment - 1)) == 0, "an alignment is a power of two");
    static constexpr std::size_t align = Alignment;
    std::size_t value;
    constexpr explicit aligned_size_t(std::size_t bytes) : value(bytes)
    {
    }
    constexpr operator std::size_t() const
    {
        return value;
    }
};

} /* namespace cuda */

namespace assay_sim
{

ASSAY_SIM_LATE_INLINE void check_promise(const void *, const void *, std::size_t, int)
{
}
template <std::size_t Alignment>
ASSAY_SIM_LATE_INLINE void check_promise(const void *to, const void *from,
                                         cuda::aligned_size_t<Alignment> bytes, int line)
{
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes.value) % Alignment != 0)
        assay_sim_misuse("misaligned",
                         "memcpy_async of an aligned_size_t: a pointer or the size is no multiple of it",
                         line);
}

/* This thread's part of a group's copy. */
ASSAY_SIM_LATE_INLINE void late_part(uint64_t queue, uint64_t stage, void *to, const void *from,
                                     std::size_t bytes, std::size_t rank, std::size_t threads, int line)
{
    const uintptr_t all = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
    const std::size_t unit = all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1;
    const std::size_t part = (bytes / unit + threads - 1) / threads * unit, at = rank * part;
    if (at < bytes)
        assay_sim_late_copy(queue, stage, static_cast<unsigned char *>(to) + at,
                            static_cast<const unsigned char *>(from) + at,
                            part < bytes - at ? part : bytes - at, 0, line);
}

} /* namespace assay_sim */

#endif
