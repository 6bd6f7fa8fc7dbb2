/* index.html: loss and norm of the gradients over the steps, beside the reference, and how far apart in units of what is
 * allowed.  One chart for each case and precision. */
#include "parity/report/page.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDE = 260, TALL = 96, STRIP = 44, LEFT = 62, RIGHT = 10, LINES = 24, OPEN_CHARTS = 6 };

/* The claims with a curve: few of all. */
typedef struct curve_of {
    const parity_curve *curve;
    const char *tensor;
    int64_t column;
} curve_of;

typedef struct chart {
    const char *tensor;
    int64_t n; /* curves */
    const parity_curve **curves;
    double low, high;
    int64_t first_step, last_step;
} chart;

static bool same_table(const parity_column *a, const parity_column *b)
{
    return strcmp(a->case_name, b->case_name) == 0 && strcmp(a->precision, b->precision) == 0;
}

static void widen(chart *c, double x)
{
    if (!isfinite(x))
        return;
    c->low = x < c->low ? x : c->low;
    c->high = x > c->high ? x : c->high;
}

static void take(chart *c, const parity_curve *curve)
{
    c->curves[c->n++] = curve;
    for (int64_t i = 0; i < curve->n; i++) {
        const parity_curve_point *q = &curve->points[i];
        widen(c, q->found);
        widen(c, q->expected - q->allowance);
        widen(c, q->expected + q->allowance);
        c->first_step = q->step < c->first_step ? q->step : c->first_step;
        c->last_step = q->step > c->last_step ? q->step : c->last_step;
    }
}

static double x_of(const chart *c, int64_t step)
{
    return c->last_step == c->first_step ? LEFT + WIDE / 2.0
                                         : LEFT + (double)WIDE * (double)(step - c->first_step) /
                                                      (double)(c->last_step - c->first_step);
}

static double y_of(const chart *c, double value)
{
    const double span = c->high - c->low;
    return 4.0 + TALL * (span > 0.0 ? (c->high - value) / span : 0.5);
}

/* In units of the allowance, cut off at twice of it; what is no number is cut off, too. */
static double off_of(const parity_curve_point *q)
{
    const double d = q->found == q->expected ? 0.0 : (q->found - q->expected) / q->allowance;
    return d >= -2.0 && d <= 2.0 ? d : d < -2.0 ? -2.0 : 2.0;
}

static double y_off(double off)
{
    return TALL + 20.0 + STRIP / 2.0 - off * STRIP / 4.0;
}

static void put_line(FILE *f, const chart *c, const parity_curve *curve, int kind)
{
    bool pen = false;
    for (int64_t i = 0; i < curve->n; i++) {
        const parity_curve_point *q = &curve->points[i];
        const double value = kind == 0 ? q->expected : kind == 1 ? q->found : 0.0;
        if (!isfinite(value)) {
            pen = false; /* a gap */
            continue;
        }
        fprintf(f, "%c%.1f %.1f", pen ? 'L' : 'M', x_of(c, q->step),
                kind == 2 ? y_off(off_of(q)) : y_of(c, value));
        pen = true;
    }
}

static void put_band(FILE *f, const chart *c, const parity_curve *curve)
{
    fputs("<path class=edge opacity=.25 d=\"M", f);
    for (int64_t i = 0; i < 2 * curve->n; i++) {
        const parity_curve_point *q = &curve->points[i < curve->n ? i : 2 * curve->n - 1 - i];
        const double y = i < curve->n ? q->expected + q->allowance : q->expected - q->allowance;
        fprintf(f, "%s%.1f %.1f", i > 0 ? "L" : "", x_of(c, q->step),
                isfinite(y) ? y_of(c, y) : y_of(c, c->low));
    }
    fputs("Z\"/>", f);
}

/* Points where the candidate is outside what is allowed. */
static int64_t put_outside(FILE *f, const chart *c)
{
    int64_t n = 0;
    for (int64_t k = 0; k < c->n; k++)
        for (int64_t i = 0; i < c->curves[k]->n; i++) {
            const parity_curve_point *q = &c->curves[k]->points[i];
            if (fabs(q->found - q->expected) <= q->allowance)
                continue;
            if (n++ < LINES)
                fprintf(f, "<circle class=out r=3 cx=%.1f cy=%.1f />", x_of(c, q->step), y_off(off_of(q)));
        }
    return n;
}

/* Lines that would cover each other are drawn once. */
static assay_status put_candidates(FILE *f, const chart *c, int kind)
{
    char *drawn[LINES] = {NULL};
    int n = 0;
    assay_status st = ASSAY_OK;
    for (int64_t k = 0; k < c->n && n < LINES; k++) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *m = open_memstream(&text, &bytes);
        ASSAY_CHECK_GOTO(m != NULL, ASSAY_OUT_OF_MEMORY, st, done, "report: curves");
        put_line(m, c, c->curves[k], kind);
        ASSAY_CHECK_GOTO(fclose(m) == 0, ASSAY_OUT_OF_MEMORY, st, done, "report: curves");
        bool known = bytes == 0;
        for (int i = 0; i < n && !known; i++)
            known = strcmp(drawn[i], text) == 0;
        if (known) {
            free(text);
            continue;
        }
        drawn[n++] = text;
        fprintf(f, "<path class=cand-l stroke-width=1.5 d=\"%s\"/>", text);
    }
done:
    for (int i = 0; i < n; i++)
        free(drawn[i]);
    return st;
}

static assay_status put_chart(const parity_page *p, const parity_column *head, const chart *c)
{
    FILE *f = p->f;
    const parity_curve *first = c->curves[0];
    fputs("<figure class=g data-g=\"", f);
    parity_put_escaped(f, head->case_name);
    fputc(' ', f);
    parity_put_escaped(f, head->precision);
    fprintf(f, "\"><svg role=img aria-label=\"%s over steps\" viewBox=\"0 0 %d %d\" width=%d height=%d>",
            c->tensor, WIDE + LEFT + RIGHT, TALL + STRIP + 40, WIDE + LEFT + RIGHT, TALL + STRIP + 40);
    put_band(f, c, first);
    ASSAY_TRY(put_candidates(f, c, 1));
    fputs("<path class=ref-l stroke-dasharray=\"5 4\" d=\"", f);
    put_line(f, c, first, 0);
    fprintf(f,
            "\"/><text class=d x=%d y=14 text-anchor=end>%.6g</text><text class=d x=%d y=%d "
            "text-anchor=end>%.6g</text>",
            LEFT - 8, c->high, LEFT - 8, TALL + 2, c->low);
    fprintf(f,
            "<rect class=edge opacity=.25 x=%d y=%.1f width=%d height=%.1f /><path class=edge-l d=\"M%d "
            "%.1fh%d\"/>",
            LEFT, y_off(1.0), WIDE, y_off(-1.0) - y_off(1.0), LEFT, y_off(0.0), WIDE);
    fprintf(f,
            "<text class=d x=%d y=%.1f text-anchor=end>+1</text><text class=d x=%d y=%.1f "
            "text-anchor=end>-1</text>",
            LEFT - 8, y_off(1.0) + 4.0, LEFT - 8, y_off(-1.0) + 4.0);
    ASSAY_TRY(put_candidates(f, c, 2));
    const int64_t outside = put_outside(f, c);
    fprintf(
        f,
        "<text class=d x=%d y=%d>step %lld</text><text class=d x=%d y=%d text-anchor=end>%lld</text></svg>",
        LEFT, TALL + STRIP + 36, (long long)c->first_step, LEFT + WIDE, TALL + STRIP + 36,
        (long long)c->last_step);
    fputs("<figcaption>", f);
    parity_put_escaped(f, head->case_name);
    fputc(' ', f);
    parity_put_escaped(f, head->precision);
    fprintf(f, ", %s, %lld run%s", c->tensor, (long long)c->n, c->n == 1 ? "" : "s");
    if (outside > 0)
        fprintf(f, ": <b class=bad>%lld point%s outside</b>", (long long)outside, outside == 1 ? "" : "s");
    if (first->stride > 1)
        fprintf(f, "; the worst of every %lld steps", (long long)first->stride);
    fputs("</figcaption></figure>", f);
    return ASSAY_OK;
}

static assay_status put_tensor(const parity_page *p, int64_t first, const char *tensor, const curve_of *all,
                               int64_t n, const parity_curve **curves)
{
    chart c = {
        .tensor = tensor, .curves = curves, .low = HUGE_VAL, .high = -HUGE_VAL, .first_step = INT64_MAX};
    for (int64_t i = 0; i < n; i++)
        if (strcmp(all[i].tensor, tensor) == 0 && same_table(&p->columns[all[i].column], &p->columns[first]))
            take(&c, all[i].curve);
    return c.n > 0 && c.low <= c.high ? put_chart(p, &p->columns[first], &c) : ASSAY_OK;
}

/* In the order of their claims; freed by the caller. */
static assay_status gather(const parity_page *p, curve_of **out, int64_t *n)
{
    int64_t capacity = 0;
    for (int64_t i = 0; i < parity_report_count(p->r); i++) {
        const parity_claim *x = parity_report_at(p->r, i);
        const parity_curve *curve = x->curve != 0 ? parity_report_drawn(p->r, x).curve : NULL;
        if (curve == NULL)
            continue;
        if (*n == capacity) {
            capacity = capacity > 0 ? 2 * capacity : 64;
            curve_of *grown = realloc(*out, (size_t)capacity * sizeof *grown);
            ASSAY_CHECK(grown != NULL, ASSAY_OUT_OF_MEMORY, "report: %lld curves", (long long)capacity);
            *out = grown;
        }
        (*out)[(*n)++] = (curve_of){curve, x->tensor, p->column_of[i]};
    }
    return ASSAY_OK;
}

assay_status parity_page_curves(const parity_page *p)
{
    static const char *const tensors[] = {"loss", "grad_norm"};
    int64_t n = 0, tables = 0;
    curve_of *all = NULL;
    const parity_curve **curves = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(gather(p, &all, &n), st, done);
    if (n == 0)
        goto done;
    curves = malloc((size_t)n * sizeof *curves);
    ASSAY_CHECK_GOTO(curves != NULL, ASSAY_OUT_OF_MEMORY, st, done, "report: %lld curves", (long long)n);
    fputs("<h2 id=curves>Loss and norm of the gradients over the steps</h2><p class=dim>Dashed: the "
          "reference, unsharded "
          "in double precision; blue: every layout and kernel choice.  Below, the distance between them in "
          "units of what "
          "rounding is allowed (the band); at the edge it is twice of that or more.</p>",
          p->f);
    for (int64_t i = 0; i < p->n; i++) {
        bool first = true;
        for (int64_t k = 0; k < i && first; k++)
            first = !same_table(&p->columns[k], &p->columns[i]);
        if (!first)
            continue;
        if (tables == 0)
            fputs("<div class=figs>", p->f);
        if (tables++ == OPEN_CHARTS)
            fputs("</div><details><summary>the other cases</summary><div class=figs>", p->f);
        for (int t = 0; t < 2; t++)
            ASSAY_TRY_GOTO(put_tensor(p, i, tensors[t], all, n, curves), st, done);
    }
    fputs(tables > OPEN_CHARTS ? "</div></details>" : "</div>", p->f);
done:
    free(curves);
    free(all);
    return st;
}
