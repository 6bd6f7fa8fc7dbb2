/* A copy of a trace in progress, which trace_mutate.c (records) and trace_mutate_data.c (their contents) share. */
#ifndef PARITY_TRACE_COPIER_H
#define PARITY_TRACE_COPIER_H

#include "parity/run/mutate_op.h"

typedef struct parity_copier {
    const assay_trace *from;
    const parity_mutation *m;
    assay_trace_writer *w;
    int rank;
    const assay_trace_op *target;            /* NULL on other ranks */
    const assay_trace_tensor *target_tensor; /* NULL: the fault is in the operation */
    int64_t *new_ids;                        /* by record, -1: dropped or not yet written */
    int64_t open_step;                       /* -1 */
    const assay_trace_op *late;              /* to be written last */
    bool planted;
} parity_copier;

/* Whether the planted fault is of that kind. */
bool parity_copier_is(const parity_copier *c, const char *kind);
/* The fault in what a record holds: `data` is a copy of t's. */
assay_status parity_copier_change(parity_copier *c, const assay_trace_tensor *t, char *data);
/* A tensor as if it had been stored in the other of F32 and BF16: `data` is a copy of t's, with room for F32. */
assay_status parity_copier_store_as(assay_dtype dtype, assay_trace_tensor *t, char *data);

#endif
