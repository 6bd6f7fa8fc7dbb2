/* `assay run`: its own options, beside the training options of core/run/options.h. */
#include "core/base/suggest.h"
#include "parity/run/run.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

const assay_extra_option parity_run_option_list[] = {
    {"engine", "auto|gpu|sim", "which engine (auto: the GPU where one answers, else the simulator)"},
    {"engine_program", "PATH", "use this engine program"},
    {"report", "DIR", "where results.jsonl, junit.xml, index.html and scratch files go (default report)"},
    {"summary", "FILE|-",
     "also write a short page in Markdown, for the pages of CI; -: to standard output, and all else to "
     "standard error"},
    {"case", "NAME...", "only this case; may be repeated"},
    {"layout", "LAYOUT...", "this layout instead of the case's list; may be repeated"},
    {"precision", "fp32|bf16", "only this precision"},
    {"check", "NAME", "only this check"},
    {"matrix", "pairwise|full",
     "which combinations of case, layout, precision and kernels run: pairwise (default) takes few in which "
     "every two that "
     "can meet do meet; full takes all"},
    {"jobs", "N", "tasks side by side (default: half as many again as processors, at most 16)"},
    {"shard", "I/N", "run part I of N of the matrix (join with: assay report merge)"},
    {"timeout", "SECONDS", "time limit of one engine run (default 600)"},
    {"fail_fast", NULL, "stop at the first task that does not pass; the others are skipped"},
    {"keep", NULL, "keep traces and checkpoints of passed tasks"},
    {"quiet", NULL, "print no progress"},
    {NULL, NULL, NULL}};

static assay_status parse_shard(parity_run_options *o, const char *text)
{
    char *end = NULL;
    const long i = strtol(text, &end, 10);
    const long n = *end == '/' ? strtol(end + 1, &end, 10) : 0;
    ASSAY_CHECK(*end == '\0' && i >= 1 && n >= i && n <= PARITY_MAX_SHARDS, ASSAY_INVALID_ARGUMENT,
                "--shard: expected I/N with 1 <= I <= N <= %d, found %s", PARITY_MAX_SHARDS, text);
    o->shard = (int)i;
    o->shards = (int)n;
    return ASSAY_OK;
}

static assay_status parse_check(parity_run_options *o, const char *text)
{
    char known[128] = "";
    assay_suggestion near;
    assay_suggest_begin(&near, text, strlen(text));
    for (int k = 0; k < PARITY_CHECK_COUNT; k++) {
        const char *name = parity_check_name((parity_check)k);
        if (strcmp(text, name) == 0)
            return assay_option_text("check", text, o->check, sizeof o->check);
        assay_suggest_add(&near, name);
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", k > 0 ? ", " : "", name);
    }
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "--check: expected one of %s, found %s%s", known, text,
               assay_suggest_end(&near, ""));
}

assay_status parity_run_option(void *user, const char *name, const char *text)
{
    parity_run_options *o = user;
    assay_parallel_config p;
    if (name == NULL) {
        ASSAY_CHECK(o->n_files < 16, ASSAY_LIMIT, "at most 16 case files");
        return assay_option_text("case file", text, o->files[o->n_files++], ASSAY_PATH);
    }
    if (strcmp(name, "engine") == 0)
        return assay_option_text(name, text, o->engine, sizeof o->engine);
    if (strcmp(name, "engine_program") == 0)
        return assay_option_text(name, text, o->engine_program, sizeof o->engine_program);
    if (strcmp(name, "report") == 0)
        return assay_option_text(name, text, o->report_dir, sizeof o->report_dir);
    if (strcmp(name, "summary") == 0)
        return assay_option_text(name, text, o->summary, sizeof o->summary);
    if (strcmp(name, "check") == 0)
        return parse_check(o, text);
    if (strcmp(name, "precision") == 0) {
        ASSAY_CHECK(strcmp(text, "fp32") == 0 || strcmp(text, "bf16") == 0, ASSAY_INVALID_ARGUMENT,
                    "--precision: expected fp32 or bf16, found %s", text);
        return assay_option_text(name, text, o->precision, sizeof o->precision);
    }
    if (strcmp(name, "matrix") == 0) {
        ASSAY_CHECK(strcmp(text, "pairwise") == 0 || strcmp(text, "full") == 0, ASSAY_INVALID_ARGUMENT,
                    "--matrix: expected pairwise or full, found %s", text);
        return assay_option_text(name, text, o->matrix, sizeof o->matrix);
    }
    if (strcmp(name, "shard") == 0)
        return parse_shard(o, text);
    if (strcmp(name, "jobs") == 0 || strcmp(name, "timeout") == 0) {
        const bool jobs = name[0] == 'j';
        int64_t count = 0;
        ASSAY_TRY(assay_option_count(name, text, 1, jobs ? PARITY_MAX_JOBS : 1000000, &count));
        if (jobs)
            o->jobs = (int)count;
        else
            o->timeout_s = (double)count;
        return ASSAY_OK;
    }
    if (strcmp(name, "case") == 0) {
        ASSAY_CHECK(o->n_cases < PARITY_MAX_CASE_NAMES, ASSAY_LIMIT, "--case: at most %d",
                    PARITY_MAX_CASE_NAMES);
        return assay_option_text(name, text, o->cases[o->n_cases++], sizeof o->cases[0]);
    }
    if (strcmp(name, "layout") == 0) {
        ASSAY_CHECK(o->n_layouts < PARITY_MAX_LAYOUTS, ASSAY_LIMIT, "--layout: at most %d",
                    PARITY_MAX_LAYOUTS);
        ASSAY_TRY(assay_layout_parse(text, &p));
        return assay_option_text(name, text, o->layouts[o->n_layouts++], ASSAY_LAYOUT_TEXT);
    }
    if (strcmp(name, "fail_fast") == 0)
        o->fail_fast = true;
    else if (strcmp(name, "keep") == 0)
        o->keep = true;
    else if (strcmp(name, "quiet") == 0)
        o->quiet = true;
    else
        ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "unknown option --%s", name);
    return ASSAY_OK;
}
