/* Verdicts: comparing elements, merging observations of one claim, rows of results.  NaN first: an element
 * passes only when its error is shown to be within its allowance. */
#include "parity/judge/judge.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *parity_check_name(parity_check c)
{
    static const char *const names[] = {
#define PARITY_CHECK_TEXT(name, text) text,
        PARITY_CHECK_MAP(PARITY_CHECK_TEXT)
#undef PARITY_CHECK_TEXT
    };
    const int64_t index = (int64_t)c;
    return index >= 0 && index < PARITY_CHECK_COUNT ? names[index] : "?";
}

const char *parity_verdict_name(parity_verdict v)
{
    static const char *const names[] = {"pass", "FAIL", "skip"};
    const int64_t index = (int64_t)v;
    return index >= 0 && index <= PARITY_SKIP ? names[index] : "?";
}

void parity_result_init(parity_result *r)
{
    memset(r, 0, sizeof *r);
    r->check = PARITY_CHECK_COUNT;
    r->verdict = PARITY_SKIP;
    r->phase = ASSAY_PHASE_FORWARD;
    r->step = -1;
    r->microbatch = -1;
    r->rank = -1;
}

void parity_worst_init(parity_worst *w)
{
    *w = (parity_worst){.flat = -1};
}

double parity_share(double found, double y, double bound, assay_dtype stored, bool pass)
{
    if (!isfinite(y) || !isfinite(found) || !isfinite(bound))
        return !pass ? (double)INFINITY : found == y || isnan(y) ? 0.0 : 1.0;
    const double half = assay_dtype_is_float(stored) ? 0.5 * ref_ulp(fabs(y) + bound, stored) : 0.0;
    return parity_share_of(fabs(found - y), bound, half, pass);
}

assay_status parity_worst_redraw(parity_worst *w, parity_gallery *g, const int64_t *shape, int ndim,
                                 parity_result *r)
{
    parity_worst_init(w);
    return g && r->verdict == PARITY_FAIL ? parity_gallery_draw(g, shape, ndim, &w->picture, &r->picture)
                                          : ASSAY_OK;
}

void parity_worst_add(parity_worst *w, int64_t flat, double found, double expected, double allowance,
                      double ratio, bool pass)
{
    parity_worst_add_share(w, flat, found, expected, allowance, ratio, ratio, pass);
}

void parity_worst_add_share(parity_worst *w, int64_t flat, double found, double expected, double allowance,
                            double ratio, double share, bool pass)
{
    w->count++;
    if (!(ratio >= 0.0))
        ratio = (double)INFINITY;
    if (w->picture)
        parity_picture_add(w->picture, flat, ratio, pass);
    if (w->differences)
        parity_differences_add(w->differences, flat, found, expected, pass);
    if (!(share <= w->share))
        w->share = share >= 0.0 ? share : (double)INFINITY;
    const bool had_bad = w->n_bad > 0;
    if (!pass)
        w->n_bad++;
    const bool worse = w->flat < 0 || (!pass && !had_bad) || (pass == !had_bad && ratio > w->ratio);
    if (worse) {
        w->flat = flat;
        w->ratio = ratio;
        w->found = found;
        w->expected = expected;
        w->allowance = allowance;
    }
}

void parity_worst_add_bits(parity_worst *w, const void *found, const void *expected, int64_t count,
                           assay_dtype dtype)
{
    const size_t width = (size_t)assay_dtype_bytes(dtype);
    if (count == 0)
        return;
    if (width > 0 && !w->differences && memcmp(found, expected, (size_t)count * width) == 0) {
        w->count += count - 1;
        const double value = parity_decode(found, 0, dtype);
        parity_worst_add(w, 0, value, value, 0.0, 0.0, true);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        const bool same = width > 0 && memcmp((const char *)found + (size_t)i * width,
                                              (const char *)expected + (size_t)i * width, width) == 0;
        parity_worst_add(w, i, parity_decode(found, i, dtype), parity_decode(expected, i, dtype), 0.0,
                         same ? 0.0 : (double)INFINITY, same);
    }
}

void parity_worst_to_result(const parity_worst *w, const int64_t *shape, int ndim, parity_result *r)
{
    r->count = w->count;
    r->n_bad = w->n_bad;
    r->verdict = w->n_bad == 0 ? PARITY_PASS : PARITY_FAIL;
    if (w->flat < 0)
        return;
    r->ratio = w->ratio;
    r->share = w->share;
    r->found = w->found;
    r->expected = w->expected;
    r->allowance = w->allowance;
    r->index_ndim = ndim;
    parity_unflatten(w->flat, shape, ndim, r->index);
    if (w->n_bad == 0)
        return;
    char where[128];
    parity_index_text(r->index, ndim, where, sizeof where);
    snprintf(
        r->message, sizeof r->message,
        "%lld of %lld elements outside their allowance; worst at %s: expected %.17g +- %.3g, found %.17g",
        (long long)w->n_bad, (long long)w->count, where, w->expected, w->allowance, w->found);
}

/* What was not checked somewhere does not hold everywhere. */
static int badness(parity_verdict v)
{
    return v == PARITY_FAIL ? 2 : v == PARITY_SKIP ? 1 : 0;
}

/* Another observation of a claim; true: the place and the words are now its. */
static bool merge(parity_claim *into, const parity_claim *one)
{
    const int64_t count = into->count + one->count, n_bad = into->n_bad + one->n_bad;
    const int64_t n_ambiguous = into->n_ambiguous + one->n_ambiguous;
    const double share = into->share >= one->share ? into->share : one->share;
    const int curve = into->curve ? into->curve : one->curve;
    const int a = badness(into->verdict), b = badness(one->verdict);
    /* Differences of whole runs grow from step to step: the first failure is the cause. */
    const bool later = a == 2 && into->check == PARITY_CHECK_WHOLE && one->step > into->step;
    const bool worse = b > a || (b == a && one->ratio > into->ratio && !later);
    if (worse)
        *into = *one;
    into->count = count;
    into->curve = curve;
    into->share = share;
    into->n_bad = n_bad;
    into->n_ambiguous = n_ambiguous;
    return worse;
}

static void copy_header(const json_t *header, const char *key, char *out, size_t capacity)
{
    const char *text = json_string_value(json_object_get(header, key));
    if (text)
        snprintf(out, capacity, "%.*s", (int)capacity - 1, text);
}

void parity_result_from_trace(parity_result *r, const assay_trace *t)
{
    const json_t *header = assay_trace_header(t);
    copy_header(header, "engine", r->engine, sizeof r->engine);
    copy_header(header, "tier", r->tier, sizeof r->tier);
    copy_header(header, "layout", r->layout, sizeof r->layout);
    copy_header(header, "precision", r->precision, sizeof r->precision);
}

void parity_result_from_op(parity_result *r, const assay_trace_op *op)
{
    memcpy(r->op, op->op, sizeof r->op);
    memcpy(r->instance, op->instance, sizeof r->instance);
    r->phase = op->phase;
    r->step = op->step;
    r->microbatch = op->microbatch;
    r->rank = op->rank;
    r->variant = op->variant;
}

void parity_result_fail(parity_result *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->message, sizeof r->message, fmt, args);
    va_end(args);
    r->verdict = PARITY_FAIL;
    r->ratio = (double)INFINITY;
    r->share = (double)INFINITY;
    if (r->n_bad == 0)
        r->n_bad = 1;
}

void parity_result_skip(parity_result *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(r->message, sizeof r->message, fmt, args);
    va_end(args);
    r->verdict = PARITY_SKIP;
}

/* --- table -------------------------------------------------------------------------------------------------- */

struct parity_table {
    parity_check check;
    parity_map *map, *texts; /* numbers of the rows by key; what is written in them */
    int64_t n, capacity;
    parity_claim *rows;
    int64_t *first_failed; /* of each row: the least step of an observation that failed */
    parity_gallery gallery;
};

assay_status parity_table_create(parity_table **out, parity_check check)
{
    assay_status st = ASSAY_OK;
    *out = NULL;
    parity_table *t = calloc(1, sizeof *t);
    ASSAY_CHECK(t, ASSAY_OUT_OF_MEMORY, "table of results");
    t->check = check;
    ASSAY_TRY_GOTO(parity_map_create(&t->map), st, fail);
    ASSAY_TRY_GOTO(parity_map_create(&t->texts), st, fail);
    *out = t;
    return ASSAY_OK;
fail:
    parity_table_destroy(t);
    return st;
}

void parity_table_destroy(parity_table *t)
{
    if (!t)
        return;
    parity_map_destroy(t->map);
    parity_map_destroy(t->texts);
    parity_gallery_free(&t->gallery);
    free(t->rows);
    free(t->first_failed);
    free(t);
}

/* Room for one row more. */
static assay_status grow(parity_table *t)
{
    if (t->n < t->capacity)
        return ASSAY_OK;
    const int64_t capacity = t->capacity ? 2 * t->capacity : 64;
    parity_claim *rows = realloc(t->rows, (size_t)capacity * sizeof *rows);
    ASSAY_CHECK(rows, ASSAY_OUT_OF_MEMORY, "table of %lld results", (long long)capacity);
    t->rows = rows;
    int64_t *first = realloc(t->first_failed, (size_t)capacity * sizeof *first);
    ASSAY_CHECK(first, ASSAY_OUT_OF_MEMORY, "table of %lld results", (long long)capacity);
    t->first_failed = first;
    t->capacity = capacity;
    return ASSAY_OK;
}

static assay_status merge_row(parity_table *t, int64_t i, const parity_claim *one, int64_t failed)
{
    parity_claim row = t->rows[i];
    if (merge(&row, one))
        ASSAY_TRY(parity_claim_keep(&row, &t->rows[i], t->texts, false));
    row.check = t->check;
    t->rows[i] = row;
    t->first_failed[i] = failed < t->first_failed[i] ? failed : t->first_failed[i];
    return ASSAY_OK;
}

assay_status parity_table_merge_claim(parity_table *t, const parity_claim *one)
{
    const int64_t failed = one->verdict == PARITY_FAIL ? one->step : INT64_MAX;
    char key[2 * ASSAY_NAME + 64];
    parity_key k = parity_key_begin(key, sizeof key);
    parity_key_text(&k, one->instance);
    parity_key_text(&k, one->op);
    parity_key_text(&k, one->tensor);
    parity_key_number(&k, (int64_t)one->phase);
    const int64_t found = parity_map_get(t->map, key);
    if (found >= 0)
        return merge_row(t, found, one, failed);
    parity_claim row = *one;
    ASSAY_TRY(grow(t));
    ASSAY_TRY(parity_claim_keep(&row, t->n > 0 ? &t->rows[t->n - 1] : NULL, t->texts, false));
    ASSAY_TRY(parity_map_put(t->map, key, t->n));
    row.check = t->check;
    t->rows[t->n] = row;
    t->first_failed[t->n] = failed;
    t->n++;
    return ASSAY_OK;
}

assay_status parity_table_merge(parity_table *t, const parity_result *one)
{
    const parity_claim claim = parity_claim_of(one);
    return parity_table_merge_claim(t, &claim);
}

parity_gallery *parity_table_gallery(parity_table *t)
{
    return &t->gallery;
}

static assay_status flush_row(const parity_table *t, const parity_claim *row, parity_report *report)
{
    const parity_drawn drawn = parity_gallery_drawn(&t->gallery, row);
    return parity_report_add_claim(report, row, &drawn);
}

bool parity_table_fails(const parity_table *t)
{
    for (int64_t i = 0; i < t->n; i++)
        if (t->rows[i].verdict == PARITY_FAIL)
            return true;
    return false;
}

assay_status parity_table_flush(const parity_table *t, parity_report *report)
{
    for (int64_t i = 0; i < t->n; i++)
        ASSAY_TRY(flush_row(t, &t->rows[i], report));
    return ASSAY_OK;
}

typedef struct place {
    const parity_claim *r;
    int64_t step, order;
} place;

static int compare_places(const void *a, const void *b)
{
    const place *x = a, *y = b;
    const bool fails = x->r->verdict == PARITY_FAIL, also = y->r->verdict == PARITY_FAIL;
    if (fails != also)
        return fails ? -1 : 1;
    if (fails && x->step != y->step)
        return x->step < y->step ? -1 : 1;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return (x->r > y->r) - (x->r < y->r); /* rows of one table */
}

assay_status parity_table_flush_ordered(const parity_table *t, parity_order order, void *user,
                                        parity_report *report)
{
    assay_status st = ASSAY_OK;
    place *places = malloc(((size_t)t->n + 1) * sizeof *places);
    ASSAY_CHECK(places, ASSAY_OUT_OF_MEMORY, "order of %lld results", (long long)t->n);
    for (int64_t i = 0; i < t->n; i++)
        places[i] = (place){&t->rows[i], t->first_failed[i], order != NULL ? order(user, &t->rows[i]) : i};
    qsort(places, (size_t)t->n, sizeof *places, compare_places);
    for (int64_t i = 0; i < t->n && st == ASSAY_OK; i++)
        st = flush_row(t, places[i].r, report);
    free(places);
    return st;
}

/* --- layout of a trace -------------------------------------------------------------------------------------- */

bool parity_grid_from_trace(const assay_trace *t, assay_grid *g)
{
    const char *layout = json_string_value(json_object_get(assay_trace_header(t), "layout"));
    assay_parallel_config p;
    if (!layout || assay_layout_parse(layout, &p) != ASSAY_OK || assay_grid_make(&p, g) != ASSAY_OK) {
        assay_error_clear();
        return false;
    }
    return g->world == assay_trace_world(t);
}

void parity_scales_from_trace(const assay_trace *t, parity_scales *s)
{
    *s = (parity_scales){1, 1, 1, 1, 1, 1, 1, assay_trace_world(t)};
    assay_grid g;
    if (parity_grid_from_trace(t, &g)) {
        s->tp = g.p.tensor_model_parallel_size;
        s->dp = g.p.data_parallel_size;
        s->ep = g.p.expert_model_parallel_size;
        s->pp = g.p.pipeline_model_parallel_size;
        s->cp = g.p.context_parallel_size;
    }
    for (int rank = 0; rank < assay_trace_world(t); rank++) {
        for (int64_t i = 0; i < assay_trace_n_ops(t, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(t, rank, i);
            if (op->microbatch >= s->microbatches && op->microbatch < INT32_MAX)
                s->microbatches = op->microbatch + 1;
            const json_t *topk = json_object_get(op->attrs, "topk");
            if (json_is_integer(topk) && json_integer_value(topk) > s->topk)
                s->topk = json_integer_value(topk);
        }
    }
}
