/* The request of the operations alone: written once for all kernels of a precision and number of ranks. */
#include "core/base/file.h"
#include "parity/run/run_task.h"
#include "tests/support/run.h"
#include <sys/stat.h>
#include <sys/wait.h>

TestSuite(run_request, .init = run_setup, .fini = cli_teardown, .timeout = 200);

static parity_task task_of(assay_precision precision, const char *layout, const char *variant)
{
    parity_task t = {.precision = precision};
    snprintf(t.layout, sizeof t.layout, "%s", layout);
    snprintf(t.variant, sizeof t.variant, "%s", variant);
    snprintf(t.case_dir, sizeof t.case_dir, "%s", cli_file("operations"));
    return t;
}

static struct stat file_of(const char *path)
{
    struct stat info;
    cr_assert_eq(stat(path, &info), 0, "%s", path);
    return info;
}

static bool same_file(const char *path, struct stat before)
{
    const struct stat now = file_of(path);
    return now.st_ino == before.st_ino && now.st_mtim.tv_sec == before.st_mtim.tv_sec &&
           now.st_mtim.tv_nsec == before.st_mtim.tv_nsec;
}

Test(run_request, kernels_share_it_precisions_and_numbers_of_ranks_do_not)
{
    char first[ASSAY_PATH], second[ASSAY_PATH], other[ASSAY_PATH], index[ASSAY_PATH + 16];
    const parity_task fastest = task_of(ASSAY_PRECISION_FP32, "1", "fastest"),
                      k1 = task_of(ASSAY_PRECISION_FP32, "1", "k1"),
                      bf16 = task_of(ASSAY_PRECISION_BF16, "1", "k1"),
                      three = task_of(ASSAY_PRECISION_FP32, "dp3", "k1");
    cr_assert_eq(assay_mkdir_p(fastest.case_dir), ASSAY_OK);
    cr_assert_eq(parity_task_request(&fastest, first), ASSAY_OK, "%s", assay_error_message());
    snprintf(index, sizeof index, "%s/index.json", first);
    const struct stat written = file_of(index);
    cr_assert_eq(parity_task_request(&k1, second), ASSAY_OK);
    cr_expect_str_eq(first, second);
    cr_expect(same_file(index, written), "the second task wrote it again");
    cr_assert_eq(parity_task_request(&bf16, other), ASSAY_OK);
    cr_expect_str_neq(first, other);
    cr_assert_eq(parity_task_request(&three, second), ASSAY_OK);
    cr_expect_str_neq(first, second);
    assay_trace *t = NULL;
    cr_assert_eq(assay_trace_open(&t, second, true), ASSAY_OK, "%s", assay_error_message());
    cr_expect_eq(assay_trace_world(t), 3);
    assay_trace_close(t);
}

/* A task that was stopped while it wrote leaves a part, which no other takes for a request. */
Test(run_request, a_part_is_not_a_request)
{
    char path[ASSAY_PATH], part[ASSAY_PATH + 32];
    const parity_task t = task_of(ASSAY_PRECISION_FP32, "1", "fastest");
    snprintf(part, sizeof part, "%s/request-fp32-1.part", t.case_dir);
    cr_assert_eq(assay_mkdir_p(part), ASSAY_OK);
    cli_write_text(cli_file("operations/request-fp32-1.part/index.json"), "{");
    cr_assert_eq(parity_task_request(&t, path), ASSAY_OK, "%s", assay_error_message());
    assay_trace *trace = NULL;
    cr_assert_eq(assay_trace_open(&trace, path, true), ASSAY_OK, "%s", assay_error_message());
    assay_trace_close(trace);
    cr_expect(!cli_exists(part));
}

Test(run_request, tasks_that_ask_at_once_get_one)
{
    char path[ASSAY_PATH];
    enum { TASKS = 3 };
    pid_t pids[TASKS];
    const parity_task t = task_of(ASSAY_PRECISION_BF16, "1", "fastest");
    cr_assert_eq(assay_mkdir_p(t.case_dir), ASSAY_OK);
    for (int k = 0; k < TASKS; k++) {
        pids[k] = fork();
        if (pids[k] == 0)
            _exit(parity_task_request(&t, path) == ASSAY_OK ? 0 : 1);
        cr_assert(pids[k] > 0);
    }
    for (int k = 0; k < TASKS; k++) {
        int status = -1;
        cr_assert_eq(waitpid(pids[k], &status, 0), pids[k]);
        cr_expect_eq(status, 0, "task %d", k);
    }
    cr_assert_eq(parity_task_request(&t, path), ASSAY_OK);
    assay_trace *trace = NULL;
    cr_assert_eq(assay_trace_open(&trace, path, true), ASSAY_OK, "%s", assay_error_message());
    assay_trace_close(trace);
}

Test(run_request, no_folder_is_an_error_with_its_name)
{
    char path[ASSAY_PATH];
    const parity_task t = task_of(ASSAY_PRECISION_FP32, "1", "fastest");
    cr_expect_eq(parity_task_request(&t, path), ASSAY_IO);
    cr_expect(strstr(assay_error_message(), "operations/request-fp32-1.lock: No such file") != NULL, "%s",
              assay_error_message());
}
