/* Pipeline parallelism: the 1F1B schedule, run in lockstep. */
#ifndef REF_PARALLEL_PIPELINE_H
#define REF_PARALLEL_PIPELINE_H

#include "ref/model.h"

typedef struct ref_pipeline_action {
    bool forward;
    int64_t slot; /* microbatch of this stage, 0 ... slots-1 */
} ref_pipeline_action;

/* What stage `stage` of `stages` does as number `index` (0 ... 2*slots-1): min(slots, stages-stage-1)
 * forwards, then forward and backward in turn, then the remaining backwards.  Backwards come in microbatch
 * order, so gradients accumulate in it.  Source: Megatron-LM
 * forward_backward_pipelining_without_interleaving. */
ref_pipeline_action ref_pipeline_1f1b(int stages, int stage, int64_t slots, int64_t index);

/* Forward and backward of all microbatches of a step through all stages. */
assay_status ref_pipeline_step(ref_engine *e, int64_t step);

#endif
