/* junit.xml: one test suite per case, precision, layout and kernels; one test case per result. */
#include "core/base/file.h"
#include "core/base/log.h"
#include "parity/report/report_files.h"
#include <stdlib.h>
#include <string.h>

static void put_case(FILE *f, const parity_result *x)
{
    char place[PARITY_TEXT];
    parity_result_place(x, place, sizeof place);
    fputs("    <testcase classname=\"", f);
    parity_put_escaped(f, parity_check_name(x->check));
    fputs("\" name=\"", f);
    parity_put_escaped(f, place[0] != 0 ? place : parity_check_name(x->check));
    if (x->verdict == PARITY_PASS) {
        fputs("\"/>\n", f);
        return;
    }
    fputs("\">\n      ", f);
    fputs(x->verdict == PARITY_FAIL ? "<failure message=\"" : "<skipped message=\"", f);
    parity_put_escaped(f, x->message);
    fputs("\">", f);
    parity_put_escaped(f, x->diagnosis);
    fputs("\n", f);
    parity_put_escaped(f, x->reproduce);
    fputs(x->verdict == PARITY_FAIL ? "</failure>\n" : "</skipped>\n", f);
    fputs("    </testcase>\n", f);
}

/* The suite of column `number`; `of` has the column of each result. */
static void put_suite(FILE *f, const parity_report *r, const parity_column *c, int64_t number,
                      const int64_t *of)
{
    int64_t tests = 0, failed = 0, skipped = 0;
    for (int k = 0; k < PARITY_CHECK_COUNT; k++) {
        tests += c->passed[k] + c->failed[k] + c->skipped[k];
        failed += c->failed[k];
        skipped += c->skipped[k];
    }
    fputs("  <testsuite name=\"", f);
    parity_put_escaped(f, c->case_name);
    fputc(' ', f);
    parity_put_escaped(f, c->precision);
    fputc(' ', f);
    parity_put_escaped(f, c->layout);
    if (c->variants[0] != 0)
        fputc(' ', f);
    parity_put_escaped(f, c->variants);
    fprintf(f, "\" tests=\"%lld\" failures=\"%lld\" skipped=\"%lld\">\n", (long long)tests, (long long)failed,
            (long long)skipped);
    for (int64_t i = 0; i < parity_report_count(r); i++)
        if (of[i] == number)
            put_case(f, parity_report_at(r, i));
    fputs("  </testsuite>\n", f);
}

assay_status parity_report_junit(const parity_report *r, const char *path)
{
    parity_column *columns = NULL;
    int64_t n = 0, *of = NULL, passed, failed, skipped;
    char *text = NULL;
    size_t bytes = 0;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(parity_report_columns(r, &columns, &n));
    ASSAY_TRY_GOTO(parity_report_column_numbers(r, columns, n, &of), st, done);
    FILE *f = open_memstream(&text, &bytes);
    ASSAY_CHECK_GOTO(f != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%s", path);
    parity_report_totals(r, &passed, &failed, &skipped);
    fprintf(f,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"assay\" tests=\"%lld\" "
            "failures=\"%lld\" "
            "skipped=\"%lld\">\n",
            (long long)(passed + failed + skipped), (long long)failed, (long long)skipped);
    for (int64_t i = 0; i < n; i++)
        put_suite(f, r, &columns[i], i, of);
    fputs("</testsuites>\n", f);
    const bool ok = ferror(f) == 0;
    st = fclose(f) == 0 && ok ? assay_write_file(path, text, bytes)
                              : ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%s", path);
done:
    free(text);
    free(of);
    free(columns);
    return st;
}
