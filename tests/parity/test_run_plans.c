/* `assay run` with a file of product plans: choices that it names are judged, and stand still while runs are compared. */
#include "tests/support/run.h"
#include <dirent.h>
#include <sys/stat.h>

TestSuite(run_plans, .init = run_setup, .fini = cli_teardown, .timeout = 200);

/* The simulator behind a line of the shell. */
static void engine_with(const char *name, const char *line)
{
    char text[1000];
    snprintf(text, sizeof text, "#!/bin/sh\n%s\nexec " ASSAY_BIN_DIR "/assay-sim \"$@\"\n", line);
    cli_write_text(cli_file(name), text);
    cr_assert_eq(chmod(cli_file(name), 0700), 0);
}

static counts judged(const char *engine, const char *arguments, int code)
{
    cli_result r =
        cli_run("run --engine-program %s --quiet --report rep %s case.json", cli_file(engine), arguments);
    cr_expect_eq(r.code, code, "%s: exit code %d\n%s%s", engine, r.code, r.out, r.err);
    const counts c = totals(&r);
    cli_free(&r);
    return c;
}

/* The file in the folder of plans; false: no file, or no folder. */
static bool file_of_plans(char path[CLI_PATH])
{
    DIR *d = opendir(cli_file("plans"));
    bool found = false;
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
        if (e->d_name[0] != '.') {
            snprintf(path, CLI_PATH, "%s/%s", cli_file("plans"), e->d_name);
            found = true;
        }
    if (d)
        closedir(d);
    return found;
}

/* Names the simulator's algorithm whose k descends for all products: others of its algorithms have other numbers. */
static int name_descending(const char *path)
{
    static const char mark[] = "\"algo\": \"e705000000000000";
    int named = 0;
    char *text = cli_read(path);
    for (char *at = text; (at = strstr(at, mark)) != NULL; named++) {
        at += sizeof mark - 1;
        memcpy(at, "02", 2);
    }
    cli_write_text(path, text);
    free(text);
    return named;
}

Test(run_plans, choices_of_a_file_are_judged_and_stand_still)
{
    char path[CLI_PATH];
    setenv("ASSAY_PRODUCT_PLANS", cli_file("plans"), 1);
    setenv("ASSAY_PRODUCT_PLANS_TIME", "1", 1);
    engine_with("plain", ":");
    engine_with("timing", "export ASSAY_PRODUCT_PLANS_TIME=1");
    engine_with("forgetting", "case \"$*\" in *--trace=*) ;; *) unset ASSAY_PRODUCT_PLANS ;; esac");
    cr_expect_gt(judged("plain", "--layout 1 --check local", 0).passed, 0);
    cr_expect(!file_of_plans(path), "assay run lets nothing be timed");
    cr_expect_gt(judged("timing", "--layout 1 --check local", 0).passed, 0);
    cr_assert(file_of_plans(path), "an engine that times anyway");
    cr_expect_gt(name_descending(path), 4);
    const counts all = judged("plain", "--layout 1 --layout tp2", 0);
    cr_expect(all.passed > 0 && all.failed == 0 && all.skipped == 0);
    /* Sums in another order are other bits: runs that disagree about the file are told apart. */
    cr_expect_gt(judged("forgetting", "--layout 1 --check bitwise", 1).failed, 0);
    unsetenv("ASSAY_PRODUCT_PLANS");
    unsetenv("ASSAY_PRODUCT_PLANS_TIME");
}
