/* The plan: which operations a rank must execute in a step, from the model and the layout alone (docs/OPS.md
 * section 9).  Private to parity/. */
#ifndef PARITY_PLAN_H
#define PARITY_PLAN_H

#include "parity/judge/judge.h"

/* Compares the operations of every rank, step and microbatch with the plan; missing and extra ones are named.
 * One row for each (instance, operation, phase). */
assay_status parity_plan_compare(const assay_trace *t, const assay_model_spec *spec, const assay_grid *grid,
                                 const assay_train_options *options, const parity_result *base,
                                 parity_table *table);

#endif
