/* AdamW with fp32 masters, global gradient norm and clip, learning-rate schedule, expert bias.
 *
 * ZeRO-1: this rank holds masters and states of its part of every bucket only, as rectangular pieces of the
 * parameters, reduces gradients by reduce_scatter and gathers the updated parameters.  docs/OPS.md section 8.
 */
#ifndef GPU_OPTIMIZER_H
#define GPU_OPTIMIZER_H

#include "gpu/call.h"
#include "gpu/parallel/grad_buffer.h"

ASSAY_BEGIN_DECLS

/* A rectangle of a parameter that this rank updates. */
typedef struct gpu_piece {
    gpu_param *param;
    int buffer;        /* 0 dense, 1 expert */
    assay_shard shard; /* in the global tensor */
    int64_t start;     /* flat, in the rank's piece of the parameter */
    int64_t count;
    bool in_norm; /* counts in the global gradient norm on this rank */
    gpu_value main_param, grad, weight;
    gpu_value state[ASSAY_MAX_OPTIMIZER_STATES]; /* in the order of gpu_optimizer.state_names */
} gpu_piece;

typedef struct gpu_optimizer {
    gpu_model *model;
    bool sharded; /* ZeRO-1 with more than one rank */
    bool states;  /* false: gradients only, no masters (one forward and backward) */
    int n_states; /* of the optimizer of the options (core/model/optimizer.h) */
    const char *const *state_names;
    gpu_grad_buffer buffer[2];
    int64_t n_pieces;
    gpu_piece *pieces;
    int64_t n_norm;
    double *sums;    /* device F64 [n_norm + 1] */
    double *scalar;  /* device F64 [1] */
    int64_t *counts; /* device I64 [E] */
} gpu_optimizer;

/* Lays out buffers and pieces; allocates nothing on the device.  states false: gradients alone, reduced
 * whole. */
assay_status gpu_optimizer_create(gpu_optimizer *o, gpu_model *m, bool states);
void gpu_optimizer_destroy(gpu_optimizer *o);
/* Takes everything from the model's state arena (counting or not). */
assay_status gpu_optimizer_alloc(gpu_optimizer *o);
/* A weight sink (gpu_model_weights): parameter rounded to its type, masters, zero states. */
assay_status gpu_optimizer_set_weight(void *optimizer, gpu_param *p, const float *piece);
/* Parameters again from the masters (after a checkpoint was read). */
assay_status gpu_optimizer_refresh_weights(gpu_optimizer *o);

assay_status gpu_optimizer_zero_grad(gpu_optimizer *o);
/* The gradient of a parameter is complete (gpu_model.grad_ready). */
assay_status gpu_optimizer_grad_ready(void *optimizer, gpu_param *p);
/* Sums over tp (partial gradients), the embedding group (tied embedding) and data-parallel ranks. */
assay_status gpu_finalize_model_grads(gpu_optimizer *o);
/* Norm, clip, AdamW, parameters, expert bias.  step: steps done before this one. */
assay_status gpu_optimizer_step(gpu_optimizer *o, int64_t step, double *grad_norm);

/* Sum of a host double over the world, recorded as an all_reduce of instance `at`. */
assay_status gpu_world_sum(gpu_optimizer *o, const char *at, double *value);

/* Learning rate of the step after `done` steps (Megatron-LM's OptimizerParamScheduler in steps). */
double gpu_learning_rate(const assay_train_options *o, int64_t train_iters, int64_t done);

/* Arguments "send" (weights) or "recv" (gradients) for the pieces of p that this rank owns, numbered when there are
 * several; returns how many. */
int gpu_piece_args(gpu_optimizer *o, const gpu_param *p, const char *slot, gpu_arg *args);
/* Masters (whole pieces of the rank) into the main_grad buffers, for export. */
assay_status gpu_optimizer_gather_masters(gpu_optimizer *o);

ASSAY_END_DECLS

#endif
