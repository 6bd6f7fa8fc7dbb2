/* index.html: heat maps of the checks beside local.  Rows are operations, of checks about tensors their families; columns are
 * the layers of each precision. */
#include "parity/report/page.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 400, MAX_COLUMNS = 128 };

typedef struct names {
    int n;
    char (*text)[ASSAY_NAME];
} names;

typedef struct check_map {
    names rows, columns;     /* column: "fp32|layer 0" */
    parity_heat_cell *cells; /* [MAX_ROWS][MAX_COLUMNS] */
    int64_t claims, failed, skipped;
    double worst;
    bool left_out;
} check_map;

static int number_of(names *x, const char *text, int most)
{
    for (int i = 0; i < x->n; i++)
        if (strcmp(x->text[i], text) == 0)
            return i;
    if (x->n == most)
        return -1;
    snprintf(x->text[x->n], ASSAY_NAME, "%s", text);
    return x->n++;
}

static void cut_end(char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    if (n > m && strcmp(text + n - m, end) == 0)
        text[n - m] = 0;
}

/* A tensor without its layer, and a parameter for all that is kept of it. */
static void family_of(const char *tensor, char out[ASSAY_NAME])
{
    static const char layers[] = "decoder.layers.";
    static const char *const states[] = {".main_grad", ".main_param", ".exp_avg", ".exp_avg_sq"};
    const char *from = tensor;
    if (strncmp(tensor, layers, sizeof layers - 1) == 0) {
        const char *dot = strchr(tensor + sizeof layers - 1, '.');
        from = dot != NULL ? dot + 1 : tensor;
    }
    snprintf(out, ASSAY_NAME, "%s", from);
    for (size_t k = 0; k < sizeof states / sizeof *states; k++)
        cut_end(out, states[k]);
}

static void layer_word(const char *name, char out[ASSAY_NAME])
{
    parity_layer_of(name, out);
    if (strncmp(out, "layer ", 6) != 0)
        snprintf(out, ASSAY_NAME, "other");
}

/* Row and column of a result. */
static void place_of(const parity_claim *x, char row[ASSAY_NAME], char column[ASSAY_NAME])
{
    char layer[ASSAY_NAME];
    switch (x->check) {
    case PARITY_CHECK_WHOLE:
        family_of(x->tensor, row);
        layer_word(x->tensor, layer);
        break;
    case PARITY_CHECK_BITWISE:
    case PARITY_CHECK_CHECKPOINT:
        snprintf(row, ASSAY_NAME, "%s", x->op);
        layer_word(x->tensor, layer);
        break;
    case PARITY_CHECK_ASSEMBLE:
        snprintf(row, ASSAY_NAME, "pieces");
        layer_word(x->tensor, layer);
        break;
    case PARITY_CHECK_ROUTING:
        snprintf(row, ASSAY_NAME, "%s %.64s", x->op, x->tensor);
        layer_word(x->instance, layer);
        break;
    default:
        snprintf(row, ASSAY_NAME, "%s", x->op[0] != 0 ? x->op : x->instance);
        layer_word(x->instance, layer);
    }
    snprintf(column, ASSAY_NAME, "%.16s|%.100s", x->precision, layer);
}

static void count(check_map *m, const parity_claim *x, int64_t i)
{
    char row[ASSAY_NAME], column[ASSAY_NAME];
    m->claims++;
    m->failed += x->verdict == PARITY_FAIL;
    m->skipped += x->verdict == PARITY_SKIP;
    if (x->verdict != PARITY_SKIP && !(x->share <= m->worst))
        m->worst = x->share;
    place_of(x, row, column);
    const int r = number_of(&m->rows, row, MAX_ROWS), c = number_of(&m->columns, column, MAX_COLUMNS);
    m->left_out = m->left_out || r < 0 || c < 0;
    if (r >= 0 && c >= 0)
        parity_heat_count(&m->cells[r * MAX_COLUMNS + c], x, i);
}

static int compare_columns(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    const char *p = strchr(x, '|'), *q = strchr(y, '|');
    const long i = strncmp(p, "|layer ", 7) == 0 ? strtol(p + 7, NULL, 10) : -1,
               j = strncmp(q, "|layer ", 7) == 0 ? strtol(q + 7, NULL, 10) : -1;
    const int precision = strncmp(x, y, (size_t)((p - x > q - y ? q - y : p - x) + 1));
    return precision != 0 ? precision : (i > j) - (i < j);
}

static void put_table(const parity_page *p, const check_map *m)
{
    FILE *f = p->f;
    char *order[MAX_COLUMNS];
    for (int c = 0; c < m->columns.n; c++)
        order[c] = m->columns.text[c];
    qsort(order, (size_t)m->columns.n, sizeof *order, compare_columns);
    fputs("<div class=wrap><table class=\"h map\"><thead><tr><th>", f);
    for (int c = 0; c < m->columns.n; c++) {
        const char *bar = strchr(order[c], '|');
        fputs("<th><span>", f);
        parity_put_escaped(f, bar + 1);
        fputs(", ", f);
        char precision[ASSAY_NAME];
        snprintf(precision, sizeof precision, "%.*s", (int)(bar - order[c]), order[c]);
        parity_put_escaped(f, precision);
        fputs("</span>", f);
    }
    fputs("<tbody>", f);
    for (int r = 0; r < m->rows.n; r++) {
        fputs("<tr\n><td>", f);
        parity_put_escaped(f, m->rows.text[r]);
        for (int c = 0; c < m->columns.n; c++)
            parity_put_heat_cell(p,
                                 &m->cells[r * MAX_COLUMNS + (order[c] - m->columns.text[0]) / ASSAY_NAME]);
    }
    fputs("</table></div>", f);
}

static void put_map(const parity_page *p, parity_check check, const check_map *m)
{
    FILE *f = p->f;
    fprintf(f, "<details%s><summary>%s: ", m->failed > 0 || check == PARITY_CHECK_WHOLE ? " open" : "",
            parity_check_name(check));
    if (m->failed > 0)
        fprintf(f, "<b class=bad>%lld of %lld claims fail</b>", (long long)m->failed, (long long)m->claims);
    else
        fprintf(f, "%lld claim%s, none fail%s", (long long)m->claims, m->claims == 1 ? "" : "s",
                m->claims == 1 ? "s" : "");
    if (m->skipped > 0)
        fprintf(f, ", <b class=skip>%lld not checked</b>", (long long)m->skipped);
    else if (m->failed == 0 && m->worst > 0.0)
        fprintf(f, ", worst %.3f of what is allowed", m->worst);
    fputs("</summary>", f);
    put_table(p, m);
    if (m->left_out)
        fprintf(f, "<p class=skip>More than %d rows or %d columns: results.jsonl has all.</p>", MAX_ROWS,
                MAX_COLUMNS);
    fputs("</details>", f);
}

static assay_status put_check(const parity_page *p, parity_check check)
{
    check_map m = {.rows.text = calloc(MAX_ROWS, ASSAY_NAME),
                   .columns.text = calloc(MAX_COLUMNS, ASSAY_NAME),
                   .cells = calloc((size_t)MAX_ROWS * MAX_COLUMNS, sizeof *m.cells)};
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(m.rows.text && m.columns.text && m.cells, ASSAY_OUT_OF_MEMORY, st, done,
                     "report: heat map");
    for (int64_t k = 0; k < (int64_t)MAX_ROWS * MAX_COLUMNS; k++)
        m.cells[k].worst = -1;
    for (int64_t i = 0; i < parity_report_count(p->r); i++)
        if (parity_report_at(p->r, i)->check == check)
            count(&m, parity_report_at(p->r, i), i);
    if (m.claims > 0)
        put_map(p, check, &m);
done:
    free(m.cells);
    free(m.columns.text);
    free(m.rows.text);
    return st;
}

assay_status parity_page_heat_checks(const parity_page *p)
{
    bool any = false;
    for (int64_t i = 0; i < parity_report_count(p->r) && !any; i++)
        any = parity_report_at(p->r, i)->check != PARITY_CHECK_LOCAL;
    if (!any)
        return ASSAY_OK;
    fputs("<h2 id=heat-checks>Every other check, by operation or tensor and layer</h2><p class=dim>A cell is "
          "the worst of "
          "all cases, layouts, steps and ranks; check whole: the distance to the unsharded reference as a "
          "share of what "
          "rounding can do.  Where there is no bound, what is asked for holds, or it does not.</p>",
          p->f);
    for (int rank = 0; rank < PARITY_CHECK_COUNT; rank++)
        for (int k = 0; k < PARITY_CHECK_COUNT; k++)
            if (parity_check_rank((parity_check)k) == rank && k != PARITY_CHECK_LOCAL)
                ASSAY_TRY(put_check(p, (parity_check)k));
    return ASSAY_OK;
}
