/* Tensor and sequence parallel regions (Megatron-LM's words): the collectives between the pieces of a layer,
 * each an operation of its own on the run's stream, recorded with its group.  Uneven sequence pieces are
 * legal.  recv is made by the call when it is only described. */
#ifndef GPU_PARALLEL_TENSOR_H
#define GPU_PARALLEL_TENSOR_H

#include "gpu/call.h"
#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* recv = sum of send over the group; both of one size, may be the same memory. */
assay_status gpu_all_reduce(gpu_model *m, const char *at, assay_group group, gpu_value *recv,
                            gpu_value *send);
/* Sequence pieces [s_r, B, ...] of the tp ranks -> whole [S, B, ...]. */
assay_status gpu_gather_from_sequence_parallel_region(gpu_model *m, const char *at, gpu_value *recv,
                                                      gpu_value *send);
/* Whole partial sums [S, B, ...] -> this rank's sequence piece of the sum. */
assay_status gpu_reduce_scatter_to_sequence_parallel_region(gpu_model *m, const char *at, gpu_value *recv,
                                                            gpu_value *send);
/* Equal pieces of `group` one after the other in recv. */
assay_status gpu_all_gather(gpu_model *m, const char *at, assay_group group, gpu_value *recv,
                            gpu_value *send);

ASSAY_END_DECLS

#endif
