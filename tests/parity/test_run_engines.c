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
        (const char *const[]){"ended with exit code 2: no CUDA device answers: none found", NULL});
    cr_expect(strstr(r.err, "assay-gpu: error") == NULL, "%s", r.err);
    cli_free(&r);
}

/* What happened, not what it might mean. */
Test(run_engines, how_an_engine_did_not_start_is_said)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"not a program\n", "cannot be started: Exec format error (a script needs a first line #!"},
        {"#!/no/such/shell\nexit 0\n",
         "cannot be started: No such file or directory (it is there: its interpreter"},
        {"#!/bin/sh\nkill -SEGV $$\n", "doctor: died of signal 11 (Segmentation fault)"},
        {"#!/bin/sh\nexit 3\n", "doctor: ended with exit code 3, without a word on stderr"},
        {"#!/bin/sh\nexit 127\n", "doctor: ended with exit code 127"},
        {"#!/bin/sh\necho it rains >&2\nexit 1\n", "doctor: ended with exit code 1: it rains"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_write_text(cli_file("broken"), rows[i].text);
        cr_assert_eq(chmod(cli_file("broken"), 0700), 0);
        cli_result r = cli_run("run --engine-program %s --quiet --report rep case.json", cli_file("broken"));
        cli_expect_refusal(&r, rows[i].words, (const char *const[]){rows[i].words, NULL});
        cr_expect_null(strstr(r.err, "no device"), "%s", r.err);
        cli_free(&r);
    }
}

/* It dies in a run: an error of CI's report, and no failure of a claim. */
Test(run_engines, a_dead_engine_is_an_error_in_junit)
{
    fake_engine("dies", "exec " ASSAY_BIN_DIR "/assay-sim \"$@\"; fi; if [ \"$1\" = step ]; then kill -9 $$");
    cli_result r =
        cli_run("run --engine-program %s --quiet --layout 1 --report rep case.json", cli_file("dies"));
    cr_expect_eq(r.code, 2, "%s%s", r.out, r.err);
    cr_expect(strstr(r.out, "rank 0 died of signal 9") != NULL, "%s%s", r.out, r.err);
    expect_reports("rep", totals(&r));
    char *text = cli_read(cli_file("rep/junit.xml"));
    cr_expect_gt(cli_count(text, "<error "), 0);
    cr_expect_eq(cli_count(text, "<skipped "), 0);
    free(text);
    cli_free(&r);
}

Test(run_engines, a_summary_that_cannot_be_written_is_found_before_the_first_task)
{
    cli_result r = cli_run("run --engine sim --quiet --layout 1 --check plan --report rep --summary "
                           "no/such/folder/page.md case.json");
    cli_expect_refusal(&r, "summary", (const char *const[]){"no/such/folder/page.md", NULL});
    cr_expect_not(cli_exists(cli_file("rep/results.jsonl")));
    cli_free(&r);
    /* It goes away in the meantime: what was found is told all the same. */
    fake_engine("removes",
                "exec " ASSAY_BIN_DIR "/assay-sim \"$@\"; fi; rm -rf pages; if true; then exec " ASSAY_BIN_DIR
                "/assay-sim \"$@\"");
    cr_assert_eq(assay_mkdir_p(cli_file("pages")), ASSAY_OK);
    r = cli_run(
        "run --engine-program %s --quiet --layout 1 --check plan --report rep --summary pages/page.md "
        "case.json",
        cli_file("removes"));
    cr_expect_eq(r.code, 2, "%s%s", r.out, r.err);
    cr_expect(totals(&r).passed > 0 && strstr(r.err, "pages/page.md") != NULL, "%s%s", r.out, r.err);
    cli_free(&r);
}

#if !defined(__SANITIZE_ADDRESS__) /* whose shadow alone needs terabytes of address space */
/* OpenBLAS asks for its buffers again and again where there is no memory: the judge hung. */
Test(run_engines, little_memory_is_said_and_does_not_hang)
{
    char command[CLI_LINE], *out;
    snprintf(command, sizeof command,
             "cd %s && (ulimit -v 150000; timeout 60 " ASSAY_BIN_DIR
             "/assay run --engine sim --quiet --layout 1 --report rep case.json) > vm.txt 2>&1",
             cli_folder);
    const int status = system(command);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 2, "exit code %d", WEXITSTATUS(status));
    out = cli_read(cli_file("vm.txt"));
    cr_expect(strstr(out, "did not run: OpenBLAS needs 128 MiB of address space") != NULL, "%s", out);
    free(out);
}
#endif

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
