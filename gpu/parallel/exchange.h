/* The exchange of token rows of one MoE layer and microbatch as the host knows it: who sends how many rows to whom, in which
 * order they lie, and their names for the trace.
 *
 * The ranks of a group etp_ep hold one set of all experts; member t + etp * i has coordinates etp = t, ep = i.  Rows leave
 * in expert order, arrive over ep as [source, local expert], are gathered over etp as [etp, source, local expert] and sorted to
 * [local expert, etp, source]. */
#ifndef GPU_PARALLEL_EXCHANGE_H
#define GPU_PARALLEL_EXCHANGE_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

typedef struct gpu_exchange {
    bool known;             /* to the host; else rows, gathered and padded are the most that there can be */
    gpu_tensor counts;      /* on the device, of every rank that exchanges rows [members,E] */
    int64_t rows;           /* of this rank's tokens */
    int64_t first, experts; /* of the local experts, those that it is about */
    int64_t *row_token;     /* [rows]; filled for the trace alone */
    int64_t *tokens_per_expert; /* [members][E]; one row without an exchange, for the trace alone */
    int64_t received;           /* rows that arrive over ep */
    int64_t gathered;           /* rows of all etp ranks: those of the local experts */
    int64_t *room, padded;      /* rows that each of the experts computes, zeros among them [experts]; all */
    int64_t most, multiple;     /* room of every expert, -1: its rows; what it is a multiple of */
} gpu_exchange;

/* Whether rows leave their rank. */
bool gpu_exchanges_rows(const gpu_model *m);
bool gpu_gathers_tokens(const gpu_model *m); /* tokens in place of rows: the all-gather dispatcher */
/* Whether every shape has to hold what is there and no more: it is recorded, or counted; or a rule names the kernel. */
bool gpu_has_exact_rows(const gpu_model *m);
/* Whether the host learns how many rows every expert has, and waits for it: for the sizes of NCCL's messages; for records, kernels
 * that a rule names, a bench that counts, and cuBLASLt. */
bool gpu_knows_rows(const gpu_model *m);
/* How many of n tokens an expert takes: no more than there are. */
int64_t gpu_expert_capacity(const gpu_model *m, int64_t n);
/* The most rows that n tokens of one rank have: all, or what the experts' capacities leave. */
int64_t gpu_most_rows(const gpu_model *m, int64_t n);
/* The most of them that so many of the experts have. */
int64_t gpu_most_rows_to(const gpu_model *m, int64_t n, int64_t experts);
assay_group gpu_exchange_group(const gpu_model *m);
/* The counts of member t + etp * i, [E]. */
const int64_t *gpu_exchange_counts_of(const gpu_model *m, const gpu_exchange *x, int t, int i);
/* Rows to and from every ep rank, rows of every etp rank, rows of each of x's experts, in s.  Where the host does not know the counts
 * (without ep alone): the rows of etp ranks, which follow from their tokens.  Dry mode: the most that can arrive. */
assay_status gpu_exchange_count(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s, gpu_exchange *x);
/* sort[new] = old, -1 where a row of zeros is: [padded]; unsort, its inverse: [gathered] */
void gpu_exchange_sort(const gpu_model *m, const gpu_exchange *x, int64_t *sort, int64_t *unsort);
/* Names of this rank's rows; of the rows that arrive, after gathering and after sorting.  Nothing without a trace. */
assay_status gpu_exchange_name_rows(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s,
                                    const gpu_exchange *x);
assay_status gpu_exchange_name_received(gpu_model *m, gpu_microbatch_state *mb, gpu_moe_acts *s,
                                        const gpu_exchange *x, const int64_t *sort);

/* An index array of n on the device under instance and slot, filled from staging (which outlives the copy). */
assay_status gpu_index_value(gpu_model *m, gpu_arena *arena, gpu_value *v, const char *at, const char *slot,
                             int64_t n, const int64_t *host);

ASSAY_END_DECLS

#endif
