/* What a trial found, as text and as a page. */
#include "parity/certify/throughput.h"

#include "core/base/file.h"
#include "parity/report/report_files.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "-";
}

static const char *verdict_of(const certify_tally *t)
{
    return t->bad > 0 ? "FAIL" : t->calls > 0 ? "pass" : "-";
}

static void print_trials(const certify_result *r, FILE *out)
{
    fprintf(out, "\n  %-10s %10s  %s\n", "trial", "checks", "claim");
    for (int t = 0; t < CERTIFY_TRIALS; t++) {
        const certify_tally *tally = &r->board.trial[t];
        fprintf(out, "%-4s %-10s %8lld  %s\n", verdict_of(tally), certify_trial_name((certify_trial)t),
                (long long)tally->calls, certify_trial_claim((certify_trial)t));
        if (tally->bad > 0)
            fprintf(out, "       %lld time%s; first: %s\n", (long long)tally->bad, tally->bad == 1 ? "" : "s",
                    tally->first);
    }
}

static void describe(json_t *arithmetic, char out[160])
{
    assay_arith a;
    if (assay_arith_from_json(arithmetic, "arith", &a) == ASSAY_OK)
        assay_arith_describe(&a, out, 160);
    else
        snprintf(out, 160, "-");
    assay_error_clear();
}

/* What the engine's calls declared of an output: a line for each variant and arithmetic. */
static void print_declared(const certify_result *r, const certify_output *o, FILE *out)
{
    char arith[160];
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(json_object_get(r->subject, "description"), "declared"), i, one)
    {
        if (strcmp(text_of(one, "output"), o->slot) != 0 ||
            strcmp(text_of(one, "activations"), o->dtype) != 0)
            continue;
        describe(json_object_get(one, "arithmetic"), arith);
        fprintf(out, "  %-11s %-5s %8lld calls of %s; %s\n", "", "",
                (long long)json_integer_value(json_object_get(one, "calls")), text_of(one, "variant"), arith);
    }
}

static void print_outputs(const certify_result *r, FILE *out)
{
    char arith[160];
    const json_t *declared = json_object_get(json_object_get(r->subject, "description"), "arithmetic");
    fprintf(out, "\n  output      act   elements   worst  beyond rounding  where, declared arithmetic\n");
    for (int i = 0; i < r->n_outputs; i++) {
        const certify_output *o = &r->output[i];
        describe(json_object_get(declared, o->slot), arith);
        fprintf(out, "  %-11s %-5s %8lld  %6.3f  %15.3f  %s%s%s\n", o->slot, o->dtype, (long long)o->elements,
                o->ratio, o->share, o->place, declared != NULL ? "; " : "", declared != NULL ? arith : "");
        print_declared(r, o, out);
    }
}

void certify_report(const certify_result *r, FILE *out)
{
    int64_t passed = 0, failed = 0;
    fprintf(out, "%s: %s %s (%s, SHA-256 %.16s...), tier %s\n", r->op->name, text_of(r->subject, "name"),
            text_of(json_object_get(r->subject, "description"), "version"), text_of(r->subject, "file"),
            text_of(r->subject, "sha256"), text_of(r->where, "tier"));
    fprintf(out, "%lld calls asked for, %lld runs of the kernel, %.1f s\n", (long long)r->calls,
            (long long)r->board.runs, r->seconds);
    const json_t *shapes = json_object_get(json_object_get(r->subject, "description"), "shapes");
    if (json_string_length(shapes) > 0)
        fprintf(out, "tried for %s alone\n", json_string_value(shapes));
    print_trials(r, out);
    if (r->n_outputs > 0)
        print_outputs(r, out);
    throughput_print(r, out);
    fprintf(out, "\n  not tried\n");
    for (size_t i = 0; i < json_array_size(r->not_tried); i++)
        fprintf(out, "  - %s\n", json_string_value(json_array_get(r->not_tried, i)));
    for (int t = 0; t < CERTIFY_TRIALS; t++) {
        passed += r->board.trial[t].bad == 0 && r->board.trial[t].calls > 0;
        failed += r->board.trial[t].bad > 0;
    }
    fprintf(out, "\n%lld passed, %lld failed, 0 skipped\n", (long long)passed, (long long)failed);
}

/* --- the page ----------------------------------------------------------------------------------------------- */
static void cell(FILE *f, const char *text)
{
    fputs("<td>", f);
    parity_put_escaped(f, text);
    fputs("</td>", f);
}

static void put_trials(const certify_result *r, FILE *f)
{
    fputs("<table><tr><th>verdict<th>trial<th>checks<th>claim<th>first finding</tr>\n", f);
    for (int t = 0; t < CERTIFY_TRIALS; t++) {
        const certify_tally *tally = &r->board.trial[t];
        char number[32];
        snprintf(number, sizeof number, "%lld", (long long)tally->calls);
        fprintf(f, "<tr class=%s>", tally->bad > 0 ? "fail" : tally->calls > 0 ? "pass" : "none");
        cell(f, verdict_of(tally));
        cell(f, certify_trial_name((certify_trial)t));
        cell(f, number);
        cell(f, certify_trial_claim((certify_trial)t));
        cell(f, tally->first);
        fputs("</tr>\n", f);
    }
    fputs("</table>\n", f);
}

static void put_page(const certify_result *r, FILE *f)
{
    fputs(
        "<!doctype html><meta charset=utf-8><title>assay certify</title><style>body{font:14px/1.4 "
        "sans-serif;margin:2em}"
        "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ddd}.fail td{background:#fdd}.pass "
        "td:first-child{color:#070}.none{color:#888}</style>\n<h1>",
        f);
    parity_put_escaped(f, text_of(r->subject, "name"));
    fprintf(f, "</h1>\n<p>%s, tier %s: <b>%s</b>. ", r->op->name, text_of(r->where, "tier"),
            certify_passes(r) ? "passed" : "FAILED");
    parity_put_escaped(f, text_of(r->subject, "file"));
    fprintf(f, ", SHA-256 %s; assay %s, sources %s; %lld calls, %lld runs.</p>\n",
            text_of(r->subject, "sha256"), parity_version(), certify_source_hash(), (long long)r->calls,
            (long long)r->board.runs);
    put_trials(r, f);
    fputs("<h2>Outputs</h2><table><tr><th>output<th>activations<th>elements<th>worst ratio<th>beyond "
          "rounding<th>where</tr>\n",
          f);
    for (int i = 0; i < r->n_outputs; i++) {
        const certify_output *o = &r->output[i];
        fprintf(f, "<tr><td>%s<td>%s<td>%lld<td>%.4f<td>%.4f", o->slot, o->dtype, (long long)o->elements,
                o->ratio, o->share);
        cell(f, o->place);
        fputs("</tr>\n", f);
    }
    fputs("</table>\n", f);
    if (r->throughput != NULL) {
        char *table = NULL;
        size_t bytes = 0;
        FILE *text = open_memstream(&table, &bytes);
        if (text != NULL) {
            throughput_print(r, text);
            if (fclose(text) == 0) {
                fputs("<h2>Throughput</h2><pre>", f);
                parity_put_escaped(f, table);
                fputs("</pre>\n", f);
            }
            free(table);
        }
    }
    fputs("<h2>Not tried</h2><ul>\n", f);
    for (size_t i = 0; i < json_array_size(r->not_tried); i++) {
        fputs("<li>", f);
        parity_put_escaped(f, json_string_value(json_array_get(r->not_tried, i)));
        fputs("</li>\n", f);
    }
    char *text = json_dumps(json_object_get(r->subject, "description"), JSON_INDENT(2) | JSON_SORT_KEYS);
    fputs("</ul>\n<h2>Description</h2><pre>", f);
    parity_put_escaped(f, text != NULL ? text : "");
    fputs("</pre>\n", f);
    free(text);
}

assay_status certify_html(const certify_result *r, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    ASSAY_CHECK(f != NULL, ASSAY_OUT_OF_MEMORY, "%s", path);
    put_page(r, f);
    const bool written = fclose(f) == 0;
    const assay_status st =
        written ? assay_write_file(path, text, bytes) : ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%s", path);
    free(text);
    return st;
}
