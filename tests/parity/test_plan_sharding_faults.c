/* Laws: what test_plan_faults.c holds the plan to, of gradients and parameters that data-parallel ranks share out, and of how
 * weight gradients are added. */
#include "tests/support/plan_faults.h"

/* Gradients shared out behind every microbatch; ranks 0 and 1 have microbatches 0 and 1. */
static const fault scattered_gradients[] = {
    {"group", "reduce_scatter", A0 "linear_qkv.weight", "", "tp", false, 1, 1, 0, "group"},
    {"group", "reduce_scatter", "decoder.final_layernorm.weight", "", "world", false, 0, 0, 1, "group"},
    {"drop_op", "reduce_scatter", L1 "mlp.router.weight", "", "", false, 0, 1, 1, "operation"},
    {"repeat_op", "reduce_scatter", A0 "linear_proj.weight", "", "", false, 1, 0, 1, "operation"},
    {"drop_op", "add", L1 "input_layernorm.weight", "", "", false, 1, 0, 1, "operation"},
    {"repeat_op", "add", "embedding.word_embeddings.weight", "", "", false, 0, 1, 1, "operation"},
    {"rewire", "add", L0 "input_layernorm.weight", "a", L0 "input_layernorm.weight.main_grad.shard", INPUT, 0,
     0, 1, NULL},
    {"attr", "reduce_scatter", L0 "mlp.linear_fc2.weight", "dtype", "\"BF16\"", false, 1, 1, 1, NULL},
    {"attr", "reduce_scatter", L0 "mlp.linear_fc2.weight", "reduction", "\"max\"", false, 0, 0, 0, NULL},
    {"late_op", "reduce_scatter", L1 "self_attention.linear_qkv.weight", "", "", false, 1, 1, 0, "order"},
    /* a gradient that says that it is part of no sum, which nothing would assemble */
    {"local", "reduce_scatter", "decoder.final_layernorm.weight", "send", "", INPUT, 0, 0, 1, NULL},
    {"local", "reduce_scatter", A0 "linear_qkv.weight", "send", "", INPUT, 1, 1, 0, NULL},
    {"drop_op", "all_gather", L1 "self_attention.linear_proj.weight", "", "", false, 1, 0, -1, "operation"},
    {"drop_op", "all_reduce", L1 "input_layernorm.weight", "", "", false, 1, 0, -1, "operation"},
    {"repeat_op", "all_reduce", L0 "input_layernorm.weight", "", "", false, 0, 1, -1, "operation"},
    {"group", "all_reduce", L0 "input_layernorm.weight", "", "dp_cp", false, 0, 0, -1, "group"},
    {"rewire", "all_reduce", L1 "input_layernorm.weight", "send", L1 "input_layernorm.weight.main_grad.shard",
     INPUT, 1, 1, -1, NULL},
};

/* Parameters gathered around every pass; rank r has microbatch r. */
static const fault gathered_parameters[] = {
    {"drop_op", "all_gather", A0 "linear_qkv.weight", "", "", false, 1, 1, 1, "operation"},
    {"drop_op", "all_gather", L1 "self_attention.linear_proj.weight", "", "", false, 0, 0, 0, "operation"},
    {"repeat_op", "all_gather", L1 "mlp.router.weight", "", "", false, 2, 1, 2, "operation"},
    {"group", "all_gather", L1 "mlp.experts.linear_fc2.weight", "", "world", false, 1, 0, 1, "group"},
    {"attr", "all_gather", L0 "input_layernorm.weight", "dtype", "\"F64\"", false, 0, 0, 0, NULL},
    {"late_op", "all_gather", "decoder.final_layernorm.weight", "", "", false, 1, 1, 1, "order"},
    {"group", "reduce_scatter", L1 "mlp.experts.linear_fc2.weight", "", "dp_cp", false, 3, 1, 3, "group"},
};

/* Parts in two copies. */
static const fault copies[] = {
    {"group", "all_gather", A0 "linear_qkv.weight", "", "dp_cp", false, 1, 1, 1, "group"},
    {"group", "reduce_scatter", A0 "linear_qkv.weight", "", "dp_cp", false, 2, 0, 2, "group"},
    {"group", "all_reduce", L0 "input_layernorm.weight", "", "intra_dp_cp", false, 2, 1, -1, "group"},
    {"drop_op", "all_reduce", L1 "input_layernorm.weight", "", "", false, 0, 0, -1, "operation"},
    {"repeat_op", "all_reduce", L1 "mlp.experts.linear_fc1.weight", "", "", false, 1, 0, -1, "operation"},
};

/* A tied embedding's parts over two stages, then over two copies: copies {0, 1}, {2, 3} of stage 0, {4, 5}, {6, 7}.  A sum
 * that is lost or made twice is named by the group of the one in its place. */
static const fault tied_copies[] = {
    {"group", "all_reduce", EMBEDDING, "", "embedding", false, 2, 0, -1, "group"},
    {"group", "reduce_scatter", EMBEDDING, "", "dp_cp", false, 5, 1, 1, "group"},
    {"rewire", "all_reduce", EMBEDDING, "send", EMBEDDING ".main_grad.shard", INPUT, 6, 1, -1, NULL},
    {"drop_op", "all_reduce", EMBEDDING, "", "", false, 4, 1, -1, "group"},
    {"repeat_op", "all_reduce", EMBEDDING, "", "", false, 3, 0, -1, "group"},
    {"attr", "all_reduce", EMBEDDING, "reduction", "\"max\"", false, 0, 0, -1, NULL},
    {"drop_op", "all_reduce", L1 "input_layernorm.weight", "", "", false, 6, 0, -1, "operation"},
};

/* Weight gradients that are stored before they are added. */
static const fault stored_gradients[] = {
    {"attr", "linear_bwd_weight", A0 "linear_proj", "gradient_accumulation_fusion", "true", false, 1, 1, 0,
     NULL},
    {"attr", "linear_bwd_weight", "output_layer", "gradient_accumulation_fusion", "null", false, 0, 0, 1,
     NULL},
    {"attr", "linear_bwd_weight", M1 "router.gating", "gradient_accumulation_fusion", "true", false, 0, 1, 1,
     NULL},
    {"attr", "grouped_linear_bwd_weight", M1 "experts.linear_fc2", "gradient_accumulation_fusion", "true",
     false, 1, 0, 0, NULL},
};

/* Buckets of 150 elements: parts end in mid-row, and of a small parameter most ranks own nothing. */
static const fault small_buckets[] = {
    {"drop_op", "reduce_scatter", L0 "input_layernorm.weight", "", "", false, 3, 0, 3, "operation"},
    {"repeat_op", "all_gather", A0 "q_layernorm.weight", "", "", false, 2, 1, 2, "operation"},
    {"group", "reduce_scatter", A0 "linear_proj.weight", "", "world", false, 1, 1, 1, "group"},
    {"drop_op", "add", A0 "linear_qkv.weight", "", "", false, 2, 0, 2, "operation"},
    {"repeat_op", "adamw", "decoder.final_layernorm.weight", "", "", false, 0, 1, -1, "operation"},
    {"drop_op", "sumsq", "decoder.final_layernorm.weight", "", "", false, 0, 0, -1, "operation"},
};

/* Gathers ahead of use, and reductions that may begin early. */
static const fault overlapped[] = {
    {"late_op", "all_gather", L1 "input_layernorm.weight", "", "", false, 0, 1, 1, "order"},
    {"drop_op", "all_gather", L0 "input_layernorm.weight", "", "", false, 1, 0, 0, "operation"},
    {"group", "reduce_scatter", L0 "pre_mlp_layernorm.weight", "", "tp", false, 1, 1, 1, "group"},
};
static const fault overlapped_whole[] = {
    {"drop_op", "all_reduce", L0 "input_layernorm.weight", "", "", false, 1, 0, -1, "operation"},
    {"group", "all_reduce", L1 "mlp.experts.linear_fc1.weight", "", "tp", false, 1, 1, -1, "group"},
    {"late_op", "all_reduce", L0 "input_layernorm.weight", "", "", false, 1, 1, -1, "order"},
    {"narrow", "sumsq", "decoder.final_layernorm.weight", "x", "", true, 0, 1, -1, NULL},
};

static void expect_all(const char *layout, assay_precision precision, const fault *faults, size_t n)
{
    expect_faults(plan_model, layout, precision, 0.0, ASSAY_DISPATCHER_ALLTOALL, faults, n);
}

/* Buckets that are summed behind the first of two microbatches. */
static void expect_early(const char *layout, const char *op, assay_precision precision)
{
    plan_cell c;
    plan_cell_run(&c, plan_model, layout, precision, "early_reduction");
    parity_report *r = plan_judge(&c, c.trace);
    const parity_claim *f = first_failure(r);
    cr_assert(f != NULL, "%s: not caught", layout);
    for (int64_t i = 0; i < parity_report_count(r); i++) {
        const parity_claim *one = parity_report_at(r, i);
        if (one->verdict != PARITY_FAIL)
            continue;
        cr_expect(strcmp(one->tensor, "order") == 0 && strcmp(one->op, op) == 0 &&
                      strstr(one->message, "the last accumulation"),
                  "%s %s: %s", one->op, one->instance, one->message);
    }
    parity_report_destroy(r);
    plan_cell_free(&c);
}

/* The cell has what its name says: a rank that owns nothing of a parameter, and a part that begins or ends in mid-row. */
static void expect_ragged(const char *layout, assay_precision precision)
{
    plan_cell c;
    int64_t nothing = 0, broken = 0;
    plan_cell_run(&c, plan_model, layout, precision, "");
    for (int rank = 0; rank < c.grid.world; rank++)
        for (int64_t i = 0; i < assay_trace_n_ops(c.trace, rank); i++) {
            const assay_trace_op *op = assay_trace_op_at(c.trace, rank, i);
            const bool scatter = strcmp(op->op, "reduce_scatter") == 0;
            nothing += scatter && op->n_outputs == 0;
            for (int k = 0; scatter && k < op->n_outputs; k++) {
                const assay_shard *s = &assay_trace_tensor_by_id(c.trace, rank, op->outputs[k].tensor)->shard;
                broken += s->ndim > 1 && s->local_shape[1] < s->global_shape[1];
            }
        }
    cr_expect_gt(nothing, 0);
    cr_expect_gt(broken, 0);
    plan_cell_free(&c);
}

Test(parity_plan_sharding_faults, scattered_gradients_fp32)
{
    expect_all("tp2,sp,dp2,zero2", ASSAY_PRECISION_FP32, TABLE(scattered_gradients));
}

Test(parity_plan_sharding_faults, gathered_parameters_fp32)
{
    expect_all("ep2,dp4,zero3", ASSAY_PRECISION_FP32, TABLE(gathered_parameters));
}

Test(parity_plan_sharding_faults, parts_in_copies_fp32)
{
    expect_all("dp4,zero3,hsdp2", ASSAY_PRECISION_FP32, TABLE(copies));
}

Test(parity_plan_sharding_faults, tied_embedding_in_copies_fp32)
{
    expect_all("pp2,dp4,zero3,hsdp2", ASSAY_PRECISION_FP32, TABLE(tied_copies));
}

Test(parity_plan_sharding_faults, stored_gradients_fp32)
{
    expect_all("ep2,tp2,sp unfused", ASSAY_PRECISION_FP32, TABLE(stored_gradients));
}

Test(parity_plan_sharding_faults, small_buckets_fp32)
{
    expect_ragged("dp4,zero3 buckets", ASSAY_PRECISION_FP32);
    expect_all("dp4,zero3 buckets", ASSAY_PRECISION_FP32, TABLE(small_buckets));
}

Test(parity_plan_sharding_faults, beside_compute_fp32)
{
    expect_all("tp2,dp2,zero3 overlap", ASSAY_PRECISION_FP32, TABLE(overlapped));
    expect_all("tp2,dp2 overlap", ASSAY_PRECISION_FP32, TABLE(overlapped_whole));
}

Test(parity_plan_sharding_faults, reductions_before_the_last_microbatch_fp32)
{
    expect_early("dp2 overlap", "all_reduce", ASSAY_PRECISION_FP32);
}

Test(parity_plan_sharding_faults, scattered_gradients_bf16)
{
    expect_all("tp2,sp,dp2,zero2", ASSAY_PRECISION_BF16, TABLE(scattered_gradients));
}

Test(parity_plan_sharding_faults, gathered_parameters_bf16)
{
    expect_all("ep2,dp4,zero3", ASSAY_PRECISION_BF16, TABLE(gathered_parameters));
}

Test(parity_plan_sharding_faults, parts_in_copies_bf16)
{
    expect_all("dp4,zero3,hsdp2", ASSAY_PRECISION_BF16, TABLE(copies));
}

Test(parity_plan_sharding_faults, tied_embedding_in_copies_bf16)
{
    expect_all("pp2,dp4,zero3,hsdp2", ASSAY_PRECISION_BF16, TABLE(tied_copies));
}

Test(parity_plan_sharding_faults, stored_gradients_bf16)
{
    expect_all("ep2,tp2,sp unfused", ASSAY_PRECISION_BF16, TABLE(stored_gradients));
}

Test(parity_plan_sharding_faults, small_buckets_bf16)
{
    expect_ragged("dp4,zero3 buckets", ASSAY_PRECISION_BF16);
    expect_all("dp4,zero3 buckets", ASSAY_PRECISION_BF16, TABLE(small_buckets));
}

Test(parity_plan_sharding_faults, beside_compute_bf16)
{
    expect_all("tp2,dp2,zero3 overlap", ASSAY_PRECISION_BF16, TABLE(overlapped));
    expect_all("tp2,dp2 overlap", ASSAY_PRECISION_BF16, TABLE(overlapped_whole));
}

Test(parity_plan_sharding_faults, reductions_before_the_last_microbatch_bf16)
{
    expect_early("dp2 overlap", "all_reduce", ASSAY_PRECISION_BF16);
}
