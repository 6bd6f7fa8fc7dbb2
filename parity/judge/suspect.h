/* What mistake explains an operation that failed its replay: it is computed again with one thing changed (an attribute, an
 * input, a declared rounding point), and what makes every recorded element pass is said.  A hint for people, proven on this
 * operation; it changes no verdict.  Private to parity/. */
#ifndef PARITY_SUSPECT_H
#define PARITY_SUSPECT_H

#include "parity/judge/judge.h"

/* An operation with its slots, to be changed and computed again. */
typedef struct suspect_trial {
    const assay_trace *trace;
    const assay_trace_op *op;
    json_t *attrs; /* a copy */
    assay_declaration declared;
    ref_value in[ASSAY_MAX_SLOTS], out[ASSAY_MAX_SLOTS];
    int n_in, n_out;
    bool counted; /* the hypothesis computed the operation itself: ... */
    int64_t bad;  /* ... elements outside what it allows */
} suspect_trial;

assay_status suspect_open(suspect_trial *t, const assay_trace *trace, const assay_trace_op *op,
                          bool *readable);
void suspect_close(suspect_trial *t);
/* Elements outside their bound; -1: what was changed cannot be computed.  width (NULL or): sum of the bounds and half units of
 * all elements, how much the declaration allows. */
int64_t suspect_count(const suspect_trial *t, double *width);
ref_value *suspect_input(suspect_trial *t, const char *slot);
ref_value *suspect_output(suspect_trial *t, const char *slot);

/* Changes the trial as hypothesis `number` of its operation says and names it in text; false: no more. */
bool suspect_change(suspect_trial *t, int number, bool *applies, char text[PARITY_TEXT]);

/* Places where an operation may store an intermediate result (assay_rounding, or-ed). */
unsigned suspect_roundings(const char *op);

/* The operation that a result is about, of several that bear its name the first that fails; NULL: none. */
const assay_trace_op *parity_claim_op(const assay_trace *trace, const parity_claim *c);

/* The first hypothesis under which every element passes; "" when none does. */
assay_status parity_suspect(const assay_trace *trace, const assay_trace_op *op, char text[PARITY_TEXT]);

#endif
