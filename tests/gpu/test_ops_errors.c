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
    gpu_ctx x;
    open_ctx(&x);
    const gpu_tensor none = gpu_tensor_none();
    refused(gpu_linear_fwd(&x, f32(3, 4), f32(3, 5), f32(4, 6), none, x.stream, NULL), ASSAY_INVALID_ARGUMENT,
            "linear_fwd: x: expected shape [3,6]", "found [3,5]");
    refused(gpu_linear_fwd(&x, f32(3, 5), f32(3, 6), f32(4, 6), none, x.stream, NULL), ASSAY_INVALID_ARGUMENT,
            "y: expected shape [3,4]", "found [3,5]");
    refused(gpu_linear_fwd(&x, f32(3, 4), b16(3, 6), f32(4, 6), none, x.stream, NULL), ASSAY_INVALID_ARGUMENT,
            "x: expected dtype F32 as weight has", "found BF16");
    refused(gpu_linear_fwd(&x, f32(3, 4), f32(3, 6), f32(4, 6), f32(1, 5), x.stream, NULL),
            ASSAY_INVALID_ARGUMENT, "bias: expected 4 elements", "found 5");
    refused(gpu_linear_fwd(&x, f32(3, 4), f32(3, 6), i64(4, 6), none, x.stream, NULL), ASSAY_INVALID_ARGUMENT,
            "weight: expected dtype F32 or BF16", "found I64");
    refused(gpu_linear_fwd(&x, f32(3, 4), f32(3, 6), none, none, x.stream, NULL), ASSAY_INVALID_ARGUMENT,
            "weight: expected a tensor", "none");
    refused(gpu_linear_bwd_weight(&x, b16(4, 6), f32(3, 4), f32(3, 6), x.stream, NULL),
            ASSAY_INVALID_ARGUMENT, "dweight: expected dtype F32", "found BF16");
    const int64_t shape[3] = {2, 4, 6}, wrong[2] = {1, 1}, negative[2] = {4, -1};
    const gpu_tensor w = gpu_tensor_make(scratch, ASSAY_F32, 3, shape);
    refused(gpu_grouped_linear_fwd(&x, f32(3, 4), f32(3, 6), w, wrong, x.stream, NULL),
            ASSAY_INVALID_ARGUMENT, "tokens_per_expert: expected a sum of 3 rows", "found 2");
    refused(gpu_grouped_linear_fwd(&x, f32(3, 4), f32(3, 6), w, negative, x.stream, NULL),
            ASSAY_INVALID_ARGUMENT, "tokens_per_expert[1]", "found -1");
    gpu_ctx_destroy(&x);
}

Test(gpu_errors, tensors_must_be_aligned_contiguous_and_present)
{
    gpu_ctx x;
    open_ctx(&x);
    gpu_tensor t = f32(2, 3);
    t.data = (char *)scratch + 2;
    refused(gpu_add(&x, f32(2, 3), t, f32(2, 3), x.stream, NULL), ASSAY_INVALID_ARGUMENT,
            "add: a: expected an address aligned to 4 bytes", "found");
    t = f32(2, 3);
    t.stride[0] = 4;
    refused(gpu_add(&x, f32(2, 3), t, f32(2, 3), x.stream, NULL), ASSAY_INVALID_ARGUMENT,
            "expected a contiguous tensor", "found 4");
    t = f32(2, 3);
    t.data = NULL;
    refused(gpu_add(&x, f32(2, 3), t, f32(2, 3), x.stream, NULL), ASSAY_INVALID_ARGUMENT, "a: expected data",
            "NULL");
    t = f32(2, 3);
    t.shape[0] = -2;
    refused(gpu_add(&x, f32(2, 3), t, f32(2, 3), x.stream, NULL), ASSAY_INVALID_ARGUMENT, "a: shape [-2,3]",
            "negative or too large");
    t = f32((int64_t)1 << 40, (int64_t)1 << 40);
    refused(gpu_add(&x, t, t, t, x.stream, NULL), ASSAY_INVALID_ARGUMENT, "too large", "add: a");
    gpu_ctx_destroy(&x);
}

Test(gpu_errors, attention_checks_sizes_positions_and_workspace)
{
    gpu_ctx x;
    open_ctx(&x);
    gpu_attention_desc d = {.batch = 1,
                            .seq_q = 2,
                            .seq_k = 2,
                            .heads = 4,
                            .groups = 2,
                            .head_dim = 8,
                            .head_dim_v = 8,
                            .scale = 1,
                            .q_position = i64(1, 2),
                            .k_position = i64(1, 2)};
    const gpu_tensor q = f32(2, 32), k = f32(2, 16), lse = f32(2, 4);
    d.groups = 3;
    refused(gpu_attention_fwd(&x, q, lse, q, k, k, &d, x.stream, NULL), ASSAY_INVALID_ARGUMENT,
            "heads: expected a positive multiple of groups 3", "found 4");
    d.groups = 2;
    d.head_dim = 257;
    refused(gpu_attention_fwd(&x, q, lse, q, k, k, &d, x.stream, NULL), ASSAY_UNSUPPORTED,
            "head_dim: expected at most 256", "257");
    d.head_dim = 8;
    d.q_position = i64(1, 3);
    refused(gpu_attention_fwd(&x, q, lse, q, k, k, &d, x.stream, NULL), ASSAY_INVALID_ARGUMENT,
            "q_position: expected 2 elements", "found 3");
    d.q_position = i64(1, 2);
    x.workspace_bytes = 16;
    refused(gpu_attention_bwd(&x, q, k, k, q, q, k, k, q, lse, &d, x.stream, NULL), ASSAY_LIMIT,
            "attention_bwd: expected a workspace of at least 32 bytes", "found 16");
    gpu_ctx_destroy(&x);
}

Test(gpu_errors, router_checks_topk_groups_and_limits)
{
    gpu_ctx x;
    open_ctx(&x);
    gpu_router_desc d = {.topk = 9, .score_function = 0, .scaling_factor = 1};
    const gpu_tensor none = gpu_tensor_none();
    refused(gpu_router_fwd(&x, i64(2, 9), f32(2, 9), f32(2, 8), f32(2, 8), none, &d, x.stream, NULL),
            ASSAY_INVALID_ARGUMENT, "topk: expected 1 to 8", "found 9");
    d.topk = 2;
    d.num_groups = 3;
    d.group_topk = 1;
    refused(gpu_router_fwd(&x, i64(2, 2), f32(2, 2), f32(2, 8), f32(2, 8), none, &d, x.stream, NULL),
            ASSAY_INVALID_ARGUMENT, "num_groups: expected a divisor of 8", "found 3");
    d.num_groups = 0;
    refused(gpu_router_fwd(&x, i64(2, 2), f32(2, 2), f32(2, 600), f32(2, 600), none, &d, x.stream, NULL),
            ASSAY_UNSUPPORTED, "at most 512 experts", "found 600");
    refused(gpu_router_fwd(&x, i64(2, 2), f32(2, 2), f32(2, 8), f32(2, 8), f32(1, 8), &d, x.stream, NULL),
            ASSAY_INVALID_ARGUMENT, "expert_bias: expected none with score_function softmax", "found one");
    d.score_function = 7;
    refused(gpu_router_fwd(&x, i64(2, 2), f32(2, 2), f32(2, 8), f32(2, 8), none, &d, x.stream, NULL),
            ASSAY_UNSUPPORTED, "score_function: expected softmax or sigmoid", "7");
    gpu_ctx_destroy(&x);
}

Test(gpu_errors, adamw_and_rope_check_their_numbers)
{
    gpu_ctx x;
    open_ctx(&x);
    const gpu_tensor t = f32(1, 4), none = gpu_tensor_none();
    gpu_adamw_desc d = {1e-3, 0.9, 0.95, 1e-8, 0, 1, 0};
    refused(gpu_adamw(&x, 1, &t, &t, &t, &none, &t, &d, x.stream, NULL), ASSAY_INVALID_ARGUMENT,
            "adamw: step: expected 1 or more", "found 0");
    d.step = 1;
    d.beta2 = 1;
    refused(gpu_adamw(&x, 1, &t, &t, &t, &none, &t, &d, x.stream, NULL), ASSAY_INVALID_ARGUMENT, "beta2",
            "found 0.9 and 1");
    const gpu_rope_desc r = {.type = 0, .rotary_dim = 3, .base = 1e4};
    refused(gpu_rope_table(&x, f32(4, 1), f32(4, 1), &r, x.stream, NULL), ASSAY_INVALID_ARGUMENT,
            "rotary_dim: expected an even number", "found 3");
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
            "rmsnorm, attention");
    refused(gpu_ctx_set_variants(&x, "linear=k7"), ASSAY_INVALID_ARGUMENT, "unknown variant 'k7'", "k0..k1");
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
