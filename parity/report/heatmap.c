/* index.html: for each case and precision the worst error of every operation, by layout and kernels. */
#include "parity/judge/judge.h"
#include "parity/report/report_files.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct heatmap {
    const parity_report *r;
    parity_map *rows;  /* case|precision|instance|operation -> the first result */
    parity_map *cells; /* ... and layout and kernels -> place in `worst` */
    double *worst;
    int64_t n_cells;
} heatmap;

enum { KEY = 2 * ASSAY_NAME + 512 };

static void row_key(char out[KEY], const parity_result *x)
{
    snprintf(out, KEY, "%s|%s|%s|%s", x->case_name, x->precision, x->instance, x->op);
}

static void cell_key(char out[KEY], const parity_result *row, const char *layout, const char *variants)
{
    snprintf(out, KEY, "%s|%s|%s|%s|%s|%s", row->case_name, row->precision, row->instance, row->op, layout,
             variants);
}

static assay_status add_result(heatmap *h, int64_t i)
{
    char key[KEY];
    const parity_result *x = parity_report_at(h->r, i);
    if (x->check != PARITY_CHECK_LOCAL)
        return ASSAY_OK;
    row_key(key, x);
    if (parity_map_get(h->rows, key) < 0)
        ASSAY_TRY(parity_map_put(h->rows, key, i));
    if (x->verdict == PARITY_SKIP)
        return ASSAY_OK;
    cell_key(key, x, x->layout, x->variants);
    int64_t at = parity_map_get(h->cells, key);
    if (at < 0) {
        at = h->n_cells++;
        h->worst[at] = 0.0;
        ASSAY_TRY(parity_map_put(h->cells, key, at));
    }
    if (!isnan(h->worst[at]) && !(x->share <= h->worst[at])) /* a NaN is the worst and stays it */
        h->worst[at] = x->share;
    return ASSAY_OK;
}

static bool same_table(const parity_column *a, const char *case_name, const char *precision)
{
    return strcmp(a->case_name, case_name) == 0 && strcmp(a->precision, precision) == 0;
}

static void put_head(FILE *f, const parity_column *columns, int64_t n, int64_t first)
{
    const parity_column *head = &columns[first];
    fputs("<h2>", f);
    parity_put_escaped(f, head->case_name);
    fputc(' ', f);
    parity_put_escaped(f, head->precision);
    fputs(": worst error by operation, as a share of its bound, beyond the rounding of the output</h2><div "
          "class=wrap><table class=\"h two\"><thead><tr><th "
          "class=l>instance</th>"
          "<th class=l>operation</th>",
          f);
    for (int64_t k = first; k < n; k++)
        if (same_table(&columns[k], head->case_name, head->precision)) {
            fputs("<th>", f);
            parity_put_escaped(f, columns[k].layout);
            fputc(' ', f);
            parity_put_escaped(f, columns[k].variants);
            fputs("</th>", f);
        }
    fputs("</tr></thead><tbody>", f);
}

static void put_table(FILE *f, const heatmap *h, const parity_column *columns, int64_t n, int64_t first)
{
    char key[KEY];
    const parity_column *head = &columns[first];
    put_head(f, columns, n, first);
    for (int64_t i = 0; i < parity_report_count(h->r); i++) {
        const parity_result *x = parity_report_at(h->r, i);
        if (x->check != PARITY_CHECK_LOCAL || !same_table(head, x->case_name, x->precision))
            continue;
        row_key(key, x);
        if (parity_map_get(h->rows, key) != i)
            continue;
        fputs("<tr><td>", f);
        parity_put_escaped(f, x->instance);
        fputs("<td>", f);
        parity_put_escaped(f, x->op);
        for (int64_t k = first; k < n; k++) {
            if (!same_table(&columns[k], head->case_name, head->precision))
                continue;
            cell_key(key, x, columns[k].layout, columns[k].variants);
            const int64_t at = parity_map_get(h->cells, key);
            parity_put_ratio_cell(f, at >= 0 ? h->worst[at] : 0.0, at >= 0);
        }
        fputc('\n', f);
    }
    fputs("</tbody></table></div>", f);
}

assay_status parity_put_heatmaps(FILE *f, const parity_report *r, const parity_column *columns, int64_t n)
{
    heatmap h = {.r = r};
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(parity_map_create(&h.rows), st, done);
    ASSAY_TRY_GOTO(parity_map_create(&h.cells), st, done);
    h.worst = malloc(((size_t)parity_report_count(r) + 1) * sizeof *h.worst);
    ASSAY_CHECK_GOTO(h.worst != NULL, ASSAY_OUT_OF_MEMORY, st, done, "report: heat map");
    for (int64_t i = 0; i < parity_report_count(r); i++)
        ASSAY_TRY_GOTO(add_result(&h, i), st, done);
    for (int64_t i = 0; i < n; i++) {
        bool first = true;
        for (int64_t k = 0; k < i && first; k++)
            first = !same_table(&columns[k], columns[i].case_name, columns[i].precision);
        if (first)
            put_table(f, &h, columns, n, i);
    }
done:
    free(h.worst);
    parity_map_destroy(h.cells);
    parity_map_destroy(h.rows);
    return st;
}
