/* The pairwise matrix: every two values that can meet do meet, for any rows and for the cases that come with assay. */
#include "core/base/philox.h"
#include "parity/run/pairwise.h"
#include "parity/run/run.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { AXES = 4, MAX_ROWS = 400 };

/* Whether values (a, va) and (b, vb) occur together in a row that `taken` admits (NULL: all). */
static bool meets(const int *rows, int n, const bool *taken, int a, int va, int b, int vb)
{
    for (int i = 0; i < n; i++)
        if ((taken == NULL || taken[i]) && rows[i * AXES + a] == va && rows[i * AXES + b] == vb)
            return true;
    return false;
}

/* Pairs of some row that no taken row has. */
static int missing(const int *rows, int n, const int *values, const bool *taken)
{
    int count = 0;
    for (int a = 0; a < AXES; a++)
        for (int b = a + 1; b < AXES; b++)
            for (int va = 0; va < values[a]; va++)
                for (int vb = 0; vb < values[b]; vb++)
                    count += meets(rows, n, NULL, a, va, b, vb) && !meets(rows, n, taken, a, va, b, vb);
    return count;
}

static int draw_rows(uint64_t seed, int *rows, const int *values)
{
    const int n = 1 + (int)assay_philox_below(seed, 1, 0, MAX_ROWS);
    for (int i = 0; i < n * AXES; i++)
        rows[i] = (int)assay_philox_below(seed, 2, (uint64_t)i, (uint64_t)values[i % AXES]);
    return n;
}

static int count(const bool *taken, int n)
{
    int k = 0;
    for (int i = 0; i < n; i++)
        k += taken[i];
    return k;
}

Test(matrix, every_pair_of_any_rows_is_met)
{
    static const int values[AXES] = {9, 7, 2, 3};
    static int rows[MAX_ROWS * AXES];
    for (uint64_t seed = 0; seed < 40; seed++) {
        bool taken[MAX_ROWS] = {false}, again[MAX_ROWS] = {false};
        const int n = draw_rows(seed, rows, values);
        cr_assert_eq(parity_pairwise(rows, n, values, AXES, taken), ASSAY_OK);
        cr_expect_eq(missing(rows, n, values, taken), 0, "seed %d", (int)seed);
        cr_assert_eq(parity_pairwise(rows, n, values, AXES, again), ASSAY_OK);
        cr_expect_eq(memcmp(taken, again, sizeof taken), 0, "the choice is the same every time");
    }
}

/* Full products need about the largest two axes, and every row that was added was needed when it was. */
Test(matrix, a_full_product_takes_few_rows)
{
    static const int values[AXES] = {8, 6, 2, 3};
    static int rows[8 * 6 * 2 * 3 * AXES];
    bool taken[8 * 6 * 2 * 3] = {false};
    const int n = 8 * 6 * 2 * 3;
    for (int i = 0; i < n; i++) {
        rows[i * AXES] = i / 36;
        rows[i * AXES + 1] = i / 6 % 6;
        rows[i * AXES + 2] = i / 3 % 2;
        rows[i * AXES + 3] = i % 3;
    }
    cr_assert_eq(parity_pairwise(rows, n, values, AXES, taken), ASSAY_OK);
    cr_expect_eq(missing(rows, n, values, taken), 0);
    cr_expect(count(taken, n) >= 48 && count(taken, n) <= 60, "%d rows", count(taken, n));
}

Test(matrix, rows_that_must_run_are_kept_and_bad_values_are_refused)
{
    static const int values[AXES] = {2, 2, 1, 1}, bad[AXES] = {0, 2, 0, 0};
    static const int rows[4 * AXES] = {0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};
    bool taken[4] = {false, false, false, true};
    cr_assert_eq(parity_pairwise(rows, 4, values, AXES, taken), ASSAY_OK);
    cr_expect(taken[3] && !taken[0] && taken[1] && taken[2]);
    cr_expect_eq(parity_pairwise(bad, 1, values, AXES, taken), ASSAY_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(assay_error_message(), "row 0: value 2 of axis 1"), "%s",
                       assay_error_message());
}

/* --- the cases that come with assay ------------------------------------------------------------------------- */

/* name, file: of the command line; NULL: all cases. */
static parity_run_state *state_with(const char *matrix, const char *name, const char *file)
{
    parity_run_state *s = calloc(1, sizeof *s);
    cr_assert_not_null(s);
    s->cases = calloc(PARITY_MAX_CASES, sizeof *s->cases);
    s->tasks = calloc(PARITY_MAX_TASKS, sizeof *s->tasks);
    s->order = calloc(PARITY_MAX_TASKS, sizeof *s->order);
    snprintf(s->o.report_dir, sizeof s->o.report_dir, "report");
    snprintf(s->o.matrix, sizeof s->o.matrix, "%s", matrix);
    s->engine.doctor = json_pack("{s:{s:i,s:i}}", "variants", "linear", 1, "cross_entropy", 2);
    setenv("ASSAY_CASES", ASSAY_SOURCE_DIR "/parity/cases", 1);
    if (name != NULL)
        snprintf(s->o.cases[s->o.n_cases++], sizeof s->o.cases[0], "%s", name);
    if (file != NULL)
        snprintf(s->o.files[s->o.n_files++], sizeof s->o.files[0], "%s", file);
    cr_assert_eq(parity_run_load_cases(s), ASSAY_OK, "%s", assay_error_message());
    return s;
}

static parity_run_state *state_of(const char *matrix)
{
    return state_with(matrix, NULL, NULL);
}

static void destroy(parity_run_state *s)
{
    for (int i = 0; i < s->n_cases; i++)
        parity_case_free(&s->cases[i]);
    json_decref(s->engine.doctor);
    json_decref(s->engine.ladder.operations);
    free(s->order);
    free(s->tasks);
    free(s->cases);
    free(s);
}

static const char *word(const parity_task *t, int axis)
{
    const char *const words[AXES] = {t->c != NULL ? t->c->name : "operations", t->layout,
                                     assay_precision_name(t->precision), t->variant};
    return words[axis];
}

static bool has_pair(const parity_run_state *s, const parity_task *t, int a, int b)
{
    for (int i = 0; i < s->n_tasks; i++)
        if (strcmp(word(&s->tasks[i], a), word(t, a)) == 0 && strcmp(word(&s->tasks[i], b), word(t, b)) == 0)
            return true;
    return false;
}

static int uncovered(const parity_run_state *full, const parity_run_state *some)
{
    int n = 0;
    for (int i = 0; i < full->n_tasks; i++)
        for (int a = 0; a < AXES; a++)
            for (int b = a + 1; b < AXES; b++)
                n += !has_pair(some, &full->tasks[i], a, b);
    return n;
}

/* Tasks of cases that the default run leaves out by their own word. */
static int drop_full_matrix(parity_run_state *s)
{
    int kept = 0, dropped = 0;
    for (int i = 0; i < s->n_tasks; i++) {
        if (s->tasks[i].widths || (s->tasks[i].c != NULL && s->tasks[i].c->full_matrix))
            dropped++;
        else
            s->tasks[kept++] = s->tasks[i];
    }
    s->n_tasks = kept;
    return dropped;
}

Test(matrix, the_default_run_meets_every_legal_pair)
{
    parity_run_state *full = state_of("full"), *some = state_of("pairwise");
    cr_assert_eq(parity_run_make_tasks(full), ASSAY_OK);
    cr_expect_gt(drop_full_matrix(full), 0);
    cr_assert_eq(parity_run_make_tasks(some), ASSAY_OK);
    cr_expect_eq(full->n_tasks, some->n_combinations);
    cr_expect_lt(some->n_tasks, full->n_tasks / 2, "%d of %d", some->n_tasks, full->n_tasks);
    cr_expect_eq(uncovered(full, some), 0);
    /* The law is not empty: without the tasks of one kernel variant it does not hold. */
    int kept = 0;
    for (int i = 0; i < some->n_tasks; i++)
        if (strcmp(some->tasks[i].variant, "k0") != 0)
            some->tasks[kept++] = some->tasks[i];
    some->n_tasks = kept;
    cr_expect_gt(uncovered(full, some), 0);
    destroy(some);
    destroy(full);
}

static bool has_case(const parity_run_state *s, const char *name)
{
    for (int i = 0; i < s->n_tasks; i++)
        if (s->tasks[i].c != NULL && strcmp(s->tasks[i].c->name, name) == 0)
            return true;
    return false;
}

/* By default no, by --matrix full, by name and by file yes. */
Test(matrix, a_case_of_the_full_matrix_runs_when_it_is_asked_for)
{
    static const char name[] = "widths_llama_1b";
    parity_run_state *s = state_of("pairwise");
    cr_assert_eq(parity_run_make_tasks(s), ASSAY_OK);
    cr_expect_eq(drop_full_matrix(s), 0);
    cr_expect(has_case(s, "llama") && !has_case(s, name));
    destroy(s);
    s = state_of("full");
    cr_assert_eq(parity_run_make_tasks(s), ASSAY_OK);
    cr_expect(has_case(s, "llama") && has_case(s, name));
    destroy(s);
    s = state_with("pairwise", name, NULL);
    cr_assert_eq(parity_run_make_tasks(s), ASSAY_OK);
    cr_expect(!has_case(s, "llama") && has_case(s, name));
    destroy(s);
    s = state_with("pairwise", NULL, ASSAY_SOURCE_DIR "/parity/cases/widths_llama_1b.json");
    cr_assert_eq(parity_run_make_tasks(s), ASSAY_OK);
    cr_expect(!has_case(s, "llama") && has_case(s, name));
    destroy(s);
}

/* Wide tasks wait for each other where memory does not hold both; a task alone starts in any. */
Test(matrix, tasks_side_by_side_fit_into_memory)
{
    parity_run_state *s = state_with("full", "widths_llama_1b", NULL);
    cr_assert_eq(parity_run_make_tasks(s), ASSAY_OK);
    cr_assert_geq(s->n_tasks, 2);
    s->o.jobs = 2;
    s->running[0] = s->running[1] = -1;
    const double one = s->tasks[0].memory;
    cr_expect(one > 323.5e6 * 8 && one < 323.5e6 * 100, "%g bytes", one); /* of a judge of 323.5 M elements */
    s->available = 1.0;
    const int first = parity_run_next(s);
    cr_assert_geq(first, 0);
    s->running[1] = first;
    s->available = one + s->tasks[1].memory - 1.0;
    cr_expect_eq(parity_run_next(s), -1);
    s->available += 1.0;
    cr_expect_geq(parity_run_next(s), 0);
    cr_expect_gt(parity_run_memory(&s->o, &s->tasks[0], 2e6), parity_run_memory(&s->o, &s->tasks[0], 1e6));
    snprintf(s->o.check, sizeof s->o.check, "whole");
    cr_expect_gt(parity_run_memory(&s->o, &s->tasks[0], 323.5e6), one);
    cr_expect_gt(parity_run_memory_available(), 0.0);
    destroy(s);
}

/* Tasks of the operations on one rank with --variant word (NULL: none) that run `kernels`. */
static int operation_tasks_of(const char *word, const char *kernels)
{
    parity_run_state *s = state_of("pairwise");
    int n = 0;
    if (word != NULL)
        snprintf(s->o.variant, sizeof s->o.variant, "%s", word);
    cr_assert_eq(parity_run_make_tasks(s), ASSAY_OK);
    for (int i = 0; i < s->n_tasks; i++)
        n += s->tasks[i].c == NULL && strcmp(s->tasks[i].layout, "1") == 0 &&
             strcmp(s->tasks[i].variant, kernels) == 0;
    destroy(s);
    return n;
}

Test(matrix, operations_run_with_every_kernel_in_both_precisions)
{
    static const char *const words[] = {"fastest", "k0", "k1", "k2"}; /* the engine's highest */
    cr_expect_eq(operation_tasks_of(NULL, "every"), 2);
    cr_expect_eq(operation_tasks_of("every", "every"), 2);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        cr_expect_eq(operation_tasks_of(NULL, words[i]), 0, "%s", words[i]);
        cr_expect_eq(operation_tasks_of(words[i], words[i]), 2, "%s", words[i]);
    }
    cr_expect_eq(operation_tasks_of("k3", "k3"), 0);
}

/* Rows of the case with these kernels, in that precision. */
static int rows_of(const parity_run_state *s, assay_precision precision, const char *kernels)
{
    int n = 0;
    for (int i = 0; i < s->n_tasks; i++)
        n += s->tasks[i].precision == precision && strcmp(s->tasks[i].variant, kernels) == 0;
    return n;
}

/* Kernels of BF16 alone have rows there, where the engine says so; an engine that says nothing has all. */
Test(matrix, kernels_that_nothing_could_answer_have_no_row)
{
    static const char kernels[] = "linear=k3,attention=k3";
    for (int says = 0; says < 2; says++) {
        parity_run_state *s = state_with("full", "qwen3_moe", NULL);
        s->engine.ladder.capability = 90;
        if (says)
            s->engine.ladder.operations =
                json_pack("[{s:s,s:s,s:[{s:s,s:s}]},{s:s,s:s,s:[{s:s,s:s}]}]", "op", "grouped_linear_fwd",
                          "family", "linear", "variants", "name", "k3", "act", "BF16", "op", "attention_fwd",
                          "family", "attention", "variants", "name", "k3", "act", "BF16");
        cr_assert_eq(parity_run_make_tasks(s), ASSAY_OK);
        cr_expect_gt(rows_of(s, ASSAY_PRECISION_BF16, kernels), 0);
        cr_expect_eq(rows_of(s, ASSAY_PRECISION_FP32, kernels) > 0, says == 0);
        cr_expect_gt(rows_of(s, ASSAY_PRECISION_FP32, "fastest"), 0);
        destroy(s);
    }
}

/* Whether an earlier start in `order` shares the case (operations: the same kind), and with `precision` the precision as well, of the k-th. */
static bool started(const parity_run_state *s, int k, bool precision)
{
    const parity_task *t = &s->tasks[s->order[k]];
    for (int i = 0; i < k; i++) {
        const parity_task *other = &s->tasks[s->order[i]];
        if (other->c == t->c && other->widths == t->widths &&
            (!precision || other->precision == t->precision))
            return true;
    }
    return false;
}

Test(matrix, the_first_of_every_case_starts_first_and_long_tasks_before_short_ones)
{
    parity_run_state *s = state_of("pairwise");
    int turn = 0, qwen3_moe = -1, deep = -1;
    cr_assert_eq(parity_run_make_tasks(s), ASSAY_OK);
    for (int k = 0; k < s->n_tasks; k++) {
        const parity_task *t = &s->tasks[s->order[k]];
        const int own = started(s, k, true) ? 2 : started(s, k, false) ? 1 : 0;
        cr_expect_geq(own, turn, "start %d", k);
        turn = own;
        if (own == 2 && t->c != NULL && strcmp(t->c->name, "qwen3_moe") == 0)
            qwen3_moe = k;
        if (own == 2 && t->c != NULL && strcmp(t->c->name, "deep") == 0 && deep < 0)
            deep = k;
    }
    cr_expect_lt(qwen3_moe, deep, "the last of the longest case starts before the first of a short one");
    destroy(s);
}

Test(matrix, shards_are_disjoint_and_whole_and_every_task_starts_once)
{
    parity_run_state *all = state_of("pairwise");
    cr_assert_eq(parity_run_make_tasks(all), ASSAY_OK);
    int sum = 0;
    for (int i = 1; i <= 3; i++) {
        parity_run_state *part = state_of("pairwise");
        part->o.shard = i;
        part->o.shards = 3;
        cr_assert_eq(parity_run_make_tasks(part), ASSAY_OK);
        for (int k = 0; k < part->n_tasks; k++)
            cr_expect_str_eq(part->tasks[k].dir, all->tasks[k * 3 + i - 1].dir);
        sum += part->n_tasks;
        destroy(part);
    }
    cr_expect_eq(sum, all->n_tasks);
    for (int i = 0; i < all->n_tasks; i++) {
        int times = 0;
        for (int k = 0; k < all->n_tasks; k++)
            times += all->order[k] == i;
        cr_expect_eq(times, 1, "task %d starts %d times", i, times);
    }
    destroy(all);
}
