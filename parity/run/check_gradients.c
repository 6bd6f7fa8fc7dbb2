/* The gradients that an optimizer read beside those that the backward left: clipping by the global norm multiplies all of them by
 * one factor. */
#include "parity/run/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct gradient_pair {
    const assay_trace_tensor *left, *read; /* by the backward, by the optimizer */
    double own,
        off; /* the factor that fits this one, and the worst of its elements: roundings from the factor of all */
    double products, squares; /* of its finite elements */
    int64_t n_off;
    bool lost,
        made; /* read a number that is none where the backward left one; something where it left zeros alone */
} gradient_pair;

typedef struct gradient_step {
    int rank;
    int64_t step, n;
    gradient_pair *pairs;
    double unit, factor, norm; /* of the finest dtype among them; of what the backward left */
    double scale;              /* of the losses, which the optimizer does not read */
} gradient_step;

/* Of rank 0, ascending steps. */
typedef struct gradient_factors {
    int64_t n;
    struct {
        int64_t step;
        double factor;
    } * of;
    int64_t n_clipped;     /* steps of ranks ... */
    gradient_step clipped; /* ... and the first of them */
} gradient_factors;

/* Roundings of the dtype that a factor may cost: that of the product, of the factor, and of finding it. */
static const double roundings = 4.0;

static double unit_of(assay_dtype dtype)
{
    return dtype == ASSAY_BF16  ? 0x1p-8
           : dtype == ASSAY_F16 ? 0x1p-11
           : dtype == ASSAY_F64 ? 0x1p-53
                                : 0x1p-24;
}

static double least_of(assay_dtype dtype)
{
    return dtype == ASSAY_F64 ? 0x1p-1022 : dtype == ASSAY_F16 ? 0x1p-24 : 0x1p-126;
}

static int64_t count_of(const assay_trace_tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->shard.ndim; d++)
        n *= t->shard.local_shape[d];
    return n;
}

static bool is_gradient(const assay_trace_tensor *t)
{
    const size_t n = strlen(t->name);
    return t->data != NULL && n > 5 && strcmp(t->name + n - 5, ".grad") == 0 &&
           (t->dtype == ASSAY_F32 || t->dtype == ASSAY_BF16 || t->dtype == ASSAY_F64 ||
            t->dtype == ASSAY_F16);
}

static int compare_names(const void *a, const void *b)
{
    const assay_trace_tensor *x = *(const assay_trace_tensor *const *)a,
                             *y = *(const assay_trace_tensor *const *)b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    const int order = strcmp(x->name, y->name);
    return order != 0 ? order : (x->id > y->id) - (x->id < y->id);
}

/* The last of this name and step: what was read behind the last backward. */
static const assay_trace_tensor *find_read(const assay_trace_tensor *const *read, int64_t n,
                                           const assay_trace_tensor *left)
{
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const assay_trace_tensor *t = read[middle];
        const int order =
            t->step != left->step ? (t->step < left->step ? -1 : 1) : strcmp(t->name, left->name);
        if (order <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    const assay_trace_tensor *t = low > 0 ? read[low - 1] : NULL;
    return t != NULL && t->step == left->step && strcmp(t->name, left->name) == 0 &&
                   t->dtype == left->dtype && count_of(t) == count_of(left)
               ? t
               : NULL;
}

static void fit(gradient_step *s)
{
    double unit = 1.0, products = 0.0, squares = 0.0;
    s->norm = 0.0;
    for (int64_t k = 0; k < s->n; k++) {
        gradient_pair *p = &s->pairs[k];
        const int64_t count = count_of(p->left);
        double own = 0.0, all = 0.0;
        bool more = false;
        for (int64_t i = 0; i < count; i++) {
            const double g = parity_decode(p->left->data, i, p->left->dtype),
                         o = parity_decode(p->read->data, i, p->read->dtype);
            p->lost = p->lost || (isfinite(g) && !isfinite(o));
            more = more || o != 0.0;
            if (!isfinite(g) || !isfinite(o))
                continue;
            own += g * o;
            all += g * g;
        }
        p->own = all > 0.0 ? own / all : (double)NAN;
        p->made = more && all == 0.0 && !p->lost;
        p->products = own;
        p->squares = all;
        s->norm += all;
        if (all > 0.0)
            unit = fmin(unit, unit_of(p->left->dtype));
    }
    for (int64_t k = 0; k < s->n; k++) {
        const gradient_pair *p = &s->pairs[k];
        if (unit_of(p->left->dtype) > unit)
            continue; /* a coarser one would blur the factor */
        products += p->products;
        squares += p->squares;
    }
    s->norm = sqrt(s->norm);
    s->unit = unit;
    s->factor = squares > 0.0 ? products / squares : (double)NAN;
}

/* Elements that are not the recorded gradient times the factor, and the factor of their parameter alone. */
static bool is_product(double o, double g, double factor, assay_dtype dtype, double *off)
{
    if (!isfinite(g) || !isfinite(o))
        return isnan(g) ? isnan(o) : !isfinite(g) || g == o;
    const double expected = g * factor, distance = fabs(o - expected),
                 allowed = unit_of(dtype) * fabs(expected) + least_of(dtype);
    *off = fmax(*off, distance / allowed);
    return distance <= roundings * allowed;
}

static int64_t measure(gradient_step *s)
{
    int64_t n = 0;
    for (int64_t k = 0; k < s->n; k++) {
        gradient_pair *p = &s->pairs[k];
        const int64_t count = count_of(p->left);
        for (int64_t i = 0; i < count; i++)
            p->n_off += !is_product(parity_decode(p->read->data, i, p->read->dtype),
                                    parity_decode(p->left->data, i, p->left->dtype), s->factor,
                                    p->left->dtype, &p->off);
        n += p->n_off > 0;
    }
    return n;
}

/* Whether all elements are those of the backward, cut at one size; 0: they are not. */
static double cut_at(const gradient_step *s)
{
    double size = 0.0;
    for (int64_t k = 0; k < s->n; k++)
        for (int64_t i = 0; i < count_of(s->pairs[k].read); i++)
            size = fmax(size, fabs(parity_decode(s->pairs[k].read->data, i, s->pairs[k].read->dtype)));
    for (int64_t k = 0; k < s->n; k++) {
        const gradient_pair *p = &s->pairs[k];
        for (int64_t i = 0; i < count_of(p->left); i++) {
            const double g = parity_decode(p->left->data, i, p->left->dtype);
            if (parity_decode(p->read->data, i, p->read->dtype) != fmax(-size, fmin(size, g)))
                return 0.0;
        }
    }
    return size;
}

/* Whether every parameter has a factor that fits all of its elements. */
static bool each_has_its_own(const gradient_step *s)
{
    for (int64_t k = 0; k < s->n; k++) {
        const gradient_pair *p = &s->pairs[k];
        double off = 0.0;
        for (int64_t i = 0; i < count_of(p->left); i++)
            if (!is_product(parity_decode(p->read->data, i, p->read->dtype),
                            parity_decode(p->left->data, i, p->left->dtype), isnan(p->own) ? 1.0 : p->own,
                            p->left->dtype, &off))
                return false;
    }
    return true;
}

/* A rank's own gradient, which something may still add up over ranks, says nothing of what was read. */
static void finding(check_state *c, const gradient_step *s, const char *text)
{
    const bool own = assay_trace_world(c->trace) > 1 && s->pairs[0].left->phase == ASSAY_PHASE_GRAD;
    if (!own)
        check_fail(c, CHECK_OPERATIONS, "the gradients that the optimizer read (rank %d, step %lld) %s",
                   s->rank, (long long)s->step, text);
    else if (c->unchecked[CHECK_OPERATIONS][0] == '\0')
        snprintf(c->unchecked[CHECK_OPERATIONS], PARITY_TEXT,
                 "the gradients that the optimizer read (rank %d, step %lld) %.300s; they may have been "
                 "added up over ranks",
                 s->rank, (long long)s->step, text);
}

static void judge_uneven(check_state *c, const gradient_step *s, int64_t n_off)
{
    char text[PARITY_TEXT];
    const double size = cut_at(s);
    if (size > 0.0) {
        check_note(c,
                   "rank %d, step %lld: the optimizer read the gradients cut at +-%.6g, element by element",
                   s->rank, (long long)s->step, size);
        return;
    }
    const gradient_pair *low = &s->pairs[0], *high = low, *worst = low;
    for (int64_t k = 1; k < s->n; k++) {
        const gradient_pair *p = &s->pairs[k];
        low = isnan(low->own) || p->own < low->own ? p : low;
        high = isnan(high->own) || p->own > high->own ? p : high;
        worst = p->off > worst->off ? p : worst;
    }
    if (each_has_its_own(s))
        snprintf(text, sizeof text,
                 "are those of the backward times a factor of its own for each parameter, from %.6g (%.100s) "
                 "to %.6g "
                 "(%.100s): clipped one by one, where the global norm gives one factor for all",
                 low->own, low->left->name, high->own, high->left->name);
    else
        snprintf(text, sizeof text,
                 "are not those of the backward times one factor: %lld of %lld parameters differ, the most "
                 "%.120s in %lld "
                 "of %lld elements",
                 (long long)n_off, (long long)s->n, worst->left->name, (long long)worst->n_off,
                 (long long)count_of(worst->left));
    finding(c, s, text);
}

/* Clipping by the norm of all ranks gives them one factor. */
static assay_status judge_beside_first(check_state *c, const gradient_step *s, double close,
                                       gradient_factors *first)
{
    char text[PARITY_TEXT];
    if (s->rank == 0) {
        void *more = realloc(first->of, (size_t)(first->n + 1) * sizeof *first->of);
        ASSAY_CHECK(more != NULL, ASSAY_OUT_OF_MEMORY, "factors");
        first->of = more;
        first->of[first->n].step = s->step;
        first->of[first->n++].factor = s->factor;
        return ASSAY_OK;
    }
    for (int64_t i = 0; i < first->n; i++)
        if (first->of[i].step == s->step &&
            fabs(s->factor - first->of[i].factor) > close * fabs(first->of[i].factor)) {
            snprintf(text, sizeof text,
                     "are %.6g times those of the backward, and %.6g times on rank 0: each clips by a norm "
                     "of its own",
                     s->factor, first->of[i].factor);
            finding(c, s, text);
        }
    return ASSAY_OK;
}

/* No element tells a factor: nothing is finite, or the backward left zeros alone. */
static void judge_without_factor(check_state *c, const gradient_step *s)
{
    char text[PARITY_TEXT];
    for (int64_t k = 0; k < s->n; k++) {
        const gradient_pair *p = &s->pairs[k];
        if (!p->lost && !p->made)
            continue;
        snprintf(text, sizeof text, "%s: first %.300s",
                 p->lost ? "are no numbers, and those of the backward are"
                         : "are not 0, and those of the backward are",
                 p->left->name);
        finding(c, s, text);
        return;
    }
}

static assay_status judge(check_state *c, gradient_step *s, gradient_factors *first)
{
    char text[PARITY_TEXT];
    fit(s);
    if (isnan(s->factor)) {
        judge_without_factor(c, s);
        return ASSAY_OK;
    }
    const int64_t n_off = measure(s);
    const double close = 2.0 * roundings * s->unit;
    if (n_off > 0) {
        judge_uneven(c, s, n_off);
        return ASSAY_OK;
    }
    ASSAY_TRY(check_scaler(c, s->step, &s->scale));
    const double factor = s->factor * s->scale;
    if (s->scale != 1.0 && (factor > 1.0 + close || factor <= 0.0)) {
        snprintf(
            text, sizeof text,
            "are %.6g times those of the backward, expected %.6g or less: a GradScaler multiplied the losses "
            "by %.6g, and its unscaling was left out",
            s->factor, 1.0 / s->scale, s->scale);
        finding(c, s, text);
    } else if (factor > 1.0 + close || factor <= 0.0) {
        snprintf(text, sizeof text,
                 "are %.6g times those of the backward: clipping makes them smaller, and no more", s->factor);
        finding(c, s, text);
    } else if (factor < 1.0 - close && first->n_clipped++ == 0) {
        first->clipped = *s;
    }
    return judge_beside_first(c, s, close, first);
}

/* Gradients of a rank, by step and name: what backwards left (reduced, where the trace says so), and what optimizers read. */
static assay_status judge_rank(check_state *c, int rank, const assay_trace_tensor **left,
                               const assay_trace_tensor **read, gradient_pair *pairs, gradient_factors *first)
{
    int64_t n_left = 0, n_read = 0;
    assay_phase phase = ASSAY_PHASE_GRAD;
    for (int64_t i = 0; i < assay_trace_n_tensors(c->trace, rank); i++) {
        const assay_trace_tensor *t = assay_trace_tensor_at(c->trace, rank, i);
        phase = t->phase == ASSAY_PHASE_REDUCED_GRAD ? t->phase : phase;
        if (t->phase == ASSAY_PHASE_OPTIMIZER && is_gradient(t))
            read[n_read++] = t;
    }
    for (int64_t i = 0; i < assay_trace_n_tensors(c->trace, rank); i++) {
        const assay_trace_tensor *t = assay_trace_tensor_at(c->trace, rank, i);
        if (t->phase == phase && is_gradient(t))
            left[n_left++] = t;
    }
    qsort(left, (size_t)n_left, sizeof *left, compare_names);
    qsort(read, (size_t)n_read, sizeof *read, compare_names);
    for (int64_t i = 0; i < n_left;) {
        gradient_step s = {.rank = rank, .step = left[i]->step, .pairs = pairs};
        for (; i < n_left && left[i]->step == s.step; i++) {
            const assay_trace_tensor *t = find_read(read, n_read, left[i]);
            if (t != NULL)
                pairs[s.n++] = (gradient_pair){.left = left[i], .read = t};
        }
        if (s.n > 0)
            ASSAY_TRY(judge(c, &s, first));
    }
    return ASSAY_OK;
}

static void note_clipping(check_state *c, const gradient_factors *f)
{
    char more[64] = "", norm[96] = "";
    if (f->n_clipped > 1)
        snprintf(more, sizeof more, "; %lld more like it", (long long)(f->n_clipped - 1));
    if (assay_trace_world(c->trace) == 1)
        snprintf(norm, sizeof norm, ": clipped from a norm of %.6g to %.6g",
                 f->clipped.norm / f->clipped.scale, f->clipped.factor * f->clipped.norm);
    if (f->n_clipped > 0)
        check_note(c, "rank %d, step %lld: the optimizer read %.6g times the gradients of the backward%s%s",
                   f->clipped.rank, (long long)f->clipped.step, f->clipped.factor, norm, more);
}

assay_status check_gradients(check_state *c)
{
    gradient_factors first = {0};
    assay_status st = ASSAY_OK;
    for (int rank = 0; rank < assay_trace_world(c->trace) && st == ASSAY_OK; rank++) {
        const size_t n = (size_t)assay_trace_n_tensors(c->trace, rank) + 1;
        const assay_trace_tensor **left = malloc(n * sizeof *left), **read = malloc(n * sizeof *read);
        gradient_pair *pairs = malloc(n * sizeof *pairs);
        if (left != NULL && read != NULL && pairs != NULL)
            st = judge_rank(c, rank, left, read, pairs, &first);
        else
            st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "gradients");
        free(pairs);
        free(read);
        free(left);
    }
    note_clipping(c, &first);
    free(first.of);
    return st;
}
