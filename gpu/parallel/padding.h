/* Rows of zeros beside those of tokens: every expert computes as many rows as its capacity, or a multiple of what products of
 * a quantized format need (docs/OPS.md 9.9).  Then, and where rows arrive from several ranks, they are sorted. */
#ifndef GPU_PARALLEL_PADDING_H
#define GPU_PARALLEL_PADDING_H

#include "gpu/parallel/exchange.h"

ASSAY_BEGIN_DECLS

bool gpu_pads_rows(const gpu_model *m);
/* Whether mlp.sort and mlp.unsort stand between the rows that arrive and those that the experts compute. */
bool gpu_sorts_rows(const gpu_model *m);
/* room and padded of x, from the rows that arrive (s->counts); where the host does not know them, and in dry mode, padded is the
 * most. */
assay_status gpu_pad_count(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, gpu_exchange *x);
/* sort_index and unsort_index, from the counts that the host knows. */
assay_status gpu_pad_sort(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, const gpu_exchange *x);
/* Without ep: both, where rows are sorted, and local_counts, from the counts on the device. */
assay_status gpu_pad_sort_there(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s,
                                const gpu_exchange *x);
/* rows as they arrive -> expert_in, expert_probs */
assay_status gpu_sort_rows(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, gpu_value *rows,
                           gpu_value *probs);

ASSAY_END_DECLS

#endif
