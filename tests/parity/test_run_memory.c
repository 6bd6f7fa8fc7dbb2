/* Which task of `assay run` starts next, and on how many threads, by the memory that tasks need. */
#include "parity/run/run.h"
#include <criterion/criterion.h>

enum { N = 5, JOBS = 3 };

static parity_task tasks[N];
static int order[N];
static parity_run_state state;

static void make_state(void)
{
    static const double memory[N] = {60.0, 50.0, 10.0, 200.0, 20.0};
    state = (parity_run_state){.tasks = tasks, .n_tasks = N, .order = order, .available = 100.0};
    state.o.jobs = JOBS;
    for (int i = 0; i < N; i++) {
        tasks[i].memory = memory[i];
        order[i] = i;
    }
    for (int k = 0; k < PARITY_MAX_JOBS; k++)
        state.running[k] = -1;
}

TestSuite(run_memory, .init = make_state);

Test(run_memory, a_task_that_does_not_fit_lets_smaller_ones_pass)
{
    static const int expected[] = {0, 2, 4, -1};
    for (int k = 0; k < 4; k++) {
        const int task = parity_run_next(&state);
        cr_expect_eq(task, expected[k], "slot %d: %d", k, task);
        if (k < JOBS)
            state.running[k] = task;
    }
    state.running[0] = -1; /* 60 of 100 come back: the first that had to wait is next */
    cr_expect_eq(parity_run_next(&state), 1);
}

Test(run_memory, a_task_larger_than_the_machine_starts_alone)
{
    for (int i = 0; i < N; i++)
        order[i] = i == 3 ? 3 : -1;
    state.running[1] = 2;
    cr_expect_eq(parity_run_next(&state), -1);
    state.running[1] = -1;
    cr_expect_eq(parity_run_next(&state), 3);
    cr_expect_eq(parity_run_next(&state), -1, "each starts once");
}

Test(run_memory, processors_of_those_that_cannot_run_beside_it)
{
    static const struct {
        int task, processors, threads;
    } rows[] = {{2, 2, 1}, {2, 12, 4}, {0, 2, 2}, {0, 12, 12}, {1, 12, 6}, {3, 2, 2}, {3, 1, 1}, {1, 2, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect_eq(parity_run_threads(&state, rows[i].task, rows[i].processors), rows[i].threads, "row %zu",
                     i);
}
