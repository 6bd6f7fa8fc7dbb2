/* Faults in the record of one operation. */
#include "parity/run/mutate_op.h"

#include <stdlib.h>
#include <string.h>

bool parity_mutation_is_op(const char *kind)
{
    return strcmp(kind, "attr") == 0 || strcmp(kind, "group") == 0 || strcmp(kind, "rewire") == 0;
}

static assay_status change_attr(const assay_trace_op *target, const parity_mutation *m, json_t **out)
{
    json_error_t error;
    json_t *value = json_loads(m->value, JSON_DECODE_ANY, &error);
    ASSAY_CHECK(value, ASSAY_INVALID_ARGUMENT, "%s: expected JSON, found '%s'", m->slot, m->value);
    if (json_equal(value, json_object_get(target->attrs, m->slot))) {
        json_decref(value);
        ASSAY_FAIL(ASSAY_NOT_FOUND, "%s %s: attribute %s is %s already", target->op, target->instance,
                   m->slot, m->value);
    }
    *out = target->attrs ? json_deep_copy(target->attrs) : json_object();
    if (json_is_null(value)) {
        json_object_del(*out, m->slot);
        json_decref(value);
    } else {
        json_object_set_new(*out, m->slot, value);
    }
    return ASSAY_OK;
}

static assay_status change_group(const assay_trace *from, const parity_mutation *m, int rank,
                                 assay_trace_op *op, int **ranks)
{
    assay_grid grid;
    ASSAY_CHECK(parity_grid_from_trace(from, &grid), ASSAY_NOT_FOUND, "the trace names no layout");
    for (int k = 0; k < ASSAY_GROUP_COUNT; k++) {
        if (strcmp(assay_group_name((assay_group)k), m->value) != 0)
            continue;
        const int n = assay_grid_group(&grid, (assay_group)k, rank, NULL, NULL);
        *ranks = calloc((size_t)n + 1, sizeof **ranks);
        ASSAY_CHECK(*ranks, ASSAY_OUT_OF_MEMORY, "group of %d ranks", n);
        (void)assay_grid_group(&grid, (assay_group)k, rank, *ranks, NULL);
        snprintf(op->group, sizeof op->group, "%s", m->value);
        op->group_ranks = *ranks;
        op->n_group_ranks = n;
        return ASSAY_OK;
    }
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "no group is called '%s'", m->value);
}

static const assay_trace_slot *slot_of(const assay_trace_op *op, const parity_mutation *m)
{
    const assay_trace_slot *slots = m->input ? op->inputs : op->outputs;
    for (int i = 0; i < (m->input ? op->n_inputs : op->n_outputs); i++) {
        if (strcmp(slots[i].slot, m->slot) == 0)
            return &slots[i];
    }
    return NULL;
}

/* The first record of the operation: what may be read instead stands before it. */
static int64_t first_record(const assay_trace_op *op)
{
    int64_t first = INT64_MAX;
    for (int i = 0; i < op->n_inputs; i++)
        first = op->inputs[i].tensor < first ? op->inputs[i].tensor : first;
    for (int i = 0; i < op->n_outputs; i++)
        first = op->outputs[i].tensor < first ? op->outputs[i].tensor : first;
    return first;
}

static assay_status find_other(const assay_trace *from, const assay_trace_op *target,
                               const parity_mutation *m, int64_t *record)
{
    const assay_trace_slot *slot = slot_of(target, m);
    const assay_trace_tensor *now = slot ? assay_trace_tensor_by_id(from, target->rank, slot->tensor) : NULL;
    const char *name = m->value[0] != '\0' ? m->value : now ? now->name : "";
    const int64_t before = first_record(target);
    *record = -1;
    for (int64_t i = 0; i < assay_trace_n_tensors(from, target->rank); i++) {
        const assay_trace_tensor *t = assay_trace_tensor_at(from, target->rank, i);
        if (t->id >= before)
            break;
        if (strcmp(t->name, name) == 0 &&
            (m->value[0] != '\0' || (t->step == target->step && t->microbatch != target->microbatch)))
            *record = t->id;
    }
    ASSAY_CHECK(*record >= 0, ASSAY_NOT_FOUND, "%s %s: no earlier record of %s", target->op, target->instance,
                name);
    return ASSAY_OK;
}

assay_status parity_mutate_op(const assay_trace *from, const assay_trace_op *target, const parity_mutation *m,
                              assay_trace_op *op, json_t **attrs, int **ranks, int64_t *record)
{
    *record = -1;
    if (strcmp(m->kind, "rewire") == 0)
        return find_other(from, target, m, record);
    if (strcmp(m->kind, "group") == 0)
        return change_group(from, m, target->rank, op, ranks);
    ASSAY_TRY(change_attr(target, m, attrs));
    op->attrs = *attrs;
    return ASSAY_OK;
}

void parity_mutate_slot(const parity_mutation *m, assay_trace_op *op, int64_t id)
{
    assay_trace_slot *slots = m->input ? op->inputs : op->outputs;
    int *n = m->input ? &op->n_inputs : &op->n_outputs;
    int i = 0;
    while (i < *n && strcmp(slots[i].slot, m->slot) != 0)
        i++;
    if (i == ASSAY_MAX_SLOTS)
        return;
    if (i == *n) {
        snprintf(slots[i].slot, sizeof slots[i].slot, "%.*s", (int)sizeof slots[i].slot - 1, m->slot);
        (*n)++;
    }
    slots[i].tensor = id;
}

const assay_trace_tensor *parity_mutate_twin(const assay_trace *from, const assay_trace_op *target,
                                             const parity_mutation *m)
{
    const int other = (target->rank + 1) % assay_trace_world(from);
    for (int64_t i = 0; i < assay_trace_n_ops(from, other); i++) {
        const assay_trace_op *op = assay_trace_op_at(from, other, i);
        const assay_trace_slot *slot = strcmp(op->op, target->op) == 0 &&
                                               strcmp(op->instance, target->instance) == 0 &&
                                               op->step == target->step
                                           ? slot_of(op, m)
                                           : NULL;
        if (slot != NULL)
            return assay_trace_tensor_by_id(from, other, slot->tensor);
    }
    return NULL;
}

assay_status parity_mutate_row_ids(const assay_trace *from, const assay_trace_op *target,
                                   const parity_mutation *m, const assay_trace_tensor *t, void *data)
{
    const assay_trace_tensor *twin = parity_mutate_twin(from, target, m);
    const assay_trace_tensor *ids = twin ? assay_trace_tensor_by_id(from, twin->rank, twin->rows_id) : NULL;
    const size_t n = ids && ids->data ? (ids->bytes < t->bytes ? ids->bytes : t->bytes) : 0;
    ASSAY_CHECK(n > 0 && memcmp(ids->data, t->data, n) != 0, ASSAY_NOT_FOUND, "%s: no other row ids",
                t->name);
    memcpy(data, ids->data, n);
    return ASSAY_OK;
}
