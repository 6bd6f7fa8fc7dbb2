/* Inside the table of operations: shapes in symbols.  Not a public interface. */
#ifndef ASSAY_CORE_OPS_INTERNAL_H
#define ASSAY_CORE_OPS_INTERNAL_H

#include "core/model/ops.h"

/* A shape text cut at its commas; brackets kept or dropped as binding->brackets says. */
typedef struct assay_op_dims {
    int n, fold; /* fold: index of the dimension that may hold several recorded extents; -1 */
    char dim[ASSAY_OP_DIMS][24];
} assay_op_dims;

void assay_op_dims_parse(const char *shape, bool brackets, assay_op_dims *out);
/* Value of "(A+2*G)*D" with the bound symbols; false: a symbol has none, or the value does not fit. */
bool assay_op_evaluate(const assay_op_binding *b, const char *expression, int64_t *value);
/* Matches recorded extents with the slot's shape, binding what is new; false: they contradict. */
bool assay_op_match(assay_op_binding *b, const assay_op_slot *s, const int64_t *extents, int ndim);

#endif
