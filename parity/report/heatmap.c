/* index.html: the worst error of every operation, as a share of its bound.  For each precision over all cases, by layer and
 * operation; for each case by operation instance, precision, layout and kernels. */
#include "parity/judge/judge.h"
#include "parity/report/page.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct heatmap {
    const parity_page *p;
    parity_map *keys; /* of rows, columns and cells */
    parity_heat_cell *cells;
    int64_t *first; /* of each cell: its first claim */
    int64_t n_cells;
    int64_t *rows; /* first claim of each case, instance and operation */
    int64_t n_rows;
} heatmap;

enum { KEY = 2 * ASSAY_NAME + 512 };

/* --- what stands where -------------------------------------------------------------------------------------- */

static int64_t find(const heatmap *h, const char *key)
{
    return parity_map_get(h->keys, key);
}

/* The cell of claim i. */
static parity_heat_cell *cell_at(heatmap *h, const char *key, int64_t i, assay_status *st)
{
    int64_t at = find(h, key);
    if (at < 0) {
        at = h->n_cells;
        *st = parity_map_put(h->keys, key, at);
        if (*st != ASSAY_OK)
            return NULL;
        h->n_cells++;
        h->cells[at] = (parity_heat_cell){.worst = -1};
        h->first[at] = i;
    }
    return &h->cells[at];
}

static void make_key(char out[KEY], const char *what, const char *a, const char *b, const char *c)
{
    parity_key k = parity_key_begin(out, KEY);
    parity_key_text(&k, what);
    parity_key_text(&k, a);
    parity_key_text(&k, b);
    parity_key_text(&k, c);
}

/* --- by layer and operation --------------------------------------------------------------------------------- */

enum { MAX_LINES = 400 }; /* layers or operations of one map; a trace of other people's code may bring many */

typedef struct names {
    int n;
    char text[MAX_LINES][ASSAY_NAME];
} names;

static int number_of(names *x, const char *text)
{
    for (int i = 0; i < x->n; i++)
        if (strcmp(x->text[i], text) == 0)
            return i;
    if (x->n == MAX_LINES)
        return -1;
    snprintf(x->text[x->n], ASSAY_NAME, "%s", text);
    return x->n++;
}

static void layer_key(char out[KEY], const char *precision, const char *layer, const char *op)
{
    make_key(out, "L", precision, layer, op);
}

static void put_map(const heatmap *h, const char *precision, const names *layers, const names *ops)
{
    FILE *f = h->p->f;
    char key[KEY];
    fputs("<h3>", f);
    parity_put_escaped(f, precision);
    fputs("</h3><div class=wrap><table class=\"h map\"><thead><tr><th>layer</th>", f);
    for (int k = 0; k < ops->n; k++) {
        fputs("<th><span>", f);
        parity_put_escaped(f, ops->text[k]);
        fputs("</span></th>", f);
    }
    fputs("</tr></thead><tbody>", f);
    for (int i = 0; i < layers->n; i++) {
        fputs("<tr\n><td>", f);
        parity_put_escaped(f, layers->text[i]);
        for (int k = 0; k < ops->n; k++) {
            layer_key(key, precision, layers->text[i], ops->text[k]);
            const int64_t at = find(h, key);
            parity_put_heat_cell(h->p, at >= 0 ? &h->cells[at] : NULL);
        }
    }
    fputs("</tbody></table></div>", f);
}

static assay_status put_maps(heatmap *h)
{
    char layer[ASSAY_NAME], key[KEY];
    names *precisions = calloc(3, sizeof *precisions), *layers = precisions + 1, *ops = precisions + 2;
    assay_status st = ASSAY_OK;
    bool left_out = false;
    ASSAY_CHECK(precisions != NULL, ASSAY_OUT_OF_MEMORY, "report: heat map");
    for (int64_t i = 0; i < parity_report_count(h->p->r); i++) {
        const parity_claim *x = parity_report_at(h->p->r, i);
        if (x->check != PARITY_CHECK_LOCAL)
            continue;
        parity_layer_of(x->instance, layer);
        layer_key(key, x->precision, layer, x->op);
        parity_heat_cell *c = cell_at(h, key, i, &st);
        if (c == NULL)
            goto done;
        if (c->claims == 0)
            (void)number_of(precisions, x->precision);
        parity_heat_count(c, x, i);
    }
    for (int k = 0; k < precisions->n; k++) {
        layers->n = ops->n = 0;
        for (int64_t i = 0; i < h->n_cells;
             i++) { /* the first of a cell are the first of its layer and operation */
            const parity_claim *x = parity_report_at(h->p->r, h->first[i]);
            if (strcmp(x->precision, precisions->text[k]) != 0)
                continue;
            parity_layer_of(x->instance, layer);
            left_out = number_of(layers, layer) < 0 || left_out;
            left_out = number_of(ops, x->op) < 0 || left_out;
        }
        put_map(h, precisions->text[k], layers, ops);
    }
    if (left_out)
        fprintf(h->p->f, "<p class=skip>More than %d layers or operations: the tables below have all.</p>",
                MAX_LINES);
done:
    free(precisions);
    return st;
}

/* --- by instance and layout --------------------------------------------------------------------------------- */

static void cell_key(char out[KEY], const parity_claim *row, int64_t column)
{
    parity_key k = parity_key_begin(out, KEY);
    parity_key_text(&k, "C");
    parity_key_number(&k, column);
    parity_key_text(&k, row->instance);
    parity_key_text(&k, row->op);
}

static bool same_table(const parity_column *a, const parity_column *b)
{
    return a->case_name == b->case_name; /* equal texts of a report are one pointer */
}

static assay_status add_row(heatmap *h, const parity_claim *x, int64_t i)
{
    char key[KEY];
    make_key(key, "R", x->case_name, x->instance, x->op);
    if (find(h, key) >= 0)
        return ASSAY_OK;
    h->rows[h->n_rows++] = i;
    return parity_map_put(h->keys, key, i);
}

static assay_status add_rows(heatmap *h)
{
    char key[KEY];
    assay_status st = ASSAY_OK;
    for (int64_t i = 0; i < parity_report_count(h->p->r); i++) {
        const parity_claim *x = parity_report_at(h->p->r, i);
        if (x->check != PARITY_CHECK_LOCAL)
            continue;
        cell_key(key, x, h->p->column_of[i]);
        parity_heat_cell *c = cell_at(h, key, i, &st);
        if (c == NULL)
            return st;
        if (c->claims == 0) /* the first claim of a row is the first of its cell */
            ASSAY_TRY(add_row(h, x, i));
        parity_heat_count(c, x, i);
    }
    return ASSAY_OK;
}

static void put_head(const heatmap *h, int64_t first, bool open)
{
    FILE *f = h->p->f;
    const parity_column *head = &h->p->columns[first];
    fprintf(f, "<details%s data-g=\"", open ? " open" : "");
    parity_put_escaped(f, head->case_name);
    fputs("\"><summary>", f);
    parity_put_escaped(f, head->case_name);
    fputs("</summary><div class=wrap><table class=\"h two\"><thead><tr><th class=l>instance</th>"
          "<th class=l>operation</th>",
          f);
    for (int64_t k = first; k < h->p->n; k++)
        if (same_table(&h->p->columns[k], head)) {
            fputs("<th>", f);
            parity_put_escaped(f, h->p->columns[k].precision);
            fputc(' ', f);
            parity_put_escaped(f, h->p->columns[k].layout);
            fputc(' ', f);
            parity_put_escaped(f, h->p->columns[k].variants);
            fputs("</th>", f);
        }
    fputs("</tr></thead><tbody>", f);
}

static void put_row(const heatmap *h, const parity_claim *x, int64_t first)
{
    char key[KEY];
    FILE *f = h->p->f;
    fputs("<tr\n><td>", f); /* the line ends within the tag: a cell of nothing is empty */
    parity_put_escaped(f, x->instance);
    fputs("<td>", f);
    parity_put_escaped(f, x->op);
    for (int64_t k = first; k < h->p->n; k++) {
        if (!same_table(&h->p->columns[k], &h->p->columns[first]))
            continue;
        cell_key(key, x, k);
        const int64_t at = find(h, key);
        parity_put_heat_cell(h->p, at >= 0 ? &h->cells[at] : NULL);
    }
}

static void put_table(const heatmap *h, int64_t first, bool open)
{
    bool begun = false;
    for (int64_t i = 0; i < h->n_rows; i++) {
        if (!same_table(&h->p->columns[first], &h->p->columns[h->p->column_of[h->rows[i]]]))
            continue;
        if (!begun)
            put_head(h, first, open);
        begun = true;
        put_row(h, parity_report_at(h->p->r, h->rows[i]), first);
    }
    if (begun)
        fputs("</tbody></table></div></details>", h->p->f);
}

static void put_tables(const heatmap *h)
{
    int64_t tables = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < h->p->n; i++) {
            bool first = true;
            for (int64_t k = 0; k < i && first; k++)
                first = !same_table(&h->p->columns[k], &h->p->columns[i]);
            if (first && pass == 0)
                tables++;
            else if (first)
                put_table(h, i, tables == 1);
        }
}

assay_status parity_page_heatmaps(const parity_page *p)
{
    heatmap h = {.p = p};
    assay_status st = ASSAY_OK;
    int64_t local = 0;
    for (int64_t i = 0; i < parity_report_count(p->r); i++)
        local += parity_report_at(p->r, i)->check == PARITY_CHECK_LOCAL;
    if (local == 0)
        return parity_page_heat_checks(p);
    ASSAY_TRY_GOTO(parity_map_create(&h.keys), st, done);
    h.cells = calloc(2 * (size_t)local + 1, sizeof *h.cells);
    h.first = calloc(2 * (size_t)local + 1, sizeof *h.first);
    h.rows = calloc((size_t)local + 1, sizeof *h.rows);
    ASSAY_CHECK_GOTO(h.cells != NULL && h.first != NULL && h.rows != NULL, ASSAY_OUT_OF_MEMORY, st, done,
                     "report: heat map");
    fputs("<h2 id=heat>Worst error by layer and operation, as a share of its bound</h2><p class=dim>Check "
          "local: every "
          "operation computed again in double precision from the inputs that it read.  A cell is the worst "
          "of all "
          "cases, layouts, steps and ranks, beyond the rounding of the output itself.</p>",
          p->f);
    parity_put_heat_legend(p->f);
    ASSAY_TRY_GOTO(put_maps(&h), st, done);
    ASSAY_TRY_GOTO(add_rows(&h), st, done);
    ASSAY_TRY_GOTO(parity_page_heat_checks(p), st, done);
    fputs("<h2>Check local by case, instance, precision and layout</h2>", p->f);
    put_tables(&h);
done:
    free(h.cells);
    free(h.first);
    free(h.rows);
    parity_map_destroy(h.keys);
    return st;
}
