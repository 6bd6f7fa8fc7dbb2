/* The parts of a layer, each in the file of its name, and what they share.  Same names as in ref/layer.h; `_fwd` keeps what
 * `_bwd` needs in its activations.  docs/OPS.md section 9 names every instance. */
#ifndef GPU_LAYER_H
#define GPU_LAYER_H

#include "gpu/call.h"
#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* --- layer.c ------------------------------------------------------------------------------------------------ */
/* input is set, output made; everything else is made in the microbatch's arena and staging.  May run again: the same
 * input gives the same bits, and nothing else has changed. */
assay_status gpu_layer_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a);
/* dx is overwritten with the gradient of a->input. */
assay_status gpu_layer_bwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a,
                           gpu_value *dy, gpu_value *dx);

/* --- attention.c -------------------------------------------------------------------------------------------- */
/* branch: what the residual adds, in the stage's hidden shape; dinput_norm: gradient of the input norm's output. */
assay_status gpu_attention_branch(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a,
                                  gpu_value *branch);
assay_status gpu_attention_branch_bwd(gpu_model *m, gpu_layer *l, gpu_layer_acts *a, gpu_value *dy,
                                      gpu_value *dinput_norm);

/* --- mlp.c -------------------------------------------------------------------------------------------------- */
assay_status gpu_mlp_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a,
                         gpu_value *branch);
assay_status gpu_mlp_bwd(gpu_model *m, gpu_layer *l, gpu_layer_acts *a, gpu_value *dy, gpu_value *dnorm);
/* Shared expert on the token shard, in the sequence parallel form whether sp is on or not. */
assay_status gpu_shared_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a,
                            gpu_value *y);
assay_status gpu_shared_bwd(gpu_model *m, gpu_layer *l, gpu_layer_acts *a, gpu_value *dy, gpu_value *dtokens);

/* --- moe.c, router.c ---------------------------------------------------------------------------------------- */
assay_status gpu_moe_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a,
                         gpu_value *branch);
/* dnorm: gradient of pre_mlp_layernorm's output, whole */
assay_status gpu_moe_bwd(gpu_model *m, gpu_layer *l, gpu_layer_acts *a, gpu_value *dy, gpu_value *dnorm);
assay_status gpu_router_step(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_layer_acts *a);
/* dprobs -> gradient of the router's weight; dtokens (instance mlp.router.gating, slot dx) */
assay_status gpu_router_step_bwd(gpu_model *m, gpu_layer *l, gpu_layer_acts *a, gpu_value *dprobs,
                                 gpu_value *dtokens);
/* sum I64 [E] on the device: the layer's counts of the step, this rank's microbatches added up.  Every one of them has
 * gone forward. */
assay_status gpu_step_tokens_per_expert(gpu_model *m, const gpu_layer *l, gpu_value *sum);

/* --- regions (layer.c): Megatron-LM's entries to and exits from tensor-parallel regions ---------------------- */
/* A gradient that is partial over tp becomes whole (tp without sp; instance at_reduce) or a sequence piece (sp;
 * instance at_gather, `forward` is the value whose gradient comes out).  Without tp *out is `partial`. */
assay_status gpu_reduce_input_grad(gpu_model *m, const char *at_reduce, const char *at_gather, gpu_value *out,
                                   gpu_value *partial, const gpu_value *forward);
/* Gradient of a row-parallel linear's output: dy itself, or gathered from the sequence pieces (sp). */
assay_status gpu_gather_output_grad(gpu_model *m, const char *at, gpu_value *whole, gpu_value *dy,
                                    const gpu_value *forward);
/* Output of a row-parallel linear: *out is `partial` itself (tp 1), its sum, or a sequence piece of the sum (sp). */
assay_status gpu_reduce_output(gpu_model *m, gpu_arena *arena, const char *at, gpu_value *out,
                               gpu_value *partial);

/* --- descriptions with the model's dimensions (layer.c) ------------------------------------------------------ */
/* [S or its piece, B, last] */
gpu_value gpu_tokens(const gpu_model *m, gpu_arena *arena, bool piece, gpu_dim last);
/* [S or its piece, B] */
gpu_value gpu_token_rows(const gpu_model *m, gpu_arena *arena, bool piece);
/* The gradient of `forward`, in scratch: "<forward>.grad" with its dimensions. */
gpu_value gpu_grad_of(gpu_model *m, const gpu_value *forward);
/* [n], [n, last] (last > 0) meaningful on this rank only. */
gpu_value gpu_local(gpu_arena *arena, int64_t n, int64_t last);
/* The description under a name of its own: instance and slot. */
gpu_value gpu_named(gpu_model *m, gpu_value description, const char *at, const char *slot);
/* Marks it as a partial sum over `group` when that group has company. */
gpu_value gpu_partial(const gpu_model *m, gpu_value description, assay_group group);
/* This tp rank's piece of each of `blocks` blocks. */
gpu_dim gpu_dim_tp(const gpu_model *m, int64_t global, int blocks);
gpu_dim gpu_dim_hidden(const gpu_model *m);
/* A row-parallel bias is added on one tp rank, so that the sum holds it once. */
gpu_value *gpu_row_bias(gpu_model *m, gpu_param *bias);

ASSAY_END_DECLS

#endif
