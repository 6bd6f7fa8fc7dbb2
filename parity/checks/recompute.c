/* What runs again for the backward pass must be what ran: every record of a second forward against that of the first, slot by
 * slot, by content.  A different input is where it went astray, a different output of equal inputs is an operation that does not
 * repeat.  Which operations run again is the plan's question. */
#include "parity/judge/judge.h"

#include <string.h>

enum { KEY = ASSAY_NAME + 160 };

static void key_of(char out[KEY], const assay_trace_op *op)
{
    parity_key k = parity_key_begin(out, KEY);
    parity_key_text(&k, op->op);
    parity_key_text(&k, op->instance);
    parity_key_number(&k, (int64_t)op->phase);
    parity_key_number(&k, op->step);
    parity_key_number(&k, op->microbatch);
}

static const assay_trace_tensor *record_of(const assay_trace *t, int rank, const assay_trace_slot *slots,
                                           int n, const char *slot)
{
    for (int i = 0; i < n; i++)
        if (strcmp(slots[i].slot, slot) == 0)
            return assay_trace_tensor_by_id(t, rank, slots[i].tensor);
    return NULL;
}

static assay_status compare_slots(const assay_trace *t, int rank, const assay_trace_op *first,
                                  const assay_trace_op *again, bool output, const parity_result *base,
                                  parity_table *table)
{
    const assay_trace_slot *slots = output ? again->outputs : again->inputs;
    const int n = output ? again->n_outputs : again->n_inputs;
    for (int i = 0; i < n; i++) {
        const assay_trace_tensor *b = assay_trace_tensor_by_id(t, rank, slots[i].tensor);
        const assay_trace_tensor *a = record_of(t, rank, output ? first->outputs : first->inputs,
                                                output ? first->n_outputs : first->n_inputs, slots[i].slot);
        parity_result r = *base;
        snprintf(r.tensor, sizeof r.tensor, "%s", slots[i].slot);
        r.count = b ? assay_shard_count(&b->shard) : 0;
        if (a == NULL || b == NULL)
            parity_result_fail(&r, "recompute: %s %s: expected it in both forwards",
                               output ? "output" : "input", slots[i].slot);
        else if (strcmp(a->hash, b->hash) != 0)
            parity_result_fail(&r,
                               "recompute: %s %s, %.120s: expected the content of the forward pass (%.12s), "
                               "found another (%.12s)",
                               output ? "output" : "input", slots[i].slot, b->name, a->hash, b->hash);
        ASSAY_TRY(parity_table_merge(table, &r));
    }
    const assay_trace_slot *had = output ? first->outputs : first->inputs;
    for (int i = 0; i < (output ? first->n_outputs : first->n_inputs); i++) {
        parity_result r = *base;
        if (record_of(t, rank, slots, n, had[i].slot) != NULL)
            continue;
        snprintf(r.tensor, sizeof r.tensor, "%s", had[i].slot);
        parity_result_fail(&r, "recompute: %s %s: expected it in both forwards", output ? "output" : "input",
                           had[i].slot);
        ASSAY_TRY(parity_table_merge(table, &r));
    }
    return ASSAY_OK;
}

static assay_status check_rank(const assay_trace *t, int rank, const parity_result *base, parity_map *first,
                               parity_table *table)
{
    char key[KEY];
    for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
        const assay_trace_op *op = assay_trace_op_at(t, rank, i);
        key_of(key, op);
        if (!op->recompute) {
            ASSAY_TRY(parity_map_put(first, key, i));
            continue;
        }
        parity_result r = *base;
        parity_result_from_op(&r, op);
        r.rank = rank;
        r.verdict = PARITY_PASS;
        const int64_t number = parity_map_get(first, key);
        if (number < 0) {
            snprintf(r.tensor, sizeof r.tensor, "operation");
            parity_result_fail(&r, "recompute: expected a first run before the second, found none");
            ASSAY_TRY(parity_table_merge(table, &r));
            continue;
        }
        const assay_trace_op *a = assay_trace_op_at(t, rank, number);
        ASSAY_TRY(compare_slots(t, rank, a, op, false, &r, table));
        ASSAY_TRY(compare_slots(t, rank, a, op, true, &r, table));
    }
    return ASSAY_OK;
}

assay_status parity_check_recompute(const assay_trace *t, parity_report *report)
{
    assay_status st = ASSAY_OK;
    parity_table *table = NULL;
    parity_map *first = NULL;
    parity_result base;
    parity_result_init(&base);
    base.check = PARITY_CHECK_BITWISE;
    parity_result_from_trace(&base, t);
    ASSAY_TRY_GOTO(parity_table_create(&table, PARITY_CHECK_BITWISE), st, done);
    for (int rank = 0; rank < assay_trace_world(t); rank++) {
        ASSAY_TRY_GOTO(parity_map_create(&first), st, done);
        ASSAY_TRY_GOTO(check_rank(t, rank, &base, first, table), st, done);
        parity_map_destroy(first);
        first = NULL;
    }
    ASSAY_TRY_GOTO(parity_table_flush(table, report), st, done);
done:
    parity_map_destroy(first);
    parity_table_destroy(table);
    return st;
}
