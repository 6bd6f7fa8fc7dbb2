/* junit.xml: one test suite per case, precision, layout and kernels.  A check whose operations all hold is one test case that
 * lists them with their claims (one each would be 26 thousand for the default run); an operation of which a claim fails, or was not checked, is a test case of its own; what did not run or could not be checked is an error.  The name
 * of the suite is the class of its test cases: GitLab and Jenkins tell test cases apart by class and name alone. */
#include "core/base/file.h"
#include "core/base/log.h"
#include "parity/report/report_files.h"
#include <stdlib.h>
#include <string.h>

enum { DETAILS = 200 }; /* failing test cases with their claims in words; later ones tell how many */

typedef struct writer {
    FILE *f;
    const parity_report *r;
    const json_t *facts, *times; /* of the run; of the task at hand */
    const parity_column *c;
    int64_t detailed;
} writer;

typedef struct counts {
    int64_t tests, failed, errors, skipped;
} counts;

static void put_class(writer *w)
{
    const char *const words[] = {w->c->case_name, w->c->precision, w->c->layout, w->c->variants};
    bool first = true;
    for (int k = 0; k < 4; k++)
        if (words[k][0] != 0) {
            fputs(first ? "" : ".", w->f);
            parity_put_escaped(w->f, words[k]);
            first = false;
        }
}

/* ` time="0.12"` of a check of this task, where it was measured. */
static void put_time(FILE *f, const json_t *seconds)
{
    if (json_is_number(seconds))
        fprintf(f, " time=\"%.3f\"", json_number_value(seconds));
}

static const json_t *check_seconds(const writer *w, parity_check check)
{
    return json_object_get(json_object_get(w->times, "check_s"), parity_check_name(check));
}

static void open_case(writer *w, const parity_group *g, const char *op, const json_t *seconds)
{
    fputs("<testcase classname=\"", w->f);
    put_class(w);
    fprintf(w->f, "\" name=\"%s%s", parity_check_name(g->check), op[0] != 0 ? " " : "");
    parity_put_escaped(w->f, op);
    fputc('"', w->f);
    put_time(w->f, seconds);
    fputs(">\n", w->f);
}

static bool holds(const parity_group *g)
{
    return g->passed > 0 && g->failed == 0 && g->skipped == 0;
}

/* The operations of a check that hold: "20 claims hold: linear_fwd 12, rope_fwd 8". */
static void put_passed(writer *w, const parity_group *g, int64_t n, const json_t *seconds)
{
    int64_t claims = 0;
    bool first = true;
    for (int64_t i = 0; i < n; i++)
        if (g[i].check == g->check && holds(&g[i]))
            claims += g[i].passed;
    open_case(w, g, "", seconds);
    fprintf(w->f, "<system-out>%lld claims hold: ", (long long)claims);
    for (int64_t i = 0; i < n; i++) {
        if (g[i].check != g->check || !holds(&g[i]))
            continue;
        fputs(first ? "" : ", ", w->f);
        parity_put_escaped(w->f, g[i].op);
        fprintf(w->f, "%s%lld", g[i].op[0] != 0 ? " " : "", (long long)g[i].passed);
        first = false;
    }
    fputs("</system-out>\n</testcase>\n", w->f);
}

/* "3 of 12 claims fail, 2 were not checked". */
static void put_counts(FILE *f, const parity_group *g)
{
    const long long all = (long long)(g->passed + g->failed + g->skipped);
    if (g->failed > 0)
        fprintf(f, "%lld of %lld claims fail", (long long)g->failed, all);
    if (g->skipped > 0)
        fprintf(f, "%s%lld%s were not checked", g->failed > 0 ? ", " : "", (long long)g->skipped,
                g->failed > 0 ? "" : " claims");
    if (g->skipped > 0 && g->failed == 0 && g->skipped != all)
        fprintf(f, ", %lld hold", (long long)g->passed);
}

static void put_claim(FILE *f, const parity_claim *x)
{
    char place[PARITY_TEXT];
    parity_claim_place(x, place, sizeof place);
    parity_put_escaped(f, place[0] != 0 ? place : parity_check_name(x->check));
    fputs(": ", f);
    parity_put_escaped(f, x->message);
    if (x->diagnosis[0] != 0) {
        fputs("\nlooks like: ", f);
        parity_put_escaped(f, x->diagnosis);
    }
    fputc('\n', f);
}

static void put_failed(writer *w, const parity_group *g, const json_t *seconds)
{
    const parity_claim *first = parity_report_at(w->r, g->first_failed[0]);
    const int64_t shown = g->failed < PARITY_GROUP_SHOWN ? g->failed : PARITY_GROUP_SHOWN;
    open_case(w, g, g->op, seconds);
    fprintf(w->f, "<failure type=\"%s\" message=\"", parity_check_name(g->check));
    put_counts(w->f, g);
    if (w->detailed++ >= DETAILS) {
        fputs("; results.jsonl has them\"/>\n</testcase>\n", w->f);
        return;
    }
    fputs(": ", w->f);
    parity_put_escaped(w->f, first->message);
    fputs("\">", w->f);
    for (int64_t i = 0; i < shown; i++)
        put_claim(w->f, parity_report_at(w->r, g->first_failed[i]));
    if (g->failed > shown)
        fprintf(w->f, "and %lld more: results.jsonl has them\n", (long long)(g->failed - shown));
    if (first->reproduce[0] != 0) {
        fputs("again with: ", w->f);
        parity_put_escaped(w->f, first->reproduce);
        fputc('\n', w->f);
    }
    fputs("</failure>\n</testcase>\n", w->f);
}

/* What went wrong is an error: a plain skip is green everywhere. */
static void put_skipped(writer *w, const parity_group *g, const json_t *seconds)
{
    open_case(w, g, g->op, seconds);
    if (g->errors > 0)
        fprintf(w->f, "<error type=\"%s\" message=\"", parity_check_name(g->check));
    else
        fputs("<skipped message=\"", w->f);
    put_counts(w->f, g);
    fputs(": ", w->f);
    parity_put_escaped(w->f,
                       parity_report_at(w->r, g->errors > 0 ? g->first_error : g->first_skipped)->message);
    fputs("\"/>\n</testcase>\n", w->f);
}

static void put_property(FILE *f, const char *name, const char *value)
{
    if (value == NULL || value[0] == 0)
        return;
    fprintf(f, "<property name=\"%s\" value=\"", name);
    parity_put_escaped(f, value);
    fputs("\"/>\n", f);
}

static void put_properties(writer *w)
{
    static const char *const known[] = {"train_s", "engine_s", "judge_s"};
    char text[200] = "";
    const json_t *seed = json_object_get(w->times, "seed");
    fputs("<properties>\n", w->f);
    put_property(w->f, "engine", w->c->engine);
    put_property(w->f, "tier", w->c->tier);
    put_property(w->f, "version", json_string_value(json_object_get(w->facts, "version")));
    put_property(w->f, "run", parity_report_origin(w->r)->run);
    if (json_is_integer(seed)) {
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(seed));
        put_property(w->f, "seed", text);
    }
    text[0] = 0;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        const json_t *seconds = json_object_get(w->times, known[k]);
        if (json_is_number(seconds))
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%.*s %.3f", text[0] != 0 ? ", " : "",
                     (int)strlen(known[k]) - 2, known[k], json_number_value(seconds));
    }
    put_property(w->f, "seconds", text);
    int64_t claims[3] = {0};
    for (int k = 0; k < PARITY_CHECK_COUNT; k++) {
        claims[0] += w->c->passed[k];
        claims[1] += w->c->failed[k];
        claims[2] += w->c->skipped[k];
    }
    snprintf(text, sizeof text, "%lld passed, %lld failed, %lld skipped", (long long)claims[0],
             (long long)claims[1], (long long)claims[2]);
    put_property(w->f, "claims", text);
    put_property(w->f, "reproduce", parity_report_at(w->r, w->c->first)->reproduce);
    fputs("</properties>\n", w->f);
}

/* Test cases of one suite: n groups of its column. */
static counts count_cases(const parity_group *g, int64_t n)
{
    counts c = {0};
    bool passed[PARITY_CHECK_COUNT] = {false};
    for (int64_t i = 0; i < n; i++) {
        if (holds(&g[i])) {
            c.tests += !passed[g[i].check];
            passed[g[i].check] = true;
        } else {
            c.tests++;
            c.failed += g[i].failed > 0;
            c.errors += g[i].failed == 0 && g[i].errors > 0;
            c.skipped += g[i].failed == 0 && g[i].errors == 0;
        }
    }
    return c;
}

static void put_suite(writer *w, const parity_group *g, int64_t n)
{
    const counts c = count_cases(g, n);
    fputs("<testsuite name=\"", w->f);
    put_class(w);
    fprintf(w->f, "\" tests=\"%lld\" failures=\"%lld\" errors=\"%lld\" skipped=\"%lld\"", (long long)c.tests,
            (long long)c.failed, (long long)c.errors, (long long)c.skipped);
    put_time(w->f, json_object_get(w->times, "task_s"));
    fputs(">\n", w->f);
    put_properties(w);
    /* The seconds of a check are told once, at its first test case. */
    bool told[PARITY_CHECK_COUNT] = {false}, passed[PARITY_CHECK_COUNT] = {false};
    for (int64_t i = 0; i < n; i++) {
        const parity_check k = g[i].check;
        if (holds(&g[i]) && passed[k])
            continue;
        const json_t *seconds = told[k] ? NULL : check_seconds(w, k);
        told[k] = true;
        if (holds(&g[i])) {
            passed[k] = true;
            put_passed(w, &g[i], n - i, seconds);
        } else if (g[i].failed > 0) {
            put_failed(w, &g[i], seconds);
        } else {
            put_skipped(w, &g[i], seconds);
        }
    }
    fputs("</testsuite>\n", w->f);
}

/* Groups [first, return) are those of one column. */
static int64_t column_end(const parity_groups *g, int64_t first)
{
    int64_t end = first;
    while (end < g->n && g->of[end].column == g->of[first].column)
        end++;
    return end;
}

static void put_all(writer *w, const parity_groups *g, const parity_column *columns)
{
    char label[PARITY_TASK_LABEL];
    counts all = {0};
    for (int64_t i = 0, end; i < g->n; i = end) {
        end = column_end(g, i);
        const counts c = count_cases(g->of + i, end - i);
        all.tests += c.tests, all.failed += c.failed, all.errors += c.errors;
    }
    fprintf(w->f,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"assay\" tests=\"%lld\" "
            "failures=\"%lld\" errors=\"%lld\"",
            (long long)all.tests, (long long)all.failed, (long long)all.errors);
    put_time(w->f, json_object_get(w->facts, "wall time, s"));
    fputs(">\n", w->f);
    for (int64_t i = 0, end; i < g->n; i = end) {
        end = column_end(g, i);
        w->c = &columns[g->of[i].column];
        parity_task_label(w->c->case_name, w->c->precision, w->c->layout, w->c->variants, label);
        w->times = json_object_get(json_object_get(w->facts, "times"), label);
        put_suite(w, g->of + i, end - i);
    }
    fputs("</testsuites>\n", w->f);
}

assay_status parity_report_junit(const parity_report *r, const char *path, const json_t *facts)
{
    parity_column *columns = NULL;
    parity_groups groups = {0};
    int64_t n = 0, *of = NULL;
    char *text = NULL;
    size_t bytes = 0;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(parity_report_columns(r, &columns, &n));
    ASSAY_TRY_GOTO(parity_report_column_numbers(r, columns, n, &of), st, done);
    ASSAY_TRY_GOTO(parity_groups_make(&groups, r, of), st, done);
    writer w = {.f = open_memstream(&text, &bytes), .r = r, .facts = facts};
    ASSAY_CHECK_GOTO(w.f != NULL, ASSAY_OUT_OF_MEMORY, st, done, "%s", path);
    put_all(&w, &groups, columns);
    const bool ok = ferror(w.f) == 0;
    st = fclose(w.f) == 0 && ok ? assay_write_file(path, text, bytes)
                                : ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%s", path);
done:
    free(text);
    parity_groups_free(&groups);
    free(of);
    free(columns);
    return st;
}
