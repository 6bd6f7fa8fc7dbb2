/* Cross entropy and AdamW. */
#include "tests/support/gpu_ops.h"

static const char *const variants[] = {"cross_entropy=k0", "cross_entropy=k1", "cross_entropy=k2"};
static const int64_t vocab[] = {1, 2, 3, 31, 32, 33, 257, 2100};
enum { N_VOCAB = 8 };

Test(gpu_cross_entropy, statistics_of_a_piece_in_every_variant)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int k = 0; k < 3; ++k)
        for (int i = 0; i < N_VOCAB; ++i) {
            const int64_t t = 5, v = vocab[i], start = 3;
            op_call c;
            set_variants(&ctx, variants[k]);
            call_begin(&c, &ctx, (uint64_t)i);
            const double *l = put(&c, "logits", ASSAY_F32, -60, 60, 2, t, v);
            const double y[5] = {3, -100, (double)(start + v - 1), (double)(start + v), 0};
            put_values(&c, "targets", ASSAY_I64, y, t, -1);
            attr_i(&c, "vocab_start", start);
            run_op(&c, "cross_entropy_stats", ASSAY_F32);
            for (int64_t r = 0; r < t; ++r) {
                double m = -(double)INFINITY, sum = 0;
                for (int64_t e = 0; e < v; ++e)
                    m = fmax(m, l[r * v + e]);
                for (int64_t e = 0; e < v; ++e)
                    sum += exp(l[r * v + e] - m);
                exact(&c, "stats", r, m);
                /* exp of 2 ulp of a rounded difference up to 120, rescaled a few times, summed */
                near(&c, "stats", t + r, sum, sum * U32 * (double)(v + 400));
                const bool here = y[r] >= 3 && y[r] < (double)(start + v);
                exact(&c, "stats", 2 * t + r, here ? l[r * v + (int64_t)y[r] - start] : 0);
            }
            const assay_arith *a = &ctx.declared.arith;
            cr_assert_eq(a->lanes, k == 0 ? 1 : k == 1 ? 32 : 256);
            cr_assert_eq(a->tile, k == 0 ? 0 : a->lanes * 8);
            call_end(&c);
        }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_cross_entropy, an_empty_vocabulary_piece_has_max_minus_infinity_and_sum_zero)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int k = 0; k < 3; ++k) {
        op_call c;
        const double y[2] = {0, -100};
        set_variants(&ctx, variants[k]);
        call_begin(&c, &ctx, 1);
        put(&c, "logits", ASSAY_F32, 0, 1, 2, (int64_t)2, (int64_t)0);
        put_values(&c, "targets", ASSAY_I64, y, 2, -1);
        run_op(&c, "cross_entropy_stats", ASSAY_F32);
        for (int i = 0; i < 6; ++i)
            exact(&c, "stats", i, i < 2 ? -(double)INFINITY : 0);
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_cross_entropy, a_nan_logit_arrives_in_the_sum)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int k = 0; k < 3; ++k) {
        op_call c;
        set_variants(&ctx, variants[k]);
        call_begin(&c, &ctx, 1);
        double *l = put(&c, "logits", ASSAY_F32, -1, 1, 2, (int64_t)2, (int64_t)40);
        l[35] = (double)NAN;
        store_slot(&c);
        put(&c, "targets", ASSAY_I64, 0, 40, 1, (int64_t)2);
        run_op(&c, "cross_entropy_stats", ASSAY_F32);
        cr_assert(isnan(result(&c, "stats")[2]) && !isnan(result(&c, "stats")[3]));
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_cross_entropy, loss_joins_the_pieces_of_the_vocabulary)
{
    enum { P = 3, T = 4 };
    gpu_ctx ctx;
    open_ctx(&ctx);
    op_call c;
    call_begin(&c, &ctx, 5);
    double *s = put(&c, "stats", ASSAY_F32, 1, 9, 3, (int64_t)P, (int64_t)3, (int64_t)T);
    for (int t = 0; t < T; ++t) {
        s[1 * 3 * T + t] = -(double)INFINITY; /* the second piece is empty */
        s[1 * 3 * T + T + t] = s[1 * 3 * T + 2 * T + t] = s[2 * T + t] = 0;
    }
    store_slot(&c);
    const double y[T] = {1, -100, 2, 3};
    put_values(&c, "targets", ASSAY_I64, y, T, -1);
    run_op(&c, "cross_entropy_loss", ASSAY_F32);
    for (int t = 0; t < T; ++t) {
        double m = fmax(s[t], s[2 * 3 * T + t]), sum = 0, target = 0;
        for (int p = 0; p < P; ++p) {
            sum += s[p * 3 * T + T + t] * exp(s[p * 3 * T + t] - m);
            target += s[p * 3 * T + 2 * T + t];
        }
        const double lse = m + log(sum);
        near(&c, "lse", t, lse, 40 * U32 * lse);
        near(&c, "loss", t, y[t] < 0 ? 0 : lse - target, y[t] < 0 ? 0 : 60 * U32 * (lse + target));
    }
    call_end(&c);
    gpu_ctx_destroy(&ctx);
}

Test(gpu_cross_entropy, gradient_is_softmax_minus_target)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int a = 0; a < 2; ++a)
        for (int i = 0; i < 7; ++i) {
            const int64_t t = 4, v = vocab[i];
            const double y[4] = {1, -100, (double)v, 77777};
            op_call c;
            call_begin(&c, &ctx, 5);
            const double *l = put(&c, "logits", ASSAY_F32, -5, 5, 2, t, v);
            const double *lse = put(&c, "lse", ASSAY_F32, 5, 9, 1, t);
            put_values(&c, "targets", ASSAY_I64, y, t, -1);
            attr_i(&c, "vocab_start", 1);
            attr_d(&c, "scale", 0.125);
            run_op(&c, "cross_entropy_bwd", a == 0 ? ASSAY_F32 : ASSAY_BF16);
            for (int64_t r = 0; r < t; ++r)
                for (int64_t e = 0; e < v; ++e) {
                    const double p = exp(l[r * v + e] - lse[r]);
                    const double d = y[r] == -100 ? 0 : (p - (e + 1 == (int64_t)y[r])) * 0.125;
                    near(&c, "dlogits", r * v + e, d, y[r] == -100 ? 0 : 0.125 * U32 * (40 * p + 2));
                }
            call_end(&c);
        }
    gpu_ctx_destroy(&ctx);
}

static void adamw_attrs(op_call *c, int64_t step, double wd, double grad_scale)
{
    attr_d(c, "lr", 1e-3);
    attr_d(c, "beta1", 0.9);
    attr_d(c, "beta2", 0.95);
    attr_d(c, "eps", 1e-8);
    attr_d(c, "weight_decay", wd);
    attr_d(c, "grad_scale", grad_scale);
    attr_i(c, "step", step);
}

Test(gpu_adamw, update_matches_the_formula_in_both_variants)
{
    static const int64_t sizes[] = {0, 1, 3, 255, 1025, 2311};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int k = 0; k < 4; ++k)
        for (int i = 0; i < 6; ++i) {
            const int64_t n = sizes[i], step = 1 + 4 * i;
            const double wd = k & 1 ? 0.1 : 0, gs = k & 1 ? 0.3 : 1, lr = 1e-3;
            op_call c;
            set_variants(&ctx, k & 2 ? "adamw=k1" : "adamw=k0");
            call_begin(&c, &ctx, (uint64_t)i);
            const double *p = put(&c, "main_param_in", ASSAY_F32, -1, 1, 1, n);
            const double *m = put(&c, "exp_avg_in", ASSAY_F32, -0.1, 0.1, 1, n);
            const double *v = put(&c, "exp_avg_sq_in", ASSAY_F32, 0.001, 0.1, 1, n);
            const double *g = put(&c, "grad", ASSAY_F32, -1, 1, 1, n);
            adamw_attrs(&c, step, wd, gs);
            run_op(&c, "adamw", ASSAY_BF16);
            for (int64_t e = 0; e < n; ++e) {
                const double gg = g[e] * gs, nm = 0.9 * m[e] + 0.1 * gg, nv = 0.95 * v[e] + 0.05 * gg * gg;
                const double c1 = 1 - pow(0.9, (double)step), c2 = 1 - pow(0.95, (double)step);
                const double den = sqrt(nv / c2) + 1e-8, update = nm / c1 / den;
                const double em = U32 * (2 * fabs(0.9 * m[e]) + 3 * fabs(0.1 * gg));
                near(&c, "exp_avg", e, nm, em);
                near(&c, "exp_avg_sq", e, nv, 4 * U32 * nv);
                const double eu = em / (c1 * den) + fabs(update) * U32 * 12;
                const double bound =
                    lr * (eu + 3 * U32 * fabs(wd * p[e]) + 2 * U32 * fabs(update + wd * p[e]));
                near(&c, "main_param", e, p[e] - lr * (update + wd * p[e]), bound);
                exact(&c, "param", e, to_bf16(result(&c, "main_param")[e]));
            }
            call_end(&c);
        }
    gpu_ctx_destroy(&ctx);
}

/* 100 tensors of different sizes and decays in one call: more than one table, same bits as one by one. */
Test(gpu_adamw, many_tensors_in_one_call_equal_one_call_each)
{
    enum { N = 100, STRIDE = 40 };
    gpu_ctx ctx;
    open_ctx(&ctx);
    float host[4][N * STRIDE], first[4][N * STRIDE];
    for (int k = 0; k < 2; ++k) {
        float *device[4];
        gpu_tensor t[4][N], none[N];
        gpu_adamw_desc d[N];
        for (int q = 0; q < 4; ++q) {
            for (int i = 0; i < N * STRIDE; ++i)
                host[q][i] = (float)((i * 7 + q * 3) % 19 + 1) / 16.0f;
            cr_assert_eq(cudaMalloc((void **)&device[q], sizeof host[q]), cudaSuccess);
            cudaMemcpy(device[q], host[q], sizeof host[q], cudaMemcpyHostToDevice);
            for (int i = 0; i < N; ++i)
                t[q][i] = gpu_tensor_1d(device[q] + i * STRIDE, ASSAY_F32, i % (STRIDE + 1));
        }
        for (int i = 0; i < N; ++i) {
            none[i] = gpu_tensor_none();
            d[i] = (gpu_adamw_desc){0.01, 0.9, 0.99, 1e-8, i % 3 * 0.1, 1.0, 3};
        }
        set_variants(&ctx, k == 0 ? "adamw=k0" : "adamw=k1");
        cr_assert_eq(gpu_adamw(&ctx, N, t[0], t[1], t[2], none, t[3], d, ctx.stream), ASSAY_OK, "%s",
                     assay_error_message());
        cr_assert_eq(gpu_ctx_sync(&ctx, "adamw"), ASSAY_OK);
        for (int q = 0; q < 4; ++q) {
            cudaMemcpy(host[q], device[q], sizeof host[q], cudaMemcpyDeviceToHost);
            cudaFree(device[q]);
        }
        if (k == 0)
            memcpy(first, host, sizeof first);
        cr_assert(memcmp(first, host, sizeof first) == 0, "k1 differs from k0");
    }
    gpu_ctx_destroy(&ctx);
}
