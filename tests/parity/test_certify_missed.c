/* Kernels of tests/certify/missed.c, which are right in most calls: assay certify asks the others. */
#include "tests/support/certify.h"

TestSuite(certify_missed, .init = certify_setup, .fini = cli_teardown, .timeout = 500);

static void expect_missed(const char *const symbols[][2], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        cli_result r = cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/missed.so:%s", symbols[i][0]);
        cr_expect(r.code == 1 && certify_failed(&r, symbols[i][1]), "%s: expected trial %s to fail\n%s%s",
                  symbols[i][0], symbols[i][1], r.out, r.err);
        cli_free(&r);
    }
}

static void expect_clean(const char *const *symbols, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        cli_result r = cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/missed.so:%s", symbols[i]);
        cli_expect_success(&r, symbols[i]);
        cli_free(&r);
    }
}

/* Two known faults: eps inside what the correction divides, and none at the first step. */
Test(certify_missed, first_steps)
{
    static const char *const wrong[][2] = {{"adamw_eps_before_correction", "local"},
                                           {"adamw_first_step_uncorrected", "local"}};
    static const char *const clean[] = {"adamw_honest"};
    expect_missed(wrong, sizeof wrong / sizeof *wrong);
    expect_clean(clean, 1);
}

/* PyTorch divides the rate's product with the moment, which may have underflowed, and leaves an infinite parameter one. */
Test(certify_missed, adamw_as_pytorch_writes_it)
{
    static const char *const wrong[][2] = {{"adamw_largest_for_infinity", "special"},
                                           {"adamw_flushes", "local"}};
    static const char *const clean[] = {"adamw_as_pytorch"};
    expect_clean(clean, 1);
    expect_missed(wrong, sizeof wrong / sizeof *wrong);
}

/* A count by bits misses the negative zeros, and x + 0 turns them. */
Test(certify_missed, signs_of_zeros)
{
    static const char *const wrong[][2] = {{"count_zeros_of_one_sign", "exact"},
                                           {"count_zeros_of_one_sign", "local"},
                                           {"slice_turns_negative_zeros", "exact"},
                                           {"slice_turns_negative_zeros", "local"}};
    static const char *const clean[] = {"slice_honest"};
    expect_missed(wrong, sizeof wrong / sizeof *wrong);
    expect_clean(clean, 1);
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
