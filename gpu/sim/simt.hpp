/* The state of the fibers that execute a block, shared by simt.cpp (switching, the block barrier),
 * simt_warp.cpp, simt_shared.cpp and simt_grid.cpp. */
#ifndef ASSAY_SIM_SIMT_HPP
#define ASSAY_SIM_SIMT_HPP

#include "sim.hpp"

#ifndef ASSAY_SIM
#define ASSAY_SIM 1
#endif
#include "assay_sim_device.h"

#include <string>
#include <unordered_map>
#include <vector>

#if SIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace sim
{

/* Where a thread of execution stopped: its stack pointer (simt_switch.cpp). */
typedef void *stop_point;

/* Leaves *save to come back to and goes on at `to`; neither saves the signal mask nor enters the kernel. */
#if defined(__x86_64__)
extern "C" void assay_sim_switch(stop_point *save, stop_point to);
#else
void assay_sim_switch(stop_point *save, stop_point to);
#endif
/* Begins at entry, which does not return, on the stack that ends at top. */
stop_point stop_make(char *top, size_t bytes, void (*entry)());

constexpr unsigned lanes = 32, turns_of_warp = 64;

enum thread_state : unsigned char { FRESH, READY, AT_BLOCK, AT_WARP, EXITED };

struct stack {
    char *base;
    size_t bytes;
    char *top; /* coloured: equal page offsets would fall into the same cache sets */
    void *tsan;
};

/* A place in the source: the line, and above it the column, where the compiler tells it. */
constexpr int line_of(int place)
{
    return place & 0xfffff;
}
constexpr int column_of(int place)
{
    return place >> 20;
}

struct call_path { /* return addresses, from a barrier up to the kernel */
    static constexpr int longest = 6;
    const void *pc[longest];
    int n;
    bool operator==(const call_path &other) const
    {
        int k = 0;
        while (k < n && k < other.n && pc[k] == other.pc[k])
            ++k;
        return n == other.n && k == n;
    }
};

struct
    frame_step { /* of a return address: how far above the stack pointer its caller's lies; -1: it is in the kernel */
    const void *pc;
    long step;
};

constexpr int frame_step_bits = 12;

struct alignas(64) fiber {
    stop_point at;
    uint64_t value, result; /* of the last warp intrinsic */
    int operand, width;
    uint3 id;
    int line;
    unsigned mask;
    stack *on;
    void *asan_fake;
};

struct warp_group { /* lanes that wait with one mask */
    unsigned mask, arrived;
    int line, op;
    assay_sim_warp_function *run; /* of ASSAY_SIM_WARP_CALL */
    call_path path;
};

struct warp {
    unsigned exist, exited;
    bool calling; /* a function of the whole warp runs, on the stack of its last lane */
    int groups;
    warp_group group[lanes];
};

struct shared_region { /* pages [begin, end) between two without access */
    unsigned char *raw;
    size_t raw_bytes;
    unsigned char *begin, *end;
};

struct shared_array {
    const void *site; /* nullptr: the dynamic shared memory */
    const char *name;
    unsigned char *at;
    size_t bytes, before, behind; /* the array, its guards */
    uint64_t serial;
    int line;
    shared_region region;
};

struct async_block;
struct late_block;
struct tile_block;
struct grid_meeting; /* of a cooperative launch (simt_cooperative.cpp) */
struct race_block_state;

struct worker {
    const kernel_call *call;
    unsigned n, current, position, runnable, exited;
    bool failed, looping;
    bool hurt, hurt_block;  /* a thread of this launch, of this block, has ended by a bad access */
    volatile bool spinning; /* the watchdog asks it to give up */
    int watched;
    uint64_t turns;    /* how often threads have switched */
    unsigned meetings; /* of lanes */
    cudaError_t error; /* when failed */
    cudaError_t hurt_by;
    const void *hurt_at[16]; /* where, each place once */
    unsigned hurts;
    stop_point scheduler;
    random_stream random;
    bool strict, callers; /* as configured when the launch began */
    /* the block barrier */
    unsigned arrived, first;
    int line, op, sum, result;
    call_path path;
    frame_step steps[1u << frame_step_bits];
    unsigned char state[max_block_threads];
    unsigned order[max_block_threads];
    fiber fibers[max_block_threads];
    warp warps[max_block_threads / lanes];
    /* shared memory */
    size_t static_used;
    shared_region dynamic_region;
    std::unordered_map<const void *, shared_region> regions; /* by site */
    std::vector<shared_array> arrays;                        /* of this block; the first is the dynamic one */
    late_block *late;      /* copies and waits of late.cpp; nullptr: none was ever issued */
    async_block *async;    /* copies under way; nullptr: none was ever issued */
    tile_block *tiles;     /* of sm_90a's tiles and barriers; nullptr: none was ever used */
    bool tracing;          /* the block runs again, to find who damaged a guard */
    grid_meeting *meeting; /* where the blocks of a cooperative launch wait for each other */
    bool met;              /* some thread of this block has waited there */
    volatile bool waiting; /* for other blocks: the watchdog lets it */
    uint64_t place;        /* among the blocks of a cooperative launch, in the order in which they begin */
    unsigned polls;        /* atomic reads and pauses since it has let other blocks run */
    race_block_state *race;
    /* stacks */
    std::vector<stack *> idle;
    std::vector<stack *> busy;
    size_t stacks_made, stacks_left; /* left: mapped behind stacks_at and not yet taken */
    char *stacks_at;
    /* the loop mode's range of blocks */
    uint64_t block_from, block_to;
    void *scheduler_fake, *scheduler_tsan;
    const void *scheduler_bottom;
    size_t scheduler_size;
};

extern __thread worker *self; /* of the kernel that this operating system thread runs */

#define WHERE "kernel %s block (%u,%u,%u) thread (%u,%u,%u) line %d: "
#define WHERE_ARGS(w, id, line)                                                                              \
    (w).call->name, blockIdx.x, blockIdx.y, blockIdx.z, (id).x, (id).y, (id).z, sim::line_of(line)

[[noreturn]] void abandon(worker &w, cudaError_t error = cudaErrorLaunchFailure);
/* What the running thread does at pc cannot be done (simt_fault.cpp).  Without the race checker the launch ends.  With it that
 * thread alone ends, and the other threads of its block go on until they would wait for it, at the block's barrier or with a
 * mask that names it, so that one run names what else is wrong and nothing that follows from its absence.  Other blocks
 * run as ever. */
[[noreturn]] void bad_access(worker &w, const void *pc, cudaError_t error);
/* Is it the first at this place in this launch?  Others need no report. */
bool bad_place(const worker &w, const void *pc);
/* The running thread of a block that is hurt would wait for all others: it ends. */
[[noreturn]] void leave_block(worker &w);
static inline bool hurt(const worker &w)
{
    return ASSAY_SIM_RACES && __builtin_expect(w.hurt_block, 0);
}
/* From here on a fault of this operating system thread inside a kernel becomes a report. */
const void *program_counter(const void *context); /* of a signal handler's */
/* Between them the watchdog looks after this worker. */
void watch_begin(worker &w);
void watch_end(worker &w);
/* The source lines of addresses in the program, each "kernel.cu:12 < caller.cu:40" where functions are inlined; "" when no
 * addr2line or no debug information knows them. */
std::vector<std::string> source_lines(const std::vector<const void *> &pcs);
/* source_place() writes into an array, because who abandons a block leaves its objects behind. */
[[noreturn]] void report_promise(worker &w, const char *what, int line);
void draw_order(worker &w);
/* Gives the processor away.  `ended`: the current thread is over; returns with a fresh thread to run on the
 * same stack. */
void advance(worker &w, bool ended);
void fiber_entry();
/* The first thing that an entry does. */
static inline void entered()
{
#if SIM_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
}
/* simt_stacks.cpp: a stack for a thread of this block; after the block, finished or abandoned, all are idle again. */
stack *stack_take(worker &w);
void stacks_reclaim(worker &w);
void jump(worker &w, stop_point to, stack *target, stop_point *slot, void **fake);
void jump_to_scheduler(worker &w, stop_point *slot, void **fake);
/* From the scheduler into a fresh stack; returns when that block, or loop over blocks, is over. */
void first_jump(worker &w, void (*entry)());

/* The calls by which the current thread came to the function that returns to pc with this stack pointer. */
/* Without `callers`, the place alone. */
void path_from(worker &w, const void *pc, const void *stack, call_path *path);
bool path_differs(const call_path &a,
                  const call_path &b); /* in the source, for paths that differ in addresses */
std::string path_text(const call_path &p);
/* "in line 12", and what else tells it from the place and path of `here`. */
void other_place(int here, int there, const call_path &here_by, const call_path &there_by, char *text,
                 size_t bytes);
/* A lane of warp k has returned: those who waited for it need not. */
void warp_left(worker &w, unsigned k);
[[noreturn]] void outside_kernel(const char *what);
static inline worker &running_worker(const char *what)
{
    worker *w = self;
    if (__builtin_expect(w == nullptr, 0))
        outside_kernel(what);
    return *w;
}

/* Asynchronous copies of the block (async.cpp): none yet; a report when 16 bytes that are read are still being copied; a
 * report when one was not waited for. */
void async_begin(worker &w);
void async_check(worker &w, const void *p, int line);
void async_end(worker &w);
/* The same of cuda::pipeline and its kin (late.cpp). */
void late_begin(worker &w);
void late_end(worker &w);
/* A thread looks again at what it waits for; true: no thread of the block can go on. */
bool look_in_vain(worker &w, int line);
/* The same of tiles, copies and barriers of sm_90a (mbarrier.cpp). */
void tiles_begin(worker &w);
void tiles_end(worker &w);
[[noreturn]] void report_matrix(worker &w, const char *kind, int line, const char *what);

/* A cooperative launch: how many of its blocks have begun to wait, and how many are over.  Under the race checker one block runs
 * at a time. */
grid_meeting *meeting_make(uint64_t blocks);
void meeting_free(grid_meeting *m);
bool meeting_begin(worker &w);             /* a block begins; false: it need not, another one has failed */
void meeting_left(worker &w, bool failed); /* a block is over */
/* A thread looks at what another block may change: now and then that one has to run. */
void meeting_poll(worker &w);

void shared_begin(worker &w);
void *shared_dynamic(worker &w);
/* true: a guard is damaged, and the text says which. */
bool shared_damage(const worker &w, char *text, size_t bytes);
/* Reports damage as the current thread's and abandons the block; when: "when it reached this line". */
void shared_trace(worker &w, const char *when, int line);
/* Says where in or beside a shared array an address lies; false: beside none. */
bool shared_describe(const worker &w, const void *ptr, char *text, size_t bytes);
void *shared_array_at(worker &w, const void *site, const char *name, size_t bytes, size_t align, int line);

} /* namespace sim */

#endif
