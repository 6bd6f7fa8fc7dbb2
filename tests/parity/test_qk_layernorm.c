/* A norm over all heads that goes wrong in the engine, in both precisions: each fault is named at its operation. */
#include "tests/support/cli.h"

TestSuite(qk_layernorm, .init = cli_setup, .fini = cli_teardown, .timeout = 300);

static void expect_named(const char *layout, const char *fault, const char *first)
{
    static const char *const precisions[] = {"fp32", "bf16"};
    for (int p = 0; p < 2; p++) {
        cli_result r = cli_run(
            "run --case olmoe --layout %s --precision %s --variant fastest --quiet --fault %s --report %s",
            layout, precisions[p], fault, cli_file(precisions[p]));
        const char *failure = strstr(r.out, "FAIL  ");
        char line[400] = "";
        if (failure)
            snprintf(line, sizeof line, "%.*s", (int)strcspn(failure, "\n"), failure);
        cr_expect_eq(r.code, 1, "%s: exit code %d: %s", fault, r.code, r.err);
        cr_expect(strstr(line, first), "%s, %s: expected '%s' in the first failure, found '%s'", fault,
                  precisions[p], first, line);
        cli_free(&r);
    }
}

#define Q0 "decoder.layers.0.self_attention.q_layernorm"
#define K1 "decoder.layers.1.self_attention.k_layernorm"

Test(qk_layernorm, a_sum_that_is_not_reduced)
{
    expect_named("tp2", "skip:" Q0 ".reduce", "local: " Q0 ".reduce all_reduce recv");
}

Test(qk_layernorm, a_dot_product_that_is_not_reduced)
{
    expect_named("tp4,sp", "skip:" K1 ".reduce_grad", "local: " K1 ".reduce_grad all_reduce recv");
}

Test(qk_layernorm, a_mean_over_the_local_width)
{
    expect_named("tp2,sp", "attr:" Q0 ":width=0.5", "plan: " Q0 " rmsnorm_apply width");
}

Test(qk_layernorm, a_sum_over_another_group)
{
    expect_named("tp4", "group:" K1 ".reduce:tp", "plan: " K1 ".reduce all_reduce group");
}
