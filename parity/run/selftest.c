/* `assay selftest`: the judge is judged.
 *
 * A small case, or the one that a mutant names, is trained once for each layout that the mutants need; the clean traces must not
 * fail in any check.  Then every fault of parity/mutants is planted, in a copy of a recorded trace or by the engine
 * itself, and the check that must find it has to name the operation where it was planted.  Prints a table and
 * the mutation score. */
#include "core/base/file.h"
#include "core/files/checkpoint.h"
#include "parity/run/mutant.h"
#include "parity/run/run.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TRACES = 64, MAX_CASES = 4, STEPS = 2 };

typedef struct selftest_options {
    char engine[8], engine_program[ASSAY_PATH], mutants[ASSAY_PATH], case_file[ASSAY_PATH], only[64],
        report[ASSAY_PATH];
    bool keep;
} selftest_options;

/* A clean run in one layout and precision. */
typedef struct clean_run {
    char layout[ASSAY_LAYOUT_TEXT];
    assay_precision precision;
    char dir[ASSAY_PATH], save[ASSAY_PATH];
    assay_trace *trace;
} clean_run;

typedef struct selftest {
    const selftest_options *o;
    char dir[ASSAY_PATH]; /* scratch */
    parity_engine engine;
    parity_case c;
    assay_train_options train;
    assay_model_config *config;
    assay_model_spec *spec;
    assay_batches batches;
    double **weights;
    parity_whole_cache *cache[2]; /* fp32, bf16 */
    int n_clean;
    clean_run clean[MAX_TRACES];
    int n_runs; /* engine runs so far: names of folders */
    int64_t passed, failed, skipped;
    int64_t tried, caught; /* faults */
    parity_report *told;   /* what the judge said of them; NULL: nobody asks */
} selftest;

/* --- runs --------------------------------------------------------------------------------------------------- */

static assay_status scratch(selftest *s, const char *name, char out[ASSAY_PATH])
{
    const int n = snprintf(out, ASSAY_PATH, "%s/%s-%d", s->dir, name, s->n_runs++);
    ASSAY_CHECK(n > 0 && n < ASSAY_PATH, ASSAY_LIMIT, "%s: path too long", s->dir);
    return ASSAY_OK;
}

static assay_status run_engine(selftest *s, const char *layout, const char *fault, char trace[ASSAY_PATH],
                               char save[ASSAY_PATH])
{
    char log[ASSAY_PATH];
    assay_train_options o = s->train;
    ASSAY_TRY(scratch(s, "trace", trace));
    ASSAY_TRY(scratch(s, "save", save));
    ASSAY_TRY(scratch(s, "log", log));
    ASSAY_TRY(scratch(s, "out", o.out));
    snprintf(o.trace, sizeof o.trace, "%s", trace);
    snprintf(o.save, sizeof o.save, "%s", save);
    o.save_differing_replicas = true;
    snprintf(o.layout, sizeof o.layout, "%s", layout);
    snprintf(o.fault, sizeof o.fault, "%s", fault);
    return parity_engine_run(&s->engine, "step", &o, NULL, log, true, 120.0, NULL);
}

static assay_status clean_of(selftest *s, const char *layout, clean_run **out)
{
    for (int i = 0; i < s->n_clean; i++) {
        if (strcmp(s->clean[i].layout, layout) == 0 && s->clean[i].precision == s->train.precision) {
            *out = &s->clean[i];
            return ASSAY_OK;
        }
    }
    ASSAY_CHECK(s->n_clean < MAX_TRACES, ASSAY_LIMIT, "mutants use more than %d layouts", (int)MAX_TRACES);
    clean_run *c = &s->clean[s->n_clean];
    memset(c, 0, sizeof *c);
    snprintf(c->layout, sizeof c->layout, "%s", layout);
    c->precision = s->train.precision;
    ASSAY_TRY(run_engine(s, layout, "", c->dir, c->save));
    ASSAY_TRY(assay_trace_open(&c->trace, c->dir, true));
    s->n_clean++;
    *out = c;
    return ASSAY_OK;
}

/* --- judging ------------------------------------------------------------------------------------------------ */

static assay_status judge(selftest *s, const assay_trace *t, const char *layout, parity_check check,
                          parity_report *report)
{
    assay_parallel_config p;
    assay_grid grid;
    switch (check) {
    case PARITY_CHECK_ASSEMBLE:
        return parity_check_assemble(t, report);
    case PARITY_CHECK_LOCAL:
        return parity_check_local(t, report);
    case PARITY_CHECK_ROUTING:
        return parity_check_routing(t, report);
    case PARITY_CHECK_WHOLE:
        return parity_check_whole(s->cache[s->train.precision == ASSAY_PRECISION_BF16], t, report);
    case PARITY_CHECK_FLOW:
        return parity_check_flow(t, s->spec, report);
    case PARITY_CHECK_PLAN:
        ASSAY_TRY(assay_layout_parse(layout, &p));
        ASSAY_TRY(assay_grid_make(&p, &grid));
        ASSAY_TRY(assay_grid_check_model(&grid, &s->spec->config));
        return parity_check_plan(t, s->spec, &grid, &s->train, &s->batches, report);
    default:
        ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "the %s check does not read a trace", parity_check_name(check));
    }
}

static assay_status judge_copy(selftest *s, const parity_mutant *m, parity_report *report)
{
    clean_run *c;
    char dir[ASSAY_PATH];
    assay_trace *t = NULL;
    ASSAY_TRY(clean_of(s, m->layout, &c));
    ASSAY_TRY(scratch(s, "mutant", dir));
    ASSAY_TRY(parity_trace_mutate(c->trace, dir, &m->mutation));
    ASSAY_TRY(assay_trace_open(&t, dir, true));
    const assay_status st = m->kind == PARITY_MUTANT_BITWISE
                                ? parity_check_bitwise_traces(c->trace, t, "repeat", 0, report)
                                : judge(s, t, m->layout, m->expected_check, report);
    assay_trace_close(t);
    return st;
}

static assay_status judge_engine(selftest *s, const parity_mutant *m, parity_report *report)
{
    char dir[ASSAY_PATH], save[ASSAY_PATH];
    clean_run *c; /* the same layout without the fault must pass */
    assay_trace *t = NULL;
    ASSAY_TRY(clean_of(s, m->layout, &c));
    ASSAY_TRY(run_engine(s, m->layout, m->mutation.kind, dir, save));
    ASSAY_TRY(assay_trace_open(&t, dir, true));
    const assay_status st = judge(s, t, m->layout, m->expected_check, report);
    assay_trace_close(t);
    return st;
}

static assay_status answer_request(selftest *s, const char *layout, char request[ASSAY_PATH],
                                   char answer[ASSAY_PATH])
{
    char log[ASSAY_PATH], option[ASSAY_PATH + 16], out[ASSAY_PATH + 16];
    assay_train_options o;
    int world;
    assay_train_options_default(&o);
    ASSAY_TRY(parity_layout_world(layout, &world));
    ASSAY_TRY(scratch(s, "request", request));
    ASSAY_TRY(scratch(s, "answer", answer));
    ASSAY_TRY(scratch(s, "log", log));
    ASSAY_TRY(parity_exact_request(request, world, "F32"));
    snprintf(o.layout, sizeof o.layout, "%s", layout);
    snprintf(option, sizeof option, "--request=%s", request);
    snprintf(out, sizeof out, "--out=%s", answer);
    const char *extra[] = {option, out, NULL};
    return parity_engine_run(&s->engine, "ops", &o, extra, log, true, 120.0, NULL);
}

static assay_status judge_exact(selftest *s, const parity_mutant *m, parity_report *report)
{
    char request[ASSAY_PATH], answer[ASSAY_PATH], dir[ASSAY_PATH];
    assay_trace *t = NULL;
    ASSAY_TRY(answer_request(s, m->layout, request, answer));
    ASSAY_TRY(scratch(s, "mutant", dir));
    ASSAY_TRY(assay_trace_open(&t, answer, true));
    const assay_status st = parity_trace_mutate(t, dir, &m->mutation);
    assay_trace_close(t);
    ASSAY_TRY(st);
    return parity_check_exact(request, dir, report);
}

/* One tensor of the copy: the element in the middle of the wanted one changes in its lowest bit. */
static assay_status copy_state(const assay_checkpoint *from, int64_t index, const parity_mutant *m,
                               assay_checkpoint_writer *to, bool *planted)
{
    const char *family, *name;
    assay_dtype dtype;
    assay_shard whole;
    assay_checkpoint_at(from, index, &family, &name, &dtype, &whole);
    const int64_t count = assay_shard_count(&whole);
    unsigned char *data = calloc((size_t)count + 1, (size_t)assay_dtype_bytes(dtype));
    ASSAY_CHECK(data, ASSAY_OUT_OF_MEMORY, "%s", name);
    assay_status st = assay_checkpoint_read(from, family, name, dtype, &whole, data);
    if (st == ASSAY_OK && count > 0 && strcmp(family, m->mutation.kind) == 0 &&
        strcmp(name, m->expected_instance) == 0) {
        data[count / 2 * assay_dtype_bytes(dtype)] ^= 1u;
        *planted = true;
    }
    if (st == ASSAY_OK)
        st = assay_checkpoint_add(to, family, name, dtype, &whole, data, true);
    free(data);
    return st;
}

static assay_status copy_checkpoint(const char *from, const char *to, const parity_mutant *m)
{
    assay_checkpoint *c = NULL;
    assay_checkpoint_writer *w = NULL;
    json_t *header = NULL;
    bool planted = false;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(assay_checkpoint_open(&c, from), st, done);
    const int64_t step = json_integer_value(json_object_get(assay_checkpoint_header(c), "step"));
    ASSAY_TRY_GOTO(assay_checkpoint_writer_open(&w, to, assay_checkpoint_job(), step, 0, 1,
                                                assay_checkpoint_content_of(c)),
                   st, done);
    for (int64_t i = 0; i < assay_checkpoint_count(c); i++)
        ASSAY_TRY_GOTO(copy_state(c, i, m, w, &planted), st, done);
    ASSAY_CHECK_GOTO(planted, ASSAY_NOT_FOUND, st, done, "%s: no %s of %s in the checkpoint", m->name,
                     m->mutation.kind, m->expected_instance);
    header = json_deep_copy(assay_checkpoint_header(c));
    ASSAY_TRY_GOTO(assay_checkpoint_write_alone(w, header), st, done);
done:
    json_decref(header);
    assay_checkpoint_writer_destroy(w);
    assay_checkpoint_close(c);
    return st;
}

static assay_status judge_checkpoint(selftest *s, const parity_mutant *m, parity_report *report)
{
    clean_run *c;
    char dir[ASSAY_PATH];
    ASSAY_TRY(clean_of(s, m->layout, &c));
    ASSAY_TRY(scratch(s, "checkpoint", dir));
    ASSAY_TRY(copy_checkpoint(c->save, dir, m));
    return parity_check_checkpoints(c->save, dir, "copy", report);
}

/* Results of one fault, under its name: a page shows what the judge says of each. */
static assay_status tell(selftest *s, const parity_mutant *m, const parity_report *report)
{
    if (s->told == NULL)
        return ASSAY_OK;
    for (int64_t i = 0; i < parity_report_count(report); i++) {
        parity_result r = *parity_report_at(report, i);
        const parity_drawn drawn = parity_report_drawn(report, &r);
        snprintf(r.case_name, sizeof r.case_name, "%s", m->name);
        snprintf(r.precision, sizeof r.precision, "%s", assay_precision_name(s->train.precision));
        snprintf(r.layout, sizeof r.layout, "%s", m->layout);
        ASSAY_TRY(parity_report_add_drawn(s->told, &r, &drawn));
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
    switch (m->kind) {
    case PARITY_MUTANT_ENGINE:
        st = judge_engine(s, m, report);
        break;
    case PARITY_MUTANT_EXACT:
        st = judge_exact(s, m, report);
        break;
    case PARITY_MUTANT_CHECKPOINT:
        st = judge_checkpoint(s, m, report);
        break;
    default:
        st = judge_copy(s, m, report);
    }
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
        st = judge(s, c->trace, c->layout, checks[i], report);
    parity_report_totals(report, &passed, &failed, &skipped);
    const bool good = st == ASSAY_OK && failed == 0 && skipped == 0 && passed > 0;
    printf("  %-30s %-12s %-4s %-10s %s %lld claims hold, %lld fail, %lld skipped\n", "(no fault)", c->layout,
           assay_precision_name(c->precision), "all",
           good ? "clean:" : "FAIL, false alarm:", (long long)passed, (long long)failed, (long long)skipped);
    for (int64_t i = 0; i < parity_report_count(report) && failed > 0; i++) {
        const parity_result *r = parity_report_at(report, i);
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
    ASSAY_TRY(assay_spec_build(s->config, &s->spec));
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
static assay_status cases_of(const selftest *s, char *const *paths, int n, char names[MAX_CASES][64],
                             int *count)
{
    *count = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n; i++) {
            parity_mutant m;
            bool known = false;
            ASSAY_TRY(parity_mutant_load(paths[i], &m));
            for (int k = 0; k < *count; k++)
                known = known || strcmp(names[k], m.case_name) == 0;
            if (known || (pass == 0) != (m.case_name[0] == '\0') ||
                (s->o->only[0] && strcmp(s->o->only, m.name) != 0))
                continue;
            ASSAY_CHECK(*count < MAX_CASES, ASSAY_LIMIT, "mutants name more than %d cases", (int)MAX_CASES);
            snprintf(names[(*count)++], sizeof names[0], "%s", m.case_name);
        }
    ASSAY_CHECK(*count > 0, ASSAY_NOT_FOUND, "no mutant%s%s", s->o->only[0] ? " is called " : "", s->o->only);
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
    ASSAY_TRY_GOTO(cases_of(s, paths, n, names, &n_cases), st, done);
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
