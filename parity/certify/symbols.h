/* What the table's texts say about the symbols of an operation: which are shared, which outputs have rows of their own.  Private to
 * parity/certify/. */
#ifndef PARITY_CERTIFY_SYMBOLS_H
#define PARITY_CERTIFY_SYMBOLS_H

#include "core/model/ops.h"

/* The symbol that is dimension d of a slot, alone; "": something else. */
void certify_symbol_of(const assay_op_slot *row, int d, char out[8]);
/* Whether the row says a number for dimension d: that many, and no more. */
bool certify_is_number(const assay_op_slot *row, int d);
/* Whether a slot's shape is written with the symbol, alone in a dimension. */
bool certify_slot_has_symbol(const assay_op_slot *row, const char *symbol);
/* A symbol that stands in another slot, too, or in an attribute: one of them contradicts when it is larger. */
bool certify_symbol_is_shared(const assay_op *op, int slot, const char *symbol);
/* Whether the slot is rows ("T,H", "T"). */
bool certify_slot_has_rows(const assay_op_slot *row);
/* Whether the table says that the output sums over T ("dx: H; dgamma: T"). */
bool certify_sums_rows(const assay_op *op, const char *slot);
/* Whether row i of every output that is rows, and no sum over them, depends on row i of the inputs alone. */
bool certify_has_own_rows(const assay_op *op);
/* Where `rows` may be cut in two so that both parts are calls: rows of interleaved sequences (an input that counts in rows [B,E] what tokens
 * t = b, b + B, ... chose) stay with theirs.  0: nowhere. */
int64_t certify_cut(const assay_op *op, const assay_op_binding *binding, int64_t rows);
/* Whether the operation has such an input. */
bool certify_rows_are_interleaved(const assay_op *op);

#endif
