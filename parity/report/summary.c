/* A short page in Markdown for the pages of CI: verdict, checks by precision, the first failures with the commands that repeat
 * them. */
#include "parity/report/report_files.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 5, MAX_PRECISIONS = 8 };

/* Markup of GitHub's and GitLab's Markdown, and of HTML in it, loses its meaning; a bar would end the cell of a table. */
static void put_text(FILE *f, const char *s)
{
    for (; *s != 0; s++) {
        if (*s == '<')
            fputs("&lt;", f);
        else if (*s == '&')
            fputs("&amp;", f);
        else if (*s == '@') /* names nobody */
            fputs("&#64;", f);
        else if (strchr("\\`*_[]#|~>", *s) != NULL)
            fprintf(f, "\\%c", *s);
        else
            fputc(*s, f);
    }
}

/* A block of code; its fence is longer than any in the text. */
static void put_code(FILE *f, const char *s)
{
    int longest = 2, run = 0;
    for (const char *c = s; *c != 0; c++) {
        run = *c == '`' ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    for (int side = 0; side < 2; side++) {
        for (int k = 0; k <= longest; k++)
            fputc('`', f);
        fprintf(f, "%s\n", side == 0 ? "sh" : "");
        if (side == 0)
            fprintf(f, "%s\n", s);
    }
}

typedef struct cell {
    int64_t passed, failed, skipped;
    double worst;
} cell;

typedef struct page {
    const char *precisions[MAX_PRECISIONS];
    int n;
    cell cells[PARITY_CHECK_COUNT][MAX_PRECISIONS];
    int64_t verdicts[3]; /* of the columns */
} page;

static void add_cell(cell *to, const parity_column *c, int k)
{
    to->passed += c->passed[k];
    to->failed += c->failed[k];
    to->skipped += c->skipped[k];
    if (!isnan(to->worst) && !(c->worst[k] <= to->worst)) /* a NaN is the worst and stays it */
        to->worst = c->worst[k];
}

static assay_status gather(page *p, const parity_column *columns, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int at = 0;
        while (at < p->n && strcmp(p->precisions[at], columns[i].precision) != 0)
            at++;
        ASSAY_CHECK(at < MAX_PRECISIONS, ASSAY_LIMIT, "summary: more than %d precisions", MAX_PRECISIONS);
        if (at == p->n)
            p->precisions[p->n++] = columns[i].precision;
        for (int k = 0; k < PARITY_CHECK_COUNT; k++)
            add_cell(&p->cells[k][at], &columns[i], k);
        p->verdicts[parity_column_verdict(&columns[i])]++;
    }
    return ASSAY_OK;
}

static void put_cell(FILE *f, const cell *c, bool bounded)
{
    if (c->passed + c->failed + c->skipped == 0) {
        fputs(" | |", f);
        return;
    }
    fprintf(f, " %lld passed", (long long)c->passed);
    if (c->failed > 0)
        fprintf(f, ", **%lld failed**", (long long)c->failed);
    if (c->skipped > 0)
        fprintf(f, ", *%lld skipped*", (long long)c->skipped);
    if (bounded && c->passed + c->failed > 0)
        fprintf(f, " | %s%.3g%s |", c->worst <= 1 ? "" : "**", c->worst, c->worst <= 1 ? "" : "**");
    else
        fputs(" | |", f);
}

static void put_checks(FILE *f, const page *p)
{
    fputs("\n| check |", f);
    for (int i = 0; i < p->n; i++) {
        fputc(' ', f);
        put_text(f, p->precisions[i]);
        fputs(" | worst share of bound |", f);
    }
    fputs("\n|---|", f);
    for (int i = 0; i < p->n; i++)
        fputs("---|--:|", f);
    for (int k = 0; k < PARITY_CHECK_COUNT; k++) {
        int64_t claims = 0;
        for (int i = 0; i < p->n; i++)
            claims += p->cells[k][i].passed + p->cells[k][i].failed + p->cells[k][i].skipped;
        if (claims == 0)
            continue;
        fprintf(f, "\n| %s |", parity_check_name((parity_check)k));
        for (int i = 0; i < p->n; i++)
            put_cell(f, &p->cells[k][i], k == PARITY_CHECK_LOCAL || k == PARITY_CHECK_WHOLE);
    }
    fputc('\n', f);
}

static void put_claim(FILE *f, const parity_claim *x)
{
    char place[PARITY_TEXT];
    const char *const words[] = {x->case_name, x->precision, x->layout, x->variants};
    parity_claim_place(x, place, sizeof place);
    fprintf(f, "\n**%s**", parity_verdict_name(x->verdict));
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
        fputs(words[k][0] != 0 ? " " : "", f);
        put_text(f, words[k]);
    }
    fprintf(f, ", %s: ", parity_check_name(x->check));
    put_text(f, place);
    fputs(". ", f);
    put_text(f, x->message);
    if (x->diagnosis[0] != 0) {
        fputs(" Looks like: ", f);
        put_text(f, x->diagnosis);
    }
    fputs("\n\n", f);
    if (x->reproduce[0] != 0)
        put_code(f, x->reproduce);
}

/* The first claims with a verdict, one of a task: what follows there usually inherits from it. */
static void put_first(FILE *f, const parity_report *r, parity_verdict v, int64_t all)
{
    parity_column shown[SHOWN];
    int64_t n = 0, k;
    for (int64_t i = 0; i < parity_report_count(r) && n < SHOWN; i++) {
        const parity_claim *x = parity_report_at(r, i);
        if (x->verdict != v)
            continue;
        for (k = 0; k < n && !parity_column_holds(&shown[k], x); k++)
            continue;
        if (k < n)
            continue;
        if (n == 0)
            fprintf(f, "\n### %s\n", v == PARITY_FAIL ? "First failures" : "First that was not checked");
        shown[n++] = (parity_column){.case_name = x->case_name,
                                     .precision = x->precision,
                                     .layout = x->layout,
                                     .variants = x->variants};
        put_claim(f, x);
    }
    if (all > n)
        fprintf(f, "\n%lld more are in results.jsonl.\n", (long long)(all - n));
}

static void put_facts(FILE *f, const json_t *facts)
{
    const char *key;
    json_t *value;
    fputs("\n<details><summary>This run</summary>\n\n| | |\n|---|---|\n", f);
    json_object_foreach((json_t *)(uintptr_t)facts, key, value)
    {
        char *text = json_is_string(value) || json_is_object(value)
                         ? NULL
                         : json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(4));
        if (!json_is_object(value)) {
            fputs("| ", f);
            put_text(f, key);
            fputs(" | ", f);
            put_text(f, text != NULL ? text : json_is_string(value) ? json_string_value(value) : "");
            fputs(" |\n", f);
        }
        free(text);
    }
    fputs("\n</details>\n", f);
}

assay_status parity_report_summary(const parity_report *r, const json_t *facts, FILE *f)
{
    parity_column *columns = NULL;
    page p = {0};
    int64_t n = 0, passed, failed, skipped;
    ASSAY_TRY(parity_report_columns(r, &columns, &n));
    const assay_status st = gather(&p, columns, n);
    parity_report_totals(r, &passed, &failed, &skipped);
    if (st == ASSAY_OK) {
        fprintf(f, "## assay: %s\n\n%lld claims passed, %lld failed, %lld skipped; ",
                failed > 0                   ? "FAIL"
                : skipped > 0 || passed == 0 ? "not everything was checked"
                                             : "pass",
                (long long)passed, (long long)failed, (long long)skipped);
        fprintf(
            f,
            "of %lld combinations of case, precision, layout and kernels %lld pass, %lld fail, %lld were not "
            "checked whole",
            (long long)n, (long long)p.verdicts[PARITY_PASS], (long long)p.verdicts[PARITY_FAIL],
            (long long)p.verdicts[PARITY_SKIP]);
        const json_t *wall = json_object_get(facts, "wall time, s");
        if (json_is_number(wall))
            fprintf(f, "; %.1f s", json_number_value(wall));
        fputs(".\n", f);
        put_checks(f, &p);
        if (failed > 0)
            put_first(f, r, PARITY_FAIL, failed);
        if (skipped > 0)
            put_first(f, r, PARITY_SKIP, skipped);
        if (facts != NULL)
            put_facts(f, facts);
    }
    free(columns);
    return st;
}
