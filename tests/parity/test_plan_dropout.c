/* Laws: an honest run with dropout holds the plan; every fault of the tables is named where it was planted, in fp32 and in bf16. */
#include "tests/support/plan_faults.h"

/* Dropout over two tensor-parallel ranks: 5 = 4 + the site 1 of layer 1, draw 3 = the last microbatch of two steps of two. */
static const fault dropped[] = {
    {"attr", "dropout_fwd", A0 "dropout", "p", "0.1", false, 0, 0, 0, NULL},
    {"attr", "dropout_fwd", M1 "dropout", "seed", "1234", false, 1, 0, 1, NULL},
    {"attr", "dropout_fwd", A0 "dropout", "stream", "2", false, 0, 1, 0, NULL},
    {"attr", "dropout_fwd", L1 "self_attention.dropout", "stream", "1", false, 1, 1, 1, NULL},
    {"attr", "dropout_fwd", M1 "dropout", "draw", "2", false, 0, 1, 1, NULL},
    {"attr", "dropout_fwd", "embedding.dropout", "draw", "0", false, 1, 1, 0, NULL},
    {"attr", "dropout_bwd", A0 "dropout", "p", "null", false, 1, 0, 0, NULL},
    {"attr", "dropout_bwd", M1 "dropout", "draw", "1", false, 1, 0, 0, NULL},
    {"attr", "dropout_bwd", "embedding.dropout", "stream", "7", false, 0, 1, 1, NULL},
    {"attr", "attention_fwd", A0 "core_attention", "dropout_p", "0.2", false, 0, 0, 1, NULL},
    {"attr", "attention_fwd", A0 "core_attention", "dropout_p", "null", false, 1, 1, 0, NULL},
    {"attr", "attention_fwd", A0 "core_attention", "first_head", "0", false, 1, 0, 0, NULL},
    {"attr", "attention_fwd", L1 "self_attention.core_attention", "stream", "0", false, 0, 1, 1, NULL},
    {"attr", "attention_bwd", A0 "core_attention", "all_heads", "2", false, 0, 0, 1, NULL},
    {"attr", "attention_bwd", A0 "core_attention", "first_row", "1", false, 1, 1, 1, NULL},
    {"attr", "attention_bwd", A0 "core_attention", "draw", "4", false, 0, 1, 1, NULL},
    {"attr", "attention_bwd", A0 "core_attention", "all_keys", "8", false, 1, 0, 1, NULL},
    {"attr", "attention_fwd", A0 "core_attention", "all_rows", "1", false, 0, 0, 0, NULL},
    {"shift", "dropout_fwd", A0 "dropout", "token", "", INPUT, 1, 0, 1, NULL},
    {"shift", "dropout_bwd", M1 "dropout", "token", "", INPUT, 0, 1, 0, NULL},
    {"rewire", "add", A0 "residual", "b", A0 "reduce.recv", INPUT, 1, 1, 0, NULL},
    {"rewire", "dropout_bwd", M1 "dropout", "dy", M1 "dropout.y", INPUT, 0, 0, 1, NULL},
    {"drop_op", "dropout_fwd", M1 "dropout", "", "", false, 1, 0, 0, "operation"},
    {"drop_op", "dropout_bwd", "embedding.dropout", "", "", false, 0, 1, 1, "operation"},
    {"repeat_op", "dropout_fwd", A0 "dropout", "", "", false, 0, 0, 1, "operation"},
};

/* Rows of two data-parallel ranks, heads dealt out over cp. */
static const fault dropped_over_heads[] = {
    {"attr", "attention_fwd", A0 "core_attention", "first_head", "0", false, 1, 0, 0, NULL},
    {"attr", "attention_bwd", A0 "core_attention", "first_head", "1", false, 0, 1, 1, NULL},
    {"shift", "dropout_fwd", A0 "dropout", "token", "", INPUT, 1, 1, 0, NULL},
};

/* Attention around a ring, layers that run again, Hugging Face's form: no mask of the embedding. */
static const fault dropped_again[] = {
    {"attr", "dropout_fwd", A0 "dropout", "p", "0.5", false, 0, 0, 0, NULL},
    {"attr", "dropout_bwd", L1 "self_attention.dropout", "stream", "4", false, 1, 1, 1, NULL},
};

/* Whole microbatches for each data-parallel rank; probabilities alone, whose attention runs again. */
static const fault dropped_in_microbatches[] = {
    {"attr", "dropout_fwd", A0 "dropout", "draw", "0", false, 1, 0, 1, NULL},
    {"attr", "attention_bwd", A0 "core_attention", "draw", "3", false, 0, 1, 0, NULL},
};

static void expect_all(const char *layout, assay_precision precision, const fault *faults, size_t n)
{
    expect_faults(plan_model, layout, precision, 0.0, ASSAY_DISPATCHER_ALLTOALL, faults, n);
}

Test(parity_plan_dropout, tensor_parallel_fp32)
{
    expect_all("tp2,sp,ep2 dropout", ASSAY_PRECISION_FP32, TABLE(dropped));
}

Test(parity_plan_dropout, microbatches_of_dp_fp32)
{
    expect_all("dp2,ep2 dropout", ASSAY_PRECISION_FP32, TABLE(dropped_in_microbatches));
}

Test(parity_plan_dropout, attention_again_fp32)
{
    expect_all("tp2 dropout selective=core_attn", ASSAY_PRECISION_FP32, TABLE(dropped_over_heads));
}

Test(parity_plan_dropout, heads_over_cp_fp32)
{
    expect_all("cp2,a2a dropout", ASSAY_PRECISION_FP32, TABLE(dropped_over_heads));
}

Test(parity_plan_dropout, around_a_ring_and_again_fp32)
{
    expect_all("cp2,p2p residual full=1", ASSAY_PRECISION_FP32, TABLE(dropped_again));
}

Test(parity_plan_dropout, tensor_parallel_bf16)
{
    expect_all("tp2,sp,ep2 dropout", ASSAY_PRECISION_BF16, TABLE(dropped));
}

Test(parity_plan_dropout, microbatches_of_dp_bf16)
{
    expect_all("dp2,ep2 dropout", ASSAY_PRECISION_BF16, TABLE(dropped_in_microbatches));
}

Test(parity_plan_dropout, attention_again_bf16)
{
    expect_all("tp2 dropout selective=core_attn", ASSAY_PRECISION_BF16, TABLE(dropped_over_heads));
}

Test(parity_plan_dropout, heads_over_cp_bf16)
{
    expect_all("cp2,a2a dropout", ASSAY_PRECISION_BF16, TABLE(dropped_over_heads));
}

Test(parity_plan_dropout, around_a_ring_and_again_bf16)
{
    expect_all("cp2,p2p residual full=1", ASSAY_PRECISION_BF16, TABLE(dropped_again));
}
