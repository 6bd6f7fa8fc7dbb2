/* Two traces, tensor by tensor in the order in which the first run made them: what differs in value first, what only one
 * of them holds last.
 *
 * Two runs of one engine, layout and precision must hold the same tensors of the same dtypes.  Others are compared in what
 * both hold: collectives, and the dtype in which an engine keeps a tensor, belong to the engine and the layout. */
#include "core/base/text.h"
#include "parity/judge/judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 12 };

typedef struct diff {
    const parity_index *a, *b;
    double tolerance;
    FILE *out;
    int64_t passed, failed, skipped;
    bool alike;          /* same engine, layout and precision */
    int64_t only_one[2]; /* tensors of the first, the second trace alone */
    parity_scales scales;
} diff;

/* Order of execution: step by step, forward before backward; inside a phase by microbatch, then by rank and
 * record (later pipeline stages hold higher ranks; backward runs them in reverse). */
typedef struct item {
    const parity_entry *e;
    int rank;
    int64_t order;
    bool single; /* one rank: its records are in order already */
} item;

static int by_number(int64_t x, int64_t y)
{
    return (x > y) - (x < y);
}

static int compare_items(const void *p, const void *q)
{
    const item *x = p, *y = q;
    int c = by_number(x->e->step, y->e->step);
    if (x->single)
        return c ? c : by_number(x->order, y->order);
    c = c ? c : by_number((int64_t)x->e->phase, (int64_t)y->e->phase);
    c = c ? c : by_number(x->e->microbatch, y->e->microbatch);
    if (c == 0 && x->rank != y->rank)
        c = x->e->phase == ASSAY_PHASE_BACKWARD ? by_number(y->rank, x->rank) : by_number(x->rank, y->rank);
    return c ? c : by_number(x->order, y->order);
}

static assay_status sort_entries(const parity_index *x, item **out)
{
    item *items = malloc(((size_t)x->n + 1) * sizeof *items);
    ASSAY_CHECK(items, ASSAY_OUT_OF_MEMORY, "order of %lld tensors", (long long)x->n);
    for (int64_t i = 0; i < x->n; i++) {
        const parity_piece *first = &x->entries[i].pieces[0];
        items[i] =
            (item){&x->entries[i], first->record->rank, first->order, assay_trace_world(x->trace) == 1};
    }
    qsort(items, (size_t)x->n, sizeof *items, compare_items);
    *out = items;
    return ASSAY_OK;
}

/* Names and words of a trace are anybody's. */
static void print_text(FILE *out, const char *text)
{
    char line[PARITY_TEXT];
    snprintf(line, sizeof line, "%s", text);
    assay_clean_text(line);
    fputs(line, out);
}

static void print_line(FILE *out, const char *before, const char *text)
{
    fputs(before, out);
    print_text(out, text);
    fputc('\n', out);
}

static void print_place(const diff *d, const parity_entry *e)
{
    print_text(d->out, e->name);
    fprintf(d->out, "  (phase %s, step %lld", assay_phase_name(e->phase), (long long)e->step);
    if (e->microbatch >= 0)
        fprintf(d->out, ", microbatch %lld", (long long)e->microbatch);
    fprintf(d->out, ")\n");
}

static bool same_shape(const parity_global *a, const parity_global *b)
{
    bool same = a->ndim == b->ndim;
    for (int k = 0; same && k < a->ndim; k++)
        same = a->shape[k] == b->shape[k];
    return same;
}

/* The format of both that holds fewer numbers. */
static assay_dtype coarser(assay_dtype a, assay_dtype b)
{
    return assay_dtype_precision(b) < assay_dtype_precision(a) ? b : a;
}

static void round_all(double *x, int64_t count, assay_dtype dtype)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = ref_round(x[i], dtype);
}

/* Values of both sides against tolerance * largest magnitude of the first. */
static void compare_values(const diff *d, const double *x, const double *y, int64_t count, double *allowance,
                           parity_worst *w)
{
    double largest = 0.0;
    for (int64_t i = 0; i < count; i++) {
        if (isfinite(x[i]))
            largest = fmax(largest, fabs(x[i]));
    }
    const double bound = d->tolerance >= 0.0 ? d->tolerance * largest : 0.0;
    for (int64_t i = 0; i < count; i++) {
        const double error = fabs(y[i] - x[i]);
        const bool same = x[i] == y[i];
        const bool pass = same || error <= bound;
        allowance[i] = bound;
        parity_worst_add(w, i, y[i], x[i], bound, same ? 0.0 : error / bound, pass);
    }
}

/* FAIL with message and diagnosis in *r. */
static assay_status compare_globals(const diff *d, const parity_global *a, const parity_global *b,
                                    parity_result *r)
{
    parity_worst w;
    parity_worst_init(&w);
    const bool floats = assay_dtype_is_float(a->dtype) && assay_dtype_is_float(b->dtype);
    const bool rounded = !d->alike && floats && a->dtype != b->dtype;
    if (!same_shape(a, b) || (d->tolerance < 0.0 && a->dtype != b->dtype && !rounded)) {
        parity_result_fail(r, "another shape or dtype: %s of %lld elements, %s of %lld",
                           assay_dtype_name(a->dtype), (long long)a->count, assay_dtype_name(b->dtype),
                           (long long)b->count);
        return ASSAY_OK;
    }
    const bool bits = a->dtype == b->dtype &&
                      memcmp(a->data, b->data, (size_t)a->count * (size_t)assay_dtype_bytes(a->dtype)) == 0;
    if (d->tolerance < 0.0 && bits) {
        r->verdict = PARITY_PASS;
        return ASSAY_OK;
    }
    double *x = NULL, *y = NULL, *allowance = malloc(((size_t)a->count + 1) * sizeof *allowance);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(allowance, ASSAY_OUT_OF_MEMORY, st, done, "%lld allowances", (long long)a->count);
    ASSAY_TRY_GOTO(parity_decode_all(a->data, a->count, a->dtype, &x), st, done);
    ASSAY_TRY_GOTO(parity_decode_all(b->data, b->count, b->dtype, &y), st, done);
    if (rounded && d->tolerance < 0.0) {
        round_all(x, a->count, coarser(a->dtype, b->dtype));
        round_all(y, a->count, coarser(a->dtype, b->dtype));
    }
    compare_values(d, x, y, a->count, allowance, &w);
    if (d->tolerance < 0.0 && !rounded) {
        parity_worst_init(&w);
        parity_worst_add_bits(&w, b->data, a->data, a->count, a->dtype);
    }
    parity_worst_to_result(&w, a->shape, a->ndim, r);
    if (r->verdict == PARITY_FAIL)
        parity_diagnose(y, x, allowance, a->shape, a->ndim, b->dtype, &d->scales, r->diagnosis);
done:
    free(y);
    free(x);
    free(allowance);
    return st;
}

static bool has_data(const parity_entry *e)
{
    for (int64_t i = 0; i < e->n; i++) {
        if (!e->pieces[i].record->data && assay_shard_count(&e->pieces[i].record->shard) > 0)
            return false;
    }
    return true;
}

/* Hashes alone tell whether equal pieces hold equal bytes, nothing more. */
static void compare_hashes(const diff *d, const parity_entry *e, const parity_entry *o, parity_result *r)
{
    bool same = e->n == o->n;
    for (int64_t i = 0; i < e->n && same; i++) {
        const assay_trace_tensor *x = e->pieces[i].record, *y = o->pieces[i].record;
        same = x->rank == y->rank && x->kind == y->kind && x->dtype == y->dtype &&
               parity_same_shard(&x->shard, &y->shard);
    }
    if (!same) {
        parity_result_skip(r, "a trace of hashes can be compared with equal pieces only");
        return;
    }
    r->verdict = PARITY_PASS;
    for (int64_t i = 0; i < e->n && r->verdict == PARITY_PASS; i++) {
        const assay_trace_tensor *x = e->pieces[i].record, *y = o->pieces[i].record;
        if (strcmp(x->hash, y->hash) == 0)
            continue;
        if (d->tolerance >= 0.0)
            parity_result_skip(r, "rank %d: another content; hashes do not tell by how much", x->rank);
        else
            parity_result_fail(r, "rank %d: another content (hashes alone: no values to show)", x->rank);
    }
}

static assay_status compare_pair(const diff *d, const parity_entry *e, const parity_entry *o,
                                 parity_result *r)
{
    parity_global a = {0}, b = {0};
    assay_status st = ASSAY_OK;
    parity_result_init(r);
    if (!has_data(e) || !has_data(o)) {
        compare_hashes(d, e, o, r);
        return ASSAY_OK;
    }
    ASSAY_TRY_GOTO(parity_entry_assemble(d->a, e, &a, r), st, done);
    if (r->verdict == PARITY_PASS && a.data)
        ASSAY_TRY_GOTO(parity_entry_assemble(d->b, o, &b, r), st, done);
    if (r->verdict == PARITY_PASS && a.data && b.data)
        ASSAY_TRY_GOTO(compare_globals(d, &a, &b, r), st, done);
done:
    parity_global_free(&b);
    parity_global_free(&a);
    if (st == ASSAY_UNSUPPORTED) {
        parity_result_skip(r, "%.400s", assay_error_message());
        st = ASSAY_OK;
    }
    return st;
}

static void print_failure(const diff *d, const parity_entry *e, const parity_result *r)
{
    if (d->failed == 1)
        fprintf(d->out, "first difference: ");
    else if (d->failed <= SHOWN)
        fprintf(d->out, "  then: ");
    else
        return;
    print_place(d, e);
    print_line(d->out, "    ", r->message);
    if (r->diagnosis[0])
        print_line(d->out, "    looks like: ", r->diagnosis);
}

static const parity_entry *in_other(const parity_index *other, const parity_entry *e)
{
    return parity_index_find(other, e->name, e->phase, e->step, e->microbatch);
}

static assay_status compare_common(diff *d, const item *items)
{
    for (int64_t i = 0; i < d->a->n; i++) {
        const parity_entry *e = items[i].e, *o = in_other(d->b, e);
        parity_result r;
        if (o == NULL || !parity_entry_assembles(e) || !parity_entry_assembles(o))
            continue;
        ASSAY_TRY(compare_pair(d, e, o, &r));
        d->passed += r.verdict == PARITY_PASS;
        d->failed += r.verdict == PARITY_FAIL;
        d->skipped += r.verdict == PARITY_SKIP;
        if (r.verdict == PARITY_FAIL)
            print_failure(d, e, &r);
        else if (r.verdict == PARITY_SKIP && d->skipped == 1) {
            fprintf(d->out, "not compared: ");
            print_place(d, e);
            print_line(d->out, "    ", r.message);
        }
    }
    return ASSAY_OK;
}

/* What one trace holds alone: a difference between runs that are alike. */
static void find_missing(diff *d, const parity_entry *e, const parity_index *other, int which)
{
    static const char *const of[] = {"second", "first"};
    if (!parity_entry_assembles(e) || in_other(other, e))
        return;
    d->only_one[which]++;
    if (!d->alike)
        return;
    parity_result r;
    parity_result_init(&r);
    parity_result_fail(&r, "missing from the %s trace", of[which]);
    d->failed++;
    print_failure(d, e, &r);
}

static assay_status compare_all(diff *d, const item *items)
{
    ASSAY_TRY(compare_common(d, items));
    for (int64_t i = 0; i < d->a->n; i++)
        find_missing(d, items[i].e, d->b, 0);
    for (int64_t i = 0; i < d->b->n; i++)
        find_missing(d, &d->b->entries[i], d->a, 1);
    return ASSAY_OK;
}

/* Says how the runs differ when they do. */
static bool are_alike(const assay_trace *s, const assay_trace *t, FILE *out)
{
    static const char *const keys[] = {"engine", "layout", "precision"};
    bool alike = assay_trace_world(s) == assay_trace_world(t);
    for (int k = 0; k < 3; k++)
        alike =
            alike && strcmp(assay_trace_header_text(s, keys[k]), assay_trace_header_text(t, keys[k])) == 0;
    for (int k = 0; !alike && k < 6; k++) {
        fputs(k == 0 ? "" : k == 3 ? " against " : " ", out);
        print_text(out, assay_trace_header_text(k < 3 ? s : t, keys[k % 3]));
    }
    fputs(alike ? "" : ": what both hold\n", out);
    return alike;
}

assay_status parity_diff(const char *dir_a, const char *dir_b, double tolerance, FILE *out, int *exit_code)
{
    assay_status st = ASSAY_OK;
    assay_trace *s = NULL, *t = NULL;
    parity_index *x = NULL, *y = NULL;
    item *items = NULL;
    diff d = {.tolerance = tolerance, .out = out};
    *exit_code = 2;
    ASSAY_TRY_GOTO(assay_trace_open(&s, dir_a, true), st, done);
    ASSAY_TRY_GOTO(assay_trace_open(&t, dir_b, true), st, done);
    ASSAY_TRY_GOTO(parity_index_create(&x, s), st, done);
    ASSAY_TRY_GOTO(parity_index_create(&y, t), st, done);
    ASSAY_TRY_GOTO(sort_entries(x, &items), st, done);
    d.a = x;
    d.b = y;
    parity_say_aborted(s, out);
    parity_say_aborted(t, out);
    d.alike = are_alike(s, t, out);
    parity_scales_from_trace(t, &d.scales);
    ASSAY_TRY_GOTO(compare_all(&d, items), st, done);
    if (d.failed > SHOWN)
        fprintf(out, "  and %lld more\n", (long long)(d.failed - SHOWN));
    if (!d.alike && d.only_one[0] + d.only_one[1] > 0)
        fprintf(out, "in one trace only, not compared: %lld in the first, %lld in the second\n",
                (long long)d.only_one[0], (long long)d.only_one[1]);
    if (!d.alike && d.failed > 0 && tolerance < 0.0)
        fputs("compared bit for bit; --tolerance R accepts what rounding in another order makes\n", out);
    if (d.failed == 0)
        fprintf(out, "no difference in %lld tensors%s\n", (long long)d.passed,
                tolerance < 0.0 ? ", bit for bit" : "");
    fprintf(out, "%lld passed, %lld failed, %lld skipped\n", (long long)d.passed, (long long)d.failed,
            (long long)d.skipped);
    /* Nothing compared is not a pass. */
    *exit_code = d.failed > 0 ? 1 : (d.passed == 0 || d.skipped > 0) ? 2 : 0;
done:
    free(items);
    parity_index_destroy(y);
    parity_index_destroy(x);
    assay_trace_close(t);
    assay_trace_close(s);
    return st;
}
