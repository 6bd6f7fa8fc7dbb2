/* Operation calls of the engine: each runs one operation of gpu/ops.h on values and, when the trace is on,
 * records its inputs before and its outputs after under the slots and attributes of docs/OPS.md.  In dry mode
 * a call only notes the workspace it would need.  `at` is the instance without the layer's prefix.  Outputs
 * must be allocated; their names are given by the caller (gpu_value_name, gpu_value_grad). */
#ifndef GPU_TRACE_OPS_H
#define GPU_TRACE_OPS_H

#include "gpu/ops.h"
#include "gpu/trace.h"

ASSAY_BEGIN_DECLS

/* Takes room for the piece that v's dimensions describe.  merge: index of the dimension S whose product with
 * the next one (B) is the operations' T; -1: none. */
assay_status gpu_value_alloc(gpu_arena *arena, gpu_value *v, assay_dtype dtype, int merge);

assay_status gpu_run_linear_fwd(gpu_run *run, const char *at, gpu_value *y, gpu_value *x, gpu_value *w,
                                gpu_value *bias);
assay_status gpu_run_linear_bwd_input(gpu_run *run, const char *at, gpu_value *dx, gpu_value *dy,
                                      gpu_value *w);
/* dweight +=; repeat: planted fault, the product is added twice */
assay_status gpu_run_linear_bwd_weight(gpu_run *run, const char *at, gpu_value *dweight, gpu_value *dy,
                                       gpu_value *x, bool repeat);
assay_status gpu_run_linear_bwd_bias(gpu_run *run, const char *at, gpu_value *dbias, gpu_value *dy);
/* counts: host, El entries; counts_value: the same on the device, for the record */
assay_status gpu_run_grouped_linear_fwd(gpu_run *run, const char *at, gpu_value *y, gpu_value *x,
                                        gpu_value *w, const int64_t *counts, gpu_value *counts_value);
assay_status gpu_run_grouped_linear_bwd_input(gpu_run *run, const char *at, gpu_value *dx, gpu_value *dy,
                                              gpu_value *w, const int64_t *counts, gpu_value *counts_value);
assay_status gpu_run_grouped_linear_bwd_weight(gpu_run *run, const char *at, gpu_value *dweight,
                                               gpu_value *dy, gpu_value *x, const int64_t *counts,
                                               gpu_value *counts_value);

assay_status gpu_run_rmsnorm_fwd(gpu_run *run, const char *at, gpu_value *y, gpu_value *rstd, gpu_value *x,
                                 gpu_value *gamma, double eps);
/* flip: planted fault, dx is negated */
assay_status gpu_run_rmsnorm_bwd(gpu_run *run, const char *at, gpu_value *dx, gpu_value *dgamma,
                                 gpu_value *dy, gpu_value *x, gpu_value *gamma, gpu_value *rstd, double eps,
                                 bool flip);

assay_status gpu_run_rope_table(gpu_run *run, const char *at, gpu_value *cos_table, gpu_value *sin_table,
                                const gpu_rope_desc *d);
/* backward: the transposed rotation */
assay_status gpu_run_rope(gpu_run *run, const char *at, gpu_value *y, gpu_value *x, gpu_value *cos_table,
                          gpu_value *sin_table, gpu_value *position, bool backward);
assay_status gpu_run_attention_fwd(gpu_run *run, const char *at, gpu_value *o, gpu_value *lse, gpu_value *q,
                                   gpu_value *k, gpu_value *v, gpu_value *position, gpu_attention_desc d);
assay_status gpu_run_attention_bwd(gpu_run *run, const char *at, gpu_value *dq, gpu_value *dk, gpu_value *dv,
                                   gpu_value *dout, gpu_value *q, gpu_value *k, gpu_value *v, gpu_value *o,
                                   gpu_value *lse, gpu_value *position, gpu_attention_desc d);
assay_status gpu_run_qkv_split_fwd(gpu_run *run, const char *at, gpu_value *q, gpu_value *k, gpu_value *v,
                                   gpu_value *qkv);
assay_status gpu_run_qkv_split_bwd(gpu_run *run, const char *at, gpu_value *dqkv, gpu_value *dq,
                                   gpu_value *dk, gpu_value *dv);

assay_status gpu_run_add(gpu_run *run, const char *at, gpu_value *y, gpu_value *a, gpu_value *b);
assay_status gpu_run_cast(gpu_run *run, const char *at, gpu_value *y, gpu_value *x);
/* y is a view of x's rows [start, start+length) of the merged token dimension; start and length in rows of s.
 */
assay_status gpu_run_slice_rows(gpu_run *run, const char *at, gpu_value *y, gpu_value *x, int64_t start,
                                int64_t length);
assay_status gpu_run_swiglu_fwd(gpu_run *run, const char *at, gpu_value *y, gpu_value *x, gpu_value *probs);
assay_status gpu_run_swiglu_bwd(gpu_run *run, const char *at, gpu_value *dx, gpu_value *dprobs, gpu_value *dy,
                                gpu_value *x, gpu_value *probs);
assay_status gpu_run_sigmoid_gate_fwd(gpu_run *run, const char *at, gpu_value *y, gpu_value *x,
                                      gpu_value *gate);
assay_status gpu_run_sigmoid_gate_bwd(gpu_run *run, const char *at, gpu_value *dx, gpu_value *dgate,
                                      gpu_value *dy, gpu_value *x, gpu_value *gate);

assay_status gpu_run_embedding_fwd(gpu_run *run, const char *at, gpu_value *y, gpu_value *ids, gpu_value *w,
                                   int64_t vocab_start);
assay_status gpu_run_embedding_bwd(gpu_run *run, const char *at, gpu_value *dweight, gpu_value *dy,
                                   gpu_value *ids, int64_t vocab_start);

assay_status gpu_run_cross_entropy_stats(gpu_run *run, const char *at, gpu_value *stats, gpu_value *logits,
                                         gpu_value *targets, int64_t vocab_start);
assay_status gpu_run_cross_entropy_loss(gpu_run *run, const char *at, gpu_value *lse, gpu_value *loss,
                                        gpu_value *stats, gpu_value *targets);
assay_status gpu_run_cross_entropy_bwd(gpu_run *run, const char *at, gpu_value *dlogits, gpu_value *logits,
                                       gpu_value *lse, gpu_value *targets, int64_t vocab_start, double scale);
assay_status gpu_run_sum(gpu_run *run, const char *at, gpu_value *y, gpu_value *x);

/* spoil: planted fault, the first token's first expert is replaced by one it did not choose */
assay_status gpu_run_router_fwd(gpu_run *run, const char *at, gpu_value *indices, gpu_value *probs,
                                gpu_value *scores, gpu_value *logits, gpu_value *expert_bias,
                                const gpu_router_desc *d, bool spoil);
assay_status gpu_run_router_bwd(gpu_run *run, const char *at, gpu_value *dlogits, gpu_value *dprobs,
                                gpu_value *indices, gpu_value *scores, gpu_value *logits,
                                const gpu_router_desc *d);
assay_status gpu_run_router_aux_fwd(gpu_run *run, const char *at, gpu_value *aux_scores,
                                    gpu_value *aux_indices, gpu_value *counts, gpu_value *score_sums,
                                    gpu_value *z_sum, gpu_value *logits, const gpu_router_desc *d);
assay_status gpu_run_router_aux_loss(gpu_run *run, const char *at, gpu_value *losses, gpu_value *score_sums,
                                     gpu_value *counts, gpu_value *z_sum, const gpu_router_aux_desc *d);
/* dlogits += */
assay_status gpu_run_router_aux_bwd(gpu_run *run, const char *at, gpu_value *dlogits, gpu_value *dlogits_in,
                                    gpu_value *logits, gpu_value *counts, const gpu_router_aux_desc *d);
assay_status gpu_run_expert_bias_update(gpu_run *run, const char *at, gpu_value *bias, gpu_value *bias_in,
                                        gpu_value *counts, double rate);

assay_status gpu_run_permute_plan(gpu_run *run, const char *at, gpu_value *row_token, gpu_value *row_slot,
                                  gpu_value *tokens_per_expert, gpu_value *token_row, gpu_value *indices);
assay_status gpu_run_gather_rows(gpu_run *run, const char *at, gpu_value *y, gpu_value *x, gpu_value *index);
assay_status gpu_run_combine_rows(gpu_run *run, const char *at, gpu_value *y, gpu_value *x,
                                  gpu_value *token_row);

ASSAY_END_DECLS

#endif
