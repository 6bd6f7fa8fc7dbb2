/* Matrix products and sums: honest single-precision kernels of every declared order, on five kinds of data,
 * stay within their bounds, and where the order is exact the bounds are near. */
#include "tests/support/ref_bounds.h"

enum { T = 5, N = 6, K = 257 };

static trial linear_fwd_trial(int arith_index, int mode, assay_dtype dtype, test_rng *r, int64_t k, bool bias)
{
    trial x = trial_new("linear_fwd", arith_case(arith_index));
    const double *a = trial_in(&x, "x", dtype, mode_data(r, mode, T * k, k, dtype, 1.0), SHAPE(T, k));
    const double *w = trial_in(
        &x, "weight", dtype,
        mode_data(r, mode == MODE_SIGNED_HALVES ? MODE_POSITIVE : mode, N * k, k, dtype, 1.0), SHAPE(N, k));
    const double *b =
        bias ? trial_in(&x, "bias", dtype, mode_data(r, mode, N, N, dtype, 1.0), SHAPE(N)) : NULL;
    double *y = trial_out(&x, "y", dtype, SHAPE(T, N));
    float *fa = malloc((size_t)(2 * k + 1) * sizeof *fa), *fw = fa + k;
    for (int64_t i = 0; i < T; i++)
        for (int64_t j = 0; j < N; j++) {
            column_to_float(fa, a + i * k, k, 1, 0);
            column_to_float(fw, w + j * k, k, 1, 0);
            float s = emulate_dot(fa, fw, k, &x.arith, r);
            if (b)
                s += (float)b[j];
            y[i * N + j] = (double)s;
        }
    free(fa);
    return x;
}

Test(ref_bounds_sums, linear_forward_holds_in_every_order)
{
    test_rng r = {1};
    for (int a = 0; a < N_ARITHS; a++)
        for (int mode = 0; mode < N_MODES; mode++)
            for (int64_t k = 0; k <= K; k = k == 0 ? 1 : k == 1 ? 31 : k == 31 ? K : k + 1)
                for (int bias = 0; bias < 2; bias++) {
                    const assay_dtype dtype = bias ? ASSAY_BF16 : ASSAY_F32;
                    char what[64];
                    snprintf(what, sizeof what, "arith %d mode %d k %d", a, mode, (int)k);
                    trial x = linear_fwd_trial(a, mode, dtype, &r, k, bias);
                    trial_expect_pass(&x, what);
                    trial_free(&x);
                }
}

/* Constant data drive a chain to a fixed share of its bound (every rounding has the same sign). */
Test(ref_bounds_sums, exact_orders_have_near_bounds)
{
    const double floor[N_ARITHS] = {0.15, 0.15, 0.15, 0.03, 0.03, 0.05, 0.0};
    test_rng r = {2};
    for (int a = 0; a < N_ARITHS; a++) {
        double worst = 0.0;
        for (int mode = 0; mode < N_MODES; mode++) {
            trial x = linear_fwd_trial(a, mode, ASSAY_F32, &r, K, false);
            trial_store(&x);
            trial_judge(&x);
            worst = fmax(worst, x.worst);
            trial_free(&x);
        }
        cr_expect(worst >= floor[a], "arith %d: worst ratio %.3g below %.3g: the bound is loose", a, worst,
                  floor[a]);
    }
}

static trial weight_trial(int arith_index, int mode, assay_dtype dtype, test_rng *r, int64_t t)
{
    trial x = trial_new("linear_bwd_weight", arith_case(arith_index));
    const double *dy = trial_in(&x, "dy", dtype, mode_data(r, mode, t * 3, 3, dtype, 1.0), SHAPE(t, 3));
    const double *in = trial_in(&x, "x", dtype, mode_data(r, mode, t * 4, 4, dtype, 1.0), SHAPE(t, 4));
    const double *old =
        trial_in(&x, "dweight_in", ASSAY_F32, mode_data(r, mode, 12, 12, ASSAY_F32, 3.0), SHAPE(3, 4));
    double *y = trial_out(&x, "dweight", ASSAY_F32, SHAPE(3, 4));
    float *a = malloc((size_t)(2 * t + 2) * sizeof *a), *b = a + t;
    for (int64_t i = 0; i < 3; i++)
        for (int64_t j = 0; j < 4; j++) {
            column_to_float(a, dy, t, 3, i);
            column_to_float(b, in, t, 4, j);
            y[i * 4 + j] = (double)(emulate_dot(a, b, t, &x.arith, r) + (float)old[i * 4 + j]);
        }
    free(a);
    return x;
}

Test(ref_bounds_sums, accumulated_targets_hold)
{
    const int64_t sizes[] = {0, 1, 2, 77};
    test_rng r = {3};
    for (int a = 0; a < N_ARITHS; a++)
        for (int mode = 0; mode < N_MODES; mode++)
            for (int s = 0; s < 4; s++) {
                trial x = weight_trial(a, mode, s % 2 ? ASSAY_F32 : ASSAY_BF16, &r, sizes[s]);
                trial_expect_pass(&x, "dweight");
                trial_free(&x);
            }
}

/* The product alone in `stored`, then added.  fused: added in single precision as it is, which a bound of the other form must
 * not allow. */
static trial stored_trial(int arith_index, assay_dtype dtype, test_rng *r, int64_t t, bool fused)
{
    trial x = weight_trial(arith_index, MODE_GAUSSIAN, dtype, r, t);
    const double *dy = x.in[0].value, *in = x.in[1].value, *old = x.in[2].value;
    double *y = x.out[0].value;
    float *a = malloc((size_t)(2 * t + 2) * sizeof *a), *b = a + t;
    json_object_set_new(x.attrs, "gradient_accumulation_fusion", json_false());
    for (int64_t i = 0; i < 12 && t > 0; i++) {
        column_to_float(a, dy, t, 3, i / 4);
        column_to_float(b, in, t, 4, i % 4);
        const float product = emulate_dot(a, b, t, &x.arith, r);
        y[i] = (double)((float)ref_round((double)product, fused ? ASSAY_F32 : dtype) + (float)old[i]);
    }
    free(a);
    return x;
}

Test(ref_bounds_sums, products_that_are_stored_before_they_are_added)
{
    const int64_t sizes[] = {0, 1, 2, 77};
    test_rng r = {7};
    int64_t caught = 0;
    for (int a = 0; a < N_ARITHS; a++)
        for (int s = 0; s < 4; s++) {
            trial x = stored_trial(a, s % 2 ? ASSAY_F32 : ASSAY_BF16, &r, sizes[s], false);
            trial_expect_pass(&x, "stored");
            trial_free(&x);
            x = stored_trial(a, ASSAY_BF16, &r, 77, true);
            trial_store(&x);
            trial_judge(&x);
            caught += x.n_bad > 0;
            trial_free(&x);
        }
    cr_expect_geq(caught, 3 * N_ARITHS, "a product that was not rounded: caught %lld times of %d",
                  (long long)caught, 4 * N_ARITHS);
}

Test(ref_bounds_sums, no_tokens_leave_the_gradient_bit_for_bit)
{
    test_rng r = {4};
    trial x = weight_trial(0, MODE_GAUSSIAN, ASSAY_F32, &r, 0);
    trial_expect_pass(&x, "no tokens");
    for (int i = 0; i < 12; i++)
        cr_expect(x.result.outputs[0].bound[i] == 0.0);
    trial_free(&x);
}

Test(ref_bounds_sums, input_and_bias_gradients_hold)
{
    test_rng r = {5};
    for (int a = 0; a < N_ARITHS; a++)
        for (int mode = 0; mode < N_MODES; mode++) {
            float fa[64], fb[64];
            trial x = trial_new("linear_bwd_input", arith_case(a));
            const double *dy = trial_in(&x, "dy", ASSAY_BF16,
                                        mode_data(&r, mode, 3 * 50, 50, ASSAY_BF16, 1.0), SHAPE(3, 50));
            const double *w =
                trial_in(&x, "weight", ASSAY_BF16, mode_data(&r, MODE_GAUSSIAN, 50 * 9, 9, ASSAY_BF16, 1.0),
                         SHAPE(50, 9));
            double *dx = trial_out(&x, "dx", ASSAY_BF16, SHAPE(3, 9));
            for (int64_t i = 0; i < 27; i++) {
                column_to_float(fa, dy + i / 9 * 50, 50, 1, 0);
                column_to_float(fb, w, 50, 9, i % 9);
                dx[i] = (double)emulate_dot(fa, fb, 50, &x.arith, &r);
            }
            trial_expect_pass(&x, "dx");
            trial_free(&x);

            x = trial_new("linear_bwd_bias", arith_case(a));
            dy = trial_in(&x, "dy", ASSAY_F32, mode_data(&r, mode, 50 * 9, 9, ASSAY_F32, 1.0), SHAPE(50, 9));
            const double *old =
                trial_in(&x, "dbias_in", ASSAY_F32, mode_data(&r, mode, 9, 9, ASSAY_F32, 1.0), SHAPE(9));
            double *db = trial_out(&x, "dbias", ASSAY_F32, SHAPE(9));
            for (int64_t c = 0; c < 9; c++) {
                column_to_float(fb, dy, 50, 9, c);
                db[c] = (double)(emulate_dot(NULL, fb, 50, &x.arith, &r) + (float)old[c]);
            }
            trial_expect_pass(&x, "dbias");
            trial_free(&x);
        }
}

Test(ref_bounds_sums, grouped_products_hold_with_empty_experts)
{
    test_rng r = {6};
    const int64_t counts[4] = {0, 5, 0, 2}, e = 4, n = 3, k = 40, rows = 7;
    for (int a = 0; a < N_ARITHS; a++) {
        trial x = trial_new("grouped_linear_fwd", arith_case(a));
        const double *in =
            trial_in(&x, "x", ASSAY_BF16, mode_data(&r, 0, rows * k, k, ASSAY_BF16, 1.0), SHAPE(rows, k));
        const double *w = trial_in(&x, "weight", ASSAY_BF16, mode_data(&r, 0, e * n * k, k, ASSAY_BF16, 1.0),
                                   SHAPE(e, n, k));
        int64_t *c = new_int(e);
        memcpy(c, counts, sizeof counts);
        trial_in_int(&x, "tokens_per_expert", c, SHAPE(e));
        double *y = trial_out(&x, "y", ASSAY_BF16, SHAPE(rows, n));
        float fa[64], fb[64];
        for (int64_t i = 0; i < rows * n; i++) {
            const int64_t row = i / n, expert = row < 5 ? 1 : 3;
            column_to_float(fa, in + row * k, k, 1, 0);
            column_to_float(fb, w + (expert * n + i % n) * k, k, 1, 0);
            y[i] = (double)emulate_dot(fa, fb, k, &x.arith, &r);
        }
        trial_expect_pass(&x, "grouped");
        trial_free(&x);
    }
}

Test(ref_bounds_sums, collectives_hold_in_rank_order_and_in_any)
{
    test_rng r = {7};
    enum { RANKS = 8, COUNT = 200 };
    for (int mode = 0; mode < N_MODES; mode++)
        for (int narrow = 0; narrow < 2; narrow++)
            for (int any = 0; any < 2; any++) {
                double *pieces[RANKS], y[COUNT], b[COUNT];
                const assay_dtype hop = narrow ? ASSAY_BF16 : ASSAY_F32;
                for (int i = 0; i < RANKS; i++)
                    pieces[i] = mode_data(&r, mode, COUNT, 1, hop, i % 2 ? 1.0 : -1.3);
                assay_arith arith = arith_of(any ? ASSAY_ORDER_UNKNOWN : ASSAY_ORDER_SEQUENTIAL);
                ref_bound_sum(y, b, (const double *const *)pieces, RANKS, COUNT, &arith, hop);
                for (int64_t i = 0; i < COUNT; i++) {
                    const int64_t first = any ? rng_below(&r, RANKS) : 0;
                    double s = pieces[first][i], ratio;
                    for (int64_t k = 1; k < RANKS; k++)
                        s = ref_round((double)((float)s + (float)pieces[(first + k) % RANKS][i]), hop);
                    cr_expect(ref_admissible(s, y[i], b[i], hop, &ratio), "mode %d hop %d any %d: ratio %.3g",
                              mode, narrow, any, ratio);
                }
                for (int i = 0; i < RANKS; i++)
                    free(pieces[i]);
            }
}

Test(ref_bounds_sums, sums_in_double)
{
    test_rng r = {8};
    for (int mode = 0; mode < N_MODES; mode++)
        for (int square = 0; square < 2; square++) {
            const int64_t n = 5000;
            trial x = trial_new(square ? "sumsq" : "sum", arith_of(ASSAY_ORDER_SEQUENTIAL));
            const double *v =
                trial_in(&x, "x", ASSAY_F32, mode_data(&r, mode, n, n, ASSAY_F32, 1.0), SHAPE(n));
            double *y = trial_out(&x, "y", ASSAY_F64, SHAPE(1)), s = 0.0;
            for (int64_t i = 0; i < n; i++)
                s += square ? v[i] * v[i] : v[i];
            y[0] = s;
            trial_expect_pass(&x, "double");
            /* the same sum in single precision is outside: the contract says double */
            float f = 0.0f;
            for (int64_t i = 0; i < n; i++)
                f += square ? (float)(v[i] * v[i]) : (float)v[i];
            y[0] = (double)f;
            trial_judge(&x);
            cr_expect(x.n_bad == 1, "mode %d: a single-precision sum passed", mode);
            trial_free(&x);
        }
}

/* A total is judged in double, in any order; a coefficient in double, too. */
Test(ref_bounds_sums, totals_and_coefficients)
{
    test_rng r = {9};
    for (int mode = 0; mode < N_MODES; mode++) {
        const int64_t n = 700;
        trial x = trial_new("total", arith_of(ASSAY_ORDER_SEQUENTIAL));
        const double *v = trial_in(&x, "x", ASSAY_F64, mode_data(&r, mode, n, n, ASSAY_F64, 1.0), SHAPE(n));
        double *y = trial_out(&x, "y", ASSAY_F64, SHAPE(1)), s = 0.0, back = 0.0, f = 0.0;
        for (int64_t i = 0; i < n; i++) {
            s += v[i];
            back += v[n - 1 - i];
            f = (double)(float)(f + v[i]);
        }
        y[0] = s;
        trial_expect_pass(&x, "double");
        y[0] = f;
        trial_judge(&x);
        cr_expect(x.n_bad == 1, "mode %d: a single-precision total passed", mode);
        trial_free(&x);
        for (int k = 0; k < 3; k++) {
            const double clip = k == 0 ? 0.0 : k == 1 ? 0.25 : 1e6, sumsq = 0.5 + fabs(back);
            trial t = trial_new("clip_coefficient", assay_arith_elementwise());
            json_object_set_new(t.attrs, "clip_grad", json_real(clip));
            trial_in(&t, "sumsq", ASSAY_F64, new_real(1), SHAPE(1))[0] = sumsq;
            double *norm = trial_out(&t, "norm", ASSAY_F64, SHAPE(1)),
                   *scale = trial_out(&t, "scale", ASSAY_F64, SHAPE(1));
            norm[0] = sqrt(sumsq);
            scale[0] = k == 1 ? fmin(1.0, clip / (norm[0] + 1e-6)) : 1.0;
            trial_expect_pass(&t, "the formula");
            /* another constant below the norm; single precision; above 1 */
            scale[0] = k == 1 ? fmin(1.0, clip / (norm[0] + 1e-5)) * 1.0000001 : 1.0000001;
            trial_judge(&t);
            cr_expect(t.n_bad == 1, "mode %d clip %g: a wrong coefficient passed", mode, clip);
            scale[0] = k == 1 ? fmin(1.0, clip / (norm[0] + 1e-6)) : 1.0;
            norm[0] = (double)(float)norm[0];
            trial_judge(&t);
            cr_expect(t.n_bad == 1, "mode %d: a norm in single precision passed", mode);
            trial_free(&t);
        }
    }
}

/* Fifteen terms just below the last aligned bit of the sixteenth vanish one by one: the alignment term is
 * needed. */
Test(ref_bounds_sums, tensor_core_alignment_loses_what_the_bound_allows)
{
    trial x = trial_new("linear_fwd", arith_of(ASSAY_ORDER_TENSOR_CORE));
    double *a = trial_in(&x, "x", ASSAY_F32, new_real(16), SHAPE(1, 16));
    double *w = trial_in(&x, "weight", ASSAY_F32, new_real(16), SHAPE(1, 16));
    float fa[16], fw[16];
    for (int i = 0; i < 16; i++) {
        a[i] = i == 5 ? 1.0 : 0x1p-25 * (1.0 - 0x1p-20);
        w[i] = 1.0;
        fa[i] = (float)a[i];
        fw[i] = 1.0f;
    }
    trial_out(&x, "y", ASSAY_F32, SHAPE(1, 1))[0] = (double)emulate_dot(fa, fw, 16, &x.arith, NULL);
    trial_expect_pass(&x, "alignment");
    cr_expect(x.out[0].value[0] == 1.0 && x.worst > 0.6, "ratio %.3g", x.worst);
    trial_free(&x);
}
