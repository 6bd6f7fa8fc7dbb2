/* Records of a fused operation's parts: complete, in order, of one call, wired as the row says; and a part whose input stayed inside,
 * computed by way of the parts before it. */
#include "parity/checks/fused.h"

#include <string.h>

static bool is_listed_internal(const assay_trace_op *op, const char *slot)
{
    for (int i = 0; i < op->n_internal; i++)
        if (strcmp(op->internal[i], slot) == 0)
            return true;
    return false;
}

static bool same_call(const assay_trace_op *a, const assay_trace_op *b)
{
    return a->phase == b->phase && a->step == b->step && a->microbatch == b->microbatch &&
           a->recompute == b->recompute && a->variant == b->variant &&
           strcmp(a->variant_name, b->variant_name) == 0;
}

/* Inputs that an earlier part makes are what it recorded, or stayed inside. */
static bool wired(const assay_trace *t, const parity_fused *f, int part, char problem[PARITY_TEXT])
{
    const assay_trace_op *op = f->part[part];
    const assay_op *row = assay_op_part_of(f->row, part);
    for (int i = 0; i < assay_op_n_slots(row); i++) {
        const assay_op_slot *own = &row->slots[i];
        char slot[ASSAY_SLOT_NAME];
        const char *output = NULL;
        snprintf(slot, sizeof slot, "%s%s", own->name, own->role == ASSAY_SLOT_INOUT ? "_in" : "");
        const int source =
            own->role == ASSAY_SLOT_OUT ? -1 : assay_op_part_source(f->row, part, slot, &output);
        if (source < 0 || is_listed_internal(op, slot))
            continue;
        const assay_trace_tensor *read = NULL, *made = assay_trace_op_tensor(t, f->part[source], output);
        for (int k = 0; k < op->n_inputs; k++)
            if (strcmp(op->inputs[k].slot, slot) == 0)
                read = assay_trace_tensor_by_id(t, op->rank, op->inputs[k].tensor);
        if (read && made && assay_trace_same_content(read, made))
            continue;
        snprintf(problem, PARITY_TEXT,
                 "%s: %s of %s is expected to be what %s stored in %s, or internal: found %s", f->row->name,
                 slot, op->op, f->part[source]->op, output, read ? "another tensor" : "no record");
        return false;
    }
    return true;
}

static const assay_trace_tensor *input_of(const assay_trace *t, const assay_trace_op *op, const char *slot)
{
    for (int i = 0; i < op->n_inputs; i++)
        if (strcmp(op->inputs[i].slot, slot) == 0)
            return assay_trace_tensor_by_id(t, op->rank, op->inputs[i].tensor);
    return NULL;
}

/* What the whole takes once and two parts have under that name is the same in both. */
static bool shared(const assay_trace *t, const parity_fused *f, int part, int before,
                   char problem[PARITY_TEXT])
{
    const assay_trace_op *op = f->part[part], *other = f->part[before];
    const char *output;
    for (int i = 0; i < op->n_inputs; i++) {
        const char *slot = op->inputs[i].slot, *whole = assay_op_part_slot(f->row, part, slot);
        for (int k = 0; whole && k < other->n_inputs; k++) {
            const char *theirs = assay_op_part_slot(f->row, before, other->inputs[k].slot);
            const assay_trace_tensor *a = input_of(t, op, slot),
                                     *b = input_of(t, other, other->inputs[k].slot);
            if (theirs == NULL || strcmp(theirs, whole) != 0 ||
                assay_op_part_source(f->row, part, slot, &output) >= 0 ||
                (a && b && assay_trace_same_content(a, b)))
                continue;
            snprintf(problem, PARITY_TEXT,
                     "%s: %s is expected to be one tensor for parts %d and %d: found two", f->row->name,
                     whole, before, part);
            return false;
        }
    }
    return true;
}

/* Likewise attributes. */
static bool same_values(const parity_fused *f, int part, int before, char problem[PARITY_TEXT])
{
    const char *key, *other;
    json_t *value, *theirs;
    json_object_foreach(f->part[part]->attrs, key, value)
    {
        const char *whole = assay_op_part_attr(f->row, part, key);
        json_object_foreach(f->part[before]->attrs, other, theirs)
        {
            const char *name = assay_op_part_attr(f->row, before, other);
            if (whole == NULL || name == NULL || strcmp(whole, name) != 0 || json_equal(theirs, value))
                continue;
            snprintf(problem, PARITY_TEXT,
                     "%s: %s is expected to be one value for parts %d and %d: found two", f->row->name, whole,
                     before, part);
            return false;
        }
    }
    return true;
}

bool parity_fused_find(const assay_trace *t, int rank, int64_t index, parity_fused *out,
                       char problem[PARITY_TEXT])
{
    const assay_trace_op *op = assay_trace_op_at(t, rank, index);
    const assay_op *row = assay_op_find(op->fused);
    *out = (parity_fused){.row = row, .own = op->fused_part};
    if (row == NULL || assay_op_n_parts(row) == 0) {
        snprintf(problem, PARITY_TEXT, "fused: no operation %.40s has parts", op->fused);
        return false;
    }
    out->n = assay_op_n_parts(row);
    for (int k = 0; k < out->n; k++) {
        const int64_t at = index - out->own + k;
        const assay_trace_op *part =
            at >= 0 && at < assay_trace_n_ops(t, rank) ? assay_trace_op_at(t, rank, at) : NULL;
        const char *expected = row->parts[k].op;
        if (part == NULL || strcmp(part->op, expected) != 0 || strcmp(part->fused, op->fused) != 0 ||
            part->fused_part != k || !same_call(part, op)) {
            snprintf(problem, PARITY_TEXT,
                     "%s: part %d of %d is expected to be %s of the same launch, found %.40s %.160s",
                     row->name, k, out->n, expected, part ? part->op : "no record",
                     part ? part->instance : "");
            return false;
        }
        out->part[k] = part;
    }
    for (int k = 1; k < out->n; k++) {
        if (!wired(t, out, k, problem))
            return false;
        for (int before = 0; before < k; before++)
            if (!shared(t, out, k, before, problem) || !same_values(out, k, before, problem))
                return false;
    }
    return true;
}

bool parity_fused_is_internal(const parity_fused *f, const char *slot)
{
    const char *output;
    const assay_op_slot *row = assay_op_slot_find(assay_op_part_of(f->row, f->own), slot, false);
    return row && is_listed_internal(f->part[f->own], slot) &&
           assay_op_part_source(f->row, f->own, slot, &output) >= 0;
}

bool parity_fused_reads_internal(const parity_fused *f)
{
    for (int i = 0; i < f->part[f->own]->n_internal; i++)
        if (parity_fused_is_internal(f, f->part[f->own]->internal[i]))
            return true;
    return false;
}

/* --- the whole ---------------------------------------------------------------------------------------------- */
static bool is_there(const ref_value *values, int n, const char *slot)
{
    for (int i = 0; i < n; i++)
        if (strcmp(values[i].slot, slot) == 0)
            return true;
    return false;
}

/* Values of a part, under the whole's names; those of inputs that an earlier part made or has are left out. */
static assay_status take_slots(const assay_trace *t, const parity_fused *f, int part, bool inputs,
                               ref_value *values, int *n, parity_result *problem)
{
    ref_value own[ASSAY_MAX_SLOTS];
    int n_own = 0;
    assay_status st = parity_read_slots(t, f->part[part], inputs, own, &n_own, problem);
    for (int i = 0; i < n_own; i++) {
        const char *output, *slot = assay_op_part_slot(f->row, part, own[i].slot);
        const bool inside = slot == NULL || *n == ASSAY_MAX_SLOTS || is_there(values, *n, slot) ||
                            (inputs && assay_op_part_source(f->row, part, own[i].slot, &output) >= 0);
        if (inside || st != ASSAY_OK) {
            parity_value_free(&own[i]);
            continue;
        }
        const bool before = inputs && assay_op_slot_find(f->row, slot, false) == NULL; /* of an in-out slot */
        values[*n] = own[i];
        snprintf(values[(*n)++].slot, sizeof values->slot, "%s%s", slot, before ? "_in" : "");
    }
    return st;
}

static assay_status join_declarations(const parity_fused *f, json_t *attrs, assay_declaration *out)
{
    const char *key;
    json_t *value;
    *out = assay_declaration_make(f->part[f->own]->arith.all);
    for (int k = 0; k < f->n; k++) {
        const assay_trace_op *op = f->part[k];
        json_object_foreach(op->attrs, key, value)
        {
            const char *whole = assay_op_part_attr(f->row, k, key);
            if (whole && json_object_get(attrs, whole) == NULL)
                json_object_set(attrs, whole, value);
        }
        for (int i = 0; i < op->n_outputs; i++) {
            const char *slot = assay_op_part_slot(f->row, k, op->outputs[i].slot);
            if (slot)
                ASSAY_TRY(
                    assay_declaration_set(out, slot, *assay_declaration_of(&op->arith, op->outputs[i].slot)));
        }
    }
    return ASSAY_OK;
}

/* Leaves the own part's outputs, under its names. */
static void keep_own(const parity_fused *f, ref_replay_result *result)
{
    const assay_op *row = assay_op_part_of(f->row, f->own);
    int kept = 0;
    for (int i = 0; i < result->n_outputs; i++) {
        ref_value *v = &result->outputs[i];
        const char *name = NULL;
        for (int k = 0; k < assay_op_n_slots(row) && name == NULL; k++) {
            const char *whole = assay_op_part_slot(f->row, f->own, row->slots[k].name);
            if (row->slots[k].role != ASSAY_SLOT_IN && whole && strcmp(whole, v->slot) == 0)
                name = row->slots[k].name;
        }
        if (name == NULL) {
            parity_value_free(v);
            continue;
        }
        snprintf(v->slot, sizeof v->slot, "%s", name);
        result->outputs[kept++] = *v;
    }
    result->n_outputs = kept;
}

assay_status parity_fused_replay(const assay_trace *t, const parity_fused *f, ref_replay_result *result,
                                 parity_result *problem)
{
    ref_value inputs[ASSAY_MAX_SLOTS], candidate[ASSAY_MAX_SLOTS];
    int n_inputs = 0, n_candidate = 0;
    assay_declaration declared;
    assay_status st = ASSAY_OK;
    json_t *attrs = json_object();
    for (int k = 0; k < f->n && problem->verdict == PARITY_PASS; k++) {
        ASSAY_TRY_GOTO(take_slots(t, f, k, true, inputs, &n_inputs, problem), st, done);
        ASSAY_TRY_GOTO(take_slots(t, f, k, false, candidate, &n_candidate, problem), st, done);
    }
    if (problem->verdict != PARITY_PASS)
        goto done;
    ASSAY_TRY_GOTO(join_declarations(f, attrs, &declared), st, done);
    st = ref_replay(f->row->name, attrs, &declared, inputs, n_inputs, candidate, n_candidate, result);
    if (st == ASSAY_OK)
        keep_own(f, result);
done:
    json_decref(attrs);
    parity_free_slots(inputs, n_inputs);
    parity_free_slots(candidate, n_candidate);
    return st;
}
