/* The answer of an engine to a request of single operations: lattice inputs bit for bit (the exact check), random inputs
 * of both data modes within their bounds (the local check of the operations).
 *
 * Expected values are the reference's, computed from the request's inputs and rounded once to the stored
 * type: on lattice inputs no order of summation can change them.  Ties of a router are decided by the rule
 * (lower index wins), not by admissibility. */
#include "parity/checks/exact.h"

#include "core/model/ops.h"
#include "parity/checks/request.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct exact {
    const assay_trace *request, *answer;
    parity_map *asked;   /* "rank|-1|instance" -> index of the request's operation */
    parity_map *answers; /* "rank|rung|instance" -> index of the answer's operation; rung -1: whichever ran */
    bool every_rung;     /* each record was answered by every rung that takes it */
    parity_calls *calls;
    parity_table *table, *bounded; /* exact results; those of random inputs */
    parity_result base;
    parity_scales scales;
    parity_exact_taken taken; /* NULL: every record has to be answered */
    bool theirs;              /* certify's own child made the tensors for a library or a Python function */
    const void *user;
} exact;

/* What was asked for, and what only the kernel can say: the dtype that attention rounds its probabilities to. */
static json_t *attributes_of(const assay_trace_op *asked, const assay_trace_op *answer)
{
    json_t *attrs = asked->attrs ? json_copy(asked->attrs) : json_object(),
           *p_dtype = json_object_get(answer->attrs, "p_dtype");
    if (assay_op_find(asked->op) && assay_op_attr_find(assay_op_find(asked->op), "p_dtype") && p_dtype)
        json_object_set(attrs, "p_dtype", p_dtype);
    return attrs;
}

static parity_table *table_of(const exact *x, const assay_trace_op *op)
{
    return parity_asked_on_lattice(op) ? x->table : x->bounded;
}

static void start(const exact *x, const assay_trace_op *op, const char *slot, parity_result *r)
{
    *r = x->base;
    if (!parity_asked_on_lattice(op))
        r->check = PARITY_CHECK_LOCAL;
    parity_result_from_op(r, op);
    if (x->every_rung && !parity_is_collective(op->op)) { /* a claim for each */
        const size_t room = sizeof r->instance, n = strlen(r->instance);
        snprintf(r->instance + n, room - n, " k%d", op->variant);
    }
    r->verdict = PARITY_PASS;
    snprintf(r->tensor, sizeof r->tensor, "%s", slot);
}

/* --- outputs ------------------------------------------------------------------------------------------------ */

static assay_status judge_output(exact *x, const assay_trace_op *op, const ref_value *truth,
                                 const ref_value *found, const char *slot)
{
    parity_result r;
    start(x, op, slot, &r);
    if (!found)
        parity_result_fail(&r, "the answer has no output %s", slot);
    else
        ASSAY_TRY(parity_exact_compare(op, truth, found, parity_table_gallery(x->table), &r));
    if (found && r.verdict == PARITY_FAIL && truth->value && found->value && truth->count == found->count)
        parity_diagnose(found->value, truth->value, NULL, found->shape, found->ndim, found->dtype, &x->scales,
                        r.diagnosis);
    return parity_table_merge(x->table, &r);
}

static assay_status judge_bounded(exact *x, const assay_trace_op *op, const ref_replay_result *result,
                                  const ref_value *truth, const ref_value *found)
{
    parity_result r;
    start(x, op, truth->slot, &r);
    if (!found)
        parity_result_fail(&r, "the answer has no output %s", truth->slot);
    else if (truth->kind == REF_VALUE_CHOICE)
        ASSAY_TRY(parity_judge_choice(result, found, parity_table_gallery(x->bounded), &r));
    else
        ASSAY_TRY(parity_compare_value(truth, found, &x->scales, parity_table_gallery(x->bounded), &r));
    return parity_table_merge(x->bounded, &r);
}

/* A replay that did not happen: bad slots are a failure, an unknown operation or arithmetic is a skip. */
static assay_status judge_refusal(exact *x, const assay_trace_op *op, assay_status st)
{
    parity_result r;
    if (st != ASSAY_INVALID_ARGUMENT && st != ASSAY_NOT_FOUND && st != ASSAY_UNSUPPORTED)
        return st;
    start(x, op, "", &r);
    if (st == ASSAY_INVALID_ARGUMENT)
        parity_result_fail(&r, "%.480s", assay_error_message());
    else
        parity_result_skip(&r, "%.480s", assay_error_message());
    return parity_table_merge(table_of(x, op), &r);
}

static assay_status judge_by_rule(exact *x, const assay_trace_op *op, const assay_trace_op *asked,
                                  const ref_value *logits, const ref_value *truth, const ref_value *found)
{
    ref_value choice = {.kind = REF_VALUE_INTEGER};
    const bool router = strcmp(op->op, "router_fwd") == 0 && strcmp(truth->slot, "indices") == 0;
    const char *slot = truth->slot;
    if (router && logits && logits->ndim == 2 && logits->value) {
        ASSAY_TRY(parity_exact_router_choice(asked, logits, &choice));
        truth = &choice;
    }
    const assay_status st = judge_output(x, op, truth, found, slot);
    parity_value_free(&choice);
    return st;
}

static assay_status judge_values(exact *x, const assay_trace_op *op, const assay_trace_op *asked,
                                 const ref_value *inputs, int n_inputs, const ref_value *found, int n_found)
{
    ref_replay_result result;
    const bool bounded = !parity_asked_on_lattice(asked);
    /* Without the candidate's outputs the reference decides by the rule: a tie is no freedom on a lattice. */
    const bool rule = !bounded && strcmp(op->op, "router_aux_fwd") == 0;
    memset(&result, 0, sizeof result);
    json_t *attrs = attributes_of(asked, op);
    assay_status st =
        ref_replay(asked->op, attrs, &op->arith, inputs, n_inputs, found, rule ? 0 : n_found, &result);
    json_decref(attrs);
    if (st != ASSAY_OK)
        return judge_refusal(x, op, st);
    const ref_value *logits = parity_find_value(inputs, n_inputs, "logits");
    for (int i = 0; i < result.n_outputs && st == ASSAY_OK; i++) {
        parity_value_as_asked(asked->instance, &result.outputs[i]);
        const ref_value *truth = &result.outputs[i];
        const ref_value *mine = parity_find_value(found, n_found, truth->slot);
        st = bounded ? judge_bounded(x, op, &result, truth, mine)
                     : judge_by_rule(x, op, asked, logits, truth, mine);
    }
    ref_replay_free(&result);
    return st;
}

/* --- one operation ------------------------------------------------------------------------------------------ */

/* Inputs of the answer are those of the request. */
static bool same_inputs(const exact *x, const assay_trace_op *asked, const assay_trace_op *op,
                        parity_result *r)
{
    for (int i = 0; i < asked->n_inputs; i++) {
        const char *slot = asked->inputs[i].slot;
        const assay_trace_tensor *a = assay_trace_op_tensor(x->request, asked, slot);
        const assay_trace_tensor *b = assay_trace_op_tensor(x->answer, op, slot);
        if (!a || !b || !assay_trace_same_content(a, b)) {
            parity_result_fail(r, "input %s of the answer is not that of the request", slot);
            return false;
        }
    }
    return true;
}

/* Recorded slots as the table looks at them. */
static int operands(const assay_trace *t, int rank, const assay_trace_slot *slots, int n,
                    assay_op_operand *out)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        const assay_trace_tensor *x = assay_trace_tensor_by_id(t, rank, slots[i].tensor);
        if (x) /* one that names no record is refused where it is read */
            out[kept++] = (assay_op_operand){slots[i].slot, x->dtype, x->shard.ndim, x->shard.local_shape};
    }
    return kept;
}

/* A collective is that of all ranks that were asked, with the request's attributes: what it is judged by. */
static bool same_call(const exact *x, const assay_trace_op *asked, const assay_trace_op *op, parity_result *r)
{
    const int world = assay_trace_world(x->request);
    if (op->n_group_ranks != world)
        parity_result_fail(r, "the answer is of %d ranks, the request of %d", op->n_group_ranks, world);
    else if (!json_equal(op->attrs, asked->attrs))
        parity_result_fail(r, "attributes of the answer are not those of the request");
    return r->verdict == PARITY_PASS;
}

/* Dtypes and shapes of outputs are the row's for the activations that were asked for: values are compared rounded to the type in which they are
 * answered.  What certify's child made for a call is the row's already, or was looked at, shadows among it, and what a library declares is its
 * own; an engine is held to the row, whatever it calls itself.  So is the dtype of attention's probabilities, which widens the bound: the activations' or F32. */
static assay_status check_row(const exact *x, const assay_trace_op *asked, const assay_trace_op *op,
                              parity_result *r)
{
    assay_op_operand in[ASSAY_MAX_SLOTS], out[ASSAY_MAX_SLOTS];
    const assay_op *row = assay_op_find(asked->op);
    const char *act_name = json_string_value(json_object_get(asked->attrs, "act")),
               *p_dtype = json_string_value(json_object_get(op->attrs, "p_dtype"));
    assay_dtype act = ASSAY_DTYPE_COUNT;
    if (row == NULL || x->theirs)
        return ASSAY_OK;
    if (act_name != NULL)
        ASSAY_TRY(assay_dtype_from_name(act_name, &act));
    if (p_dtype != NULL && strcmp(p_dtype, "F32") != 0 &&
        (act_name == NULL || strcmp(p_dtype, act_name) != 0)) {
        parity_result_fail(r, "p_dtype: expected F32 or the activations' dtype, found %.20s", p_dtype);
        return ASSAY_OK;
    }
    if (assay_declaration_rounds_beside(&op->arith, PARITY_OUR_ROUNDINGS)) {
        parity_result_fail(
            r, "the answer declares that it stores an intermediate result, which no kernel of ours does");
        return ASSAY_OK;
    }
    const int n_in = operands(x->request, asked->rank, asked->inputs, asked->n_inputs, in),
              n_out = operands(x->answer, op->rank, op->outputs, op->n_outputs, out);
    json_t *attrs = attributes_of(asked, op);
    assay_status st = assay_op_check(row, attrs, act, act, in, n_in, out, n_out, NULL);
    json_decref(attrs);
    if (st == ASSAY_INVALID_ARGUMENT) {
        parity_result_fail(r, "%.480s", assay_error_message());
        assay_error_clear();
        st = ASSAY_OK;
    }
    return st;
}

static assay_status judge_answer(exact *x, const assay_trace_op *asked, const assay_trace_op *op)
{
    ref_value inputs[ASSAY_MAX_SLOTS], found[ASSAY_MAX_SLOTS];
    int n_inputs = 0, n_found = 0;
    parity_result r;
    assay_status st = ASSAY_OK;
    start(x, op, "", &r);
    snprintf(r.op, sizeof r.op, "%s", asked->op); /* whoever asked for it counts its failure */
    if (strcmp(asked->op, op->op) != 0)
        parity_result_fail(&r, "the answer runs %s, the request asks for %s", op->op, asked->op);
    else if (same_inputs(x, asked, op, &r) && parity_is_collective(op->op) && same_call(x, asked, op, &r)) {
        parity_result base = x->base;
        base.check = r.check;
        return parity_calls_judge(x->calls, op, &base, &x->scales, table_of(x, asked));
    }
    if (r.verdict == PARITY_PASS)
        ASSAY_TRY_GOTO(check_row(x, asked, op, &r), st, done);
    if (r.verdict == PARITY_PASS)
        ASSAY_TRY_GOTO(parity_read_slots(x->request, asked, true, inputs, &n_inputs, &r), st, done);
    if (r.verdict == PARITY_PASS)
        ASSAY_TRY_GOTO(parity_read_slots(x->answer, op, false, found, &n_found, &r), st, done);
    st = r.verdict == PARITY_PASS ? judge_values(x, op, asked, inputs, n_inputs, found, n_found)
                                  : parity_table_merge(table_of(x, asked), &r);
done:
    parity_free_slots(inputs, n_inputs);
    parity_free_slots(found, n_found);
    return st;
}

enum { ANY_RUNG = -1, MOST_RUNGS = 10 };

/* Where each rung answers, that of a record; else ANY_RUNG. */
static int rung_of(const exact *x, const assay_trace_op *op)
{
    return x->every_rung && !parity_is_collective(op->op) ? op->variant : ANY_RUNG;
}

static void answer_key(char out[ASSAY_NAME + 48], int rank, int rung, const char *instance)
{
    snprintf(out, ASSAY_NAME + 48, "%d|%d|%s", rank, rung, instance);
}

/* -1: none. */
static int64_t answer_at(const exact *x, int rank, int rung, const char *instance)
{
    char key[ASSAY_NAME + 48];
    answer_key(key, rank, rung, instance);
    return parity_map_get(x->answers, key);
}

/* A record that would not be looked for, or hides another, is a failure. */
static assay_status check_answer(exact *x, int rank, const assay_trace_op *op)
{
    const int rung = rung_of(x, op);
    const bool any = !x->every_rung || parity_is_collective(op->op);
    const bool known = any || (rung >= 0 && rung < MOST_RUNGS);
    char key[ASSAY_NAME + 48];
    parity_result r;
    answer_key(key, rank, ANY_RUNG, op->instance);
    const bool asked = parity_map_get(x->asked, key) >= 0;
    if (asked && known && answer_at(x, rank, rung, op->instance) < 0)
        return ASSAY_OK;
    start(x, op, "", &r);
    if (!asked)
        parity_result_fail(&r, "rank %d answers %s %s, which nobody asked it", rank, op->op, op->instance);
    else if (any)
        parity_result_fail(&r, "rank %d answers %s twice", rank, op->instance);
    else
        parity_result_fail(&r, "rank %d answers %s with k%d%s", rank, op->instance, rung,
                           known ? " twice" : ": expected k0 to k9");
    return parity_table_merge(table_of(x, op), &r);
}

static assay_status index_answers(exact *x)
{
    char key[ASSAY_NAME + 48];
    for (int rank = 0; rank < assay_trace_world(x->request); rank++)
        for (int64_t i = 0; i < assay_trace_n_ops(x->request, rank); i++) {
            answer_key(key, rank, ANY_RUNG, assay_trace_op_at(x->request, rank, i)->instance);
            ASSAY_TRY(parity_map_put(x->asked, key, i));
        }
    for (int rank = 0; rank < assay_trace_world(x->answer); rank++) {
        for (int64_t i = 0; i < assay_trace_n_ops(x->answer, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(x->answer, rank, i);
            ASSAY_TRY(check_answer(x, rank, op));
            answer_key(key, rank, rung_of(x, op), op->instance);
            ASSAY_TRY(parity_map_put(x->answers, key, i));
        }
    }
    return ASSAY_OK;
}

/* The answers of one record, from the highest rung that it may have down to the last that it must have: k0, which takes every call. */
static assay_status judge_answers(exact *x, int rank, const assay_trace_op *asked)
{
    const bool rungs = x->every_rung && !parity_is_collective(asked->op);
    const int last = rungs ? 0 : ANY_RUNG;
    parity_result r;
    for (int k = rungs ? MOST_RUNGS - 1 : ANY_RUNG; k >= last; k--) {
        const int64_t at = answer_at(x, rank, k, asked->instance);
        if (at >= 0)
            ASSAY_TRY(judge_answer(x, asked, assay_trace_op_at(x->answer, rank, at)));
    }
    if (answer_at(x, rank, last, asked->instance) >= 0)
        return ASSAY_OK;
    start(x, asked, "", &r);
    parity_result_fail(&r, "rank %d did not answer %s%s", rank, asked->instance,
                       rungs ? " with k0, which takes every call" : "");
    return parity_table_merge(table_of(x, asked), &r);
}

static assay_status judge_all(exact *x)
{
    for (int rank = 0; rank < assay_trace_world(x->request); rank++) {
        for (int64_t i = 0; i < assay_trace_n_ops(x->request, rank); i++) {
            const assay_trace_op *asked = assay_trace_op_at(x->request, rank, i);
            if (x->taken == NULL || x->taken(x->user, x->request, asked))
                ASSAY_TRY(judge_answers(x, rank, asked));
        }
    }
    return ASSAY_OK;
}

/* Rows of one operation kind, rung and slot: the many sizes of an operation are one claim. */
static void fold(parity_claim *c, char instance[ASSAY_NAME])
{
    snprintf(instance, ASSAY_NAME, "%s", c->instance);
    char *dot = strrchr(instance, '.');
    if (dot == NULL || (strncmp(instance, "exact.", 6) != 0 && strncmp(instance, "local.", 6) != 0))
        return;
    const char *rung = dot + strcspn(dot, " "); /* " k2": stays */
    memmove(dot, rung, strlen(rung) + 1);
    c->instance = instance;
}

static assay_status flush(const parity_table *table, parity_check check, parity_report *report)
{
    parity_report *all = NULL;
    parity_table *folded = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(parity_report_create(&all), st, done);
    ASSAY_TRY_GOTO(parity_table_create(&folded, check), st, done);
    ASSAY_TRY_GOTO(parity_table_flush(table, all), st, done);
    for (int64_t i = 0; i < parity_report_count(all); i++) {
        parity_claim c = *parity_report_at(all, i);
        char instance[ASSAY_NAME];
        const parity_drawn drawn = parity_report_drawn(all, &c);
        ASSAY_TRY_GOTO(parity_gallery_take(parity_table_gallery(folded), &drawn, &c.picture, &c.excerpt), st,
                       done);
        if (c.verdict == PARITY_PASS)
            fold(&c, instance); /* a failure keeps the number of its operation */
        ASSAY_TRY_GOTO(parity_table_merge_claim(folded, &c), st, done);
    }
    ASSAY_TRY_GOTO(parity_table_flush(folded, report), st, done);
done:
    parity_table_destroy(folded);
    parity_report_destroy(all);
    return st;
}

enum { ONE_RUNG, EVERY_RUNG, EITHER };

static assay_status check(const char *request_dir, const char *answer_dir, int rungs, bool theirs,
                          parity_exact_taken taken, const void *user, parity_report *report)
{
    assay_status st = ASSAY_OK;
    exact x = {.taken = taken, .theirs = theirs, .user = user};
    assay_trace *request = NULL, *answer = NULL;
    parity_result_init(&x.base);
    ASSAY_TRY_GOTO(assay_trace_open(&request, request_dir, true), st, done);
    ASSAY_TRY_GOTO(assay_trace_open(&answer, answer_dir, true), st, done);
    ASSAY_CHECK_GOTO(assay_trace_world(request) == assay_trace_world(answer), ASSAY_MISMATCH, st, done,
                     "exact: the request is for %d ranks, the answer is of %d", assay_trace_world(request),
                     assay_trace_world(answer));
    x.request = request;
    x.answer = answer;
    x.base.check = PARITY_CHECK_EXACT;
    x.every_rung = json_is_true(json_object_get(assay_trace_header(answer), "every_rung"));
    ASSAY_CHECK_GOTO(rungs == EITHER || x.every_rung == (rungs == EVERY_RUNG), ASSAY_MISMATCH, st, done,
                     "%s: expected answers of %s, found %s", answer_dir,
                     rungs == EVERY_RUNG ? "every rung" : "one rung",
                     x.every_rung ? "every rung" : "one rung");
    parity_result_from_trace(&x.base, answer);
    parity_scales_from_trace(answer, &x.scales);
    ASSAY_TRY_GOTO(parity_table_create(&x.table, PARITY_CHECK_EXACT), st, done);
    ASSAY_TRY_GOTO(parity_table_create(&x.bounded, PARITY_CHECK_LOCAL), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&x.asked), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&x.answers), st, done);
    ASSAY_TRY_GOTO(parity_calls_create(&x.calls, answer), st, done);
    ASSAY_TRY_GOTO(index_answers(&x), st, done);
    ASSAY_TRY_GOTO(judge_all(&x), st, done);
    ASSAY_TRY_GOTO(flush(x.table, PARITY_CHECK_EXACT, report), st, done);
    ASSAY_TRY_GOTO(flush(x.bounded, PARITY_CHECK_LOCAL, report), st, done);
done:
    parity_calls_destroy(x.calls);
    parity_map_destroy(x.answers);
    parity_map_destroy(x.asked);
    parity_table_destroy(x.bounded);
    parity_table_destroy(x.table);
    assay_trace_close(answer);
    assay_trace_close(request);
    return st;
}

assay_status parity_check_exact(const char *request_dir, const char *answer_dir, bool every_rung,
                                parity_report *report)
{
    return check(request_dir, answer_dir, every_rung ? EVERY_RUNG : ONE_RUNG, false, NULL, NULL, report);
}

assay_status parity_check_exact_taken(const char *request_dir, const char *answer_dir, bool theirs,
                                      parity_exact_taken taken, const void *user, parity_report *report)
{
    return check(request_dir, answer_dir, EITHER, theirs, taken, user, report);
}
