/* Kernels of tests/certify/missed.c, which are right in most calls: assay certify asks the others. */
#include "tests/support/certify.h"

TestSuite(certify_missed, .init = certify_setup, .fini = cli_teardown, .timeout = 500);

static void expect_missed(const char *const symbols[][2], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        cli_result r = cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/%s", symbols[i][0]);
        cr_expect(r.code == 1 && certify_failed(&r, symbols[i][1]), "%s: expected trial %s to fail\n%s%s",
                  symbols[i][0], symbols[i][1], r.out, r.err);
        cli_free(&r);
    }
}

static void expect_clean(const char *const *symbols, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        cli_result r = cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/%s", symbols[i]);
        cli_expect_success(&r, symbols[i]);
        cli_free(&r);
    }
}

/* Two known faults: eps inside what the correction divides, and none at the first step. */
Test(certify_missed, first_steps)
{
    static const char *const wrong[][2] = {{"missed.so:adamw_eps_before_correction", "local"},
                                           {"missed.so:adamw_first_step_uncorrected", "local"}};
    static const char *const clean[] = {"missed.so:adamw_honest"};
    expect_missed(wrong, sizeof wrong / sizeof *wrong);
    expect_clean(clean, 1);
}

/* PyTorch divides the rate's product with the moment, which may have underflowed, and leaves an infinite parameter one. */
Test(certify_missed, adamw_as_pytorch_writes_it)
{
    static const char *const wrong[][2] = {{"missed.so:adamw_largest_for_infinity", "special"},
                                           {"missed.so:adamw_flushes", "local"}};
    static const char *const clean[] = {"missed.so:adamw_as_pytorch"};
    expect_clean(clean, 1);
    expect_missed(wrong, sizeof wrong / sizeof *wrong);
}

/* An output that may be absent is: a caller in fp32 has no other parameter than the main one. */
Test(certify_missed, an_output_that_may_be_absent)
{
    static const char *const wrong[][2] = {{"missed.so:adamw_wants_param", "accepts"},
                                           {"missed.so:adamw_looks_at_param", "repeat"}};
    expect_missed(wrong, sizeof wrong / sizeof *wrong);
}

/* Where every score underflows, the sum that divides them is the 1e-20 alone. */
Test(certify_missed, scores_that_underflow)
{
    static const char *const wrong[][2] = {{"router.so:router_without_tiny", "local"}};
    expect_missed(wrong, 1);
}

/* A count by bits misses the negative zeros, and x + 0 turns them. */
Test(certify_missed, signs_of_zeros)
{
    static const char *const wrong[][2] = {{"missed.so:count_zeros_of_one_sign", "exact"},
                                           {"missed.so:count_zeros_of_one_sign", "local"},
                                           {"missed.so:slice_turns_negative_zeros", "exact"},
                                           {"missed.so:slice_turns_negative_zeros", "local"}};
    static const char *const clean[] = {"missed.so:slice_honest"};
    expect_missed(wrong, sizeof wrong / sizeof *wrong);
    expect_clean(clean, 1);
}

/* Beyond so many rows, columns, experts or elements nothing is right; every smaller call is. */
Test(certify_missed, long_sizes)
{
    static const char *const wrong[][2] = {{"missed.so:swiglu_of_512_rows", "local"},
                                           {"missed.so:swiglu_of_1024_columns", "local"},
                                           {"missed.so:adamw_ends_at_4096", "local"},
                                           {"router.so:router_of_384_experts", "local"}};
    static const char *const clean[] = {"missed.so:swiglu_honest", "router.so:router_honest"};
    expect_missed(wrong, sizeof wrong / sizeof *wrong);
    expect_clean(clean, sizeof clean / sizeof *clean);
}

/* The report, the certificate and the gate say how far the sizes went, of those that the description takes. */
Test(certify_missed, extents_are_told)
{
    cli_result r = cli_run("keygen");
    cli_expect_success(&r, "keygen");
    cli_free(&r);
    r = cli_run("certify --seeds 1 --out certs --so " ASSAY_KERNELS "/missed.so:swiglu_honest");
    cli_expect_success(&r, "certify");
    cr_expect_not_null(strstr(r.out, "- sizes beyond T 4097, F 4224\n"), "%s", r.out);
    cli_free(&r);
    r = cli_run("verify %s", cli_file("certs/swiglu_fwd-missed.so-swiglu_honest-host.json"));
    cli_expect_success(&r, "verify");
    cr_expect_not_null(strstr(r.out, "every shape, activations F32 BF16, 1 seed, tried up to T 4097, F 4224"),
                       "%s", r.out);
    cli_free(&r);
    r = cli_run("gate --require swiglu_fwd certs");
    cli_expect_success(&r, "gate");
    cr_expect_not_null(strstr(r.out, "tried up to T 4097, F 4224"), "%s", r.out);
    cli_free(&r);
    r = cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/clean.so:norm_of_some_widths");
    cli_expect_success(&r, "certify");
    cr_expect_not_null(strstr(r.out, "- sizes beyond T 4097, H 128\n"), "%s", r.out);
    cli_free(&r);
    /* a condition on an attribute leaves calls out, too */
    r = cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/clean.so:norm_of_one_eps");
    cli_expect_success(&r, "certify");
    cr_expect_not_null(strstr(r.out, "- sizes beyond T 3, H 129\n"), "%s", r.out);
    cli_free(&r);
}

/* The kept answers of what passes pass by themselves, and --suggest takes them: of inputs with a NaN, too. */
Test(certify_missed, kept_answers_agree)
{
    static const char *const kernels[] = {"rmsnorm.so:example_rmsnorm", "missed.so:slice_honest"};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        char keep[32];
        snprintf(keep, sizeof keep, "kept%zu", i);
        cli_result r =
            cli_run("certify --seeds 1 --suggest --keep %s --so " ASSAY_KERNELS "/%s", keep, kernels[i]);
        cli_expect_success(&r, kernels[i]);
        cr_expect_null(strstr(r.out, "no declaration under which every element passes"), "%s", r.out);
        cli_free(&r);
        for (int act = 0; act < 2; act++) {
            char answer[64];
            snprintf(answer, sizeof answer, "%s/answer.%s", keep, act ? "BF16" : "F32");
            r = cli_run("replay %s", cli_file(answer));
            cli_expect_success(&r, kernels[i]);
            cli_free(&r);
        }
    }
}
