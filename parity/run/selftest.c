/* `assay selftest`: the judge is judged.
 *
 * A small case, or the one that a mutant names, is trained once for each layout that the mutants need; the clean traces must not
 * fail in any check.  Then every fault of parity/mutants is planted, in a copy of a recorded trace or by the engine
 * itself, and the check that must find it has to name the operation where it was planted.  Prints a table and
 * the mutation score. */
#include "parity/run/selftest.h"
#include "core/base/file.h"
#include "core/base/suggest.h"
#include "core/run/inputs.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Results of one fault, under its name: a page shows what the judge says of each. */
static assay_status tell(selftest *s, const parity_mutant *m, const parity_report *report)
{
    if (s->told == NULL)
        return ASSAY_OK;
    for (int64_t i = 0; i < parity_report_count(report); i++) {
        parity_claim c = *parity_report_at(report, i);
        const parity_drawn drawn = parity_report_drawn(report, &c);
        c.case_name = m->name;
        c.precision = assay_precision_name(s->train.precision);
        c.layout = m->layout;
        ASSAY_TRY(parity_report_add_claim(s->told, &c, &drawn));
    }
    return ASSAY_OK;
}

static assay_status write_told(const selftest *s)
{
    char path[ASSAY_PATH];
    if (s->told == NULL)
        return ASSAY_OK;
    ASSAY_TRY(assay_mkdir_p(s->o->report));
    snprintf(path, sizeof path, "%.1000s/results.jsonl", s->o->report);
    ASSAY_TRY(parity_report_jsonl(s->told, path));
    snprintf(path, sizeof path, "%.1000s/index.html", s->o->report);
    return parity_report_html(s->told, path, "assay selftest: planted faults", NULL);
}

/* --- rows of the table -------------------------------------------------------------------------------------- */

static assay_status try_mutant(selftest *s, const parity_mutant *m)
{
    parity_report *report = NULL;
    parity_kill kill;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(parity_report_create(&report));
    st = selftest_plant(s, m, report);
    if (st != ASSAY_OK) {
        printf("  %-30s %-12s %-4s skip: %s\n", m->name, m->layout, assay_precision_name(s->train.precision),
               assay_error_message());
        assay_error_clear();
        s->skipped++;
        parity_report_destroy(report);
        return ASSAY_OK;
    }
    st = tell(s, m, report);
    parity_mutant_judge(m, report, &kill);
    const bool good = kill.caught && kill.named;
    const char *where = kill.by.instance[0] ? kill.by.instance : kill.by.tensor;
    printf("  %-30s %-12s %-4s %-10s %s %s %s%s%s\n", m->name, m->layout,
           assay_precision_name(s->train.precision), parity_check_name(m->expected_check),
           good          ? "caught:"
           : kill.caught ? "FAIL, named elsewhere:"
                         : "FAIL, not caught:",
           kill.by.op, kill.caught ? where : m->planted, m->expected_item[0] ? " " : "",
           m->expected_item[0] ? kill.by.tensor : "");
    if (kill.caught && (kill.by.diagnosis[0] || !good))
        printf("  %61s%s\n", "", kill.by.diagnosis[0] ? kill.by.diagnosis : kill.by.message);
    s->passed += good;
    s->failed += !good;
    parity_report_destroy(report);
    return st;
}

/* A clean run must pass every check. */
static assay_status try_clean(selftest *s, const clean_run *c)
{
    static const parity_check checks[] = {PARITY_CHECK_PLAN,  PARITY_CHECK_ASSEMBLE, PARITY_CHECK_FLOW,
                                          PARITY_CHECK_LOCAL, PARITY_CHECK_ROUTING,  PARITY_CHECK_WHOLE};
    parity_report *report = NULL;
    int64_t passed, failed, skipped;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(parity_report_create(&report));
    for (size_t i = 0; i < sizeof checks / sizeof checks[0] && st == ASSAY_OK; i++)
        st = selftest_judge(s, c->trace, c->layout, checks[i], report);
    parity_report_totals(report, &passed, &failed, &skipped);
    const bool good = st == ASSAY_OK && failed == 0 && skipped == 0 && passed > 0;
    printf("  %-30s %-12s %-4s %-10s %s %lld claims hold, %lld fail, %lld skipped\n", "(no fault)", c->layout,
           assay_precision_name(c->precision), "all",
           good ? "clean:" : "FAIL, false alarm:", (long long)passed, (long long)failed, (long long)skipped);
    for (int64_t i = 0; i < parity_report_count(report) && failed > 0; i++) {
        const parity_claim *r = parity_report_at(report, i);
        if (r->verdict == PARITY_FAIL) {
            printf("  %61s%s %s %s%s: %s\n", "", parity_check_name(r->check), r->op, r->instance, r->tensor,
                   r->message);
            break;
        }
    }
    s->passed += good;
    s->failed += !good;
    parity_report_destroy(report);
    return st;
}

/* --- set-up ------------------------------------------------------------------------------------------------- */

/* name: of the case, or "": the one that is trained by default. */
static assay_status default_paths(const selftest *s, const char *name, char case_file[ASSAY_PATH],
                                  char mutants[ASSAY_PATH])
{
    char cases[ASSAY_PATH];
    snprintf(case_file, ASSAY_PATH, "%.1000s", name[0] ? "" : s->o->case_file);
    snprintf(mutants, ASSAY_PATH, "%.1000s", s->o->mutants);
    if (case_file[0] && mutants[0])
        return ASSAY_OK;
    ASSAY_TRY(parity_cases_dir(cases, sizeof cases - 32));
    if (!case_file[0])
        snprintf(case_file, ASSAY_PATH, "%.900s/%.60s.json", cases, name[0] ? name : "qwen3_moe");
    if (!mutants[0])
        snprintf(mutants, ASSAY_PATH, "%.900s/../mutants", cases);
    return ASSAY_OK;
}

static assay_status set_up(selftest *s, const char *case_file)
{
    const char *program = s->o->engine_program[0] ? s->o->engine_program : NULL;
    ASSAY_TRY(assay_scratch_make("selftest", s->dir, sizeof s->dir));
    ASSAY_TRY(parity_engine_find(s->o->engine, program, &s->engine));
    ASSAY_TRY(parity_case_load(case_file, &s->c));
    ASSAY_TRY(parity_case_weights(&s->c));
    ASSAY_TRY(parity_prepare_case(&s->c, s->dir));
    s->train = s->c.options;
    s->train.precision = ASSAY_PRECISION_FP32;
    s->train.lr_warmup_iters = 0; /* a first step of length 0 would hide a stale weight */
    s->train.train_iters = s->c.steps < STEPS ? s->c.steps : STEPS;
    snprintf(s->train.batch, sizeof s->train.batch, "%.900s/batch.safetensors", s->dir);
    if (s->c.model_dir[0])
        snprintf(s->train.model, sizeof s->train.model, "%s", s->c.model_dir);
    else
        snprintf(s->train.model, sizeof s->train.model, "%.900s/model", s->dir);
    s->config = malloc(sizeof *s->config);
    ASSAY_CHECK(s->config, ASSAY_OUT_OF_MEMORY, "model configuration");
    ASSAY_TRY(assay_config_load(s->train.model, s->config));
    ASSAY_TRY(assay_inputs_spec(&s->train, s->config, &s->spec));
    ASSAY_TRY(assay_batches_open(&s->batches, s->train.batch, s->config->vocab_size));
    ASSAY_TRY(ref_weights_load(s->spec, s->train.model, NULL, s->train.draw_weights, &s->weights));
    s->train.precision = ASSAY_PRECISION_BF16;
    ASSAY_TRY(parity_whole_cache_create(&s->cache[1], s->spec, &s->train, &s->batches, s->weights));
    s->train.precision = ASSAY_PRECISION_FP32;
    return parity_whole_cache_create(&s->cache[0], s->spec, &s->train, &s->batches, s->weights);
}

/* Forgets the case; what was counted stays. */
static void tear_down(selftest *s)
{
    for (int i = 0; i < s->n_clean; i++)
        assay_trace_close(s->clean[i].trace);
    parity_whole_cache_destroy(s->cache[0]);
    parity_whole_cache_destroy(s->cache[1]);
    if (s->weights)
        ref_weights_free(s->spec, s->weights);
    assay_batches_close(&s->batches);
    assay_spec_destroy(s->spec);
    free(s->config);
    parity_case_free(&s->c);
    parity_engine_free(&s->engine);
    if (s->o->keep)
        printf("kept: %s\n", s->dir);
    else if (s->dir[0])
        assay_scratch_remove(s->dir);
    *s = (selftest){.o = s->o,
                    .told = s->told,
                    .passed = s->passed,
                    .failed = s->failed,
                    .skipped = s->skipped,
                    .tried = s->tried,
                    .caught = s->caught};
}

/* The mutants of one case, then its clean runs. */
static assay_status run_mutants(selftest *s, const char *case_name, char *const *paths, int n)
{
    const int64_t passed = s->passed;
    for (int i = 0; i < n; i++) {
        parity_mutant m;
        ASSAY_TRY(parity_mutant_load(paths[i], &m));
        if ((s->o->only[0] && strcmp(s->o->only, m.name) != 0) || strcmp(m.case_name, case_name) != 0)
            continue;
        for (int k = 0; k < 2; k++) {
            if (!(k == 0 ? m.fp32 : m.bf16))
                continue;
            s->train.precision = k == 0 ? ASSAY_PRECISION_FP32 : ASSAY_PRECISION_BF16;
            ASSAY_TRY(try_mutant(s, &m));
            fflush(stdout);
            s->tried++;
        }
    }
    s->caught += s->passed - passed;
    for (int i = 0; i < s->n_clean; i++) {
        s->train.precision = s->clean[i].precision;
        ASSAY_TRY(try_clean(s, &s->clean[i]));
    }
    return ASSAY_OK;
}

/* The cases that the mutants to be tried name, "" first where one names none. */
static assay_status cases_of(const selftest *s, const char *mutants, char *const *paths, int n,
                             char names[MAX_CASES][64], int *count)
{
    assay_suggestion near;
    assay_suggest_begin(&near, s->o->only, strlen(s->o->only));
    *count = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n; i++) {
            parity_mutant m;
            bool known = false;
            ASSAY_TRY(parity_mutant_load(paths[i], &m));
            assay_suggest_add(&near, m.name);
            for (int k = 0; k < *count; k++)
                known = known || strcmp(names[k], m.case_name) == 0;
            if (known || (pass == 0) != (m.case_name[0] == '\0') ||
                (s->o->only[0] && strcmp(s->o->only, m.name) != 0))
                continue;
            ASSAY_CHECK(*count < MAX_CASES, ASSAY_LIMIT, "mutants name more than %d cases", (int)MAX_CASES);
            snprintf(names[(*count)++], sizeof names[0], "%s", m.case_name);
        }
    ASSAY_CHECK(n > 0, ASSAY_NOT_FOUND, "%s: expected files of faults, found none", mutants);
    ASSAY_CHECK(*count > 0, ASSAY_NOT_FOUND,
                "--only: expected the name of one of the %d faults of %s, found %s%s", n, mutants, s->o->only,
                assay_suggest_end(&near, ""));
    return ASSAY_OK;
}

static assay_status run_selftest(selftest *s)
{
    char case_file[ASSAY_PATH], mutants[ASSAY_PATH], names[MAX_CASES][64];
    char **paths = NULL;
    int n = 0, n_cases = 0;
    assay_status st = ASSAY_OK;
    if (s->o->report[0])
        ASSAY_TRY_GOTO(parity_report_create(&s->told), st, done);
    ASSAY_TRY_GOTO(default_paths(s, "", case_file, mutants), st, done);
    ASSAY_TRY_GOTO(parity_cases_list(mutants, &paths, &n), st, done);
    ASSAY_TRY_GOTO(cases_of(s, mutants, paths, n, names, &n_cases), st, done);
    for (int k = 0; k < n_cases; k++) {
        if (k > 0)
            tear_down(s);
        ASSAY_TRY_GOTO(default_paths(s, names[k], case_file, mutants), st, done);
        ASSAY_TRY_GOTO(set_up(s, case_file), st, done);
        printf("engine %s (%s), case %s, %d faults in all\n", s->engine.name, s->engine.program, s->c.name,
               n);
        ASSAY_TRY_GOTO(run_mutants(s, names[k], paths, n), st, done);
    }
    printf("mutation score: %lld of %lld (%.1f %%)\n", (long long)s->caught, (long long)s->tried,
           100.0 * (double)s->caught / (double)s->tried);
    ASSAY_TRY_GOTO(write_told(s), st, done);
done:
    for (int i = 0; i < n; i++)
        free(paths[i]);
    free(paths);
    parity_report_destroy(s->told);
    s->told = NULL;
    return st;
}

/* --- command ------------------------------------------------------------------------------------------------ */

static assay_status on_option(void *user, const char *name, const char *text)
{
    selftest_options *o = user;
    ASSAY_CHECK(name != NULL, ASSAY_INVALID_ARGUMENT, "expected no arguments, found '%s'", text);
    const struct {
        const char *name;
        char *out;
        size_t capacity;
    } table[] = {{"engine", o->engine, sizeof o->engine},
                 {"engine_program", o->engine_program, sizeof o->engine_program},
                 {"mutants", o->mutants, sizeof o->mutants},
                 {"case_file", o->case_file, sizeof o->case_file},
                 {"only", o->only, sizeof o->only},
                 {"report", o->report, sizeof o->report}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(table[i].name, name) != 0)
            continue;
        ASSAY_CHECK(text && strlen(text) < table[i].capacity, ASSAY_LIMIT, "--%s: too long", name);
        snprintf(table[i].out, table[i].capacity, "%s", text);
        return ASSAY_OK;
    }
    o->keep = true;
    return ASSAY_OK;
}

int parity_main_selftest(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"engine", "auto|gpu|sim", "which engine (default auto)"},
        {"engine_program", "PATH", "this engine program"},
        {"mutants", "DIR", "folder of the faults (default: those that come with assay)"},
        {"case_file", "FILE", "case that is trained (default: qwen3_moe.json)"},
        {"only", "NAME", "this fault alone"},
        {"report", "DIR", "also write results.jsonl and index.html: what the judge says of each fault"},
        {"keep", NULL, "keep traces and logs"},
        {NULL, NULL, NULL}};
    selftest_options o = {.engine = "auto"};
    selftest *s = calloc(1, sizeof *s);
    int code = 2;
    assay_status st =
        s ? assay_options_parse(argc, argv,
                                "Plants faults in the engine and in its traces and demands that the "
                                "judge finds each one where it was planted.",
                                "", NULL, 0, extra, on_option, &o)
          : ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "selftest");
    if (st == ASSAY_OK) {
        s->o = &o;
        st = run_selftest(s);
        if (st != ASSAY_OK) {
            assay_error_print(stderr, "assay selftest", 0); /* before tearing down can say something else */
            s->skipped++;
        }
        tear_down(s);
        code = s->failed > 0 ? 1 : st != ASSAY_OK || s->skipped > 0 || s->passed == 0 ? 2 : 0;
    } else {
        assay_error_print(stderr, "assay selftest", 0);
    }
    if (st == ASSAY_OK)
        printf("%lld passed, %lld failed, %lld skipped\n", (long long)s->passed, (long long)s->failed,
               (long long)s->skipped);
    free(s);
    return code;
}
