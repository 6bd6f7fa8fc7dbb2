/* Parameters and main gradients in contiguous buffers of one layout (one pair for dense parameters, reduced
 * over dp_cp, one for experts, reduced over edp), cut into buckets that are reduced as a whole.  start and
 * finish of a reduction are separate steps on the communication stream.  Every reduction is a sum.
 * docs/LAYOUTS.md.
 *
 * ZeRO: bucket sizes are multiples of the group, rank r owns the r-th part of every bucket.  With ZeRO-2 no bucket
 * goes beyond a unit (a layer, the embedding, the output); the unit's whole gradients lie in a slot during one backward, and the buffer is the parts of this rank, summed over the microbatches.  With ZeRO-3 the same holds for the
 * parameters: whole in a slot while they are used, else this rank's parts (parallel/fsdp.h). */
#ifndef GPU_PARALLEL_GRAD_BUFFER_H
#define GPU_PARALLEL_GRAD_BUFFER_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* Elements of a bucket before it is closed, unless --ddp-bucket-size says otherwise: 16 MiB of F32. */
enum { GPU_BUCKET_ELEMENTS = 4 << 20, GPU_MAX_BUCKETS = 4096, GPU_MAX_PIECES = 8 };
/* Slots: two take turns, and a tied embedding, which is used together with the output's, has the third. */
enum { GPU_SLOTS = 3, GPU_SLOT_TIED = 2 };

/* Room for the whole buckets of one unit: gradients or parameters. */
typedef struct gpu_slot {
    char *data;
    int64_t length;   /* elements */
    cudaEvent_t done; /* the communication stream is done with it: scattered, or gathered */
    bool waited;      /* the compute stream waits for `done` already */
} gpu_slot;

typedef struct gpu_bucket {
    int64_t start, length; /* elements of the buffer; length is a multiple of the group's size */
    int n_params,
        n_pending; /* parameters; how many of them are not ready in this step (ZeRO-2: microbatch) */
    int64_t first_param;
    int grad_slot,
        weight_slot;    /* of the buffer's; neighbouring units have different ones where calls overlap */
    int64_t in_slot;    /* elements before it in its slots */
    bool reduced;       /* in this step (ZeRO-0, 1) */
    bool open;          /* its gradients are being written in the slot */
    bool gathered;      /* its parameters are in the slot */
    cudaEvent_t synced; /* ZeRO-1, 2: its parameters are gathered after the optimizer's step */
    bool waits;         /* the compute stream has not waited for that yet */
} gpu_bucket;

typedef struct gpu_grad_buffer {
    assay_group whole;      /* DP_CP or EDP: whose parameters these are */
    assay_group group;      /* the ranks that share one copy of them: the same, or with HSDP a part of it */
    assay_group replicas;   /* HSDP: the ranks that hold the same part of other copies */
    int size, rank, copies; /* of the group; of replicas */
    bool scattered;         /* ZeRO-2: whole gradients are in slots */
    bool gathered;          /* ZeRO-3: whole parameters are in slots */
    float *data;      /* device: main gradients [length], scattered: this rank's parts [length / size] */
    char *param_data; /* device: parameters in dtype `act` [length], gathered: this rank's parts */
    float *received;  /* device [largest bucket / size]: the sum of one microbatch (scattered) */
    gpu_slot grads[GPU_SLOTS], weights[GPU_SLOTS];
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

/* Lays out the trained parameters that reduce over `whole`. */
assay_status gpu_grad_buffer_create(gpu_grad_buffer *b, gpu_model *m, assay_group whole);
void gpu_grad_buffer_destroy(gpu_grad_buffer *b);
/* Takes the memory from `arena` and points every parameter's weight and main_grad into it. */
assay_status gpu_grad_buffer_alloc(gpu_grad_buffer *b, gpu_arena *arena);
/* Zeros in the parameters, gaps and all; slots are poisoned. */
assay_status gpu_grad_buffer_clear(gpu_grad_buffer *b, gpu_model *m);
/* Bytes of elements of all ones: NaN in every type, for what must not be read. */
enum { GPU_POISON = 0xFF };
/* Zeros for gradients of parameters [first, first + n) of the buffer that are added to from the first on; those that a product
 * overwrites get none (traced or simulated: poison). */
assay_status gpu_grads_clear(const gpu_grad_buffer *b, gpu_model *m, int64_t first, int64_t n);
/* The same for the step; zero2, zero3: zeros for the sums of the rank's parts. */
assay_status gpu_grad_buffer_zero(gpu_grad_buffer *b, gpu_model *m);

/* A gradient is complete; its bucket is when all of its are.  ASSAY_INTERNAL: more marks than parameters. */
assay_status gpu_grad_buffer_ready(gpu_grad_buffer *b, const gpu_param *p);

/* Sum over the group of bucket `index`: all_reduce, or reduce_scatter to this rank's part (scatter). Enqueued
 * on the communication stream after what the compute stream holds now. */
assay_status gpu_start_grad_sync(gpu_grad_buffer *b, gpu_model *m, int index, bool scatter);
/* HSDP: sum over the copies of this rank's part of bucket `index`, behind its sync. */
assay_status gpu_start_copies_sync(gpu_grad_buffer *b, gpu_model *m, int index);
/* The compute stream waits for every sync that was started. */
assay_status gpu_finish_grad_sync(gpu_model *m);
/* The same for the parameters on the communication stream; the compute stream waits bucket by bucket, before it reads one
 * (parallel/fsdp.c), or here for all of them. */
assay_status gpu_start_param_sync(gpu_grad_buffer *b, gpu_model *m);
assay_status gpu_finish_param_sync(gpu_grad_buffer *b, gpu_model *m);
/* ZeRO-1: every rank's updated parts of the parameters to all ranks.  f32: of the gradient buffer instead,
 * into which the caller has put something else. */
assay_status gpu_param_sync(gpu_grad_buffer *b, gpu_model *m, bool f32);
/* Where the part of bucket `index` that this rank owns lies in data (grad) or param_data, in elements. */
int64_t gpu_bucket_place(const gpu_grad_buffer *b, int index, bool grad);
/* Where whole gradients and parameters of a bucket lie (scattered, gathered). */
float *gpu_bucket_gradients(const gpu_grad_buffer *b, int index);
char *gpu_bucket_weights(const gpu_grad_buffer *b, int index);
/* Whole gradients of a bucket in its slot, from the parts of all ranks (scattered). */
assay_status gpu_grad_gather(gpu_grad_buffer *b, gpu_model *m, int index);
/* The part of bucket `index` that group rank `rank` owns. */
void gpu_bucket_part(const gpu_grad_buffer *b, int index, int rank, int64_t *start, int64_t *length);

/* Flat range [start, start+length) of a piece as rectangles, at most GPU_MAX_PIECES: shards and their flat
 * starts in the piece. */
int gpu_flat_rectangles(const assay_shard *piece, int64_t start, int64_t length, assay_shard *out,
                        int64_t *flat_start);

ASSAY_END_DECLS

#endif
