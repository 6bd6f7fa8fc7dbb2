/* Faults of context parallelism and of packed documents: each is named where it was planted, in fp32 and in bf16. */
#include "tests/support/plan_faults.h"

/* Context parallelism: S = 7 is cut in chunks of 2, 2, 2, 1; rank 0 of cp has 3 positions, rank 1 has 4. */
static const fault gathered_keys[] = {
    {"attr", "all_gather", A0 "gather_k", "counts", "[4, 3]", false, 2, 0, 0, NULL},
    {"attr", "reduce_scatter", A0 "gather_v", "counts", "[4, 3]", false, 1, 1, 1, NULL},
    {"attr", "attention_fwd", A0 "core_attention", "seq_q", "7", false, 0, 0, 1, NULL},
    {"attr", "attention_bwd", A0 "core_attention", "seq_k", "3", false, 0, 1, 0, NULL},
    {"attr", "all_gather", A0 "gather", "counts", "[1, 2]", false, 0, 0, 1, NULL},
    {"attr", "router_aux_bwd", M1 "router.aux", "tokens", "6", false, 3, 0, 1, NULL},
    {"attr", "cross_entropy_bwd", "loss", "scale", "0.0625", false, 2, 1, 0, NULL},
    {"group", "all_gather", A0 "gather_v", "", "tp", false, 3, 1, 0, "group"},
    {"group", "reduce_scatter", A0 "gather_k", "", "world", false, 0, 0, 1, "group"},
    {"group", "all_reduce", M1 "router.aux_counts", "", "tp", false, 2, 1, 1, "group"},
    {"group", "all_reduce", A0 "linear_qkv.weight", "", "dp", false, 1, 1, -1, "group"},
    {"rewire", "attention_bwd", A0 "core_attention", "k", "", INPUT, 1, 0, 1, NULL},
    {"shift", "attention_fwd", A0 "core_attention", "k_position", "", INPUT, 2, 0, 1, NULL},
    {"shift", "attention_bwd", A0 "core_attention", "q_position", "", INPUT, 3, 1, 0, NULL},
    {"shift", "rope_fwd", A0 "rope_k", "position", "", INPUT, 0, 1, 1, NULL},
    {"shift", "embedding_fwd", "embedding", "ids", "", INPUT, 2, 1, 0, NULL},
    {"drop_op", "reduce_scatter", A0 "gather_k", "", "", false, 1, 0, 0, "operation"},
    {"repeat_op", "reduce_scatter", A0 "gather_v", "", "", false, 2, 1, 1, "operation"},
    {"drop_op", "all_gather", L1 "self_attention.gather_v", "", "", false, 3, 0, 1, "operation"},
    {"drop_op", "all_reduce", A0 "linear_proj.weight", "", "", false, 0, 1, -1, "operation"},
};

/* Heads dealt out over two ranks. */
static const fault dealt_heads[] = {
    {"attr", "all_to_all", A0 "a2a_q", "recv_counts", "[4, 3]", false, 0, 0, 1, NULL},
    {"attr", "all_to_all", A0 "a2a_o", "counts", "[4, 3]", false, 1, 1, 0, NULL},
    {"attr", "pack_heads", A0 "pack_k", "heads", "4", false, 0, 1, 1, NULL},
    {"attr", "unpack_heads", A0 "unpack_o", "parts", "1", false, 1, 0, 0, NULL},
    {"attr", "attention_fwd", A0 "core_attention", "heads", "4", false, 1, 1, 1, NULL},
    {"attr", "attention_bwd", A0 "core_attention", "seq_q", "3", false, 0, 0, 0, NULL},
    {"group", "all_to_all", A0 "a2a_v", "", "tp", false, 1, 0, 1, "group"},
    {"rewire", "attention_bwd", A0 "core_attention", "v", "", INPUT, 0, 1, 1, NULL},
    {"rewire", "linear_fwd", A0 "linear_proj", "x", A0 "core_attention.o", INPUT, 1, 0, 0, NULL},
    {"shift", "attention_fwd", A0 "core_attention", "q_position", "", INPUT, 0, 0, 0, NULL},
    {"drop_op", "all_to_all", A0 "a2a_k", "", "", false, 1, 1, 0, "operation"},
    {"repeat_op", "unpack_heads", A0 "pack_v", "", "", false, 0, 0, 1, "operation"},
};

/* A ring of three: S = 7 is cut in chunks of 2, 1, 1, 1, 1, 1. */
static const fault ring[] = {
    {"attr", "send", A0 "ring.1.send_k", "peer", "2", false, 0, 0, 1, NULL},
    {"attr", "recv", A0 "ring.2.recv_v", "peer", "2", false, 2, 1, 0, NULL},
    {"attr", "send", A0 "ring.3.send_dv", "peer", "1", false, 1, 0, 0, NULL},
    {"attr", "attention_fwd", A0 "core_attention.1", "seq_k", "2", false, 1, 1, 1, NULL},
    {"attr", "attention_bwd", A0 "core_attention.2", "window", "0", false, 2, 0, 1, NULL},
    {"attr", "attention_merge", A0 "merge.1", "dtype", "\"BF16\"", false, 0, 1, 0, NULL},
    {"group", "recv", A0 "ring.1.recv_dk", "", "tp", false, 1, 1, 1, "group"},
    {"rewire", "attention_merge", A0 "core_attention", "lse_a", A0 "core_attention.0.lse", INPUT, 2, 0, 0,
     NULL},
    {"rewire", "attention_bwd", A0 "core_attention.1", "lse", A0 "core_attention.1.lse", INPUT, 0, 1, 1,
     NULL},
    {"rewire", "attention_bwd", A0 "core_attention.2", "o", A0 "core_attention.2.o", INPUT, 1, 0, 1, NULL},
    {"rewire", "attention_fwd", A0 "core_attention.2", "k", A0 "ring.1.k", INPUT, 2, 1, 0, NULL},
    {"rewire", "add", A0 "ring.1.add_dq", "b", A0 "core_attention.0.dq", INPUT, 0, 0, 1, NULL},
    {"shift", "attention_fwd", A0 "core_attention.2", "k_position", "", INPUT, 0, 0, 1, NULL},
    {"drop_op", "attention_merge", A0 "merge.1", "", "", false, 1, 0, 1, "operation"},
    {"drop_op", "add", A0 "ring.2.add_dv", "", "", false, 2, 1, 1, "operation"},
    {"repeat_op", "send", A0 "ring.3.send_dk", "", "", false, 0, 0, 0, "operation"},
    {"late_op", "attention_merge", A0 "merge.1", "", "", false, 2, 1, 0, "order"},
};

/* Documents packed in rows, on ranks that share the sequence over cp, and over tp. */
static const fault packed_keys[] = {
    {"shift", "rope_fwd", A0 "rope_q", "position", "", INPUT, 3, 1, 0, NULL},
    {"shift", "attention_fwd", A0 "core_attention", "first_key", "", INPUT, 0, 1, 0, NULL},
    {"value", "attention_bwd", A0 "core_attention", "first_key", "", INPUT, 3, 0, 1, NULL},
    {"rewire", "rope_fwd", L1 "self_attention.rope_k", "position", "document_start", INPUT, 1, 1, 1, NULL},
    {"rewire", "rope_bwd", A0 "rope_k", "position", "query_position_ids", INPUT, 2, 1, 1, NULL},
    {"rewire", "attention_fwd", A0 "core_attention", "q_position", "position_ids", INPUT, 0, 0, 0, NULL},
    {"rewire", "attention_fwd", L1 "self_attention.core_attention", "first_key", "query_position_ids", INPUT,
     3, 0, 0, NULL},
    {"rewire", "attention_bwd", L1 "self_attention.core_attention", "first_key", "", INPUT, 2, 0, 1, NULL},
    {"shift", "attention_fwd", A0 "core_attention", "q_position", "", INPUT, 1, 0, 0, NULL},
};

static const fault packed_heads[] = {
    {"shift", "attention_fwd", A0 "core_attention", "first_key", "", INPUT, 1, 0, 1, NULL},
    {"value", "attention_bwd", L1 "self_attention.core_attention", "first_key", "", INPUT, 0, 1, 0, NULL},
    {"rewire", "attention_fwd", A0 "core_attention", "q_position", "position_ids", INPUT, 1, 1, 1, NULL},
};

static const fault packed_ring[] = {
    {"shift", "attention_fwd", A0 "core_attention.0", "first_key", "", INPUT, 2, 0, 1, NULL},
    {"shift", "attention_fwd", A0 "core_attention.2", "first_key", "", INPUT, 1, 1, 0, NULL},
    {"rewire", "attention_bwd", A0 "core_attention.1", "first_key", "", INPUT, 0, 1, 1, NULL},
    {"rewire", "attention_bwd", A0 "core_attention.1", "k_position", "position_ids", INPUT, 0, 0, 1, NULL},
};

static void expect_all(const char *layout, assay_precision precision, const fault *faults, size_t n)
{
    expect_faults(plan_model, layout, precision, 0.0, ASSAY_DISPATCHER_ALLTOALL, faults, n);
}

Test(parity_plan_context, gathered_keys_fp32)
{
    expect_all("tp2,sp,cp2", ASSAY_PRECISION_FP32, TABLE(gathered_keys));
}

Test(parity_plan_context, gathered_keys_bf16)
{
    expect_all("tp2,sp,cp2", ASSAY_PRECISION_BF16, TABLE(gathered_keys));
}

Test(parity_plan_context, dealt_heads_fp32)
{
    expect_all("cp2,a2a", ASSAY_PRECISION_FP32, TABLE(dealt_heads));
}

Test(parity_plan_context, dealt_heads_bf16)
{
    expect_all("cp2,a2a", ASSAY_PRECISION_BF16, TABLE(dealt_heads));
}

Test(parity_plan_context, ring_fp32)
{
    expect_all("cp3,p2p", ASSAY_PRECISION_FP32, TABLE(ring));
}

Test(parity_plan_context, ring_bf16)
{
    expect_all("cp3,p2p", ASSAY_PRECISION_BF16, TABLE(ring));
}

Test(parity_plan_context, packed_documents_fp32)
{
    expect_all("tp2,sp,cp2 packed", ASSAY_PRECISION_FP32, TABLE(packed_keys));
    expect_all("cp2,a2a packed", ASSAY_PRECISION_FP32, TABLE(packed_heads));
    expect_all("cp3,p2p packed", ASSAY_PRECISION_FP32, TABLE(packed_ring));
}

Test(parity_plan_context, packed_documents_bf16)
{
    expect_all("tp2,sp,cp2 packed", ASSAY_PRECISION_BF16, TABLE(packed_keys));
    expect_all("cp2,a2a packed", ASSAY_PRECISION_BF16, TABLE(packed_heads));
    expect_all("cp3,p2p packed", ASSAY_PRECISION_BF16, TABLE(packed_ring));
}

/* The engine itself takes other documents than the file has: positions go on through the row, attention sees the document
 * before, on every rank or in one step of a ring alone, or the stages of a pipeline keep those of another microbatch. */
static void expect_documents(assay_precision precision)
{
    static const struct {
        const char *layout, *planted, *op, *instance, *item;
    } rows[] = {
        {"1 packed", "positions_not_reset", "rope_fwd", A0 "rope_q", "position"},
        {"cp2 packed", "positions_not_reset", "rope_fwd", A0 "rope_q", "position"},
        {"cp2 packed", "documents_not_masked", "attention_fwd", A0 "core_attention", "first_key"},
        {"cp2,a2a packed", "documents_not_masked", "attention_fwd", A0 "core_attention", "first_key"},
        {"cp2 packed", "leaf:document_start:order", "attention_fwd", A0 "core_attention", "first_key"},
        {"tp2 packed", "shifted_documents", "attention_fwd", A0 "core_attention", "first_key"},
        {"cp2,p2p packed", "drop:" A0 "core_attention.1:first_key,phase=forward", "attention_fwd",
         A0 "core_attention.1", "first_key"},
        {"pp2 packed", "input:" L1 "self_attention.core_attention:first_key@microbatch-1,op=attention_fwd",
         "attention_fwd", L1 "self_attention.core_attention", "first_key"},
        {"dp2 packed", "leaf:position_ids:shift", "rope_fwd", A0 "rope_q", "position"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        plan_cell c;
        plan_cell_run(&c, plan_model, rows[i].layout, precision, rows[i].planted);
        parity_report *r = plan_judge(&c, c.trace);
        const parity_claim *f = first_failure(r);
        cr_assert(f != NULL, "%s: %s: not caught", rows[i].layout, rows[i].planted);
        cr_expect(strcmp(f->op, rows[i].op) == 0 && strcmp(f->instance, rows[i].instance) == 0 &&
                      strcmp(f->tensor, rows[i].item) == 0,
                  "%s: %s: named at %s %s %s: %s", rows[i].layout, rows[i].planted, f->op, f->instance,
                  f->tensor, f->message);
        parity_report_destroy(r);
        plan_cell_free(&c);
    }
}

Test(parity_plan_context, documents_of_the_engine_fp32)
{
    expect_documents(ASSAY_PRECISION_FP32);
}

Test(parity_plan_context, documents_of_the_engine_bf16)
{
    expect_documents(ASSAY_PRECISION_BF16);
}

/* The engine itself gives the tokens positions, or the keys of attention, as if cp cut the sequence in plain order. */
static void expect_plain_order(assay_precision precision)
{
    static const char *const planted[][3] = {{"plain_positions", "rope_fwd", "position"},
                                             {"plain_keys", "attention_fwd", "k_position"}};
    for (int i = 0; i < 2; i++) {
        plan_cell c;
        plan_cell_run(&c, plan_model, "cp2", precision, planted[i][0]);
        parity_report *r = plan_judge(&c, c.trace);
        const parity_claim *f = first_failure(r);
        cr_assert(f != NULL, "%s: not caught", planted[i][0]);
        cr_expect(strcmp(f->op, planted[i][1]) == 0 && strcmp(f->tensor, planted[i][2]) == 0,
                  "%s: named at %s %s %s: %s", planted[i][0], f->op, f->instance, f->tensor, f->message);
        parity_report_destroy(r);
        plan_cell_free(&c);
    }
}

Test(parity_plan_context, positions_of_a_plain_cut_fp32)
{
    expect_plain_order(ASSAY_PRECISION_FP32);
}

Test(parity_plan_context, positions_of_a_plain_cut_bf16)
{
    expect_plain_order(ASSAY_PRECISION_BF16);
}
