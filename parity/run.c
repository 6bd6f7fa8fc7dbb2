/* `assay run`: builds the list of tasks, runs them in child processes, merges their results, writes the
 * reports. */
#include "parity/run.h"
#include "core/log.h"
#include "parity/report/report_files.h"
#include <cblas.h>
#include <errno.h>
#include <omp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_CASES = 32, MAX_TASKS = 1024, MAX_JOBS = 16 };

typedef struct run_state {
    parity_run_options o;
    parity_engine engine;
    parity_case *cases;
    int n_cases;
    parity_task *tasks;
    int n_tasks;
    int *status; /* of each task's child */
    pid_t pids[MAX_JOBS];
    int running[MAX_JOBS]; /* task of each child, -1 = free */
    parity_report *report;
    json_t *facts;
} run_state;

/* --- options
 * ---------------------------------------------------------------------------------------------------- */
static const assay_extra_option EXTRA[] = {
    {"engine", "auto|gpu|sim", "which engine (auto: the GPU where one answers, else the simulator)"},
    {"engine_program", "PATH", "use this engine program"},
    {"report", "DIR", "where results.jsonl, junit.xml, index.html and scratch files go (default report)"},
    {"case", "NAME", "only this case; may be repeated"},
    {"layout", "LAYOUT", "this layout instead of the case's list; may be repeated"},
    {"precision", "fp32|bf16", "only this precision"},
    {"check", "NAME", "only this check"},
    {"jobs", "N", "tasks side by side (default: processors)"},
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
    char tail;
    ASSAY_CHECK(sscanf(text, "%d/%d%c", &o->shard, &o->shards, &tail) == 2 && o->shard >= 1 &&
                    o->shards >= o->shard,
                ASSAY_INVALID_ARGUMENT, "--shard: expected I/N with 1 <= I <= N, found %s", text);
    return ASSAY_OK;
}

static assay_status parse_check(parity_run_options *o, const char *text)
{
    char known[128] = "";
    for (int k = 0; k < PARITY_CHECK_COUNT; k++) {
        const char *name = parity_check_name((parity_check)k);
        if (strcmp(text, name) == 0)
            return copy_text(o->check, sizeof o->check, "check", text);
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", k > 0 ? ", " : "", name);
    }
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "--check: expected one of %s, found %s", known, text);
}

static assay_status on_option(void *user, const char *name, const char *text)
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
        ASSAY_CHECK(strcmp(text, "fp32") == 0 || strcmp(text, "bf16") == 0, ASSAY_INVALID_ARGUMENT,
                    "--precision: expected fp32 or bf16, found %s", text);
        return copy_text(o->precision, sizeof o->precision, name, text);
    }
    if (strcmp(name, "shard") == 0)
        return parse_shard(o, text);
    if (strcmp(name, "jobs") == 0)
        return parse_int(name, text, 1, MAX_JOBS, &o->jobs);
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

/* --- the matrix
 * --------------------------------------------------------------------------------------------------- */
static bool case_wanted(const run_state *s, const char *name)
{
    for (int i = 0; i < s->o.n_cases; i++)
        if (strcmp(s->o.cases[i], name) == 0)
            return true;
    return s->o.n_cases == 0;
}

static assay_status load_cases(run_state *s)
{
    char dir[ASSAY_PATH];
    char **paths = NULL;
    int n = 0;
    assay_status st = ASSAY_OK;
    if (s->o.n_files == 0) {
        ASSAY_TRY(parity_cases_dir(dir, sizeof dir));
        ASSAY_TRY(parity_cases_list(dir, &paths, &n));
    }
    const int total = s->o.n_files > 0 ? s->o.n_files : n;
    ASSAY_CHECK_GOTO(total >= 1 && total <= MAX_CASES, ASSAY_NOT_FOUND, st, done,
                     "expected 1 to %d case files, found %d", MAX_CASES, total);
    for (int i = 0; i < total; i++) {
        parity_case *c = &s->cases[s->n_cases];
        ASSAY_TRY_GOTO(parity_case_load(s->o.n_files > 0 ? s->o.files[i] : paths[i], c), st, done);
        if (!case_wanted(s, c->name)) {
            parity_case_free(c);
            continue;
        }
        s->n_cases++;
    }
done:
    for (int i = 0; i < n; i++)
        free(paths[i]);
    free(paths);
    return st;
}

static assay_status add_task(run_state *s, const parity_case *c, assay_precision precision,
                             const char *layout, const char *next)
{
    ASSAY_CHECK(s->n_tasks < MAX_TASKS, ASSAY_LIMIT, "more than %d tasks: use --shard", MAX_TASKS);
    parity_task *t = &s->tasks[s->n_tasks++];
    t->c = c;
    t->precision = precision;
    snprintf(t->layout, sizeof t->layout, "%s", layout);
    snprintf(t->next_layout, sizeof t->next_layout, "%s", next);
    const char *name = c != NULL ? c->name : "operations";
    const int a = snprintf(t->case_dir, ASSAY_PATH, "%s/work/%s", s->o.report_dir, name);
    const int b = snprintf(t->dir, ASSAY_PATH, "%s/work/%s/%s-%s", s->o.report_dir, name,
                           assay_precision_name(precision), layout);
    ASSAY_CHECK(a < ASSAY_PATH && b < ASSAY_PATH, ASSAY_LIMIT, "--report: path too long");
    return ASSAY_OK;
}

static bool precision_wanted(const run_state *s, assay_precision p)
{
    return s->o.precision[0] == 0 || strcmp(s->o.precision, assay_precision_name(p)) == 0;
}

static assay_status case_tasks(run_state *s, const parity_case *c)
{
    const int n = s->o.n_layouts > 0 ? s->o.n_layouts : c->n_layouts;
    for (int p = 0; p < c->n_precisions; p++) {
        if (!precision_wanted(s, c->precisions[p]))
            continue;
        for (int i = 0; i < n; i++) {
            const char *layout = s->o.n_layouts > 0 ? s->o.layouts[i] : c->layouts[i];
            /* The checkpoint moves to the next layout of the case's own list, round and round. */
            int k = 0;
            while (k < c->n_layouts && strcmp(c->layouts[k], layout) != 0)
                k++;
            ASSAY_TRY(add_task(s, c, c->precisions[p], layout, c->layouts[(k + 1) % c->n_layouts]));
        }
    }
    return ASSAY_OK;
}

static assay_status make_tasks(run_state *s)
{
    static const char *const exact_layouts[] = {"1", "dp3"};
    static const assay_precision both[] = {ASSAY_PRECISION_FP32, ASSAY_PRECISION_BF16};
    const bool exact =
        (s->o.check[0] == 0 || strcmp(s->o.check, "exact") == 0) && case_wanted(s, "operations");
    for (size_t p = 0; exact && s->o.n_files == 0 && p < 2; p++)
        for (size_t i = 0; i < 2 && precision_wanted(s, both[p]); i++)
            ASSAY_TRY(add_task(s, NULL, both[p], exact_layouts[i], "1"));
    for (int i = 0; i < s->n_cases; i++)
        ASSAY_TRY(case_tasks(s, &s->cases[i]));
    int kept = 0;
    for (int i = 0; s->o.shards > 0 && i < s->n_tasks; i++)
        if (i % s->o.shards == s->o.shard - 1)
            s->tasks[kept++] = s->tasks[i];
    if (s->o.shards > 0)
        s->n_tasks = kept;
    ASSAY_CHECK(s->n_tasks > 0, ASSAY_INVALID_ARGUMENT,
                "nothing to run: no case matches --case, --precision and --shard");
    return ASSAY_OK;
}

/* " --clip-grad=1" at the end of o->overrides. */
static void remember_override(parity_run_options *o, const char *key, const json_t *value)
{
    const size_t at = strlen(o->overrides);
    char text[128];
    if (json_is_string(value))
        snprintf(text, sizeof text, "%s", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, sizeof text, "%.17g", json_real_value(value));
    else
        snprintf(text, sizeof text, "%s", json_is_true(value) ? "true" : "false");
    snprintf(o->overrides + at, sizeof o->overrides - at, " --%s=%s", key, text);
    for (char *p = o->overrides + at + 3; *p != 0 && *p != '='; p++)
        if (*p == '_')
            *p = '-';
}

static assay_status apply_overrides(run_state *s, const assay_train_options *given)
{
    assay_train_options defaults;
    assay_status st = ASSAY_OK;
    assay_train_options_default(&defaults);
    json_t *have = assay_train_options_to_json(given), *base = assay_train_options_to_json(&defaults);
    json_t *changed = json_object();
    const char *key;
    json_t *value;
    ASSAY_CHECK_GOTO(have != NULL && base != NULL && changed != NULL, ASSAY_OUT_OF_MEMORY, st, done,
                     "options");
    json_object_foreach(have, key, value)
    {
        if (json_equal(value, json_object_get(base, key)))
            continue;
        json_object_set(changed, key, value);
        remember_override(&s->o, key, value);
    }
    for (int i = 0; i < s->n_cases; i++)
        ASSAY_TRY_GOTO(assay_train_options_from_json(&s->cases[i].options, changed, "command line"), st,
                       done);
done:
    json_decref(have);
    json_decref(base);
    json_decref(changed);
    return st;
}

/* --- children
 * ----------------------------------------------------------------------------------------------------- */
static void part_path(const run_state *s, int task, const char *extension, char out[ASSAY_PATH + 64])
{
    snprintf(out, ASSAY_PATH + 64, "%s/work/part-%04d.%s", s->o.report_dir, task, extension);
}

static const char *task_label(const parity_task *t, char *out, size_t capacity)
{
    snprintf(out, capacity, "%s %s %s", t->c != NULL ? t->c->name : "operations",
             assay_precision_name(t->precision), t->layout);
    return out;
}

/* In the child: runs the task, writes its part; a task that could not run is one skipped result with the
 * reason. */
static int child_main(run_state *s, int index)
{
    char path[ASSAY_PATH + 64];
    const parity_task *t = &s->tasks[index];
    parity_report *report = NULL;
    json_t *facts = json_object();
    /* Tasks side by side share the processors; waiting OpenMP threads of one would slow the other down many
     * times. */
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    openblas_set_num_threads(1);
    omp_set_num_threads(processors > s->o.jobs ? (int)(processors / s->o.jobs) : 1);
    if (parity_report_create(&report) != ASSAY_OK)
        return 2;
    if (parity_run_task(&s->o, &s->engine, t, report, facts) != ASSAY_OK) {
        parity_result r;
        parity_result_init(&r);
        r.check = t->c == NULL ? PARITY_CHECK_EXACT : PARITY_CHECK_WHOLE;
        r.verdict = PARITY_SKIP;
        snprintf(r.message, sizeof r.message, "did not run: %.490s", assay_error_message());
        (void)parity_report_add(report, &r);
    }
    part_path(s, index, "jsonl", path);
    assay_status st = parity_report_jsonl(report, path);
    part_path(s, index, "facts.json", path);
    if (st == ASSAY_OK)
        st = assay_json_save(facts, path);
    int64_t passed, failed, skipped;
    parity_report_totals(report, &passed, &failed, &skipped);
    if (st == ASSAY_OK && failed == 0 && skipped == 0 && !s->o.keep)
        st = assay_remove_tree(t->dir, s->o.report_dir);
    if (st != ASSAY_OK)
        assay_error_print(stderr, "assay run", 0);
    parity_report_destroy(report);
    json_decref(facts);
    return st == ASSAY_OK ? 0 : 2;
}

static assay_status start_task(run_state *s, int slot, int index)
{
    fflush(NULL);
    const pid_t pid = fork();
    ASSAY_CHECK(pid >= 0, ASSAY_IO, "fork: %s", strerror(errno));
    if (pid == 0)
        _exit(child_main(s, index));
    s->pids[slot] = pid;
    s->running[slot] = index;
    return ASSAY_OK;
}

/* Takes over the part of a finished child; a child that died leaves a skipped result. */
static assay_status collect(run_state *s, int index, int status)
{
    char path[ASSAY_PATH + 64], label[ASSAY_LAYOUT_TEXT + 96];
    json_t *facts = NULL;
    const parity_task *t = &s->tasks[index];
    part_path(s, index, "jsonl", path);
    const int64_t before = parity_report_count(s->report);
    const bool loaded = WIFEXITED(status) && WEXITSTATUS(status) == 0 &&
                        parity_report_load_jsonl(s->report, path) == ASSAY_OK;
    const bool empty = parity_report_count(s->report) == before;
    if (loaded && empty && s->o.check[0] != 0)
        return ASSAY_OK; /* --check asks for one that this case does not have, as routing of a dense model */
    if (loaded && !empty) {
        part_path(s, index, "facts.json", path);
        if (assay_json_load(&facts, path) == ASSAY_OK)
            json_object_set_new(s->facts, task_label(t, label, sizeof label), facts);
        return ASSAY_OK;
    }
    parity_result r;
    parity_result_init(&r);
    r.check = t->c == NULL ? PARITY_CHECK_EXACT : PARITY_CHECK_WHOLE;
    snprintf(r.case_name, sizeof r.case_name, "%s", t->c != NULL ? t->c->name : "operations");
    snprintf(r.layout, sizeof r.layout, "%s", t->layout);
    snprintf(r.precision, sizeof r.precision, "%s", assay_precision_name(t->precision));
    snprintf(r.engine, sizeof r.engine, "%s", s->engine.name);
    if (WIFSIGNALED(status))
        snprintf(r.message, sizeof r.message, "the judge died of signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(r.message, sizeof r.message, "the judge left no result%s%.400s", loaded ? "" : ": ",
                 loaded ? "" : assay_error_message());
    return parity_report_add(s->report, &r);
}

static assay_status wait_one(run_state *s, int *finished)
{
    int status = 0;
    pid_t pid;
    while ((pid = waitpid(-1, &status, 0)) < 0)
        ASSAY_CHECK(errno == EINTR, ASSAY_IO, "waitpid: %s", strerror(errno));
    for (int k = 0; k < s->o.jobs; k++)
        if (s->running[k] >= 0 && s->pids[k] == pid) {
            const int index = s->running[k];
            s->running[k] = -1;
            (*finished)++;
            s->status[index] = status;
            return ASSAY_OK;
        }
    return ASSAY_OK;
}

static assay_status run_tasks(run_state *s, assay_progress *progress)
{
    int next = 0, active = 0, finished = 0;
    char label[ASSAY_LAYOUT_TEXT + 96];
    for (int k = 0; k < MAX_JOBS; k++)
        s->running[k] = -1;
    while (finished < s->n_tasks) {
        for (int k = 0; k < s->o.jobs && next < s->n_tasks; k++)
            if (s->running[k] < 0) {
                ASSAY_TRY(start_task(s, k, next));
                if (progress != NULL)
                    assay_progress_update(progress, finished,
                                          task_label(&s->tasks[next], label, sizeof label));
                next++;
            }
        active = finished;
        ASSAY_TRY(wait_one(s, &finished));
        if (progress != NULL && finished != active)
            assay_progress_update(progress, finished, next < s->n_tasks ? label : "finishing");
    }
    /* In the order of the matrix, whoever finished first. */
    for (int i = 0; i < s->n_tasks; i++)
        ASSAY_TRY(collect(s, i, s->status[i]));
    return ASSAY_OK;
}

static assay_status prepare(run_state *s)
{
    char work[ASSAY_PATH + 16];
    snprintf(work, sizeof work, "%s/work", s->o.report_dir);
    for (int i = 0; i < s->n_cases; i++)
        ASSAY_TRY(parity_check_case(&s->cases[i]));
    ASSAY_TRY(assay_mkdir_p(s->o.report_dir));
    /* Scratch of an earlier run: ours by name, and only below the report folder. */
    if (access(work, F_OK) == 0)
        ASSAY_TRY(assay_remove_tree(work, s->o.report_dir));
    ASSAY_TRY(assay_mkdir_p(work));
    for (int i = 0; i < s->n_cases; i++) {
        char dir[ASSAY_PATH + 96];
        snprintf(dir, sizeof dir, "%s/%s", work, s->cases[i].name);
        ASSAY_TRY(assay_mkdir_p(dir));
        ASSAY_TRY(parity_prepare_case(&s->cases[i], dir));
    }
    return ASSAY_OK;
}

static assay_status write_reports(run_state *s, double wall_s)
{
    char path[ASSAY_PATH + 32];
    json_t *head = json_pack("{s:s,s:s,s:s,s:i,s:f}", "engine", s->engine.name, "program", s->engine.program,
                             "why", s->engine.reason, "tasks", s->n_tasks, "wall time, s", wall_s);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(head != NULL, ASSAY_OUT_OF_MEMORY, "report");
    snprintf(path, sizeof path, "%s/results.jsonl", s->o.report_dir);
    ASSAY_TRY_GOTO(parity_report_jsonl(s->report, path), st, done);
    snprintf(path, sizeof path, "%s/junit.xml", s->o.report_dir);
    ASSAY_TRY_GOTO(parity_report_junit(s->report, path), st, done);
    snprintf(path, sizeof path, "%s/index.html", s->o.report_dir);
    ASSAY_TRY_GOTO(parity_report_html(s->report, path, "assay run", head), st, done);
    json_object_set(head, "times", s->facts);
    snprintf(path, sizeof path, "%s/facts.json", s->o.report_dir);
    ASSAY_TRY_GOTO(assay_json_save(head, path), st, done);
done:
    json_decref(head);
    return st;
}

static assay_status run(run_state *s, const assay_train_options *given)
{
    assay_progress *progress = NULL;
    const double t0 = assay_monotonic_s();
    ASSAY_TRY(parity_engine_find(s->o.engine, s->o.engine_program, &s->engine));
    printf("assay run: engine %s (%s)\n", s->engine.name, s->engine.reason);
    fflush(stdout);
    ASSAY_TRY(load_cases(s));
    ASSAY_TRY(apply_overrides(s, given));
    ASSAY_TRY(make_tasks(s));
    ASSAY_TRY(prepare(s));
    ASSAY_TRY(parity_report_create(&s->report));
    s->facts = json_object();
    if (!s->o.quiet)
        ASSAY_TRY(assay_progress_create(&progress, stderr, "assay run", s->n_tasks));
    const assay_status st = run_tasks(s, progress);
    assay_progress_destroy(progress);
    ASSAY_TRY(st);
    const double wall = assay_monotonic_s() - t0;
    ASSAY_TRY(write_reports(s, wall));
    parity_report_table(s->report, stdout);
    printf("\n%d tasks in %.1f s; report: %s/index.html\n", s->n_tasks, wall, s->o.report_dir);
    return ASSAY_OK;
}

int parity_main_run(int argc, char **argv)
{
    int code = 2;
    assay_train_options given;
    run_state *s = calloc(1, sizeof *s);
    assay_train_options_default(&given);
    if (s != NULL) {
        s->cases = calloc(MAX_CASES, sizeof *s->cases);
        s->tasks = calloc(MAX_TASKS, sizeof *s->tasks);
        s->status = calloc(MAX_TASKS, sizeof *s->status);
    }
    if (s == NULL || s->cases == NULL || s->tasks == NULL || s->status == NULL) {
        fputs("assay run: out of memory\n", stderr);
        free(s != NULL ? s->cases : NULL);
        free(s != NULL ? s->tasks : NULL);
        free(s != NULL ? s->status : NULL);
        free(s);
        return 2;
    }
    snprintf(s->o.engine, sizeof s->o.engine, "auto");
    snprintf(s->o.report_dir, sizeof s->o.report_dir, "report");
    s->o.timeout_s = 600;
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    s->o.jobs = processors < 1 ? 1 : processors > MAX_JOBS ? MAX_JOBS : (int)processors;
    assay_status st =
        assay_options_parse(argc, argv, "Parity of the engine with the reference over a matrix of layouts.",
                            "[CASE.json ...]", &given, EXTRA, on_option, &s->o);
    if (st == ASSAY_OK)
        st = run(s, &given);
    if (st != ASSAY_OK)
        assay_error_print(stderr, "assay run", 0);
    int64_t passed = 0, failed = 0, skipped = 0;
    if (s->report != NULL)
        parity_report_totals(s->report, &passed, &failed, &skipped);
    if (st == ASSAY_OK) {
        printf("%lld passed, %lld failed, %lld skipped\n", (long long)passed, (long long)failed,
               (long long)skipped);
        code = failed > 0 ? 1 : skipped > 0 || passed == 0 ? 2 : 0;
    }
    for (int i = 0; i < s->n_cases; i++)
        parity_case_free(&s->cases[i]);
    parity_report_destroy(s->report);
    parity_engine_free(&s->engine);
    json_decref(s->facts);
    free(s->cases);
    free(s->tasks);
    free(s->status);
    free(s);
    return code;
}
