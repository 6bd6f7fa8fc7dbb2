/* The race checker: what the rest of the simulator tells it.  Empty functions where the simulator is built without it
 * (assay_cudasim); assay_cudasim_races has ASSAY_SIM_RACES=1. */
#ifndef ASSAY_SIM_RACE_HPP
#define ASSAY_SIM_RACE_HPP

#include <map>
#include <stddef.h>
#include <stdint.h>

#ifndef ASSAY_SIM_RACES
#define ASSAY_SIM_RACES 0
#endif

namespace sim
{

struct worker;
struct kernel_call;

#if ASSAY_SIM_RACES

/* How much of every stream's work has happened before: stream -> how many pieces. */
struct race_clock {
    std::map<uint64_t, uint64_t> at;
    void join(const race_clock &other);
};
race_clock &race_host();
/* The next piece of this stream's work begins; what is accessed until the next call belongs to it. */
void race_work(race_clock &stream, uint64_t id, const char *name);
void race_kernel(const kernel_call &call);
/* The calling thread of the operating system is about to run blocks. */
void race_thread();
void race_block(worker &w, uint64_t linear, bool loop);
void race_barrier(const worker &w);
/* This block has come to the grid's barrier; all: it is the last. */
void race_grid(const worker &w, bool all);
/* The running thread hands on at an mbarrier or a named barrier what it and its warp did, or takes up what others handed on there. */
void race_arrive(const worker &w, const void *barrier);
void race_pass(const worker &w, const void *barrier);
void race_warp(const worker &w, unsigned k, unsigned members);
/* A copy or a fill of the stream's work. */
void race_range(const void *p, size_t bytes, bool write);
/* Memory that nobody has written, its guards, and memory that is no more. */
void race_memory(const void *user, size_t bytes, size_t before, size_t behind, bool device, bool poisoned);
void race_memory_gone(const void *from, size_t bytes);
void race_shared(const void *array, size_t bytes, size_t before, size_t behind);
void race_initialized(const void *p, size_t bytes);
/* Memory to which a copy is under way. */
void race_coming(const void *p, size_t bytes);
/* An access that the simulator makes for the running thread of a kernel; pc: behind the call that asked for it. */
void race_touch(worker &w, const void *p, size_t bytes, bool write, const void *pc);

#else

struct race_clock {
    void join(const race_clock &)
    {
    }
};
static inline race_clock race_host()
{
    return race_clock{};
}
static inline void race_work(race_clock &, uint64_t, const char *)
{
}
static inline void race_kernel(const kernel_call &)
{
}
static inline void race_thread()
{
}
static inline void race_block(worker &, uint64_t, bool)
{
}
static inline void race_barrier(const worker &)
{
}
static inline void race_grid(const worker &, bool)
{
}
static inline void race_arrive(const worker &, const void *)
{
}
static inline void race_pass(const worker &, const void *)
{
}
static inline void race_warp(const worker &, unsigned, unsigned)
{
}
static inline void race_range(const void *, size_t, bool)
{
}
static inline void race_memory(const void *, size_t, size_t, size_t, bool, bool)
{
}
static inline void race_memory_gone(const void *, size_t)
{
}
static inline void race_shared(const void *, size_t, size_t, size_t)
{
}
static inline void race_initialized(const void *, size_t)
{
}
static inline void race_coming(const void *, size_t)
{
}
static inline void race_touch(worker &, const void *, size_t, bool, const void *)
{
}

#endif

} /* namespace sim */

#endif
