/* `assay run`: the kernels that a row names ran, or it fails; what no kernel could answer, and what takes no such word, is said. */
#include "tests/support/run.h"
#include <sys/stat.h>

TestSuite(run_kernels, .init = run_setup, .fini = cli_teardown, .timeout = 200);

/* The simulator whose runs and answers get the sed expression's words in place of their own. */
static void engine_of_other_words(const char *name, const char *sed)
{
    char text[1000];
    snprintf(text, sizeof text,
             "#!/bin/sh\nfor word; do shift; set -- \"$@\" \"$(printf %%s \"$word\" | sed '%s')\"; done\n"
             "exec " ASSAY_BIN_DIR "/assay-sim \"$@\"\n",
             sed);
    cli_write_text(cli_file(name), text);
    cr_assert_eq(chmod(cli_file(name), 0700), 0);
}

static void expect_said(const char *engine, const char *options, int code, const char *words)
{
    cli_result r =
        cli_run("run --engine-program %s --quiet --report %s.rep %s", cli_file(engine), engine, options);
    cr_expect_eq(r.code, code, "%s: exit code %d\n%s%s", options, r.code, r.out, r.err);
    cr_expect(strstr(r.out, words) != NULL, "%s: %s\n%s", options, words, r.out);
    cli_free(&r);
}

#define TINY "--layout 1 --check plan case.json --variant "

Test(run_kernels, a_row_of_other_kernels_than_it_names_fails)
{
    engine_of_other_words("honest", "s/no such word//");
    expect_said("honest", TINY "attention=k1", 0, " 0 failed");
    expect_said("honest", TINY "k0", 0, " 0 failed");
    engine_of_other_words("lower", "s/--variant=attention=k1/--variant=attention=k0/");
    expect_said(
        "lower", TINY "attention=k1", 1,
        "attention=k1 was asked for, and no record of attention is of k1; what ran: attention_fwd k0");
    engine_of_other_words("deaf", "s/--variant=k0/--variant=k1/");
    expect_said("deaf", TINY "k0", 1, "k0 was asked for, and ");
    /* other checks are not the ones that say it */
    expect_said("deaf", "--layout 1 --check flow case.json --variant k0", 0, " 0 failed");
}

Test(run_kernels, what_no_kernel_could_answer_is_no_row)
{
    engine_of_other_words("honest", "s/no such word//");
    expect_said("honest", TINY "attention=k3", 2,
                "left out: tiny fp32 attention=k3 (on this device no kernel");
    /* the model has no experts: nothing of the run has such a kernel */
    expect_said("honest", TINY "linear=k2", 2, "no operation of this run has a k2 of linear for F32");
}

Test(run_kernels, operations_that_a_selection_leaves_out_are_said)
{
    engine_of_other_words("honest", "s/no such word//");
    static const char *const words[] = {
        "left out: operations 1 (takes no --variant but fastest, every and k0 to k3)",
        "left out: operations dp3 (takes no --variant but fastest)"};
    for (int i = 0; i < 2; i++)
        expect_said("honest", "--case operations --variant attention=k0", 2, words[i]);
}

/* Single operations by one kernel of each family. */
Test(run_kernels, operations_of_other_kernels_than_were_asked_for_fail)
{
    engine_of_other_words("deaf", "s/--variant=k0/--variant=k1/");
    expect_said("deaf", "--case operations --layout 1 --precision fp32 --variant k0", 1,
                "k0 was asked for, and ");
}

/* A doctor whose two lists of kernels differ. */
Test(run_kernels, families_that_no_operation_bears_out_are_refused)
{
    cli_write_text(cli_file("boaster"), "#!/bin/sh\n[ \"$1\" != doctor ] || { " ASSAY_BIN_DIR
                                        "/assay-sim \"$@\" | sed 's/\"adamw\": 1/\"adamw\": 2/'; exit; }\n"
                                        "exec " ASSAY_BIN_DIR "/assay-sim \"$@\"\n");
    cr_assert_eq(chmod(cli_file("boaster"), 0700), 0);
    cli_result r =
        cli_run("run --engine-program %s --quiet --report rep --layout 1 case.json", cli_file("boaster"));
    cr_expect_eq(r.code, 2);
    cr_expect(strstr(r.err, "variants: adamw: expected k1, the highest that an operation lists, found k2") !=
                  NULL,
              "%s", r.err);
    cli_free(&r);
}
