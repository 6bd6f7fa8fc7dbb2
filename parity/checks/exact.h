/* The exact check, private parts. */
#ifndef PARITY_EXACT_H
#define PARITY_EXACT_H

#include "parity/judge/judge.h"

/* Elements [begin,end) of an output that depend on a function (square root, exponential) whose last bits are free: they are
 * judged within their bounds, all others bit for bit. */
typedef struct parity_exact_freedom {
    int64_t begin, end;
} parity_exact_freedom;
parity_exact_freedom parity_exact_free_of(const char *op, const char *slot, int64_t count);

/* One output on lattice inputs (exact_equal.c): the experts that a router with these attributes takes, ties to the lower index, as
 * truth->ivalue, which is freed with the value; bits beside the reference's, rounded once. */
assay_status parity_exact_router_choice(const assay_trace_op *op, const ref_value *logits, ref_value *truth);
assay_status parity_exact_compare(const assay_trace_op *op, const ref_value *truth, const ref_value *found,
                                  parity_gallery *g, parity_result *r);

#endif
