/* The routing check: discrete decisions.
 *
 * A chosen set of experts is admissible iff its worst score plus bound is not below the best unchosen score
 * minus bound (docs/TOLERANCES.md); tokens with one admissible set must have exactly that one, ambiguous ones
 * are counted.  Besides: every expert exists, none is chosen twice for a token, the order is ascending, and
 * the counts of the dispatch plan are those of the choice. */
#include "parity/judge/judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct routing {
    const assay_trace *trace;
    parity_table *table;
    parity_result base;
} routing;

static void start(const routing *g, const assay_trace_op *op, const char *slot, parity_result *r)
{
    *r = g->base;
    parity_result_from_op(r, op);
    r->verdict = PARITY_PASS;
    snprintf(r->tensor, sizeof r->tensor, "%s", slot);
}

static assay_status replay_choice(const routing *g, const assay_trace_op *op, const ref_value *inputs,
                                  int n_inputs, const ref_value *candidate, int n_candidate, parity_result *r)
{
    ref_replay_result result;
    memset(&result, 0, sizeof result);
    assay_status st =
        ref_replay(op->op, op->attrs, &op->arith, inputs, n_inputs, candidate, n_candidate, &result);
    if (st == ASSAY_INVALID_ARGUMENT) {
        parity_result_fail(r, "%.480s", assay_error_message());
        return ASSAY_OK;
    }
    if (st == ASSAY_UNSUPPORTED || st == ASSAY_NOT_FOUND) {
        parity_result_skip(r, "%.480s", assay_error_message());
        return ASSAY_OK;
    }
    ASSAY_TRY(st);
    st = parity_judge_choice(&result, parity_find_value(candidate, n_candidate, r->tensor),
                             parity_table_gallery(g->table), r);
    ref_replay_free(&result);
    return st;
}

static assay_status judge_router(routing *g, const assay_trace_op *op, const char *slot)
{
    ref_value inputs[ASSAY_MAX_SLOTS], candidate[ASSAY_MAX_SLOTS];
    int n_inputs = 0, n_candidate = 0;
    parity_result r;
    assay_status st = ASSAY_OK;
    start(g, op, slot, &r);
    ASSAY_TRY_GOTO(parity_read_slots(g->trace, op, true, inputs, &n_inputs, &r), st, done);
    if (r.verdict == PARITY_PASS)
        ASSAY_TRY_GOTO(parity_read_slots(g->trace, op, false, candidate, &n_candidate, &r), st, done);
    if (r.verdict == PARITY_PASS) {
        const ref_value *logits = parity_find_value(inputs, n_inputs, "logits");
        const ref_value *indices = parity_find_value(candidate, n_candidate, slot);
        if (!logits || !indices || !indices->ivalue || logits->ndim < 1)
            parity_result_fail(&r, "the record has no logits or no integer %s", slot);
        else
            ASSAY_TRY_GOTO(parity_judge_choice_form(indices, logits->shape[logits->ndim - 1],
                                                    parity_table_gallery(g->table), &r),
                           st, done);
    }
    if (r.verdict == PARITY_PASS)
        ASSAY_TRY_GOTO(replay_choice(g, op, inputs, n_inputs, candidate, n_candidate, &r), st, done);
    st = parity_table_merge(g->table, &r);
done:
    parity_free_slots(inputs, n_inputs);
    parity_free_slots(candidate, n_candidate);
    return st;
}

static void compare_counts(const int64_t *told, const int64_t *wanted, int64_t experts, parity_worst *w)
{
    for (int64_t e = 0; e < experts; e++) {
        const bool same = wanted[e] == told[e];
        parity_worst_add(w, e, (double)told[e], (double)wanted[e], 0.0, same ? 0.0 : (double)INFINITY, same);
    }
}

/* tokens_per_expert of a plan is the histogram of the indices it was made from. */
static assay_status judge_plan(routing *g, const assay_trace_op *op)
{
    const assay_trace_tensor *indices = assay_trace_op_tensor(g->trace, op, "indices");
    const assay_trace_tensor *counts = assay_trace_op_tensor(g->trace, op, "tokens_per_expert");
    int64_t *chosen = NULL, *told = NULL, *wanted = NULL;
    parity_result r;
    parity_worst w;
    parity_differences d = {.found = NULL};
    assay_status st = ASSAY_OK;
    start(g, op, "tokens_per_expert", &r);
    parity_worst_init(&w);
    if (!indices || !counts || !indices->data || !counts->data || !parity_is_integer(indices->dtype) ||
        !parity_is_integer(counts->dtype)) {
        parity_result_skip(&r, "the record has no indices or no counts");
        return parity_table_merge(g->table, &r);
    }
    const int64_t n = assay_shard_count(&indices->shard), experts = assay_shard_count(&counts->shard);
    ASSAY_TRY_GOTO(parity_decode_integers(indices->data, n, indices->dtype, &chosen), st, done);
    ASSAY_TRY_GOTO(parity_decode_integers(counts->data, experts, counts->dtype, &told), st, done);
    wanted = calloc((size_t)experts + 1, sizeof *wanted);
    ASSAY_CHECK_GOTO(wanted, ASSAY_OUT_OF_MEMORY, st, done, "%lld counts", (long long)experts);
    for (int64_t i = 0; i < n; i++) {
        if (chosen[i] >= 0 && chosen[i] < experts)
            wanted[chosen[i]]++;
    }
    compare_counts(told, wanted, experts, &w);
    parity_worst_to_result(&w, &experts, 1, &r);
    ASSAY_TRY_GOTO(
        parity_worst_redraw_equal(&w, &d, parity_table_gallery(g->table), &experts, 1, ASSAY_I64, &r), st,
        done);
    if (w.differences)
        compare_counts(told, wanted, experts, &w);
    st = parity_table_merge(g->table, &r);
done:
    free(wanted);
    free(told);
    free(chosen);
    return st;
}

assay_status parity_check_routing(const assay_trace *t, parity_report *report)
{
    assay_status st = ASSAY_OK;
    routing g = {.trace = t};
    parity_result_init(&g.base);
    g.base.check = PARITY_CHECK_ROUTING;
    parity_result_from_trace(&g.base, t);
    ASSAY_TRY(parity_table_create(&g.table, PARITY_CHECK_ROUTING));
    for (int rank = 0; rank < assay_trace_world(t); rank++) {
        for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(t, rank, i);
            if (strcmp(op->op, "router_fwd") == 0)
                ASSAY_TRY_GOTO(judge_router(&g, op, "indices"), st, done);
            else if (strcmp(op->op, "router_aux_fwd") == 0)
                ASSAY_TRY_GOTO(judge_router(&g, op, "aux_indices"), st, done);
            else if (strcmp(op->op, "permute_plan") == 0)
                ASSAY_TRY_GOTO(judge_plan(&g, op), st, done);
        }
    }
    ASSAY_TRY_GOTO(parity_table_flush_ordered(g.table, NULL, NULL, report), st, done);
done:
    parity_table_destroy(g.table);
    return st;
}
