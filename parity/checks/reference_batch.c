/* The batch of a recorded step: ids, what each position is asked for, documents that share a row. */
#include "parity/checks/reference.h"

#include <stdlib.h>
#include <string.h>

/* --- records ------------------------------------------------------------------------------------------------ */

const assay_trace_op *parity_reference_op(const assay_trace *t, const char *op, int64_t step,
                                          int64_t microbatch)
{
    for (int rank = 0; rank < assay_trace_world(t); rank++) {
        const assay_trace_op *found = NULL;
        int n = 0;
        for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
            const assay_trace_op *x = assay_trace_op_at(t, rank, i);
            if (x->step != step || x->microbatch != microbatch || x->recompute || strcmp(x->op, op) != 0)
                continue;
            found = x;
            n++;
        }
        if (n > 0)
            return n == 1 ? found : NULL;
    }
    return NULL;
}

/* Under its name; else what went into the operation, if the operation says (a tensor that was recorded before has no record of its
 * own).  *found: there is one. */
static assay_status read_tokens(const parity_reference *r, const char *name, const char *op, const char *slot,
                                int64_t microbatch, parity_global *out, bool *found)
{
    const parity_index *x = r->candidate;
    parity_result finding;
    const parity_entry *e =
        name != NULL ? parity_index_find(x, name, ASSAY_PHASE_FORWARD, r->step, microbatch) : NULL;
    if (e == NULL && op != NULL) {
        const assay_trace_op *made = parity_reference_op(x->trace, op, r->step, microbatch);
        const assay_trace_tensor *t = made != NULL ? assay_trace_op_tensor(x->trace, made, slot) : NULL;
        e = t != NULL ? parity_index_find(x, t->name, t->phase, t->step, t->microbatch) : NULL;
    }
    *found = e != NULL;
    if (e == NULL)
        return ASSAY_OK;
    parity_result_init(&finding);
    for (int64_t i = 0; i < e->n; i++)
        ASSAY_CHECK(e->pieces[i].record->data != NULL, ASSAY_UNSUPPORTED,
                    "%s: hashes alone, no token ids to run the reference on", e->name);
    ASSAY_TRY(parity_entry_assemble(x, e, out, &finding));
    ASSAY_CHECK(out->complete, ASSAY_UNSUPPORTED,
                "%s: expected one batch, found ranks that disagree (a data-parallel run records every rank's "
                "rows under one name): %.300s",
                e->name, finding.message);
    ASSAY_CHECK((out->ndim == 2 || slot != NULL) && parity_is_integer(out->dtype), ASSAY_UNSUPPORTED,
                "%s: expected token ids [b,s], found %d dimensions of %s", e->name, out->ndim,
                assay_dtype_name(out->dtype));
    return ASSAY_OK;
}

/* --- positions ---------------------------------------------------------------------------------------------- */

/* *found: recorded, as integers [s] or [rows,s]. */
static assay_status read_positions(const parity_index *x, int64_t step, int64_t microbatch,
                                   parity_global *out, bool *found)
{
    parity_result finding;
    const parity_entry *e = parity_index_find(x, "position_ids", ASSAY_PHASE_FORWARD, step, microbatch);
    *found = false;
    if (e == NULL || !e->pieces[0].record->data)
        return ASSAY_OK;
    parity_result_init(&finding);
    ASSAY_TRY(parity_entry_assemble(x, e, out, &finding));
    *found = out->complete && parity_is_integer(out->dtype) && (out->ndim == 1 || out->ndim == 2) &&
             out->shape[out->ndim - 1] > 0;
    return ASSAY_OK;
}

assay_status parity_reference_packed(const parity_index *x, int64_t step, int64_t microbatch, bool *packed)
{
    parity_global g = {0};
    assay_status st = ASSAY_OK;
    bool found;
    *packed = false;
    ASSAY_TRY_GOTO(read_positions(x, step, microbatch, &g, &found), st, done);
    const int64_t s = found ? g.shape[g.ndim - 1] : 1;
    for (int64_t i = 1; found && i < g.count; i++)
        *packed = *packed || (i % s != 0 && parity_decode_integer(g.data, i, g.dtype) == 0);
done:
    parity_global_free(&g);
    return st;
}

/* Every document counts from 0; positions of one row are those of all rows. */
static assay_status take_positions(parity_reference *r, int64_t microbatch)
{
    parity_global g = {0};
    assay_batches *b = &r->batches;
    assay_status st = ASSAY_OK;
    bool found;
    int64_t *to = b->position_ids + microbatch * b->b * b->s;
    ASSAY_TRY_GOTO(read_positions(r->candidate, r->step, microbatch, &g, &found), st, done);
    ASSAY_CHECK_GOTO(!found || g.count == b->s || g.count == b->b * b->s, ASSAY_UNSUPPORTED, st, done,
                     "position_ids: expected %lld or %lld, found %lld", (long long)b->s,
                     (long long)(b->b * b->s), (long long)g.count);
    for (int64_t i = 0; i < b->b * b->s; i++) {
        const int64_t k = i % b->s;
        to[i] = found ? parity_decode_integer(g.data, g.count == b->s ? k : i, g.dtype) : k;
        ASSAY_CHECK_GOTO(to[i] == 0 || (k > 0 && to[i] == to[i - 1] + 1), ASSAY_UNSUPPORTED, st, done,
                         "position_ids: expected positions that count from 0 in every document, found %lld "
                         "at position %lld of row %lld (microbatch %lld)",
                         (long long)to[i], (long long)k, (long long)(i / b->s), (long long)microbatch);
    }
done:
    parity_global_free(&g);
    return st;
}

/* Whether element i of a mask hides: zero of [b,s] and of a boolean one, what is added of another. */
static bool hides(const parity_global *g, int64_t i)
{
    const double x = parity_decode(g->data, i, g->dtype);
    return g->ndim == 4 && assay_dtype_is_float(g->dtype) ? x < 0.0 : x == 0.0;
}

/* A mask that hides nothing is none; one of queries and keys may hide what comes later, and other documents. */
static assay_status check_mask(const parity_reference *r, int64_t microbatch)
{
    parity_global g = {0};
    parity_result finding;
    assay_status st = ASSAY_OK;
    const int64_t b = r->batches.b, s = r->batches.s,
                  *position = r->batches.position_ids + microbatch * b * s;
    const parity_entry *e =
        parity_index_find(r->candidate, "attention_mask", ASSAY_PHASE_FORWARD, r->step, microbatch);
    if (e == NULL)
        return ASSAY_OK;
    parity_result_init(&finding);
    ASSAY_TRY_GOTO(parity_entry_assemble(r->candidate, e, &g, &finding), st, done);
    if (!g.complete)
        goto done;
    const bool pairs = g.ndim == 4 && g.shape[2] == s && g.shape[3] == s;
    ASSAY_CHECK_GOTO(parity_can_decode(g.dtype) && (pairs || g.ndim == 2), ASSAY_UNSUPPORTED, st, done,
                     "attention_mask: expected [b,s] or [b,heads,s,s], found %d dimensions", g.ndim);
    for (int64_t i = 0; i < g.count; i++) {
        const int64_t key = i % s, query = i / s % s, row = pairs && g.shape[0] == b ? i / (g.count / b) : 0;
        if (!hides(&g, i) || (pairs && (key > query || key < query - position[row * s + query])))
            continue;
        ASSAY_CHECK_GOTO(false, ASSAY_UNSUPPORTED, st, done,
                         "attention_mask: hides tokens; the reference runs rows without padding");
    }
done:
    parity_global_free(&g);
    return st;
}

/* Rows of one document each have no positions of their own. */
static assay_status take_documents(parity_reference *r)
{
    assay_batches *b = &r->batches;
    bool packed = false;
    b->position_ids = malloc((size_t)(b->microbatches * b->b * b->s + 1) * sizeof *b->position_ids);
    ASSAY_CHECK(b->position_ids != NULL, ASSAY_OUT_OF_MEMORY, "positions");
    for (int64_t m = 0; m < b->microbatches; m++) {
        bool one;
        ASSAY_TRY(take_positions(r, m));
        ASSAY_TRY(check_mask(r, m));
        ASSAY_TRY(parity_reference_packed(r->candidate, r->step, m, &one));
        packed = packed || one;
    }
    if (packed)
        return ASSAY_OK;
    free(b->position_ids);
    b->position_ids = NULL;
    return ASSAY_OK;
}

/* --- ids ---------------------------------------------------------------------------------------------------- */

static assay_status take_ids(parity_reference *r, int64_t microbatch, bool *found)
{
    parity_global ids = {0};
    assay_batches *b = &r->batches;
    assay_status st = ASSAY_OK;
    const int64_t vocab = r->spec->config.vocab_size;
    /* ids of a microbatch before may come again */
    ASSAY_TRY_GOTO(
        read_tokens(r, "input_ids", microbatch > 0 ? "embedding_fwd" : NULL, "ids", microbatch, &ids, found),
        st, done);
    *found = *found && ids.ndim == 2;
    if (!*found)
        goto done;
    if (microbatch == 0) {
        b->b = ids.shape[0];
        b->s = ids.shape[1];
    }
    ASSAY_CHECK_GOTO(ids.shape[0] == b->b && ids.shape[1] == b->s, ASSAY_UNSUPPORTED, st, done,
                     "input_ids: microbatches of different shapes");
    int64_t *all = realloc(b->input_ids, (size_t)((microbatch + 1) * ids.count + 1) * sizeof *all);
    ASSAY_CHECK_GOTO(all != NULL, ASSAY_OUT_OF_MEMORY, st, done, "batch");
    b->input_ids = all;
    for (int64_t i = 0; i < ids.count; i++) {
        const int64_t id = parity_decode_integer(ids.data, i, ids.dtype);
        ASSAY_CHECK_GOTO(id >= 0 && id < vocab, ASSAY_UNSUPPORTED, st, done,
                         "input_ids: expected ids below %lld, the model's vocabulary, found %lld",
                         (long long)vocab, (long long)id);
        all[microbatch * ids.count + i] = id;
    }
done:
    parity_global_free(&ids);
    return st;
}

/* --- targets ------------------------------------------------------------------------------------------------ */

static bool recorded(const parity_reference *r, const char *name, int64_t microbatch)
{
    return parity_index_find(r->candidate, name, ASSAY_PHASE_FORWARD, r->step, microbatch) != NULL;
}

/* What the model's call moves by one itself. */
static bool from_call(const parity_reference *r, int64_t microbatch)
{
    return recorded(r, "labels", microbatch) && !recorded(r, "shift_labels", microbatch);
}

/* A forward alone, where other microbatches have a backward: operations say of which microbatch they are, copies of gradients only
 * when they were made. */
static bool is_evaluation(const parity_reference *r, int64_t microbatch)
{
    static const char op[] = "cross_entropy_bwd";
    bool others = false;
    for (int64_t m = 0; m < r->batches.microbatches && !others; m++)
        others = parity_reference_op(r->candidate->trace, op, r->step, m) != NULL;
    if (others)
        return parity_reference_op(r->candidate->trace, op, r->step, microbatch) == NULL;
    for (int64_t i = 0; i < r->candidate->n; i++) {
        const parity_entry *e = &r->candidate->entries[i];
        if (e->step != r->step || e->phase != ASSAY_PHASE_BACKWARD || e->microbatch < 0)
            continue;
        if (e->microbatch == microbatch)
            return false;
        others = true;
    }
    return others;
}

/* Labels of the call; shift_labels, or the targets of the cross entropy itself, are asked of the position where they stand: [b,s],
 * or without the last position of each row, which has none. */
static assay_status take_labels(parity_reference *r, int64_t microbatch, int64_t *to)
{
    const bool call = from_call(r, microbatch),
               given = recorded(r, "labels", microbatch) && recorded(r, "shift_labels", microbatch);
    const assay_batches *b = &r->batches;
    const int64_t vocab = r->spec->config.vocab_size, n = b->b * b->s;
    parity_microbatch *m = &r->microbatches[microbatch];
    parity_global g = {0};
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(read_tokens(r,
                               call    ? "labels"
                               : given ? "shift_labels"
                                       : NULL,
                               call || given ? NULL : "cross_entropy_fwd", call || given ? NULL : "targets",
                               microbatch, &g, &m->known),
                   st, done);
    const bool cut = !call && m->known && b->s > 1 && g.count == b->b * (b->s - 1);
    ASSAY_CHECK_GOTO(!(call || given) || g.count == n, ASSAY_UNSUPPORTED, st, done,
                     "labels: expected %lld, as many as input_ids, found %lld", (long long)n,
                     (long long)g.count);
    m->known = m->known && (cut || g.count == n);
    m->from_call = call;
    for (int64_t i = 0; i < n && m->known; i++) {
        const int64_t row = i / b->s, s = i % b->s, from = cut ? row * (b->s - 1) + s : i;
        const bool none = (cut && s == b->s - 1) || (call && b->shifted && s == b->s - 1);
        const int64_t at = call && b->shifted ? from + 1 : from;
        to[i] = none ? ASSAY_IGNORE_INDEX : parity_decode_integer(g.data, at, g.dtype);
        ASSAY_CHECK_GOTO(to[i] == ASSAY_IGNORE_INDEX || (to[i] >= 0 && to[i] < vocab), ASSAY_UNSUPPORTED, st,
                         done, "labels: expected ids below %lld, the model's vocabulary, or -100, found %lld",
                         (long long)vocab, (long long)to[i]);
    }
done:
    parity_global_free(&g);
    return st;
}

/* Nobody knows what an unknown microbatch is asked for: its own tokens, which its loss may confirm.  An evaluation is asked for
 * nothing. */
static void fill_labels(const parity_reference *r, int64_t microbatch, int64_t *to)
{
    const assay_batches *b = &r->batches;
    const int64_t *ids = assay_batches_ids(b, 0, microbatch);
    const parity_microbatch *m = &r->microbatches[microbatch];
    for (int64_t i = 0; i < b->b * b->s; i++) {
        if (m->evaluation)
            to[i] = ASSAY_IGNORE_INDEX;
        else if (!m->known)
            to[i] = !b->shifted ? ids[i] : i % b->s < b->s - 1 ? ids[i + 1] : ASSAY_IGNORE_INDEX;
    }
}

static assay_status take_targets(parity_reference *r)
{
    assay_batches *b = &r->batches;
    const int64_t n = b->b * b->s;
    r->microbatches = calloc((size_t)b->microbatches + 1, sizeof *r->microbatches);
    b->labels = malloc((size_t)(b->microbatches * n + 1) * sizeof *b->labels);
    ASSAY_CHECK(r->microbatches != NULL && b->labels != NULL, ASSAY_OUT_OF_MEMORY, "targets");
    r->known = true;
    for (int64_t m = 0; m < b->microbatches; m++)
        b->shifted = b->shifted || !from_call(r, m);
    for (int64_t m = 0; m < b->microbatches; m++) {
        int64_t *labels = b->labels + m * n;
        ASSAY_TRY(take_labels(r, m, labels));
        r->microbatches[m].evaluation = is_evaluation(r, m);
        fill_labels(r, m, labels);
        const bool here = r->microbatches[m].known || r->microbatches[m].evaluation;
        r->assumed = r->assumed || !here;
        r->known = r->known && (here || recorded(r, "loss", m) || recorded(r, "loss_function", m));
        for (int64_t i = 0; i < n; i++)
            r->microbatches[m].targets += (b->shifted || i % b->s > 0) && labels[i] != ASSAY_IGNORE_INDEX;
    }
    return ASSAY_OK;
}

assay_status parity_reference_take_batch(parity_reference *r)
{
    int64_t n = 0;
    bool found = true;
    r->step = r->candidate->n > 0 ? r->candidate->entries[0].step : 0;
    for (int64_t i = 0; i < r->candidate->n; i++)
        if (r->candidate->entries[i].step < r->step)
            r->step = r->candidate->entries[i].step;
    for (; found; n += found)
        ASSAY_TRY(take_ids(r, n, &found));
    ASSAY_CHECK(n > 0, ASSAY_UNSUPPORTED, "the trace records no input_ids to run the reference on");
    r->batches.steps = 1;
    r->batches.microbatches = n;
    r->batches.training = n > 1;
    ASSAY_TRY(take_targets(r));
    return take_documents(r);
}
