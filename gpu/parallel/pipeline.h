/* Pipeline schedules: forward and backward of all microbatches of a step on this rank. */
#ifndef GPU_PARALLEL_PIPELINE_H
#define GPU_PARALLEL_PIPELINE_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* Microbatches in flight on this rank: 1F1B keeps its warm-up and one more. */
int gpu_pipeline_in_flight(const assay_grid *grid, int pp_rank, int64_t n_microbatches);
/* Without a pipeline: forward and backward of one microbatch after the other.  With one: 1F1B (warm-up min(M,
 * pp - rank - 1)); hidden states and their gradients travel by send and recv, paired in one NCCL group where
 * both directions meet. */
assay_status gpu_forward_backward(gpu_model *m, const assay_batches *batches, const assay_batch_share *share,
                                  int64_t step);

ASSAY_END_DECLS

#endif
