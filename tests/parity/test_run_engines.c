/* Engines that do not do their work, and outputs that cannot be written. */
#include "tests/support/run.h"
#include <sys/stat.h>

TestSuite(run_engines, .init = run_setup, .fini = cli_teardown, .timeout = 200);

static void fake_engine(const char *name, const char *body)
{
    char text[2000];
    snprintf(text, sizeof text, "#!/bin/sh\nif [ \"$1\" = doctor ]; then %s; fi\nexit 0\n", body);
    cli_write_text(cli_file(name), text);
    cr_assert_eq(chmod(cli_file(name), 0700), 0);
}

Test(run_engines, an_engine_that_writes_nothing_is_no_success)
{
    fake_engine("idle", "echo '{\"simulated\": true}'");
    cli_result r = cli_run("step --engine-program %s --model " MODELS "llama --batch " MODELS
                           "llama/batch.safetensors --out result",
                           cli_file("idle"));
    cli_expect_refusal(&r, "nothing", (const char *const[]){"wrote no --out result", NULL});
    cli_free(&r);
    cli_write_text(cli_file("result"), "of yesterday");
    r = cli_run("step --engine-program %s --model " MODELS "llama --batch " MODELS
                "llama/batch.safetensors --out result",
                cli_file("idle"));
    cli_expect_refusal(&r, "old", (const char *const[]){"--out result is what lay there before", NULL});
    cli_free(&r);
    r = cli_run("run --engine-program %s --quiet --layout 1 --report rep case.json", cli_file("idle"));
    cr_expect_eq(r.code, 2, "%s%s", r.out, r.err);
    cli_free(&r);
}

/* A trace without operations: what follows operations has nothing to say, and that is no pass beside what other checks say. */
Test(run_engines, a_check_without_a_claim_is_a_skip)
{
    static const char body[] =
        "#!/bin/sh\n" ASSAY_BIN_DIR
        "/assay-sim \"$@\" || exit\nfor w in \"$@\"; do case $w in --trace=*) sed -i "
        "-e '/\"type\":\"op\"/d' -e 's/\"ops\":[0-9]*/\"ops\":0/' \"${w#--trace=}\"/*.jsonl ;; esac; done\n";
    cli_write_text(cli_file("mute"), body);
    cr_assert_eq(chmod(cli_file("mute"), 0700), 0);
    cli_result r = cli_run("run --engine-program %s --quiet --layout 1 --variant fastest --check flow "
                           "--report rep case.json",
                           cli_file("mute"));
    cr_expect_eq(r.code, 2, "%s%s", r.out, r.err);
    cr_expect(strstr(r.out, "could not be checked: the check made no claim") != NULL, "%s%s", r.out, r.err);
    cli_free(&r);
}

/* A machine that has the toolkit and no device: the reason is told once, where the engine is chosen. */
Test(run_engines, an_engine_without_a_device_does_not_shout)
{
    fake_engine("empty", "echo 'assay-gpu: error: no CUDA device answers: none found' >&2; exit 2");
    cli_result r = cli_run("run --engine-program %s --quiet --report rep case.json", cli_file("empty"));
    cli_expect_refusal(
        &r, "empty",
        (const char *const[]){"no device answers (exit status 2): no CUDA device answers: none found", NULL});
    cr_expect(strstr(r.err, "assay-gpu: error") == NULL, "%s", r.err);
    cli_free(&r);
}

Test(run_engines, an_engine_that_never_answers_is_given_up)
{
    fake_engine("silent", "sleep 1000");
    setenv("ASSAY_DOCTOR_TIMEOUT", "0.5", 1);
    cli_result r = cli_run("run --engine-program %s --quiet --report rep case.json", cli_file("silent"));
    cli_expect_refusal(&r, "silent", (const char *const[]){"doctor: no answer within 0.5 s", NULL});
    cli_free(&r);
    setenv("ASSAY_DOCTOR_TIMEOUT", "soon", 1);
    r = cli_run("run --engine-program %s --quiet --report rep case.json", cli_file("silent"));
    cli_expect_refusal(&r, "limit",
                       (const char *const[]){"ASSAY_DOCTOR_TIMEOUT: expected seconds, found soon", NULL});
    cli_free(&r);
    unsetenv("ASSAY_DOCTOR_TIMEOUT");
}

Test(run_engines, a_full_disk_under_the_output_is_no_success)
{
    static const char *const words[] = {"--help", "--version",  "layout tp2",
                                        "doctor", "run --help", "step --version"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char command[CLI_LINE];
        snprintf(command, sizeof command, ASSAY_BIN_DIR "/assay %s > /dev/full 2> /dev/null", words[i]);
        const int status = system(command);
        cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 2, "%s: exit code %d", words[i],
                  WEXITSTATUS(status));
    }
}
