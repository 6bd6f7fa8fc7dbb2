/* The weights of an objective that depends on the layout (--semantics megatron, docs/MEGATRON.md), in a run that is not
 * cut: what every token would weigh on the rank that holds it. */
#ifndef REF_OBJECTIVE_H
#define REF_OBJECTIVE_H

#include "ref/engine.h"

/* Whether the run computes the objective of another layout than its own. */
bool ref_has_objective(const ref_pass *p);
/* weights [S*B] of the tokens of the pass's microbatch, rows t = s*B + b: of auxiliary losses (of sequences: seq), or of
 * targets [S*B]. */
assay_status ref_objective_aux_weights(const ref_pass *p, bool seq, double *weights);
/* Tokens of the pass's microbatch that the routers of that rank of the other layout have; 0 on stages behind the first. */
assay_status ref_objective_tokens(const ref_pass *p, int rank, int64_t *tokens);
/* Whether a backward needs counts of microbatches whose number is larger: global_aux_loss over data-parallel ranks. */
bool ref_objective_looks_ahead(const ref_engine *e);
/* total [E]: what the ranks that run the pass's microbatch at the same time as others have counted in the layer up to it, in
 * `microbatches` turns; `ranks` of them share a turn. */
assay_status ref_objective_global_counts(const ref_pass *p, int64_t *total, int64_t *microbatches,
                                         int *ranks);
assay_status ref_objective_target_weights(const ref_pass *p, const int64_t *targets, double *weights);

#endif
