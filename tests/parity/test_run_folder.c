/* The report folder has one owner, and a stopped run leaves it readable. */
#include "tests/support/run.h"
#include <sys/stat.h>

TestSuite(run_folder, .init = run_setup, .fini = cli_teardown, .timeout = 200);

Test(run_folder, a_folder_of_somebody_else_is_not_touched)
{
    cr_assert_eq(assay_mkdir_p(cli_file("mine/work")), ASSAY_OK);
    cli_write_text(cli_file("mine/work/thesis.tex"), "years");
    cli_result r = cli_run("run --engine sim --quiet --layout 1 --report mine case.json");
    cli_expect_refusal(&r, "mine",
                       (const char *const[]){"mine: expected a new or empty folder", "found work", NULL});
    cli_free(&r);
    cr_expect(cli_exists(cli_file("mine/work/thesis.tex")));
    /* A report folder of ours, in which somebody put a folder `work` of his own. */
    r = cli_run("run --engine sim --quiet --layout 1 --report ours case.json");
    cli_expect_success(&r, "ours");
    cli_free(&r);
    cr_assert_eq(assay_remove_tree(cli_file("ours/work"), cli_folder), ASSAY_OK);
    cr_assert_eq(assay_mkdir_p(cli_file("ours/work")), ASSAY_OK);
    cli_write_text(cli_file("ours/work/thesis.tex"), "years");
    r = cli_run("run --engine sim --quiet --layout 1 --report ours case.json");
    cli_expect_refusal(&r, "ours", (const char *const[]){"ours/work: expected a new or empty folder", NULL});
    cli_free(&r);
    cr_expect(cli_exists(cli_file("ours/work/thesis.tex")));
    r = cli_run("report merge ours --report mine");
    cli_expect_refusal(&r, "merge", (const char *const[]){"mine: expected a new or empty folder", NULL});
    cli_free(&r);
}

/* The simulator, which in the task of layout 1 tells that it trains and waits to be let go. */
static void held_engine(void)
{
    char text[4 * CLI_PATH];
    snprintf(text, sizeof text,
             "#!/bin/sh\ncase \"$*\" in step*/fp32-1/*)\n"
             "  echo > %s/trains\n  while [ ! -e %s/go ]; do sleep 0.05; done;;\nesac\n"
             "exec " ASSAY_BIN_DIR "/assay-sim \"$@\"\n",
             cli_folder, cli_folder);
    cli_write_text(cli_file("held"), text);
    cr_assert_eq(chmod(cli_file("held"), 0700), 0);
}

static pid_t start_held(const char *more)
{
    char line[CLI_LINE];
    held_engine();
    snprintf(line, sizeof line,
             ASSAY_BIN_DIR "/assay run --engine-program %s --quiet --report rep %s case.json",
             cli_file("held"), more);
    const pid_t pid = cli_start(line);
    while (!cli_exists(cli_file("trains")) && waitpid(pid, NULL, WNOHANG) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    return pid;
}

Test(run_folder, a_second_run_in_the_folder_is_refused_by_the_holder)
{
    char holder[64];
    const pid_t first = start_held("");
    cli_result r = cli_run("run --engine sim --quiet --report rep case.json");
    snprintf(holder, sizeof holder, "process %ld", (long)first);
    cli_expect_refusal(&r, "second", (const char *const[]){"another run works in this folder", holder, NULL});
    cli_free(&r);
    cli_write_text(cli_file("go"), "");
    r = cli_wait(first);
    cli_expect_success(&r, "first");
    cli_free(&r);
    r = cli_run("run --engine sim --quiet --report rep --layout 1 case.json");
    cli_expect_success(&r, "after it");
    cli_free(&r);
}

/* A stopped run says what it had done (tp2 first: it takes longest), and nothing of it goes on. */
/* What a script finds behind it would be the verdict of another engine. */
Test(run_folder, a_killed_run_leaves_no_older_report)
{
    static const char *const files[] = {"rep/results.jsonl", "rep/junit.xml", "rep/index.html",
                                        "rep/facts.json"};
    cli_result r = cli_run("run --engine sim --quiet --layout 1 --report rep case.json");
    cli_expect_success(&r, "a whole run");
    cli_free(&r);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        cr_expect(cli_exists(cli_file(files[i])), "%s", files[i]);
    const pid_t pid = start_held("--layout 1");
    cr_assert_eq(kill(-pid, SIGKILL), 0);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    for (int turns = 0; kill(-pid, 0) == 0 && turns < 1000; turns++) /* its children die behind it */
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        cr_expect_not(cli_exists(cli_file(files[i])), "%s", files[i]);
}

Test(run_folder, a_stopped_run_leaves_a_partial_report_and_no_process)
{
    const pid_t pid = start_held("--jobs 1");
    kill(pid, SIGTERM);
    cli_result r = cli_wait(pid);
    cr_expect_eq(r.code, 2, "%d %s", r.code, r.err);
    const counts c = totals(&r);
    cr_expect(c.passed > 100 && c.skipped == 1 && c.failed == 0, "%s", r.out);
    cr_expect(strstr(r.out, "stopped by signal 15") != NULL, "%s", r.out);
    expect_reports("rep", c);
    cr_expect_eq(kill(-pid, 0), -1, "a process of the group still runs");
    cli_free(&r);
}
