/* The table on the terminal: one row per case, precision, layout and kernels with its verdict; one column per check with
 * the worst error as a share of its allowance; then every failure with the command that reproduces it. */
#include "parity/report/page.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_SHOWN_PER_CHECK = 4 };

/* Red and yellow for people only: NO_COLOR (no-color.org) and files get plain text. */
static bool in_color(FILE *out)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(out)) == 1 && (no == NULL || no[0] == '\0') &&
           (term == NULL || strcmp(term, "dumb") != 0);
}

static void print_colored(FILE *out, const char *text, int width, parity_verdict v)
{
    const bool colored = v != PARITY_PASS && in_color(out);
    fprintf(out, "%s%*s%s",
            !colored           ? ""
            : v == PARITY_FAIL ? "\033[1;31m"
                               : "\033[33m",
            width, text, colored ? "\033[0m" : "");
}

static void print_cell(FILE *out, const parity_column *c, int k)
{
    char text[32];
    const int64_t total = c->passed[k] + c->failed[k] + c->skipped[k];
    if (total == 0)
        snprintf(text, sizeof text, "-");
    else if (c->failed[k] > 0 && c->skipped[k] > 0)
        snprintf(text, sizeof text, "FAIL %lld s%lld", (long long)c->failed[k], (long long)c->skipped[k]);
    else if (c->failed[k] > 0)
        snprintf(text, sizeof text, "FAIL %lld", (long long)c->failed[k]);
    else if (c->skipped[k] > 0)
        snprintf(text, sizeof text, "skip %lld/%lld", (long long)c->skipped[k], (long long)total);
    else if (k == PARITY_CHECK_LOCAL || k == PARITY_CHECK_WHOLE)
        snprintf(text, sizeof text, "%lld %.2f", (long long)c->passed[k], c->worst[k]);
    else
        snprintf(text, sizeof text, "%lld", (long long)c->passed[k]);
    fputc(' ', out);
    print_colored(out, text, 11,
                  c->failed[k] > 0    ? PARITY_FAIL
                  : c->skipped[k] > 0 ? PARITY_SKIP
                                      : PARITY_PASS);
}

/* What the cells say, for whoever sees the table for the first time. */
static void print_legend(FILE *out)
{
    fputs("a cell: claims that hold, or FAIL and how many do not, or skip and how many were not checked; -: "
          "not asked\n"
          "then the worst error as a share of its allowance, above 1 FAIL; local: beyond the rounding of the "
          "output "
          "itself, 0.00 correctly rounded\n",
          out);
}

static void print_failure(const parity_claim *x, FILE *out)
{
    char place[PARITY_TEXT];
    parity_claim_place(x, place, sizeof place);
    fputc('\n', out);
    print_colored(out, parity_verdict_name(x->verdict), 0, x->verdict);
    fprintf(out, "  %s %s %s%s%s, %s: %s\n", x->case_name, x->precision, x->layout,
            x->variants[0] != 0 ? " " : "", x->variants, parity_check_name(x->check), place);
    if (x->message[0] != 0)
        fprintf(out, "      %s\n", x->message);
    if (x->diagnosis[0] != 0)
        fprintf(out, "      looks like: %s\n", x->diagnosis);
    if (x->reproduce[0] != 0)
        fprintf(out, "      again with: %s\n", x->reproduce);
}

/* Checks that name an operation come before those that see only its consequences; no check may crowd out the
 * others. */
static void print_failures(const parity_report *r, FILE *out, const char *results)
{
    int64_t hidden = 0, passed, failed, skipped;
    parity_report_totals(r, &passed, &failed, &skipped);
    for (int k = 0; k < PARITY_CHECK_COUNT && failed + skipped > 0; k++) {
        int64_t shown = 0;
        for (int64_t i = 0; i < parity_report_count(r); i++) {
            const parity_claim *x = parity_report_at(r, i);
            if (x->verdict == PARITY_PASS || parity_check_rank(x->check) != k)
                continue;
            if (shown++ < MAX_SHOWN_PER_CHECK)
                print_failure(x, out);
            else
                hidden++;
        }
    }
    if (hidden > 0 && results != NULL)
        fprintf(out, "\n%lld more are in %s\n", (long long)hidden, results);
    else if (hidden > 0)
        fprintf(out, "\n%lld more are not shown; --out FILE writes all of them\n", (long long)hidden);
}

static int wider(int width, const char *text)
{
    const int n = (int)strlen(text);
    return n > width ? n : width;
}

void parity_report_table(const parity_report *r, FILE *out, const char *results)
{
    parity_column *columns = NULL;
    int64_t n = 0;
    if (parity_report_columns(r, &columns, &n) != ASSAY_OK) {
        assay_error_print(out, "assay", 0);
        return;
    }
    int wide[3] = {4, 6, 7}; /* as the widest of case, layout, kernels, and their headings */
    for (int64_t i = 0; i < n; i++) {
        wide[0] = wider(wide[0], columns[i].case_name);
        wide[1] = wider(wide[1], columns[i].layout);
        wide[2] = wider(wide[2], columns[i].variants);
    }
    fprintf(out, "\n%-4s %-*s %-5s %-*s %-*s", "", wide[0], "case", "prec", wide[1], "layout", wide[2],
            "kernels");
    for (int k = 0; k < PARITY_CHECK_COUNT; k++)
        fprintf(out, " %11s", parity_check_name((parity_check)k));
    fputc('\n', out);
    for (int64_t i = 0; i < n; i++) {
        const parity_verdict verdict = parity_column_verdict(&columns[i]);
        print_colored(out, parity_verdict_name(verdict), -4, verdict);
        fprintf(out, " %-*s %-5s %-*s %-*s", wide[0], columns[i].case_name, columns[i].precision, wide[1],
                columns[i].layout, wide[2], columns[i].variants);
        for (int k = 0; k < PARITY_CHECK_COUNT; k++)
            print_cell(out, &columns[i], k);
        fputc('\n', out);
    }
    print_legend(out);
    free(columns);
    print_failures(r, out, results);
}
