/* `assay run`: the matrix, from case files and filters to a list of tasks. */
#include "parity/run/pairwise.h"
#include "parity/run/run.h"
#include <stdlib.h>
#include <string.h>

static parity_case_choice choice_of(const parity_run_options *o)
{
    parity_case_choice choice = {.n = o->n_cases, .others = {PARITY_OPERATIONS, PARITY_WIDTHS}};
    for (int i = 0; i < o->n_cases; i++)
        choice.names[i] = o->cases[i];
    return choice;
}

/* Without a word of the command line for them, cases of the full matrix are left out, and said. */
static void leave_out(parity_run_state *s)
{
    int kept = 0;
    for (int i = 0; i < s->n_cases; i++) {
        if (!s->cases[i].full_matrix) {
            s->cases[kept++] = s->cases[i];
            continue;
        }
        printf("%s%s", kept == i ? "only with --matrix full, or by name: " : ", ", s->cases[i].name);
        parity_case_free(&s->cases[i]);
    }
    if (kept < s->n_cases)
        printf("\n");
    s->n_cases = kept;
}

assay_status parity_run_load_cases(parity_run_state *s)
{
    char dir[ASSAY_PATH];
    char **paths = NULL;
    int n = 0;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(s->o.batch[0] == '\0' || s->o.model[0] != '\0', ASSAY_INVALID_ARGUMENT,
                "--batch %s: needs --model, the folder that is judged on it", s->o.batch);
    if (s->o.model[0] != '\0') {
        ASSAY_CHECK(s->o.n_files == 0 && s->o.n_cases == 0, ASSAY_INVALID_ARGUMENT,
                    "--model %s: is a case by itself: no case file and no --case beside it", s->o.model);
        s->n_cases = 1;
        return parity_case_from_folder(s->o.model, s->o.batch, stdout, &s->cases[0]);
    }
    if (s->o.n_files == 0) {
        ASSAY_TRY(parity_cases_dir(dir, sizeof dir));
        ASSAY_TRY(parity_cases_list(dir, &paths, &n));
    }
    char *files[sizeof s->o.files / sizeof *s->o.files];
    for (int i = 0; i < s->o.n_files; i++)
        files[i] = s->o.files[i];
    const int total = s->o.n_files > 0 ? s->o.n_files : n;
    ASSAY_CHECK_GOTO(total >= 1 && total <= PARITY_MAX_CASES, ASSAY_NOT_FOUND, st, done,
                     "expected 1 to %d case files, found %d", PARITY_MAX_CASES, total);
    const parity_case_choice choice = choice_of(&s->o);
    st = parity_cases_select(s->o.n_files > 0 ? files : paths, total, &choice, s->cases, &s->n_cases);
    if (st == ASSAY_OK && s->o.n_files == 0 && choice.n == 0 && strcmp(s->o.matrix, "full") != 0)
        leave_out(s);
done:
    for (int i = 0; i < n; i++)
        free(paths[i]);
    free(paths);
    return st;
}

const char *parity_task_name(const parity_task *t)
{
    return t->c != NULL ? t->c->name : t->widths ? PARITY_WIDTHS : PARITY_OPERATIONS;
}

static assay_status add_task(parity_run_state *s, const parity_case *c, bool widths,
                             assay_precision precision, const char *layout, const char *variant,
                             const char *next)
{
    ASSAY_CHECK(s->n_tasks < PARITY_MAX_TASKS, ASSAY_LIMIT,
                "more than %d combinations: name cases with --case", PARITY_MAX_TASKS);
    parity_task *t = &s->tasks[s->n_tasks++];
    t->c = c;
    t->widths = widths;
    t->precision = precision;
    snprintf(t->layout, sizeof t->layout, "%s", layout);
    snprintf(t->variant, sizeof t->variant, "%s", variant);
    snprintf(t->next_layout, sizeof t->next_layout, "%s", next);
    const char *name = parity_task_name(t);
    const bool fastest = strcmp(variant, "fastest") == 0;
    const int a = snprintf(t->case_dir, ASSAY_PATH, "%s/work/%s", s->o.report_dir, name);
    const int b =
        snprintf(t->dir, ASSAY_PATH, "%s/work/%s/%s-%s%s%s", s->o.report_dir, name,
                 assay_precision_name(precision), layout, fastest ? "" : "-", fastest ? "" : variant);
    ASSAY_CHECK(a < ASSAY_PATH && b < ASSAY_PATH, ASSAY_LIMIT, "--report: path too long");
    return ASSAY_OK;
}

static bool precision_wanted(const parity_run_state *s, assay_precision p)
{
    return s->o.precision[0] == 0 || strcmp(s->o.precision, assay_precision_name(p)) == 0;
}

/* Rows of kernels that nothing of this precision could answer are left out, and said: all of them would fall to lower ones. */
static bool answers(const parity_run_state *s, const parity_case *c, assay_precision precision,
                    const char *variant, bool say)
{
    char missing[PARITY_LADDER_WORD];
    if (parity_ladder_answers(&s->engine.ladder, variant, precision == ASSAY_PRECISION_BF16 ? "BF16" : "F32",
                              missing))
        return true;
    if (say)
        printf("left out: %s %s %s (on this device no kernel of this precision is %s)\n", c->name,
               assay_precision_name(precision), variant, missing);
    return false;
}

/* say: what is left out, which is the same in every layout. */
static assay_status variant_tasks(parity_run_state *s, const parity_case *c, assay_precision precision,
                                  const char *layout, bool say)
{
    /* The checkpoint moves to the next layout of the case's own list, round and round. */
    int k = 0;
    while (k < c->n_layouts && !parity_layout_same(c->layouts[k], layout))
        k++;
    const char *next = c->layouts[(k + 1) % c->n_layouts];
    const int n = s->o.variant[0] != 0 ? 1 : c->n_variants;
    for (int v = 0; v < n; v++) {
        const char *variant = s->o.variant[0] != 0 ? s->o.variant : c->variants[v];
        if (answers(s, c, precision, variant, say))
            ASSAY_TRY(add_task(s, c, false, precision, layout, variant, next));
    }
    return ASSAY_OK;
}

/* A layout of the command line that this case cannot be cut into, while others can, is a skip with the reason. */
static assay_status layout_tasks(parity_run_state *s, const parity_case *c, assay_precision precision,
                                 const char *layout, bool say)
{
    const int first = s->n_tasks;
    ASSAY_TRY(variant_tasks(s, c, precision, layout, say));
    if (s->o.n_layouts == 0 || parity_case_layout(c, layout) == ASSAY_OK)
        return ASSAY_OK;
    for (int i = first; i < s->n_tasks; i++)
        snprintf(s->tasks[i].cannot, sizeof s->tasks[i].cannot, "%s", assay_error_message());
    assay_error_clear();
    return ASSAY_OK;
}

/* Of a case that was named, or stands in a file that was, nothing is left out: an error. */
static assay_status say_no_precision(const parity_run_state *s, const parity_case *c)
{
    ASSAY_CHECK(s->o.n_cases == 0 && s->o.n_files == 0, ASSAY_INVALID_ARGUMENT,
                "--precision %s: case %s has no such precision", s->o.precision, c->name);
    printf("left out: %s (it has no precision %s)\n", c->name, s->o.precision);
    return ASSAY_OK;
}

static assay_status case_tasks(parity_run_state *s, const parity_case *c)
{
    const int n = s->o.n_layouts > 0 ? s->o.n_layouts : c->n_layouts;
    bool wanted = false;
    for (int p = 0; p < c->n_precisions; p++)
        wanted = wanted || precision_wanted(s, c->precisions[p]);
    if (!wanted)
        return say_no_precision(s, c);
    for (int p = 0; p < c->n_precisions; p++)
        for (int i = 0; i < n && precision_wanted(s, c->precisions[p]); i++)
            ASSAY_TRY(layout_tasks(s, c, c->precisions[p],
                                   s->o.n_layouts > 0 ? s->o.layouts[i] : c->layouts[i], i == 0));
    return ASSAY_OK;
}

static bool layout_wanted(const parity_run_state *s, const char *layout)
{
    for (int i = 0; i < s->o.n_layouts; i++)
        if (parity_layout_same(s->o.layouts[i], layout))
            return true;
    return s->o.n_layouts == 0;
}

/* Every operation alone: all kernels of one rank, and the collectives of three. */
static const char KERNELS_LAYOUT[] = "1", COLLECTIVES_LAYOUT[] = "dp3";

/* Operations alone are no part of a run of given files, of a folder or of a check that they do not have. */
static bool takes_operations(const parity_run_state *s, const char *name)
{
    const parity_case_choice choice = choice_of(&s->o);
    const bool alone =
        s->o.check[0] == 0 || strcmp(s->o.check, "exact") == 0 || strcmp(s->o.check, "local") == 0;
    return alone && s->o.n_files == 0 && s->o.model[0] == '\0' && parity_case_chosen(&choice, name);
}

bool parity_run_operations(const parity_run_state *s)
{
    return takes_operations(s, PARITY_OPERATIONS);
}

/* As cases of the full matrix: by name, or with --matrix full. */
static bool runs_widths(const parity_run_state *s)
{
    return takes_operations(s, PARITY_WIDTHS) && (s->o.n_cases > 0 || strcmp(s->o.matrix, "full") == 0) &&
           strcmp(s->o.check, "exact") != 0;
}

bool parity_run_operations_layout(const parity_run_state *s, const char *layout)
{
    if (parity_run_operations(s) && parity_layout_same(layout, COLLECTIVES_LAYOUT))
        return true;
    return (parity_run_operations(s) || runs_widths(s)) && parity_layout_same(layout, KERNELS_LAYOUT);
}

/* The operations alone take one word for all kernels: of another selection they have no task, and that is said. */
static void say_unnamed(const parity_run_state *s, bool widths, bool kernels, bool collectives)
{
    const char *name = widths ? PARITY_WIDTHS : PARITY_OPERATIONS;
    const int highest = parity_engine_highest_variant(&s->engine);
    if (!kernels && layout_wanted(s, KERNELS_LAYOUT))
        printf("left out: %s %s (takes no --variant but fastest, " PARITY_EVERY_RUNG " and k0 to k%d)\n",
               name, KERNELS_LAYOUT, highest);
    if (!collectives && !widths && layout_wanted(s, COLLECTIVES_LAYOUT))
        printf("left out: %s %s (takes no --variant but fastest)\n", name, COLLECTIVES_LAYOUT);
}

static assay_status operation_tasks(parity_run_state *s, bool widths)
{
    static const assay_precision both[] = {ASSAY_PRECISION_FP32, ASSAY_PRECISION_BF16};
    const int highest = parity_engine_highest_variant(&s->engine);
    bool kernels = false;
    const bool collectives = s->o.variant[0] == 0 || strcmp(s->o.variant, "fastest") == 0;
    for (int p = 0; p < 2; p++) {
        if (!precision_wanted(s, both[p]))
            continue;
        for (int k = -2; k <= highest; k++) {
            char word[16] = PARITY_EVERY_RUNG; /* each record by each rung that takes it, once */
            if (k >= -1)
                snprintf(word, sizeof word, k < 0 ? "fastest" : "k%d", k);
            const bool named = s->o.variant[0] != 0 ? strcmp(s->o.variant, word) == 0 : k == -2;
            kernels = kernels || named;
            if (layout_wanted(s, KERNELS_LAYOUT) && named)
                ASSAY_TRY(add_task(s, NULL, widths, both[p], KERNELS_LAYOUT, word, KERNELS_LAYOUT));
        }
        if (!widths && layout_wanted(s, COLLECTIVES_LAYOUT) && collectives)
            ASSAY_TRY(add_task(s, NULL, false, both[p], COLLECTIVES_LAYOUT, "fastest", KERNELS_LAYOUT));
    }
    say_unnamed(s, widths, kernels, collectives);
    return ASSAY_OK;
}

/* --- which combinations run --------------------------------------------------------------------------------- */

enum { AXES = 4 };

/* Number of a word among the words so far. */
static int number_of(const char **words, int *n, const char *word)
{
    for (int i = 0; i < *n; i++)
        if (strcmp(words[i], word) == 0)
            return i;
    words[*n] = word;
    return (*n)++;
}

assay_status parity_run_choose(const parity_task *tasks, int n, bool *chosen)
{
    int values[AXES] = {0};
    int *rows = calloc((size_t)n * AXES + 1, sizeof *rows);
    const char **words = calloc((size_t)n * AXES + 1, sizeof *words);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(rows != NULL && words != NULL, ASSAY_OUT_OF_MEMORY, st, done, "matrix of %d tasks", n);
    for (int i = 0; i < n; i++) {
        const parity_task *t = &tasks[i];
        const char *const word[AXES] = {parity_task_name(t), t->layout, assay_precision_name(t->precision),
                                        t->variant};
        for (int a = 0; a < AXES; a++)
            rows[i * AXES + a] = number_of(words + (size_t)n * (size_t)a, &values[a], word[a]);
        chosen[i] = t->c == NULL; /* a kernel that no task runs is not covered by a pair of words */
    }
    st = parity_pairwise(rows, n, values, AXES, chosen);
done:
    free(words);
    free(rows);
    return st;
}

static assay_status keep_chosen(parity_run_state *s)
{
    bool *chosen = calloc((size_t)s->n_tasks + 1, sizeof *chosen);
    int kept = 0, place = 0;
    ASSAY_CHECK(chosen != NULL, ASSAY_OUT_OF_MEMORY, "matrix of %d tasks", s->n_tasks);
    const bool full = strcmp(s->o.matrix, "full") == 0;
    assay_status st = full ? ASSAY_OK : parity_run_choose(s->tasks, s->n_tasks, chosen);
    for (int i = 0; i < s->n_tasks && full; i++)
        chosen[i] = true;
    if (st == ASSAY_OK)
        st = parity_run_name(s, chosen);
    s->n_combinations = s->n_tasks;
    for (int i = 0; i < s->n_tasks && st == ASSAY_OK; i++) {
        if (!chosen[i])
            continue;
        if (s->o.shards == 0 || place % s->o.shards == s->o.shard - 1)
            s->tasks[kept++] = s->tasks[i];
        place++;
    }
    if (st == ASSAY_OK && kept == 0 && place > 0)
        printf("part %d of %d: none of the %d tasks of the matrix: an empty part, for assay report merge\n",
               s->o.shard, s->o.shards, place);
    s->n_chosen = place;
    s->n_tasks = kept;
    free(chosen);
    return st;
}

assay_status parity_run_make_tasks(parity_run_state *s)
{
    if (parity_run_operations(s))
        ASSAY_TRY(operation_tasks(s, false));
    if (runs_widths(s))
        ASSAY_TRY(operation_tasks(s, true));
    for (int i = 0; i < s->n_cases; i++)
        ASSAY_TRY(case_tasks(s, &s->cases[i]));
    ASSAY_TRY(keep_chosen(s));
    ASSAY_CHECK(s->n_chosen > 0, ASSAY_INVALID_ARGUMENT,
                "nothing to run: no case matches --case, --precision and --variant");
    return parity_run_order(s);
}

/* " --clip-grad=1" at the end of o->overrides. */
static assay_status remember_override(parity_run_options *o, const char *key, const json_t *value)
{
    const size_t at = strlen(o->overrides), room = sizeof o->overrides - at;
    char plain[ASSAY_PATH + 128], argument[2 * sizeof plain];
    parity_option_argument(key, value, plain, sizeof plain);
    parity_shell_word(plain, argument, sizeof argument);
    ASSAY_CHECK(strlen(argument) + 1 < room, ASSAY_LIMIT,
                "the options do not fit into the commands that the report prints: --%s is too many", key);
    snprintf(o->overrides + at, room, " %s", argument);
    return ASSAY_OK;
}

static assay_status set_steps(parity_case *c, int64_t steps)
{
    if (steps == 0)
        return ASSAY_OK;
    ASSAY_CHECK(c->batch_file[0] == '\0' || steps <= c->steps, ASSAY_INVALID_ARGUMENT,
                "--train-iters %lld: the batch file %s holds %lld steps", (long long)steps, c->batch_file,
                (long long)c->steps);
    c->steps = steps;
    return ASSAY_OK;
}

/* An option that says nothing to any of the cases. */
static assay_status check_overrides(const parity_run_state *s, const assay_train_options *given)
{
    bool experts = s->n_cases == 0, steps = s->n_cases == 0;
    assay_status st = ASSAY_OK;
    assay_model_config *config = malloc(sizeof *config);
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    for (int i = 0; i < s->n_cases && st == ASSAY_OK; i++) {
        st = parity_case_config(&s->cases[i], config);
        experts = experts || (st == ASSAY_OK && config->num_moe_experts > 0);
        steps = steps || s->cases[i].steps > 0;
    }
    free(config);
    ASSAY_TRY(st);
    if (!experts)
        ASSAY_TRY(parity_check_no_experts(given, "no case has"));
    return steps ? ASSAY_OK : parity_check_optimizer_options(given, "every case");
}

assay_status parity_run_apply_overrides(parity_run_state *s, const assay_train_options *given)
{
    /* Axes of the matrix and what names the data: not options of a case. */
    static const char *const own[] = {"variant", "model", "batch", "train_iters", NULL};
    const assay_option_row *table = assay_train_option_table();
    assay_status st = ASSAY_OK;
    json_t *have = assay_train_options_to_json(given, ASSAY_FOR_RUN);
    ASSAY_CHECK_GOTO(have != NULL, ASSAY_OUT_OF_MEMORY, st, done, "options");
    ASSAY_TRY_GOTO(assay_option_text("variant", given->variant, s->o.variant, sizeof s->o.variant), st, done);
    /* Weights of a folder are stored, or drawn by --draw-weights. */
    ASSAY_CHECK_GOTO(s->o.batch[0] == '\0' || !assay_train_option_given(given, "seed"),
                     ASSAY_INVALID_ARGUMENT, st, done,
                     "--seed: has no meaning for data that is there already");
    s->o.collective_timeout = given->collective_timeout; /* operations alone have no options of a case */
    for (int i = 0; table[i].name != NULL; i++) {
        const char *name = table[i].name;
        if (!assay_train_option_given(given, table[i].name))
            continue;
        ASSAY_CHECK_GOTO(s->n_cases > 0 || (table[i].where & ASSAY_FOR_OPS), ASSAY_INVALID_ARGUMENT, st, done,
                         "--%s: has no meaning for the operations alone", name);
        if (strcmp(name, "variant") != 0)
            ASSAY_TRY_GOTO(remember_override(&s->o, name, json_object_get(have, name)), st, done);
    }
    for (int i = 0; i < s->n_cases; i++)
        ASSAY_TRY_GOTO(set_steps(&s->cases[i], given->train_iters), st, done);
    if (given->train_iters == 1)
        fputs("assay run: warning: --train-iters 1: no run goes on from a checkpoint, nor does another "
              "layout load "
              "one (bitwise, checkpoint: 2 steps at least)\n",
              stderr);
    ASSAY_TRY_GOTO(check_overrides(s, given), st, done);
    for (int i = 0; i < s->n_cases; i++) {
        assay_train_options_merge(&s->cases[i].options, given, own);
        ASSAY_TRY_GOTO(assay_balancing_check(&s->cases[i].options), st, done);
        ASSAY_TRY_GOTO(parity_case_weights(&s->cases[i]), st, done);
    }
done:
    json_decref(have);
    return st;
}
