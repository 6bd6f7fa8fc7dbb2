/* Planting faults in copies of traces. */
#include "parity/run/trace_copier.h"

#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {
    "element",        "value",      "swap_rows", "nan",     "poison",     "sign",    "double",    "recompute",
    "substituted",    "expert",     "missing",   "overlap", "arithmetic", "drop_op", "repeat_op", "late_op",
    "shift",          "other_rank", "unreduced", "attr",    "group",      "rewire",  "header",    "row_shift",
    "row_other_rank", "row_local",  "local",     "as_bf16", "as_f32",     "narrow",  "repeat"};

bool parity_mutation_is_known(const char *kind)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i], kind) == 0)
            return true;
    }
    return false;
}

bool parity_copier_is(const parity_copier *c, const char *kind)
{
    return strcmp(c->m->kind, kind) == 0;
}

/* The piece moves one place down where it is cut and does not begin at 0. */
static assay_status move_piece(parity_copier *c, assay_trace_tensor *t)
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

/* The first half of its rows. */
static assay_status narrow_piece(parity_copier *c, assay_trace_tensor *t)
{
    ASSAY_CHECK(t->kind == ASSAY_PIECE_SHARD && t->shard.ndim > 0 && t->shard.local_shape[0] > 1,
                ASSAY_NOT_FOUND, "%s: rank %d holds no rows to leave out", t->name, c->rank);
    c->planted = true;
    return assay_shard_narrow(&t->shard, 0, 0, t->shard.local_shape[0] / 2);
}

/* --- copying ------------------------------------------------------------------------------------------------ */

static bool same_observation(const assay_trace_tensor *a, const assay_trace_tensor *b)
{
    return strcmp(a->name, b->name) == 0 && a->phase == b->phase && a->step == b->step &&
           a->microbatch == b->microbatch;
}

static assay_status end_step_before(parity_copier *c, int64_t step)
{
    if (c->open_step >= 0 && step > c->open_step)
        ASSAY_TRY(assay_trace_end_step(c->w));
    c->open_step = step;
    return ASSAY_OK;
}

static int64_t new_id(const parity_copier *c, int64_t old)
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

static assay_status copy_tensor(parity_copier *c, int64_t index)
{
    const assay_trace_tensor *old = assay_trace_tensor_at(c->from, c->rank, index);
    assay_trace_tensor t = *old;
    assay_status st = ASSAY_OK;
    c->new_ids[index] = -1;
    if (c->target_tensor && parity_copier_is(c, "missing") && same_observation(old, c->target_tensor)) {
        c->planted = true;
        return ASSAY_OK;
    }
    ASSAY_CHECK(old->data || old->bytes == 0, ASSAY_UNSUPPORTED, "a hash-only trace cannot be changed");
    char *data = malloc(2 * old->bytes + 1);
    ASSAY_CHECK(data, ASSAY_OUT_OF_MEMORY, "%s", old->name);
    if (old->bytes > 0)
        memcpy(data, old->data, old->bytes);
    const bool rows = parity_copier_is(c, "row_local");
    if (old == c->target_tensor && (rows || parity_copier_is(c, "local"))) {
        ASSAY_CHECK_GOTO(rows ? t.kind == ASSAY_PIECE_ROWS : t.kind != ASSAY_PIECE_LOCAL, ASSAY_NOT_FOUND, st,
                         done, "%s: of kind %s", t.name, assay_piece_kind_name(t.kind));
        int64_t shape[ASSAY_MAX_DIMS];
        memcpy(shape, t.shard.local_shape, sizeof shape);
        assay_shard_whole(&t.shard, shape, t.shard.ndim);
        t.kind = ASSAY_PIECE_LOCAL;
        t.rows_id = -1;
        t.partial_group[0] = '\0';
        c->planted = true;
    } else if (old == c->target_tensor && (parity_copier_is(c, "as_bf16") || parity_copier_is(c, "as_f32"))) {
        ASSAY_TRY_GOTO(
            parity_copier_store_as(parity_copier_is(c, "as_f32") ? ASSAY_F32 : ASSAY_BF16, &t, data), st,
            done);
        c->planted = true;
    } else if (old == c->target_tensor && !parity_copier_is(c, "repeat")) {
        st = parity_copier_is(c, "overlap")  ? move_piece(c, &t)
             : parity_copier_is(c, "narrow") ? narrow_piece(c, &t)
                                             : parity_copier_change(c, old, data);
    }
    if (st == ASSAY_OK && t.rows_id >= 0)
        t.rows_id = new_id(c, t.rows_id);
    if (st == ASSAY_OK)
        st = end_step_before(c, t.step);
    if (st == ASSAY_OK)
        st = assay_trace_write_tensor(c->w, &t, data);
    c->new_ids[index] = t.id;
    if (st == ASSAY_OK && old == c->target_tensor && parity_copier_is(c, "repeat")) {
        c->planted = true;
        st = assay_trace_write_tensor(c->w, &t, data);
    }
done:
    free(data);
    return st;
}

/* Slots with new record numbers; those whose record was dropped are left out. */
static int copy_slots(const parity_copier *c, assay_trace_slot *slots, int n)
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
static assay_status write_changed_op(parity_copier *c, assay_trace_op *op)
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

static assay_status copy_op(parity_copier *c, const assay_trace_op *old)
{
    assay_trace_op op = *old;
    op.n_inputs = copy_slots(c, op.inputs, op.n_inputs);
    op.n_outputs = copy_slots(c, op.outputs, op.n_outputs);
    prune_outputs(&op, old);
    if (old == c->target && parity_copier_is(c, "drop_op")) {
        c->planted = true;
        return ASSAY_OK;
    }
    if (old == c->target && parity_copier_is(c, "late_op") && c->late == NULL) {
        c->late = old;
        c->planted = true;
        return ASSAY_OK;
    }
    if (old == c->target && parity_mutation_is_op(c->m->kind))
        return write_changed_op(c, &op);
    if (old == c->target && parity_copier_is(c, "recompute"))
        c->planted = op.recompute = true;
    for (int i = 0; i < op.n_outputs && old == c->target && parity_copier_is(c, "substituted"); i++)
        if (strcmp(op.outputs[i].slot, c->m->slot) == 0)
            c->planted = op.substituted[i] = true;
    if (old == c->target && parity_copier_is(c, "arithmetic")) {
        op.arith.all.accumulate = ASSAY_F64;
        for (int i = 0; i < op.arith.n; i++)
            op.arith.output[i].arith.accumulate = ASSAY_F64;
        c->planted = true;
    }
    if (old == c->target && parity_copier_is(c, "repeat_op")) {
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

static assay_status find_target(parity_copier *c)
{
    const bool in_op = parity_copier_is(c, "arithmetic") || parity_copier_is(c, "recompute") ||
                       parity_copier_is(c, "substituted") || parity_copier_is(c, "drop_op") ||
                       parity_copier_is(c, "repeat_op") || parity_copier_is(c, "late_op") ||
                       parity_mutation_is_op(c->m->kind);
    if (parity_copier_is(c, "header"))
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
        if (c->target_tensor && (parity_copier_is(c, "row_shift") || parity_copier_is(c, "row_other_rank")))
            c->target_tensor = assay_trace_tensor_by_id(c->from, c->rank, c->target_tensor->rows_id);
        if (in_op || c->target_tensor)
            return ASSAY_OK;
    }
    ASSAY_FAIL(ASSAY_NOT_FOUND, "rank %d records no %s %s with slot %s", c->rank, c->m->op, c->m->instance,
               c->m->slot);
}

static assay_status copy_rank(parity_copier *c)
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

static assay_status mutate_rank(parity_copier *c, const char *to)
{
    assay_status st = ASSAY_OK;
    json_t *header = json_deep_copy(assay_trace_header(c->from));
    c->open_step = -1;
    c->target = c->late = NULL;
    if (parity_copier_is(c, "header")) {
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
    parity_copier c = {.from = from, .m = m};
    ASSAY_CHECK(parity_mutation_is_known(m->kind), ASSAY_INVALID_ARGUMENT, "%s: no such fault", m->kind);
    for (c.rank = 0; c.rank < assay_trace_world(from); c.rank++)
        ASSAY_TRY(mutate_rank(&c, to));
    ASSAY_CHECK(c.planted, ASSAY_NOT_FOUND, "%s: the fault was not planted (rank %d of %d)", m->kind, m->rank,
                assay_trace_world(from));
    return ASSAY_OK;
}
