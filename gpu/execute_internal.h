/* One run of one operation, and the run behind it that leaves outputs out.  Private to gpu/execute*.c. */
#ifndef GPU_EXECUTE_INTERNAL_H
#define GPU_EXECUTE_INTERNAL_H

#include "gpu/execute.h"

ASSAY_BEGIN_DECLS

enum { GPU_JOB_BUFFERS = ASSAY_MAX_SLOTS + 2 };

typedef struct gpu_job_buffer {
    char slot[ASSAY_SLOT_NAME];
    char *memory;  /* what was allocated */
    char *device;  /* in it: guard, data, guard */
    char *image;   /* the same bytes on the host, as they were before the operation */
    size_t bytes;  /* of the data */
    bool is_input; /* must be unchanged afterwards */
    int output;    /* index in outputs, -1 */
} gpu_job_buffer;

/* One run: slots on the device between guards.  Errors stick: the first one is kept in st and later steps do nothing. */
typedef struct gpu_job {
    gpu_ctx *ctx;
    const assay_op *op;
    const json_t *attrs;
    assay_dtype act;
    const gpu_execute_form *form;
    const gpu_slot *inputs;
    int n_inputs;
    bool again;                                 /* no memory for outputs that may be left out */
    assay_op_operand operands[ASSAY_MAX_SLOTS]; /* the inputs for the table */
    assay_op_binding binding;
    gpu_operands o;
    gpu_slot outputs[ASSAY_MAX_SLOTS];
    int n_outputs;
    gpu_job_buffer buffers[GPU_JOB_BUFFERS];
    int n_buffers;
    gpu_declared declared;
    assay_status st;
} gpu_job;

/* The operation says no to the call, and has to leave everything as it is. */
static inline bool gpu_job_refused(assay_status st)
{
    return st == ASSAY_INVALID_ARGUMENT || st == ASSAY_UNSUPPORTED || st == ASSAY_LIMIT;
}

/* --- execute_again.c */
/* An output that a call need not have, whatever its inputs are. */
bool gpu_job_may_leave(const assay_op_slot *row);
/* The run was a plain one, and the operation has such outputs. */
bool gpu_job_runs_again(const gpu_job *first);
/* What j, zeroed, has in common with the first run, on whose rung ctx runs from here on; returns the form for it. */
gpu_execute_form gpu_job_begin_again(gpu_job *j, const gpu_job *first);
/* st: how the second run ended.  ASSAY_INTERNAL: a refusal, another rung, an output of other bits. */
assay_status gpu_job_compare(const gpu_job *first, const gpu_job *again, assay_status st);

ASSAY_END_DECLS

#endif
