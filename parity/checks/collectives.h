/* One collective call, seen from all of its ranks.  Private to parity/collectives*.c. */
#ifndef PARITY_COLLECTIVES_H
#define PARITY_COLLECTIVES_H

#include "parity/judge/judge.h"

typedef struct parity_call {
    int n; /* members */
    int *ranks;
    const assay_trace_op **members; /* [n], NULL: this rank has no record */
    bool judged;
} parity_call;

typedef struct parity_call_judge {
    const assay_trace *trace;
    const parity_call *k;
    const assay_trace_tensor **send, **recv; /* [n], NULL where a member has none */
    const parity_scales *scales;
    const parity_result *base;
    parity_table *table;
} parity_call_judge;

/* Elements of a piece. */
int64_t parity_call_count(const assay_trace_tensor *t);
/* A passing result of the call as `member` sees it. */
void parity_call_start(const parity_call_judge *j, int member, parity_result *r);
assay_status parity_call_fail(const parity_call_judge *j, int member, const char *why);
/* The member's recv against bytes of the same count and dtype. */
assay_status parity_call_compare_bytes(const parity_call_judge *j, int member, const void *wanted);

/* Copies: bit for bit (collectives_copy.c). */
assay_status parity_call_all_gather(const parity_call_judge *j);
assay_status parity_call_broadcast(const parity_call_judge *j);
assay_status parity_call_all_to_all(const parity_call_judge *j);
/* Sums and maxima of whole pieces in rank order (collectives_sum.c). */
assay_status parity_call_reduction(const parity_call_judge *j, bool scatter);
/* A distributed optimizer's pieces, placed by their segments (collectives_sum.c). */
bool parity_call_by_segments(const parity_call_judge *j, const char *name);
assay_status parity_call_scatter_by_segments(parity_call_judge *j);
assay_status parity_call_gather_by_segments(parity_call_judge *j);

#endif
