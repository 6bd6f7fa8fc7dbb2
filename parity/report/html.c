/* index.html: one self-contained page, no network, readable without its script. */
#include "core/base/file.h"
#include "parity/report/page.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A link to the first failure of the cell that the page shows. */
static void put_failed(const parity_page *p, int64_t column, int check, int64_t total)
{
    const parity_column *c = &p->columns[column];
    int64_t link = c->first;
    while (link < parity_report_count(p->r) && !(p->shown[link] && p->column_of[link] == column &&
                                                 (int)parity_report_at(p->r, link)->check == check &&
                                                 parity_report_at(p->r, link)->verdict == PARITY_FAIL))
        link++;
    fputs("<td class=bad>", p->f);
    if (link < parity_report_count(p->r))
        fprintf(p->f, "<a class=bad href=#f%lld>", (long long)link);
    fprintf(p->f, "%lld of %lld failed, %lld skipped", (long long)c->failed[check], (long long)total,
            (long long)c->skipped[check]);
    fputs(link < parity_report_count(p->r) ? "</a></td>" : "</td>", p->f);
}

static void put_matrix(const parity_page *p)
{
    FILE *f = p->f;
    fputs("<h2 id=matrix>Layouts and checks</h2><div class=wrap><table><thead><tr><th class=l>case</th><th "
          "class=l>precision</th>"
          "<th class=l>layout</th><th class=l>kernels</th><th class=l>engine</th><th class=l>verdict</th>",
          f);
    for (int k = 0; k < PARITY_CHECK_COUNT; k++)
        fprintf(f, "<th>%s</th>", parity_check_name((parity_check)k));
    fputs("<th>ambiguous routes</th></tr></thead><tbody>", f);
    for (int64_t i = 0; i < p->n; i++) {
        const parity_column *c = &p->columns[i];
        const char *words[] = {c->case_name, c->precision, c->layout, c->variants, c->engine};
        fputs("<tr>", f);
        for (int w = 0; w < 5; w++) {
            fputs("<td class=l>", f);
            parity_put_escaped(f, words[w]);
            fputs("</td>", f);
        }
        const parity_verdict verdict = parity_column_verdict(c);
        fprintf(f, "<td class=%s>%s</td>",
                verdict == PARITY_PASS   ? "ok"
                : verdict == PARITY_FAIL ? "bad"
                                         : "skip",
                parity_verdict_name(verdict));
        for (int k = 0; k < PARITY_CHECK_COUNT; k++) {
            const int64_t total = c->passed[k] + c->failed[k] + c->skipped[k];
            if (total == 0)
                fputs("<td class=dim>&middot;</td>", f);
            else if (c->failed[k] > 0)
                put_failed(p, i, k, total);
            else if (c->skipped[k] > 0)
                fprintf(f, "<td class=skip>%lld of %lld skipped</td>", (long long)c->skipped[k],
                        (long long)total);
            else
                fprintf(f, "<td class=ok>%lld <span class=dim>%.2f</span></td>", (long long)total,
                        c->worst[k]);
        }
        fprintf(f, "<td>%lld</td></tr>", (long long)c->ambiguous);
    }
    fputs("</tbody></table></div><p class=dim>A cell: number of results, then the worst error as a share of "
          "its "
          "allowance, at most 1; in the column local beyond the rounding of the output itself: 0 correctly "
          "rounded.</p>",
          f);
}

static assay_status put_page(parity_page *p, const char *title)
{
    fputs("<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport "
          "content=\"width=device-width,initial-scale=1\"><title>",
          p->f);
    parity_put_escaped(p->f, title);
    fputs("</title>", p->f);
    parity_put_style(p->f);
    fputs("</head><body>", p->f);
    parity_page_head(p, title);
    ASSAY_TRY(parity_page_failures(p));
    put_matrix(p);
    parity_put_axes(p->f, p->columns, p->n);
    ASSAY_TRY(parity_page_curves(p));
    ASSAY_TRY(parity_page_heatmaps(p));
    parity_page_layouts(p);
    parity_page_times(p);
    parity_page_script(p);
    fputs("</body></html>\n", p->f);
    return ASSAY_OK;
}

assay_status parity_report_html(const parity_report *r, const char *path, const char *title,
                                const json_t *facts)
{
    parity_column *columns = NULL;
    parity_page p = {.r = r, .facts = facts};
    char *text = NULL;
    size_t bytes = 0;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(parity_report_columns(r, &columns, &p.n));
    p.columns = columns;
    ASSAY_TRY_GOTO(parity_report_column_numbers(r, columns, p.n, &p.column_of), st, done);
    p.shown = calloc((size_t)parity_report_count(r) + 1, sizeof *p.shown);
    p.f = open_memstream(&text, &bytes);
    ASSAY_CHECK_GOTO(p.shown != NULL && p.f != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%s", path);
    st = put_page(&p, title);
    const bool ok = ferror(p.f) == 0;
    if ((fclose(p.f) != 0 || !ok) && st == ASSAY_OK)
        st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%s", path);
    p.f = NULL;
    if (st == ASSAY_OK)
        st = assay_write_file(path, text, bytes);
done:
    if (p.f != NULL)
        fclose(p.f);
    free(text);
    free(p.shown);
    free(p.column_of);
    free(columns);
    return st;
}
