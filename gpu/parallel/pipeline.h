/* Pipeline schedules: forward and backward of all microbatches of a step on this rank. */
#ifndef GPU_PARALLEL_PIPELINE_H
#define GPU_PARALLEL_PIPELINE_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* What a pipeline stage does next.  joined: in one round with the action before it: what both need arrives before the
 * first of them, what both make leaves after the second. */
typedef struct gpu_action {
    bool forward, joined;
    int chunk;          /* virtual stage of the stage, 0 ... chunks-1 */
    int64_t microbatch; /* of this dp rank, from 0 */
} gpu_action;

typedef struct gpu_schedule {
    int64_t n;
    gpu_action *list;
} gpu_schedule;

/* What stage `stage` of `stages` does in a step, in order: 2 * microbatches * chunks actions.
 *
 * One chunk is 1F1B: min(microbatches, stages-stage-1) forwards, then forward and backward in turn, then the remaining
 * backwards; one stage alone takes forward and backward in turn.  With more chunks (Megatron-LM's interleaved 1F1B)
 * microbatches go through the chunks in groups of `stages`: chunk 0 of the group, chunk 1 of the group, ...; the
 * backward takes the chunks in the opposite order; warm-up is 2*(stages-stage-1) + (chunks-1)*stages forwards, and a
 * forward and the backward after it are one round.
 * ASSAY_INVALID_ARGUMENT: interleaved with more microbatches than stages that are no multiple of them: the stages
 * would wait for each other in a circle. */
assay_status gpu_pipeline_schedule(int stages, int chunks, int stage, int64_t microbatches,
                                   gpu_schedule *out);
void gpu_pipeline_schedule_free(gpu_schedule *s);
/* Most microbatches of a chunk that are between their forward and their backward. */
int gpu_pipeline_in_flight(const gpu_schedule *s, int chunk);

/* Runs the schedule of this rank: forward and backward of every microbatch of the step.  Hidden states and their
 * gradients travel by send and recv; all that a round sends and the next round needs is one NCCL group. */
assay_status gpu_forward_backward(gpu_model *m, const assay_batches *batches, const assay_batch_share *share,
                                  const gpu_schedule *schedule, int64_t step);

ASSAY_END_DECLS

#endif
