/* The pipeline schedule as a list: what one pipeline stage does in a step, in order. */
#ifndef REF_PARALLEL_SCHEDULE_H
#define REF_PARALLEL_SCHEDULE_H

#include "core/base/status.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct ref_action {
    bool forward;
    int64_t microbatch; /* of this dp rank, 0 ... microbatches-1 */
    int chunk;          /* virtual stage of the pipeline stage, 0 ... chunks-1 */
} ref_action;

/* 2 * microbatches * chunks actions of stage `stage` of `stages`, to be freed by the caller.
 *
 * One chunk is 1F1B: min(microbatches, stages-stage-1) forwards, then forward and backward in turn, then the
 * remaining backwards.  With more chunks microbatches go through the chunks in groups of `stages`: chunk 0 of
 * the group, chunk 1 of the group, ...; the backward takes the chunks in the opposite order; warm-up is
 * 2*(stages-stage-1) + (chunks-1)*stages forwards.  Backwards of a chunk come in microbatch order, so gradients
 * accumulate in it.  Source: Megatron-LM schedules.py, forward_backward_pipelining_with(out)_interleaving and
 * get_schedule_table. */
assay_status ref_pipeline_schedule(int stages, int chunks, int stage, int64_t microbatches,
                                   ref_action **actions);

#endif
