/* The ladder: which rung takes a call, what it declares for each output, and that rows are whole. */
#include "gpu/ladder.h"
#include "tests/support/gpu_ops.h"

TestSuite(gpu_ladder, .timeout = 60);

Test(gpu_ladder, every_operation_of_our_models_but_collectives_has_one)
{
    for (int i = 0; assay_op_at(i); i++)
        cr_expect_eq(gpu_ladder(assay_op_at(i)->name) != NULL,
                     !assay_op_at(i)->collective && !assay_op_at(i)->foreign, "%s", assay_op_at(i)->name);
}

static int times_listed(const gpu_rung *r, const char *slot)
{
    const size_t n = strlen(slot);
    int times = 0;
    for (int i = 0; i < GPU_RUNG_ARITHS && r->arith[i].outputs; i++)
        for (const char *at = r->arith[i].outputs; (at = strstr(at, slot)) != NULL; at += n)
            times += (at == r->arith[i].outputs || at[-1] == ' ') && (at[n] == '\0' || at[n] == ' ');
    return times;
}

/* No output is without arithmetic, none has two, and every entry that a shape changes says how. */
Test(gpu_ladder, every_output_of_every_rung_has_one_arithmetic)
{
    for (int i = 0; assay_op_at(i); i++) {
        const assay_op *op = assay_op_at(i);
        const gpu_rung *r;
        for (int k = 0; (r = gpu_ladder_find(op->name, k)) != NULL; k++) {
            for (int s = 0; s < assay_op_n_slots(op); s++)
                cr_expect_eq(times_listed(r, op->slots[s].name), op->slots[s].role == ASSAY_SLOT_IN ? 0 : 1,
                             "%s k%d: %s", op->name, k, op->slots[s].name);
            for (int a = 0; a < GPU_RUNG_ARITHS && r->arith[a].outputs; a++)
                cr_expect_eq(r->arith[a].adapt != NULL, strlen(r->arith[a].how) > 0, "%s k%d", op->name, k);
            cr_expect(strlen(r->buys) > 0 && (k > 0 || (!r->accepts && !r->pays)),
                      "%s k%d: nothing is bought, or k0 does not take every call", op->name, k);
            cr_expect(k == 0 ? r->least_capability == GPU_SM_80 : r->least_capability >= GPU_SM_80,
                      "%s k%d: the engine is compiled for sm_%d, k0 runs on all of them, found %d", op->name,
                      k, GPU_SM_80, r->least_capability);
        }
    }
}

/* What a record says of a call is held to the names of the kernels that it launched. */
Test(gpu_ladder, a_kernel_is_of_the_rung_in_its_name)
{
    static const struct {
        const char *kernel;
        int rung;
    } rows[] = {{"add_k0", 0},
                {"(cast_k1<float, bf16>)", 1},
                {"attention_dq_k3<T, 64>", 3},
                {"(qkv_split_k2)", 2},
                {"rmsnorm_bwd_once", -1},
                {"add_k1_join", -1},
                {"add_k12", -1},
                {"k1", -1},
                {"", -1},
                {"(norm_apply<T>)", -1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect_eq(gpu_ladder_rung_of(rows[i].kernel), rows[i].rung, "%s", rows[i].kernel);
}

/* The row's arithmetic, with what the shapes change, is what a call declares for each output. */
Test(gpu_ladder, a_call_declares_its_row)
{
    static const int64_t widths[] = {8, 100, 200};
    static const int lanes[][2] = {{4, 8}, {8, 8}, {32, 32}}; /* dx, dgamma */
    gpu_ctx ctx;
    gpu_declared d;
    open_ctx(&ctx);
    for (int i = 0; i < 3; i++) {
        const gpu_tensor x = gpu_tensor_2d(NULL, ASSAY_F32, 5, widths[i]),
                         row = gpu_tensor_1d(NULL, ASSAY_F32, widths[i]);
        const gpu_operands o = raw_operands(
            "rmsnorm_bwd",
            (const raw_operand[]){
                RAW_T("x", x), RAW_T("dx", x), RAW_T("gamma", row), RAW_T("dgamma", row), {.name = NULL}});
        cr_assert_eq(gpu_ladder_declare(&ctx, &o, 1, &d), ASSAY_OK);
        cr_expect_eq(assay_declaration_of(&d.arith, "dx")->lanes, lanes[i][0]);
        cr_expect_eq(assay_declaration_of(&d.arith, "dgamma")->lanes, lanes[i][1]);
    }
    const gpu_tensor x = gpu_tensor_2d(NULL, ASSAY_F32, 5, 64);
    const gpu_operands without =
        raw_operands("swiglu_bwd", (const raw_operand[]){RAW_T("x", x), RAW_T("dx", x), {.name = NULL}});
    cr_assert_eq(gpu_ladder_declare(&ctx, &without, 1, &d), ASSAY_OK);
    cr_expect_eq(d.arith.all.order, ASSAY_ORDER_NONE);
    cr_expect_eq(d.arith.n, 0, "an output that is not there has no arithmetic");
    gpu_ctx_destroy(&ctx);
}

/* Sizes, addresses and attributes that a rung does not take go to the rung below, whoever asked for it. */
Test(gpu_ladder, a_rung_that_does_not_take_the_call_is_passed_over)
{
    static const struct {
        const char *asked;
        int64_t n;
        int ran;
    } rows[] = {{"elementwise=k1", 8, 1}, {"elementwise=k1", 7, 0}, {"elementwise=k0", 8, 0}};
    gpu_ctx ctx;
    op_call c;
    open_ctx(&ctx);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        set_variants(&ctx, rows[i].asked);
        call_begin(&c, &ctx, 1);
        put(&c, "a", ASSAY_F32, 0, 1, 1, rows[i].n);
        put(&c, "b", ASSAY_F32, 0, 1, 1, rows[i].n);
        run_op(&c, "add", ASSAY_F32);
        cr_expect_eq(c.declared.variant, rows[i].ran, "%s, %lld elements", rows[i].asked,
                     (long long)rows[i].n);
        call_end(&c);
    }
    for (int inner = 0; inner < 2; inner++) { /* a product over nothing */
        call_begin(&c, &ctx, 1);
        put(&c, "x", ASSAY_F32, 0, 1, 2, (int64_t)3, (int64_t)inner);
        put(&c, "weight", ASSAY_F32, 0, 1, 2, (int64_t)2, (int64_t)inner);
        run_op(&c, "linear_fwd", ASSAY_F32);
        cr_expect_eq(c.declared.variant, inner, "inner size %d", inner);
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}

/* The call arena has one owner: two streams would write it at the same time. */
Test(gpu_ladder, workspace_belongs_to_the_compute_stream)
{
    gpu_ctx ctx;
    cudaStream_t other;
    int variant;
    open_ctx(&ctx);
    cr_assert_eq(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    const gpu_tensor x = gpu_tensor_1d(NULL, ASSAY_F32, 100000), y = gpu_tensor_1d(NULL, ASSAY_F64, 1);
    const gpu_operands o =
        raw_operands("sum", (const raw_operand[]){RAW_T("x", x), RAW_T("y", y), {.name = NULL}});
    cr_assert_gt(gpu_ladder_workspace(&ctx, &o), 0);
    cr_expect_eq(gpu_ladder_run(&ctx, &o, 1, other, &variant), ASSAY_UNSUPPORTED);
    cr_expect(strstr(assay_error_message(), "belong to the compute stream"), "%s", assay_error_message());
    cr_expect_neq(gpu_ladder_run(&ctx, &o, 1, ctx.stream, &variant), ASSAY_UNSUPPORTED, "its own stream");
    cudaStreamDestroy(other);
    gpu_ctx_destroy(&ctx);
}

/* Nobody asked: k2 where it pays. */
Test(gpu_ladder, the_widest_rung_waits_for_a_large_vocabulary)
{
    static const int64_t vocabulary[] = {64, 4096};
    gpu_ctx ctx;
    op_call c;
    open_ctx(&ctx);
    for (int i = 0; i < 2; i++) {
        call_begin(&c, &ctx, 1);
        put(&c, "logits", ASSAY_F32, 0, 1, 2, (int64_t)1, vocabulary[i]);
        put(&c, "targets", ASSAY_I64, 0, 1, 1, (int64_t)1);
        run_op(&c, "cross_entropy_stats", ASSAY_F32);
        cr_expect_eq(c.declared.variant, i + 1);
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}

static assay_status does_nothing(const gpu_work *w)
{
    (void)w;
    return ASSAY_OK;
}
static bool takes_pairs(const gpu_ctx *ctx, const gpu_operands *o)
{
    (void)ctx;
    return gpu_tensor_count(gpu_operand(o, "x")) % 2 == 0;
}
static bool never_pays(const gpu_operands *o)
{
    (void)o;
    return false;
}

/* Too new for the device; only when it is asked for; only for even counts, of every call of a list. */
Test(gpu_ladder, device_call_and_profit_choose)
{
    const gpu_rung rungs[] = {{.run = does_nothing},
                              {.run = does_nothing, .accepts = takes_pairs},
                              {.run = does_nothing, .pays = never_pays},
                              {.run = does_nothing, .least_capability = 100},
                              {.run = NULL}};
    static const struct {
        int asked, major;
        int64_t count[2];
        int chosen;
    } rows[] = {{-1, 9, {4, 4}, 1}, {-1, 9, {4, 3}, 0}, {-1, 10, {3, 3}, 3}, {3, 9, {3, 3}, 2},
                {2, 9, {4, 4}, 2},  {1, 10, {4, 4}, 1}, {1, 10, {3, 4}, 0},  {9, 10, {4, 4}, 3}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gpu_ctx ctx = {.sm_major = rows[i].major};
        gpu_operands o[2];
        for (int f = 0; f < GPU_FAMILY_COUNT; f++)
            ctx.variant[f] = rows[i].asked;
        for (int k = 0; k < 2; k++) {
            gpu_operands_init(&o[k], assay_op_find("sum"));
            gpu_operands_put(&o[k], "x", gpu_tensor_1d(NULL, ASSAY_F32, rows[i].count[k]));
        }
        cr_expect_eq(gpu_ladder_choose(rungs, &ctx, o, 2), rows[i].chosen, "row %zu", i);
    }
}

/* Too old for the device. */
Test(gpu_ladder, a_kernel_of_one_device_stops_there)
{
    const gpu_rung rungs[] = {
        {.run = does_nothing}, {.run = does_nothing, .most_capability = 90}, {.run = NULL}};
    static const struct {
        int major, minor, chosen;
    } rows[] = {{8, 0, 1}, {9, 0, 1}, {9, 1, 0}, {10, 0, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gpu_ctx ctx = {.sm_major = rows[i].major, .sm_minor = rows[i].minor};
        gpu_operands o;
        for (int f = 0; f < GPU_FAMILY_COUNT; f++)
            ctx.variant[f] = -1;
        gpu_operands_init(&o, assay_op_find("sum"));
        cr_expect_eq(gpu_ladder_choose(rungs, &ctx, &o, 1), rows[i].chosen, "row %zu", i);
    }
}

/* What a row says of dtypes and devices is what it takes: no F32 where it says BF16. */
Test(gpu_ladder, rows_say_which_dtype_they_take)
{
    static const gpu_ctx ctx = {.simulated = true, .sm_major = 9};
    int said = 0;
    for (int i = 0; assay_op_at(i); i++) {
        const gpu_rung *r;
        for (int k = 0; (r = gpu_ladder_find(assay_op_at(i)->name, k)) != NULL; k++) {
            gpu_operands o;
            cr_expect(r->most_capability == 0 || r->most_capability >= r->least_capability);
            if (r->act == NULL)
                continue;
            gpu_operands_init(&o, assay_op_at(i));
            for (int s = 0; s < assay_op_n_slots(o.op); s++)
                o.slot[s] = gpu_tensor_1d(NULL, ASSAY_F32, 8);
            cr_expect_str_eq(r->act, "BF16");
            cr_expect(k > 0 && r->accepts && !r->accepts(&ctx, &o), "%s k%d", o.op->name, k);
            said++;
        }
    }
    cr_expect_eq(said, 7, "k2 and k3 of attention, k3 of grouped products: found %d", said);
}

/* The engine's code does not exist for a lesser device: said when a context is made, not by the first kernel. */
Test(gpu_ladder, a_lesser_device_is_refused_once)
{
    gpu_ctx ctx = {.device = 1, .device_name = "old card", .sm_major = 7, .sm_minor = 5};
    cr_expect_eq(gpu_ctx_check_device(&ctx), ASSAY_UNSUPPORTED);
    cr_expect_not_null(strstr(assay_error_message(), "device 1 (old card)"), "%s", assay_error_message());
    cr_expect_not_null(strstr(assay_error_message(), "at least 8.0"), "%s", assay_error_message());
    cr_expect_not_null(strstr(assay_error_message(), "found 7.5"), "%s", assay_error_message());
    ctx.sm_major = 8;
    ctx.sm_minor = 0;
    cr_expect_eq(gpu_ctx_check_device(&ctx), ASSAY_OK);
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
            put(&c, strcmp(ops[i], "add") == 0 ? "a" : "x", ASSAY_F32, 0, 1, 1, (int64_t)96);
            if (strcmp(ops[i], "add") == 0)
                put(&c, "b", ASSAY_F32, 0, 1, 1, (int64_t)96);
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
