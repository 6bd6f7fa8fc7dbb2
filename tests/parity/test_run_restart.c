/* `assay run`: a run that is told to load a checkpoint has loaded it. */
#include "tests/support/run.h"
#include <sys/stat.h>

TestSuite(run_restart, .init = run_setup, .fini = cli_teardown, .timeout = 200);

/* The simulator behind these lines of a shell script, for which --save of the run at hand is $save, and $load says whether it loads. */
static void engine_behind(const char *name, const char *lines)
{
    char text[2000];
    snprintf(text, sizeof text,
             "#!/bin/sh\nsave= load=\nfor a do case \"$a\" in --save=*) save=${a#--save=};; "
             "--load=*) load=1;; esac; done\n%sexec " ASSAY_BIN_DIR "/assay-sim \"$@\"\n",
             lines);
    cli_write_text(cli_file(name), text);
    cr_assert_eq(chmod(cli_file(name), 0700), 0);
}

/* text: in the failures; NULL: there are none. */
static void expect_run(const char *name, const char *lines, const char *options, const char *text)
{
    engine_behind(name, lines);
    cli_result r = cli_run("run --engine-program %s --quiet --report %s.rep --layout 1 %s case.json",
                           cli_file(name), name, options);
    cr_expect_eq(r.code, text != NULL, "%s: exit code %d\n%s%s", name, r.code, r.out, r.err);
    cr_expect(text == NULL || strstr(r.out, text) != NULL, "%s: expected %s\n%s", name, text, r.out);
    cli_free(&r);
}

#define WITHOUT_LOAD "for a do shift; case \"$a\" in --load=*) ;; *) set -- \"$@\" \"$a\";; esac; done\n"

/* Afresh, the numbers are the same. */
Test(run_restart, an_engine_that_does_not_load_is_named)
{
    expect_run("honest", "", "", NULL);
    expect_run("afresh", WITHOUT_LOAD, "--check bitwise",
               "does not go on from a checkpoint, given no other weights");
    /* with the case's own weights, which it kept: one step too many */
    expect_run("keeps", "[ -z \"$load\" ] || { " WITHOUT_LOAD "set -- \"$@\" --draw-weights=7; }\n",
               "--check bitwise",
               "loss of the run that loads the half-way checkpoint: expected those of the "
               "steps that were left, 1 elements, found 2");
}

Test(run_restart, the_first_run_s_checkpoint_is_no_result_of_the_second)
{
    expect_run("copies",
               "case \"$load$save\" in 1*/rest) cp -r \"${save%/*}/save\" \"$save\"; exit 0;; esac\n",
               "--check bitwise", "the run that was resumed left no result file");
}

/* A run that moves and begins afresh has made the same steps again. */
Test(run_restart, a_move_that_does_not_load_is_named)
{
    expect_run("moves", "[ -z \"$load\" ] || { " WITHOUT_LOAD "}\n", "--check checkpoint",
               "does not go on from a checkpoint, given no other weights");
}

/* A folder with weights of its own. */
Test(run_restart, of_a_folder_the_configuration_alone_is_given)
{
    char text[2000];
    cli_result r =
        cli_run("run --engine sim --quiet --report first --keep --layout 1 --check bitwise case.json");
    cr_assert_eq(r.code, 0, "%s%s", r.out, r.err);
    cli_free(&r);
    snprintf(text, sizeof text, "cp -r first/work/tiny/fp32-1/save %s", cli_file("folder"));
    char *stored = strdup(case_text), *model = strstr(stored, "\"model\": {"),
         *data = strstr(stored, " \"data\"");
    snprintf(text, sizeof text, "%.*s\"model\": \"first/work/tiny/fp32-1/save\",%s", (int)(model - stored),
             stored, data);
    free(stored);
    cli_write_text(cli_file("case.json"), text);
    expect_run("stored", "", "", NULL);
    expect_run("stored_afresh", WITHOUT_LOAD, "--check bitwise",
               "does not go on from a checkpoint, given no other weights");
}

/* With one step nothing goes on: said, since checkpoints are judged all the same. */
Test(run_restart, one_step_is_not_resumed_and_that_is_said)
{
    for (int steps = 1; steps <= 2; steps++) {
        cli_result r =
            cli_run("run --engine sim --quiet --report rep%d --layout 1 --check checkpoint --train-iters %d "
                    "case.json",
                    steps, steps);
        cr_expect_eq(r.code, 0, "%s%s", r.out, r.err);
        cr_expect_eq(cli_count(r.err, "no run goes on from a checkpoint"), steps == 1, "%s", r.err);
        cli_free(&r);
    }
}

/* It goes on, and says that it did not. */
Test(run_restart, a_trace_that_says_aborted_fails)
{
    expect_run(
        "aborted",
        "trace=; for a do case \"$a\" in --trace=*) trace=${a#--trace=};; esac; done\n"
        "[ -z \"$trace\" ] || { " ASSAY_BIN_DIR "/assay-sim \"$@\" || exit; sed -i "
        "'s/^{\"type\":\"end\"/&,\"aborted\":\"out of patience\"/' \"$trace/rank-00000.jsonl\"; exit 0; }\n",
        "--check flow",
        "rank 0: the trace says that its run was aborted, and the engine ended with exit code 0: out of "
        "patience");
}
