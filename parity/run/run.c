/* `assay run`: builds the list of tasks, runs them in child processes, merges their results, writes the
 * reports. */
#include "parity/run/run.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "parity/report/report_files.h"
#include "parity/run/report_folder.h"
#include "parity/run/report_write.h"
#include <cblas.h>
#include <errno.h>
#include <omp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- being stopped ------------------------------------------------------------------------------------------ */
static volatile sig_atomic_t stopped_by; /* the signal that asks for an end; 0: none */

static void on_stop(int number)
{
    stopped_by = number;
}

/* SIGTERM, SIGINT, SIGHUP end the run with a report of what was done so far.  Without SA_RESTART: waitpid returns. */
static void catch_stop(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    struct sigaction action = {.sa_handler = on_stop};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaction(numbers[i], &action, NULL);
}

/* In a child: the parent's handlers are not its own, and it ends with its parent however that one ends. */
static void end_with_parent(pid_t parent)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        signal(numbers[i], SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(2); /* it ended before prctl */
}

/* --- children ----------------------------------------------------------------------------------------------- */
static void part_path(const parity_run_state *s, int task, const char *extension, char out[ASSAY_PATH + 64])
{
    snprintf(out, ASSAY_PATH + 64, "%s/work/part-%04d.%s", s->o.report_dir, task, extension);
}

static const char *task_label(const parity_task *t, char out[PARITY_TASK_LABEL])
{
    parity_task_label(parity_task_name(t), assay_precision_name(t->precision), t->layout, t->variant, out);
    return out;
}

enum { NOT_RUN = -1 }; /* in place of a wait status */

/* How a child ends: its part is written, and all of it passed or not; any other code: there is no part (1 is a sanitizer's). */
enum { ALL_PASSED = 0, NO_PART = 2, NOT_ALL_PASSED = 3 };

static bool left_a_part(int status)
{
    return status != NOT_RUN && WIFEXITED(status) &&
           (WEXITSTATUS(status) == ALL_PASSED || WEXITSTATUS(status) == NOT_ALL_PASSED);
}

/* In the child: runs the task, writes its part; a task that could not run is one skipped result with the
 * reason. */
static int child_main(parity_run_state *s, int index)
{
    char path[ASSAY_PATH + 64];
    const parity_task *t = &s->tasks[index];
    parity_report *report = NULL;
    json_t *facts = json_object();
    /* Tasks side by side share the processors; waiting OpenMP threads of one would slow the other down many
     * times. */
    openblas_set_num_threads(1);
    omp_set_num_threads(parity_run_threads(s, index, (int)sysconf(_SC_NPROCESSORS_ONLN)));
    /* What a task writes lies in its scratch folder and is read once, by it: waiting for the disk took a fifth of a run. */
    setenv("ASSAY_FSYNC", "0", 0);
    /* Choices of algorithms may be read from a file (gpu/product_plans.h), but stand still while runs are compared by their bits. */
    setenv("ASSAY_PRODUCT_PLANS_TIME", "0", 1);
    if (parity_report_create(&report) != ASSAY_OK)
        return NO_PART;
    if (parity_run_task(&s->o, &s->engine, t, report, facts) != ASSAY_OK) {
        parity_result r;
        parity_result_init(&r);
        r.check = t->c == NULL ? PARITY_CHECK_EXACT : PARITY_CHECK_WHOLE;
        r.verdict = PARITY_SKIP;
        /* A layout that this case has no place for is nothing that went wrong. */
        snprintf(r.message, sizeof r.message, "%s: %.490s", t->cannot[0] != '\0' ? "left out" : "did not run",
                 assay_error_message());
        (void)parity_report_add(report, &r);
    }
    part_path(s, index, "results", path);
    assay_status st = parity_report_save_part(report, path);
    part_path(s, index, "facts.json", path);
    if (st == ASSAY_OK)
        st = assay_json_save(facts, path);
    int64_t passed, failed, skipped;
    parity_report_totals(report, &passed, &failed, &skipped);
    const bool all_passed = failed == 0 && skipped == 0;
    if (st == ASSAY_OK && all_passed && !s->o.keep)
        st = assay_remove_tree(t->dir, s->o.report_dir);
    if (st != ASSAY_OK)
        assay_error_print(stderr, "assay run", 0);
    parity_report_destroy(report);
    json_decref(facts);
    return st != ASSAY_OK ? NO_PART : all_passed ? ALL_PASSED : NOT_ALL_PASSED;
}

static assay_status start_task(parity_run_state *s, int slot, int index)
{
    fflush(NULL);
    const pid_t parent = getpid(), pid = fork();
    ASSAY_CHECK(pid >= 0, ASSAY_IO, "fork: %s", strerror(errno));
    if (pid == 0) {
        end_with_parent(parent);
        _exit(child_main(s, index));
    }
    s->pids[slot] = pid;
    s->running[slot] = index;
    return ASSAY_OK;
}

/* A part that was taken over is in the report; all of them are as large as results.jsonl again. */
static assay_status remove_part(const parity_run_state *s, int index, const char *extension)
{
    char path[ASSAY_PATH + 64];
    part_path(s, index, extension, path);
    ASSAY_CHECK(unlink(path) == 0 || errno == ENOENT, ASSAY_IO, "%s: cannot remove: %s", path,
                strerror(errno));
    return ASSAY_OK;
}

/* Takes over the part of a finished child; a child that died leaves a skipped result. */
static assay_status collect(parity_run_state *s, int index, int status)
{
    char path[ASSAY_PATH + 64], label[PARITY_TASK_LABEL];
    json_t *facts = NULL;
    const parity_task *t = &s->tasks[index];
    part_path(s, index, "results", path);
    const int64_t before = parity_report_count(s->report);
    const bool loaded = left_a_part(status) && parity_report_load_part(s->report, path) == ASSAY_OK;
    const bool empty = parity_report_count(s->report) == before;
    if (loaded && empty && s->o.check[0] != 0) { /* as routing of a dense model */
        if (s->n_unasked++ == 0 || index < s->first_unasked)
            s->first_unasked = index;
        return ASSAY_OK;
    }
    if (loaded && !empty) {
        part_path(s, index, "facts.json", path);
        if (assay_json_load(&facts, path) == ASSAY_OK)
            json_object_set_new(s->facts, task_label(t, label), facts);
        ASSAY_TRY(remove_part(s, index, "results"));
        return remove_part(s, index, "facts.json");
    }
    parity_result r;
    parity_result_init(&r);
    r.check = t->c == NULL ? PARITY_CHECK_EXACT : PARITY_CHECK_WHOLE;
    parity_run_reproduce(&s->o, s->engine.name, t, r.reproduce);
    snprintf(r.case_name, sizeof r.case_name, "%s", parity_task_name(t));
    snprintf(r.layout, sizeof r.layout, "%s", t->layout);
    snprintf(r.precision, sizeof r.precision, "%s", assay_precision_name(t->precision));
    snprintf(r.variants, sizeof r.variants, "%s", t->variant);
    snprintf(r.engine, sizeof r.engine, "%s", s->engine.name);
    if (status == NOT_RUN && s->first_not_passed >= 0)
        snprintf(r.message, sizeof r.message, "did not run to its end: --fail-fast, and %.400s did not pass",
                 task_label(&s->tasks[s->first_not_passed], label));
    else if (status == NOT_RUN)
        snprintf(r.message, sizeof r.message,
                 "did not run to its end: assay run was stopped by signal %d (%s)", (int)stopped_by,
                 strsignal((int)stopped_by));
    else if (WIFSIGNALED(status))
        snprintf(r.message, sizeof r.message, "the judge died of signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(r.message, sizeof r.message, "the judge left no result%s%.400s", loaded ? "" : ": ",
                 loaded ? "" : assay_error_message());
    return parity_report_add(s->report, &r);
}

/* Where the last task of a case has ended and all of them passed, nobody reads its reference runs again: some MB for each. */
static assay_status drop_reference_runs(const parity_run_state *s, int ended)
{
    const parity_task *t = &s->tasks[ended];
    bool all = t->c != NULL && !s->o.keep;
    for (int i = 0; i < s->n_tasks && all; i++)
        all = s->tasks[i].c != t->c ||
              (s->status[i] != NOT_RUN && WIFEXITED(s->status[i]) && WEXITSTATUS(s->status[i]) == ALL_PASSED);
    return all ? parity_report_folder_drop_runs(t->case_dir) : ASSAY_OK;
}

static assay_status wait_one(parity_run_state *s, int *finished)
{
    int status = 0;
    pid_t pid;
    while ((pid = waitpid(-1, &status, 0)) < 0) {
        ASSAY_CHECK(errno == EINTR, ASSAY_IO, "waitpid: %s", strerror(errno));
        if (stopped_by != 0)
            return ASSAY_OK;
    }
    for (int k = 0; k < s->o.jobs; k++)
        if (s->running[k] >= 0 && s->pids[k] == pid) {
            const int index = s->running[k];
            s->running[k] = -1;
            (*finished)++;
            s->status[index] = status;
            ASSAY_TRY(drop_reference_runs(s, index));
            if (s->o.fail_fast && status != ALL_PASSED)
                s->first_not_passed = index;
            return ASSAY_OK;
        }
    return ASSAY_OK;
}

static assay_status run_tasks(parity_run_state *s, assay_progress *progress)
{
    int started = 0, active = 0, finished = 0;
    char label[PARITY_TASK_LABEL];
    for (int k = 0; k < PARITY_MAX_JOBS; k++)
        s->running[k] = -1;
    for (int i = 0; i < s->n_tasks; i++)
        s->status[i] = NOT_RUN;
    s->first_not_passed = -1;
    while (finished < s->n_tasks && stopped_by == 0 && s->first_not_passed < 0) {
        if (finished == started) /* nothing runs */
            s->available = parity_run_memory_available();
        for (int k = 0; k < s->o.jobs && started < s->n_tasks; k++) {
            const int index = s->running[k] < 0 ? parity_run_next(s) : -1;
            if (index < 0)
                continue;
            ASSAY_TRY(start_task(s, k, index));
            started++;
            if (progress != NULL)
                assay_progress_update(progress, finished, task_label(&s->tasks[index], label));
        }
        active = finished;
        ASSAY_TRY(wait_one(s, &finished));
        if (progress != NULL && finished != active)
            assay_progress_update(progress, finished, started < s->n_tasks ? label : "finishing");
    }
    for (int k = 0; k < s->o.jobs; k++)
        if (s->running[k] >= 0 && waitpid(s->pids[k], &s->status[s->running[k]], WNOHANG) != s->pids[k]) {
            kill(s->pids[k], SIGKILL); /* the ranks of its engine die with it */
            waitpid(s->pids[k], NULL, 0);
        }
    /* In the order of the matrix, whoever finished first. */
    for (int i = 0; i < s->n_tasks; i++)
        ASSAY_TRY(collect(s, i, s->status[i]));
    return ASSAY_OK;
}

static assay_status prepare(parity_run_state *s)
{
    for (int i = 0; i < s->n_cases; i++)
        ASSAY_TRY(parity_check_case(&s->cases[i]));
    ASSAY_TRY(parity_report_folder_open(s->o.report_dir, &s->lock));
    ASSAY_TRY(parity_report_folder_work(s->o.report_dir));
    ASSAY_TRY(parity_report_folder_clear(s->o.report_dir));
    ASSAY_TRY(parity_report_open_summary(s->o.summary));
    for (int i = 0; i < s->n_cases; i++) {
        char dir[ASSAY_PATH + 96];
        snprintf(dir, sizeof dir, "%s/work/%s", s->o.report_dir, s->cases[i].name);
        ASSAY_TRY(assay_mkdir_p(dir));
        ASSAY_TRY(parity_prepare_case(&s->cases[i], dir));
    }
    return ASSAY_OK;
}

/* "llama 1234, qwen3 7": the cases whose weights are drawn, each with the seed; "none". */
static void drawn_weights(const parity_run_state *s, char *out, size_t capacity)
{
    snprintf(out, capacity, "none");
    size_t used = 0;
    for (int i = 0; i < s->n_cases && used < capacity; i++)
        if (s->cases[i].options.draw_weights >= 0)
            used += (size_t)snprintf(out + used, capacity - used, "%s%s %lld", used > 0 ? ", " : "",
                                     s->cases[i].name, (long long)s->cases[i].options.draw_weights);
}

static assay_status write_reports(parity_run_state *s, double wall_s)
{
    char drawn[PARITY_MAX_CASES * 96];
    drawn_weights(s, drawn, sizeof drawn);
    json_t *head = json_pack("{s:s,s:s,s:s,s:s,s:s,s:i,s:f,s:s}", "engine", s->engine.name, "program",
                             s->engine.program, "program, SHA-256", s->origin.engine,
                             "sources of the judge, SHA-256", s->origin.judge, "why", s->engine.reason,
                             "tasks", s->n_tasks, "wall time, s", wall_s, "weights drawn from a seed", drawn);
    ASSAY_CHECK(head != NULL, ASSAY_OUT_OF_MEMORY, "report");
    parity_report_facts(head, s->argc, s->argv);
    json_object_set(head, "times", s->facts);
    const assay_status st = parity_report_write(s->report, s->o.report_dir, "assay run", head, s->o.summary);
    json_decref(head);
    return st;
}

static assay_status run(parity_run_state *s, const assay_train_options *given)
{
    assay_progress *progress = NULL;
    const double t0 = assay_monotonic_s();
    ASSAY_TRY(parity_report_claim_stdout(s->o.summary));
    ASSAY_TRY(parity_engine_find(s->o.engine, s->o.engine_program, &s->engine));
    ASSAY_TRY(parity_engine_learn(&s->engine));
    ASSAY_TRY(parity_run_builds(s));
    printf("assay run: engine %s (%s)\n", s->engine.name, s->engine.reason);
    fflush(stdout);
    snprintf(s->o.model, sizeof s->o.model, "%s", given->model);
    snprintf(s->o.batch, sizeof s->o.batch, "%s", given->batch);
    ASSAY_TRY(parity_run_load_cases(s));
    ASSAY_TRY(parity_run_apply_overrides(s, given));
    ASSAY_TRY(parity_run_check_layouts(s));
    ASSAY_TRY(parity_run_check_variants(s));
    ASSAY_TRY(parity_run_make_tasks(s));
    if (s->o.model[0] != '\0' && s->cases[0].options.draw_weights >= 0)
        printf("weights: drawn from seed %lld; %s holds a configuration alone\n",
               (long long)s->cases[0].options.draw_weights, s->o.model);
    printf("%d tasks of %d combinations of case, layout, precision and kernels (--matrix %s)\n", s->n_tasks,
           s->n_combinations, s->o.matrix);
    fflush(stdout);
    ASSAY_TRY(prepare(s));
    ASSAY_TRY(parity_report_create(&s->report));
    parity_report_set_origin(s->report, &s->origin);
    s->facts = json_object();
    if (!s->o.quiet)
        ASSAY_TRY(assay_progress_create(&progress, stderr, "assay run", s->n_tasks));
    catch_stop();
    const assay_status st = run_tasks(s, progress);
    assay_progress_destroy(progress);
    ASSAY_TRY(st);
    const double wall = assay_monotonic_s() - t0;
    const assay_status written = write_reports(s, wall);
    char results[ASSAY_PATH + 32], label[PARITY_TASK_LABEL];
    snprintf(results, sizeof results, "%s/results.jsonl", s->o.report_dir);
    parity_report_table(s->report, stdout,
                        results); /* also where a file of the report could not be written */
    if (s->n_unasked > 0)
        printf("%d of %d tasks have nothing that --check %s judges, the first is %s\n", s->n_unasked,
               s->n_tasks, s->o.check, task_label(&s->tasks[s->first_unasked], label));
    printf("\n%d tasks in %.1f s; report: %s/index.html\n", s->n_tasks, wall, s->o.report_dir);
    s->finished = true;
    return written;
}

/* Half as many again as processors: tasks wait for reference runs of each other, ranks of a task for each other, and a task starts
 * and ends with one process. */
static int default_jobs(void)
{
    const long processors = sysconf(_SC_NPROCESSORS_ONLN), jobs = processors + processors / 2;
    return jobs < 1 ? 1 : jobs > PARITY_MAX_JOBS ? PARITY_MAX_JOBS : (int)jobs;
}

int parity_main_run(int argc, char **argv)
{
    int code = 2;
    assay_train_options given;
    parity_run_state *s = calloc(1, sizeof *s);
    assay_train_options_default(&given);
    if (s != NULL) {
        s->cases = calloc(PARITY_MAX_CASES, sizeof *s->cases);
        s->tasks = calloc(PARITY_MAX_TASKS, sizeof *s->tasks);
        s->status = calloc(PARITY_MAX_TASKS, sizeof *s->status);
        s->order = calloc(PARITY_MAX_TASKS, sizeof *s->order);
    }
    if (s == NULL || s->cases == NULL || s->tasks == NULL || s->status == NULL || s->order == NULL) {
        fputs("assay run: out of memory\n", stderr);
        free(s != NULL ? s->cases : NULL);
        free(s != NULL ? s->tasks : NULL);
        free(s != NULL ? s->status : NULL);
        free(s != NULL ? s->order : NULL);
        free(s);
        return 2;
    }
    s->lock = -1;
    s->argc = argc;
    s->argv = argv;
    snprintf(s->o.engine, sizeof s->o.engine, "auto");
    snprintf(s->o.report_dir, sizeof s->o.report_dir, "report");
    snprintf(s->o.matrix, sizeof s->o.matrix, "pairwise");
    s->o.timeout_s = PARITY_TIMEOUT_S;
    s->o.jobs = default_jobs();
    assay_status st = assay_options_parse(
        argc, argv,
        "Parity of the engine with the reference over a matrix of layouts.\vExamples:\n"
        "  assay run                             # the default matrix\n"
        "  assay run --case qwen3_moe --layout tp2,sp,ep2,dp2 --check local\n"
        "  assay run --model DIR --batch FILE    # your own folder and batch file\n"
        "  assay run --shard 1/4 --report part1  # a quarter (assay report merge)\n",
        "[CASE.json ...]", &given, ASSAY_FOR_RUN, parity_run_option_list, parity_run_option, &s->o);
    if (st == ASSAY_OK)
        st = run(s, &given);
    int64_t passed = 0, failed = 0, skipped = 0;
    if (s->report != NULL)
        parity_report_totals(s->report, &passed, &failed, &skipped);
    if (s->finished) {
        printf("%lld passed, %lld failed, %lld skipped\n", (long long)passed, (long long)failed,
               (long long)skipped);
        fflush(stdout);
    }
    if (st == ASSAY_OK) /* a part without a task has nothing to say */
        code = failed > 0 ? 1 : skipped > 0 || (passed == 0 && s->n_tasks > 0) ? 2 : 0;
    else
        assay_error_print(stderr, "assay run", 0);
    for (int i = 0; i < s->n_cases; i++)
        parity_case_free(&s->cases[i]);
    parity_report_destroy(s->report);
    parity_engine_free(&s->engine);
    if (s->lock >= 0)
        close(s->lock);
    json_decref(s->facts);
    free(s->cases);
    free(s->tasks);
    free(s->status);
    free(s->order);
    free(s);
    return code;
}
