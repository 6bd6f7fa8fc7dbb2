/* Laws: faults of the balancing losses of a router are named where they were planted, in fp32 and in bf16. */
#include "tests/support/plan_faults.h"

/* All balancing losses over two sequence pieces of two context-parallel ranks each. */
static const fault balancing[] = {
    {"attr", "router_aux_loss", M1 "router.seq_aux_loss", "aux_coeff", "0.01", false, 1, 0, 1, NULL},
    {"attr", "router_aux_bwd", M1 "router.global_aux", "aux_coeff", "0.01", false, 2, 1, 0, NULL},
    {"attr", "router_aux_bwd", M1 "router.seq_aux", "loss_scale", "1.0", false, 3, 0, 1, NULL}, /* tp-fold */
    {"attr", "router_aux_bwd", M1 "router.global_aux", "loss_scale", "1.0", false, 0, 1, 1, NULL},
    {"attr", "router_aux_bwd", M1 "router.seq_aux", "divisor", "1", false, 1, 1, 0, NULL},
    {"attr", "router_aux_bwd", M1 "router.seq_aux", "tokens", "14", false, 2, 0, 0, NULL},
    {"attr", "router_aux_loss", M1 "router.global_aux_loss", "divisor", "1", false, 3, 1, 1, NULL},
    {"attr", "router_aux_bwd", M1 "router.global_aux", "z_coeff", "0.001", false, 0, 0, 0, NULL},
    {"attr", "router_seq_aux_fwd", M1 "router.seq_aux", "rows", "1", false, 1, 0, 0, NULL},
    {"unreduced", "all_reduce", M1 "router.seq_aux_counts", "recv", "", false, 1, 0, 1, NULL},
    {"unreduced", "all_reduce", M1 "router.global_aux_counts", "recv", "", false, 2, 1, 0, NULL},
    {"group", "all_reduce", M1 "router.seq_aux_counts", "", "tp", false, 2, 1, 1, "group"}, /* not over cp */
    {"group", "all_reduce", M1 "router.global_aux_counts", "", "cp", false, 3, 0, 0, "group"},
    {"shift", "router_aux_bwd", M1 "router.seq_aux", "tokens_per_expert", "", INPUT, 0, 0, 1, NULL},
    {"value", "router_seq_aux_fwd", M1 "router.seq_aux", "tokens_per_expert", "", false, 1, 1, 0, NULL},
    {"value", "running_counts", M1 "router.global_aux", "total", "", false, 3, 0, 1, NULL},
    {"rewire", "router_aux_bwd", M1 "router.global_aux", "tokens_per_expert", M1 "router.aux_counts.recv",
     INPUT, 2, 0, 1, NULL},
    {"rewire", "router_aux_loss", M1 "router.seq_aux_loss", "score_sums", M1 "router.aux.score_sums", INPUT,
     1, 1, 1, NULL},
    {"rewire", "router_aux_bwd", M1 "router.global_aux", "dlogits_in", M1 "router.dlogits", INPUT, 0, 1, 0,
     NULL},
    {"drop_op", "router_aux_bwd", M1 "router.seq_aux", "", "", false, 2, 0, 1, "operation"},
    {"drop_op", "all_reduce", M1 "router.seq_aux_counts", "", "", false, 0, 1, 1, "operation"},
    {"repeat_op", "running_counts", M1 "router.global_aux", "", "", false, 3, 1, 0, "operation"},
};

/* Rows of every microbatch on two data-parallel ranks. */
static const fault balancing_rows[] = {
    {"group", "all_reduce", M1 "router.aux_counts", "", "tp_cp", false, 1, 0, 1, "group"},
    {"group", "all_reduce", M1 "router.global_aux_counts", "", "ep", false, 0, 1, 0, "group"},
    {"attr", "router_aux_bwd", M1 "router.seq_aux", "divisor", "1", false, 1, 1, 1, NULL},
    {"attr", "router_aux_bwd", M1 "router.global_aux", "tokens", "7", false, 0, 0, 1, NULL},
    {"unreduced", "all_reduce", M1 "router.global_aux_counts", "recv", "", false, 1, 0, 0, NULL},
};

/* Whole microbatches on two data-parallel ranks, as Megatron-LM has them: microbatch 1 is rank 1's first. */
static const fault balancing_megatron[] = {
    {"attr", "router_aux_bwd", M1 "router.global_aux", "tokens", "14", false, 0, 1, 0, NULL},
    {"attr", "router_aux_bwd", M1 "router.seq_aux", "loss_scale", "0.5", false, 1, 0, 1, NULL},
    {"attr", "router_aux_loss", M1 "router.global_aux_loss", "divisor", "2", false, 1, 1, 1, NULL},
    {"group", "all_reduce", M1 "router.global_aux_counts", "", "tp_cp", false, 0, 0, 0, "group"},
    {"unreduced", "all_reduce", M1 "router.global_aux_counts", "recv", "", false, 1, 1, 1, NULL},
};

static void expect_all(const char *layout, assay_precision precision, const fault *faults, size_t n)
{
    expect_faults(plan_model, layout, precision, 0.0, ASSAY_DISPATCHER_ALLTOALL, faults, n);
}

Test(parity_plan_balancing, pieces_fp32)
{
    expect_all("tp2,sp,cp2 balancing", ASSAY_PRECISION_FP32, TABLE(balancing));
}

Test(parity_plan_balancing, pieces_bf16)
{
    expect_all("tp2,sp,cp2 balancing", ASSAY_PRECISION_BF16, TABLE(balancing));
}

Test(parity_plan_balancing, over_rows_fp32)
{
    expect_all("ep2 balancing", ASSAY_PRECISION_FP32, TABLE(balancing_rows));
}

Test(parity_plan_balancing, over_rows_bf16)
{
    expect_all("ep2 balancing", ASSAY_PRECISION_BF16, TABLE(balancing_rows));
}

Test(parity_plan_balancing, megatron_fp32)
{
    expect_all("dp2 balancing megatron", ASSAY_PRECISION_FP32, TABLE(balancing_megatron));
}

Test(parity_plan_balancing, megatron_bf16)
{
    expect_all("dp2 balancing megatron", ASSAY_PRECISION_BF16, TABLE(balancing_megatron));
}

/* The engine itself: a coefficient, a scale, a group, counts without the microbatch before, a kind that is left out. */
static void expect_engine_balancing(assay_precision precision)
{
    static const char *const planted[][4] = {
        {"attr:" M1 "router.seq_aux_loss:aux_coeff=2", "router_aux_loss", M1 "router.seq_aux_loss",
         "aux_coeff"},
        {"attr:" M1 "router.seq_aux:loss_scale=2,phase=backward", "router_aux_bwd", M1 "router.seq_aux",
         "loss_scale"},
        {"group:" M1 "router.seq_aux_counts:tp", "all_reduce", M1 "router.seq_aux_counts", "group"},
        {"drop:" M1 "router.global_aux:previous", "running_counts", M1 "router.global_aux", "previous"},
        {"omit:" M1 "router.global_aux,phase=backward", "router_aux_bwd", M1 "router.global_aux",
         "operation"},
    };
    for (size_t i = 0; i < sizeof planted / sizeof planted[0]; i++) {
        plan_cell c;
        plan_cell_run(&c, plan_model, "tp2,sp,cp2 balancing", precision, planted[i][0]);
        parity_report *r = plan_judge(&c, c.trace);
        const parity_claim *f = first_failure(r);
        cr_assert(f != NULL, "%s: not caught", planted[i][0]);
        cr_expect(strcmp(f->op, planted[i][1]) == 0 && strcmp(f->instance, planted[i][2]) == 0 &&
                      strcmp(f->tensor, planted[i][3]) == 0,
                  "%s: named at %s %s %s: %s", planted[i][0], f->op, f->instance, f->tensor, f->message);
        parity_report_destroy(r);
        plan_cell_free(&c);
    }
}

Test(parity_plan_balancing, in_the_engine_fp32)
{
    expect_engine_balancing(ASSAY_PRECISION_FP32);
}

Test(parity_plan_balancing, in_the_engine_bf16)
{
    expect_engine_balancing(ASSAY_PRECISION_BF16);
}
