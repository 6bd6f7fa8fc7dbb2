/* `assay run` on a tiny case: exit codes, report files, failures that are named and happen again, a folder of the user's. */
#include "tests/support/run.h"

TestSuite(run, .init = run_setup, .fini = cli_teardown, .timeout = 200);

static bool is_local_or_whole_tp2(const json_t *o)
{
    return strcmp(json_string_value(json_object_get(o, "layout")), "tp2") == 0 &&
           json_real_value(json_object_get(o, "ratio")) > 0.0;
}

Test(run, an_honest_engine_passes_and_the_reports_say_so)
{
    int found = 0;
    char again[1024];
    cli_result r = cli_run("run --engine sim --quiet --report rep case.json");
    cli_expect_success(&r, "run");
    const counts c = totals(&r);
    cr_expect_eq(c.failed, 0);
    cr_expect_eq(c.skipped, 0);
    expect_equal_counts(c, read_results(cli_file("rep/results.jsonl"), is_local_or_whole_tp2, &found, again),
                        "table and results.jsonl");
    cr_expect_gt(found, 50, "only %d results of tp2 have an error at all: was anything compared?", found);
    expect_reports("rep", c);
    cr_expect_not(cli_exists(cli_file("rep/work/tiny/fp32-tp2")), "scratch of a passed task was kept");
    cli_free(&r);
}

/* Reference runs that tasks share lie in the case's folder under their hashes. */
static int reference_runs(const char *options, int code)
{
    char command[CLI_LINE];
    cli_result r = cli_run("run --engine sim --quiet --report rep --check whole %s case.json", options);
    cr_expect_eq(r.code, code, "%s%s", r.out, r.err);
    cli_free(&r);
    snprintf(command, sizeof command, "exit $(ls %s | grep -cE '^[0-9a-f]{64}\\.'); ",
             cli_file("rep/work/tiny"));
    const int status = system(command);
    return WEXITSTATUS(status);
}

Test(run, reference_runs_of_a_case_that_passed_are_removed)
{
    cr_expect_eq(reference_runs("", 0), 0);
    cr_expect_gt(reference_runs("--keep", 0), 1);
    cr_expect_gt(reference_runs("--fault skip_all_reduce", 1), 1);
}

static bool is_failed_all_reduce(const json_t *o)
{
    const char *op = json_string_value(json_object_get(o, "operation"));
    return strcmp(json_string_value(json_object_get(o, "verdict")), "FAIL") == 0 && op != NULL &&
           strcmp(json_string_value(json_object_get(o, "check")), "local") == 0 &&
           strcmp(op, "all_reduce") == 0;
}

/* With --fail-fast the first task that does not pass ends the run, and what did not run is skipped with that reason. */
Test(run, fail_fast_stops_at_the_first_task_that_does_not_pass)
{
    cli_result r =
        cli_run("run --engine sim --quiet --report rep --fail-fast --jobs 1 --precision fp32 --matrix full "
                "--layout 1 --layout tp2 --layout dp2 --fault skip_all_reduce case.json");
    cr_expect(r.code == 1 && !cli_unclean(&r), "exit code %d\n%s", r.code, r.err);
    const counts c = totals(&r);
    cr_expect(c.passed > 0 && c.failed > 0 && c.skipped > 0, "%s", r.out);
    cr_expect(strstr(r.out, "did not run to its end: --fail-fast, and tiny fp32 tp2") != NULL, "%s", r.out);
    expect_reports("rep", c);
    cli_free(&r);
    r = cli_run("run --engine sim --quiet --report rep --fail-fast --layout 1 --layout dp2 case.json");
    cr_expect(r.code == 0 && totals(&r).skipped == 0, "exit code %d\n%s", r.code, r.out);
    cli_free(&r);
}

/* The planted fault is found at its operation, and the command that the report gives finds it again. */
Test(run, a_missing_all_reduce_is_named_and_fails_again)
{
    int found = 0;
    char again[1024] = "";
    cli_result r =
        cli_run("run --engine sim --quiet --report rep --layout tp2 --fault skip_all_reduce case.json");
    cr_expect(r.code == 1 && !cli_unclean(&r), "exit code %d\n%s", r.code, r.err);
    cr_expect(strstr(r.out, "all_reduce") != NULL, "the operation is not in the table:\n%s", r.out);
    const counts c = totals(&r);
    cr_expect_gt(c.failed, 0);
    expect_equal_counts(c, read_results(cli_file("rep/results.jsonl"), is_failed_all_reduce, &found, again),
                        "table and results.jsonl");
    expect_reports("rep", c);
    cr_expect_eq(found, 1, "all_reduce failed in %d results of the local check", found);
    cr_expect(cli_exists(cli_file("rep/work/tiny/fp32-tp2/trace")), "traces of a failed task are kept");
    cli_free(&r);
    cr_assert_eq(strncmp(again, "assay ", 6), 0, "%s", again);
    r = cli_run("%s", again + 6);
    cr_expect_eq(r.code, 1, "%s: exit code %d\n%s", again, r.code, r.err);
    cr_expect(strstr(r.out, "all_reduce") != NULL, "%s\n%s", again, r.out);
    expect_equal_counts(c, totals(&r), again);
    cli_free(&r);
}

Test(run, other_planted_faults_are_failures)
{
    static const char *const faults[] = {"double_microbatch", "flipped_sign", "wrong_scale", "stale_weight"};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        cli_result r =
            cli_run("run --engine sim --quiet --report rep --layout 1 --fault %s case.json", faults[i]);
        cr_expect(r.code == 1 && !cli_unclean(&r), "%s: exit code %d\n%s", faults[i], r.code, r.err);
        cr_expect_gt(totals(&r).failed, 0, "%s", faults[i]);
        cli_free(&r);
    }
}

Test(run, one_check_alone)
{
    cli_result r = cli_run("run --engine sim --quiet --report rep --layout 1 --check local case.json");
    cli_expect_success(&r, "--check local");
    cr_expect_gt(totals(&r).passed, 50);
    char *text = cli_read(cli_file("rep/results.jsonl"));
    cr_expect_eq(cli_count(text, "\"check\":\"local\""), totals(&r).passed);
    free(text);
    cli_free(&r);
    r = cli_run("run --engine sim --quiet --report rep --layout 1 --check routing case.json");
    cr_expect_eq(r.code, 2, "nothing was compared: exit code %d", r.code);
    cr_expect_eq(totals(&r).skipped, 0, "a dense model has no routing");
    cr_expect(
        strstr(r.out, "1 of 1 tasks have nothing that --check routing judges, the first is tiny fp32 1 ") !=
            NULL,
        "%s", r.out);
    cli_free(&r);
}

static bool is_failure(const json_t *o)
{
    return strcmp(json_string_value(json_object_get(o, "verdict")), "FAIL") == 0;
}

/* --- a folder of the user's ---------------------------------------------------------------------------------- */
Test(run, a_model_folder_is_judged_on_its_batch)
{
    cli_result r = cli_run(
        "run --engine sim --quiet --report rep --keep --layout tp2 --precision fp32 --variant fastest "
        "--model " MODELS "llama --batch " MODELS "llama/batch.safetensors");
    cli_expect_success(&r, "run --model");
    cr_expect_gt(totals(&r).passed, 200);
    cli_free(&r);
    /* The case's batch file is the user's: the [b,s] one as one step of one microbatch. */
    assay_tensorfile *given, *used;
    const assay_tensor_info *a, *b;
    cr_assert_eq(assay_tensorfile_open(&given, MODELS "llama/batch.safetensors"), ASSAY_OK);
    cr_assert_eq(assay_tensorfile_open(&used, cli_file("rep/work/llama/batch.safetensors")), ASSAY_OK, "%s",
                 assay_error_message());
    a = assay_tensorfile_find(given, "input_ids");
    b = assay_tensorfile_find(used, "input_ids");
    cr_expect(b->ndim == 4 && b->shape[0] == 1 && b->shape[1] == 1 && b->shape[2] == a->shape[0] &&
              b->shape[3] == a->shape[1] && memcmp(a->data, b->data, (size_t)a->count * 8) == 0);
    assay_tensorfile_close(given);
    assay_tensorfile_close(used);
}

/* What is wrong with that folder is found, and the printed command finds it again. */
Test(run, a_fault_in_a_model_folder_is_found_again)
{
    int found = 0;
    char again[1024];
    cli_result r =
        cli_run("run --engine sim --quiet --report rep --layout tp2 --precision fp32 --variant fastest "
                "--train-iters 1 --fault skip_all_reduce --model " MODELS "llama");
    cr_expect_eq(r.code, 1, "%s%s", r.out, r.err);
    cli_free(&r);
    (void)read_results(cli_file("rep/results.jsonl"), is_failure, &found, again);
    cr_expect_gt(found, 0);
    cr_expect(strstr(again, " --model=" MODELS "llama ") != NULL && strstr(again, "--case") == NULL, "%s",
              again);
    r = cli_run("%s --report again", again + strlen("assay "));
    cr_expect_eq(r.code, 1, "%s\n%s%s", again, r.out, r.err);
    cli_free(&r);
}

/* An option that is given wins over the case's, also where its value is the program's default. */
Test(run, an_option_at_its_default_replaces_the_case_s_own)
{
    cli_result r =
        cli_run("run --engine sim --quiet --report rep --keep --layout 1 --adam-beta2 0.999 case.json");
    cli_expect_success(&r, "run");
    cli_free(&r);
    r = cli_run("run --engine sim --quiet --report rep2 --keep --layout 1 case.json");
    cli_expect_success(&r, "run");
    cli_free(&r);
    char *one = cli_read(cli_file("rep/work/tiny/fp32-1/trace/index.json"));
    char *other = cli_read(cli_file("rep2/work/tiny/fp32-1/trace/index.json"));
    cr_expect(strstr(one, "\"adam_beta2\": 0.999") != NULL, "%.600s", one);
    cr_expect(strstr(other, "\"adam_beta2\": 0.5") != NULL, "%.600s", other);
    free(one);
    free(other);
}
