/* Batch invariance of the engine's operations: every record whose outputs have rows of their own is asked again in two halves of its
 * rows, and each half has to have the bits that it has among all. */
#include "parity/certify/engine.h"

#include "parity/certify/symbols.h"
#include <stdlib.h>
#include <string.h>

/* One of the requests' records, as rows. */
typedef struct whole {
    const assay_trace *request;
    const assay_trace_op *asked;
    const assay_op *op;
    assay_op_binding binding;
    assay_dtype act;
    int64_t rows, cut; /* the first row of the second half */
} whole;

/* Binds the symbols of a record; false: its row does not allow it (the other trials say so), or it has no two parts. */
static bool read_whole(whole *w)
{
    assay_op_operand operands[ASSAY_MAX_SLOTS];
    for (int i = 0; i < w->asked->n_inputs; i++) {
        const char *slot = w->asked->inputs[i].slot;
        const assay_trace_tensor *x = assay_trace_op_tensor(w->request, w->asked, slot);
        if (x == NULL)
            return false;
        operands[i] = (assay_op_operand){slot, x->dtype, x->shard.ndim, x->shard.local_shape};
    }
    if (assay_op_check(w->op, w->asked->attrs, w->act, w->act, operands, w->asked->n_inputs, NULL, -1,
                       &w->binding) != ASSAY_OK) {
        assay_error_clear();
        return false;
    }
    if (!assay_op_symbol(&w->binding, "T", &w->rows))
        return false;
    w->cut = certify_cut(w->op, &w->binding, w->rows);
    return w->cut > 0;
}

/* Rows first to end of an input that is rows, the whole of another. */
static assay_status write_input(const whole *w, assay_trace_writer *out, int index, int64_t first,
                                int64_t end, int64_t *id)
{
    const assay_op_slot *row = assay_op_slot_find(w->op, w->asked->inputs[index].slot, false);
    assay_trace_tensor t = *assay_trace_op_tensor(w->request, w->asked, w->asked->inputs[index].slot);
    const char *data = t.data;
    t.rows_id = -1;
    t.kind = ASSAY_PIECE_LOCAL;
    if (certify_slot_has_rows(row)) {
        int64_t shape[ASSAY_OP_DIMS];
        int ndim;
        ASSAY_TRY(assay_op_slot_shape(w->op, row, &w->binding, &ndim, shape));
        const size_t bytes = t.bytes / (size_t)w->rows;
        shape[0] = end - first;
        assay_shard_whole(&t.shard, shape, ndim);
        data = data != NULL ? data + (size_t)first * bytes : NULL;
    }
    ASSAY_TRY(assay_trace_write_tensor(out, &t, data));
    *id = t.id;
    return ASSAY_OK;
}

static assay_status write_half(const whole *w, assay_trace_writer *out, int64_t sequence, int64_t first,
                               int64_t end)
{
    assay_trace_op op = *w->asked;
    op.sequence = sequence;
    for (int i = 0; i < op.n_inputs; i++)
        ASSAY_TRY(write_input(w, out, i, first, end, &op.inputs[i].tensor));
    return assay_trace_write_op(out, &op);
}

/* Records of the answer that were cut, in the order of the halves. */
typedef struct cut {
    int64_t record, rows, cut; /* the second half begins at row `cut` */
} cut;
typedef struct cuts {
    cut *record;
    int64_t n, room;
} cuts;

static assay_status note_cut(cuts *c, cut one)
{
    if (c->n == c->room) {
        const int64_t room = c->room > 0 ? 2 * c->room : 1024;
        cut *more = realloc(c->record, (size_t)room * sizeof *more);
        ASSAY_CHECK(more != NULL, ASSAY_OUT_OF_MEMORY, "%lld records", (long long)room);
        c->record = more;
        c->room = room;
    }
    c->record[c->n++] = one;
    return ASSAY_OK;
}

/* The halves of every record that can be cut and whose variant declares that a row's bits are its own. */
static assay_status write_halves(const engine_trial *t, const assay_trace *request, const assay_trace *answer,
                                 assay_trace_writer *out, cuts *c)
{
    whole w = {.request = request};
    ASSAY_TRY(assay_dtype_from_name(t->act, &w.act));
    for (int64_t i = 0; i < assay_trace_n_ops(request, 0); i++) {
        w.asked = assay_trace_op_at(request, 0, i);
        w.op = assay_op_find(w.asked->op);
        const assay_trace_op *ran = assay_trace_op_at(answer, 0, i);
        certify_result *into = engine_result_of(t, w.asked->op);
        if (w.op == NULL || into == NULL || !certify_has_own_rows(w.op) || !read_whole(&w) ||
            strcmp(ran->op, w.asked->op) != 0) /* exact and local have failed it */
            continue;
        if (engine_by_library(t, ran->op, ran->variant)) {
            into->excused_rows++;
            continue;
        }
        ASSAY_TRY(write_half(&w, out, 2 * c->n, 0, w.cut));
        ASSAY_TRY(write_half(&w, out, 2 * c->n + 1, w.cut, w.rows));
        ASSAY_TRY(note_cut(c, (cut){.record = i, .rows = w.rows, .cut = w.cut}));
    }
    ASSAY_TRY(assay_trace_end_step(out));
    return assay_trace_writer_close(out);
}

static void compare_half(const engine_trial *t, const assay_trace *a, const assay_trace *b, const cut *c,
                         int64_t i, bool second)
{
    const assay_trace_op *all = assay_trace_op_at(a, 0, c->record), *half = assay_trace_op_at(b, 0, i);
    const uint64_t rows = (uint64_t)c->rows, mine = (uint64_t)(second ? c->rows - c->cut : c->cut);
    certify_result *into = engine_result_of(t, all->op);
    bool same = true;
    into->board.trial[CERTIFY_BATCH].calls++;
    if (strcmp(half->op, all->op) != 0 || strcmp(half->instance, all->instance) != 0) {
        certify_bad(&into->board, CERTIFY_BATCH, "%s half of the rows of %.100s (%s): answered as %s %.100s",
                    second ? "second" : "first", all->instance, t->act, half->op, half->instance);
        return;
    }
    for (int k = 0; k < all->n_outputs && same; k++) {
        const char *slot = all->outputs[k].slot;
        const assay_op_slot *row = assay_op_slot_find(into->op, slot, true);
        const assay_trace_tensor *x = assay_trace_op_tensor(a, all, slot);
        const assay_trace_tensor *y = assay_trace_op_tensor(b, half, slot);
        if (row == NULL || !certify_slot_has_rows(row) || certify_sums_rows(into->op, slot))
            continue;
        same = x != NULL && y != NULL && y->bytes == x->bytes / rows * mine &&
               (y->bytes == 0 ||
                memcmp((const char *)x->data + (second ? x->bytes - y->bytes : 0), y->data, y->bytes) == 0);
        if (!same)
            certify_bad(&into->board, CERTIFY_BATCH,
                        "%s of %.100s (%s): the %s half of the rows has other bits without the other rows",
                        slot, all->instance, t->act, second ? "second" : "first");
    }
}

static assay_status compare_halves(const engine_trial *t, const assay_trace *answer, const cuts *c)
{
    char path[ASSAY_PATH];
    assay_trace *halves = NULL;
    assay_status st = ASSAY_OK;
    engine_path(path, t, "halves");
    ASSAY_TRY(assay_trace_open(&halves, path, true));
    ASSAY_CHECK_GOTO(assay_trace_n_ops(halves, 0) == 2 * c->n, ASSAY_MISMATCH, st, done,
                     "%s: %lld records, expected %lld", path, (long long)assay_trace_n_ops(halves, 0),
                     (long long)(2 * c->n));
    for (int64_t i = 0; i < 2 * c->n; i++)
        compare_half(t, answer, halves, &c->record[i / 2], i, i % 2 == 1);
done:
    assay_trace_close(halves);
    return st;
}

assay_status engine_try_rows(const engine_trial *t)
{
    char path[ASSAY_PATH];
    assay_trace *request = NULL, *answer = NULL;
    assay_trace_writer *out = NULL;
    cuts c = {.n = 0};
    assay_status st = ASSAY_OK;
    json_t *header = json_pack("{s:s, s:s}", "engine", "request", "precision",
                               strcmp(t->act, "BF16") == 0 ? "bf16" : "fp32");
    engine_path(path, t, "request");
    ASSAY_TRY_GOTO(assay_trace_open(&request, path, true), st, done);
    engine_path(path, t, "answer");
    ASSAY_TRY_GOTO(assay_trace_open(&answer, path, true), st, done);
    engine_path(path, t, "rows");
    ASSAY_TRY_GOTO(assay_trace_writer_open(&out, path, 0, 1, header, false), st, done);
    ASSAY_TRY_GOTO(write_halves(t, request, answer, out, &c), st, done);
    if (c.n > 0) {
        ASSAY_TRY_GOTO(engine_answer(t, "rows", "halves", NULL, t->o->limit), st, done);
        ASSAY_TRY_GOTO(compare_halves(t, answer, &c), st, done);
    }
done:
    assay_trace_writer_destroy(out);
    assay_trace_close(request);
    assay_trace_close(answer);
    free(c.record);
    json_decref(header);
    return st;
}
