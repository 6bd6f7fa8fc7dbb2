/* `assay run`: its own options, beside the training options of core/run/options.h. */
#include "core/base/suggest.h"
#include "parity/run/run.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

const assay_extra_option parity_run_option_list[] = {
    {"engine", "auto|gpu|sim", "which engine (auto: the GPU where one answers, else the simulator)"},
    {"engine_program", "PATH", "use this engine program"},
    {"report", "DIR", "where results.jsonl, junit.xml, index.html and scratch files go (default report)"},
    {"case", "NAME", "only this case; may be repeated"},
    {"layout", "LAYOUT", "this layout instead of the case's list; may be repeated"},
    {"precision", "fp32|bf16", "only this precision"},
    {"check", "NAME", "only this check"},
    {"matrix", "pairwise|full",
     "which combinations of case, layout, precision and kernels run: pairwise (default) takes few in which "
     "every two that "
     "can meet do meet; full takes all"},
    {"jobs", "N", "tasks side by side (default: half as many again as processors, at most 16)"},
    {"shard", "I/N", "run part I of N of the matrix (join with: assay report merge)"},
    {"timeout", "SECONDS", "time limit of one engine run (default 600)"},
    {"keep", NULL, "keep traces and checkpoints of passed tasks"},
    {"quiet", NULL, "no progress"},
    {NULL, NULL, NULL}};

static assay_status parse_int(const char *name, const char *text, long min, long max, int *out)
{
    char *end = NULL;
    errno = 0;
    const long v = strtol(text, &end, 10);
    ASSAY_CHECK(errno == 0 && end != text && *end == 0 && v >= min && v <= max, ASSAY_INVALID_ARGUMENT,
                "--%s: expected an integer from %ld to %ld, found %s", name, min, max, text);
    *out = (int)v;
    return ASSAY_OK;
}

static assay_status copy_text(char *out, size_t capacity, const char *name, const char *text)
{
    ASSAY_CHECK(strlen(text) < capacity, ASSAY_LIMIT, "--%s: longer than %zu bytes", name, capacity - 1);
    snprintf(out, capacity, "%s", text);
    return ASSAY_OK;
}

static assay_status parse_shard(parity_run_options *o, const char *text)
{
    char *end = NULL;
    const long i = strtol(text, &end, 10);
    const long n = *end == '/' ? strtol(end + 1, &end, 10) : 0;
    ASSAY_CHECK(*end == '\0' && i >= 1 && n >= i && n <= INT_MAX, ASSAY_INVALID_ARGUMENT,
                "--shard: expected I/N with 1 <= I <= N, found %s", text);
    o->shard = (int)i;
    o->shards = (int)n;
    return ASSAY_OK;
}

/* These take one value: a second one would replace the first without a word. */
static assay_status check_once(const char *name, const char *before, const char *text)
{
    ASSAY_CHECK(before[0] == '\0' || strcmp(before, text) == 0, ASSAY_INVALID_ARGUMENT,
                "--%s %s: expected once, found --%s %s before it (leave it out for all)", name, text, name,
                before);
    return ASSAY_OK;
}

static assay_status parse_check(parity_run_options *o, const char *text)
{
    ASSAY_TRY(check_once("check", o->check, text));
    char known[128] = "";
    assay_suggestion near;
    assay_suggest_begin(&near, text, strlen(text));
    for (int k = 0; k < PARITY_CHECK_COUNT; k++) {
        const char *name = parity_check_name((parity_check)k);
        if (strcmp(text, name) == 0)
            return copy_text(o->check, sizeof o->check, "check", text);
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
        return copy_text(o->files[o->n_files++], ASSAY_PATH, "case file", text);
    }
    if (strcmp(name, "engine") == 0)
        return copy_text(o->engine, sizeof o->engine, name, text);
    if (strcmp(name, "engine_program") == 0)
        return copy_text(o->engine_program, sizeof o->engine_program, name, text);
    if (strcmp(name, "report") == 0)
        return copy_text(o->report_dir, sizeof o->report_dir, name, text);
    if (strcmp(name, "check") == 0)
        return parse_check(o, text);
    if (strcmp(name, "precision") == 0) {
        ASSAY_TRY(check_once(name, o->precision, text));
        ASSAY_CHECK(strcmp(text, "fp32") == 0 || strcmp(text, "bf16") == 0, ASSAY_INVALID_ARGUMENT,
                    "--precision: expected fp32 or bf16, found %s", text);
        return copy_text(o->precision, sizeof o->precision, name, text);
    }
    if (strcmp(name, "matrix") == 0) {
        ASSAY_CHECK(strcmp(text, "pairwise") == 0 || strcmp(text, "full") == 0, ASSAY_INVALID_ARGUMENT,
                    "--matrix: expected pairwise or full, found %s", text);
        return copy_text(o->matrix, sizeof o->matrix, name, text);
    }
    if (strcmp(name, "shard") == 0)
        return parse_shard(o, text);
    if (strcmp(name, "jobs") == 0)
        return parse_int(name, text, 1, PARITY_MAX_JOBS, &o->jobs);
    if (strcmp(name, "timeout") == 0) {
        int seconds = 0;
        ASSAY_TRY(parse_int(name, text, 1, 1000000, &seconds));
        o->timeout_s = seconds;
        return ASSAY_OK;
    }
    if (strcmp(name, "case") == 0) {
        ASSAY_CHECK(o->n_cases < 16, ASSAY_LIMIT, "--case: at most 16");
        return copy_text(o->cases[o->n_cases++], sizeof o->cases[0], name, text);
    }
    if (strcmp(name, "layout") == 0) {
        ASSAY_CHECK(o->n_layouts < PARITY_MAX_LAYOUTS, ASSAY_LIMIT, "--layout: at most %d",
                    PARITY_MAX_LAYOUTS);
        ASSAY_TRY(assay_layout_parse(text, &p));
        return copy_text(o->layouts[o->n_layouts++], ASSAY_LAYOUT_TEXT, name, text);
    }
    if (strcmp(name, "keep") == 0)
        o->keep = true;
    else if (strcmp(name, "quiet") == 0)
        o->quiet = true;
    else
        ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "unknown option --%s", name);
    return ASSAY_OK;
}
