/* Checkpoints of the reference, in the engine's format (core/files/checkpoint.h, docs/CHECKPOINT.md). */
#ifndef REF_CHECKPOINT_H
#define REF_CHECKPOINT_H

#include "ref/engine.h"

/* Whether one is due behind `done` of `steps` steps. */
bool ref_checkpoint_due(const ref_engine *e, int64_t done, int64_t steps);
/* Writes what is behind `done` steps, the last of which had that loss, to the run's `save`, or below it; with --async-save it
 * returns when all is copied. */
assay_status ref_checkpoint_save(ref_engine *e, int64_t done, double loss);
/* Masters, states and expert biases of every rank from the run's `load`; weights are masters, rounded. */
assay_status ref_checkpoint_load(ref_engine *e);

#endif
