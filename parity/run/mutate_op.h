/* Faults in the record of one operation: attributes, group, slots.  Private to parity/. */
#ifndef PARITY_MUTATE_OP_H
#define PARITY_MUTATE_OP_H

#include "parity/run/trace_mutate.h"

/* Whether the kind changes the operation's own record: attr, group, rewire. */
bool parity_mutation_is_op(const char *kind);
/* Changes *op, a copy of `target`.  Attributes and ranks that it then points to are the caller's to free;
 * *record: the record that the slot is to read, -1 when no slot changes. */
assay_status parity_mutate_op(const assay_trace *from, const assay_trace_op *target, const parity_mutation *m,
                              assay_trace_op *op, json_t **attrs, int **ranks, int64_t *record);
/* Makes slot m->slot name record `id`. */
void parity_mutate_slot(const parity_mutation *m, assay_trace_op *op, int64_t id);
/* The tensor of the same slot of the same operation on the next rank, or NULL. */
const assay_trace_tensor *parity_mutate_twin(const assay_trace *from, const assay_trace_op *target,
                                             const parity_mutation *m);
/* Writes over `data`, the content of row ids `t`, those of that tensor as far as both go. */
assay_status parity_mutate_row_ids(const assay_trace *from, const assay_trace_op *target,
                                   const parity_mutation *m, const assay_trace_tensor *t, void *data);

#endif
