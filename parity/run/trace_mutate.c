/* Planting faults in copies of traces. */
#include "parity/run/mutate_op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct copier {
    const assay_trace *from;
    const parity_mutation *m;
    assay_trace_writer *w;
    int rank;
    const assay_trace_op *target;            /* NULL on other ranks */
    const assay_trace_tensor *target_tensor; /* NULL: the fault is in the operation */
    int64_t *new_ids;                        /* by record, -1: dropped or not yet written */
    int64_t open_step;                       /* -1 */
    const assay_trace_op *late;              /* to be written last */
    bool planted;
} copier;

static const char *const kinds[] = {
    "element",        "value",      "swap_rows", "nan",     "poison",     "sign",    "double",    "recompute",
    "substituted",    "expert",     "missing",   "overlap", "arithmetic", "drop_op", "repeat_op", "late_op",
    "shift",          "other_rank", "unreduced", "attr",    "group",      "rewire",  "header",    "row_shift",
    "row_other_rank", "row_local",  "as_bf16"};

bool parity_mutation_is_known(const char *kind)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i], kind) == 0)
            return true;
    }
    return false;
}

static bool is(const copier *c, const char *kind)
{
    return strcmp(c->m->kind, kind) == 0;
}

/* --- values ------------------------------------------------------------------------------------------------- */

static assay_status put(void *data, int64_t index, assay_dtype dtype, double x)
{
    char *p = (char *)data + index * assay_dtype_bytes(dtype);
    const float f = (float)ref_round(x, dtype == ASSAY_BF16 ? ASSAY_BF16 : ASSAY_F32);
    const int64_t n = parity_is_integer(dtype) ? (int64_t)x : 0;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint16_t upper = (uint16_t)(bits >> 16);
    switch (dtype) {
    case ASSAY_F64:
        memcpy(p, &x, sizeof x);
        return ASSAY_OK;
    case ASSAY_F32:
        memcpy(p, &f, sizeof f);
        return ASSAY_OK;
    case ASSAY_BF16:
        memcpy(p, &upper, sizeof upper);
        return ASSAY_OK;
    case ASSAY_I64:
        memcpy(p, &n, sizeof n);
        return ASSAY_OK;
    default:
        ASSAY_FAIL(ASSAY_UNSUPPORTED, "a fault in values of dtype %s", assay_dtype_name(dtype));
    }
}

/* A value whose distance from the truth is twice the bound and an ulp more. */
static assay_status beyond_bound(const copier *c, int64_t index, double *out)
{
    ref_value inputs[ASSAY_MAX_SLOTS], found[ASSAY_MAX_SLOTS];
    int n_inputs = 0, n_found = 0;
    parity_result problem;
    ref_replay_result result;
    assay_status st = ASSAY_OK;
    parity_result_init(&problem);
    memset(&result, 0, sizeof result);
    ASSAY_TRY_GOTO(parity_read_slots(c->from, c->target, true, inputs, &n_inputs, &problem), st, done);
    ASSAY_TRY_GOTO(parity_read_slots(c->from, c->target, false, found, &n_found, &problem), st, done);
    ASSAY_TRY_GOTO(ref_replay(c->target->op, c->target->attrs, &c->target->arith, inputs, n_inputs, found,
                              n_found, &result),
                   st, done);
    const ref_value *truth = parity_find_value(result.outputs, result.n_outputs, c->m->slot);
    ASSAY_CHECK_GOTO(truth && truth->value && index < truth->count, ASSAY_NOT_FOUND, st, done,
                     "%s has no real output %s", c->target->op, c->m->slot);
    const double bound = truth->bound ? truth->bound[index] : 0.0;
    *out = truth->value[index] +
           2.0 * (bound + ref_ulp(fabs(truth->value[index]) + bound, c->target_tensor->dtype));
done:
    ref_replay_free(&result);
    parity_free_slots(inputs, n_inputs);
    parity_free_slots(found, n_found);
    return st;
}

static assay_status swap_rows(const assay_trace_tensor *t, char *data)
{
    const int64_t rows = t->shard.ndim > 0 ? t->shard.local_shape[0] : 0;
    const size_t bytes = rows >= 2 ? t->bytes / (size_t)rows : 0;
    ASSAY_CHECK(bytes > 0 && memcmp(data, data + bytes, bytes) != 0, ASSAY_NOT_FOUND,
                "%s: no two different rows to swap", t->name);
    for (size_t i = 0; i < bytes; i++) {
        const char x = data[i];
        data[i] = data[bytes + i];
        data[bytes + i] = x;
    }
    return ASSAY_OK;
}

/* One expert of the first row becomes the lowest one that was not chosen; the row stays ascending. */
static assay_status change_expert(const assay_trace_tensor *t, char *data)
{
    const int64_t k = t->shard.ndim > 0 ? t->shard.local_shape[t->shard.ndim - 1] : 0;
    ASSAY_CHECK(t->dtype == ASSAY_I64 && k > 0 && assay_shard_count(&t->shard) >= k, ASSAY_NOT_FOUND,
                "%s: no choice of experts", t->name);
    int64_t unused = 0;
    while (unused < k && parity_decode_integer(data, unused, ASSAY_I64) == unused)
        unused++;
    return put(data, unused < k ? unused : k - 1, ASSAY_I64, (double)(unused < k ? unused : k));
}

/* Every number takes the place of the one before it, the first the last one's. */
static void shift(const assay_trace_tensor *t, char *data)
{
    const size_t width = (size_t)assay_dtype_bytes(t->dtype);
    const char *from = t->data;
    memcpy(data, from + width, t->bytes - width);
    memcpy(data + t->bytes - width, from, width);
}

static assay_status take_content(const assay_trace_tensor *from, const assay_trace_tensor *t, char *data)
{
    ASSAY_CHECK(from && from->data && from->bytes == t->bytes && from->dtype == t->dtype &&
                    memcmp(from->data, t->data, t->bytes) != 0,
                ASSAY_NOT_FOUND, "%s: nothing of its size that differs", t->name);
    memcpy(data, from->data, t->bytes);
    return ASSAY_OK;
}

static assay_status change_all(const assay_trace_tensor *t, char *data, double factor)
{
    for (int64_t i = 0; i < assay_shard_count(&t->shard); i++)
        ASSAY_TRY(put(data, i, t->dtype, factor * parity_decode(t->data, i, t->dtype)));
    return ASSAY_OK;
}

static assay_status change_data(copier *c, const assay_trace_tensor *t, char *data)
{
    const int64_t at = assay_shard_count(&t->shard) / 2;
    ASSAY_CHECK(assay_shard_count(&t->shard) > 0 && t->data, ASSAY_NOT_FOUND, "%s: nothing to change",
                t->name);
    double x = 1.5 * parity_decode(t->data, at, t->dtype) + 1.0;
    const uint32_t poison = 0x7fa5a5a5u;
    const uint16_t narrow_poison = 0x7fa5u;
    c->planted = true;
    if (is(c, "swap_rows"))
        return swap_rows(t, data);
    if (is(c, "expert"))
        return change_expert(t, data);
    if (is(c, "row_other_rank"))
        return parity_mutate_row_ids(c->from, c->target, c->m, t, data);
    if (is(c, "shift") || is(c, "row_shift")) {
        shift(t, data);
        return ASSAY_OK;
    }
    if (is(c, "other_rank"))
        return take_content(parity_mutate_twin(c->from, c->target, c->m), t, data);
    if (is(c, "unreduced"))
        return take_content(assay_trace_tensor_by_id(c->from, c->rank, c->target->inputs[0].tensor), t, data);
    if (is(c, "sign"))
        return change_all(t, data, -1.0);
    if (is(c, "double"))
        return change_all(t, data, 2.0);
    if (is(c, "element"))
        ASSAY_TRY(beyond_bound(c, at, &x));
    if (is(c, "nan"))
        x = (double)NAN;
    if (is(c, "poison") && (t->dtype == ASSAY_F32 || t->dtype == ASSAY_BF16)) {
        const bool wide = t->dtype == ASSAY_F32;
        memcpy(data + at * (wide ? 4 : 2), wide ? (const void *)&poison : (const void *)&narrow_poison,
               wide ? 4 : 2);
        return ASSAY_OK;
    }
    return put(data, at, t->dtype, x);
}

/* The piece moves one place down where it is cut and does not begin at 0. */
static assay_status move_piece(copier *c, assay_trace_tensor *t)
{
    for (int d = 0; d < t->shard.ndim; d++) {
        for (int i = 0; i < t->shard.n_segments[d]; i++) {
            if (t->shard.segments[d][i].start == 0 || t->kind != ASSAY_PIECE_SHARD)
                continue;
            assay_segment moved[ASSAY_MAX_SEGMENTS];
            memcpy(moved, t->shard.segments[d], (size_t)t->shard.n_segments[d] * sizeof *moved);
            moved[i].start--;
            assay_shard_set(&t->shard, d, moved, t->shard.n_segments[d]);
            c->planted = true;
            return ASSAY_OK;
        }
    }
    ASSAY_FAIL(ASSAY_NOT_FOUND, "%s: rank %d holds no piece that begins behind another", t->name, c->rank);
}

/* --- copying ------------------------------------------------------------------------------------------------ */

static bool same_observation(const assay_trace_tensor *a, const assay_trace_tensor *b)
{
    return strcmp(a->name, b->name) == 0 && a->phase == b->phase && a->step == b->step &&
           a->microbatch == b->microbatch;
}

static assay_status end_step_before(copier *c, int64_t step)
{
    if (c->open_step >= 0 && step > c->open_step)
        ASSAY_TRY(assay_trace_end_step(c->w));
    c->open_step = step;
    return ASSAY_OK;
}

static int64_t new_id(const copier *c, int64_t old)
{
    const int64_t n = assay_trace_n_tensors(c->from, c->rank);
    int64_t low = 0, high = n - 1;
    while (low <= high) {
        const int64_t mid = low + (high - low) / 2;
        const int64_t id = assay_trace_tensor_at(c->from, c->rank, mid)->id;
        if (id == old)
            return c->new_ids[mid];
        if (id < old)
            low = mid + 1;
        else
            high = mid - 1;
    }
    return -1;
}

/* An F32 tensor as if it had been stored in BF16. */
static assay_status store_as_bf16(assay_trace_tensor *t, char *data)
{
    ASSAY_CHECK(t->dtype == ASSAY_F32, ASSAY_NOT_FOUND, "%s: not F32", t->name);
    for (int64_t i = 0; i < assay_shard_count(&t->shard); i++) {
        float wide;
        memcpy(&wide, data + 4 * i, sizeof wide);
        ASSAY_TRY(put(data, i, ASSAY_BF16, (double)wide));
    }
    t->dtype = ASSAY_BF16;
    return ASSAY_OK;
}

static assay_status copy_tensor(copier *c, int64_t index)
{
    const assay_trace_tensor *old = assay_trace_tensor_at(c->from, c->rank, index);
    assay_trace_tensor t = *old;
    assay_status st = ASSAY_OK;
    c->new_ids[index] = -1;
    if (c->target_tensor && is(c, "missing") && same_observation(old, c->target_tensor)) {
        c->planted = true;
        return ASSAY_OK;
    }
    ASSAY_CHECK(old->data || old->bytes == 0, ASSAY_UNSUPPORTED, "a hash-only trace cannot be changed");
    char *data = malloc(old->bytes + 1);
    ASSAY_CHECK(data, ASSAY_OUT_OF_MEMORY, "%s", old->name);
    if (old->bytes > 0)
        memcpy(data, old->data, old->bytes);
    if (old == c->target_tensor && is(c, "row_local")) {
        ASSAY_CHECK_GOTO(t.kind == ASSAY_PIECE_ROWS, ASSAY_NOT_FOUND, st, done, "%s: not of kind rows",
                         t.name);
        t.kind = ASSAY_PIECE_LOCAL;
        t.rows_id = -1;
        c->planted = true;
    } else if (old == c->target_tensor && is(c, "as_bf16")) {
        ASSAY_TRY_GOTO(store_as_bf16(&t, data), st, done);
        c->planted = true;
    } else if (old == c->target_tensor) {
        st = is(c, "overlap") ? move_piece(c, &t) : change_data(c, old, data);
    }
    if (st == ASSAY_OK && t.rows_id >= 0)
        t.rows_id = new_id(c, t.rows_id);
    if (st == ASSAY_OK)
        st = end_step_before(c, t.step);
    if (st == ASSAY_OK)
        st = assay_trace_write_tensor(c->w, &t, data);
    c->new_ids[index] = t.id;
done:
    free(data);
    return st;
}

/* Slots with new record numbers; those whose record was dropped are left out. */
static int copy_slots(const copier *c, assay_trace_slot *slots, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        const int64_t id = new_id(c, slots[i].tensor);
        if (id < 0)
            continue;
        slots[kept] = slots[i];
        slots[kept++].tensor = id;
    }
    return kept;
}

/* What is said of outputs stays with those that are left: `old` has all of them. */
static void prune_outputs(assay_trace_op *op, const assay_trace_op *old)
{
    for (int i = 0; i < op->n_outputs; i++)
        for (int k = 0; k < old->n_outputs; k++)
            if (strcmp(op->outputs[i].slot, old->outputs[k].slot) == 0)
                op->substituted[i] = old->substituted[k];
    int kept = 0;
    for (int k = 0; k < op->arith.n; k++)
        for (int i = 0; i < op->n_outputs; i++)
            if (strcmp(op->outputs[i].slot, op->arith.output[k].slot) == 0) {
                op->arith.output[kept++] = op->arith.output[k];
                break;
            }
    op->arith.n = kept;
}

/* An operation with another attribute, group or slot. */
static assay_status write_changed_op(copier *c, assay_trace_op *op)
{
    int *ranks = NULL;
    int64_t record = -1;
    json_t *attrs = NULL;
    ASSAY_TRY(parity_mutate_op(c->from, c->target, c->m, op, &attrs, &ranks, &record));
    if (record >= 0)
        parity_mutate_slot(c->m, op, new_id(c, record));
    prune_outputs(op, c->target);
    const assay_status st = assay_trace_write_op(c->w, op);
    c->planted = true;
    json_decref(attrs);
    free(ranks);
    return st;
}

static assay_status copy_op(copier *c, const assay_trace_op *old)
{
    assay_trace_op op = *old;
    op.n_inputs = copy_slots(c, op.inputs, op.n_inputs);
    op.n_outputs = copy_slots(c, op.outputs, op.n_outputs);
    prune_outputs(&op, old);
    if (old == c->target && is(c, "drop_op")) {
        c->planted = true;
        return ASSAY_OK;
    }
    if (old == c->target && is(c, "late_op") && c->late == NULL) {
        c->late = old;
        c->planted = true;
        return ASSAY_OK;
    }
    if (old == c->target && parity_mutation_is_op(c->m->kind))
        return write_changed_op(c, &op);
    if (old == c->target && is(c, "recompute"))
        c->planted = op.recompute = true;
    for (int i = 0; i < op.n_outputs && old == c->target && is(c, "substituted"); i++)
        if (strcmp(op.outputs[i].slot, c->m->slot) == 0)
            c->planted = op.substituted[i] = true;
    if (old == c->target && is(c, "arithmetic")) {
        op.arith.all.accumulate = ASSAY_F64;
        for (int i = 0; i < op.arith.n; i++)
            op.arith.output[i].arith.accumulate = ASSAY_F64;
        c->planted = true;
    }
    if (old == c->target && is(c, "repeat_op")) {
        ASSAY_TRY(assay_trace_write_op(c->w, &op));
        c->planted = true;
    }
    return assay_trace_write_op(c->w, &op);
}

static int64_t last_record(const assay_trace_op *op)
{
    int64_t last = -1;
    for (int i = 0; i < op->n_inputs; i++)
        last = op->inputs[i].tensor > last ? op->inputs[i].tensor : last;
    for (int i = 0; i < op->n_outputs; i++)
        last = op->outputs[i].tensor > last ? op->outputs[i].tensor : last;
    return last;
}

static bool matches(const parity_mutation *m, const assay_trace_op *op)
{
    const size_t length = strlen(m->instance);
    const bool prefix = length > 0 && m->instance[length - 1] == '*';
    const bool there =
        prefix ? strncmp(m->instance, op->instance, length - 1) == 0 : strcmp(m->instance, op->instance) == 0;
    return there && strcmp(m->op, op->op) == 0 && (m->step < 0 || m->step == op->step) &&
           (m->microbatch < 0 || m->microbatch == op->microbatch) && m->again == op->recompute;
}

static assay_status find_target(copier *c)
{
    const bool in_op = is(c, "arithmetic") || is(c, "recompute") || is(c, "substituted") ||
                       is(c, "drop_op") || is(c, "repeat_op") || is(c, "late_op") ||
                       parity_mutation_is_op(c->m->kind);
    if (is(c, "header"))
        return ASSAY_OK;
    for (int64_t i = 0; c->m->op[0] == '\0' && i < assay_trace_n_tensors(c->from, c->rank); i++) {
        const assay_trace_tensor *t = assay_trace_tensor_at(c->from, c->rank, i);
        if (strcmp(t->name, c->m->instance) != 0 || (c->m->step >= 0 && t->step != c->m->step))
            continue;
        c->target_tensor = t;
        return ASSAY_OK;
    }
    for (int64_t i = 0; i < assay_trace_n_ops(c->from, c->rank); i++) {
        const assay_trace_op *op = assay_trace_op_at(c->from, c->rank, i);
        if (!matches(c->m, op))
            continue;
        c->target = op;
        const assay_trace_slot *slots = c->m->input ? op->inputs : op->outputs;
        const int n = c->m->input ? op->n_inputs : op->n_outputs;
        for (int s = 0; s < n && !in_op; s++) {
            const assay_trace_tensor *t = assay_trace_tensor_by_id(c->from, c->rank, slots[s].tensor);
            if (strcmp(slots[s].slot, c->m->slot) == 0 && t && assay_shard_count(&t->shard) > 0)
                c->target_tensor = t;
        }
        if (c->target_tensor && (is(c, "row_shift") || is(c, "row_other_rank")))
            c->target_tensor = assay_trace_tensor_by_id(c->from, c->rank, c->target_tensor->rows_id);
        if (in_op || c->target_tensor)
            return ASSAY_OK;
    }
    ASSAY_FAIL(ASSAY_NOT_FOUND, "rank %d records no %s %s with slot %s", c->rank, c->m->op, c->m->instance,
               c->m->slot);
}

static assay_status copy_rank(copier *c)
{
    int64_t next = 0;
    const int64_t n = assay_trace_n_tensors(c->from, c->rank);
    for (int64_t i = 0; i < assay_trace_n_ops(c->from, c->rank); i++) {
        const assay_trace_op *op = assay_trace_op_at(c->from, c->rank, i);
        while (next < n && assay_trace_tensor_at(c->from, c->rank, next)->id <= last_record(op))
            ASSAY_TRY(copy_tensor(c, next++));
        ASSAY_TRY(copy_op(c, op));
    }
    while (next < n)
        ASSAY_TRY(copy_tensor(c, next++));
    if (c->late != NULL)
        ASSAY_TRY(copy_op(c, c->late));
    ASSAY_TRY(assay_trace_end_step(c->w));
    return assay_trace_writer_close(c->w);
}

static assay_status mutate_rank(copier *c, const char *to)
{
    assay_status st = ASSAY_OK;
    json_t *header = json_deep_copy(assay_trace_header(c->from));
    c->open_step = -1;
    c->target = c->late = NULL;
    if (is(c, "header")) {
        c->planted = true;
        json_object_set_new(header, c->m->slot, json_string(c->m->value));
    }
    c->target_tensor = NULL;
    c->w = NULL;
    c->new_ids = calloc((size_t)assay_trace_n_tensors(c->from, c->rank) + 1, sizeof *c->new_ids);
    ASSAY_CHECK_GOTO(c->new_ids && header, ASSAY_OUT_OF_MEMORY, st, done, "%s", to);
    if (c->rank == c->m->rank)
        ASSAY_TRY_GOTO(find_target(c), st, done);
    ASSAY_TRY_GOTO(assay_trace_writer_open(&c->w, to, c->rank, assay_trace_world(c->from), header, false), st,
                   done);
    ASSAY_TRY_GOTO(copy_rank(c), st, done);
done:
    assay_trace_writer_destroy(c->w);
    free(c->new_ids);
    json_decref(header);
    return st;
}

assay_status parity_trace_mutate(const assay_trace *from, const char *to, const parity_mutation *m)
{
    copier c = {.from = from, .m = m};
    ASSAY_CHECK(parity_mutation_is_known(m->kind), ASSAY_INVALID_ARGUMENT, "%s: no such fault", m->kind);
    for (c.rank = 0; c.rank < assay_trace_world(from); c.rank++)
        ASSAY_TRY(mutate_rank(&c, to));
    ASSAY_CHECK(c.planted, ASSAY_NOT_FOUND, "%s: the fault was not planted (rank %d of %d)", m->kind, m->rank,
                assay_trace_world(from));
    return ASSAY_OK;
}
