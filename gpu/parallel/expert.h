/* Expert parallelism: token rows travel to the rank that holds their expert and back; same names as in
 * ref/parallel/expert.h.  Counts are exchanged first, so that every rank knows how many rows come from whom
 * (gpu/parallel/exchange.h).  Without ep and etp the permuted rows are the experts' rows. */
#ifndef GPU_PARALLEL_EXPERT_H
#define GPU_PARALLEL_EXPERT_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* Needs routed and probs of the router in s; fills everything from row_token to expert_in, expert_probs and counts. */
assay_status gpu_token_dispatch_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_moe_acts *s);
/* The counts lie in the step's table, in the row of microbatch `index`: written, never added to, so that a forward that runs again changes
 * nothing.  Leaves s at that row, as that microbatch's forward does. */
void gpu_token_dispatch_at(const gpu_model *m, const gpu_layer *l, gpu_moe_acts *s, int64_t index);
/* dtokens (instance mlp.permute, slot dx) and dprobs [S piece, B, K] from drows, dprobs_rows */
assay_status gpu_token_dispatch_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *dtokens, gpu_value *dprobs,
                                    gpu_value *drows, gpu_value *dprobs_rows);
/* rows: output of the experts; y [S piece, B, H] = their sum per token. */
assay_status gpu_token_combine_fwd(gpu_model *m, gpu_moe_acts *s, gpu_value *y, gpu_value *rows);
/* drows, the gradient of the experts' output (s->fc2), from dy; in halves (gpu/parallel/halves.h) that of s->returned */
assay_status gpu_token_combine_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *drows, gpu_value *dy);

ASSAY_END_DECLS

#endif
