/* One pair of tensors: bits, a tolerance or what rounding can do; and how far apart they are. */
#include "parity/run/diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static void measure(const double *x, const double *y, int64_t count, diff_statistics *s)
{
    double error = 0.0, xx = 0.0, yy = 0.0, xy = 0.0;
    int64_t n = 0;
    *s = (diff_statistics){0};
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(x[i]) || !isfinite(y[i]))
            continue;
        const double d = fabs(y[i] - x[i]);
        s->max = fmax(s->max, d);
        s->mean += d;
        error += d * d;
        xx += x[i] * x[i];
        yy += y[i] * y[i];
        xy += x[i] * y[i];
        n++;
    }
    s->mean = n > 0 ? s->mean / (double)n : 0.0;
    s->relative = error == 0.0 ? 0.0 : sqrt(error / xx);
    s->cosine = xx == 0.0 && yy == 0.0 ? 1.0 : xx == 0.0 || yy == 0.0 ? 0.0 : xy / sqrt(xx) / sqrt(yy);
}

/* Values of both sides against tolerance * largest magnitude of the first; decisions, ids and counts have none. */
static void compare_values(const diff_compare *d, const double *x, const double *y, int64_t count,
                           bool integers, double *allowance, parity_worst *w)
{
    double largest = 0.0;
    for (int64_t i = 0; i < count; i++) {
        if (isfinite(x[i]))
            largest = fmax(largest, fabs(x[i]));
    }
    const double bound = d->tolerance >= 0.0 && !integers ? d->tolerance * largest : 0.0;
    for (int64_t i = 0; i < count; i++) {
        const double error = fabs(y[i] - x[i]);
        const bool same = x[i] == y[i];
        const bool pass = same || error <= bound;
        allowance[i] = bound;
        parity_worst_add(w, i, y[i], x[i], bound, same ? 0.0 : error / bound, pass);
    }
}

static assay_status compare_noise(const diff_compare *d, const diff_pair *p, const parity_global *a,
                                  const double *x, const double *y, double *allowance, parity_result *r)
{
    const parity_entry *ours = p->row != NULL ? p->o : p->e;
    const parity_noise_subject s = {.first = x,
                                    .second = y,
                                    .count = a->count,
                                    .position = p->position,
                                    .shape = a->shape,
                                    .ndim = a->ndim,
                                    .row = p->row,
                                    .name = ours->name,
                                    .phase = ours->phase,
                                    .step = p->e->step,
                                    .microbatch = ours->microbatch,
                                    .targets = p->targets};
    const assay_status st = parity_noise_judge(d->noise, &s, allowance, r);
    if (st != ASSAY_NOT_FOUND || d->noise->runs == NULL)
        return st;
    /* the reference records no such tensor: what its dtype explains */
    parity_noise plain = *d->noise;
    plain.runs = NULL;
    assay_error_clear();
    return parity_noise_judge(&plain, &s, allowance, r);
}

/* What the reduction multiplies gradients by may differ between layouts: before it they are compared in its units. */
static double scale_of(const diff_compare *d, const diff_pair *p, int which)
{
    const bool before = p->e->phase == ASSAY_PHASE_BACKWARD || p->e->phase == ASSAY_PHASE_GRAD;
    return before && d->scale[0] != d->scale[1] ? d->scale[which] : 1.0;
}

static void multiply(double *x, int64_t count, double factor)
{
    for (int64_t i = 0; factor != 1.0 && i < count; i++)
        x[i] *= factor;
}

static double factor_of(const diff_pair *p, bool second)
{
    return p->walked_is_second == second && p->factor != 0.0 ? p->factor : 1.0;
}

/* The suspect is the second trace; or the one whose copies differ. */
static bool say_ranks(const diff_compare *d, const diff_pair *p, bool walked, const double *expected,
                      int64_t count, char *out)
{
    const bool second = walked == p->walked_is_second;
    return p->row == NULL && diff_say_ranks(walked ? d->walked : d->other, walked ? p->e : p->o, expected,
                                            count, scale_of(d, p, second ? 1 : 0), out, PARITY_TEXT);
}

static void mark_bad(const double *x, const double *y, const double *allowance, int64_t count,
                     unsigned char *bad)
{
    for (int64_t i = 0; i < count; i++)
        bad[i] = !(x[i] == y[i] || fabs(y[i] - x[i]) <= allowance[i]);
}

assay_status diff_compare_globals(const diff_compare *d, const diff_pair *p, const parity_global *a,
                                  const parity_global *b, parity_result *r, diff_statistics *statistics,
                                  unsigned char **bad)
{
    parity_worst w;
    parity_worst_init(&w);
    const bool floats = assay_dtype_is_float(a->dtype) && assay_dtype_is_float(b->dtype);
    const bool integers = parity_is_integer(a->dtype) && parity_is_integer(b->dtype);
    const bool rounded = !d->alike && floats && a->dtype != b->dtype;
    const bool exact = d->tolerance < 0.0 && d->noise == NULL;
    if (!same_shape(a, b) || (exact && a->dtype != b->dtype && !rounded && !(p->row != NULL && integers))) {
        parity_result_fail(r, "another shape or dtype: %s of %lld elements, %s of %lld",
                           assay_dtype_name(a->dtype), (long long)a->count, assay_dtype_name(b->dtype),
                           (long long)b->count);
        return ASSAY_OK;
    }
    const bool bits = a->dtype == b->dtype && scale_of(d, p, 0) == scale_of(d, p, 1) &&
                      memcmp(a->data, b->data, (size_t)a->count * (size_t)assay_dtype_bytes(a->dtype)) == 0;
    if ((exact || !floats) && bits) {
        r->verdict = PARITY_PASS;
        *statistics = (diff_statistics){.cosine = 1.0};
        return ASSAY_OK;
    }
    double *x = NULL, *y = NULL, *allowance = malloc(((size_t)a->count + 1) * sizeof *allowance);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(allowance, ASSAY_OUT_OF_MEMORY, st, done, "%lld allowances", (long long)a->count);
    ASSAY_TRY_GOTO(parity_decode_all(a->data, a->count, a->dtype, &x), st, done);
    ASSAY_TRY_GOTO(parity_decode_all(b->data, b->count, b->dtype, &y), st, done);
    multiply(x, a->count, scale_of(d, p, 0) * factor_of(p, false));
    multiply(y, b->count, scale_of(d, p, 1) * factor_of(p, true));
    measure(x, y, a->count, statistics);
    if (rounded && exact) {
        round_all(x, a->count, coarser(a->dtype, b->dtype));
        round_all(y, a->count, coarser(a->dtype, b->dtype));
    }
    if (d->noise != NULL && floats) {
        ASSAY_TRY_GOTO(compare_noise(d, p, a, x, y, allowance, r), st, done);
    } else {
        compare_values(d, x, y, a->count, integers, allowance, &w);
        if (exact && !rounded && a->dtype == b->dtype) {
            parity_worst_init(&w);
            parity_worst_add_bits(&w, b->data, a->data, a->count, a->dtype);
        }
        parity_worst_to_result(&w, a->shape, a->ndim, r);
    }
    if (r->verdict == PARITY_FAIL) {
        parity_diagnose(y, x, allowance, a->shape, a->ndim, b->dtype, &d->scales, r->diagnosis);
        if (r->diagnosis[0] == '\0')
            say_ranks(d, p, p->walked_is_second, x, a->count, r->diagnosis);
        if (bad != NULL && p->row == NULL && (*bad = calloc((size_t)a->count + 1, 1)) != NULL)
            mark_bad(x, y, allowance, a->count, *bad);
    }
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
static void compare_hashes(const diff_compare *d, const diff_pair *p, parity_result *r)
{
    const parity_entry *e = p->e, *o = p->o;
    bool same = e->n == o->n && p->row == NULL;
    for (int64_t i = 0; i < e->n && same; i++) {
        const assay_trace_tensor *x = e->pieces[i].record, *y = o->pieces[i].record;
        same = x->rank == y->rank && x->kind == y->kind && x->dtype == y->dtype &&
               parity_same_shard(&x->shard, &y->shard);
    }
    if (!same) {
        parity_result_skip(r, "a trace of hashes can be compared with equal pieces only");
        return;
    }
    if (e->n > 0 && !assay_trace_content_comparable(e->pieces[0].record, o->pieces[0].record)) {
        parity_result_skip(r, "hashes of two kinds (%s and %s) and no values",
                           assay_hash_kind_name(e->pieces[0].record->hash_kind),
                           assay_hash_kind_name(o->pieces[0].record->hash_kind));
        return;
    }
    r->verdict = PARITY_PASS;
    for (int64_t i = 0; i < e->n && r->verdict == PARITY_PASS; i++) {
        const assay_trace_tensor *x = e->pieces[i].record, *y = o->pieces[i].record;
        if (assay_trace_same_content(x, y))
            continue;
        if (d->tolerance >= 0.0 || d->noise != NULL)
            parity_result_skip(r, "rank %d: another content; hashes do not tell by how much", x->rank);
        else
            parity_result_fail(r, "rank %d: another content (hashes alone: no values to show)", x->rank);
    }
}

/* Both in one shape, the first trace's in *first. */
static assay_status bring_together(const diff_pair *p, parity_global *walked, parity_global *other,
                                   parity_global *first, parity_global *second)
{
    if (p->row == NULL) {
        *first = p->walked_is_second ? *other : *walked;
        *second = p->walked_is_second ? *walked : *other;
        memset(walked, 0, sizeof *walked);
        memset(other, 0, sizeof *other);
        return ASSAY_OK;
    }
    return p->walked_is_second ? parity_align(p->row, walked, other, p->targets, second, first)
                               : parity_align(p->row, walked, other, p->targets, first, second);
}

/* Two traces with Hugging Face's names beside the reference's tensor: both brought into its shape, so that its runs can say what
 * rounding does.  *q: the pair as compared from here on; unchanged where the reference has no such tensor. */
static assay_status bring_to_reference(const diff_compare *d, diff_pair *q, parity_global *walked,
                                       parity_global *other)
{
    parity_entry e = *q->e;
    const assay_name_row *row;
    parity_global truth = {0}, a = {0}, b = {0}, unused = {0};
    parity_result finding;
    assay_status st = ASSAY_OK;
    e.step -= d->noise->runs->step;
    const parity_entry *o = parity_aligner_find(d->translate, d->noise->runs->truth_index, &e, &row);
    if (o == NULL)
        return ASSAY_OK;
    parity_result_init(&finding);
    ASSAY_TRY_GOTO(parity_entry_assemble(d->noise->runs->truth_index, o, &truth, &finding), st, done);
    ASSAY_TRY_GOTO(parity_align(row, walked, &truth, 0, &a, &unused), st, done);
    parity_global_free(&unused);
    ASSAY_TRY_GOTO(parity_align(row, other, &truth, 0, &b, &unused), st, done);
    parity_global_free(walked);
    parity_global_free(other);
    *walked = a;
    *other = b;
    a = b = (parity_global){0};
    q->row = row;
    q->o = o;
done:
    parity_global_free(&unused);
    parity_global_free(&b);
    parity_global_free(&a);
    parity_global_free(&truth);
    return st;
}

/* One trace's pieces contradict each other: beside the other's tensor they may show why. */
static assay_status explain(const diff_compare *d, const diff_pair *p, bool walked, parity_result *r)
{
    const parity_entry *e = walked ? p->o : p->e;
    parity_global g = {0};
    parity_result finding;
    double *expected = NULL;
    assay_status st = ASSAY_OK;
    parity_result_init(&finding);
    ASSAY_TRY_GOTO(parity_entry_assemble(walked ? d->other : d->walked, e, &g, &finding), st, done);
    if (finding.verdict != PARITY_PASS || g.data == NULL || !parity_can_decode(g.dtype) || !g.complete)
        goto done;
    ASSAY_TRY_GOTO(parity_decode_all(g.data, g.count, g.dtype, &expected), st, done);
    multiply(expected, g.count, scale_of(d, p, walked == p->walked_is_second ? 0 : 1));
    const parity_piece *mine = (walked ? p->e : p->o)->pieces;
    int64_t count;
    if (assay_shape_count(mine->record->shard.global_shape, mine->record->shard.ndim, &count) &&
        count == g.count)
        say_ranks(d, p, walked, expected, g.count, r->diagnosis);
done:
    free(expected);
    parity_global_free(&g);
    return st;
}

assay_status diff_compare_pair(const diff_compare *d, const diff_pair *p, parity_result *r,
                               diff_statistics *statistics, unsigned char **bad)
{
    diff_pair q = *p;
    parity_global walked = {0}, other = {0}, first = {0}, second = {0};
    assay_status st = ASSAY_OK;
    parity_result_init(r);
    *statistics = (diff_statistics){0};
    if (!has_data(p->e) || !has_data(p->o)) {
        compare_hashes(d, p, r);
        return ASSAY_OK;
    }
    if (!parity_entry_assembles(p->e) || !parity_entry_assembles(p->o)) {
        unsigned char *fails = NULL;
        st = diff_compare_local(d, p, r, statistics, &fails);
        if (bad != NULL)
            *bad = fails;
        else
            free(fails);
        goto done;
    }
    ASSAY_TRY_GOTO(parity_entry_assemble(d->walked, p->e, &walked, r), st, done);
    const bool walked_fails = r->verdict == PARITY_FAIL;
    if (r->verdict == PARITY_PASS && walked.data)
        ASSAY_TRY_GOTO(parity_entry_assemble(d->other, p->o, &other, r), st, done);
    if (r->verdict == PARITY_FAIL)
        st = explain(d, p, walked_fails, r);
    if (st == ASSAY_OK && p->row != NULL && p->row->relation == ASSAY_RELATION_MEAN && q.factor == 0.0) {
        ASSAY_TRY_GOTO(diff_loss_factor(d->walked->trace, p->e, &q.factor, &q.targets), st, done);
        if (q.factor == 0.0)
            parity_result_skip(r, "a loss for every target: its operation is judged");
    }
    if (st != ASSAY_OK || r->verdict != PARITY_PASS || !walked.data || !other.data)
        goto done;
    st = bring_together(&q, &walked, &other, &first, &second);
    if (st == ASSAY_OK && d->translate != NULL && p->row == NULL)
        st = bring_to_reference(d, &q, &first, &second);
    if (st == ASSAY_MISMATCH) {
        parity_result_fail(r, "another shape: %.400s", assay_error_message());
        st = ASSAY_OK;
        assay_error_clear();
    } else if (st == ASSAY_OK) {
        st = diff_compare_globals(d, &q, &first, &second, r, statistics, bad);
    }
done:
    parity_global_free(&second);
    parity_global_free(&first);
    parity_global_free(&other);
    parity_global_free(&walked);
    if (st == ASSAY_UNSUPPORTED) {
        parity_result_skip(r, "%.400s", assay_error_message());
        st = ASSAY_OK;
    }
    return st;
}

void diff_say_later(parity_result *r)
{
    const size_t n = strlen(r->diagnosis);
    if (r->verdict == PARITY_FAIL)
        snprintf(r->diagnosis + n, sizeof r->diagnosis - n,
                 "%sthe operation's own output agrees, what stands behind it under its name does not: it is "
                 "changed "
                 "before it is read",
                 n > 0 ? "; " : "");
}
