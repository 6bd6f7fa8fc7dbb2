/* Expert parallel exchange: token rows to the ranks of their experts and back.  Counts are exchanged first,
 * so that every rank knows how many rows come from whom; rows arrive as [ep source, local expert] and are
 * sorted to [local expert, ep source].  ep = 1: the permuted rows are the experts' rows. */
#ifndef GPU_PARALLEL_EXPERT_H
#define GPU_PARALLEL_EXPERT_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* Needs indices and probs of the router in s; fills everything from row_token to expert_in, expert_probs and counts. */
assay_status gpu_token_dispatch(gpu_model *m, gpu_microbatch_state *mb, gpu_layer *l, gpu_moe_acts *s);
/* rows: output of the experts; y [S piece, B, H] = their sum per token. */
assay_status gpu_token_combine(gpu_model *m, gpu_moe_acts *s, gpu_value *rows, gpu_value *y);
/* Backward of combine: drows, the gradient of the experts' output (s->fc2). */
assay_status gpu_token_combine_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *dy, gpu_value *drows);
/* Backward of dispatch: dtokens (instance mlp.permute, slot dx) and dprobs [S piece, B, K]. */
assay_status gpu_token_dispatch_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *drows, gpu_value *dprobs_rows,
                                    gpu_value *dtokens, gpu_value *dprobs);

ASSAY_END_DECLS

#endif
