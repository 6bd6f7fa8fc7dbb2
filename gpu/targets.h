/* Labels that count in the loss. */
#ifndef GPU_TARGETS_H
#define GPU_TARGETS_H

#include "core/files/batches.h"

ASSAY_BEGIN_DECLS

/* Of a step, all microbatches and data-parallel ranks; of one microbatch, all its rows.  Position 0 is never a target where
 * the model shifts, -100 is ignored. */
int64_t gpu_step_targets(const assay_batches *b, int64_t step);
int64_t gpu_microbatch_targets(const assay_batches *b, int64_t step, int64_t microbatch);

ASSAY_END_DECLS

#endif
