/* Times of launches: an observer (gpu/trace.h) that records a pair of CUDA events around each, from a ring made beforehand,
 * and reads them when the step has been waited for.  Nothing waits inside a step.
 *
 * A first step is counted without events: how often every operation is called, its FLOPs and bytes by the formulas of its row
 * (core/model/ops_cost.h), and how many events the ring needs.  Timed steps must make the same calls. */
#ifndef GPU_BENCH_RECORD_H
#define GPU_BENCH_RECORD_H

#include "core/model/ops_cost.h"
#include "gpu/operands.h"
#include "gpu/trace.h"

ASSAY_BEGIN_DECLS

enum { GPU_BENCH_ROWS = 512, GPU_BENCH_OPEN = 16, GPU_BENCH_AT = 64 };

/* One line: the launches of a step that share phase, operation, variant, recomputation and group (and instance, when
 * instances are asked for). */
typedef struct gpu_bench_row {
    assay_phase phase;
    const assay_op *op;
    int variant;
    bool recompute;
    assay_group group;     /* of a collective */
    int ranks;             /* of that group; 0: no collective */
    char at[GPU_BENCH_AT]; /* without "decoder.layers.3."; "": all instances */
    /* of the counted step */
    int64_t calls, launches;
    assay_op_cost cost; /* of a collective: bytes as NCCL-tests count them, of the whole buffer */
    /* of timed steps */
    int64_t calls_now;
    double *ms; /* [steps] sum over the launches of a step */
} gpu_bench_row;

/* Launches that lie around each other (sends and receives of one NCCL group) are one stretch of time. */
typedef struct gpu_bench_open {
    const void *calls;
    int begin; /* event */
    char what[2 * GPU_BENCH_AT];
} gpu_bench_open;
typedef struct gpu_bench_pair {
    int row, begin, end; /* row -1: a stretch */
} gpu_bench_pair;

typedef struct gpu_bench {
    bool instances, timing;
    int64_t steps, step; /* timed steps in all, so far */
    int n_rows;
    gpu_bench_row rows[GPU_BENCH_ROWS];
    int n_open, stretch; /* begun and not ended; event that began the stretch */
    gpu_bench_open open[GPU_BENCH_OPEN];
    int64_t launches;    /* of the counted step */
    cudaEvent_t *events; /* the ring */
    int n_events, used;
    gpu_bench_pair *pairs;
    int n_pairs, max_pairs;
    double *step_ms, *busy_ms; /* [steps] first to last event; inside launches */
    gpu_observer observer;     /* for gpu_run.observer */
} gpu_bench;

/* steps: that will be timed, at least 1. */
assay_status gpu_bench_create(gpu_bench **out, int64_t steps, bool instances);
void gpu_bench_destroy(gpu_bench *b);
/* Around a step with `observer` in the run; the first is the counted one.  `end` waits for the stream's last event.
 * ASSAY_INTERNAL: a launch that began and did not end, or ended and never began; calls other than those counted. */
assay_status gpu_bench_begin_step(gpu_bench *b, gpu_run *run);
assay_status gpu_bench_end_step(gpu_bench *b, gpu_run *run);

/* Bytes of a collective in NCCL-tests' words: the sum that enters an all_reduce or reduce_scatter on a rank, that leaves an all_gather, that an
 * all_to_all, broadcast or send sends, that a recv receives. */
int64_t gpu_bench_wire_bytes(const gpu_operands *o);
/* What the bus carries for each byte of those: 2(n-1)/n, (n-1)/n or 1. */
double gpu_bench_bus_factor(const char *op, int ranks);

ASSAY_END_DECLS

#endif
