/* The small verbs: diff, replay, layout, doctor, help, version. */
#include "core/model/ops.h"
#include "tests/support/cli.h"
#include <jansson.h>
#include <sys/stat.h>

#define TRACES ASSAY_SOURCE_DIR "/golden/trace/"
static const char *const verbs[] = {"step",   "run",    "diff",     "replay",
                                    "layout", "report", "selftest", "doctor"};
enum { N_VERBS = sizeof verbs / sizeof *verbs };

TestSuite(cli_verbs, .init = cli_setup, .fini = cli_teardown, .timeout = 200);

/* --- diff --------------------------------------------------------------------------------------------------
 */
Test(cli_verbs, diff_names_the_planted_fault_first)
{
    json_t *fault = json_load_file(TRACES "fault.json", 0, NULL);
    cr_assert_not_null(fault);
    char expected[400];
    snprintf(expected, sizeof expected, "first difference: %s  (phase %s, step %d, microbatch %d)\n",
             json_string_value(json_object_get(fault, "name")),
             json_string_value(json_object_get(fault, "phase")),
             (int)json_integer_value(json_object_get(fault, "step")),
             (int)json_integer_value(json_object_get(fault, "microbatch")));
    cli_result r = cli_run("diff " TRACES "a " TRACES "b");
    cr_expect(r.code == 1 && !cli_unclean(&r), "exit code %d\n%s", r.code, r.err);
    cr_expect_eq(strncmp(r.out, expected, strlen(expected)), 0, "expected %sfound %s", expected, r.out);
    /* Row [1,3,:] of 8 values, multiplied by 1.25. */
    char *end = strstr(r.out, "then:");
    cr_assert_not_null(end);
    *end = 0;
    cr_expect(strstr(r.out, "8 of 80 elements") != NULL && strstr(r.out, "[1, 3, 0]") != NULL &&
                  strstr(r.out, "1.25 times") != NULL,
              "%s", r.out);
    json_decref(fault);
    cli_free(&r);
}

Test(cli_verbs, diff_of_a_trace_with_itself_finds_nothing)
{
    cli_result r = cli_run("diff " TRACES "a " TRACES "a");
    cli_expect_success(&r, "a a");
    cr_expect(strstr(r.out, "no difference in 432 tensors") != NULL, "%s", r.out);
    cli_free(&r);
}

/* The whole range of the planted row is within a quarter of its tensor's magnitude. */
Test(cli_verbs, diff_accepts_what_the_tolerance_allows)
{
    cli_result r = cli_run("diff --tolerance 1 " TRACES "a " TRACES "b");
    cli_expect_success(&r, "tolerance 1");
    cli_free(&r);
    r = cli_run("diff --tolerance 1e-6 " TRACES "a " TRACES "b");
    cr_expect_eq(r.code, 1, "%s", r.err);
    cli_free(&r);
}

/* --- replay ------------------------------------------------------------------------------------------------
 */
Test(cli_verbs, replay_recomputes_a_trace_of_the_engine)
{
    cli_result r = cli_run("step --engine sim --layout tp2,sp --model " MODELS "llama --batch " MODELS
                           "llama/batch.safetensors --out out --trace trace");
    cli_expect_success(&r, "step");
    cli_free(&r);
    r = cli_run("replay trace");
    cli_expect_success(&r, "replay");
    cr_expect(strstr(r.out, "results.jsonl") == NULL && strchr(r.out, '?') == NULL, "%s", r.out);
    cr_expect(strstr(r.out, "pass trace fp32  tp2,sp") != NULL, "%s", r.out);
    cli_free(&r);
    r = cli_run("replay --out results.jsonl trace");
    cli_expect_success(&r, "replay");
    cr_expect(strstr(r.out, " 0 failed, 0 skipped\n") != NULL, "%s", r.out);
    cr_expect(strstr(r.out, "0 passed") != r.out, "%s", r.out);
    char *text = cli_read(cli_file("results.jsonl"));
    cr_expect_gt(cli_count(text, "\"verdict\":\"pass\""), 50);
    cr_expect_eq(cli_count(text, "\"operation\":\"attention_bwd\",\"instance\":\"decoder.layers.1."), 3,
                 "dq, dk, dv");
    free(text);
    cli_free(&r);
    char command[600];
    snprintf(command, sizeof command, "sed -i 's/^{\"type\":\"end\"/&,\"aborted\":\"out of patience\"/' %s",
             cli_file("trace/rank-00001.jsonl"));
    cr_assert_eq(system(command), 0);
    r = cli_run("replay trace");
    cr_expect_eq(r.code, 2, "what holds until a run ends is no answer: %s", r.out);
    cr_expect(strstr(r.out, "rank 1 ended early: out of patience") &&
                  strstr(r.out, "NOT CHECKED: the run ended early"),
              "%s", r.out);
    cli_free(&r);
}

/* The first failure in order of execution is computed again with one thing changed. */
Test(cli_verbs, replay_says_what_explains_the_first_failure)
{
    static const struct {
        const char *name, *sentence;
    } rows[] = {
        {"layernorm_eps",
         "first: layernorm_fwd of narrow.1 (rank 0, step 0): all of its elements pass if the "
         "norm adds eps 1e-05 where 0.01 is expected\n"},
        {"mask",
         "first: attention_fwd of model.layers.0.self_attn.core_attention (rank 0, step 0): all of its "
         "elements pass if the causal mask is off by one"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cli_result r = cli_run("replay " ASSAY_SOURCE_DIR "/golden/foreign/%s", rows[i].name);
        cr_expect_eq(r.code, 1);
        cr_expect(strstr(r.out, rows[i].sentence) != NULL, "%s: %s", rows[i].name, r.out);
        cli_free(&r);
    }
}

/* A trace that changed on disk is not judged. */
Test(cli_verbs, replay_refuses_a_trace_with_one_flipped_bit)
{
    cli_result r = cli_run("step --engine sim --model " MODELS "llama --batch " MODELS
                           "llama/batch.safetensors --out out --trace trace");
    cli_expect_success(&r, "step");
    cli_free(&r);
    char *bytes = NULL;
    uint64_t n;
    cr_assert_eq(assay_read_file(cli_file("trace/rank-00000-step-00000.safetensors"), 1 << 28, &bytes, &n),
                 ASSAY_OK, "%s", assay_error_message());
    bytes[n / 2 / 4 * 4 + 3] ^= 0x40; /* the exponent of one F32 in the middle */
    cli_write(cli_file("trace/rank-00000-step-00000.safetensors"), bytes, n);
    free(bytes);
    r = cli_run("replay trace");
    cli_expect_refusal(&r, "flipped bit",
                       (const char *const[]){"rank-00000.jsonl:", "content hash", "the data has", NULL});
    cli_free(&r);
}

/* --- layout ------------------------------------------------------------------------------------------------
 */
Test(cli_verbs, layout_shows_the_example_of_the_documentation)
{
    cli_result r = cli_run("layout tp2,sp,pp2,ep2,dp2");
    cli_expect_success(&r, "layout");
    static const char *const lines[] = {
        "tp2,sp,pp2,ep2,dp2: 8 ranks, data parallel 2, expert data parallel 2",
        "\n     5    1    0    0    1 |    0    1    0\n",
        "world      {0,1,2,3,4,5,6,7}\n",
        "tp         {0,1} {2,3} {4,5} {6,7}\n",
        "dp         {0,2} {1,3} {4,6} {5,7}\n",
        "model      {0,1,4,5} {2,3,6,7}\n",
        "embedding  {0,4} {1,5} {2,6} {3,7}\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        cr_expect(strstr(r.out, lines[i]) != NULL, "expected '%s' in\n%s", lines[i], r.out);
    cli_free(&r);
}

Test(cli_verbs, layout_shows_what_each_rank_holds)
{
    cli_result r = cli_run("layout tp2 --model " MODELS "llama");
    cli_expect_success(&r, "layout");
    cr_expect(strstr(r.out, "rank 1 holds\n") != NULL);
    cr_expect(strstr(r.out, "[28:56+84:112, 0:64]") != NULL, "[gate; up] of rank 1 is two segments\n%s",
              r.out);
    cli_free(&r);
    r = cli_run("layout cp129");
    cli_expect_refusal(&r, "cp129", (const char *const[]){"cp129", "at most cp128", NULL});
    cli_free(&r);
    r = cli_run("layout tp3 --model " MODELS "llama");
    cli_expect_refusal(&r, "tp3", (const char *const[]){"tp3", "4 attention heads", NULL});
    cli_free(&r);
}

/* A help page that only lists options leaves its reader to guess. */
Test(cli_verbs, help_has_examples)
{
    static const char *const with[] = {"step", "run", "diff", "replay", "layout", "report", "bench"};
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        char wanted[40];
        cli_result r = cli_run("%s --help", with[i]);
        cli_expect_success(&r, with[i]);
        const char *examples = strstr(r.out, "Example");
        snprintf(wanted, sizeof wanted, "\n  assay %s ", with[i]);
        cr_expect(examples != NULL && strstr(examples, wanted) != NULL, "%s: %s", with[i], r.out);
        cli_free(&r);
    }
}

/* An example is pasted as it stands: argp breaks a long line without a word, and what is no command begins with '#'. */
Test(cli_verbs, examples_can_be_pasted)
{
    static const char *const with[] = {"batch",  "bench", "bisect", "certify", "check", "ckpt", "diff",
                                       "layout", "map",   "replay", "report",  "run",   "step", "train"};
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        cli_result r = cli_run("%s --help", with[i]);
        char command[40];
        const int n = snprintf(command, sizeof command, "  assay %s ", with[i]);
        const char *line = strstr(r.out, "\nExample");
        bool goes_on = false;
        cr_assert_not_null(line, "%s", with[i]);
        for (line = strchr(line + 1, '\n') + 1; line[0] == ' '; line += strcspn(line, "\n") + 1) {
            const size_t length = strcspn(line, "\n");
            const bool comment = strncmp(line, "  # ", 4) == 0;
            cr_expect(goes_on ? strncmp(line, "      ", 6) == 0
                              : comment || strncmp(line, command, (size_t)n) == 0,
                      "%s: %.*s", with[i], (int)length, line);
            goes_on = !comment && line[length - 1] == '\\';
        }
        cr_expect(!goes_on && (line[0] == '\0' || line[0] == '\n'), "%s: %.80s", with[i], line);
        cli_free(&r);
    }
}

/* The example that names everything it needs does what it says. */
Test(cli_verbs, the_plan_on_the_help_page_is_a_plan)
{
    char command[200];
    cli_result r = cli_run("layout --help");
    const char *at = strstr(r.out, "  assay layout --world ");
    cr_assert_not_null(at, "%s", r.out);
    snprintf(command, sizeof command, "%.*s", (int)strcspn(at + 8, "\n"), at + 8);
    cli_free(&r);
    r = cli_run("%s", command);
    cli_expect_success(&r, command);
    cli_free(&r);
}

/* --- doctor, help, version ---------------------------------------------------------------------------------- */
Test(cli_verbs, doctor_says_which_engine_will_be_used_and_why)
{
    cli_result r = cli_run("doctor");
    cli_expect_success(&r, "doctor");
    static const char *const words[] = {"\nOpenBLAS ", "\nJansson ",  "\nlibsodium ",   "\nsim ",    "\ngpu ",
                                        "\nauto ",     "assay-sim\n", "simulated true", "processors"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        cr_expect(strstr(r.out, words[i]) != NULL, "expected '%s' in\n%s", words[i], r.out);
    cli_free(&r);
}

/* The user's choice of kernels stands; without one the library's does, unless it is too old for the CPU. */
Test(cli_verbs, doctor_says_which_kernels_openblas_runs_and_who_chose_them)
{
    setenv("OPENBLAS_CORETYPE", "Prescott", 1);
    cli_result r = cli_run("doctor");
    cli_expect_success(&r, "doctor");
    cr_expect(strstr(r.out, "core type Prescott, chosen by the user (OPENBLAS_CORETYPE=Prescott)"), "%s",
              r.out);
    cli_free(&r);
    unsetenv("OPENBLAS_CORETYPE");
    r = cli_run("doctor");
    cli_expect_success(&r, "doctor");
    cr_expect(strstr(r.out, "chosen by the library") != NULL ||
                  strstr(r.out, "chosen by assay (the library alone: ") != NULL,
              "%s", r.out);
    cr_expect(strstr(r.out, "chosen by the user (OPENBLAS_CORETYPE") == NULL, "%s", r.out);
    cli_free(&r);
}

/* Its bits are those of one thread (ref/fast.h), and others would turn while they wait. */
Test(cli_verbs, openblas_runs_on_one_thread)
{
    unsetenv("OPENBLAS_NUM_THREADS");
    unsetenv("OMP_NUM_THREADS");
    cli_result r = cli_run("doctor");
    cli_expect_success(&r, "doctor");
    cr_expect(strstr(r.out, " threads: 1\n") != NULL, "%s", r.out);
    cli_free(&r);
}

/* Threads of the judge sleep while they wait, unless the user has said how they wait, or that there is one. */
Test(cli_verbs, doctor_says_how_threads_wait_and_who_chose_it)
{
    static const struct {
        const char *name, *value, *words;
    } rows[] = {{"OMP_WAIT_POLICY", NULL, "threads wait: passive, chosen by assay\n"},
                {"OMP_WAIT_POLICY", "active", "threads wait: active, chosen by the user (OMP_WAIT_POLICY)\n"},
                {"GOMP_SPINCOUNT", "7", "threads wait: 7 turns, chosen by the user (GOMP_SPINCOUNT)\n"},
                {"OMP_NUM_THREADS", "1", "threads wait: as the library chose\n"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsetenv("OMP_WAIT_POLICY");
        unsetenv("OMP_NUM_THREADS");
        if (rows[i].value != NULL)
            setenv(rows[i].name, rows[i].value, 1);
        cli_result r = cli_run("doctor");
        cli_expect_success(&r, "doctor");
        cr_expect(strstr(r.out, rows[i].words) != NULL, "expected '%s' in\n%s", rows[i].words, r.out);
        cr_expect_eq(cli_count(r.out, "threads wait"), 1, "%s", r.out);
        cli_free(&r);
        unsetenv(rows[i].name);
    }
}

/* Whether env printed a variable whose name starts so; the value of another one may contain the words. */
static bool env_has(const char *out, const char *name)
{
    for (const char *at = out; (at = strstr(at, name)) != NULL; at++)
        if (at == out || at[-1] == '\n')
            return true;
    return false;
}

/* What assay has told its own libraries is not told to other people's programs; what the user has set is. */
Test(cli_verbs, sanitize_runs_a_program_in_the_user_s_environment)
{
    unsetenv("OPENBLAS_NUM_THREADS");
    unsetenv("OMP_NUM_THREADS");
    unsetenv("OMP_WAIT_POLICY");
    unsetenv("OPENBLAS_CORETYPE");
    setenv("BASH_FUNC_row%%", "() {  OPENBLAS_NUM_THREADS=1 OMP_WAIT_POLICY=passive true;\n}",
           1); /* as ci/test.sh exports one */
    cli_result r = cli_run("sanitize env");
    static const char *const names[] = {
        "OPENBLAS_NUM_THREADS=", "OPENBLAS_CORETYPE=", "OMP_WAIT_POLICY=", "ASSAY_OMP", "ASSAY_OPENBLAS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        cr_expect_not(env_has(r.out, names[i]), "%s in\n%s", names[i], r.out);
    cr_expect(env_has(r.out, "ASSAY_SIM_FINDINGS="), "%s", r.out);
    cli_free(&r);
    setenv("OPENBLAS_NUM_THREADS", "2", 1);
    setenv("OMP_WAIT_POLICY", "active", 1);
    setenv("ASSAY_OMP_WAIT_CHOSEN", "1", 1); /* of an assay further up, before the user chose */
    setenv("ASSAY_OPENBLAS_THREADS_CHOSEN", "1", 1);
    r = cli_run("sanitize env");
    cr_expect(env_has(r.out, "OPENBLAS_NUM_THREADS=2\n"), "%s", r.out);
    cr_expect(env_has(r.out, "OMP_WAIT_POLICY=active\n"), "%s", r.out);
    cli_free(&r);
}

#if defined(__x86_64__)
/* A library that does not know the CPU is told what the CPU can do: assay starts itself once more, with the same words. */
Test(cli_verbs, kernels_older_than_the_cpu_are_not_kept)
{
    unsetenv("OPENBLAS_CORETYPE");
    setenv("LD_PRELOAD", ASSAY_OLD_BLAS, 1);
    setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1); /* of the build with sanitizers */
    cli_result r = cli_run("doctor");
    cli_expect_success(&r, "doctor");
    cr_expect(strstr(r.out, ", chosen by assay (the library alone: Prescott)"), "%s", r.out);
    cr_expect_eq(cli_count(r.out, "core type"), 1, "%s", r.out);
    cli_free(&r);
    setenv("OPENBLAS_CORETYPE", "Prescott", 1);
    r = cli_run("doctor");
    cli_expect_success(&r, "doctor");
    cr_expect(strstr(r.out, "core type Prescott, chosen by the user"), "%s", r.out);
    cli_free(&r);
    unsetenv("LD_PRELOAD");
}
#endif

Test(cli_verbs, doctor_prints_the_ladder_of_every_operation)
{
    cli_result r = cli_run("doctor --ops");
    cli_expect_success(&r, "doctor --ops");
    for (int i = 0; assay_op_at(i); i++) {
        char line[64];
        snprintf(line, sizeof line, "\n%s ", assay_op_at(i)->name);
        cr_expect_eq(strstr(r.out, line) == NULL, assay_op_at(i)->foreign, "no line for %s", line);
    }
    cr_expect(strstr(r.out, "cuBLASLt") != NULL && strstr(r.out, "y: F32 sequential, fma") != NULL);
    cli_free(&r);
}

Test(cli_verbs, help_names_every_verb)
{
    static const char *const spellings[] = {"--help", "-h", "help"};
    for (int s = 0; s < 3; s++) {
        cli_result r = cli_run("%s", spellings[s]);
        cli_expect_success(&r, spellings[s]);
        for (int v = 0; v < N_VERBS; v++) {
            char line[32];
            snprintf(line, sizeof line, "\n  %s ", verbs[v]);
            cr_expect(strstr(r.out, line) != NULL, "%s: %s", spellings[s], verbs[v]);
        }
        cli_free(&r);
    }
}

Test(cli_verbs, every_verb_has_help_that_names_itself)
{
    for (int v = 0; v < N_VERBS; v++) {
        char usage[64];
        cli_result r = cli_run("%s --help", verbs[v]);
        cli_expect_success(&r, verbs[v]);
        snprintf(usage, sizeof usage, "Usage: assay %s ", verbs[v]);
        cr_expect_eq(strncmp(r.out, usage, strlen(usage)), 0, "%s", r.out);
        cr_expect_str_empty(r.err);
        cli_free(&r);
    }
}

Test(cli_verbs, help_lists_the_contract_of_step)
{
    static const char *const options[] = {"--engine",     "--model",      "--batch",    "--out",
                                          "--layout",     "--precision",  "--lr=",      "--lr-decay-style",
                                          "--adam-beta1", "--adam-beta2", "--adam-eps", "--weight-decay",
                                          "--clip-grad",  "--train-iters"};
    cli_result r = cli_run("step --help");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        cr_expect(strstr(r.out, options[i]) != NULL, "%s", options[i]);
    cli_free(&r);
}

Test(cli_verbs, version_is_one_line)
{
    for (int v = -1; v < N_VERBS; v++) {
        cli_result r = cli_run("%s --version", v < 0 ? "" : verbs[v]);
        cli_expect_success(&r, "--version");
        cr_expect(strncmp(r.out, "assay ", 6) == 0 && cli_count(r.out, "\n") == 1 &&
                      cli_count(r.out, ".") == 2,
                  "%s: %s", v < 0 ? "assay" : verbs[v], r.out);
        cli_free(&r);
    }
}

/* Exit code 2 and a message that names what was found or expected. */
Test(cli_verbs, wrong_arguments_are_refused)
{
    static const struct {
        const char *arguments, *words[2];
    } cases[] = {
        {"repaly x", {"unknown verb \"repaly\"; did you mean replay?"}},
        {"diff --tolerence 1 a b", {"'--tolerence': unknown option; did you mean --tolerance?"}},
        {"run --case lama", {"--case lama: no case has this name; did you mean llama?"}},
        {"run --check locale", {"found locale; did you mean local?"}},
        {"selftest --engine sim --only engine_fliped_sign",
         {"--only: expected the name of one of the ", "did you mean engine_flipped_sign?"}},
        {"frobnicate", {"unknown verb \"frobnicate\"", "Usage: assay VERB"}},
        {"", {"Usage: assay VERB"}},
        {"--surprise", {"--surprise"}},
        {"diff", {"two trace folders"}},
        {"diff " TRACES "a", {"two trace folders"}},
        {"diff " TRACES "a nowhere", {"nowhere", "No such file"}},
        {"diff --tolerance 2 a b", {"--tolerance: expected a number from 0 to 1", "found 2"}},
        {"diff --tolerance nan a b", {"--tolerance: expected a number from 0 to 1", "nan"}},
        {"replay", {"one trace folder"}},
        {"replay nowhere", {"nowhere", "No such file"}},
        {"layout", {"expected one layout"}},
        {"diff nowhere nowhere", {"nowhere: expected a trace folder", "No such file"}},
        {"replay " MODELS "llama/config.json", {"expected a trace folder", "found a file"}},
        {"layout tp2 pp2", {"expected one layout"}},
        {"layout tp2,xx", {"unknown word 'xx'"}},
        {"layout 1 --model nowhere", {"nowhere", "No such file"}},
        {"layout 1 --tolerance 1", {"--tolerance", "unknown option"}},
        {"report", {"merge DIR|RESULTS.jsonl"}},
        {"report mend x", {"merge DIR|RESULTS.jsonl"}},
        {"doctor --surprise", {"--surprise", "unknown option"}},
        {"doctor stray", {"stray"}},
        {"selftest --surprise", {"--surprise", "unknown option"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_result r = cli_run("%s", cases[i].arguments);
        cr_expect(r.code == 2 && !cli_unclean(&r), "'%s': exit code %d\n%s", cases[i].arguments, r.code,
                  r.err);
        for (int w = 0; w < 2 && cases[i].words[w] != NULL; w++)
            cr_expect(strstr(r.err, cases[i].words[w]) != NULL, "'%s': expected '%s' in\n%s",
                      cases[i].arguments, cases[i].words[w], r.err);
        cli_free(&r);
    }
}
