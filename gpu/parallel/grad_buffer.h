/* Parameters and main gradients in contiguous buffers of one layout (one pair for dense parameters, reduced
 * over dp_cp, one for experts, reduced over edp), cut into buckets that are reduced as a whole.  start and
 * finish of a reduction are separate steps on the communication stream.  Every reduction is a sum.
 * docs/LAYOUTS.md.
 *
 * ZeRO-1: bucket sizes are multiples of the group, rank r owns the r-th part of every bucket. */
#ifndef GPU_PARALLEL_GRAD_BUFFER_H
#define GPU_PARALLEL_GRAD_BUFFER_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* Elements of a bucket before it is closed, unless --ddp-bucket-size says otherwise: 16 MiB of F32. */
enum { GPU_BUCKET_ELEMENTS = 4 << 20, GPU_MAX_BUCKETS = 4096, GPU_MAX_PIECES = 8 };

typedef struct gpu_bucket {
    int64_t start, length;   /* elements of the buffer; length is a multiple of the group's size */
    int n_params, n_pending; /* parameters; how many of them are not ready in this step */
} gpu_bucket;

typedef struct gpu_grad_buffer {
    assay_group group; /* DP_CP or EDP */
    int size, rank;    /* of the group */
    float *data;       /* device [length]: main gradients */
    char *param_data;  /* device [length]: parameters in dtype `act` */
    assay_dtype act;
    int64_t length;
    int n_buckets;
    gpu_bucket *buckets;
    int n_ready; /* complete buckets of this step ... */
    int *ready;  /* ... in the order in which they became complete */
    int64_t n_params;
    gpu_param **params; /* in buffer order */
    int64_t *offsets;   /* of each parameter */
} gpu_grad_buffer;

/* Lays out the trained parameters that reduce over `group`; bucket_elements: closing size. */
assay_status gpu_grad_buffer_create(gpu_grad_buffer *b, gpu_model *m, assay_group group,
                                    int64_t bucket_elements);
void gpu_grad_buffer_destroy(gpu_grad_buffer *b);
/* Takes the memory from `arena` and points every parameter's weight and main_grad into it. */
assay_status gpu_grad_buffer_alloc(gpu_grad_buffer *b, gpu_arena *arena);
assay_status gpu_grad_buffer_zero(gpu_grad_buffer *b, gpu_model *m);

/* A gradient is complete; its bucket is when all of its are.  ASSAY_INTERNAL: more marks than parameters. */
assay_status gpu_grad_buffer_ready(gpu_grad_buffer *b, const gpu_param *p);

/* Sum over the group of bucket `index`: all_reduce, or reduce_scatter to this rank's part (scatter). Enqueued
 * on the communication stream after what the compute stream holds now. */
assay_status gpu_start_grad_sync(gpu_grad_buffer *b, gpu_model *m, int index, bool scatter);
/* The compute stream waits for every sync that was started. */
assay_status gpu_finish_grad_sync(gpu_model *m);
/* ZeRO-1: every rank's updated parts of the parameters to all ranks.  f32: of the gradient buffer instead,
 * into which the caller has put something else. */
assay_status gpu_param_sync(gpu_grad_buffer *b, gpu_model *m, bool f32);
/* The part of bucket `index` that group rank `rank` owns. */
void gpu_bucket_part(const gpu_grad_buffer *b, int index, int rank, int64_t *start, int64_t *length);

/* Flat range [start, start+length) of a piece as rectangles, at most GPU_MAX_PIECES: shards and their flat
 * starts in the piece. */
int gpu_flat_rectangles(const assay_shard *piece, int64_t start, int64_t length, assay_shard *out,
                        int64_t *flat_start);

ASSAY_END_DECLS

#endif
