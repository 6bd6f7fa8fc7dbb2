/* The weights of an objective that depends on the layout (--semantics megatron, docs/MEGATRON.md), in a run that is not
 * cut: what every token would weigh on the rank that holds it. */
#ifndef REF_OBJECTIVE_H
#define REF_OBJECTIVE_H

#include "ref/engine.h"

/* Whether the run computes the objective of another layout than its own. */
bool ref_has_objective(const ref_pass *p);
/* weights [S*B] of the tokens of the pass's microbatch, rows t = s*B + b: of auxiliary losses, or of targets [S*B]. */
assay_status ref_objective_aux_weights(const ref_pass *p, double *weights);
assay_status ref_objective_target_weights(const ref_pass *p, const int64_t *targets, double *weights);

#endif
