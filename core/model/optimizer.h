/* Optimizers: which states each keeps for a parameter, and which part of a parameter a rank owns when the optimizer
 * is distributed. */
#ifndef ASSAY_CORE_OPTIMIZER_H
#define ASSAY_CORE_OPTIMIZER_H

#include "core/model/spec.h"

ASSAY_BEGIN_DECLS

typedef enum { ASSAY_OPTIMIZER_ADAM, ASSAY_OPTIMIZER_COUNT } assay_optimizer; /* AdamW: decoupled decay */

enum { ASSAY_MAX_OPTIMIZER_STATES = 4 };

/* Names of the states, each of the parameter's shape, in the order in which the update takes them:
 * {"exp_avg", "exp_avg_sq"}.  They name results, trace tensors (P.exp_avg) and families of a checkpoint. */
int assay_optimizer_states(assay_optimizer optimizer, const char *const **names);
/* "adam"; "?" outside the enum. */
const char *assay_optimizer_name(assay_optimizer optimizer);

/* What member `member` of the `members` ranks of a reduce group owns of a parameter of `count` local elements, row
 * `index` of the table: with ASSAY_OWN_FLAT the flat range of assay_split, with ASSAY_OWN_MATRIX all of it on
 * member index % members and nothing elsewhere. */
void assay_param_owned_range(const assay_param_spec *p, int64_t index, int64_t count, int members, int member,
                             int64_t *first, int64_t *length);

ASSAY_END_DECLS

#endif
