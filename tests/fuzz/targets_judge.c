/* What the judge reads and computes from: recorded operations, case files, results of a part of a run. */
#include "parity/parity.h"
#include "parity/report/report_files.h"
#include "parity/run/cases.h"
#include "parity/run/diff.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const trace_names[] = {"index.json",
                                          "rank-00000.jsonl",
                                          "rank-00001.jsonl",
                                          "rank-00000-step-00000.safetensors",
                                          "rank-00000-step-00001.safetensors",
                                          "rank-00001-step-00000.safetensors",
                                          NULL};

/* Every operation computed again, tensors assembled: shapes, slots and attributes are the file's. */
void fuzz_replay(const uint8_t *data, size_t bytes)
{
    fuzz_section sections[FUZZ_SECTIONS];
    assay_trace *t;
    parity_report *report;
    const int n = fuzz_sections(data, bytes, trace_names, sections);
    if (n == 0)
        return;
    fuzz_write_sections(sections, n);
    if (assay_trace_open(&t, fuzz_path(""), false) != ASSAY_OK)
        return;
    fuzz_must(parity_report_create(&report));
    parity_result context;
    parity_result_init(&context);
    parity_report_set_context(report, &context);
    if (parity_check_local(t, report) == ASSAY_OK && parity_check_routing(t, report) == ASSAY_OK)
        (void)parity_check_assemble(t, report);
    parity_report_destroy(report);
    assay_trace_close(t);
}

void fuzz_case(const uint8_t *data, size_t bytes)
{
    static parity_case c;
    assay_model_config config;
    fuzz_folder_make();
    fuzz_write("case.json", data, bytes);
    memset(&c, 0, sizeof c);
    if (parity_case_load(fuzz_path("case.json"), &c) != ASSAY_OK)
        return;
    FUZZ_LAW(c.n_layouts > 0 && c.n_layouts <= PARITY_MAX_LAYOUTS && c.n_precisions > 0, "%d layouts",
             c.n_layouts);
    if (parity_case_config(&c, &config) == ASSAY_OK)
        (void)parity_case_weights(&c);
    parity_case_free(&c);
}

void fuzz_results(const uint8_t *data, size_t bytes)
{
    parity_report *report;
    parity_origin origin;
    fuzz_folder_make();
    fuzz_write("results.jsonl", data, bytes);
    fuzz_must(parity_report_create(&report));
    if (parity_report_load_jsonl(report, fuzz_path("results.jsonl"), &origin) == ASSAY_OK) {
        parity_column *columns;
        int64_t n = 0, passed, failed, skipped;
        FILE *out = fopen("/dev/null", "w");
        FUZZ_LAW(out != NULL, "/dev/null");
        fuzz_must(parity_report_columns(report, &columns, &n));
        free(columns);
        parity_report_totals(report, &passed, &failed, &skipped);
        parity_report_table(report, out, NULL);
        fclose(out);
    }
    parity_report_destroy(report);
}
