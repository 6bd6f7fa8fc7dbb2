/* linear and grouped linear: every variant and dtype against loops in double. */
#include "tests/support/gpu_ops.h"

static const assay_dtype acts[] = {ASSAY_F32, ASSAY_BF16};
static const char *const variants[] = {"linear=k0", "linear=k1"};
static const int64_t shapes[][3] = {/* T, N, K */
                                    {0, 3, 5},   {3, 0, 5},    {3, 5, 0},   {1, 1, 1},    {2, 3, 5},
                                    {5, 31, 33}, {33, 32, 31}, {37, 8, 64}, {64, 65, 16}, {7, 130, 3}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static double grow(int64_t n)
{
    return (double)(n + 4) * U32;
}

static void check_fwd(gpu_ctx *ctx, assay_dtype act, const int64_t *s, bool bias, const char *y_dtype)
{
    const int64_t t = s[0], n = s[1], k = s[2];
    op_call c;
    call_begin(&c, ctx, (uint64_t)(t * 100 + n * 10 + k + 1));
    const double *x = put(&c, "x", act, -1, 1, 2, t, k), *w = put(&c, "weight", act, -1, 1, 2, n, k);
    const double *b = bias ? put(&c, "bias", act, -1, 1, 1, n) : NULL;
    if (y_dtype)
        attr_s(&c, "dtype", y_dtype);
    run_op(&c, "linear_fwd", act);
    for (int64_t i = 0; i < t; ++i)
        for (int64_t j = 0; j < n; ++j) {
            double sum = 0, size = 0;
            for (int64_t p = 0; p < k; ++p) {
                sum += x[i * k + p] * w[j * k + p];
                size += fabs(x[i * k + p] * w[j * k + p]);
            }
            near(&c, "y", i * n + j, sum + (b ? b[j] : 0), grow(k) * (size + (b ? fabs(b[j]) : 0)));
        }
    call_end(&c);
}

Test(gpu_linear, forward_is_the_product_plus_bias_in_every_variant)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v)
        for (int a = 0; a < 2; ++a)
            for (int s = 0; s < N_SHAPES; ++s) {
                set_variants(&ctx, variants[v]);
                check_fwd(&ctx, acts[a], shapes[s], false, NULL);
                check_fwd(&ctx, acts[a], shapes[s], true, NULL);
                check_fwd(&ctx, acts[a], shapes[s], true, "F32");
            }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_linear, backward_input_is_the_product_with_the_weight)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v)
        for (int a = 0; a < 2; ++a)
            for (int s = 0; s < N_SHAPES; ++s) {
                const int64_t t = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
                op_call c;
                set_variants(&ctx, variants[v]);
                call_begin(&c, &ctx, (uint64_t)s + 50);
                const double *dy = put(&c, "dy", acts[a], -1, 1, 2, t, n);
                const double *w = put(&c, "weight", acts[a], -1, 1, 2, n, k);
                run_op(&c, "linear_bwd_input", acts[a]);
                for (int64_t i = 0; i < t; ++i)
                    for (int64_t j = 0; j < k; ++j) {
                        double sum = 0, size = 0;
                        for (int64_t p = 0; p < n; ++p) {
                            sum += dy[i * n + p] * w[p * k + j];
                            size += fabs(dy[i * n + p] * w[p * k + j]);
                        }
                        near(&c, "dx", i * k + j, sum, grow(n) * size);
                    }
                call_end(&c);
            }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_linear, backward_weight_accumulates_onto_the_old_gradient)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v)
        for (int a = 0; a < 2; ++a)
            for (int s = 0; s < N_SHAPES; ++s) {
                const int64_t t = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
                op_call c;
                set_variants(&ctx, variants[v]);
                call_begin(&c, &ctx, (uint64_t)s + 90);
                const double *dy = put(&c, "dy", acts[a], -1, 1, 2, t, n);
                const double *x = put(&c, "x", acts[a], -1, 1, 2, t, k);
                const double *old = put(&c, "dweight_in", ASSAY_F32, -1, 1, 2, n, k);
                run_op(&c, "linear_bwd_weight", acts[a]);
                for (int64_t i = 0; i < n; ++i)
                    for (int64_t j = 0; j < k; ++j) {
                        double sum = 0, size = 0;
                        for (int64_t p = 0; p < t; ++p) {
                            sum += dy[p * n + i] * x[p * k + j];
                            size += fabs(dy[p * n + i] * x[p * k + j]);
                        }
                        near(&c, "dweight", i * k + j, sum + old[i * k + j],
                             grow(t) * (size + fabs(old[i * k + j])));
                    }
                call_end(&c);
            }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_linear, backward_bias_sums_the_rows)
{
    static const int64_t rows[] = {0, 1, 2, 31, 32, 33, 67}, cols[] = {1, 3, 32, 33, 70};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v)
        for (int a = 0; a < 2; ++a)
            for (int i = 0; i < 7; ++i)
                for (int j = 0; j < 5; ++j) {
                    const int64_t t = rows[i], n = cols[j];
                    op_call c;
                    set_variants(&ctx, variants[v]);
                    call_begin(&c, &ctx, (uint64_t)(i * 7 + j));
                    const double *dy = put(&c, "dy", acts[a], 0, 1, 2, t, n);
                    const double *old = put(&c, "dbias_in", ASSAY_F32, -1, 1, 1, n);
                    run_op(&c, "linear_bwd_bias", acts[a]);
                    for (int64_t e = 0; e < n; ++e) {
                        double sum = 0;
                        for (int64_t p = 0; p < t; ++p)
                            sum += dy[p * n + e];
                        near(&c, "dbias", e, sum + old[e], grow(t) * (fabs(sum) + fabs(old[e])));
                    }
                    cr_assert_eq(ctx.declared.arith.lanes, v == 0 ? 1 : 8);
                    call_end(&c);
                }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_linear, integers_are_exact_and_variants_agree_bit_for_bit)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v) {
        op_call c;
        set_variants(&ctx, variants[v]);
        call_begin(&c, &ctx, 3);
        double x[37 * 41], w[29 * 41];
        for (int i = 0; i < 37 * 41; ++i)
            x[i] = floor(uniform(&c) * 9) - 4;
        for (int i = 0; i < 29 * 41; ++i)
            w[i] = floor(uniform(&c) * 9) - 4;
        put_values(&c, "x", ASSAY_BF16, x, 37, 41);
        put_values(&c, "weight", ASSAY_BF16, w, 29, 41);
        attr_s(&c, "dtype", "F32");
        run_op(&c, "linear_fwd", ASSAY_BF16);
        for (int i = 0; i < 37; ++i)
            for (int j = 0; j < 29; ++j) {
                double sum = 0;
                for (int p = 0; p < 41; ++p)
                    sum += x[i * 41 + p] * w[j * 41 + p];
                exact(&c, "y", i * 29 + j, sum);
            }
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}

/* Four experts, one of them and the last without rows. */
static const double counts[4] = {3, 0, 34, 0};

Test(gpu_grouped_linear, each_row_meets_the_weight_of_its_expert)
{
    enum { R = 37, N = 11, K = 13 };
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v)
        for (int a = 0; a < 2; ++a) {
            op_call c, b, g;
            set_variants(&ctx, variants[v]);
            call_begin(&c, &ctx, 5);
            const double *x = put(&c, "x", acts[a], -1, 1, 2, (int64_t)R, (int64_t)K);
            const double *w = put(&c, "weight", acts[a], -1, 1, 3, (int64_t)4, (int64_t)N, (int64_t)K);
            put_values(&c, "tokens_per_expert", ASSAY_I64, counts, 4, -1);
            run_op(&c, "grouped_linear_fwd", acts[a]);
            call_begin(&b, &ctx, 5);
            const double *dy = put(&b, "dy", acts[a], -1, 1, 2, (int64_t)R, (int64_t)N);
            const double *wb = put(&b, "weight", acts[a], -1, 1, 3, (int64_t)4, (int64_t)N, (int64_t)K);
            put_values(&b, "tokens_per_expert", ASSAY_I64, counts, 4, -1);
            run_op(&b, "grouped_linear_bwd_input", acts[a]);
            call_begin(&g, &ctx, 6);
            const double *gy = put(&g, "dy", acts[a], -1, 1, 2, (int64_t)R, (int64_t)N);
            const double *gx = put(&g, "x", acts[a], -1, 1, 2, (int64_t)R, (int64_t)K);
            const double *old =
                put(&g, "dweight_in", ASSAY_F32, -1, 1, 3, (int64_t)4, (int64_t)N, (int64_t)K);
            put_values(&g, "tokens_per_expert", ASSAY_I64, counts, 4, -1);
            run_op(&g, "grouped_linear_bwd_weight", acts[a]);
            for (int64_t e = 0, start = 0; e < 4; start += (int64_t)counts[e++])
                for (int64_t i = 0; i < N; ++i)
                    for (int64_t j = 0; j < K; ++j) {
                        double sum = 0, size = 0;
                        for (int64_t r = start; r < start + (int64_t)counts[e]; ++r) {
                            sum += gy[r * N + i] * gx[r * K + j];
                            size += fabs(gy[r * N + i] * gx[r * K + j]);
                        }
                        const int64_t at = (e * N + i) * K + j;
                        near(&g, "dweight", at, sum + old[at], grow(R) * (size + 1));
                    }
            for (int64_t r = 0; r < R; ++r) {
                const int64_t e = r < 3 ? 0 : 2;
                for (int64_t i = 0; i < N; ++i) {
                    double sum = 0;
                    for (int64_t j = 0; j < K; ++j)
                        sum += x[r * K + j] * w[(e * N + i) * K + j];
                    near(&c, "y", r * N + i, sum, grow(K) * K);
                }
                for (int64_t j = 0; j < K; ++j) {
                    double sum = 0;
                    for (int64_t i = 0; i < N; ++i)
                        sum += dy[r * N + i] * wb[(e * N + i) * K + j];
                    near(&b, "dx", r * K + j, sum, grow(N) * N);
                }
            }
            call_end(&c);
            call_end(&b);
            call_end(&g);
        }
    gpu_ctx_destroy(&ctx);
}
