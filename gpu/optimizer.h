/* AdamW with fp32 masters, global gradient norm and clip, learning-rate schedule, expert bias.
 *
 * ZeRO: this rank holds masters and states of its part of every bucket only, as rectangular pieces of the
 * parameters; gradients are reduce-scattered and updated parameters gathered, here (ZeRO-1) or around the units that use
 * them (parallel/fsdp.h).  docs/OPS.md section 8. */
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
    int64_t in_part;   /* elements behind the begin of this rank's part of the bucket */
    int64_t count;
    bool in_norm; /* counts in the global gradient norm on this rank */
    gpu_value main_param, grad, weight;
    gpu_value state[ASSAY_MAX_OPTIMIZER_STATES]; /* in the order of gpu_optimizer.state_names */
} gpu_piece;

/* Numbers of a step, on the device while it runs. */
typedef struct gpu_numbers {
    double loss; /* sum over the tokens of the step */
    double sumsq, grad_norm, grad_scale;
    int64_t num_zeros;
} gpu_numbers;

typedef struct gpu_optimizer {
    gpu_model *model;
    bool sharded; /* ZeRO: a buffer of more than one rank is cut */
    bool states;  /* false: gradients only, no masters (one forward and backward) */
    int n_states; /* of the optimizer of the options (core/model/optimizer.h) */
    const char *const *state_names;
    gpu_grad_buffer buffer[2];
    int64_t n_pieces;
    gpu_piece *pieces;
    int64_t n_norm;
    double *sums;         /* device [n_norm + 1]: sums of squares */
    int64_t *zeros;       /* device [n_norm + 1] */
    gpu_numbers *numbers; /* device */
    double *scalar;       /* device [1] */
    int64_t *counts;      /* device I64 [layers,E] */
} gpu_optimizer;

/* Lays out buffers and pieces; allocates nothing on the device.  states false: gradients alone, reduced
 * whole. */
assay_status gpu_optimizer_create(gpu_optimizer *o, gpu_model *m, bool states);
void gpu_optimizer_destroy(gpu_optimizer *o);
/* Takes everything from the model's state arena (counting or not). */
assay_status gpu_optimizer_alloc(gpu_optimizer *o);
/* F32 into a tensor of its own type, rounded to nearest even. */
assay_status gpu_upload_rounded(gpu_run *run, gpu_tensor to, const float *from);
/* A weight sink (gpu_model_weights): parameter rounded to its type, masters, zero states. */
assay_status gpu_optimizer_set_weight(void *optimizer, gpu_param *p, gpu_weight_read read, void *from);
/* Parameters again from the masters (after a checkpoint was read). */
assay_status gpu_optimizer_refresh_weights(gpu_optimizer *o);

assay_status gpu_optimizer_zero_grad(gpu_optimizer *o);
/* The gradient of a parameter is complete (gpu_param_hooks); with --overlap-grad-reduce a complete bucket is reduced. */
assay_status gpu_optimizer_grad_ready(void *optimizer, gpu_param *p);
/* Sums over data-parallel ranks, then those that make copies. */
assay_status gpu_finalize_model_grads(gpu_optimizer *o);

/* The sum that makes the copies of a gradient: over tp, kv (elements from `from` on) or the embedding group;
 * ASSAY_GROUP_COUNT: none.  A parameter has one at most, and it is the last of all sums: in whatever order those before it
 * added, copies have equal bits (Megatron-LM: finalize_model_grads).  docs/LAYOUTS.md 5. */
typedef struct gpu_replicas {
    assay_group group;
    int64_t from;
} gpu_replicas;
gpu_replicas gpu_replicas_of(const gpu_optimizer *o, const gpu_param *p);
/* Whether its ranks own parts (ZeRO); whether there are data-parallel ranks to add up. */
bool gpu_buffer_is_cut(const gpu_optimizer *o, const gpu_grad_buffer *b);
bool gpu_buffer_needs_data_sum(const gpu_grad_buffer *b);
/* The gradient on its way, as a value: this rank's alone (phase grad, a partial sum over the ranks that still have to be added); after the
 * sum over data-parallel ranks, where nothing is cut, and of a rectangle: complete, or P.main_grad.dp_sum. */
gpu_value gpu_local_gradient(const gpu_optimizer *o, const gpu_grad_buffer *b, const gpu_param *p);
gpu_value gpu_summed_gradient(const gpu_optimizer *o, const gpu_param *p);
gpu_value gpu_piece_dp_sum(const gpu_optimizer *o, const gpu_piece *q);
/* All of a buffer, one launch for each group; the sums over data-parallel ranks are on the compute stream by then. */
assay_status gpu_sum_replicas(gpu_optimizer *o, gpu_grad_buffer *b);
/* v is the gradient of the rectangle on its way: kind and group of what it lacks still, with b that over the copies of HSDP, too. */
void gpu_piece_lacks(gpu_value *v, const gpu_optimizer *o, const gpu_grad_buffer *b, const gpu_piece *q);
/* Its name: P.main_grad and the suffix. */
void gpu_piece_rename(gpu_value *v, const gpu_piece *q, const char *suffix);
/* Sum of the step's losses over the microbatches and the world, left on the device. */
assay_status gpu_loss_sum(gpu_optimizer *o);
/* Norm, clip, zeros in the gradients (if asked for), AdamW, parameters, expert bias; enqueued, the host waits for nothing and learns
 * nothing.  step: steps done before this one. */
assay_status gpu_optimizer_step(gpu_optimizer *o, int64_t step);
/* What the two left, once the device is there.  Of what was not asked for: anything. */
assay_status gpu_optimizer_numbers(gpu_optimizer *o, gpu_numbers *out);

/* Sum of a host double over the world, recorded as an all_reduce of instance `at`; the host waits for it. */
assay_status gpu_world_sum(gpu_optimizer *o, const char *at, double *value);

/* Learning rate of the step after `done` steps (Megatron-LM's OptimizerParamScheduler in steps). */
double gpu_learning_rate(const assay_train_options *o, int64_t train_iters, int64_t done);

/* Arguments "send" or "recv" for n pieces, numbered when there are several. */
void gpu_piece_args(const char *slot, gpu_value *pieces, int n, gpu_arg *args);
/* Planted fault `skip` of that operation on one of the bucket's parameters. */
bool gpu_bucket_fault(gpu_optimizer *o, const gpu_grad_buffer *b, int index, const char *op);
/* Masters (family 0) or a state (family k: state_names[k-1]) into the main_grad buffers, for export: whole pieces of the
 * rank, or its parts where gradients are scattered. */
assay_status gpu_optimizer_gather_family(gpu_optimizer *o, int family);
/* The reduced gradients of the step likewise; what this rank owns stays as it is. */
assay_status gpu_optimizer_gather_grads(gpu_optimizer *o);

ASSAY_END_DECLS

#endif
