/* Declarations that the simulator's own files share.  Not for users: their headers are in include/. */
#ifndef ASSAY_SIM_HPP
#define ASSAY_SIM_HPP

#include "assay_sim.h"
#include "race.hpp"
#include "vector_types.h"

#include <stddef.h>
#include <stdint.h>

#if defined(__SANITIZE_ADDRESS__)
#define SIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIM_ASAN 1
#endif
#endif
#ifndef SIM_ASAN
#define SIM_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__)
#define SIM_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SIM_TSAN 1
#endif
#endif
#ifndef SIM_TSAN
#define SIM_TSAN 0
#endif

namespace sim
{

/* --- settings: environment first, assay_sim_set_*() later --------------------------------------------------- */

struct settings {
    assay_sim_order order;
    uint64_t order_seed;
    int threads;
    uint64_t stream_seed;
    bool eager;
    bool strict;         /* threads that have returned may not be missing at a barrier or in a mask */
    bool callers;        /* paths that differ in addresses are compared as source lines */
    bool device_private; /* device memory has no access outside work of streams */
    bool leaks;          /* blocks that nobody has freed are reported at the end */
    double spin_s;
    int devices;
    size_t memory_bytes;
    size_t stack_bytes;
    double nccl_timeout_s;
    bool nccl_rings; /* sums begin at another rank in each communicator and piece */
    bool tf32;
    int matrix_terms, matrix_guard_bits; /* of that model */
    bool matrix_by_factors;              /* and what counts for an exponent there */
    bool matrix_truncates;               /* tile products as the published model of tensor cores has them */
    bool fma;                            /* the CPU has AVX2 and FMA, and may use them */
    int target;                          /* assay_sim_target() */
};
settings &config();

/* SplitMix64 (Steele, Lea, Flood 2014): the generator behind every drawn order. */
struct random_stream {
    uint64_t state;
    uint64_t next()
    {
        uint64_t z = (state += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    uint64_t below(uint64_t n)
    {
        return n ? next() % n : 0;
    }
};
uint64_t mix(uint64_t a, uint64_t b);
double now_seconds();

/* --- memory ------------------------------------------------------------------------------------------------- */

enum memory_kind {
    MEMORY_NONE = 0,
    MEMORY_DEVICE = 1,
    MEMORY_PINNED = 2,
    MEMORY_REGISTERED = 3,
    MEMORY_MANAGED = 4
};

/* caller: the return address of the program's call, for the report of a leak. */
cudaError_t memory_allocate(void **out, size_t bytes, memory_kind kind, int device, bool poison,
                            const void *caller);
cudaError_t memory_release(void *ptr, memory_kind kind); /* checks the guards */
cudaError_t memory_register(void *ptr, size_t bytes);
cudaError_t memory_unregister(void *ptr);
void memory_symbol(const void *ptr, size_t bytes, int device); /* a variable of the device; again and again */
/* The kind of the block that holds ptr; *offset and *bytes (both may be NULL): where in it, and its size. */
memory_kind memory_find(const void *ptr, size_t *offset, size_t *bytes, int *device);
/* May this device touch all of it: 0 no (also: another device's memory), 1 its own memory, 2 pinned host memory. */
int memory_reachable(const void *ptr, size_t bytes, int device);
bool memory_on_several_devices(); /* false: whose memory it is need not be asked */
bool memory_contains(const void *ptr, size_t bytes, memory_kind *kind);
/* Whether the work is a copy or a fill, whose bounds were checked when it was enqueued. */
bool transfer_within_bounds(assay_sim_step (*step)(void *));
/* Work is about to run that is no copy within checked bounds. */
void memory_touched();
/* false, after a report that names the block and `after` (what ran last), when a guard was overwritten.  Of a device's blocks nothing is
 * asked where no such work has run since they were all whole; the host writes to the others as it likes. */
bool memory_guards_intact(const char *after);
/* device_private: opens device memory for work of a stream (+1) and closes it behind (-1); calls nest. */
void memory_access(int step);
/* Closes it however often it is open, and returns how often that was: memory_access of it opens it again. */
int memory_pause();
size_t memory_blocks();
size_t memory_used(int device);
constexpr uint64_t guard_of_shared = uint64_t{1} << 63; /* in the serial of a shared array */
/* The guard of block `serial` that begins at p, and the one that ends there. */
void memory_fill_guard(unsigned char *p, size_t bytes, uint64_t serial);
bool memory_guard_intact(const unsigned char *p, size_t bytes, uint64_t serial, size_t *at);
void memory_fill_guard_before(unsigned char *p, size_t bytes, uint64_t serial);
bool memory_guard_before_intact(const unsigned char *p, size_t bytes, uint64_t serial, size_t *back);
/* Says where an address lies that must not be accessed: before or behind a block, or in a freed one.  false: near no block. */
bool memory_describe(const void *ptr, char *text, size_t bytes);
/* Whether the host's access to ptr can have failed only because device memory was closed: it lies in a living block of it.  Not whether
 * it is closed by now: while the handler of the fault runs, another thread opens it for work of a stream. */
bool memory_is_private(const void *ptr);
/* The source line of an address of the program (simt_source.cpp), or module and offset. */
void source_place(const void *pc, char *text, size_t bytes);
void faults_watch(); /* simt_fault.cpp: from here on faults of this thread are reported */
void memory_asan_poison(void *p, size_t bytes);
void memory_asan_unpoison(void *p, size_t bytes);

/* --- kernels ------------------------------------------------------------------------------------------------ */

struct kernel_call {
    const char *name;
    const void *func;
    bool no_barrier;
    void *args;
    void (*destroy)(void *args);
    void (*run)(const void *args);
    void (*run_loop)(const void *args, unsigned n, const unsigned *order);
    uint3 grid, block;
    size_t shared_bytes; /* dynamic */
    size_t shared_most;  /* static and dynamic together */
    bool cooperative;    /* every block has a thread of the operating system of its own */
};

constexpr unsigned max_block_threads = 1024;
constexpr size_t max_shared_default = 49152;
constexpr size_t max_shared_optin = 232448;

/* Runs the whole grid; after a report cudaErrorLaunchFailure (misuse) or cudaErrorIllegalAddress (a fault). */
cudaError_t kernel_run(const kernel_call &call);
/* The body behind a kernel's address in a translated file; other addresses stay. */
const void *kernel_body(const void *kernel);
bool in_kernel(); /* does this operating system thread execute one? */

/* --- streams ------------------------------------------------------------------------------------------------ */

cudaError_t sticky_error();
void set_sticky_error(cudaError_t error);
void streams_reset(); /* drops all queued work and the sticky error */
int current_device();
cudaError_t set_current_device(int device);
cudaError_t record_error(cudaError_t error); /* makes it the thread's last error, and returns it */
/* record_error after a report "assay-sim: error: <function>: <message>". */
cudaError_t refuse(cudaError_t error, const char *kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void report_clear(); /* forgets the last report's text */
cudaError_t stream_sync(cudaStream_t stream);
cudaError_t device_sync();

} /* namespace sim */

#endif
