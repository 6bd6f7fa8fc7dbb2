/* Weights and optimizer states over ranks: cutting whole weights, reducing gradients, ZeRO, assembling. */
#ifndef REF_PARALLEL_SHARDING_H
#define REF_PARALLEL_SHARDING_H

#include "ref/engine.h"

/* What is assembled: gradient, master, or state number REF_STATE_OPTIMIZER + k of the optimizer. */
enum { REF_STATE_GRAD, REF_STATE_MAIN, REF_STATE_OPTIMIZER };

/* Arrays of every parameter on every rank, filled from the whole weights (weights[i] [count]). */
assay_status ref_shard_params(ref_engine *e, double *const *weights);
void ref_free_params(ref_engine *e);

/* Sums the gradients of the step over tp (parameters that saw pieces of the sequence), over first and last
 * stage (tied embedding), over DP_CP or EDP: all_reduce, or with ZeRO-1 reduce_scatter to the flat range each
 * rank owns.  With ZeRO-2 and 3 what fsdp.h has not summed yet: first and last stage.  With several copies (HSDP)
 * the owned ranges are then summed over the copies.  No averaging. */
assay_status ref_reduce_gradients(ref_engine *e, int64_t step);
/* sqrt of the sum of squares, every parameter counted once however it is replicated and cut. */
double ref_gradient_norm(const ref_engine *e);
/* Zeros in the reduced gradients, counted likewise. */
int64_t ref_gradient_zeros(const ref_engine *e);
/* Ranks whose owned ranges together make up the parameter on `rank`: itself, or with ZeRO those that share its copy. */
assay_group_shape ref_param_owners(const ref_engine *e, int64_t i, int rank);
/* AdamW on the owned range of every rank, then the weights are rounded and (ZeRO-1, 2) all-gathered. */
void ref_update_params(ref_engine *e, int64_t step, double lr, double grad_scale);
/* Behind it, in a world of 1: masters that somebody else knows (ref_master_lookup), and the weights that follow from them. */
void ref_replay_masters(ref_engine *e, int64_t step);
/* Router expert biases, once per step, from the counts summed over all ranks of a stage. */
assay_status ref_update_expert_bias(ref_engine *e, int64_t step);
/* Parameter i of the table: whole [count] of the global shape = the pieces of all ranks; REF_STATE_MAIN of a
 * buffer or a frozen weight is the weight.  ASSAY_INTERNAL: replicas that differ in a bit, an element that nobody
 * holds. */
assay_status ref_assemble(const ref_engine *e, int64_t i, int kind, double *whole);

#endif
