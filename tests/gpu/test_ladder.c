/* The ladder: every operation of the engine has rungs from k0 on without a gap, and the highest rung of a family is what
 * --variant takes. */
#include "gpu/dispatch.h"
#include "gpu/ladder.h"
#include "tests/support/gpu_ops.h"

TestSuite(gpu_ladder, .timeout = 60);

Test(gpu_ladder, every_operation_has_rungs_without_a_gap)
{
    for (int i = 0; assay_op_at(i); i++) {
        const assay_op *op = assay_op_at(i);
        const bool mine = gpu_dispatch_knows(op->name);
        cr_expect_eq(gpu_ladder_find(op->name, 0) != NULL, mine, "%s", op->name);
        for (int k = 1; k < 8; k++)
            cr_expect(!gpu_ladder_find(op->name, k) || gpu_ladder_find(op->name, k - 1),
                      "%s has k%d and no k%d", op->name, k, k - 1);
        if (mine)
            cr_expect(strlen(gpu_ladder_find(op->name, 0)->buys) > 0 &&
                      strlen(gpu_ladder_find(op->name, 0)->arithmetic) > 0);
    }
}

/* What runs says the variant that was asked for. */
Test(gpu_ladder, a_rung_runs_when_it_is_asked_for)
{
    static const char *const ops[] = {"add", "sum", "sumsq"};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        for (int k = 0; gpu_ladder_find(ops[i], k); k++) {
            gpu_ctx ctx;
            op_call c;
            char text[32];
            open_ctx(&ctx);
            snprintf(text, sizeof text, "elementwise=k%d", k);
            set_variants(&ctx, text);
            call_begin(&c, &ctx, 1);
            put(&c, strcmp(ops[i], "add") == 0 ? "a" : "x", ASSAY_F32, 0, 1, 1, (int64_t)100);
            if (strcmp(ops[i], "add") == 0)
                put(&c, "b", ASSAY_F32, 0, 1, 1, (int64_t)100);
            run_op(&c, ops[i], ASSAY_F32);
            cr_expect_eq(c.declared.variant, k, "%s", ops[i]);
            call_end(&c);
            gpu_ctx_destroy(&ctx);
        }
}

Test(gpu_ladder, a_variant_above_the_ladder_is_refused)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    cr_expect_eq(gpu_ladder_highest("cross_entropy"), 2);
    cr_expect_eq(gpu_ladder_highest("fourier"), -1);
    cr_expect_eq(gpu_ctx_set_variants(&ctx, "cross_entropy=k2"), ASSAY_OK);
    cr_expect_eq(gpu_ctx_set_variants(&ctx, "cross_entropy=k3"), ASSAY_INVALID_ARGUMENT);
    gpu_ctx_destroy(&ctx);
}
