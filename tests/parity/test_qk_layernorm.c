/* A norm over all heads that goes wrong in the engine, in both precisions: each fault is named at its operation. */
#include "tests/support/cli.h"
#include "tests/support/plan_faults.h"

TestSuite(qk_layernorm, .init = cli_setup, .fini = cli_teardown, .timeout = 300);

static void expect_first(const char *layout, const char *planted, const char *first)
{
    static const char *const precisions[] = {"fp32", "bf16"};
    for (int p = 0; p < 2; p++) {
        cli_result r = cli_run(
            "run --case olmoe --layout %s --precision %s --variant fastest --quiet --fault %s --report %s",
            layout, precisions[p], planted, cli_file(precisions[p]));
        const char *failure = strstr(r.out, "FAIL  ");
        char line[400] = "";
        if (failure)
            snprintf(line, sizeof line, "%.*s", (int)strcspn(failure, "\n"), failure);
        cr_expect_eq(r.code, 1, "%s: exit code %d: %s", planted, r.code, r.err);
        cr_expect(strstr(line, first), "%s, %s: expected '%s' in the first failure, found '%s'", planted,
                  precisions[p], first, line);
        cli_free(&r);
    }
}

#define Q0 "decoder.layers.0.self_attention.q_layernorm"
#define K1 "decoder.layers.1.self_attention.k_layernorm"

Test(qk_layernorm, a_sum_that_is_not_reduced)
{
    expect_first("tp2", "skip:" Q0 ".reduce", "local: " Q0 ".reduce all_reduce recv");
}

Test(qk_layernorm, a_dot_product_that_is_not_reduced)
{
    expect_first("tp4,sp", "skip:" K1 ".reduce_grad", "local: " K1 ".reduce_grad all_reduce recv");
}

Test(qk_layernorm, a_mean_over_the_local_width)
{
    expect_first("tp2,sp", "attr:" Q0 ":width=0.5", "plan: " Q0 " rmsnorm_apply width");
}

Test(qk_layernorm, a_sum_over_another_group)
{
    expect_first("tp4", "group:" K1 ".reduce:tp", "plan: " K1 ".reduce all_reduce group");
}

/* Norms of q and k over all heads: two query groups on four ranks, so that ranks 0 and 2, 1 and 3 make a row of k. */
static const fault norms_over_heads[] = {
    {"drop_op", "all_reduce", A0 "q_layernorm.reduce", "", "", false, 1, 0, 1, "operation"},
    {"drop_op", "all_reduce", A0 "k_layernorm.reduce_grad", "", "", false, 3, 1, 0, "operation"},
    {"group", "all_reduce", A0 "q_layernorm.reduce", "", "kv_head", false, 0, 1, 0, "group"},
    {"group", "all_reduce", A0 "k_layernorm.reduce", "", "tp", false, 2, 0, 1, "group"},
    {"group", "all_reduce", L1 "self_attention.k_layernorm.reduce_grad", "", "kv", false, 1, 1, 1, "group"},
    {"attr", "rmsnorm_apply", A0 "q_layernorm", "width", "6", false, 3, 0, 0, NULL},
    {"attr", "rmsnorm_bwd_apply", L1 "self_attention.k_layernorm", "width", "24", false, 2, 0, 0, NULL},
    {"attr", "rmsnorm_sumsq", A0 "k_layernorm.sumsq", "columns", "3", false, 1, 0, 0, NULL},
    {"rewire", "rmsnorm_apply", A0 "k_layernorm", "sumsq", A0 "q_layernorm.reduce.recv", INPUT, 1, 0, 0,
     NULL},
    {"rewire", "rmsnorm_apply", A0 "q_layernorm", "sumsq", A0 "q_layernorm.sumsq.y", INPUT, 2, 1, 1, NULL},
    {"rewire", "rmsnorm_bwd_apply", A0 "k_layernorm", "dot", A0 "k_layernorm.dot.y", INPUT, 3, 0, 1, NULL},
    {"drop_op", "all_reduce", A0 "k_layernorm.weight", "", "", false, 2, 0, -1, "operation"},
    {"repeat_op", "sumsq", A0 "k_layernorm.weight", "", "", false, 2, 0, -1, "operation"},
};

Test(qk_layernorm, faults_of_the_record)
{
    static const assay_precision precisions[] = {ASSAY_PRECISION_FP32, ASSAY_PRECISION_BF16};
    for (int p = 0; p < 2; p++) {
        plan_cell c;
        plan_cell_run(&c, plan_full_width_model, "tp4,sp", precisions[p], "");
        parity_report *r = plan_judge(&c, c.trace);
        print_failures(r);
        cr_assert_eq(n_failed(r), 0);
        parity_report_destroy(r);
        for (size_t i = 0; i < sizeof norms_over_heads / sizeof *norms_over_heads; i++)
            expect_named(&c, &norms_over_heads[i]);
        plan_cell_free(&c);
    }
}
