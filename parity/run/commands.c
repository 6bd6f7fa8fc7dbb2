/* Small verbs: diff, replay, report merge. */
#include "core/base/file.h"
#include "parity/judge/suspect.h"
#include "parity/report/report_files.h"
#include "parity/run/cases.h"
#include "parity/run/engine.h"
#include "parity/run/report_folder.h"
#include "parity/run/report_write.h"
#include "parity/run/run.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_PATHS = PARITY_MAX_SHARDS + 1 }; /* "merge" and the parts */
typedef struct command_options {
    int n_paths;
    const char *paths[MAX_PATHS];
    double tolerance;
    parity_noise_mode noise;
    bool json, suggest;
    char out[ASSAY_PATH], model[ASSAY_PATH], map[ASSAY_PATH], summary[ASSAY_PATH];
} command_options;

const char *parity_version(void)
{
    return ASSAY_VERSION;
}

static int fail(const char *program)
{
    assay_error_print(stderr, program, 0);
    return 2;
}

static assay_status on_option(void *user, const char *name, const char *text)
{
    command_options *o = user;
    if (name == NULL) {
        ASSAY_CHECK(o->n_paths < MAX_PATHS, ASSAY_LIMIT, "at most %d arguments", MAX_PATHS);
        o->paths[o->n_paths++] = text;
    } else if (strcmp(name, "tolerance") == 0) {
        char *end = NULL;
        o->tolerance = strtod(text, &end);
        ASSAY_CHECK(end != text && *end == 0 && o->tolerance >= 0 && o->tolerance <= 1,
                    ASSAY_INVALID_ARGUMENT, "--tolerance: expected a number from 0 to 1, found %s", text);
    } else if (strcmp(name, "noise") == 0) {
        o->noise = strcmp(text, "auto") == 0   ? PARITY_NOISE_AUTO
                   : strcmp(text, "fp32") == 0 ? PARITY_NOISE_FP32
                   : strcmp(text, "bf16") == 0 ? PARITY_NOISE_BF16
                                               : PARITY_NOISE_NONE;
        ASSAY_CHECK(o->noise != PARITY_NOISE_NONE, ASSAY_INVALID_ARGUMENT,
                    "--noise: expected auto, fp32 or bf16, found %s", text);
    } else if (strcmp(name, "json") == 0) {
        o->json = true;
    } else if (strcmp(name, "suggest") == 0) {
        o->suggest = true;
    } else {
        char *out = strcmp(name, "model") == 0     ? o->model
                    : strcmp(name, "map") == 0     ? o->map
                    : strcmp(name, "summary") == 0 ? o->summary
                                                   : o->out;
        ASSAY_CHECK(strlen(text) < ASSAY_PATH, ASSAY_LIMIT, "--%s: too long", name);
        snprintf(out, ASSAY_PATH, "%s", text);
    }
    return ASSAY_OK;
}

static bool is_file(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

static assay_status diff_files_only(const command_options *o)
{
    const char *option = o->noise != PARITY_NOISE_NONE ? "noise"
                         : o->model[0] != '\0'         ? "model"
                         : o->map[0] != '\0'           ? "map"
                         : o->json                     ? "json"
                                                       : NULL;
    ASSAY_CHECK(option == NULL, ASSAY_INVALID_ARGUMENT, "--%s: has no meaning for result files", option);
    return ASSAY_OK;
}

int parity_main_diff(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"tolerance", "R",
         "accept differences up to R times the largest magnitude of a tensor (default: bitwise)"},
        {"noise", "auto|fp32|bf16",
         "accept what rounding explains: from perturbed runs of the reference with --model, else from the "
         "dtype and the lengths of sums"},
        {"model", "DIR",
         "Hugging Face folder, for names, and with --noise and a trace of Hugging Face's for the reference"},
        {"map", "FILE", "more rows of names (assay map)"},
        {"json", NULL, "print every tensor's numbers as JSON"},
        {NULL, NULL, NULL}};
    command_options o = {.tolerance = -1};
    int code = 2;
    if (assay_options_parse(
            argc, argv,
            "Compares two traces by assembled tensors, or two files of assay step --out, in order of the "
            "first one's execution, and "
            "names the first difference.  Runs of another engine, layout or precision are compared in what "
            "both "
            "hold.  Hugging Face's names, axes and split projections are laid beside ours (assay map).\v"
            "Examples:\n"
            "  assay diff yesterday today               # bit for bit\n"
            "  assay diff --tolerance 1e-3 ref tp2      # another engine or layout\n"
            "  assay diff --noise auto ref huggingface  # another framework\n"
            "  # two files of assay step --out\n"
            "  assay diff --tolerance 1e-4 ref.safetensors sim.safetensors\n",
            "TRACE_A TRACE_B", NULL, 0, extra, on_option, &o) != ASSAY_OK)
        return fail("assay diff");
    if (o.n_paths != 2) {
        fprintf(stderr, "assay diff: error: expected two trace folders or two result files, found %d\n",
                o.n_paths);
        return 2;
    }
    const parity_diff_options options = {
        .tolerance = o.tolerance, .noise = o.noise, .model = o.model, .map = o.map, .json = o.json};
    const bool files = is_file(o.paths[0]) && is_file(o.paths[1]);
    assay_status st = ASSAY_OK;
    if (o.noise != PARITY_NOISE_NONE && o.tolerance >= 0.0)
        st = ASSAY_ERROR(ASSAY_INVALID_ARGUMENT,
                         "--noise takes the place of --tolerance: expected one of them");
    else if (files && (st = diff_files_only(&o)) == ASSAY_OK)
        st = parity_diff_files(o.paths[0], o.paths[1], o.tolerance, stdout, &code);
    else if (!files)
        st = parity_diff_traces(o.paths[0], o.paths[1], &options, stdout, &code);
    return st == ASSAY_OK ? code : fail("assay diff");
}

/* A member of the header that a foreign trace may lack; "-" then, as for a check that was not asked for. */
/* The folder's name is the row's: replays of several traces can be told apart. */
static void replay_context(const assay_trace *t, const char *dir, parity_result *context)
{
    char folder[ASSAY_PATH], quoted[2 * ASSAY_PATH];
    snprintf(folder, sizeof folder, "%s", dir);
    for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; n--)
        folder[n - 1] = '\0';
    const char *slash = strrchr(folder, '/');
    parity_result_init(context);
    snprintf(context->case_name, sizeof context->case_name, "%s",
             slash != NULL && slash[1] ? slash + 1 : folder);
    snprintf(context->engine, sizeof context->engine, "%s", assay_trace_header_text(t, "engine"));
    snprintf(context->layout, sizeof context->layout, "%s", assay_trace_header_text(t, "layout"));
    snprintf(context->precision, sizeof context->precision, "%s", assay_trace_header_text(t, "precision"));
    snprintf(context->variants, sizeof context->variants, "%s", assay_trace_header_text(t, "variant"));
    if (json_object_get(assay_trace_header(t), "layout") == NULL && assay_trace_world(t) > 1)
        snprintf(context->layout, sizeof context->layout, "%d ranks", assay_trace_world(t));
    parity_shell_word(dir, quoted, sizeof quoted);
    snprintf(context->reproduce, sizeof context->reproduce, "assay replay %.400s%s", quoted,
             strlen(quoted) > 400 ? " ... (cut)" : "");
}

bool parity_say_aborted(const assay_trace *t, FILE *out)
{
    bool any = false;
    for (int rank = 0; rank < assay_trace_world(t); rank++) {
        const char *why = assay_trace_aborted(t, rank);
        if (why != NULL)
            fprintf(out, "rank %d ended early: %s (what it recorded before is judged)\n", rank, why);
        any = any || why != NULL;
    }
    return any;
}

/* What explains the first failure in order of execution, where one changed thing does. */
static assay_status say_why(const assay_trace *trace, const parity_report *report)
{
    const assay_trace_op *first = NULL;
    char why[PARITY_TEXT];
    for (int64_t i = 0; i < parity_report_count(report); i++) {
        const parity_claim *r = parity_report_at(report, i);
        const assay_trace_op *op = r->verdict == PARITY_FAIL ? parity_claim_op(trace, r) : NULL;
        if (op &&
            (!first || op->step < first->step || (op->step == first->step && op->sequence < first->sequence)))
            first = op;
    }
    if (!first)
        return ASSAY_OK;
    ASSAY_TRY(parity_suspect(trace, first, why));
    if (why[0] != '\0')
        printf("first: %s of %s (rank %d, step %lld): all of its elements pass if %s\n", first->op,
               first->instance, first->rank, (long long)first->step, why);
    return ASSAY_OK;
}

static assay_status replay(const char *dir, const char *out, int *code)
{
    assay_trace *trace = NULL;
    parity_report *report = NULL;
    assay_status st = ASSAY_OK;
    int64_t passed, failed, skipped;
    parity_result context;
    ASSAY_TRY(assay_trace_open(&trace, dir, true));
    ASSAY_TRY_GOTO(parity_report_create(&report), st, done);
    const bool ended_early = parity_say_aborted(trace, stdout);
    replay_context(trace, dir, &context);
    parity_report_set_context(report, &context);
    ASSAY_TRY_GOTO(parity_check_local(trace, report), st, done);
    ASSAY_TRY_GOTO(parity_check_routing(trace, report), st, done);
    parity_report_table(report, stdout, out[0] != 0 ? out : NULL);
    if (out[0] != 0)
        ASSAY_TRY_GOTO(parity_report_jsonl(report, out), st, done);
    ASSAY_TRY_GOTO(say_why(trace, report), st, done);
    parity_report_totals(report, &passed, &failed, &skipped);
    if (passed + failed + skipped == 0)
        printf("nothing to compute again: %s records no operation\n", dir);
    printf("%lld passed, %lld failed, %lld skipped\n", (long long)passed, (long long)failed,
           (long long)skipped);
    if (failed == 0 && ended_early)
        printf("NOT CHECKED: the run ended early (above)\n");
    *code = failed > 0 ? 1 : passed == 0 || skipped > 0 || ended_early ? 2 : 0;
done:
    parity_report_destroy(report);
    assay_trace_close(trace);
    return st;
}

int parity_main_replay(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"out", "FILE", "write results.jsonl here"},
        {"suggest", NULL,
         "print the tightest declared arithmetic under which every recorded element passes, per operation"},
        {NULL, NULL, NULL}};
    command_options o = {.tolerance = -1};
    int code = 2;
    if (assay_options_parse(
            argc, argv,
            "Recomputes every recorded operation from its recorded inputs in double precision, with a "
            "running error bound for each element.\vExamples:\n"
            "  assay replay --out results.jsonl trace\n"
            "  assay replay --suggest trace\n",
            "TRACE", NULL, 0, extra, on_option, &o) != ASSAY_OK)
        return fail("assay replay");
    if (o.n_paths != 1) {
        fprintf(stderr, "assay replay: error: expected one trace folder, found %d\n", o.n_paths);
        return 2;
    }
    if (o.suggest && o.out[0] != '\0') {
        fputs("assay replay: error: --suggest judges nothing: expected no --out beside it\n", stderr);
        return 2;
    }
    const assay_status st =
        o.suggest ? parity_suggest(o.paths[0], stdout, &code) : replay(o.paths[0], o.out, &code);
    return st == ASSAY_OK ? code : fail("assay replay");
}

/* A version is that of many builds: results of an engine that was broken, or repaired, between two parts are no run. */
static assay_status check_builds(const char *path, const parity_origin *here, const char *other,
                                 const parity_origin *run)
{
    ASSAY_CHECK(here->engine[0] != '\0' && strcmp(here->engine, run->engine) == 0, ASSAY_MISMATCH,
                "%s: results of the engine program of SHA-256 %.16s..., those of %s are of %.16s...", path,
                here->engine, other, run->engine);
    ASSAY_CHECK(here->judge[0] != '\0' && strcmp(here->judge, run->judge) == 0, ASSAY_MISMATCH,
                "%s: judged by an assay whose sources have SHA-256 %.16s..., %s by one of %.16s...", path,
                here->judge, other, run->judge);
    return ASSAY_OK;
}

/* Adds a shard, a results.jsonl or its folder; part [i-1] becomes the argument that holds part i of the run.  first: the argument in
 * front of all. */
static assay_status add_shard(parity_report *report, const char *path, const char *first, parity_origin *run,
                              const char **part)
{
    char inside[ASSAY_PATH + 32];
    struct stat sb;
    parity_origin here;
    const bool folder = stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
    snprintf(inside, sizeof inside, folder ? "%.1000s/results.jsonl" : "%.1000s", path);
    ASSAY_TRY(parity_report_load_jsonl(report, inside, &here));
    ASSAY_CHECK(here.run[0] != '\0', ASSAY_MISMATCH,
                "%s: expected results of assay run, found those of another verb", path);
    if (run->run[0] == '\0')
        *run = here;
    ASSAY_CHECK(strcmp(run->run, here.run) == 0 && run->shards == here.shards, ASSAY_MISMATCH,
                "%s: part %d of %d of run %s, expected a part of %d of run %s", path, here.shard, here.shards,
                here.run, run->shards, run->run);
    ASSAY_TRY(check_builds(path, &here, first, run));
    ASSAY_CHECK(here.shards <= PARITY_MAX_SHARDS, ASSAY_LIMIT, "%s: %d shards, at most %d", path, here.shards,
                PARITY_MAX_SHARDS);
    ASSAY_CHECK(part[here.shard - 1] == NULL, ASSAY_MISMATCH, "%s: part %d of %d, which %s already is", path,
                here.shard, here.shards, part[here.shard - 1]);
    part[here.shard - 1] = path;
    return ASSAY_OK;
}

/* What the part told about itself stands beside its results; a part that was copied without it is named in the report. */
static assay_status add_facts(json_t *facts, const char *path)
{
    char beside[ASSAY_PATH + 32];
    struct stat sb;
    json_t *part = NULL;
    const bool folder = stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
    const char *slash = strrchr(path, '/');
    if (folder)
        snprintf(beside, sizeof beside, "%.1000s/facts.json", path);
    else
        snprintf(beside, sizeof beside, "%.*sfacts.json", slash != NULL ? (int)(slash + 1 - path) : 0, path);
    if (access(beside, F_OK) != 0)
        part = json_pack("{s:s}", "parts without facts.json", path);
    else
        ASSAY_TRY(assay_json_load(&part, beside));
    const assay_status st = parity_report_join_facts(facts, part);
    json_decref(part);
    return st;
}

static assay_status check_complete(const parity_origin *run, const char *const *part)
{
    enum { NAMED = 12 };
    char missing[16 * NAMED + 1] = "", more[24] = "";
    int n = 0;
    for (int i = 0; i < run->shards; i++)
        if (part[i] == NULL && n++ < NAMED)
            snprintf(missing + strlen(missing), 16, " %d/%d", i + 1, run->shards);
    if (n > NAMED)
        snprintf(more, sizeof more, " and %d more", n - NAMED);
    ASSAY_CHECK(n == 0, ASSAY_MISMATCH, "a run of %d parts: missing%s%s", run->shards, missing, more);
    return ASSAY_OK;
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* The files of a part are not written over by what it is merged into, under whatever name. */
static assay_status check_target(const char *out, const char *summary, const char *path)
{
    char inside[ASSAY_PATH + 32], target[ASSAY_PATH + 32];
    struct stat sb;
    const bool folder = stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
    snprintf(inside, sizeof inside, folder ? "%.1000s/results.jsonl" : "%.1000s", path);
    snprintf(target, sizeof target, "%.1000s/results.jsonl", out);
    ASSAY_CHECK(!(folder && same_file(path, out)) && !same_file(inside, target), ASSAY_INVALID_ARGUMENT,
                "--report %s: is the part %s, which would be written over: name another folder", out, path);
    ASSAY_CHECK(summary[0] == '\0' || !same_file(inside, summary), ASSAY_INVALID_ARGUMENT,
                "--summary %s: is the part %s, which would be written over", summary, path);
    return ASSAY_OK;
}

static assay_status merge(const command_options *o, int *code)
{
    const char *part[PARITY_MAX_SHARDS] = {0};
    parity_origin run = {.shard = 1, .shards = 1};
    parity_report *report = NULL;
    char path[ASSAY_PATH + 32];
    int64_t passed, failed, skipped;
    int lock = -1;
    assay_status st = ASSAY_OK;
    json_t *facts = json_object();
    ASSAY_TRY_GOTO(parity_report_create(&report), st, done);
    ASSAY_CHECK_GOTO(facts != NULL, ASSAY_OUT_OF_MEMORY, st, done, "report");
    ASSAY_TRY_GOTO(parity_report_claim_stdout(o->summary), st, done);
    for (int i = 1; i < o->n_paths; i++) {
        ASSAY_TRY_GOTO(check_target(o->out, o->summary, o->paths[i]), st, done);
        ASSAY_TRY_GOTO(add_shard(report, o->paths[i], o->paths[1], &run, part), st, done);
        ASSAY_TRY_GOTO(add_facts(facts, o->paths[i]), st, done);
    }
    ASSAY_TRY_GOTO(check_complete(&run, part), st, done);
    run.shard = run.shards = 1;
    parity_report_set_origin(report, &run);
    ASSAY_TRY_GOTO(parity_report_folder_open(o->out, &lock), st, done);
    st = parity_report_write(report, o->out, "assay run (merged shards)", facts, o->summary);
    snprintf(path, sizeof path, "%s/results.jsonl", o->out);
    parity_report_table(report, stdout, path);
    parity_report_totals(report, &passed, &failed, &skipped);
    printf("%lld passed, %lld failed, %lld skipped\n", (long long)passed, (long long)failed,
           (long long)skipped);
    *code = failed > 0 ? 1 : skipped > 0 || passed == 0 ? 2 : 0;
done:
    if (lock >= 0)
        close(lock);
    json_decref(facts);
    parity_report_destroy(report);
    return st;
}

int parity_main_report(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"report", "DIR", "where the joined report goes (default report)"},
        {"summary", "FILE|-",
         "also write a short page in Markdown, for the pages of CI; -: to standard output, and all else to "
         "standard "
         "error"},
        {NULL, NULL, NULL}};
    command_options o = {.tolerance = -1};
    int code = 2;
    if (assay_options_parse(argc, argv,
                            "Joins the results of `assay run --shard I/N`.\vExample:\n"
                            "  assay report merge part1 part2 --report whole\n",
                            "merge DIR|RESULTS.jsonl ...", NULL, 0, extra, on_option, &o) != ASSAY_OK)
        return fail("assay report");
    if (o.n_paths < 2 || strcmp(o.paths[0], "merge") != 0) {
        fputs("assay report: expected: merge DIR|RESULTS.jsonl ...\n", stderr);
        return 2;
    }
    if (o.out[0] == 0)
        snprintf(o.out, sizeof o.out, "report");
    return merge(&o, &code) == ASSAY_OK ? code : fail("assay report");
}
