/* Verdicts: comparing elements, results and what they inherit of a trace.  NaN first: an element
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
