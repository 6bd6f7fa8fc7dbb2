/* What the reference cannot say of an operation: exactness on integers, ties, not-a-number, empty pieces,
 * many tensors in one launch. */
#include "tests/support/gpu_ops.h"

static const char *const linear_variants[] = {"linear=k0", "linear=k1"};
static const char *const attention_variants[] = {"attention=k0", "attention=k1"};
static const char *const entropy_variants[] = {"cross_entropy=k0", "cross_entropy=k1", "cross_entropy=k2"};
static const char *const router_variants[] = {"router=k0", "router=k1"};

Test(gpu_linear, integers_are_exact_and_variants_agree_bit_for_bit)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v) {
        op_call c;
        set_variants(&ctx, linear_variants[v]);
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

/* Scores fall from 200 to -200 or so; the last key and value are NaN and seen by the last query alone. */
Test(gpu_attention, large_scores_do_not_overflow_and_hidden_rows_do_not_leak)
{
    enum { S = 40, D = 4 };
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v) {
        static const char *const one[] = {"batch", "heads", "groups"};
        static const char *const sizes[] = {"seq_q", "seq_k"};
        double position[S], q[S * D], k[S * D], value[S * D];
        op_call c;
        set_variants(&ctx, attention_variants[v]);
        call_begin(&c, &ctx, 3);
        for (int i = 0; i < 3; ++i)
            attr_i(&c, one[i], 1);
        for (int i = 0; i < 2; ++i)
            attr_i(&c, sizes[i], S);
        attr_i(&c, "head_dim", D);
        attr_d(&c, "scale", 0.25);
        for (int i = 0; i < S; ++i)
            position[i] = i;
        for (int i = 0; i < S * D; ++i) {
            q[i] = i % D == 0 ? 20 : 0;
            k[i] = i / D == S - 1 ? (double)NAN : i % D == 0 ? 40.0 - 2.0 * (i / D) : 0;
            value[i] = i / D == S - 1 ? (double)NAN : uniform(&c) - 0.5;
        }
        put_values(&c, "q_position", ASSAY_I64, position, S, -1);
        put_values(&c, "k_position", ASSAY_I64, position, S, -1);
        put_values(&c, "q", ASSAY_F32, q, S, D);
        put_values(&c, "k", ASSAY_F32, k, S, D);
        put_values(&c, "v", ASSAY_F32, value, S, D);
        run_op(&c, "attention_fwd", ASSAY_F32);
        for (int64_t i = 0; i < S - 1; ++i) {
            double sum = 0, total = 0;
            for (int64_t j = 0; j <= i; ++j) {
                const double p = exp(0.25 * 20 * -2.0 * (double)j); /* relative to key 0 */
                total += p;
                sum += p * c.value[4][j * D];
            }
            near(&c, "o", i * D, sum / total, 1e-5);
        }
        cr_assert(isnan(result(&c, "o")[(S - 1) * D]), "a NaN key of a visible row must arrive");
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}

/* k2 and k3 multiply whole tiles, hidden keys with the factor 0: what is not finite in them must not arrive, in those that see it it must. */
static void hides_what_is_not_finite(int D, int variant)
{
    enum { S = 70, NAN_KEY = 40, INF_KEY = 41 };
    static double q[S * 256], k[S * 256], value[S * 256];
    const int bad = D - 5; /* in the last of several parts of a row */
    static const char *const one[] = {"batch", "heads", "groups"};
    static const char *const sizes[] = {"seq_q", "seq_k"};
    gpu_ctx ctx;
    op_call c;
    double position[S];
    open_ctx(&ctx);
    set_variants(&ctx, variant == 2 ? "attention=k2" : "attention=k3");
    call_begin(&c, &ctx, 3);
    for (int i = 0; i < 3; ++i)
        attr_i(&c, one[i], 1);
    for (int i = 0; i < 2; ++i)
        attr_i(&c, sizes[i], S);
    attr_i(&c, "head_dim", D);
    attr_d(&c, "scale", 0.25);
    attr_i(&c, "window", 20);
    for (int i = 0; i < S; ++i)
        position[i] = i;
    for (int i = 0; i < S * D; ++i) {
        q[i] = 0.0;
        k[i] = i / D == NAN_KEY ? (double)NAN : 0.0;
        value[i] = 1.0;
    }
    value[NAN_KEY * D + 3] = (double)NAN;
    value[INF_KEY * D + bad] = (double)INFINITY;
    put_values(&c, "q_position", ASSAY_I64, position, S, -1);
    put_values(&c, "k_position", ASSAY_I64, position, S, -1);
    put_values(&c, "q", ASSAY_BF16, q, S, D);
    put_values(&c, "k", ASSAY_BF16, k, S, D);
    put_values(&c, "v", ASSAY_BF16, value, S, D);
    run_op(&c, "attention_fwd", ASSAY_BF16);
    cr_assert_eq(c.declared.variant, variant);
    for (int i = 0; i < S; ++i)
        for (int d = 0; d < D; ++d) {
            const double o = result(&c, "o")[i * D + d];
            const bool sees_nan = i >= NAN_KEY && i < NAN_KEY + 20,
                       sees_inf = i >= INF_KEY && i < INF_KEY + 20;
            if (sees_nan) /* its key is NaN, too */
                cr_assert(isnan(o), "row %d, column %d: %g", i, d, o);
            else if (sees_inf && d == bad)
                cr_assert(isinf(o), "row %d: %g", i, o);
            else
                cr_assert_eq(o, 1.0, "row %d, column %d: %g", i, d, o);
        }
    call_end(&c);
    gpu_ctx_destroy(&ctx);
}

Test(gpu_attention, hidden_nan_and_infinity_do_not_pass_matrix_units)
{
    static const int widths[] = {16, 136, 256};
    for (int w = 0; w < 3; ++w)
        for (int variant = 2; variant <= 3; ++variant)
            hides_what_is_not_finite(widths[w], variant);
}

/* The backward of k2 and k3 has numbers, infinities and NaN where that of k0 has them: NaN and infinities in each input in turn, of rows and
 * keys that are seen by some rows of a tile, in windows and grouped heads. */
static void backward_is_not_finite_where_k0_is_not(int D, int variant)
{
    enum { S = 70, A = 2, MOST = S * A * 200 };
    const int Q = S * A * D, K = S * D;
    static const char *const slots[] = {"do", "q", "k", "v", "o"}, *const outs[] = {"dq", "dk", "dv"};
    const int64_t counts[] = {Q, Q, K, K, Q};
    const char *const variants[] = {"attention=k0", variant == 2 ? "attention=k2" : "attention=k3"};
    static double found[2][3][MOST];
    double position[S], lse[S * A] = {0.0};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int i = 0; i < S; ++i)
        position[i] = i;
    int special = 0, plain = 0;
    for (int input = 0; input < 5; ++input)
        for (int kind = 0; kind < 3; ++kind) {
            for (int v = 0; v < 2; ++v) {
                op_call c;
                set_variants(&ctx, variants[v]);
                call_begin(&c, &ctx, 3);
                attr_i(&c, "batch", 1), attr_i(&c, "seq_q", S), attr_i(&c, "seq_k", S);
                attr_i(&c, "heads", A), attr_i(&c, "groups", 1), attr_i(&c, "head_dim", D);
                attr_d(&c, "scale", 0.25), attr_i(&c, "window", 20);
                put_values(&c, "q_position", ASSAY_I64, position, S, -1);
                put_values(&c, "k_position", ASSAY_I64, position, S, -1);
                put_values(&c, "lse", ASSAY_F32, lse, S, A);
                for (int s = 0; s < 5; ++s) {
                    static double x[MOST];
                    for (int64_t i = 0; i < counts[s]; ++i)
                        x[i] = (double)((i * 37 + i / D * 11 + s * 5) % 17 - 8) / 16.0;
                    if (s == input)
                        x[counts[s] / 2 + 5] = kind == 0   ? (double)NAN
                                               : kind == 1 ? (double)INFINITY
                                                           : -(double)INFINITY;
                    put(&c, slots[s], ASSAY_BF16, 0, 1, 3, (int64_t)S, counts[s] / (S * D), (int64_t)D);
                    memcpy(c.value[c.n_in - 1], x, (size_t)counts[s] * sizeof *x);
                    store_slot(&c);
                }
                run_op(&c, "attention_bwd", ASSAY_BF16);
                cr_assert_eq(c.declared.variant, v == 0 ? 0 : variant);
                for (int o = 0; o < 3; ++o)
                    memcpy(found[v][o], result(&c, outs[o]), sizeof(double) * (size_t)(o == 0 ? Q : K));
                call_end(&c);
            }
            for (int o = 0; o < 3; ++o)
                for (int i = 0; i < (o == 0 ? Q : K); ++i) {
                    const double y = found[0][o][i], x = found[1][o][i];
                    special += !isfinite(y);
                    plain += isfinite(y);
                    cr_assert(isnan(y)   ? isnan(x)
                              : isinf(y) ? x == y
                                         : fabs(x - y) <= 0.05 * (fabs(y) + 1.0),
                              "%s, kind %d, %s[%d]: k0 %g, k%d %g", slots[input], kind, outs[o], i, y,
                              variant, x);
                }
        }
    cr_assert(special > 1000 && plain > 10000, "%d special, %d plain", special, plain);
    gpu_ctx_destroy(&ctx);
}

Test(gpu_attention, backward_on_matrix_units_has_infinities_and_nan_where_plain_kernels_have_them)
{
    static const int widths[] = {16, 136, 200}, of_k3[] = {64, 128};
    for (int w = 0; w < 3; ++w)
        backward_is_not_finite_where_k0_is_not(widths[w], 2);
    for (int w = 0; w < 2; ++w)
        backward_is_not_finite_where_k0_is_not(of_k3[w], 3);
}

Test(gpu_cross_entropy, an_empty_vocabulary_piece_has_max_minus_infinity_and_sum_zero)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int k = 0; k < 3; ++k) {
        op_call c;
        const double y[2] = {0, -100};
        set_variants(&ctx, entropy_variants[k]);
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
        set_variants(&ctx, entropy_variants[k]);
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

/* x at, beside and beyond the limit, and not a number: the values, and what passes of a gradient of 1. */
Test(gpu_clamp, nothing_passes_on_the_limit_and_nan_stays)
{
    enum { N = 8 }; /* a multiple of four: k1 runs */
    const double x[N] = {1.25, -1.25, 1.2421875, -1.2421875, 3, -(double)INFINITY, 0, (double)NAN};
    const double y[N] = {1.25, -1.25, 1.2421875, -1.2421875, 1.25, -1.25, 0};
    const double slope[N] = {0, 0, 1, 1, 0, 0, 1, 0}, one[N] = {1, 1, 1, 1, 1, 1, 1, 1};
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int i = 0; i < 4; ++i) {
        const assay_dtype act = i % 2 ? ASSAY_BF16 : ASSAY_F32;
        op_call f, b;
        set_variants(&ctx, i < 2 ? "elementwise=k0" : "elementwise=k1");
        call_begin(&f, &ctx, 1);
        put_values(&f, "x", act, x, N, -1);
        attr_d(&f, "limit", 1.25);
        run_op(&f, "clamp_fwd", act);
        call_begin(&b, &ctx, 1);
        put_values(&b, "dy", act, one, N, -1);
        put_values(&b, "x", act, x, N, -1);
        attr_d(&b, "limit", 1.25);
        run_op(&b, "clamp_bwd", act);
        for (int e = 0; e < N; ++e) {
            if (e + 1 < N)
                exact(&f, "y", e, y[e]);
            exact(&b, "dx", e, slope[e]);
        }
        cr_expect(isnan(result(&f, "y")[N - 1]));
        call_end(&b);
        call_end(&f);
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
        static const char *const slots[4] = {"main_param", "exp_avg", "exp_avg_sq", "grad"};
        gpu_operands *list = calloc(N, sizeof *list);
        int variant;
        for (int q = 0; q < 4; ++q) {
            for (int i = 0; i < N * STRIDE; ++i)
                host[q][i] = (float)((i * 7 + q * 3) % 19 + 1) / 16.0f;
            cr_assert_eq(cudaMalloc((void **)&device[q], sizeof host[q]), cudaSuccess);
            cudaMemcpy(device[q], host[q], sizeof host[q], cudaMemcpyHostToDevice);
        }
        for (int i = 0; i < N; ++i) {
            list[i] = raw_operands("adamw", (const raw_operand[]){{"lr", .number = 0.01},
                                                                  {"beta1", .number = 0.9},
                                                                  {"beta2", .number = 0.99},
                                                                  {"eps", .number = 1e-8},
                                                                  {"weight_decay", .number = i % 3 * 0.1},
                                                                  {"step", .number = 3},
                                                                  {.name = NULL}});
            for (int q = 0; q < 4; ++q)
                gpu_operands_put(&list[i], slots[q],
                                 gpu_tensor_1d(device[q] + i * STRIDE, ASSAY_F32, i % (STRIDE + 1)));
        }
        set_variants(&ctx, k == 0 ? "adamw=k0" : "adamw=k1");
        cr_assert_eq(gpu_ladder_run(&ctx, list, N, ctx.stream, &variant), ASSAY_OK, "%s",
                     assay_error_message());
        cr_assert_eq(variant, k);
        free(list);
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

/* Gradients of 300 tensors in one call: more than two tables, tensors of one block, of several, and empty ones, at addresses that
 * are no multiples of 16: the bits of one call each, and the sum, which is exact. */
Test(gpu_sumsq, many_tensors_in_one_call_equal_one_call_each)
{
    enum { N = 300, MOST = 20011 };
    static const int64_t sizes[] = {0, 1, 5, 4096, 4097, 0, 257, 20011, 8193, 3};
    gpu_ctx ctx;
    open_ctx(&ctx);
    set_variants(&ctx, "elementwise=k1");
    float *x, *host = calloc(MOST + 8, sizeof *host);
    double *y, one_call[N], one_each[N];
    gpu_operands list[N];
    int variant;
    cr_assert_eq(cudaMalloc((void **)&x, (MOST + 8) * sizeof *x), cudaSuccess);
    cr_assert_eq(cudaMalloc((void **)&y, sizeof one_call), cudaSuccess);
    for (int i = 0; i < MOST + 8; ++i)
        host[i] = (float)(i * 7 % 19 + 1) / 16.0f;
    cudaMemcpy(x, host, (MOST + 8) * sizeof *x, cudaMemcpyHostToDevice);
    for (int i = 0; i < N; ++i) {
        const int64_t n = sizes[i % 10];
        list[i] = raw_operands("sumsq", (const raw_operand[]){{.name = NULL}});
        gpu_operands_put(&list[i], "x", gpu_tensor_1d(x + i % 7, ASSAY_F32, n));
        gpu_operands_put(&list[i], "y", gpu_tensor_1d(y + i, ASSAY_F64, 1));
    }
    for (int k = 0; k < 2; ++k) {
        cudaMemset(y, 0xff, sizeof one_call);
        cudaDeviceSynchronize();
        for (int i = 0; i < (k ? N : 1); ++i)
            cr_assert_eq(gpu_ladder_run(&ctx, list + i, k ? 1 : N, ctx.stream, &variant), ASSAY_OK, "%s",
                         assay_error_message());
        cr_assert_eq(variant, 1);
        cr_assert_eq(gpu_ctx_sync(&ctx, "sumsq"), ASSAY_OK);
        cudaMemcpy(k ? one_each : one_call, y, sizeof one_call, cudaMemcpyDeviceToHost);
    }
    for (int i = 0; i < N; ++i) {
        double sum = 0.0;
        for (int64_t j = 0; j < sizes[i % 10]; ++j)
            sum += (double)host[i % 7 + j] * (double)host[i % 7 + j];
        cr_expect_eq(one_call[i], sum, "tensor %d: %a, expected %a", i, one_call[i], sum);
        cr_expect_eq(one_each[i], sum, "tensor %d alone: %a, expected %a", i, one_each[i], sum);
    }
    cudaFree(x);
    cudaFree(y);
    free(host);
    gpu_ctx_destroy(&ctx);
}

Test(gpu_router, equal_logits_choose_the_lowest_experts_and_nan_ranks_last)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    for (int v = 0; v < 2; ++v) {
        op_call c;
        set_variants(&ctx, router_variants[v]);
        call_begin(&c, &ctx, 1);
        double *l = put(&c, "logits", ASSAY_F32, 0, 1, 2, (int64_t)3, (int64_t)40);
        for (int e = 0; e < 40; ++e) {
            l[e] = e % 2 == 0 ? 0.0 : -0.0;
            l[40 + e] = (double)NAN;
            l[80 + e] = e < 38 ? (double)NAN : -(double)INFINITY;
        }
        store_slot(&c);
        attr_i(&c, "topk", 3);
        attr_s(&c, "score_function", "softmax");
        run_op(&c, "router_fwd", ASSAY_F32);
        const double want[9] = {0, 1, 2, 0, 1, 2, 0, 38, 39};
        for (int i = 0; i < 9; ++i)
            exact(&c, "indices", i, want[i]);
        for (int i = 0; i < 3; ++i)
            near(&c, "probs", i, 1.0 / 3, 4 * U32);
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}

Test(gpu_experts, gather_copies_any_dtype_and_vectors)
{
    gpu_ctx ctx;
    open_ctx(&ctx);
    const double index[4] = {2, 0, 2, 1};
    const assay_dtype dtype[3] = {ASSAY_F32, ASSAY_BF16, ASSAY_I64};
    for (int a = 0; a < 3; ++a) {
        op_call c;
        call_begin(&c, &ctx, 1);
        const double *x = put(&c, "x", dtype[a], -9, 9, 1, (int64_t)3);
        put_values(&c, "index", ASSAY_I64, index, 4, -1);
        run_op(&c, "gather_rows", ASSAY_F32);
        for (int i = 0; i < 4; ++i)
            exact(&c, "y", i, x[(int)index[i]]);
        call_end(&c);
    }
    gpu_ctx_destroy(&ctx);
}
