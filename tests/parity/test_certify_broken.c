/* Kernels that are wrong in one way each: assay certify fails the trial that names the mistake, with words about it.
 * Honest kernels of other styles: nothing is suspected. */
#include "tests/support/certify.h"

TestSuite(certify_broken, .init = certify_setup, .fini = cli_teardown);

typedef struct broken {
    const char *symbol, *trial, *word; /* word: in the report; NULL: none asked for */
} broken;

static const broken rmsnorm[] = {
    {"wrong_eps", "local", "rstd"},
    {"no_eps", "local", NULL},
    {"eps_outside", "local", "sum of squares"},
    {"unbiased_mean", "local", NULL},
    {"dropped_block", "local", NULL},
    {"dropped_tail", "local", NULL},
    {"bf16_sum", "local", NULL},
    {"fp16_sum", "local", NULL},
    {"reads_one_behind", "guards", "bytes past the end of x"},
    {"reads_vector_behind", "guards", "bytes past the end of x"},
    {"reads_before", "guards", "bytes before the start of x"},
    {"writes_behind", "guards", "wrote 1 bytes past the end of y"},
    {"writes_before", "guards", "before the start of y"},
    {"scales_input", "inputs", "wrote byte 0 of input x"},
    {"restores_input", "inputs", "wrote byte 0 of input x"},
    {"forgets_rstd", "written", "elements of rstd are never written"},
    {"forgets_last_row", "written", "are never written"},
    {"wrong_for_one_column", "local", NULL},
    {"divides_by_rows", "crash", "integer division by zero"},
    {"flushes_subnormals", "local", "subnormal"},
    {"result_of_an_address", "repeat", "other bits"},
    {"result_of_the_call_before", "repeat", "other bits"},
    {"order_of_the_batch", "batch", "without the other rows"},
    {"truncates_bf16", "local", "BF16"},
    {"never_ends", "time", "within the time limit"},
    {"exits", "crash", "ended the process"},
    {"exits_in_threads", "crash", "ended the process (exit code 3)"},
    {"aborts", "crash", "abort()"},
    {"overflows_the_stack", "crash", "segmentation fault"},
    {"fast_root", "local", NULL},
    {"swallows_nan", "special", "nan"},
    {"infinity_becomes_nan", "special", "infinity"},
    {"gamma_of_another_column", "local", NULL},
    {"gamma_of_the_row", "local", NULL},
    {"ignores_the_size", "arguments", "size is 8 bytes"},
    {"ignores_the_shape_of_gamma", "arguments", "gamma"},
    {"refuses_a_long_gamma_alone", "arguments", "an element less in dimension 0 of gamma"},
    {"believes_the_dtype_of_x", "arguments", "gamma of dtype"},
    {"ignores_strides", "arguments", "gaps"},
    {"declares_strides", "strides", "wrote into the gap"},
    {"one_stride_for_all", "strides", NULL},
    {"writes_before_it_checks", "arguments", "an output is written"},
    {"refuses_what_it_declares", "accepts", "error code 2 for a call that the description takes"},
    {"takes_what_it_leaves_out", "accepts", "no error code for a call outside"},
    {"declares_double", "local", NULL},
    {"not_in_place", "in_place", "other bits"},
    {"workspace_too_small", "guards", "workspace"},
    {"workspace_by_address", "workspace", "4 bytes without data and for 8 with it"},
    {"workspace_not_checked", "arguments", "workspace of one byte less"},
    {"garbage_in_workspace", "repeat", "rstd"},
};

static const broken others[] = {
    {"order_of_threads", "threads", "other bits"},
    {"race_of_threads", "threads", "other bits"},
    {"two_threads_alone", "threads", NULL},
    {"single_precision_sum", "local", NULL},
    {"size_of_the_sum_not_checked", "arguments", "an extra element in dimension 0 of y"},
    {"whole_vectors_only", "written", "never written"},
    {"vectors_beyond_the_end", "guards", "past the end"},
    {"alignment_not_declared", "crash", "better alignment than was declared"},
    {"alignment_not_checked", "crash", "not aligned"},
    {"rounded_through_12_bits", "local", NULL},
    {"nan_swallowed_by_max", "special", "nan"},
    {"gate_and_up_swapped", "local", NULL},
    {"exp_overflows", "local", NULL},
    {"probs_ignored", "local", NULL},
    {"weak_exponential", "local", NULL},
    {"shadow_of_the_rounded", "shadow", NULL},
    {"shadow_of_another", "shadow", "rounds to"},
    {"bias_twice", "exact", NULL},
    {"weight_transposed", "exact", "transposed"},
    {"last_term_missing", "local", NULL},
    {"one_block_of_one_element", "exact", NULL},
    {"gradient_overwritten", "exact", NULL},
    {"start_of_vocabulary_ignored", "exact", NULL},
    {"old_gradient_forgotten", "exact", NULL},
    {"padding_trained", "exact", NULL},
    {"padding_counted_from_the_piece", "exact", NULL},
};

/* An operation that the engine does not have. */
static const broken layernorm[] = {
    {"layernorm_sample_variance", "exact", NULL},
    {"layernorm_without_beta", "local", NULL},
    {"layernorm_one_pass", "local", "rstd"},
    {"layernorm_without_mean_of_g", "exact", NULL},
    {"layernorm_old_beta_forgotten", "exact", "dbeta"},
};

static void expect_caught(const char *library, const broken *b)
{
    char arguments[CLI_LINE];
    snprintf(arguments, sizeof arguments, "--call-limit 0.5 --so " ASSAY_KERNELS "/%s.so:%s", library,
             b->symbol);
    cli_result r = certify_caught(b->trial, b->word, arguments);
    cr_expect(r.code == 1 && certify_failed(&r, b->trial),
              "%s: expected trial %s to fail, exit code %d\n%s%s", b->symbol, b->trial, r.code, r.out, r.err);
    cr_expect(b->word == NULL || strstr(r.out, b->word) != NULL, "%s: '%s' in\n%s", b->symbol, b->word,
              r.out);
    cli_free(&r);
}

Test(certify_broken, rmsnorm, .timeout = 500)
{
    for (size_t i = 0; i < sizeof rmsnorm / sizeof *rmsnorm; i++)
        expect_caught("broken_rmsnorm", &rmsnorm[i]);
    cli_result r = cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/broken_rmsnorm.so:honest");
    cli_expect_success(&r, "what the broken ones differ from");
    cli_free(&r);
}

Test(certify_broken, others, .timeout = 500)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        expect_caught("broken_others", &others[i]);
}

/* What assay tells its own OpenBLAS it does not tell a library's: trial `threads` has its numbers. */
Test(certify_broken, threads_of_a_library_s_own_openblas)
{
    static const broken b = {"order_of_blas_threads", "threads", "other bits"};
    unsetenv("OPENBLAS_NUM_THREADS");
    unsetenv("OMP_NUM_THREADS");
    expect_caught("broken_others", &b);
}

/* One that declares less in the first process, whose description is signed, than in the others. */
Test(certify_broken, a_description_is_that_of_every_process)
{
    setenv("DESCRIBED", cli_file("described"), 1);
    cli_result r =
        cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/broken_rmsnorm.so:describes_itself_twice");
    cr_expect_eq(r.code, 2, "exit code %d\n%s%s", r.code, r.out, r.err);
    cr_expect(
        strstr(r.err, "the description says another alignment in another process: expected 0, found 16") !=
            NULL,
        "%s", r.err);
    cli_free(&r);
}

Test(certify_broken, layernorm, .timeout = 500)
{
    static const char *const clean[] = {"layernorm_two_passes", "layernorm_welford", "layernorm_backward"};
    for (size_t i = 0; i < sizeof layernorm / sizeof *layernorm; i++)
        expect_caught("layernorm", &layernorm[i]);
    for (size_t i = 0; i < sizeof clean / sizeof *clean; i++) {
        cli_result r = cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/layernorm.so:%s", clean[i]);
        cli_expect_success(&r, clean[i]);
        cli_free(&r);
    }
}

Test(certify_broken, clean, .timeout = 500)
{
    static const char *const clean[] = {"norm_chain",
                                        "norm_lanes",
                                        "norm_reversed",
                                        "norm_double",
                                        "norm_pairwise",
                                        "norm_two_parts",
                                        "norm_unfused",
                                        "norm_gamma_first",
                                        "norm_one_dtype",
                                        "norm_that_adapts",
                                        "norm_of_some_widths",
                                        "add_vectors",
                                        "add_backwards",
                                        "clamp_by_comparison",
                                        "count_zeros_of_integers",
                                        "sumsq_of_threads",
                                        "gate_without_overflow",
                                        "lookup_of_rows",
                                        "embedding_by_columns",
                                        "linear_of_lanes",
                                        "linear_in_double"};
    for (size_t i = 0; i < sizeof clean / sizeof *clean; i++) {
        cli_result r = cli_run("certify --seeds 1 --so " ASSAY_KERNELS "/clean.so:%s", clean[i]);
        cli_expect_success(&r, clean[i]);
        cli_free(&r);
    }
}
