/* Trying hypotheses on one operation. */
#include "parity/judge/suspect.h"
#include "core/model/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Hypotheses read numbers where docs/OPS.md has numbers: of a record that holds integers there, none is tried. */
static bool are_of_their_class(const assay_trace_op *op, const ref_value *values, int n, bool outputs)
{
    for (int i = 0; i < n; i++) {
        const assay_op *row = assay_op_find(op->op);
        const assay_op_slot *slot = row != NULL ? assay_op_slot_find(row, values[i].slot, outputs) : NULL;
        const bool any = slot == NULL || slot->dtype == ASSAY_CLASS_SAME || slot->dtype == ASSAY_CLASS_ATTR ||
                         slot->dtype == ASSAY_CLASS_ANY;
        if (!any && (slot->dtype == ASSAY_CLASS_I64) != (values[i].ivalue != NULL))
            return false;
    }
    return true;
}

assay_status suspect_open(suspect_trial *t, const assay_trace *trace, const assay_trace_op *op,
                          bool *readable)
{
    parity_result problem;
    *t = (suspect_trial){.trace = trace, .op = op, .declared = op->arith};
    parity_result_init(&problem);
    problem.verdict = PARITY_PASS;
    t->attrs = op->attrs != NULL ? json_deep_copy(op->attrs) : json_object();
    ASSAY_CHECK(t->attrs != NULL, ASSAY_OUT_OF_MEMORY, "%s", op->op);
    ASSAY_TRY(parity_read_slots(trace, op, true, t->in, &t->n_in, &problem));
    if (problem.verdict == PARITY_PASS)
        ASSAY_TRY(parity_read_slots(trace, op, false, t->out, &t->n_out, &problem));
    *readable = problem.verdict == PARITY_PASS && are_of_their_class(op, t->in, t->n_in, false) &&
                are_of_their_class(op, t->out, t->n_out, true);
    return ASSAY_OK;
}

void suspect_close(suspect_trial *t)
{
    parity_free_slots(t->in, t->n_in);
    parity_free_slots(t->out, t->n_out);
    json_decref(t->attrs);
}

static ref_value *find(ref_value *values, int n, const char *slot)
{
    for (int i = 0; i < n; i++)
        if (strcmp(values[i].slot, slot) == 0)
            return &values[i];
    return NULL;
}

ref_value *suspect_input(suspect_trial *t, const char *slot)
{
    return find(t->in, t->n_in, slot);
}

ref_value *suspect_output(suspect_trial *t, const char *slot)
{
    return find(t->out, t->n_out, slot);
}

static int64_t count_output(const ref_value *truth, const ref_value *found, const ref_replay_result *result,
                            double *width)
{
    int64_t bad = 0;
    if (truth->kind == REF_VALUE_CHOICE)
        return result->n_inadmissible;
    for (int64_t i = 0; i < truth->count; i++) {
        double ratio;
        if (truth->ivalue != NULL) {
            bad += found->ivalue == NULL || truth->ivalue[i] != found->ivalue[i];
            continue;
        }
        const double bound = truth->bound != NULL ? truth->bound[i] : 0.0;
        bad +=
            found->value == NULL || !parity_element_passes(truth, i, found->value[i], found->dtype, &ratio);
        if (isfinite(truth->value[i]) && bound != PARITY_ANY_NUMBER)
            *width += bound + 0.5 * ref_ulp(fabs(truth->value[i]) + bound, found->dtype);
    }
    return bad;
}

int64_t suspect_count(const suspect_trial *t, double *width)
{
    ref_replay_result result;
    double sum = 0.0;
    int64_t bad = 0;
    if (t->counted)
        return t->bad;
    memset(&result, 0, sizeof result);
    if (ref_replay(t->op->op, t->attrs, &t->declared, t->in, t->n_in, t->out, t->n_out, &result) !=
        ASSAY_OK) {
        assay_error_clear();
        return -1;
    }
    for (int i = 0; i < result.n_outputs; i++) {
        const ref_value *found = parity_find_value(t->out, t->n_out, result.outputs[i].slot);
        parity_value_as_asked(t->op->instance, &result.outputs[i]);
        if (found != NULL && found->count == result.outputs[i].count)
            bad += count_output(&result.outputs[i], found, &result, &sum);
        else if (found != NULL)
            bad += found->count;
    }
    ref_replay_free(&result);
    if (width != NULL)
        *width = sum;
    return bad;
}

/* Whether the record as it stands is outside its bounds. */
static bool fails(const assay_trace *trace, const assay_trace_op *op)
{
    suspect_trial t;
    bool readable = false;
    const assay_status st = suspect_open(&t, trace, op, &readable);
    const bool bad = st == ASSAY_OK && readable && suspect_count(&t, NULL) > 0;
    suspect_close(&t);
    if (st != ASSAY_OK)
        assay_error_clear();
    return bad;
}

const assay_trace_op *parity_claim_op(const assay_trace *trace, const parity_claim *c)
{
    const int rank = c->rank >= 0 ? c->rank : 0;
    const assay_trace_op *first = NULL;
    bool several = false;
    for (int64_t i = 0; i < assay_trace_n_ops(trace, rank); i++) {
        const assay_trace_op *op = assay_trace_op_at(trace, rank, i);
        if (strcmp(op->op, c->op) != 0 || strcmp(op->instance, c->instance) != 0 || op->phase != c->phase ||
            op->step != c->step || op->microbatch != c->microbatch)
            continue;
        if (first == NULL) {
            first = op;
            continue;
        }
        /* several that bear the name */
        if (!several && fails(trace, first))
            return first;
        several = true;
        if (fails(trace, op))
            return op;
    }
    return first;
}

assay_status parity_suspect(const assay_trace *trace, const assay_trace_op *op, char text[PARITY_TEXT])
{
    bool more = true;
    text[0] = '\0';
    if (!ref_replay_knows(op->op))
        return ASSAY_OK;
    for (int number = 0; more; number++) {
        suspect_trial t;
        bool readable = false, applies = false;
        assay_status st = suspect_open(&t, trace, op, &readable);
        more = st == ASSAY_OK && readable && suspect_change(&t, number, &applies, text);
        const bool explained = more && applies && suspect_count(&t, NULL) == 0;
        suspect_close(&t);
        ASSAY_TRY(st);
        if (explained)
            return ASSAY_OK;
    }
    text[0] = '\0';
    return ASSAY_OK;
}
