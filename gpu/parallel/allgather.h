/* The all-gather dispatcher: every rank of the group that holds one set of all experts gathers the tokens, choices and probs of
 * all, takes the rows of its own experts, and their parts of every token's result are reduce-scattered to the tokens' ranks. */
#ifndef GPU_PARALLEL_ALLGATHER_H
#define GPU_PARALLEL_ALLGATHER_H

#include "gpu/parallel/exchange.h"

ASSAY_BEGIN_DECLS

/* Needs the counts of all ranks in x; as gpu_token_dispatch_fwd and so on (gpu/parallel/expert.h). */
assay_status gpu_gather_dispatch_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s,
                                     const gpu_exchange *x);
assay_status gpu_gather_dispatch_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *dtokens, gpu_value *dprobs,
                                     gpu_value *drows, gpu_value *dprobs_rows);
assay_status gpu_gather_combine_fwd(gpu_model *m, gpu_moe_acts *s, gpu_value *y, gpu_value *rows);
assay_status gpu_gather_combine_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *drows, gpu_value *dy);

ASSAY_END_DECLS

#endif
