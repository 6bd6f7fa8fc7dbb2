/* Every recorded operation computed again, and what explains the first that failed. */
#include "parity/judge/suspect.h"
#include "parity/run/check.h"

#include <math.h>
#include <string.h>

/* A factor explains every wrong value; that a result was rounded would explain them no better. */
static bool has_factor(const parity_claim *r)
{
    return strstr(r->diagnosis, "times the expected one") != NULL ||
           strstr(r->diagnosis, "the sign is flipped") != NULL;
}

/* Errors of a unit or two of a narrow format, spread over a tensor: a result was kept in it. */
static void guess_precision(const check_state *c, const parity_claim *r, char text[PARITY_TEXT])
{
    const assay_trace_op *op = parity_claim_op(c->trace, r);
    const assay_trace_tensor *t = op != NULL ? assay_trace_op_tensor(c->trace, op, r->tensor) : NULL;
    const double off = fabs(r->found - r->expected) / fabs(r->expected);
    const bool one_part = strncmp(r->diagnosis, "only ", 5) == 0;
    if (t == NULL || text[0] != '\0' || !(r->expected != 0.0) || has_factor(r) || one_part)
        return;
    if (t->dtype == ASSAY_BF16 && off <= 2.0 * 0x1p-8)
        snprintf(text, PARITY_TEXT,
                 "an intermediate result is kept in BF16 (the worst element is %.2g units off)", off * 0x1p8);
    else if (t->dtype == ASSAY_F32 && off < 0x1p-5 && off > 0x1p-16)
        snprintf(text, PARITY_TEXT, "an operand or an intermediate result is kept in BF16 or TF32");
}

/* What a router's probabilities add up to. */
static assay_status explain_router(const check_state *c, const parity_claim *r, char text[PARITY_TEXT])
{
    const assay_trace_op *op = parity_claim_op(c->trace, r);
    const assay_trace_tensor *t = op != NULL ? assay_trace_op_tensor(c->trace, op, r->tensor) : NULL;
    ref_value v = {0};
    if (t == NULL || t->data == NULL || strcmp(r->op, "router_fwd") != 0 || strcmp(r->tensor, "probs") != 0)
        return ASSAY_OK;
    ASSAY_TRY(parity_value_of(r->tensor, t, &v));
    if (v.value != NULL && v.ndim > 1)
        check_explain_probs(c, v.value, v.count, v.count / v.shape[v.ndim - 1], text);
    parity_value_free(&v);
    return ASSAY_OK;
}

/* Documents that share a row are hidden from each other, and a record of attention without their beginnings does not say so. */
static assay_status says_no_documents(const check_state *c, const parity_claim *r, bool *out)
{
    const assay_trace_op *op = parity_claim_op(c->trace, r);
    *out = false;
    if (op == NULL || strncmp(r->op, "attention_", 10) != 0 ||
        assay_trace_op_tensor(c->trace, op, "first_key") != NULL)
        return ASSAY_OK;
    return parity_reference_packed(c->index, r->step, r->microbatch, out);
}

static assay_status explain(check_state *c, const parity_claim *r)
{
    char why[PARITY_TEXT] = "";
    const assay_trace_op *op = parity_claim_op(c->trace, r);
    if (op != NULL)
        ASSAY_TRY(parity_suspect(c->trace, op, why));
    const bool proven = why[0] != '\0';
    if (!proven && c->reference != NULL && strcmp(r->op, "cross_entropy_fwd") == 0)
        ASSAY_TRY(check_explain_loss(c, r->microbatch, why));
    if (!proven)
        ASSAY_TRY(explain_router(c, r, why));
    if (!proven)
        guess_precision(c, r, why);
    if (why[0] == '\0')
        snprintf(why, sizeof why, "%s", r->diagnosis);
    char amount[160];
    if (r->count > 0 && isfinite(r->ratio) && r->ratio < 1e6)
        snprintf(amount, sizeof amount,
                 "%lld of %lld elements outside what its arithmetic allows, the worst %.3g times",
                 (long long)r->n_bad, (long long)r->count, r->ratio);
    else if (r->count > 0)
        snprintf(amount, sizeof amount, "%lld of %lld elements far outside what its arithmetic allows",
                 (long long)r->n_bad, (long long)r->count);
    else
        snprintf(amount, sizeof amount, "%.150s", r->message);
    check_fail(c, CHECK_OPERATIONS, "%s of %s, output %s (rank %d, step %lld, microbatch %lld): %s%s%s",
               r->op, r->instance, r->tensor, r->rank, (long long)r->step, (long long)r->microbatch, amount,
               why[0] == '\0' ? ""
               : proven       ? "; all of them pass if "
                              : "; looks like: ",
               why);
    return ASSAY_OK;
}

/* What the run says of its own rounding: no error, but worth knowing. */
static void note_rounding(check_state *c)
{
    static const struct {
        unsigned bit;
        const char *word, *text;
    } points[] = {
        {ASSAY_ROUND_BEFORE_GAMMA, "before_gamma", "RMSNorm rounds x rstd before the weight multiplies it"},
        {ASSAY_ROUND_BEFORE_UP, "before_up", "SwiGLU rounds silu(gate) before it is multiplied by up"},
        {ASSAY_ROUND_PRODUCTS, "products", "rope rounds both products before they are added"},
        {ASSAY_ROUND_SCORES, "scores", "attention rounds its scores"},
        {ASSAY_ROUND_ANGLES, "angles", "rope's angles are computed in the accumulate type"},
        {ASSAY_ROUND_HEADS, "heads",
         "the gradients of the heads of a group are rounded before they are added"},
        {ASSAY_ROUND_PARTIAL_SUMS, "partial_sums", "every partial sum is rounded"},
        {ASSAY_ROUND_TIES, "ties", "of equal scores the router takes any"},
        {ASSAY_ROUND_EVERY, "every", "AdamW rounds every intermediate result"},
        {ASSAY_ROUND_STATISTICS, "statistics",
         "LayerNorm keeps mean and 1/deviation rounded for its backward"},
        {ASSAY_ROUND_RESIDUAL, "residual", "the norm reads the residual as it is stored"},
        {ASSAY_ROUND_NORM, "norm",
         "rope reads the norm of q and k as it is stored, and the norm what turned back"},
        {ASSAY_ROUND_PROBS, "probs", "attention rounds its probabilities before their products"},
    };
    for (size_t k = 0; k < sizeof points / sizeof *points; k++) {
        int64_t n = 0;
        for (int rank = 0; rank < assay_trace_world(c->trace); rank++)
            for (int64_t i = 0; i < assay_trace_n_ops(c->trace, rank); i++)
                n += (assay_trace_op_at(c->trace, rank, i)->arith.all.rounding & points[k].bit) != 0;
        if (n > 0)
            check_note(c, "%s: declared (%s) by %lld operations, a rounding point and no error",
                       points[k].text, points[k].word, (long long)n);
    }
}

static assay_status take_failure(check_state *c, const parity_claim *r)
{
    bool undecided;
    ASSAY_TRY(says_no_documents(c, r, &undecided));
    if (undecided) {
        if (c->skipped[CHECK_OPERATIONS]++ == 0 && c->unchecked[CHECK_OPERATIONS][0] == '\0')
            snprintf(
                c->unchecked[CHECK_OPERATIONS], PARITY_TEXT,
                "%.40s of %.120s (step %lld, microbatch %lld): position_ids start again in a row, and its "
                "record does not say where documents begin (first_key); the whole run is compared with a "
                "reference that hides them from each other",
                r->op, r->instance, (long long)r->step, (long long)r->microbatch);
        return ASSAY_OK;
    }
    if (c->failed[CHECK_OPERATIONS] == 0)
        return explain(c, r);
    check_fail(c, CHECK_OPERATIONS, "%s of %s, output %s (rank %d, step %lld, microbatch %lld)", r->op,
               r->instance, r->tensor, r->rank, (long long)r->step, (long long)r->microbatch);
    return ASSAY_OK;
}

assay_status check_operations(check_state *c)
{
    parity_report *report = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(parity_report_create(&report));
    ASSAY_TRY_GOTO(parity_check_local(c->trace, report), st, done);
    ASSAY_TRY_GOTO(parity_check_routing(c->trace, report), st, done);
    for (int64_t i = 0; i < parity_report_count(report); i++) {
        const parity_claim *r = parity_report_at(report, i);
        if (r->verdict == PARITY_FAIL)
            ASSAY_TRY_GOTO(take_failure(c, r), st, done);
        c->passed[CHECK_OPERATIONS] += r->verdict == PARITY_PASS;
        c->skipped[CHECK_OPERATIONS] += r->verdict == PARITY_SKIP;
        if (r->verdict == PARITY_SKIP && c->unchecked[CHECK_OPERATIONS][0] == '\0')
            snprintf(c->unchecked[CHECK_OPERATIONS], PARITY_TEXT, "%.40s of %.120s: %.300s", r->op,
                     r->instance, r->message);
    }
    if (parity_report_count(report) == 0)
        check_note(c, "the trace records no operation: only whole tensors were compared");
    note_rounding(c);
done:
    parity_report_destroy(report);
    return st;
}
