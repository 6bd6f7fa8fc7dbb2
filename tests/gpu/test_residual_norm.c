/* A residual and its norm in one launch: the bits of the two operations, the widths that registers hold, what is refused. */
#include "tests/support/gpu_judge.h"

TestSuite(gpu_residual_norm, .timeout = 120);

static const op_sizes sizes[] = {
    {{0, 3}}, {{1, 1}}, {{2, 3}}, {{5, 31}}, {{33, 32}}, {{2, 33}}, {{5, 72}}, {{33, 256}}, {{3, 1032}},
};

static void residual_norm(op_call *c, assay_dtype act, data_mode mode, const int64_t *d)
{
    DRAW(c, "a", act, mode, 2.0, 2, d[0], d[1]);
    DRAW(c, "b", act, mode, 0.5, 2, d[0], d[1]);
    put(c, "gamma", act, 0.5, 1.5, 1, d[1]);
    attr_d(c, "eps", (double)1e-6f);
}

Test(gpu_residual_norm, is_within_the_bounds_of_its_parts)
{
    hold(&(op_law){"add_rmsnorm_fwd", "residual_norm", 2, false, residual_norm, OP_SIZES(sizes)});
}

/* Every number of lanes and of registers, rows of whole turns of the lanes and of others: add, then rmsnorm_fwd, each by its highest
 * rung. */
Test(gpu_residual_norm, has_the_bits_of_the_two_operations)
{
    static const int64_t widths[] = {8,    32,   40,   64,   128,  136,  256, 264,
                                     1024, 1032, 2048, 2056, 4096, 4104, 8192};
    static const assay_dtype acts[] = {ASSAY_F32, ASSAY_BF16};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int a = 0; a < 2; a++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            const int64_t d[2] = {widths[i] > 1024 ? 3 : 37, widths[i]};
            op_call whole, sum, norm;
            call_begin(&whole, &ctx, 3 + i);
            residual_norm(&whole, acts[a], ZERO_MEAN, d);
            run_op(&whole, "add_rmsnorm_fwd", acts[a]);
            const int64_t most = acts[a] == ASSAY_BF16 ? 8192 : 4096;
            cr_expect_eq(whole.declared.variant, widths[i] <= most, "%lld columns in %s",
                         (long long)widths[i], assay_dtype_name(acts[a]));
            if (whole.declared.variant == 1) {
                call_begin(&sum, &ctx, 1);
                put_values(&sum, "a", acts[a], whole.value[0], d[0], d[1]);
                put_values(&sum, "b", acts[a], whole.value[1], d[0], d[1]);
                run_op(&sum, "add", acts[a]);
                call_begin(&norm, &ctx, 1);
                put_values(&norm, "x", acts[a], result(&sum, "y"), d[0], d[1]);
                put_values(&norm, "gamma", acts[a], whole.value[2], d[1], -1);
                attr_d(&norm, "eps", (double)1e-6f);
                run_op(&norm, "rmsnorm_fwd", acts[a]);
                cr_expect(gpu_ladder_find("rmsnorm_fwd", norm.declared.variant + 1) == NULL &&
                          gpu_ladder_find("add", sum.declared.variant + 1) == NULL);
                expect_same_bits(&whole, "residual", &sum, "y", widths[i]);
                expect_same_bits(&whole, "y", &norm, "y", widths[i]);
                expect_same_bits(&whole, "rstd", &norm, "rstd", widths[i]);
                call_end(&sum);
                call_end(&norm);
            }
            call_end(&whole);
        }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_residual_norm, memory_of_an_input_is_refused)
{
    gpu_ctx ctx;
    float x[64] = {0}, g[8] = {0}, rstd[8], r[64], y[64];
    open_ctx(&ctx);
    const gpu_tensor a = gpu_tensor_2d(x, ASSAY_F32, 8, 8), gamma = gpu_tensor_1d(g, ASSAY_F32, 8),
                     s = gpu_tensor_1d(rstd, ASSAY_F32, 8), own = gpu_tensor_2d(r, ASSAY_F32, 8, 8),
                     other = gpu_tensor_2d(y, ASSAY_F32, 8, 8);
    const struct {
        gpu_tensor residual, y;
        const char *words;
    } rows[] = {{a, other, "residual: expected memory of its own"},
                {own, a, "y: expected memory of its own"},
                {own, own, "found that of residual"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_eq(RAW(&ctx, "add_rmsnorm_fwd", RAW_T("a", a), RAW_T("b", a), RAW_T("gamma", gamma),
                         RAW_T("residual", rows[i].residual), RAW_T("y", rows[i].y), RAW_T("rstd", s),
                         {"eps", .number = 1e-6}),
                     ASSAY_INVALID_ARGUMENT);
        cr_expect_not_null(strstr(assay_error_message(), rows[i].words), "%s", assay_error_message());
    }
    cr_expect_eq(RAW(&ctx, "add_rmsnorm_fwd", RAW_T("a", a), RAW_T("b", a), RAW_T("gamma", gamma),
                     RAW_T("residual", own), RAW_T("y", other), RAW_T("rstd", s), {"eps", .number = -1.0}),
                 ASSAY_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(assay_error_message(), "eps"), "%s", assay_error_message());
    gpu_ctx_destroy(&ctx);
}
