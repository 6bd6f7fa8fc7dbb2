/* Runs: what every operation call of the engine needs, and the trace that it may write.
 *
 * gpu_run holds the context, communicators, position (phase, step, microbatch, layer), the trace writer
 * (NULL: off) and the dry mode, in which the same code only adds up sizes.  With the trace off no name is
 * formatted, no byte is copied and no stream is synchronized.  docs/TRACE.md, docs/OPS.md section 0 and 9. */
#ifndef GPU_TRACE_H
#define GPU_TRACE_H

#include "core/model/recipe.h"
#include "gpu/comm.h"
#include "gpu/value.h"

ASSAY_BEGIN_DECLS

struct gpu_run;
struct gpu_fault_plan;
struct gpu_rules;
struct gpu_operands;
/* Called for each output after an operation ran and before the outputs are recorded: may overwrite it on run->ctx.stream and says
 * so in *replaced; the record then names the slot as substituted.  moved: the input whose elements the operation only moves or
 * adds up over ranks; NULL: it computes. */
typedef assay_status (*gpu_substitute)(void *user, struct gpu_run *run, const char *op, const char *instance,
                                       const char *slot, const gpu_value *moved, gpu_value *output,
                                       bool *replaced);

/* One launch: an operation, or a list of n calls of one.  instance: of the first. */
typedef struct gpu_span {
    const char *op, *instance;
    int64_t n;
    int variant;       /* in `end`; collectives: 0 */
    bool recompute;    /* it runs again, for the backward pass */
    assay_group group; /* of a collective */
    const void *calls; /* the same in begin and end; gpu_span_operands reads it */
} gpu_span;
/* Operands of call i of the launch, i < n, while begin or end runs.  A collective's numbered pieces are not among them. */
const struct gpu_operands *gpu_span_operands(const gpu_span *span, int64_t i);
/* Around every launch and around it alone (no records, no faults): where timing events go, on run->ctx.stream.  Either may be
 * NULL. */
typedef struct gpu_observer {
    assay_status (*begin)(void *user, struct gpu_run *run, const gpu_span *span);
    assay_status (*end)(void *user, struct gpu_run *run, const gpu_span *span);
    void *user;
} gpu_observer;

/* A second compute stream (gpu/side.h). */
typedef struct gpu_side {
    gpu_ctx_stream own;
    cudaEvent_t begun, done;
    bool open; /* between begin and end: the context has this stream, workspace and ticket */
} gpu_side;

/* A communication stream beside products (gpu/beside.h). */
enum { GPU_SPLITS = 4 }; /* most splits of the tokens over tp */
enum {
    GPU_BESIDE_SUM,        /* of an input's gradient over tp, or of any product in splits of the rows */
    GPU_BESIDE_FIRST_HALF, /* rows of half h of the experts have arrived: + h */
    GPU_BESIDE_SECOND_HALF,
    GPU_BESIDE_RETURNED,    /* rows of the experts are back */
    GPU_BESIDE_FIRST_SPLIT, /* rows of split c of the tokens have arrived over tp: + c (gpu/parallel/splits.h) */
    GPU_BESIDE_LAST_SPLIT = GPU_BESIDE_FIRST_SPLIT + GPU_SPLITS - 1,
    GPU_BESIDE_SLOTS
};
typedef struct gpu_beside {
    gpu_ctx_stream own; /* no workspace and no ticket: it is for collectives */
    cudaEvent_t begun[GPU_BESIDE_SLOTS], done[GPU_BESIDE_SLOTS];
    bool open; /* between begin and end: the context has this stream */
} gpu_beside;

typedef struct gpu_run {
    gpu_ctx ctx;
    gpu_comm comm;
    cudaStream_t comm_stream; /* collectives that may overlap with compute */
    cudaEvent_t compute_done, comm_done;
    gpu_side side;             /* shared experts beside the dispatch (--moe-shared-expert-overlap) */
    gpu_beside beside;         /* collectives of activations beside products */
    assay_trace_writer *trace; /* NULL: off */
    assay_phase phase;
    int64_t step, microbatch;
    int64_t layer;              /* global number; -1 outside the decoder */
    int64_t part;               /* of the loss that is made in parts (gpu/output.h): 1 + number; 0 outside */
    const assay_recipe *recipe; /* in which type every class of operation stores */
    struct gpu_fault_plan *fault; /* planted faults; NULL: none */
    gpu_substitute substitute;    /* replaces results of operations; NULL: none */
    void *substitute_user;
    struct gpu_rules *rules; /* of --substitute (gpu/rules.h); NULL: none */
    int ran;                 /* variant of the call whose results are looked at; -1: none was launched yet */
    const gpu_observer *observer; /* NULL: nobody watches */
    int64_t layer_waits,
        waits_at_entry; /* comm.waits inside layers, and when the present one began (gpu/layer.c) */
    bool recompute;     /* calls repeat what ran before, for the backward pass: their records say so */
    bool graphs;        /* passes are captured (gpu/graph.h): no call may wait for the device */
    bool dry;           /* count sizes, run nothing */
    bool counted;       /* what operations do is counted from their shapes, which hold what is there alone */
    size_t workspace_needed; /* largest call workspace seen in dry mode */
    char *host;              /* staging of the trace */
    size_t host_bytes;
} gpu_run;

/* Names `v` after its producer, instance `at` (without the layer's prefix) and slot; phase and microbatch are
 * those of the run. */
void gpu_value_name(const gpu_run *run, gpu_value *v, const char *at, const char *slot);
/* Names it with the text itself. */
void gpu_value_rename(const gpu_run *run, gpu_value *v, const char *name);
/* "<forward name>.grad" with the dimensions of the forward value, in the present phase. */
void gpu_value_grad(const gpu_run *run, gpu_value *v, const gpu_value *forward);
/* It was written in the present phase and microbatch. */
void gpu_value_touch(const gpu_run *run, gpu_value *v);
/* "decoder.layers.3.<at>" inside a layer, "<at>" outside. */
void gpu_instance(const gpu_run *run, const char *at, char out[ASSAY_NAME]);

/* Writes a value as it is now and returns the id of its record; the trace is on. */
assay_status gpu_trace_write(gpu_run *run, const gpu_value *v, int64_t *id);
/* A tensor record of its own; nothing when the trace is off. */
assay_status gpu_trace_value(gpu_run *run, const gpu_value *v);
/* A tensor record of host data. */
assay_status gpu_trace_host(gpu_run *run, const char *name, assay_phase phase, assay_dtype dtype,
                            const assay_shard *shard, const void *data);
/* Row ids as an I64 record (kind LOCAL); later values of kind ROWS refer to it. */
assay_status gpu_trace_rows(gpu_run *run, gpu_rows *rows, const char *at);

/* Device to host and back, waiting for the stream first (or after). */
assay_status gpu_run_download(gpu_run *run, void *dst, const void *src, size_t bytes, const char *where);
assay_status gpu_run_upload(gpu_run *run, void *dst, const void *src, size_t bytes, const char *where);

ASSAY_END_DECLS

#endif
