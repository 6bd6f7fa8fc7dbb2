/* One run of gpu_execute: slots on the device between guards.  Errors stick: the first one is kept in job->st
 * and later calls do nothing, so that the code of an operation reads as its slot table. */
#ifndef GPU_EXECUTE_JOB_H
#define GPU_EXECUTE_JOB_H

#include "gpu/check.h"
#include "gpu/execute.h"

enum { GPU_JOB_BUFFERS = ASSAY_MAX_SLOTS + 2 };

typedef struct gpu_job_buffer {
    char slot[ASSAY_SLOT_NAME];
    char *device;  /* guard, data, guard */
    char *image;   /* the same bytes on the host, as they were before the operation */
    size_t bytes;  /* of the data */
    bool is_input; /* must be unchanged afterwards */
    int output;    /* index in outputs, -1 */
} gpu_job_buffer;

typedef struct gpu_job {
    gpu_ctx *ctx;
    const char *op;
    const json_t *attrs;
    assay_dtype act;
    const gpu_slot *inputs;
    int n_inputs;
    bool used[ASSAY_MAX_SLOTS];
    gpu_slot outputs[ASSAY_MAX_SLOTS];
    int n_outputs;
    gpu_job_buffer buffers[GPU_JOB_BUFFERS];
    int n_buffers;
    assay_status st;
} gpu_job;

/* The input of that slot on the device; an absent tensor (and an error, if required) when there is none. */
gpu_tensor gpu_job_in(gpu_job *j, const char *slot);
gpu_tensor gpu_job_optional(gpu_job *j, const char *slot);
/* The same bytes in host memory, I64; NULL when absent.  Counts as used. */
const int64_t *gpu_job_host_i64(gpu_job *j, const char *slot, int64_t *count);
/* Every element of an I64 input (already fetched) lies in [low, high), or equals `or_else`. */
void gpu_job_range(gpu_job *j, const char *slot, int64_t low, int64_t high, int64_t or_else);
/* A new output, poisoned. */
gpu_tensor gpu_job_out(gpu_job *j, const char *slot, assay_dtype dtype, int ndim, const int64_t *shape);
gpu_tensor gpu_job_out1(gpu_job *j, const char *slot, assay_dtype dtype, int64_t n);
gpu_tensor gpu_job_out2(gpu_job *j, const char *slot, assay_dtype dtype, int64_t rows, int64_t cols);
/* A new output of the shape of another tensor. */
gpu_tensor gpu_job_out_like(gpu_job *j, const char *slot, assay_dtype dtype, gpu_tensor like);
/* An output that starts as a copy of input `slot_in` (accumulated targets). */
gpu_tensor gpu_job_out_from(gpu_job *j, const char *slot, const char *slot_in);
/* A guarded workspace of exactly that size replaces ctx->workspace for this run. */
void gpu_job_workspace(gpu_job *j, size_t bytes);

int64_t gpu_job_i64(gpu_job *j, const char *key, bool required, int64_t otherwise);
double gpu_job_double(gpu_job *j, const char *key, bool required, double otherwise);
bool gpu_job_bool(gpu_job *j, const char *key, bool otherwise);
void gpu_job_text(gpu_job *j, const char *key, const char *otherwise, char *out, size_t bytes);

/* Runs the operation's row of the table; defined in execute_ops.c. */
assay_status gpu_job_run(gpu_job *j);

#endif
