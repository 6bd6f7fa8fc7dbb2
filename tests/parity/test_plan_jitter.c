/* Laws: jitter of a router's input is planned and replayed, in its numbers, its place and its backward (docs/OPS.md 9.14). */
#include "tests/support/plan_faults.h"

#define JITTER M1 "router.input_jitter"

static const fault faults[] = {
    {"attr", "input_jitter", JITTER, "draw", "0", false, 0, 0, 1, NULL},
    {"attr", "input_jitter", JITTER, "draw", "1", false, 1, 1, 0, NULL},
    {"attr", "input_jitter", JITTER, "layer", "0", false, 1, 0, 0, NULL},
    {"attr", "input_jitter", JITTER, "tokens", "7", false, 0, 1, 1, NULL},
    {"attr", "input_jitter", JITTER, "eps", "0.125", false, 1, 0, 1, NULL},
    {"shift", "input_jitter", JITTER, "token", "", INPUT, 1, 1, 1, NULL},
    {"drop_op", "input_jitter", JITTER, "", "", false, 1, 0, 0, "operation"},
    {"repeat_op", "input_jitter", JITTER, "", "", false, 0, 1, 0, "operation"},
};

Test(plan_jitter, faults_of_the_record)
{
    static const assay_precision precisions[] = {ASSAY_PRECISION_FP32, ASSAY_PRECISION_BF16};
    for (int p = 0; p < 2; p++)
        expect_faults(plan_model, "tp2,sp,ep2 jitter", precisions[p], 0.0, ASSAY_DISPATCHER_ALLTOALL, faults,
                      sizeof faults / sizeof *faults);
}

/* The engine reads the tokens as they are, or lets the gradient through as it is. */
static void expect_first(const char *planted, const char *op, const char *instance)
{
    plan_cell c;
    plan_cell_run(&c, plan_model, "tp2,sp jitter", ASSAY_PRECISION_FP32, planted);
    parity_report *r = plan_judge(&c, c.trace);
    const parity_claim *f = first_failure(r);
    cr_assert_not_null(f, "%s: not caught", planted);
    cr_expect(strcmp(f->op, op) == 0 && strcmp(f->instance, instance) == 0, "%s: named at %s %s %s", planted,
              f->op, f->instance, f->tensor);
    parity_report_destroy(r);
    plan_cell_free(&c);
}

Test(plan_jitter, numbers_of_another_microbatch_and_a_gradient_without_them)
{
    expect_first("attr:" JITTER ":draw=+1,phase=forward", "input_jitter", JITTER);
    expect_first("omit:" JITTER ",phase=backward", "input_jitter", JITTER);
}
