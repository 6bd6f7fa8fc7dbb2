/* index.html: one self-contained page, no network, no script needed.  Matrix of layouts and checks, failures
 * with their commands, and for each case the worst error in units of its bound by operation and layout. */
#include "core/base/file.h"
#include "parity/report/report_files.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CARDS_OPEN = 8, CARDS_MAX = 200 };

static const char STYLE[] =
    "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:84rem;padding:0 "
    "1rem;color:#1c2733;background:#fff}"
    "h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}"
    ".sum{font-size:1.05rem;margin:.4rem 0 "
    "1.2rem}.ok{color:#0a6b3d}.bad{color:#b3261e;font-weight:600}.skip{color:#7a5c00}"
    "table{border-collapse:collapse;font-size:13px}th,td{padding:.25rem "
    ".6rem;text-align:right;border-bottom:1px solid #e3e8ee;"
    "white-space:nowrap}th{font-weight:600;text-align:right}td:first-child,th:first-child,td.l,th.l{text-"
    "align:left}"
    "thead th{border-bottom:2px solid #9aa7b5;position:sticky;top:0;background:#fff}code,pre{font:12.5px/1.4 "
    "ui-monospace,monospace;"
    "background:#f4f6f9;border-radius:4px}code{padding:.1rem .3rem}pre{padding:.6rem "
    ".8rem;overflow-x:auto;margin:.3rem 0}"
    ".card{border:1px solid #e0b4b1;border-left:4px solid #b3261e;border-radius:4px;padding:.6rem "
    ".9rem;margin:.7rem 0}"
    ".card.s{border-color:#dccf9f;border-left-color:#a07a00}.dim{color:#687787}.wrap{overflow-x:auto}"
    ".h td:empty::after{content:'\\b7';color:#687787}.h td.x{background:#b3261e;color:#fff}"
    ".h td:first-child,.h.two td:nth-child(2){text-align:left}"
    ".a{background:rgba(40,110,190,.05)}.b{background:rgba(40,110,190,.1)}.c{background:rgba(40,110,190,.15)}"
    ".d{background:rgba(40,110,190,.2)}.e{background:rgba(40,110,190,.25)}.f{background:rgba(40,110,190,.3)}"
    ".g{background:rgba(40,110,190,.35)}td.h{background:rgba(40,110,190,.4)}.i{background:rgba(40,110,190,."
    "45)}"
    ".j{background:rgba(40,110,190,.5)}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem "
    "1rem;font-size:13.5px}dt{color:#687787}dd{margin:0}"
    "@media(prefers-color-scheme:dark){body{background:#12171d;color:#d8e0e8}thead "
    "th{background:#12171d}th,td{border-color:#29323c}"
    "code,pre{background:#1c242d}.ok{color:#5fd39b}.bad{color:#ff8a80}.skip{color:#e0c060}}";

/* Background of a ratio: white at 0, blue towards 1 in ten steps, red above (and for NaN).  Tens of thousands of these make the
 * page: a class of one letter instead of a style, and no end tags (HTML needs none). */
void parity_put_ratio_cell(FILE *f, double ratio, bool have)
{
    if (!have)
        fputs("<td>", f); /* the style sheet draws the dot */
    else if (!(ratio <= 1))
        fprintf(f, "<td class=x>%.3g", ratio);
    else if (ratio == 0.0)
        fputs("<td>0", f);
    else
        fprintf(f, "<td class=%c>%.3f", 'a' + (ratio < 1 ? (int)(ratio * 10) : 9), ratio);
}

static void put_matrix(FILE *f, const parity_column *columns, int64_t n)
{
    fputs("<h2>Layouts and checks</h2><div class=wrap><table><thead><tr><th class=l>case</th><th "
          "class=l>precision</th>"
          "<th class=l>layout</th><th class=l>kernels</th><th class=l>engine</th><th class=l>verdict</th>",
          f);
    for (int k = 0; k < PARITY_CHECK_COUNT; k++)
        fprintf(f, "<th>%s</th>", parity_check_name((parity_check)k));
    fputs("<th>ambiguous routes</th></tr></thead><tbody>", f);
    for (int64_t i = 0; i < n; i++) {
        const parity_column *c = &columns[i];
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
                fprintf(f, "<td class=bad>%lld of %lld failed, %lld skipped</td>", (long long)c->failed[k],
                        (long long)total, (long long)c->skipped[k]);
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

static void put_failures(FILE *f, const parity_report *r)
{
    int64_t shown = 0;
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        const parity_result *x = parity_report_at(r, i);
        char place[PARITY_TEXT];
        if (x->verdict == PARITY_PASS || shown >= CARDS_MAX)
            continue;
        if (shown == 0)
            fputs("<h2>What is wrong, or was not checked</h2><p class=dim>In order of execution within each "
                  "check: the first "
                  "operation that fails is the culprit, what follows usually inherits from it.</p>",
                  f);
        if (shown == CARDS_OPEN)
            fputs("<details><summary>more</summary>", f);
        shown++;
        parity_result_place(x, place, sizeof place);
        fprintf(f, "<div class=\"card%s\"><b>%s</b> ", x->verdict == PARITY_SKIP ? " s" : "",
                parity_verdict_name(x->verdict));
        parity_put_escaped(f, x->case_name);
        fputc(' ', f);
        parity_put_escaped(f, x->precision);
        fputc(' ', f);
        parity_put_escaped(f, x->layout);
        fprintf(f, ", %s: <code>", parity_check_name(x->check));
        parity_put_escaped(f, place);
        fputs("</code><br>", f);
        parity_put_escaped(f, x->message);
        if (x->index_ndim > 0 && x->is_distance)
            fprintf(f, "<br>distance %.3g, at most %.3g allowed: %.3g times the allowance", x->found,
                    x->allowance, x->ratio);
        else if (x->index_ndim > 0)
            fprintf(f,
                    "<br>found %.9g, expected %.9g, allowance %.3g: %.3g times the allowance; %lld of %lld "
                    "elements",
                    x->found, x->expected, x->allowance, x->ratio, (long long)x->n_bad, (long long)x->count);
        if (x->diagnosis[0] != 0) {
            fputs("<br>Looks like: ", f);
            parity_put_escaped(f, x->diagnosis);
        }
        if (x->reproduce[0] != 0) {
            fputs("<pre>", f);
            parity_put_escaped(f, x->reproduce);
            fputs("</pre>", f);
        }
        fputs("</div>", f);
    }
    if (shown > CARDS_OPEN)
        fputs("</details>", f);
}

static void put_facts(FILE *f, const json_t *facts)
{
    const char *key;
    json_t *value;
    fputs("<dl>", f);
    json_object_foreach((json_t *)(uintptr_t)facts, key, value)
    {
        char *text =
            json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        fputs("<dt>", f);
        parity_put_escaped(f, key);
        fputs("</dt><dd>", f);
        parity_put_escaped(f, text != NULL ? text : json_is_string(value) ? json_string_value(value) : "");
        fputs("</dd>", f);
        free(text);
    }
    fputs("</dl>", f);
}

assay_status parity_report_html(const parity_report *r, const char *path, const char *title,
                                const json_t *facts)
{
    parity_column *columns = NULL;
    int64_t n = 0, passed, failed, skipped;
    char *text = NULL;
    size_t bytes = 0;
    ASSAY_TRY(parity_report_columns(r, &columns, &n));
    FILE *f = open_memstream(&text, &bytes);
    if (f == NULL) {
        free(columns);
        ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "%s", path);
    }
    parity_report_totals(r, &passed, &failed, &skipped);
    fputs("<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport "
          "content=\"width=device-width\"><title>",
          f);
    parity_put_escaped(f, title);
    fprintf(f, "</title><style>%s</style></head><body><h1>", STYLE);
    parity_put_escaped(f, title);
    fprintf(f,
            "</h1><p class=sum><span class=ok>%lld passed</span>, <span class=%s>%lld failed</span>, <span "
            "class=%s>%lld "
            "skipped</span></p>",
            (long long)passed, failed > 0 ? "bad" : "dim", (long long)failed, skipped > 0 ? "skip" : "dim",
            (long long)skipped);
    if (facts != NULL)
        put_facts(f, facts);
    put_failures(f, r);
    put_matrix(f, columns, n);
    parity_put_axes(f, columns, n);
    const assay_status drawn = parity_put_heatmaps(f, r, columns, n);
    fputs("</body></html>\n", f);
    const bool ok = ferror(f) == 0;
    free(columns);
    assay_status st = fclose(f) == 0 && ok ? drawn : ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%s", path);
    if (st == ASSAY_OK)
        st = assay_write_file(path, text, bytes);
    free(text);
    return st;
}
