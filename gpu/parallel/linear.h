/* Linears whose weight is cut over tp, with the collective in front or behind: columns (qkv, gate and up) or rows (the projection,
 * down), forward and backward.  With tp = 1 and without sp what has no collective is the product alone.
 *
 * With --tp-comm-overlap product and collective run in splits of the rows (gpu/parallel/splits.h); the gradient of a weight is one
 * product, because splits would cut its sum.  No bit changes where a row's bits and an element's sum are their own.  A product of
 * some rows is recorded nowhere: a run that is watched has none. */
#ifndef GPU_PARALLEL_LINEAR_H
#define GPU_PARALLEL_LINEAR_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* y = x W^T + b.  bias NULL: none. */
typedef struct gpu_column_linear {
    const char *at, *reduce, *gather; /* instances: its own, of the sum over tp without and with sp */
    gpu_param *weight, *bias;
    bool sp;
} gpu_column_linear;
typedef struct gpu_row_linear {
    const char *at, *reduce; /* instances: its own, of the sum over tp */
    gpu_param *weight, *bias;
    bool sp;
} gpu_row_linear;

/* *whole: what the product reads, x itself or with sp gathered in `arena`; y (given as a description). */
assay_status gpu_column_linear_fwd(gpu_model *m, gpu_arena *arena, const gpu_column_linear *c, gpu_value *y,
                                   gpu_value *whole, gpu_value *x);
/* Gradients of bias and weight, dwhole (given as a description) and dx, its sum over tp (gpu_column_parallel_input_bwd says what x
 * is).  With --async-tensor-model-parallel-allreduce dwhole is made first and summed beside the products of the weight and bias, as in
 * Megatron-LM's LinearWithGradAccumulationAndAsyncCommunication (with sp a reduce-scatter); no product reads another's result, so
 * the bits are the same. */
assay_status gpu_column_linear_bwd(gpu_model *m, const gpu_column_linear *c, gpu_value *dx, gpu_value *dwhole,
                                   gpu_value *dy, gpu_value *whole, const gpu_value *x);

/* *y: the sum of `partial` (given as a description: this rank's product) over tp in `arena`, with sp a piece of it; tp 1: itself. */
assay_status gpu_row_linear_fwd(gpu_model *m, gpu_arena *arena, const gpu_row_linear *r, gpu_value *y,
                                gpu_value *partial, gpu_value *x);
/* Gradients of bias and weight, and dx (given as a description). */
assay_status gpu_row_linear_bwd(gpu_model *m, const gpu_row_linear *r, gpu_value *dx, gpu_value *dy,
                                gpu_value *x, const gpu_value *partial);

ASSAY_END_DECLS

#endif
