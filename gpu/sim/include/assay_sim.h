/* The simulator's own interface: what a test or a tool asks of it beyond CUDA, and how the simulated
 * libraries (cuBLASLt, NCCL) put work on streams.  Programs that also run on a GPU include this
 * header where ASSAY_SIM is set alone.  docs/SIMULATOR.md is the guide. */
#ifndef ASSAY_SIM_H
#define ASSAY_SIM_H

#include "cuda_runtime_api.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Order in which the threads of a block, and the blocks of a grid, take their turns. */
typedef enum assay_sim_order {
    ASSAY_SIM_ORDER_FORWARD = 0,
    ASSAY_SIM_ORDER_REVERSE = 1,
    ASSAY_SIM_ORDER_RANDOM = 2 /* drawn anew for every block and every barrier interval */
} assay_sim_order;

/* Override ASSAY_SIM_ORDER, _THREADS, _STREAM_SEED, _STRICT and _SPIN_S from here on, for the whole process. */
void assay_sim_set_order(assay_sim_order order, uint64_t seed);
void assay_sim_set_threads(int threads);
void assay_sim_set_stream_seed(uint64_t seed);
void assay_sim_set_strict(int on);
void assay_sim_set_spin_limit(double seconds);
/* From here on the host's code may not touch device memory, or may (ASSAY_SIM_DEVICE_PRIVATE): for a part of a program, such as one call
 * of a library.  Called by the host while no work runs. */
void assay_sim_set_device_private(int on);

/* Which of the code that a program holds for several CPUs runs: 0 baseline, 1 for AVX2 and FMA (ASSAY_SIM_TARGET, else the best
 * that the CPU can do).  Always 0 where the simulator was built for one. */
int assay_sim_target(void);

/* How often the host of this process waited for the device, or asked whether it has come so far: synchronizations, queries,
 * copies that return when they are done. */
int64_t assay_sim_host_waits(void);

/* Who is told of every launch of this thread that is not refused: the kernel's name as the source spells it, templates' arguments
 * included.  NULL: nobody. */
typedef void assay_sim_launch_watch(void *user, const char *kernel);
void assay_sim_watch_launches(assay_sim_launch_watch *watch, void *user);

/* The last report's line, without the newline ("" when there was none since the last cudaDeviceReset); at
 * most the bytes given, always terminated.  assay_sim_reports() counts the reports of this process. */
void assay_sim_last_report(char *text, size_t bytes);
int64_t assay_sim_reports(void);
/* false: reports are counted and kept but not printed (for tests that plant faults). */
void assay_sim_print_reports(int on);

/* Prints "assay-sim: <kind>: <message>" on stderr as one line, and keeps it as the last report. */
void assay_sim_report(const char *kind, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Runs `body` once in forward order, once in reverse order and then in `random_orders` random ones.  Before
 * each run the device buffer `out` of `bytes` bytes is filled with 0xFF; after it the device is synchronized
 * and the buffer compared bitwise with that of the first run.  Returns how many runs differed from the first
 * (0 = no race was seen), or -1 on an error. */
int assay_sim_compare_orders(void (*body)(void *arg), void *arg, const void *out, size_t bytes,
                             int random_orders);

/* --- for simulated libraries -------------------------------------------------------------------------------- */

/* A piece of stream work is stepped until it is done.  ASSAY_SIM_PENDING lets other streams proceed and comes
 * back later. */
typedef enum assay_sim_step {
    ASSAY_SIM_DONE = 0,
    ASSAY_SIM_PENDING = 1,
    ASSAY_SIM_FAILED = 2
} assay_sim_step;

typedef struct assay_sim_work {
    const char *name;                    /* for reports */
    assay_sim_step (*step)(void *state); /* runs without blocking */
    void (*wait)(void *state);    /* may be NULL: blocks up to about a millisecond until step might do more */
    void (*destroy)(void *state); /* may be NULL */
    void *state;
} assay_sim_work;

/* Takes ownership of work->state, also on failure. */
cudaError_t assay_sim_enqueue(cudaStream_t stream, const assay_sim_work *work);
/* One round over all streams of this process: lets pending work make progress while the host waits for
 * something else. */
void assay_sim_poll(void);
/* Is [ptr, ptr+bytes) inside one allocation the current device may touch?  0 no, 1 device memory, 2 pinned host
 * memory. */
int assay_sim_memory_kind(const void *ptr, size_t bytes);
/* "unsupported: <what>", and cudaErrorNotSupported as the thread's last error. */
cudaError_t assay_sim_refuse(const char *what);

#ifdef __cplusplus
}
#endif

#endif
