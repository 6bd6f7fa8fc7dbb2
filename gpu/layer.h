/* Helpers that the dense layer and the mixture of experts share; gpu/model.h declares the passes themselves.
 */
#ifndef GPU_LAYER_H
#define GPU_LAYER_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* A gradient that is partial over tp becomes whole (tp without sp; instance at_reduce) or a sequence piece
 * (sp; instance at_gather, `forward` is the value whose gradient comes out).  Without tp *out is `partial`.
 */
assay_status gpu_reduce_input_grad(gpu_model *m, const char *at_reduce, const char *at_gather, gpu_value *out,
                                   gpu_value *partial, const gpu_value *forward);
/* Gradient of a row-parallel linear's output: dy itself, or gathered from the sequence pieces (sp). */
assay_status gpu_gather_output_grad(gpu_model *m, const char *at, gpu_value *whole, gpu_value *dy,
                                    const gpu_value *forward);
/* Self attention.  branch: what the residual adds, in the stage's hidden shape; dinput_norm: gradient of the
 * input norm's output. */
assay_status gpu_attention_forward(gpu_model *m, gpu_slot_state *slot, gpu_layer *l, gpu_layer_saved *saved,
                                   gpu_value *branch);
assay_status gpu_attention_backward(gpu_model *m, gpu_layer *l, gpu_layer_saved *saved, gpu_value *dy,
                                    gpu_value *dinput_norm);
/* This tp rank's piece of each of `blocks` blocks. */
gpu_dim gpu_dim_tp(const gpu_model *m, int64_t global, int blocks);
/* Whether the planted fault is this one, in layer 0. */
bool gpu_fault_here(const gpu_model *m, gpu_fault fault, int64_t layer);
/* Whether l is the first layer of the model that has experts. */
bool gpu_is_first_moe(const gpu_model *m, const gpu_layer *l);

ASSAY_END_DECLS

#endif
