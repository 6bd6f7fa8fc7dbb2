/* Operations that ran in one launch (docs/OPS.md 10): the records of the parts of a fused operation, held to its row. */
#ifndef PARITY_CHECKS_FUSED_H
#define PARITY_CHECKS_FUSED_H

#include "core/files/trace.h"
#include "core/model/ops.h"
#include "parity/judge/judge.h"

/* The parts of one launch. */
typedef struct parity_fused {
    const assay_op *row;
    int n, own; /* own: the part that was asked for */
    const assay_trace_op *part[ASSAY_OP_PARTS];
} parity_fused;

/* The launch that operation `index` of the rank, which says `fused`, is a part of.  false, and the reason in problem: no such
 * operation, a part that is missing or another one, parts of two calls, an input that is not what the part before stored. */
bool parity_fused_find(const assay_trace *t, int rank, int64_t index, parity_fused *out,
                       char problem[PARITY_TEXT]);
/* Whether the own part reads something that nobody recorded, because the launch kept it to itself. */
bool parity_fused_reads_internal(const parity_fused *f);
/* Whether this slot of the own part is such an input. */
bool parity_fused_is_internal(const parity_fused *f, const char *slot);
/* The own part computed by the whole operation from what all parts read from outside: bounds go through the parts.  Outputs have the
 * own part's names.  As ref_replay; problem: slots that cannot be read. */
assay_status parity_fused_replay(const assay_trace *t, const parity_fused *f, ref_replay_result *result,
                                 parity_result *problem);

#endif
