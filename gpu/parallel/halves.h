/* The exchange of token rows in halves (--moe-alltoall-halves): the first and the second half of the experts of every rank have an
 * exchange of rows of their own, so that the rows of one travel while the products of the other run, forward and backward.
 *
 * Rows of different experts meet in no product: the rows of an expert lie in the order that they have without halves, and what a
 * token gets back is added behind both.  So the bits are the same.  (Halves of the tokens would cut the sums of the weight
 * gradients.)
 *
 * A half has activations of its own (gpu_moe_acts, `half`): rows that arrive, orders, counts, what the experts make.  This
 * rank's own rows, `permuted` and `returned`, stay whole: those of a half lie in them apart for every rank (send_start). */
#ifndef GPU_PARALLEL_HALVES_H
#define GPU_PARALLEL_HALVES_H

#include "gpu/parallel/exchange.h"

ASSAY_BEGIN_DECLS

/* Whether rows are exchanged so: they were asked for (assay_inputs_halves says where they can be), and nobody watches. */
bool gpu_has_halves(const gpu_model *m);

/* Counts and orders of both; their rows are on the way. */
assay_status gpu_halves_dispatch_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s,
                                     const gpu_exchange *x);
/* Waits for the rows of half h and sorts them: expert_in, expert_probs of the half. */
assay_status gpu_halves_arrive_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, int h);
/* The experts' rows (fc2 of the half) are on the way back to s->returned, which gpu_halves_open_fwd makes and
 * gpu_halves_join waits for. */
assay_status gpu_halves_open_fwd(gpu_model *m, gpu_moe_acts *s);
assay_status gpu_halves_leave_fwd(gpu_model *m, gpu_moe_acts *s, int h);
assay_status gpu_halves_join(gpu_model *m);

/* The gradient of s->returned is on the way to the experts; arrived[h] is what comes. */
assay_status gpu_halves_combine_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value arrived[GPU_HALVES],
                                    gpu_value *dreturned);
/* dfc2, the gradient of the half's fc2, from what came */
assay_status gpu_halves_arrive_bwd(gpu_model *m, gpu_moe_acts *s, int h, gpu_value *dfc2, gpu_value *arrived);
/* Gradients of s->permuted and s->permuted_probs, made by open; those of the half's expert_in and expert_probs are on the way
 * to them. */
assay_status gpu_halves_open_bwd(gpu_model *m, gpu_moe_acts *s, gpu_value *dpermuted, gpu_value *dprobs);
assay_status gpu_halves_leave_bwd(gpu_model *m, gpu_moe_acts *s, int h, gpu_value *dpermuted,
                                  gpu_value *dprobs, gpu_value *drows, gpu_value *dprobs_rows);

ASSAY_END_DECLS

#endif
