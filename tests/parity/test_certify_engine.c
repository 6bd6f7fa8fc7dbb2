/* assay certify --engine: what each trial of the engine's own kernels claims, and that it fails where an engine breaks the claim. */
#include "parity/certify/certify.h"
#include "tests/support/certify.h"

#include <sys/stat.h>

TestSuite(certify_engine, .init = certify_setup, .fini = cli_teardown, .timeout = 300);

static cli_result try_planted(const char *plant, const char *operation)
{
    setenv("ENGINE", ASSAY_BIN_DIR "/assay-sim", 1);
    setenv("PLANT", plant, 1);
    return cli_run(
        "certify --seeds 1 --call-limit 0.5 --engine sim --operation %s --program " ASSAY_SOURCE_DIR
        "/tests/certify/planted_engine.sh",
        operation);
}

Test(certify_engine, an_engine_through_the_script_without_a_fault_passes)
{
    static const char *const trials[] = {"exact",  "local",   "special", "arguments", "probe",
                                         "repeat", "threads", "batch",   "written",   "workspace"};
    cli_result r = try_planted("nothing", "rmsnorm_fwd");
    cli_expect_success(&r, "nothing planted");
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++)
        cr_expect(certify_passed(&r, trials[i]), "%s:\n%s", trials[i], r.out);
    cli_free(&r);
}

/* Each fault fails by its trial, and the report says what happened in which call. */
Test(certify_engine, planted_faults_are_named)
{
    static const struct {
        const char *plant, *trial, *says[2];
    } rows[] = {
        {"accepts", "arguments", {"no error code for a negative extent of x", "(F32)"}},
        {"speechless", "arguments", {"a negative extent of x", "the message does not name it: no"}},
        {"writes", "arguments", {"a negative extent of x", "wrote y although it refused"}},
        {"crashes", "crash", {"a negative extent of x", "signal 11"}},
        {"hangs", "time", {"a negative extent of x", "time"}},
        {"batch", "batch", {"half of the rows has other bits without the other rows", "rmsnorm_fwd"}},
        {"exchanged",
         "batch",
         {"first half of the rows of exact.rmsnorm_fwd", "answered as rmsnorm_fwd other."}},
        {"address", "repeat", {"has other bits at other addresses and on other garbage", "rmsnorm_fwd"}},
        {"order", "threads", {"has other bits when threads and blocks run in reverse order", "rmsnorm_fwd"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = try_planted(rows[i].plant, "rmsnorm_fwd");
        cr_expect_eq(r.code, 1, "%s: exit code %d\n%s%s", rows[i].plant, r.code, r.out, r.err);
        cr_expect(certify_failed(&r, rows[i].trial), "%s: trial %s\n%s", rows[i].plant, rows[i].trial, r.out);
        for (size_t k = 0; k < 2; k++)
            cr_expect(strstr(r.out, rows[i].says[k]) != NULL, "%s: '%s' in\n%s", rows[i].plant,
                      rows[i].says[k], r.out);
        cli_free(&r);
    }
}

/* Answers under another operation's name are not left out, in whatever data they are. */
Test(certify_engine, an_answer_of_another_operation_fails)
{
    cli_result r = try_planted("relabels", "sumsq");
    cr_expect_eq(r.code, 1, "exit code %d\n%s%s", r.code, r.out, r.err);
    cr_expect(certify_failed(&r, "exact") && certify_failed(&r, "local"), "%s", r.out);
    cr_expect(strstr(r.out, "the answer runs sum, the request asks for sumsq") != NULL, "%s", r.out);
    cli_free(&r);
}

/* One refusal, said again for every illegal call, is an answer to one of them. */
Test(certify_engine, a_refusal_answers_one_call)
{
    cli_result r = try_planted("repeats", "rmsnorm_fwd");
    cr_expect_eq(r.code, 2, "exit code %d\n%s%s", r.code, r.out, r.err);
    cr_expect(strstr(r.err, "expected the answer of entry 1, found {\"entry\":0,") != NULL, "%s", r.err);
    cli_free(&r);
}

/* A variant that the engine calls a library's is not held to trial `batch`, nor to equal bits at odd addresses: how many calls that were is
 * said, beside those that were held. */
Test(certify_engine, what_the_engine_excuses_itself_from_is_counted)
{
    static const char *const says[] = {"  - batch invariance of ", " calls: a library chose their algorithm",
                                       "  - equal bits at addresses of one element's alignment of "};
    cli_result r = try_planted("library", "rmsnorm_fwd");
    cli_expect_success(&r, "library");
    cr_expect(certify_passed(&r, "batch"), "%s", r.out);
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        cr_expect(strstr(r.out, says[i]) != NULL, "'%s' in\n%s", says[i], r.out);
    cli_free(&r);
    r = try_planted("nothing", "rmsnorm_fwd");
    cli_expect_success(&r, "nothing");
    cr_expect(strstr(r.out, says[0]) == NULL, "%s", r.out);
    cli_free(&r);
}

/* Ten outputs in two dtypes: none is left out of the certificate. */
Test(certify_engine, every_output_is_in_the_certificate)
{
    json_t *whole = NULL;
    cli_result r = cli_run("keygen");
    cli_expect_success(&r, "keygen");
    cli_free(&r);
    r = cli_run("certify --seeds 1 --engine sim --operation router_balanced_seq_fwd --out certs");
    cli_expect_success(&r, "certify --out");
    cli_free(&r);
    cr_assert_eq(
        assay_json_load(&whole, cli_file("certs/router_balanced_seq_fwd-router_balanced_seq_fwd-sim.json")),
        ASSAY_OK, "%s", assay_error_message());
    const json_t *outputs = json_object_get(json_object_get(whole, "certificate"), "outputs");
    const assay_op *op = assay_op_find("router_balanced_seq_fwd");
    size_t n = 0;
    for (int i = 0; i < assay_op_n_slots(op); i++)
        n += op->slots[i].role != ASSAY_SLOT_IN;
    cr_expect_gt(2 * n, 16);
    cr_expect_eq(json_array_size(outputs), 2 * n);
    json_decref(whole);
}

/* Which of the two was tried, nobody knows. */
Test(certify_engine, a_program_that_is_changed_while_it_is_tried)
{
    cli_write_text(cli_file("engine.sh"),
                   "#!/bin/sh\n[ \"$1\" = ops ] && echo '#' >>\"$0\"\nexec " ASSAY_BIN_DIR
                   "/assay-sim \"$@\"\n");
    cr_assert_eq(chmod(cli_file("engine.sh"), 0700), 0);
    cli_result r = cli_run("certify --seeds 1 --engine sim --operation add --program ./engine.sh");
    cli_expect_refusal(&r, "changed",
                       (const char *const[]){"engine.sh: had SHA-256", "changed while it was tried", NULL});
    cli_free(&r);
}

/* Each variant has a certificate of its own, which another neither replaces nor, where it fails, removes. */
Test(certify_engine, a_variant_leaves_the_certificates_of_others)
{
    static const char fastest[] = "certs/rmsnorm_fwd-rmsnorm_fwd-sim.json",
                      k0[] = "certs/rmsnorm_fwd-rmsnorm_fwd-k0-sim.json";
    static const struct {
        const char *plant, *variant;
        int code;
        bool has_fastest, has_k0;
    } rows[] = {{"nothing", "", 0, true, false},
                {"nothing", "--variant k0 ", 0, true, true},
                {"odd", "--variant k0 ", 1, true, false}};
    json_t *whole = NULL;
    cli_result r = cli_run("keygen");
    cli_free(&r);
    setenv("ENGINE", ASSAY_BIN_DIR "/assay-sim", 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        setenv("PLANT", rows[i].plant, 1);
        r = cli_run("certify --seeds 1 --engine sim --operation rmsnorm_fwd --out certs %s"
                    "--program " ASSAY_SOURCE_DIR "/tests/certify/planted_engine.sh",
                    rows[i].variant);
        cr_expect_eq(r.code, rows[i].code, "row %zu: exit code %d\n%s%s", i, r.code, r.out, r.err);
        cr_expect_eq(cli_exists(cli_file(fastest)), rows[i].has_fastest, "row %zu: the fastest", i);
        cr_expect_eq(cli_exists(cli_file(k0)), rows[i].has_k0, "row %zu: k0", i);
        cli_free(&r);
    }
    /* one of before, which says no variant, is that of the fastest */
    cr_assert_eq(assay_json_load(&whole, cli_file(fastest)), ASSAY_OK);
    json_t *subject = json_object_get(json_object_get(whole, "certificate"), "subject");
    cr_expect_str_eq(json_string_value(json_object_get(subject, "variant")), "fastest");
    (void)json_object_del(subject, "variant");
    cr_assert_eq(assay_json_save(whole, cli_file("certs/old.json")), ASSAY_OK);
    json_decref(whole);
    r = cli_run("certify --seeds 1 --engine sim --operation rmsnorm_fwd --out certs "
                "--program " ASSAY_SOURCE_DIR "/tests/certify/planted_engine.sh");
    cr_expect_eq(r.code, 1, "exit code %d\n%s%s", r.code, r.out, r.err);
    cr_expect(!cli_exists(cli_file("certs/old.json")), "that of before");
    cli_free(&r);
}

static int64_t calls_of(const json_t *list, const char *act, const char *variant, const char *accumulator)
{
    size_t i;
    int64_t n = 0;
    json_t *one;
    json_array_foreach(list, i, one)
    {
        const char *order = json_string_value(json_object_get(json_object_get(one, "arithmetic"), "order"));
        if (strcmp(json_string_value(json_object_get(one, "activations")), act) == 0 &&
            (variant == NULL || strcmp(json_string_value(json_object_get(one, "variant")), variant) == 0) &&
            (accumulator == NULL || (order != NULL && strcmp(order, accumulator) == 0)))
            n += json_integer_value(json_object_get(one, "calls"));
    }
    return n;
}

/* Of other sizes and dtypes other variants run, and declare another arithmetic. */
Test(certify_engine, a_certificate_says_what_ran)
{
    json_t *whole = NULL;
    cli_result r = cli_run("keygen");
    cli_free(&r);
    r = cli_run("certify --seeds 1 --engine sim --operation grouped_linear_fwd --out certs");
    cr_assert_eq(r.code, 0, "%s%s", r.out, r.err);
    cli_free(&r);
    cr_assert_eq(assay_json_load(&whole, cli_file("certs/grouped_linear_fwd-grouped_linear_fwd-sim.json")),
                 ASSAY_OK);
    const json_t *inner = json_object_get(whole, "certificate"), *subject = json_object_get(inner, "subject"),
                 *declared = json_object_get(json_object_get(subject, "description"), "declared"),
                 *where = json_object_get(inner, "where");
    const int64_t calls = calls_of(json_object_get(subject, "ran"), "F32", NULL, NULL);
    cr_expect_gt(calls, 100);
    cr_expect_eq(calls_of(declared, "F32", NULL, NULL), calls);
    cr_expect_gt(calls_of(declared, "BF16", "k2", "tensor_core"), 100);
    cr_expect_gt(calls_of(declared, "BF16", "k3", "tensor_core"), 0);
    cr_expect_eq(calls_of(declared, "F32", NULL, "tensor_core"), 0);
    cr_expect(json_is_string(json_object_get(where, "processor")));
    cr_expect(json_is_null(json_object_get(where, "device")), "the simulator is none");
    json_decref(whole);
}

/* Some calls run a lower variant than the one that was asked for: the name does not say that all ran it. */
Test(certify_engine, a_variant_is_what_calls_run_at_most)
{
    static const struct {
        const char *variant, *name;
    } rows[] = {{"", "assay engine add, fastest"},
                {"--variant k0", "assay engine add, k0 "},
                {"--variant k1", "assay engine add, at most k1 "},
                {"--variant elementwise=k1", "assay engine add, at most elementwise=k1 "}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("certify --seeds 1 --engine sim --operation add %s", rows[i].variant);
        cli_expect_success(&r, rows[i].name);
        cr_expect(strstr(r.out, rows[i].name) != NULL, "%s: %s", rows[i].name, r.out);
        cli_free(&r);
    }
}

/* Another variant's certificate would have its name. */
Test(certify_engine, a_variant_that_is_not_there_is_refused)
{
    static const struct {
        const char *arguments, *words;
    } rows[] = {{"--operation add --variant k7", "--variant k7: add has k0 to k1"},
                {"--operation add --variant k2", "--variant k2: add has k0 to k1"},
                {"--operation add --variant nothing=k1", "nothing"},
                {"--operation all --variant k9", "--variant k9"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("certify --seeds 1 --engine sim %s", rows[i].arguments);
        cr_expect(r.code == 2 && strstr(r.err, rows[i].words) != NULL, "%s: %d %s%s", rows[i].arguments,
                  r.code, r.out, r.err);
        cli_free(&r);
    }
}

/* bf16 runs beside fp32's trials: one bad run is not made again, or a crash that comes once in a while would pass. */
Test(certify_engine, a_run_beside_the_other_dtype_that_ends_badly_ends_the_trial)
{
    static const char *const plants[] = {"falters", "dies"};
    for (int i = 0; i < 2; i++) {
        cli_result r = try_planted(plants[i], "rmsnorm_fwd");
        cr_expect_eq(r.code, 2, "%s: %s%s", plants[i], r.out, r.err);
        cr_expect_not_null(strstr(r.err, "exited with code 7"), "%s: %s", plants[i], r.err);
        cli_free(&r);
    }
}

/* The same variant, another number at addresses that are aligned to an element alone. */
Test(certify_engine, a_number_of_another_alignment_is_named)
{
    setenv("ENGINE", ASSAY_BIN_DIR "/assay-sim", 1);
    setenv("PLANT", "odd", 1);
    cli_result r = cli_run("certify --seeds 1 --engine sim --operation rmsnorm_fwd --variant k0 "
                           "--program " ASSAY_SOURCE_DIR "/tests/certify/planted_engine.sh");
    cr_expect_eq(r.code, 1, "exit code %d\n%s%s", r.code, r.out, r.err);
    cr_expect(certify_failed(&r, "repeat") && strstr(r.out, "aligned to an element alone") != NULL, "%s",
              r.out);
    cli_free(&r);
}

/* An engine is held to the rows and to its own declarations under any name: what a library may say of itself is no way around. */
Test(certify_engine, an_engine_of_another_name_is_judged_as_one)
{
    cli_result r = try_planted("renamed", "rmsnorm_fwd");
    cr_expect_eq(r.code, 1, "exit code %d\n%s%s", r.code, r.out, r.err);
    cr_expect(strstr(r.out, "stores an intermediate result") != NULL, "%s", r.out);
    cli_free(&r);
}

/* --- what is asked ------------------------------------------------------------------------------------------- */

/* An engine ends at the first call that its row refuses, and answers none behind it. */
Test(certify_engine, every_call_of_all_operations_is_one_that_its_row_takes)
{
    static const assay_dtype acts[] = {ASSAY_F32, ASSAY_BF16};
    const certify_plan plan = {.op = NULL, .seeds = 1};
    for (int i = 0; i < 2; i++) {
        int64_t n = 0;
        const assay_status st = certify_request(cli_file(assay_dtype_name(acts[i])), acts[i], &plan, &n);
        cr_expect_eq(st, ASSAY_OK, "%s: %s", assay_dtype_name(acts[i]), assay_error_message());
        cr_expect_gt(n, 20000);
    }
}

static void expect_certified(const char *operation, const char *trial)
{
    cli_result r = cli_run("certify --seeds 1 --engine sim --operation %s", operation);
    cli_expect_success(&r, operation);
    cr_expect(certify_passed(&r, trial), "%s: %s\n%s", operation, trial, r.out);
    cli_free(&r);
}

/* Token t is of sequence t modulo B, C and D: half of the rows is no call where it is no multiple of them. */
Test(certify_engine, interleaved_sequences_are_cut_between_their_tokens)
{
    expect_certified("router_balanced_bwd", "batch");
    expect_certified("router_balanced_bwd_two", "batch");
    expect_certified("router_balanced_bwd_three", "batch");
}

/* Which of two NaN a sum has is the host compiler's choice in the simulator: an accumulated gradient that is stored two at a time may
 * have the other one. */
Test(certify_engine, any_nan_is_a_nan_at_another_alignment)
{
    expect_certified("grouped_linear_bwd_weight", "repeat");
}

/* An input that has one element by the table is broken as others are: a call with it had no illegal one, or only those without it. */
Test(certify_engine, inputs_of_one_element_are_broken)
{
    expect_certified("clip_coefficient", "arguments");
    expect_certified("router_aux_loss", "arguments");
}
