/* Refusals of the operations (status and message), gpu_execute's checks, variants, arenas, declarations. */
#include "tests/support/gpu_ops.h"

/* The call failed with that status, and the message holds both words. */
static void refused(assay_status got, assay_status want, const char *a, const char *b)
{
    const char *m = assay_error_message();
    cr_assert_eq(got, want, "expected %s, found %s: %s", assay_status_name(want), assay_status_name(got), m);
    cr_assert(strstr(m, a) && strstr(m, b), "expected '%s' and '%s' in: %s", a, b, m);
}

static float scratch[4096]; /* never touched: arguments are checked before the first CUDA call */

static gpu_tensor f32(int64_t rows, int64_t cols)
{
    return gpu_tensor_2d(scratch, ASSAY_F32, rows, cols);
}
static gpu_tensor i64(int64_t rows, int64_t cols)
{
    return gpu_tensor_2d(scratch, ASSAY_I64, rows, cols);
}
static gpu_tensor b16(int64_t rows, int64_t cols)
{
    return gpu_tensor_2d(scratch, ASSAY_BF16, rows, cols);
}

Test(gpu_errors, linear_names_operand_expected_and_found)
{
    const int64_t shape[3] = {2, 4, 6}, wrong[2] = {1, 1}, negative[2] = {4, -1};
    const gpu_tensor experts = gpu_tensor_make(scratch, ASSAY_F32, 3, shape), none = gpu_tensor_none();
    const struct {
        const char *op, *a, *b;
        raw_operand in[5];
    } rows[] = {
        {"linear_fwd",
         "linear_fwd: x: expected shape [3,6]",
         "found [3,5]",
         {RAW_T("y", f32(3, 4)), RAW_T("x", f32(3, 5)), RAW_T("weight", f32(4, 6))}},
        {"linear_fwd",
         "y: expected shape [3,4]",
         "found [3,5]",
         {RAW_T("y", f32(3, 5)), RAW_T("x", f32(3, 6)), RAW_T("weight", f32(4, 6))}},
        {"linear_fwd",
         "x: expected dtype F32 as weight has",
         "found BF16",
         {RAW_T("y", f32(3, 4)), RAW_T("x", b16(3, 6)), RAW_T("weight", f32(4, 6))}},
        {"linear_fwd",
         "bias: expected 4 elements",
         "found 5",
         {RAW_T("y", f32(3, 4)), RAW_T("x", f32(3, 6)), RAW_T("weight", f32(4, 6)),
          RAW_T("bias", f32(1, 5))}},
        {"linear_fwd",
         "weight: expected dtype F32 or BF16",
         "found I64",
         {RAW_T("y", f32(3, 4)), RAW_T("x", f32(3, 6)), RAW_T("weight", i64(4, 6))}},
        {"linear_fwd",
         "weight: expected a tensor",
         "none",
         {RAW_T("y", f32(3, 4)), RAW_T("x", f32(3, 6)), RAW_T("weight", none)}},
        {"linear_bwd_weight",
         "dweight: expected dtype F32",
         "found BF16",
         {RAW_T("dweight", b16(4, 6)), RAW_T("dy", f32(3, 4)), RAW_T("x", f32(3, 6))}},
        {"grouped_linear_fwd",
         "tokens_per_expert: expected a sum of 3 rows",
         "found 2",
         {RAW_T("y", f32(3, 4)), RAW_T("x", f32(3, 6)), RAW_T("weight", experts),
          RAW_T("tokens_per_expert", i64(1, 2), .host = wrong)}},
        {"grouped_linear_fwd",
         "tokens_per_expert[1]",
         "found -1",
         {RAW_T("y", f32(3, 4)), RAW_T("x", f32(3, 6)), RAW_T("weight", experts),
          RAW_T("tokens_per_expert", i64(1, 2), .host = negative)}},
    };
    gpu_ctx x;
    open_ctx(&x);
    for (int k = 0; k < 2; ++k) {
        set_variants(&x, k == 0 ? "linear=k0" : "linear=k1");
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i)
            refused(raw_run(&x, rows[i].op, rows[i].in), ASSAY_INVALID_ARGUMENT, rows[i].a, rows[i].b);
    }
    gpu_ctx_destroy(&x);
}

Test(gpu_errors, tensors_must_be_aligned_contiguous_and_present)
{
    gpu_tensor odd = f32(2, 3), strided = f32(2, 3), empty = f32(2, 3), negative = f32(2, 3);
    const gpu_tensor large = f32((int64_t)1 << 40, (int64_t)1 << 40);
    odd.data = (char *)scratch + 2;
    strided.stride[0] = 4;
    empty.data = NULL;
    negative.shape[0] = -2;
    const struct {
        gpu_tensor a;
        const char *first, *second;
    } rows[] = {
        {odd, "add: a: expected an address aligned to 4 bytes", "found"},
        {strided, "expected a contiguous tensor", "found 4"},
        {empty, "a: expected data", "NULL"},
        {negative, "a: shape [-2,3]", "negative or too large"},
        {large, "too large", "add: a"},
    };
    gpu_ctx x;
    open_ctx(&x);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i)
        refused(RAW(&x, "add", RAW_T("y", f32(2, 3)), RAW_T("a", rows[i].a), RAW_T("b", f32(2, 3))),
                ASSAY_INVALID_ARGUMENT, rows[i].first, rows[i].second);
    gpu_ctx_destroy(&x);
}

Test(gpu_errors, attention_checks_sizes_positions_and_workspace)
{
    const gpu_tensor q = f32(2, 32), k = f32(2, 16), lse = f32(2, 4);
    const struct {
        double groups, head_dim;
        int64_t positions;
        const char *op;
        assay_status st;
        const char *a, *b;
    } rows[] = {
        {3, 8, 2, "attention_fwd", ASSAY_INVALID_ARGUMENT, "heads: expected a positive multiple of groups 3",
         "found 4"},
        {2, 257, 2, "attention_fwd", ASSAY_UNSUPPORTED, "head_dim: expected at most 256", "257"},
        {2, 8, 3, "attention_fwd", ASSAY_INVALID_ARGUMENT, "q_position: expected 2 elements", "found 3"},
        {2, 8, 2, "attention_bwd", ASSAY_LIMIT, "attention_bwd: expected a workspace of at least 32 bytes",
         "found 16"},
    };
    gpu_ctx x;
    open_ctx(&x);
    x.workspace_bytes = 16;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i)
        refused(RAW(&x, rows[i].op, {"batch", .number = 1}, {"seq_q", .number = 2}, {"seq_k", .number = 2},
                    {"heads", .number = 4}, {"groups", .number = rows[i].groups},
                    {"head_dim", .number = rows[i].head_dim}, {"scale", .number = 1},
                    RAW_T("q_position", i64(1, rows[i].positions)), RAW_T("k_position", i64(1, 2)),
                    RAW_T("q", q), RAW_T("k", k), RAW_T("v", k), RAW_T("o", q), RAW_T("lse", lse),
                    RAW_T("do", q), RAW_T("dq", q), RAW_T("dk", k), RAW_T("dv", k)),
                rows[i].st, rows[i].a, rows[i].b);
    gpu_ctx_destroy(&x);
}

Test(gpu_errors, dropout_checks_its_share_and_tokens)
{
    const gpu_tensor q = f32(2, 32), k = f32(2, 16), lse = f32(2, 4), pos = i64(1, 2);
    const double wrong[] = {1.0, -0.25};
    gpu_ctx x;
    open_ctx(&x);
    for (int i = 0; i < 2; ++i) {
        refused(RAW(&x, "dropout_fwd", {"p", .number = wrong[i]}, RAW_T("x", q), RAW_T("token", pos),
                    RAW_T("y", q)),
                ASSAY_INVALID_ARGUMENT, "dropout_fwd: p: expected 0 or more and less than 1", "found");
        refused(RAW(&x, "attention_fwd", {"batch", .number = 1}, {"seq_q", .number = 2},
                    {"seq_k", .number = 2}, {"heads", .number = 4}, {"groups", .number = 2},
                    {"head_dim", .number = 8}, {"scale", .number = 1}, {"dropout_p", .number = wrong[i]},
                    RAW_T("q_position", pos), RAW_T("k_position", pos), RAW_T("q", q), RAW_T("k", k),
                    RAW_T("v", k), RAW_T("o", q), RAW_T("lse", lse)),
                ASSAY_INVALID_ARGUMENT, "attention_fwd: dropout_p: expected 0 or more and less than 1",
                "found");
    }
    refused(RAW(&x, "dropout_bwd", {"p", .number = 0.5}, RAW_T("dy", f32(2, 32)), RAW_T("token", i64(1, 3)),
                RAW_T("dx", f32(2, 32))),
            ASSAY_INVALID_ARGUMENT, "token: expected one for each row of dy", "found 3 for 64");
    gpu_ctx_destroy(&x);
}

Test(gpu_errors, router_checks_topk_groups_and_limits)
{
    const gpu_tensor none = gpu_tensor_none(), bias = f32(1, 8);
    const struct {
        double topk, groups;
        int64_t experts;
        gpu_tensor bias;
        const char *function;
        assay_status st;
        const char *a, *b;
    } rows[] = {
        {9, 0, 8, none, "softmax", ASSAY_INVALID_ARGUMENT, "topk: expected 1 to 8", "found 9"},
        {2, 3, 8, none, "softmax", ASSAY_INVALID_ARGUMENT, "num_groups: expected a divisor of 8", "found 3"},
        {2, 0, 600, none, "softmax", ASSAY_UNSUPPORTED, "at most 512 experts", "found 600"},
        {2, 0, 8, bias, "softmax", ASSAY_INVALID_ARGUMENT,
         "expert_bias: expected none with score_function softmax", "found one"},
        {2, 0, 8, none, "tanh", ASSAY_UNSUPPORTED, "score_function: expected softmax or sigmoid", "-1"},
    };
    gpu_ctx x;
    open_ctx(&x);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        const gpu_tensor choice = i64(2, (int64_t)rows[i].topk), row = f32(2, rows[i].experts);
        refused(RAW(&x, "router_fwd", {"topk", .number = rows[i].topk},
                    {"score_function", .word = rows[i].function}, {"num_groups", .number = rows[i].groups},
                    {"group_topk", .number = 1}, RAW_T("indices", choice),
                    RAW_T("probs", f32(2, (int64_t)rows[i].topk)), RAW_T("scores", row), RAW_T("logits", row),
                    RAW_T("expert_bias", rows[i].bias)),
                rows[i].st, rows[i].a, rows[i].b);
    }
    gpu_ctx_destroy(&x);
}

Test(gpu_errors, adamw_and_rope_check_their_numbers)
{
    const gpu_tensor t = f32(1, 4);
    gpu_ctx x;
    open_ctx(&x);
    for (int i = 0; i < 2; ++i)
        refused(RAW(&x, "adamw", RAW_T("main_param", t), RAW_T("exp_avg", t), RAW_T("exp_avg_sq", t),
                    RAW_T("grad", t), {"lr", .number = 1e-3}, {"beta1", .number = 0.9},
                    {"beta2", .number = i == 0 ? 0.95 : 1.0}, {"eps", .number = 1e-8},
                    {"weight_decay", .number = 0}, {"step", .number = i}),
                ASSAY_INVALID_ARGUMENT, i == 0 ? "adamw: step: expected 1 or more" : "beta2",
                i == 0 ? "found 0" : "found 0.9 and 1");
    refused(RAW(&x, "rope_table", {"rotary_dim", .number = 3}, {"rotary_base", .number = 1e4},
                RAW_T("cos", f32(4, 1)), RAW_T("sin", f32(4, 1))),
            ASSAY_INVALID_ARGUMENT, "rotary_dim: expected an even number", "found 3");
    gpu_ctx_destroy(&x);
}

static assay_status execute(op_call *c, const char *op)
{
    return gpu_execute(c->ctx, op, c->attrs, ASSAY_F32, c->in, c->n_in, c->out, &c->n_out, NULL);
}

Test(gpu_execute, refuses_unknown_operations_slots_attributes_and_indices)
{
    gpu_ctx x;
    open_ctx(&x);
    op_call c;
    call_begin(&c, &x, 1);
    refused(execute(&c, "soft_max"), ASSAY_NOT_FOUND, "operation soft_max", "unknown");
    cr_assert(gpu_execute_knows("adamw") && !gpu_execute_knows("all_reduce"));
    put(&c, "a", ASSAY_F32, 0, 1, 1, (int64_t)3);
    refused(execute(&c, "add"), ASSAY_INVALID_ARGUMENT, "add: slot b: expected a tensor", "none");
    put(&c, "b", ASSAY_F32, 0, 1, 1, (int64_t)3);
    put(&c, "c", ASSAY_F32, 0, 1, 1, (int64_t)3);
    refused(execute(&c, "add"), ASSAY_INVALID_ARGUMENT, "the operation has no input slot", "c");
    call_end(&c);
    call_begin(&c, &x, 1);
    put(&c, "x", ASSAY_F32, 0, 1, 2, (int64_t)3, (int64_t)4);
    put(&c, "index", ASSAY_I64, 3, 4, 1, (int64_t)2);
    refused(execute(&c, "gather_rows"), ASSAY_INVALID_ARGUMENT, "index[0]: expected an index in [0,3)",
            "found 3");
    call_end(&c);
    call_begin(&c, &x, 1);
    put(&c, "x", ASSAY_F32, 0, 1, 2, (int64_t)3, (int64_t)4);
    put(&c, "gamma", ASSAY_F32, 0, 1, 1, (int64_t)4);
    cr_assert_neq(execute(&c, "rmsnorm_fwd"), ASSAY_OK);
    cr_assert(strstr(assay_error_message(), "eps"), "%s", assay_error_message());
    cr_assert_eq(c.n_out, 0);
    call_end(&c);
    gpu_ctx_destroy(&x);
}

/* What `assay certify --engine` found: contradictions that the table refuses, behind the table. */
Test(gpu_errors, operands_that_contradict_each_other_behind_the_table)
{
    static const int64_t counts[2] = {1, 2};
    const int64_t shape[3] = {2, 4, 6}, negative[2] = {-1, 4};
    const gpu_tensor experts = gpu_tensor_make(scratch, ASSAY_F32, 3, shape),
                     below = gpu_tensor_make(scratch, ASSAY_F32, 2, negative), none = gpu_tensor_none();
    gpu_tensor no_data = i64(1, 4);
    no_data.data = NULL;
    gpu_ctx x;
    open_ctx(&x);
    refused(RAW(&x, "grouped_linear_fwd", RAW_T("y", f32(3, 4)), RAW_T("x", f32(3, 6)),
                RAW_T("weight", experts), RAW_T("tokens_per_expert", none, .host = counts)),
            ASSAY_INVALID_ARGUMENT, "tokens_per_expert: expected a tensor", "none");
    refused(RAW(&x, "grouped_linear_fwd", RAW_T("y", f32(3, 4)), RAW_T("x", f32(3, 6)),
                RAW_T("weight", experts), RAW_T("tokens_per_expert", i64(1, 3), .host = counts)),
            ASSAY_INVALID_ARGUMENT, "tokens_per_expert: expected 2 elements", "found 3");
    refused(RAW(&x, "rmsnorm_fwd", RAW_T("y", f32(3, 4)), RAW_T("x", f32(3, 4)), RAW_T("rstd", f32(1, 3)),
                RAW_T("gamma", f32(1, 0)), {"eps", .number = 1e-6}),
            ASSAY_INVALID_ARGUMENT, "x: expected shape [3,0]", "found [3,4]");
    refused(RAW(&x, "rmsnorm_fwd", RAW_T("y", f32(3, 4)), RAW_T("x", below), RAW_T("rstd", f32(1, 3)),
                RAW_T("gamma", f32(1, 4)), {"eps", .number = 1e-6}),
            ASSAY_INVALID_ARGUMENT, "rmsnorm_fwd: x: shape [-1,4]", "negative");
    refused(RAW(&x, "slice_rows", RAW_T("y", f32(2, 5)), RAW_T("x", f32(4, 4)), {"start", .number = 1},
                {"length", .number = 2}),
            ASSAY_INVALID_ARGUMENT, "y: expected rows of 4 elements", "found 5");
    refused(RAW(&x, "slice_rows", RAW_T("y", f32(3, 4)), RAW_T("x", f32(4, 4)), {"start", .number = 1},
                {"length", .number = 2}),
            ASSAY_INVALID_ARGUMENT, "y: expected 2 rows", "found 3");
    refused(RAW(&x, "slice_rows", RAW_T("y", none), RAW_T("x", f32(4, 4)), {"start", .number = 1},
                {"length", .number = 2}),
            ASSAY_INVALID_ARGUMENT, "y: expected a tensor", "none");
    refused(RAW(&x, "running_counts", RAW_T("tokens_per_expert", i64(1, 4)), RAW_T("total", i64(1, 4)),
                RAW_T("previous", no_data)),
            ASSAY_INVALID_ARGUMENT, "previous: expected data", "NULL");
    refused(RAW(&x, "router_drop", RAW_T("all_indices", i64(3, 2)), RAW_T("token", i64(1, 3)),
                RAW_T("routed", i64(3, 2)), RAW_T("tokens_per_expert", i64(1, 5)), {"experts", .number = 4},
                {"length", .number = 3}),
            ASSAY_INVALID_ARGUMENT, "tokens_per_expert: expected 4 elements", "found 5");
    refused(RAW(&x, "permute_plan", RAW_T("indices", i64(3, 2)), RAW_T("row_token", i64(1, 6)),
                RAW_T("row_entry", i64(1, 6)), RAW_T("tokens_per_expert", i64(1, 5)),
                RAW_T("token_row", i64(3, 2)), {"experts", .number = 4}, {"rows", .number = 6},
                {"local_experts", .number = 4}),
            ASSAY_INVALID_ARGUMENT, "tokens_per_expert: expected 4 elements", "found 5");
    gpu_ctx_destroy(&x);
}

/* An updated slot without data was taken as one that holds NaN. */
Test(gpu_execute, an_updated_slot_needs_its_data)
{
    gpu_ctx x;
    open_ctx(&x);
    op_call c;
    call_begin(&c, &x, 1);
    put(&c, "dy", ASSAY_F32, 0, 1, 2, (int64_t)3, (int64_t)4);
    put(&c, "dbias_in", ASSAY_F32, 0, 1, 1, (int64_t)4);
    void *const data = c.in[1].data;
    c.in[1].data = NULL;
    refused(execute(&c, "linear_bwd_bias"), ASSAY_INVALID_ARGUMENT, "dbias_in", "no data");
    c.in[1].data = data;
    call_end(&c);
    gpu_ctx_destroy(&x);
}

/* Stands for an operation that begins to write and then refuses: its operand is broken and its output changed. */
static void write_and_break(void *user, gpu_ctx *ctx, gpu_operands *o)
{
    const char *slot = user;
    gpu_tensor *b = &o->slot[gpu_operands_index(o, "b")];
    const float one = 1.0f;
    b->shape[0]++;
    (void)cudaMemcpyAsync(gpu_operand(o, slot).data, &one, sizeof one, cudaMemcpyHostToDevice, ctx->stream);
    (void)cudaStreamSynchronize(ctx->stream);
}

Test(gpu_execute, a_refusal_behind_which_something_is_written_is_an_error_of_the_operation)
{
    char y[] = "y", a[] = "a";
    gpu_ctx x;
    open_ctx(&x);
    op_call c;
    call_begin(&c, &x, 1);
    put(&c, "a", ASSAY_F32, 0, 1, 1, (int64_t)3);
    put(&c, "b", ASSAY_F32, 0, 1, 1, (int64_t)3);
    for (int i = 0; i < 2; ++i) {
        const gpu_execute_form form = {.spoil = write_and_break, .user = i == 0 ? y : a};
        refused(gpu_execute_as(&x, "add", c.attrs, ASSAY_F32, c.in, c.n_in, &form, c.out, &c.n_out, NULL),
                ASSAY_INTERNAL,
                i == 0 ? "add wrote y although it refused" : "add wrote a although it refused", "(add: ");
        cr_assert_eq(c.n_out, 0);
    }
    call_end(&c);
    gpu_ctx_destroy(&x);
}

Test(gpu_execute, the_context_workspace_comes_back_and_outputs_are_all_written)
{
    gpu_ctx x;
    open_ctx(&x);
    void *const before = x.workspace;
    op_call c;
    call_begin(&c, &x, 1);
    put(&c, "x", ASSAY_F32, 0, 1, 1, (int64_t)100);
    run_op(&c, "sum", ASSAY_F32);
    cr_assert(result(&c, "y")[0] > 0);
    cr_assert_eq(x.workspace, before);
    cr_assert_eq(x.workspace_bytes, (size_t)1 << 20);
    call_end(&c);
    gpu_ctx_destroy(&x);
}

Test(gpu_ctx, variants_are_parsed_and_wrong_words_named)
{
    gpu_ctx x;
    open_ctx(&x);
    cr_assert(x.simulated);
    cr_assert_eq(gpu_ctx_set_variants(&x, "attention=k1,rmsnorm=k0"), ASSAY_OK);
    cr_assert_eq(x.variant[GPU_FAMILY_ATTENTION], 1);
    cr_assert_eq(x.variant[GPU_FAMILY_NORM], 0);
    cr_assert_eq(x.variant[GPU_FAMILY_LINEAR], -1);
    refused(gpu_ctx_set_variants(&x, "norm=k0"), ASSAY_INVALID_ARGUMENT, "unknown family 'norm'",
            "rmsnorm, residual_norm, qkv_rope, mla_rope, attention");
    refused(gpu_ctx_set_variants(&x, "linear=k7"), ASSAY_INVALID_ARGUMENT, "unknown variant 'k7'", "k0..k3");
    refused(gpu_ctx_set_variants(&x, "linear"), ASSAY_INVALID_ARGUMENT, "'linear'", "family=kN");
    gpu_ctx other;
    refused(gpu_ctx_init(&other, 99, 0), ASSAY_INVALID_ARGUMENT, "device 99", "expected one of 0..");
    gpu_ctx_destroy(&x);
}

Test(gpu_arena, deals_aligned_pieces_counts_and_names_what_is_missing)
{
    gpu_ctx x;
    open_ctx(&x);
    gpu_arena a, dry = {.counting = true};
    void *p = NULL, *q = NULL;
    cr_assert_eq(gpu_arena_take(&dry, 100, &p), ASSAY_OK);
    cr_assert_eq(gpu_arena_take(&dry, 300, &q), ASSAY_OK);
    cr_assert(p == NULL && dry.used == 768);
    cr_assert_eq(gpu_arena_create(&a, dry.used), ASSAY_OK);
    cr_assert_eq(gpu_arena_take(&a, 100, &p), ASSAY_OK);
    cr_assert_eq(gpu_arena_take(&a, 300, &q), ASSAY_OK);
    cr_assert_eq((char *)q - (char *)p, 256);
    refused(gpu_arena_take(&a, 1, &p), ASSAY_OUT_OF_MEMORY, "asked 1 bytes", "used 768 of capacity 768");
    gpu_arena_reset(&a, 256);
    cr_assert_eq(gpu_arena_take(&a, 512, &p), ASSAY_OK);
    cr_assert_eq(a.peak, (size_t)768);
    gpu_arena_destroy(&a);
    gpu_ctx_destroy(&x);
}

/* Every operation of the table runs on nothing: no row, no element. */
Test(gpu_execute, sizes_of_zero_succeed)
{
    gpu_ctx x;
    open_ctx(&x);
    for (int v = 0; v < 2; ++v) {
        op_call c;
        set_variants(&x, v == 0 ? "linear=k0,rmsnorm=k0,router=k0,elementwise=k0,adamw=k0"
                                : "linear=k1,rmsnorm=k1,router=k1,elementwise=k1,adamw=k1");
        call_begin(&c, &x, 1);
        put(&c, "x", ASSAY_BF16, 0, 1, 2, (int64_t)0, (int64_t)8);
        put(&c, "gamma", ASSAY_BF16, 0, 1, 1, (int64_t)8);
        attr_d(&c, "eps", 1e-6);
        run_op(&c, "rmsnorm_fwd", ASSAY_BF16);
        cr_assert_eq(c.n_out, 2);
        call_end(&c);
        call_begin(&c, &x, 1);
        put(&c, "logits", ASSAY_F32, 0, 1, 2, (int64_t)0, (int64_t)8);
        attr_i(&c, "topk", 2);
        run_op(&c, "router_aux_fwd", ASSAY_F32);
        for (int i = 0; i < 8; ++i)
            exact(&c, "tokens_per_expert", i, 0);
        exact(&c, "z_sum", 0, 0);
        call_end(&c);
    }
    gpu_ctx_destroy(&x);
}
