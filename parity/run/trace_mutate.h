/* Copies of a trace with one planted fault: what the self-test shows to the judge.  Private to parity/. */
#ifndef PARITY_TRACE_MUTATE_H
#define PARITY_TRACE_MUTATE_H

#include "parity/judge/judge.h"

/* The words of `kind`:
 *   element     one element of an output leaves its bound by as much again (replayed to know the bound)
 *   value       one element changes visibly
 *   swap_rows   rows 0 and 1 of dimension 0 change places
 *   nan         one element is not a number
 *   poison      one element holds the pattern of memory that nobody wrote
 *   sign, double   every element times -1, times 2
 *   expert      the first row chooses another expert
 *   missing     the rank has no record of the tensor
 *   overlap     the piece claims to lie one place lower in the first dimension that is cut
 *   arithmetic  the operation declares that it adds in F64
 *   recompute, substituted   the record says that the operation ran again; that output `slot` is not its own result
 *   drop_op, repeat_op   the operation is not in the record, is there twice
 *   late_op     it is the last operation of its rank
 *   shift       integers move one place on
 *   other_rank  the content is what the next rank has there
 *   row_shift, row_other_rank   the row ids of a record of kind rows move one place on, are those of the next rank's
 *               record as far as both go
 *   row_local   a record of kind rows says that it means something on this rank alone
 *   local       a record of any kind does
 *   narrow      the piece is the first half of its rows
 *   repeat      the tensor is recorded twice
 *   as_bf16, as_f32   an F32 tensor is stored in BF16, a BF16 tensor in F32
 *   unreduced   the output is what the collective's first input was
 *   attr        attribute `slot` becomes `value` (JSON text; "null": it is not there)
 *   group       the collective names group `value` and its ranks
 *   rewire      slot reads the last record before it of name `value`; without a value: of the same name in
 *               another microbatch; a slot that is not there is added
 *   header      member `slot` of the index becomes the text `value` */
typedef struct parity_mutation {
    char kind[32];
    /* where; the first operation that matches.  op empty: the observation called `instance` */
    char op[48], instance[ASSAY_NAME], slot[ASSAY_NAME];
    char value[ASSAY_NAME];
    bool input;
    int rank;
    int64_t step, microbatch; /* negative: any */
    bool again;               /* of what runs again for the backward pass */
} parity_mutation;

/* ASSAY_NOT_FOUND: no operation matches, or the fault cannot be planted there; ASSAY_INVALID_ARGUMENT: an
 * unknown kind. */
assay_status parity_trace_mutate(const assay_trace *from, const char *to, const parity_mutation *m);
bool parity_mutation_is_known(const char *kind);

#endif
