/* Verbs of assay-gpu and assay-sim besides `step`. */
#ifndef GPU_MAIN_H
#define GPU_MAIN_H

#include "gpu/trace.h"

ASSAY_BEGIN_DECLS

/* `ops`: request is a trace whose op records have inputs only (attribute "act": dtype text, default F32);
 * every rank executes its own rank's records in order and writes a trace with the same inputs and the outputs
 * to `out`. Collectives run through NCCL over the world: all_reduce, all_gather, reduce_scatter, all_to_all,
 * broadcast (root), send, recv (peer; recv: shape, dtype), with counts in rows where pieces are uneven.  place: gpu_place
 * (gpu/execute.h) of every tensor of an operation that is no collective.  every_rung: an operation that is no collective runs on every
 * rung of its ladder that takes the record, and the answer has one record for each, of the same instance, from the highest variant down
 * to k0; its header says "every_rung": true. */
typedef struct gpu_ops_form {
    const char *variants; /* with every_rung: "" */
    int place;
    bool every_rung;
    double collective_timeout;
} gpu_ops_form;
assay_status gpu_ops_verb(const char *request, const char *out, const gpu_ops_form *form);
/* `ops --time N`: of every record, on rank 0 of 1, the seconds of N runs by events, each behind a copy that empties the caches; the
 * operands lie between guards and are checked as gpu_execute checks them.  out: a JSON object {"format": "assay-ops-times-1",
 * "device", "simulated", "peak": {"dtype", "product", "copy_bytes", "flops_per_s", "copy_bytes_per_s"}, "operations": [{"op", "instance",
 * "variant", "variant_name", "seconds": [N]}]}; of an operation that the engine has not, and of a collective, {"op", "instance", "unknown": true}.
 * ASSAY_INVALID_ARGUMENT: a request of several ranks. */
assay_status gpu_ops_time_verb(const char *request, const char *out, const char *variants, int64_t times);
/* Runs one collective record on host data; outputs as gpu_execute gives them. */
assay_status gpu_ops_collective(gpu_run *run, const assay_trace_op *op, const assay_trace_tensor *send,
                                void *(*allocate)(size_t), void **out, assay_dtype *dtype, int *ndim,
                                int64_t *shape);
bool gpu_ops_is_collective(const char *op);
/* `probe`: answers core/run/probe.h. */
assay_status gpu_probe_verb(const char *request, const char *out);
/* `doctor`: one JSON object on stdout; operations: with the ladder of every operation (`doctor --ops`). */
assay_status gpu_doctor_verb(bool operations);

ASSAY_END_DECLS

#endif
