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
/* 1/sqrt(head_dim), made in double and rounded once */
float gpu_attention_scale(int64_t head_dim);
/* Whether l is the first layer of the model that has experts. */
bool gpu_is_first_moe(const gpu_model *m, const gpu_layer *l);

ASSAY_END_DECLS

#endif
