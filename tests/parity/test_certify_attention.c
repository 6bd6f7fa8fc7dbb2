/* assay certify of attention: probabilities that are rounded before their product, which a description says or hides, and descriptions that
 * take some values of attributes alone (tests/certify/attention.c). */
#include "tests/support/certify.h"

TestSuite(certify_attention, .init = certify_setup, .fini = cli_teardown, .timeout = 600);

#define KERNEL "--so " ASSAY_KERNELS "/attention.so:"

static void expect_line(const char *line, int code, const char *const *words)
{
    cli_result r = cli_run("%s", line);
    cr_expect_eq(r.code, code, "%s: exit code %d\n%s%s", line, r.code, r.out, r.err);
    for (; *words != NULL; words++)
        cr_expect(strstr(r.out, *words) != NULL, "%s: no '%s' in\n%s%s", line, *words, r.out, r.err);
    cli_free(&r);
}

Test(certify_attention, who_says_that_p_is_rounded_passes)
{
    char path[CLI_LINE], line[2 * CLI_LINE];
    cli_result r = cli_run("keygen");
    cli_free(&r);
    r = cli_run("certify --seeds 1 --out certs " KERNEL "fwd_says");
    cli_expect_success(&r, "fwd_says");
    cr_expect(certify_passed(&r, "exact") && certify_passed(&r, "local") && certify_passed(&r, "special") &&
                  certify_passed(&r, "accepts"),
              "%s", r.out);
    cr_expect_not_null(strstr(r.out, "tried for dropout_p=0 alone"), "%s", r.out);
    cr_expect_not_null(strstr(r.out, "order unknown, fma, math 2 ulp, rounds probs"), "%s", r.out);
    snprintf(path, sizeof path, "%s", certify_written(&r));
    cli_free(&r);
    snprintf(line, sizeof line, "verify %s", path);
    expect_line(
        line, 0,
        (const char *const[]){"every shape, tried for dropout_p=0 alone, rounds probs, activations", NULL});
    expect_line("gate --require attention_fwd certs", 1,
                (const char *const[]){
                    "MISSING  attention_fwd: tried for dropout_p=0 alone (--any-shape takes it)", NULL});
    expect_line("gate --any-shape --require attention_fwd certs", 0,
                (const char *const[]){"every shape, tried for dropout_p=0 alone, rounds probs", NULL});
}

Test(certify_attention, backward_too)
{
    cli_result r = cli_run("certify --seeds 1 --fail-fast " KERNEL "bwd_says");
    cli_expect_success(&r, "bwd_says");
    cli_free(&r);
}

Test(certify_attention, who_hides_it_or_is_wrong_besides_fails)
{
    static const struct {
        const char *symbol, *trial;
    } rows[] = {{"fwd_silent", "local"},
                {"bwd_silent", "local"},
                {"fwd_says_window", "exact"},
                {"fwd_says_truncates", "local"},
                {"bwd_says_truncates", "local"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("certify --seeds 1 --fail-fast " KERNEL "%s", rows[i].symbol);
        cr_expect(r.code == 1 && certify_failed(&r, rows[i].trial), "%s: exit code %d\n%s%s", rows[i].symbol,
                  r.code, r.out, r.err);
        cli_free(&r);
    }
}

/* A value that the description did not leave out, and that is refused, is named. */
Test(certify_attention, attributes_in_conditions)
{
    expect_line("certify --seeds 1 --fail-fast " KERNEL "no_dropout_and_silent_about_it", 1,
                (const char *const[]){"error code 2 for a call that the description takes", "dropout_p=0.3",
                                      "q_position[18]", NULL});
    cli_result r = cli_run("certify " KERNEL "an_attribute_that_there_is_not");
    cli_expect_refusal(&r, "an unknown attribute",
                       (const char *const[]){"symbols of attention_fwd: Tq, A, D", "found dropout=0", NULL});
    cli_free(&r);
}
