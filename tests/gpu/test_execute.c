/* gpu_execute's second run, without the outputs that a call need not have. */
#include "core/model/ops.h"
#include "tests/support/gpu_ops.h"

TestSuite(gpu_execute_again, .timeout = 120);

static bool may_stay_out(const assay_op_slot *row)
{
    return row->role == ASSAY_SLOT_OUT && row->optional && row->like == NULL;
}

/* The engine leaves out what a later part reads (gpu/call_fused.c): no other output of a fused operation is optional, so that one run
 * without all of them is the engine's. */
Test(gpu_execute_again, optional_outputs_of_fused_operations_are_those_that_a_later_part_reads)
{
    int found = 0;
    for (int i = 0; assay_op_at(i); i++) {
        const assay_op *op = assay_op_at(i);
        for (int s = 0; s < assay_op_n_slots(op) && assay_op_n_parts(op) > 0; s++) {
            bool read = false;
            for (int k = 1; k < assay_op_n_parts(op); k++) {
                const assay_op *part = assay_op_part_of(op, k);
                for (int p = 0; p < assay_op_n_slots(part); p++) {
                    char recorded[2 * ASSAY_SLOT_NAME];
                    snprintf(recorded, sizeof recorded, "%s%s", part->slots[p].name,
                             part->slots[p].role == ASSAY_SLOT_INOUT ? "_in" : "");
                    const char *whole =
                        part->slots[p].role == ASSAY_SLOT_OUT ? NULL : assay_op_part_slot(op, k, recorded);
                    read = read || (whole && strcmp(whole, op->slots[s].name) == 0);
                }
            }
            cr_expect(read || !may_stay_out(&op->slots[s]), "%s: %s", op->name, op->slots[s].name);
            found += may_stay_out(&op->slots[s]);
        }
    }
    cr_expect_eq(found, 17);
}

/* Stand for operations that break their law once an output is missing. */
static void another_eps(void *user, gpu_ctx *ctx, gpu_operands *o)
{
    (void)ctx;
    *(int *)user += 1;
    for (int i = 0; i < o->n_attrs; i++)
        if (strcmp(o->attr[i].name, "eps") == 0)
            o->attr[i].number = 0.25;
}
static void half_a_token(void *user, gpu_ctx *ctx, gpu_operands *o)
{
    (void)user;
    (void)ctx;
    o->slot[gpu_operands_index(o, "q")].shape[2]++;
}
static void lesser_device(void *user, gpu_ctx *ctx, gpu_operands *o)
{
    (void)user;
    (void)o;
    ctx->sm_major = 7;
}
static void past_the_end(void *user, gpu_ctx *ctx, gpu_operands *o)
{
    const gpu_tensor v = gpu_operand(o, "v");
    (void)user;
    (void)cudaMemsetAsync((char *)v.data + gpu_tensor_bytes(v), 0, 1, ctx->stream);
}
/* The outputs that may be missing are, the others are there and poisoned, and only what the rung needs is lent. */
static void look(void *user, gpu_ctx *ctx, gpu_operands *o)
{
    int *calls = user;
    ++*calls;
    cr_expect_eq(ctx->call_variant, 2, "the rung of the first run");
    for (int i = 0; i < assay_op_n_slots(o->op); i++) {
        const assay_op_slot *row = &o->op->slots[i];
        cr_expect_eq(o->slot[i].data == NULL, may_stay_out(row), "%s", row->name);
        cr_expect_eq(gpu_tensor_present(o->slot[i]), !may_stay_out(row), "%s", row->name);
    }
}

/* Heads of 16 behind a norm, all of which turn. */
static void heads(op_call *c, gpu_ctx *ctx)
{
    static const int64_t T = 3, D = 16, h = 8;
    call_begin(c, ctx, 1);
    put(c, "q_gamma", ASSAY_F32, 0.5, 1, 1, D);
    put(c, "k_gamma", ASSAY_F32, 0.5, 1, 1, D);
    put(c, "qkv", ASSAY_F32, -1, 1, 2, T, 4 * D);
    put(c, "cos", ASSAY_F32, -1, 1, 2, T, h);
    put(c, "sin", ASSAY_F32, -1, 1, 2, T, h);
    put(c, "position", ASSAY_I64, 0, (double)T, 1, T);
    attr_i(c, "heads", 2);
    attr_i(c, "groups", 1);
    attr_i(c, "head_dim", D);
    attr_d(c, "eps", 1e-6);
}

static assay_status run_heads(op_call *c, const gpu_execute_form *form)
{
    return gpu_execute_as(c->ctx, "qkv_norm_rope_fwd", c->attrs, ASSAY_F32, c->in, c->n_in, form, c->out,
                          &c->n_out, &c->declared);
}

Test(gpu_execute_again, an_operation_that_needs_what_may_be_left_out_is_named)
{
    int calls = 0;
    const struct {
        void (*breaks)(void *user, gpu_ctx *ctx, gpu_operands *o);
        const char *words[3];
    } rows[] = {
        {another_eps,
         {"qkv_norm_rope_fwd k1: q_rstd[0]: expected the bits", "found 0x",
          "where the call leaves out q_norm, k_norm"}},
        {half_a_token,
         {"qkv_norm_rope_fwd k1 refuses the call without q_norm, k_norm", "(qkv_norm_rope_fwd: ", "q: "}},
        {lesser_device, {"qkv_norm_rope_fwd k1: k0 runs where the call leaves out q_norm, k_norm", "", ""}},
        {past_the_end,
         {"qkv_norm_rope_fwd k1 without q_norm, k_norm", "wrote past the end of v", "byte 0 behind it"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gpu_ctx x;
        op_call c;
        open_ctx(&x);
        void *const workspace = x.workspace;
        heads(&c, &x);
        const gpu_execute_form form = {.spoil_again = rows[i].breaks, .user = &calls};
        cr_expect_eq(run_heads(&c, &form), ASSAY_INTERNAL, "row %zu", i);
        for (int w = 0; w < 3; w++)
            cr_expect_not_null(strstr(assay_error_message(), rows[i].words[w]), "row %zu: %s", i,
                               assay_error_message());
        assay_error_clear();
        cr_expect_eq(c.n_out, 0);
        cr_expect(x.workspace == workspace && x.call_variant == 0, "row %zu: the context is as it was", i);
        call_end(&c);
        gpu_ctx_destroy(&x);
    }
    cr_expect_eq(calls, 1);
}

Test(gpu_execute_again, what_is_returned_is_of_the_first_run)
{
    static const char *const slots[] = {"q_raw",  "k_raw", "q_norm", "k_norm", "q_rstd",
                                        "k_rstd", "q",     "k",      "v"};
    int calls = 0;
    gpu_ctx x;
    op_call c;
    open_ctx(&x);
    heads(&c, &x);
    const gpu_execute_form form = {.spoil_again = look, .user = &calls};
    cr_assert_eq(run_heads(&c, &form), ASSAY_OK, "%s", assay_error_message());
    cr_expect_eq(calls, 1);
    cr_assert_eq(c.n_out, 9);
    for (int i = 0; i < 9; i++)
        cr_expect_str_eq(c.out[i].slot, slots[i]);
    cr_expect_not_null(assay_declaration_of(&c.declared.arith, "q_norm"));
    call_end(&c);
    gpu_ctx_destroy(&x);
}

/* A timed run, one with broken operands, and an operation without such outputs run once. */
static assay_status run_once(void *user, gpu_ctx *ctx, gpu_operands *o, int *variant)
{
    (void)user;
    return gpu_ladder_run(ctx, o, 1, ctx->stream, variant);
}
static void nothing(void *user, gpu_ctx *ctx, gpu_operands *o)
{
    (void)user;
    (void)ctx;
    (void)o;
}
Test(gpu_execute_again, other_forms_run_once)
{
    int calls = 0;
    const gpu_execute_form forms[] = {{.run = run_once, .spoil_again = look, .user = &calls},
                                      {.spoil = nothing, .spoil_again = look, .user = &calls}};
    gpu_ctx x;
    open_ctx(&x);
    for (int i = 0; i < 2; i++) {
        op_call c;
        heads(&c, &x);
        cr_expect_eq(run_heads(&c, &forms[i]), ASSAY_OK, "%s", assay_error_message());
        call_end(&c);
    }
    op_call c;
    call_begin(&c, &x, 1);
    put(&c, "x", ASSAY_F32, -1, 1, 1, (int64_t)9);
    const gpu_execute_form form = {.spoil_again = look, .user = &calls};
    cr_expect_eq(gpu_execute_as(&x, "sum", c.attrs, ASSAY_F32, c.in, c.n_in, &form, c.out, &c.n_out, NULL),
                 ASSAY_OK, "%s", assay_error_message());
    call_end(&c);
    cr_expect_eq(calls, 0);
    gpu_ctx_destroy(&x);
}

/* What an operation adds to begins in the second run as in the first, or dgamma would be another. */
Test(gpu_execute_again, a_gradient_that_is_added_to_begins_again)
{
    static const int64_t T = 3, H = 264;
    gpu_ctx x;
    op_call c;
    open_ctx(&x);
    call_begin(&c, &x, 1);
    put(&c, "gamma", ASSAY_F32, 0.5, 1, 1, H);
    put(&c, "dy", ASSAY_F32, -1, 1, 2, T, H);
    put(&c, "x", ASSAY_F32, -1, 1, 2, T, H);
    put(&c, "rstd", ASSAY_F32, 0.5, 1, 1, T);
    put(&c, "dresidual", ASSAY_F32, -1, 1, 2, T, H);
    put(&c, "dgamma_in", ASSAY_F32, 1, 2, 1, H);
    run_op(&c, "rmsnorm_bwd_add", ASSAY_F32);
    cr_expect_eq(c.n_out, 3);
    cr_expect_eq(c.declared.variant, 1);
    call_end(&c);
    gpu_ctx_destroy(&x);
}
