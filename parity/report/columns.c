/* Grouping of results by case, precision, layout and kernels; the place of a result in words. */
#include "parity/report/report_files.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

void parity_put_escaped(FILE *f, const char *s)
{
    for (; *s != 0; s++) {
        const char c = *s;
        if (c == '&')
            fputs("&amp;", f);
        else if (c == '<')
            fputs("&lt;", f);
        else if (c == '>')
            fputs("&gt;", f);
        else if (c == '"')
            fputs("&quot;", f);
        else
            fputc(c, f);
    }
}

void parity_task_label(const char *case_name, const char *precision, const char *layout, const char *variants,
                       char out[PARITY_TASK_LABEL])
{
    snprintf(out, PARITY_TASK_LABEL, "%s %s %s %s", case_name, precision, layout, variants);
}

bool parity_column_holds(const parity_column *c, const parity_claim *x)
{
    return c->case_name == x->case_name && c->precision == x->precision && c->layout == x->layout &&
           c->variants == x->variants;
}

parity_verdict parity_column_verdict(const parity_column *c)
{
    int64_t failed = 0, skipped = 0, passed = 0;
    for (int k = 0; k < PARITY_CHECK_COUNT; k++) {
        failed += c->failed[k];
        skipped += c->skipped[k];
        passed += c->passed[k];
    }
    return failed > 0 ? PARITY_FAIL : skipped > 0 || passed == 0 ? PARITY_SKIP : PARITY_PASS;
}

static void count(parity_column *c, const parity_claim *r)
{
    int64_t *cell = r->verdict == PARITY_PASS   ? c->passed
                    : r->verdict == PARITY_FAIL ? c->failed
                                                : c->skipped;
    cell[r->check]++;
    /* Written so that a NaN shows up as the worst. */
    if (r->verdict != PARITY_SKIP && !isnan(c->worst[r->check]) && !(r->share <= c->worst[r->check]))
        c->worst[r->check] = r->share;
    c->ambiguous += r->n_ambiguous;
}

assay_status parity_report_columns(const parity_report *r, parity_column **out, int64_t *n)
{
    *out = NULL;
    *n = 0;
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        const parity_claim *x = parity_report_at(r, i);
        int64_t k = *n - 1;
        while (k >= 0 && !parity_column_holds(&(*out)[k], x))
            k--;
        if (k < 0) {
            parity_column *grown = realloc(*out, ((size_t)*n + 1) * sizeof *grown);
            if (grown == NULL) {
                free(*out);
                *out = NULL;
                ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "report: %lld columns", (long long)*n + 1);
            }
            *out = grown;
            k = (*n)++;
            memset(&grown[k], 0, sizeof grown[k]);
            grown[k].case_name = x->case_name;
            grown[k].precision = x->precision;
            grown[k].layout = x->layout;
            grown[k].variants = x->variants;
            grown[k].engine = x->engine;
            grown[k].tier = x->tier;
            grown[k].first = i;
        }
        count(&(*out)[k], x);
    }
    return ASSAY_OK;
}

assay_status parity_report_column_numbers(const parity_report *r, const parity_column *columns, int64_t n,
                                          int64_t **out)
{
    int64_t k = 0; /* results of a column stand together: most are in that of the one before */
    *out = malloc(((size_t)parity_report_count(r) + 1) * sizeof **out);
    ASSAY_CHECK(*out != NULL, ASSAY_OUT_OF_MEMORY, "report: columns of the results");
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        const parity_claim *x = parity_report_at(r, i);
        if (!parity_column_holds(&columns[k], x))
            for (k = 0; k < n - 1 && !parity_column_holds(&columns[k], x); k++)
                continue;
        (*out)[i] = k;
    }
    return ASSAY_OK;
}

static int append(char *out, size_t capacity, int at, const char *format, const char *text, int64_t number)
{
    if (at < 0 || (size_t)at >= capacity)
        return at;
    char piece[ASSAY_NAME + 64];
    if (text != NULL)
        snprintf(piece, sizeof piece, "%s%s", format, text);
    else
        snprintf(piece, sizeof piece, "%s%lld", format, (long long)number);
    return at + snprintf(out + at, capacity - (size_t)at, "%s", piece);
}

void parity_claim_place(const parity_claim *r, char *out, size_t capacity)
{
    int at = 0;
    out[0] = 0;
    at = append(out, capacity, at, "", r->instance, 0);
    if (r->op[0] != 0)
        at = append(out, capacity, at, at > 0 ? " " : "", r->op, 0);
    if (r->tensor[0] != 0)
        at = append(out, capacity, at, at > 0 ? " " : "", r->tensor, 0);
    for (int d = 0; d < r->index_ndim; d++)
        at = append(out, capacity, at, d == 0 ? "[" : ",", NULL, r->index[d]);
    if (r->index_ndim > 0)
        at = append(out, capacity, at, "]", "", 0);
    if (r->step >= 0)
        at = append(out, capacity, at, ", step ", NULL, r->step);
    if (r->microbatch >= 0)
        at = append(out, capacity, at, ", microbatch ", NULL, r->microbatch);
    if (r->rank >= 0)
        append(out, capacity, at, ", rank ", NULL, r->rank);
}
