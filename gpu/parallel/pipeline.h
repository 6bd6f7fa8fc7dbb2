/* Pipeline schedules: forward and backward of all microbatches of a step on this rank. */
#ifndef GPU_PARALLEL_PIPELINE_H
#define GPU_PARALLEL_PIPELINE_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* Microbatches in flight on this rank: 1F1B keeps its warm-up and one more. */
int gpu_pipeline_in_flight(const assay_grid *grid, int pp_rank, int64_t n_microbatches);
/* What a stage does in a step, in order: 2 * microbatches actions, to be freed by the caller.  1F1B: warm-up of
 * min(microbatches, stages - stage - 1) forwards, then forward and backward in turn, then the remaining backwards;
 * one stage alone takes forward and backward in turn. */
typedef struct gpu_action {
    bool forward;
    int64_t microbatch; /* of this dp rank, from 0 */
} gpu_action;
assay_status gpu_pipeline_schedule(int stages, int stage, int64_t microbatches, gpu_action **actions);
/* Runs the schedule of this rank; hidden states and their gradients travel by send and recv, paired in one NCCL
 * group where both directions meet. */
assay_status gpu_forward_backward(gpu_model *m, const assay_batches *batches, const assay_batch_share *share,
                                  int64_t step);

ASSAY_END_DECLS

#endif
