/* What one call of an operation costs, by the formulas of its row: floating-point operations and bytes.
 *
 * Counts are those of the field: a multiply-add is two operations, exp, log, sqrt and a quotient are one; products count
 * 2*M*N*K, and neither their bias nor the softmax beside them; attention counts the pairs that the mask leaves.  Bytes are
 * the least that a kernel must move: every input read once, every output written once, what is updated both. */
#ifndef ASSAY_CORE_OPS_COST_H
#define ASSAY_CORE_OPS_COST_H

#include "core/model/ops.h"

ASSAY_BEGIN_DECLS

typedef struct assay_op_cost {
    int64_t flops;
    int64_t
        model_flops; /* of them, FLOPs of the model: products; scores that a backward computes again are not */
    int64_t bytes;
} assay_op_cost;

/* An integer attribute of a call. */
typedef struct assay_op_given {
    const char *name;
    int64_t value;
} assay_op_given;

/* operands: those that are there, by the names of the row; what is updated once.  attrs: those that were given; others
 * have the value of the row.  pairs: of attention, (query, key) that the mask leaves, of all batch rows; negative: by
 * assay_op_causal_pairs, which knows neither documents nor a part of the sequence.
 * ASSAY_UNSUPPORTED: the row has no formula, or nothing says the pairs; ASSAY_INVALID_ARGUMENT: operands that do not fit the row, a
 * symbol without value, a count beyond 64 bits. */
assay_status assay_op_cost_of(const assay_op *op, const assay_op_given *attrs, int n_attrs,
                              const assay_op_operand *operands, int n_operands, int64_t pairs,
                              assay_op_cost *out);

/* Pairs of a causal mask over `batch` sequences of `seq` tokens; window > 0: a query sees itself and the window-1 keys
 * before it.  -1: beyond 64 bits. */
int64_t assay_op_causal_pairs(int64_t batch, int64_t seq, int64_t window);

ASSAY_END_DECLS

#endif
