/* Another run in the reference's place: a recorded trace (of the reference, of another layout, of another framework with names
 * that map to ours) as an unsharded trace of our names in double, which verdicts and replaced values are taken from. */
#include "parity/run/bisect.h"

#include "parity/judge/align.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What is written, and why something is not. */
typedef struct conversion {
    const bisect *b;
    const parity_index *x; /* of the recorded trace */
    assay_trace_writer *w;
    int64_t written, left;
    char first[PARITY_TEXT]; /* why the first of those that are left out is */
} conversion;

static void leave_out(conversion *c, const char *name, const char *why)
{
    if (c->left++ == 0)
        snprintf(c->first, sizeof c->first, "%.150s: %.300s", name, why);
}

static assay_status write_values(conversion *c, const parity_entry *key, assay_phase phase,
                                 const parity_global *g, const void *data)
{
    assay_trace_tensor t = {.phase = phase,
                            .step = key->step,
                            .microbatch = key->microbatch,
                            .dtype = parity_is_integer(g->dtype) ? ASSAY_I64 : ASSAY_F64,
                            .kind = ASSAY_PIECE_SHARD,
                            .rows_id = -1};
    snprintf(t.name, sizeof t.name, "%s", key->name);
    assay_shard_whole(&t.shard, g->shape, g->ndim);
    c->written++;
    return assay_trace_write_tensor(c->w, &t, data);
}

/* A gradient behind its reduction is that of the sums before it: neither is scaled in between (docs/OPS.md). */
static assay_status write_tensor(conversion *c, const parity_entry *key, const parity_global *g)
{
    const bool integers = parity_is_integer(g->dtype), reduced = key->phase == ASSAY_PHASE_REDUCED_GRAD;
    assay_status st = ASSAY_OK;
    double *x = NULL;
    int64_t *ids = NULL;
    if (integers) {
        ids = calloc((size_t)g->count + 1, sizeof *ids);
        ASSAY_CHECK(ids != NULL, ASSAY_OUT_OF_MEMORY, "%s", key->name);
        for (int64_t i = 0; i < g->count; i++)
            ids[i] = parity_decode_integer(g->data, i, g->dtype);
    } else {
        ASSAY_TRY(parity_decode_all(g->data, g->count, g->dtype, &x));
    }
    const void *data = integers ? (const void *)ids : x;
    if (reduced)
        ASSAY_TRY_GOTO(write_values(c, key, ASSAY_PHASE_GRAD, g, data), st, done);
    st = write_values(c, key, key->phase, g, data);
done:
    free(ids);
    free(x);
    return st;
}

/* --- our own names ------------------------------------------------------------------------------------------ */
/* Rows of experts are assembled by token and then by expert; the reference has them by expert and then by token.  false: the
 * choices of experts do not say whose they are. */
static bool order_rows(const conversion *c, const parity_entry *e, parity_global *g)
{
    const int64_t experts = c->b->config->num_moe_experts, rows = g->ndim > 0 ? g->shape[0] : 0;
    const int64_t bytes = rows > 0 ? g->count / rows * assay_dtype_bytes(g->dtype) : 0;
    const char *at = strstr(e->name, ".mlp.");
    char name[ASSAY_NAME];
    parity_global chosen = {0};
    parity_result unused;
    if (at == NULL)
        return false;
    snprintf(name, sizeof name, "%.*s.mlp.router.indices", (int)(at - e->name), e->name);
    const parity_entry *choice = parity_index_find(c->x, name, ASSAY_PHASE_FORWARD, e->step, e->microbatch);
    parity_result_init(&unused);
    bool known = choice != NULL && parity_entry_assemble(c->x, choice, &chosen, &unused) == ASSAY_OK &&
                 chosen.complete && chosen.count == rows && parity_is_integer(chosen.dtype);
    const int64_t k = known && chosen.ndim > 0 ? chosen.shape[chosen.ndim - 1] : 0;
    int64_t *expert = calloc((size_t)rows + 1, sizeof *expert);
    char *sorted = malloc((size_t)(rows * bytes) + 1);
    int64_t n = 0;
    known = known && k > 0 && expert != NULL && sorted != NULL;
    for (int64_t i = 0; known && i < rows; i++) /* within a token ascending, as its rows are */
        for (int64_t j = i / k * k; j < i / k * k + k; j++)
            expert[i] += j != i && parity_decode_integer(chosen.data, j, chosen.dtype) <
                                       parity_decode_integer(chosen.data, i, chosen.dtype);
    for (int64_t x = 0; known && x < experts; x++)
        for (int64_t i = 0; i < rows; i++)
            if (parity_decode_integer(chosen.data, i, chosen.dtype) == x)
                memcpy(sorted + n++ * bytes, (const char *)g->data + (i / k * k + expert[i]) * bytes,
                       (size_t)bytes);
    known = known && n == rows;
    if (known)
        memcpy(g->data, sorted, (size_t)(rows * bytes));
    free(sorted);
    free(expert);
    parity_global_free(&chosen);
    return known;
}

static assay_status convert_one(conversion *c, const parity_entry *e)
{
    parity_global g = {0};
    parity_result finding;
    const assay_piece_kind kind = e->pieces[0].record->kind;
    assay_status st = ASSAY_OK;
    parity_result_init(&finding);
    if (e->phase == ASSAY_PHASE_GRAD && strstr(e->name, ".main_grad") != NULL)
        return ASSAY_OK; /* written with those behind the reduction */
    ASSAY_TRY_GOTO(parity_entry_assemble(c->x, e, &g, &finding), st, done);
    if (!g.complete)
        leave_out(c, e->name, finding.message);
    else if (!parity_is_integer(g.dtype) && !parity_can_decode(g.dtype))
        leave_out(c, e->name, assay_dtype_name(g.dtype));
    else if (kind == ASSAY_PIECE_ROWS && !order_rows(c, e, &g))
        leave_out(c, e->name, "rows without the choices of experts that they follow from");
    else
        st = write_tensor(c, e, &g);
done:
    parity_global_free(&g);
    return st;
}

static assay_status convert_ours(conversion *c)
{
    int64_t steps = 0;
    for (int64_t i = 0; i < c->x->n; i++)
        steps = c->x->entries[i].step >= steps ? c->x->entries[i].step + 1 : steps;
    for (int64_t step = 0; step < steps; step++) { /* entries lie rank by rank */
        for (int64_t i = 0; i < c->x->n; i++)
            if (c->x->entries[i].step == step && parity_entry_assembles(&c->x->entries[i]))
                ASSAY_TRY(convert_one(c, &c->x->entries[i]));
        ASSAY_TRY(assay_trace_end_step(c->w));
    }
    return ASSAY_OK;
}

/* --- another framework's names ------------------------------------------------------------------------------ */
/* What is known of a tensor of ours: fused ones come in pieces. */
typedef struct gathered {
    parity_global g;
    unsigned char *held;
} gathered;

static assay_status gather_one(conversion *c, const parity_entry *theirs, const assay_name_row *row,
                               const parity_index *ours, const parity_entry *o, gathered *to)
{
    parity_global g = {0}, shape = {0};
    parity_result finding;
    assay_status st = ASSAY_OK;
    parity_result_init(&finding);
    ASSAY_TRY_GOTO(parity_entry_assemble(c->x, theirs, &g, &finding), st, done);
    if (row->relation != ASSAY_RELATION_EQUAL || !g.complete || !parity_can_decode(g.dtype)) {
        leave_out(c, theirs->name, g.complete ? "not the elements of one of ours" : finding.message);
        goto done;
    }
    if (to->held == NULL) {
        ASSAY_TRY_GOTO(parity_entry_assemble(ours, o, &shape, &finding), st, done);
        ASSAY_CHECK_GOTO(shape.dtype == ASSAY_F64, ASSAY_INTERNAL, st, done, "%s of the reference: %s",
                         o->name, assay_dtype_name(shape.dtype));
        to->held = calloc((size_t)shape.count + 1, 1);
        ASSAY_CHECK_GOTO(to->held != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%s", o->name);
        to->g = shape;
        shape = (parity_global){0};
    }
    st = parity_align_into(row, &g, &to->g, to->held);
    if (st == ASSAY_MISMATCH) {
        leave_out(c, theirs->name, assay_error_message());
        assay_error_clear();
        st = ASSAY_OK;
    }
done:
    parity_global_free(&shape);
    parity_global_free(&g);
    return st;
}

static assay_status gather_all(conversion *c, const parity_aligner *names, const parity_index *ours,
                               gathered *all)
{
    for (int64_t i = 0; i < c->x->n; i++) {
        const assay_name_row *row;
        const parity_entry *e = &c->x->entries[i];
        if (!parity_entry_assembles(e))
            continue;
        const parity_entry *o = parity_aligner_find(names, ours, e, &row);
        if (o == NULL || o->pieces[0].record->dtype != ASSAY_F64)
            leave_out(c, e->name, "no tensor of ours");
        else
            ASSAY_TRY(gather_one(c, e, row, ours, o, &all[o - ours->entries]));
    }
    return ASSAY_OK;
}

/* The batch that the trace recorded is the one of --batch. */
static assay_status check_batch(const conversion *c)
{
    const assay_batches *b = &c->b->batches;
    for (int64_t m = 0; m < b->microbatches; m++) {
        parity_global g = {0};
        parity_result finding;
        const parity_entry *e = parity_index_find(c->x, "input_ids", ASSAY_PHASE_FORWARD, 0, m);
        parity_result_init(&finding);
        if (e == NULL)
            continue;
        ASSAY_TRY(parity_entry_assemble(c->x, e, &g, &finding));
        bool same = g.complete && g.count == b->b * b->s && parity_is_integer(g.dtype);
        for (int64_t i = 0; same && i < g.count; i++)
            same = parity_decode_integer(g.data, i, g.dtype) == assay_batches_ids(b, 0, m)[i];
        parity_global_free(&g);
        ASSAY_CHECK(same, ASSAY_INVALID_ARGUMENT,
                    "--against %s: expected the input_ids of --batch %s, found others in microbatch %lld",
                    c->b->against, c->b->options.batch, (long long)m);
    }
    return ASSAY_OK;
}

static assay_status write_gathered(conversion *c, const parity_index *ours, const gathered *all)
{
    for (int64_t i = 0; i < ours->n; i++) {
        const parity_global *g = &all[i].g;
        if (all[i].held == NULL)
            continue;
        if (memchr(all[i].held, 0, (size_t)g->count) != NULL)
            leave_out(c, ours->entries[i].name, "pieces of it are not recorded");
        else
            ASSAY_TRY(write_tensor(c, &ours->entries[i], g));
    }
    return ASSAY_OK;
}

/* The reference's trace says what is called how, and has which shape. */
static assay_status convert_theirs(conversion *c)
{
    char path[ASSAY_PATH];
    assay_trace *t = NULL;
    parity_index *ours = NULL;
    parity_aligner *names = NULL;
    gathered *all = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(check_batch(c));
    ASSAY_TRY(bisect_path(c->b, "reference", path));
    ASSAY_TRY_GOTO(assay_trace_open(&t, path, false), st, done);
    ASSAY_TRY_GOTO(parity_index_create(&ours, t), st, done);
    ASSAY_TRY_GOTO(parity_aligner_create(&names, c->b->options.model, NULL, NULL), st, done);
    all = calloc((size_t)ours->n + 1, sizeof *all);
    ASSAY_CHECK_GOTO(all != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%lld tensors", (long long)ours->n);
    ASSAY_TRY_GOTO(gather_all(c, names, ours, all), st, done);
    st = write_gathered(c, ours, all);
done:
    for (int64_t i = 0; all != NULL && i < ours->n; i++) {
        parity_global_free(&all[i].g);
        free(all[i].held);
    }
    free(all);
    parity_aligner_destroy(names);
    parity_index_destroy(ours);
    assay_trace_close(t);
    return st;
}

/* --- the whole ---------------------------------------------------------------------------------------------- */
/* Values are there, and of the precision whose rounding the verdict allows. */
static assay_status check_trace(bisect *b, const assay_trace *t, const char *dir)
{
    const char *precision = assay_trace_header_text(t, "precision"),
               *engine = assay_trace_header_text(t, "engine");
    const bool truth = strcmp(precision, "fp64") == 0;
    ASSAY_CHECK(truth || strcmp(precision, assay_precision_name(b->options.precision)) == 0,
                ASSAY_INVALID_ARGUMENT,
                "--against %s: expected a run in %s, as --precision says, or in fp64, found %s", dir,
                assay_precision_name(b->options.precision), precision);
    for (int rank = 0; rank < assay_trace_world(t); rank++)
        for (int64_t i = 0; i < assay_trace_n_tensors(t, rank); i++) {
            const assay_trace_tensor *r = assay_trace_tensor_at(t, rank, i);
            ASSAY_CHECK(r->data != NULL || r->bytes == 0, ASSAY_INVALID_ARGUMENT,
                        "--against %s: expected values, found hashes alone (%s)", dir, r->name);
        }
    /* Errors of two runs add up; another framework rounds up to three times where ours round once. */
    b->widen = truth ? 1.0 : parity_names_are_foreign(t) ? 2.0 : sqrt(2.0);
    b->whose = "the other run";
    snprintf(b->than, sizeof b->than, "the run of %.40s (%.40s, %.20s)", engine,
             parity_names_are_foreign(t) ? "Hugging Face" : assay_trace_header_text(t, "layout"), precision);
    return ASSAY_OK;
}

static assay_status convert(bisect *b, const assay_trace *t, bisect_verdict *v)
{
    char path[ASSAY_PATH];
    parity_index *x = NULL;
    conversion c = {.b = b};
    assay_status st = ASSAY_OK;
    json_t *header = json_pack("{s:s,s:s,s:s}", "engine", "assembled", "precision", "fp64", "layout", "1");
    ASSAY_TRY_GOTO(bisect_path(b, "other", path), st, done);
    ASSAY_TRY_GOTO(parity_index_create(&x, t), st, done);
    c.x = x;
    ASSAY_TRY_GOTO(assay_trace_writer_open(&c.w, path, 0, 1, header, false), st, done);
    ASSAY_TRY_GOTO(parity_names_are_foreign(t) ? convert_theirs(&c) : convert_ours(&c), st, done);
    st = assay_trace_writer_close(c.w);
    if (c.left > 0)
        bisect_note(v, "of the other run %lld tensors are not taken, the first %.300s", (long long)c.left,
                    c.first);
done:
    parity_index_destroy(x);
    assay_trace_writer_destroy(c.w);
    json_decref(header);
    return st;
}

assay_status bisect_take_other(bisect *b, const char *dir, bisect_verdict *v)
{
    char path[ASSAY_PATH];
    assay_trace *t = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(assay_trace_open(&t, dir, false));
    ASSAY_TRY_GOTO(check_trace(b, t, dir), st, done);
    if (parity_names_are_foreign(t))
        ASSAY_TRY_GOTO(bisect_reference(b), st, done);
    ASSAY_TRY_GOTO(convert(b, t, v), st, done);
    ASSAY_TRY_GOTO(bisect_path(b, "other", path), st, done);
    st = assay_trace_open(&b->other, path, false);
done:
    assay_trace_close(t);
    return st;
}
