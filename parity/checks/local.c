/* The local check: every recorded operation is computed again in double from its own recorded inputs, and every element of its
 * outputs must lie within what the declared arithmetic allows.  No error accumulates, so the first operation that fails is the culprit.
 *
 * Operations with the same name, attributes, arithmetic, inputs and outputs (replicas) are computed once. */
#include "core/model/ops.h"
#include "parity/checks/fused.h"
#include "parity/judge/judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- one operation ------------------------------------------------------------------------------------------ */

typedef struct local {
    const assay_trace *trace;
    parity_table *table;
    parity_calls *calls;
    bool foreign;              /* written by neither of our engines */
    const parity_fused *fused; /* the launch that the operation is a part of; NULL: its own */
    parity_map *cache;         /* key of an operation -> first of its results */
    struct dumped {            /* text of attributes: the reader shares those that come again */
        const json_t *attrs;
        char *text;
    } dumped[64];
    int64_t n, capacity;
    parity_claim *claims; /* runs of results, each run ended by one without a slot */
    parity_map *texts;    /* of the claims */
    parity_scales scales;
    parity_result base;
} local;

static assay_status keep(local *l, const parity_result *r)
{
    if (l->n == l->capacity) {
        const int64_t capacity = l->capacity ? 2 * l->capacity : 256;
        parity_claim *claims = realloc(l->claims, (size_t)capacity * sizeof *claims);
        ASSAY_CHECK(claims, ASSAY_OUT_OF_MEMORY, "%lld results", (long long)capacity);
        l->claims = claims;
        l->capacity = capacity;
    }
    parity_claim c = parity_claim_of(r);
    ASSAY_TRY(parity_claim_keep(&c, l->n > 0 ? &l->claims[l->n - 1] : NULL, l->texts, false));
    l->claims[l->n++] = c;
    return ASSAY_OK;
}

typedef struct text {
    char *data;
    size_t used, capacity;
} text;

static assay_status append(text *t, const char *piece)
{
    const size_t length = strlen(piece);
    if (t->used + length + 1 > t->capacity) {
        const size_t capacity = 2 * (t->used + length + 1) + 256;
        char *data = realloc(t->data, capacity);
        ASSAY_CHECK(data, ASSAY_OUT_OF_MEMORY, "%zu bytes", capacity);
        t->data = data;
        t->capacity = capacity;
    }
    memcpy(t->data + t->used, piece, length + 1);
    t->used += length;
    return ASSAY_OK;
}

/* Its bytes: two that differ in what lies between the members are two keys, which costs a replay and changes nothing. */
static assay_status append_declaration(text *t, const assay_declaration *d)
{
    const int64_t bytes = sizeof *d;
    char hash[ASSAY_HASH_HEX];
    assay_hash_tensor_as(ASSAY_HASH_XXH3, ASSAY_U8, &bytes, 1, d, sizeof *d, hash);
    return append(t, hash);
}

static assay_status append_attrs(text *t, local *l, const json_t *attrs)
{
    if (attrs == NULL)
        return append(t, "{}");
    struct dumped *d = &l->dumped[((uintptr_t)attrs >> 4) % (sizeof l->dumped / sizeof *l->dumped)];
    if (d->attrs != attrs || d->text == NULL) {
        free(d->text);
        d->attrs = attrs;
        d->text = json_dumps(attrs, JSON_COMPACT | JSON_SORT_KEYS);
        ASSAY_CHECK(d->text, ASSAY_OUT_OF_MEMORY, "attributes of an operation");
    }
    return append(t, d->text);
}

static assay_status append_slots(text *t, const local *l, const assay_trace_op *op, bool inputs)
{
    const int n = inputs ? op->n_inputs : op->n_outputs;
    for (int i = 0; i < n; i++) {
        const assay_trace_slot *s = inputs ? &op->inputs[i] : &op->outputs[i];
        const assay_trace_tensor *record = assay_trace_tensor_by_id(l->trace, op->rank, s->tensor);
        ASSAY_TRY(append(t, inputs ? "|<" : "|>"));
        ASSAY_TRY(append(t, s->slot));
        ASSAY_TRY(append(t, record ? record->hash : "?"));
    }
    return ASSAY_OK;
}

/* Everything that the verdict of an operation depends on. */
static assay_status operation_key(local *l, const assay_trace_op *op, text *key)
{
    key->used = 0;
    ASSAY_TRY(append(key, op->op));
    ASSAY_TRY(append_attrs(key, l, op->attrs));
    ASSAY_TRY(append_declaration(key, &op->arith));
    ASSAY_TRY(append_slots(key, l, op, true));
    for (int i = 0; i < op->n_outputs; i++)
        ASSAY_TRY(append(key, op->substituted[i] ? "S" : "o"));
    for (int i = 0; i < op->n_internal; i++) {
        ASSAY_TRY(append(key, "|-"));
        ASSAY_TRY(append(key, op->internal[i]));
    }
    for (int k = 0; l->fused && parity_fused_reads_internal(l->fused) && k < l->fused->n; k++) {
        ASSAY_TRY(append(key, l->fused->part[k]->op));
        ASSAY_TRY(append_attrs(key, l, l->fused->part[k]->attrs));
        ASSAY_TRY(append_slots(key, l, l->fused->part[k], true));
        ASSAY_TRY(append_slots(key, l, l->fused->part[k], false));
    }
    return append_slots(key, l, op, false);
}

static void start_result(const local *l, const assay_trace_op *op, const char *slot, parity_result *r)
{
    *r = l->base;
    parity_result_from_op(r, op);
    r->verdict = PARITY_PASS;
    snprintf(r->tensor, sizeof r->tensor, "%s", slot);
}

static bool is_substituted(const assay_trace_op *op, const char *slot)
{
    for (int i = 0; i < op->n_outputs; i++)
        if (strcmp(op->outputs[i].slot, slot) == 0)
            return op->substituted[i];
    return false;
}

/* Whether the record says that nobody saw this output outside the operation. */
static bool is_internal(const assay_trace_op *op, const char *slot)
{
    for (int i = 0; i < op->n_internal; i++)
        if (strcmp(op->internal[i], slot) == 0)
            return true;
    return false;
}

static assay_status judge_outputs(local *l, const assay_trace_op *op, ref_replay_result *result,
                                  const ref_value *candidate, int n_candidate)
{
    parity_result r;
    for (int i = 0; i < result->n_outputs; i++) {
        const ref_value *truth = &result->outputs[i];
        const ref_value *found = parity_find_value(candidate, n_candidate, truth->slot);
        parity_value_as_asked(op->instance, &result->outputs[i]);
        if (!found && l->foreign && is_internal(op, truth->slot))
            continue;
        start_result(l, op, truth->slot, &r);
        if (!found)
            parity_result_fail(&r, "output %s was not recorded", truth->slot);
        else if (truth->kind == REF_VALUE_CHOICE)
            ASSAY_TRY(parity_judge_choice(result, found, parity_table_gallery(l->table), &r));
        else
            ASSAY_TRY(parity_compare_value(truth, found, &l->scales, parity_table_gallery(l->table), &r));
        /* What stands there may be right; the operation's own result was seen by nobody. */
        if (r.verdict == PARITY_PASS && is_substituted(op, truth->slot))
            parity_result_skip(&r, "output %s was substituted: the operation's own result is not recorded",
                               truth->slot);
        ASSAY_TRY(keep(l, &r));
    }
    for (int i = 0; i < n_candidate; i++) {
        if (parity_find_value(result->outputs, result->n_outputs, candidate[i].slot))
            continue;
        start_result(l, op, candidate[i].slot, &r);
        parity_result_skip(&r, "the reference computes no output %s", candidate[i].slot);
        ASSAY_TRY(keep(l, &r));
    }
    return ASSAY_OK;
}

/* A replay that did not happen: bad slots are a failure, an unknown operation or arithmetic is a skip. */
static assay_status judge_refusal(local *l, const assay_trace_op *op, assay_status st)
{
    parity_result r;
    if (st != ASSAY_INVALID_ARGUMENT && st != ASSAY_NOT_FOUND && st != ASSAY_UNSUPPORTED)
        return st;
    start_result(l, op, "", &r);
    if (st == ASSAY_INVALID_ARGUMENT)
        parity_result_fail(&r, "%.480s", assay_error_message());
    else
        parity_result_skip(&r, "%.480s", assay_error_message());
    return keep(l, &r);
}

static assay_status replay_operation(local *l, const assay_trace_op *op)
{
    ref_value inputs[ASSAY_MAX_SLOTS], candidate[ASSAY_MAX_SLOTS];
    int n_inputs = 0, n_candidate = 0;
    parity_result problem;
    assay_status st = ASSAY_OK;
    start_result(l, op, "", &problem);
    ASSAY_TRY_GOTO(parity_read_slots(l->trace, op, true, inputs, &n_inputs, &problem), st, done);
    if (problem.verdict == PARITY_PASS)
        ASSAY_TRY_GOTO(parity_read_slots(l->trace, op, false, candidate, &n_candidate, &problem), st, done);
    if (problem.verdict != PARITY_PASS) {
        st = keep(l, &problem);
        goto done;
    }
    ref_replay_result result;
    memset(&result, 0, sizeof result);
    if (l->fused && parity_fused_reads_internal(l->fused))
        st = parity_fused_replay(l->trace, l->fused, &result, &problem);
    else
        st = ref_replay(op->op, op->attrs, &op->arith, inputs, n_inputs, candidate, n_candidate, &result);
    if (problem.verdict != PARITY_PASS) {
        st = keep(l, &problem);
    } else if (st == ASSAY_OK) {
        st = judge_outputs(l, op, &result, candidate, n_candidate);
        ref_replay_free(&result);
    } else {
        st = judge_refusal(l, op, st);
    }
done:
    parity_free_slots(inputs, n_inputs);
    parity_free_slots(candidate, n_candidate);
    return st;
}

/* Results of an operation that has been judged before, under this operation's name and place. */
static assay_status merge_run(local *l, const assay_trace_op *op, int64_t first)
{
    for (int64_t i = first; l->claims[i].verdict != PARITY_SKIP || l->claims[i].message[0]; i++) {
        parity_claim c = l->claims[i];
        parity_claim_from_op(&c, op);
        ASSAY_TRY(parity_table_merge_claim(l->table, &c));
    }
    return ASSAY_OK;
}

/* Whether a slot of the recipe's dtype is F64: the fp64 recipe. */
static bool is_double(const local *l, const assay_trace_op *op)
{
    for (int i = 0; i < op->n_inputs + op->n_outputs; i++) {
        const bool output = i >= op->n_inputs;
        const assay_trace_slot *s = output ? &op->outputs[i - op->n_inputs] : &op->inputs[i];
        const assay_op_slot *slot = assay_op_slot_find(assay_op_find(op->op), s->slot, output);
        const assay_trace_tensor *t = assay_trace_tensor_by_id(l->trace, op->rank, s->tensor);
        if (slot && t && slot->dtype == ASSAY_CLASS_ACT && t->dtype == ASSAY_F64)
            return true;
    }
    return false;
}

/* Another framework keeps a table or a loss in a dtype of its own: its values are judged as they are stored. */
static assay_dtype dtype_of(const local *l, const assay_trace_op *op, const char *name, bool output,
                            assay_dtype found)
{
    const assay_op_slot *slot = assay_op_slot_find(assay_op_find(op->op), name, output);
    if (!l->foreign || !slot || slot->dtype != ASSAY_CLASS_F32 || !assay_dtype_is_float(found))
        return found;
    return is_double(l, op) ? ASSAY_F64 : ASSAY_F32;
}

static int operands(const local *l, const assay_trace_op *op, bool inputs, assay_op_operand *out)
{
    const int n = inputs ? op->n_inputs : op->n_outputs;
    int kept = 0;
    for (int i = 0; i < n; i++) {
        const assay_trace_slot *s = inputs ? &op->inputs[i] : &op->outputs[i];
        const assay_trace_tensor *t = assay_trace_tensor_by_id(l->trace, op->rank, s->tensor);
        if (t) /* a slot that names no record is refused where it is read */
            out[kept++] = (assay_op_operand){s->slot, dtype_of(l, op, s->slot, !inputs, t->dtype),
                                             t->shard.ndim, t->shard.local_shape};
    }
    for (int i = 0; i < op->n_internal && kept < ASSAY_MAX_SLOTS; i++)
        if ((l->foreign || (l->fused && parity_fused_is_internal(l->fused, op->internal[i]))) &&
            assay_op_slot_find(assay_op_find(op->op), op->internal[i], !inputs))
            out[kept++] = (assay_op_operand){op->internal[i], ASSAY_F32, -1, NULL};
    return kept;
}

/* What docs/OPS.md does not allow is refused before anything is computed from it. */
static assay_status check_row(local *l, const assay_trace_op *op, bool *legal)
{
    assay_op_operand in[ASSAY_MAX_SLOTS], out[ASSAY_MAX_SLOTS];
    const assay_op *row = assay_op_find(op->op);
    parity_result r;
    *legal = true;
    if (!row)
        return ASSAY_OK;
    const int n_in = operands(l, op, true, in), n_out = operands(l, op, false, out);
    assay_status st =
        assay_op_check(row, op->attrs, ASSAY_DTYPE_COUNT, ASSAY_DTYPE_COUNT, in, n_in, out, n_out, NULL);
    if (st == ASSAY_OK && !l->foreign && assay_declaration_rounds_beside(&op->arith, PARITY_OUR_ROUNDINGS))
        st = ASSAY_ERROR(ASSAY_INVALID_ARGUMENT,
                         "%s declares that it stores an intermediate result, which no kernel of ours does",
                         op->op);
    if (st != ASSAY_INVALID_ARGUMENT)
        return st;
    *legal = false;
    start_result(l, op, "", &r);
    parity_result_fail(&r, "%.480s", assay_error_message());
    assay_error_clear();
    return parity_table_merge(l->table, &r);
}

static assay_status judge_operation(local *l, const assay_trace_op *op, text *key)
{
    ASSAY_TRY(operation_key(l, op, key));
    int64_t first = parity_map_get(l->cache, key->data);
    if (first < 0) { /* what its row allows follows from the key, too: hashes are over dtype and shape */
        parity_result end;
        bool legal;
        ASSAY_TRY(check_row(l, op, &legal));
        if (!legal)
            return ASSAY_OK;
        parity_result_init(&end);
        first = l->n;
        ASSAY_TRY(replay_operation(l, op));
        ASSAY_TRY(keep(l, &end));
        ASSAY_TRY(parity_map_put(l->cache, key->data, first));
    }
    return merge_run(l, op, first);
}

static assay_status judge_unknown(local *l, const assay_trace_op *op)
{
    parity_result r;
    start_result(l, op, "", &r);
    parity_result_skip(&r, "operation %s is unknown to the reference", op->op);
    return parity_table_merge(l->table, &r);
}

/* Records that say they are parts of one launch, and are not. */
static assay_status judge_parts(local *l, const assay_trace_op *op, const char *problem)
{
    parity_result r;
    start_result(l, op, "", &r);
    parity_result_fail(&r, "%.480s", problem);
    return parity_table_merge(l->table, &r);
}

static assay_status judge_all(local *l)
{
    text key = {0};
    assay_status st = ASSAY_OK;
    for (int rank = 0; rank < assay_trace_world(l->trace); rank++) {
        for (int64_t i = 0; i < assay_trace_n_ops(l->trace, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(l->trace, rank, i);
            char problem[PARITY_TEXT];
            parity_fused fused;
            bool legal;
            l->fused = NULL;
            if (op->fused[0] != '\0') {
                if (!parity_fused_find(l->trace, rank, i, &fused, problem))
                    ASSAY_TRY_GOTO(judge_parts(l, op, problem), st, done);
                else
                    l->fused = &fused;
            }
            if (!parity_is_collective(op->op) && ref_replay_knows(op->op)) {
                ASSAY_TRY_GOTO(judge_operation(l, op, &key), st, done);
                continue;
            }
            ASSAY_TRY_GOTO(check_row(l, op, &legal), st, done);
            if (parity_is_collective(op->op))
                st = parity_calls_judge(l->calls, op, &l->base, &l->scales, l->table);
            else if (legal)
                st = judge_unknown(l, op);
            ASSAY_TRY_GOTO(st, st, done);
        }
    }
done:
    free(key.data);
    return st;
}

assay_status parity_check_local(const assay_trace *t, parity_report *report)
{
    assay_status st = ASSAY_OK;
    local l = {.trace = t, .foreign = assay_trace_is_foreign(t)};
    parity_result_init(&l.base);
    l.base.check = PARITY_CHECK_LOCAL;
    parity_result_from_trace(&l.base, t);
    parity_scales_from_trace(t, &l.scales);
    ASSAY_TRY_GOTO(parity_table_create(&l.table, PARITY_CHECK_LOCAL), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&l.cache), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&l.texts), st, done);
    ASSAY_TRY_GOTO(parity_calls_create(&l.calls, t), st, done);
    ASSAY_TRY_GOTO(judge_all(&l), st, done);
    /* an operation that fails in a later step, on what an earlier one broke, is not the culprit */
    ASSAY_TRY_GOTO(parity_table_flush_ordered(l.table, NULL, NULL, report), st, done);
done:
    for (size_t i = 0; i < sizeof l.dumped / sizeof *l.dumped; i++)
        free(l.dumped[i].text);
    free(l.claims);
    parity_map_destroy(l.texts);
    parity_calls_destroy(l.calls);
    parity_map_destroy(l.cache);
    parity_table_destroy(l.table);
    return st;
}
