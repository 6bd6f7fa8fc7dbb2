/* Pipeline parallelism: the schedule of every stage, run in lockstep. */
#ifndef REF_PARALLEL_PIPELINE_H
#define REF_PARALLEL_PIPELINE_H

#include "ref/stage.h"

/* Forward and backward of all microbatches of a step through all stages. */
assay_status ref_pipeline_step(ref_engine *e, int64_t step);

#endif
