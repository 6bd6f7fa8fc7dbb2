/* Two traces, tensor by tensor in the order in which the first run made them. */
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

static void print_place(const diff *d, const parity_entry *e)
{
    fprintf(d->out, "%s  (phase %s, step %lld", e->name, assay_phase_name(e->phase), (long long)e->step);
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
    if (!same_shape(a, b) || (d->tolerance < 0.0 && a->dtype != b->dtype)) {
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
    compare_values(d, x, y, a->count, allowance, &w);
    if (d->tolerance < 0.0) {
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

static assay_status compare_pair(const diff *d, const parity_entry *e, const parity_entry *o,
                                 parity_result *r)
{
    parity_global a = {0}, b = {0};
    assay_status st = ASSAY_OK;
    parity_result_init(r);
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
    fprintf(d->out, "    %s\n", r->message);
    if (r->diagnosis[0])
        fprintf(d->out, "    looks like: %s\n", r->diagnosis);
}

static assay_status compare_all(diff *d, const item *items)
{
    for (int64_t i = 0; i < d->a->n; i++) {
        const parity_entry *e = items[i].e;
        if (!parity_entry_assembles(e))
            continue;
        const parity_entry *o = parity_index_find(d->b, e->name, e->phase, e->step, e->microbatch);
        parity_result r;
        parity_result_init(&r);
        if (o)
            ASSAY_TRY(compare_pair(d, e, o, &r));
        else
            parity_result_fail(&r, "missing from the second trace");
        d->passed += r.verdict == PARITY_PASS;
        d->failed += r.verdict == PARITY_FAIL;
        d->skipped += r.verdict == PARITY_SKIP;
        if (r.verdict == PARITY_FAIL)
            print_failure(d, e, &r);
    }
    for (int64_t i = 0; i < d->b->n; i++) {
        const parity_entry *e = &d->b->entries[i];
        if (!parity_entry_assembles(e) || parity_index_find(d->a, e->name, e->phase, e->step, e->microbatch))
            continue;
        parity_result r;
        parity_result_init(&r);
        parity_result_fail(&r, "missing from the first trace");
        d->failed++;
        print_failure(d, e, &r);
    }
    return ASSAY_OK;
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
    parity_scales_from_trace(t, &d.scales);
    ASSAY_TRY_GOTO(compare_all(&d, items), st, done);
    if (d.failed > SHOWN)
        fprintf(out, "  and %lld more\n", (long long)(d.failed - SHOWN));
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
