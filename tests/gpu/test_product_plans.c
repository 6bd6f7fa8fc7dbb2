/* Plans of the library's products: asked for once, kept by everything that the answer depends on, and chosen from a device's file.
 * The simulator's cuBLASLt refuses an algorithm that does not fit a call (gpu/sim/include/cublasLt.h). */
#include "tests/support/gpu_plans.h"

#include <assay_sim.h>

TestSuite(gpu_product_plans, .timeout = 60);

static void expect_counts(const gpu_ctx *ctx, uint64_t asked, uint64_t hits)
{
    uint64_t got_asked, got_hits;
    gpu_product_plans_counts(ctx->plans, &got_asked, &got_hits);
    cr_expect(got_asked == asked && got_hits == hits, "expected %d asked, %d there; found %d, %d", (int)asked,
              (int)hits, (int)got_asked, (int)got_hits);
}

/* Which operands lie `shift` elements behind an aligned address. */
typedef enum { NONE = 0, X = 1, WEIGHT = 2, Y = 4, BIAS = 8, ALL = 15 } shifted;

/* y [m,n] = x [m,k] . weight [n,k], of zeros. */
static assay_status linear(gpu_ctx *ctx, cudaStream_t stream, int64_t m, int64_t n, int64_t k, shifted which,
                           int64_t shift, bool bias)
{
    enum { ROOM = 256 };
    float *all;
    int variant;
    cr_assert(m * k + shift <= ROOM && n * k + shift <= ROOM && m * n + shift <= ROOM && n + shift <= ROOM);
    cr_assert_eq(cudaMalloc((void **)&all, 4 * ROOM * sizeof *all), cudaSuccess);
    cudaMemset(all, 0, 4 * ROOM * sizeof *all);
    float *const x = all + (which & X ? shift : 0), *const w = all + ROOM + (which & WEIGHT ? shift : 0),
                 *const y = all + 2 * ROOM + (which & Y ? shift : 0),
                 *const b = all + 3 * ROOM + (which & BIAS ? shift : 0);
    const gpu_operands o = raw_operands(
        "linear_fwd",
        (const raw_operand[]){RAW_T("x", gpu_tensor_2d(x, ASSAY_F32, m, k)),
                              RAW_T("weight", gpu_tensor_2d(w, ASSAY_F32, n, k)),
                              RAW_T("bias", bias ? gpu_tensor_1d(b, ASSAY_F32, n) : gpu_tensor_none()),
                              RAW_T("y", gpu_tensor_2d(y, ASSAY_F32, m, n)),
                              {.name = NULL}});
    const assay_status st = gpu_ladder_run(ctx, &o, 1, stream, &variant);
    cr_expect_eq(variant, 1, "cuBLASLt is k1");
    cr_assert_eq(cudaStreamSynchronize(stream), cudaSuccess);
    cudaFree(all);
    return st;
}

Test(gpu_product_plans, the_library_is_asked_once)
{
    gpu_ctx ctx;
    no_plans();
    open_ctx(&ctx);
    set_variants(&ctx, "linear=k1");
    for (int i = 0; i < 3; i++) /* the ladder asks whether there is an algorithm, then the product asks */
        cr_assert_eq(linear(&ctx, ctx.stream, 5, 7, 3, NONE, 0, false), ASSAY_OK, "%s",
                     assay_error_message());
    expect_counts(&ctx, 6, 5);
    cr_assert_eq(linear(&ctx, ctx.stream, 5, 7, 4, NONE, 0, false), ASSAY_OK);
    expect_counts(&ctx, 8, 6);
    cr_assert_eq(linear(&ctx, ctx.stream, 5, 7, 4, NONE, 0, true), ASSAY_OK);
    expect_counts(&ctx, 10, 7);
    cr_assert_eq(linear(&ctx, ctx.stream, 5, 7, 4, ALL, 1, true), ASSAY_OK, "%s", assay_error_message());
    expect_counts(&ctx, 12, 8);
    cr_expect_eq(assay_sim_reports(), 0);
    gpu_ctx_destroy(&ctx);
}

/* The library's first choice for aligned operands is not one for others. */
Test(gpu_product_plans, an_aligned_plan_is_no_plan_for_others)
{
    gpu_ctx ctx;
    no_plans();
    open_ctx(&ctx);
    set_variants(&ctx, "linear=k1");
    for (int bias = 0; bias < 2; bias++)
        for (int which = NONE; which <= ALL; which++)
            for (int64_t shift = 1; shift < 5; shift++)
                cr_expect_eq(linear(&ctx, ctx.stream, 4, 4, 4, (shifted)which, shift, bias), ASSAY_OK, "%s",
                             assay_error_message());
    cr_expect_eq(assay_sim_reports(), 0);
    gpu_ctx_destroy(&ctx);
}

/* Products of one shape that differ in one thing: a plan of the one is none for the other. */
Test(gpu_product_plans, every_member_of_the_key_tells_products_apart)
{
    gpu_product_plans *plans = NULL;
    gpu_product_plan plan, got;
    no_plans();
    cr_assert_eq(gpu_product_plans_open(&plans, "device", 90), ASSAY_OK);
    memset(&plan, 0, sizeof plan);
    plan.found = true;
    gpu_product_plans_keep(plans, &plan);
    cr_expect(gpu_product_plans_find(plans, &plan.key, &got));
    for (size_t i = 0; i < sizeof plan.key / sizeof(int64_t); i++) {
        gpu_product_key other = plan.key;
        ((int64_t *)&other)[i] = 1;
        cr_expect(!gpu_product_plans_find(plans, &other, &got), "member %zu", i);
    }
    for (int64_t m = 1; m < 3 * GPU_PRODUCT_PLANS; m++) { /* more than there are places for */
        gpu_product_plan next = plan;
        next.key.m = m;
        gpu_product_plans_keep(plans, &next);
        cr_assert(gpu_product_plans_find(plans, &next.key, &got) && got.key.m == m, "plan %d", (int)m);
    }
    gpu_product_plans_close(plans);
}

/* With a bias, without, and with other numbers at other addresses, in turns: each result is its own. */
Test(gpu_product_plans, an_epilogue_belongs_to_its_plan)
{
    gpu_ctx ctx;
    char why[256];
    no_plans();
    open_ctx(&ctx);
    set_variants(&ctx, "linear=k1");
    for (int i = 0; i < 6; i++) {
        op_call c;
        call_begin(&c, &ctx, (uint64_t)i + 1);
        put(&c, "x", ASSAY_BF16, -1, 1, 2, (int64_t)5, (int64_t)19);
        put(&c, "weight", ASSAY_BF16, -1, 1, 2, (int64_t)7, (int64_t)19);
        if (i % 2 == 1)
            put(&c, "bias", ASSAY_BF16, 1, 2, 1, (int64_t)7);
        run_op(&c, "linear_fwd", ASSAY_BF16);
        cr_expect(admitted(&c, "linear_fwd", why), "%d: %s", i, why);
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}

/* cuBLASLt's workspace has one owner, as the call arena that it is part of. */
Test(gpu_product_plans, no_second_stream_on_one_workspace)
{
    gpu_ctx ctx;
    cudaStream_t other;
    no_plans();
    open_ctx(&ctx);
    set_variants(&ctx, "linear=k1");
    cr_assert_eq(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    cr_expect_eq(linear(&ctx, other, 5, 7, 3, NONE, 0, false), ASSAY_UNSUPPORTED);
    cr_expect(strstr(assay_error_message(), "belong to the compute stream"), "%s", assay_error_message());
    cr_expect_eq(linear(&ctx, ctx.stream, 5, 7, 3, NONE, 0, false), ASSAY_OK, "%s", assay_error_message());
    cudaStreamDestroy(other);
    gpu_ctx_destroy(&ctx);
}

/* The context of a test may have none. */
Test(gpu_product_plans, a_context_without_plans)
{
    gpu_ctx ctx;
    no_plans();
    open_ctx(&ctx);
    gpu_product_plans_close(ctx.plans);
    ctx.plans = NULL;
    set_variants(&ctx, "linear=k1");
    cr_expect_eq(linear(&ctx, ctx.stream, 5, 7, 3, NONE, 0, true), ASSAY_OK, "%s", assay_error_message());
    expect_counts(&ctx, 0, 0);
    cr_expect(!gpu_product_plans_in_use(NULL));
    gpu_ctx_destroy(&ctx);
}

/* --- timing ---------------------------------------------------------------------------------------------------- */

/* A weight gradient is added to: what is timed adds elsewhere. */
Test(gpu_product_plans, timing_leaves_the_data_of_the_run_alone)
{
    gpu_ctx ctx;
    char why[256];
    plans_begin(true);
    open_ctx(&ctx);
    set_variants(&ctx, "linear=k1");
    for (int i = 0; i < 4; i++) {
        op_call c;
        call_begin(&c, &ctx, (uint64_t)i + 1);
        put(&c, "dy", ASSAY_BF16, -1, 1, 2, (int64_t)5, (int64_t)7);
        put(&c, "x", ASSAY_BF16, -1, 1, 2, (int64_t)5, (int64_t)19);
        put(&c, "dweight_in", ASSAY_F32, -1, 1, 2, (int64_t)7, (int64_t)19);
        attr_b(&c, "accumulate", true);
        attr_b(&c, "gradient_accumulation_fusion", i % 2 == 0);
        run_op(&c, "linear_bwd_weight", ASSAY_BF16);
        cr_expect(admitted(&c, "linear_bwd_weight", why), "%d: %s", i, why);
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
    plans_end();
}

Test(gpu_product_plans, what_was_timed_is_for_later_runs)
{
    gpu_ctx ctx;
    plans_begin(true);
    open_ctx(&ctx);
    set_variants(&ctx, "linear=k1");
    cr_expect_eq(linear(&ctx, ctx.stream, 5, 7, 3, NONE, 0, true), ASSAY_OK, "%s", assay_error_message());
    cr_expect_eq(linear(&ctx, ctx.stream, 5, 7, 3, ALL, 1, false), ASSAY_OK, "%s", assay_error_message());
    cr_expect(!gpu_product_plans_in_use(ctx.plans), "this run keeps the library's choices");
    gpu_ctx_destroy(&ctx);
    setenv("ASSAY_PRODUCT_PLANS_TIME", "0", 1);
    open_ctx(&ctx);
    cr_expect(gpu_product_plans_in_use(ctx.plans), "%s", plans_said());
    set_variants(&ctx, "linear=k1");
    cr_expect_eq(linear(&ctx, ctx.stream, 5, 7, 3, NONE, 0, true), ASSAY_OK, "%s", assay_error_message());
    cr_expect_str_empty(plans_said());
    gpu_ctx_destroy(&ctx);
    plans_end();
}

Test(gpu_product_plans, the_fastest_is_kept_and_nothing_that_is_no_time)
{
    static const float times[][4] = {{3, 2, 2, 4}, {NAN, 0, 5, -1}, {NAN, 0, INFINITY, -1}};
    static const int best[] = {1, 2, -1};
    cublasLtMatmulHeuristicResult_t offered[4];
    memset(offered, 0, sizeof offered);
    for (int i = 0; i < 4; i++)
        offered[i].algo.data[7] = (uint64_t)i;
    for (int i = 0; i < 3; i++) {
        gpu_product_plans *plans = NULL;
        gpu_product_key key;
        memset(&key, 0, sizeof key);
        key.m = key.n = key.k = key.align_a = key.align_b = key.align_c = 8;
        plans_begin(true);
        cr_assert_eq(gpu_product_plans_open(&plans, "device", 90), ASSAY_OK);
        cr_expect(gpu_product_plans_wants(plans, &key));
        gpu_product_plans_record(plans, &key, offered, times[i], 4);
        cr_expect_eq(gpu_product_plans_wants(plans, &key), best[i] < 0, "it is timed once");
        cr_expect_null(gpu_product_plans_chosen(plans, &key), "not in this run");
        gpu_product_plans_close(plans);
        cr_assert_eq(gpu_product_plans_open(&plans, "device", 90), ASSAY_OK);
        const cublasLtMatmulAlgo_t *chosen = gpu_product_plans_chosen(plans, &key);
        cr_expect_eq(chosen != NULL ? (int)chosen->data[7] : -1, best[i], "%d: %s", i, plans_said());
        gpu_product_plans_close(plans);
        plans_end();
    }
}

/* A capture would not take the waits of a timing: such a product is timed when it runs outside one. */
Test(gpu_product_plans, nothing_is_timed_inside_a_capture)
{
    gpu_ctx ctx;
    cudaGraph_t graph = NULL;
    float *all;
    char path[512];
    int variant;
    plans_begin(true);
    open_ctx(&ctx);
    set_variants(&ctx, "linear=k1");
    cr_assert_eq(cudaMalloc((void **)&all, 3 * 64 * sizeof *all), cudaSuccess);
    const gpu_operands o = raw_operands(
        "linear_fwd", (const raw_operand[]){RAW_T("x", gpu_tensor_2d(all, ASSAY_F32, 4, 4)),
                                            RAW_T("weight", gpu_tensor_2d(all + 64, ASSAY_F32, 4, 4)),
                                            RAW_T("y", gpu_tensor_2d(all + 128, ASSAY_F32, 4, 4)),
                                            {.name = NULL}});
    cr_assert_eq(cudaStreamBeginCapture(ctx.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    cr_expect_eq(gpu_ladder_run(&ctx, &o, 1, ctx.stream, &variant), ASSAY_OK, "%s", assay_error_message());
    cr_assert_eq(cudaStreamEndCapture(ctx.stream, &graph), cudaSuccess);
    cudaGraphDestroy(graph);
    gpu_ctx_destroy(&ctx);
    cr_expect(!plans_file(path), "%s", path);
    cudaFree(all);
    plans_end();
}

Test(gpu_product_plans, a_run_that_fails_writes_nothing)
{
    gpu_ctx ctx;
    char path[512];
    plans_begin(true);
    open_ctx(&ctx);
    set_variants(&ctx, "linear=k1");
    cr_expect_eq(linear(&ctx, ctx.stream, 5, 7, 3, NONE, 0, true), ASSAY_OK);
    (void)ASSAY_ERROR(ASSAY_INTERNAL, "what has gone wrong");
    gpu_ctx_destroy(&ctx);
    cr_expect_str_eq(assay_error_message(), "what has gone wrong");
    cr_expect(!plans_file(path), "%s", path);
    assay_error_clear();
    plans_end();
}
