/* Bounds of sums as long as those of real models (53248: the ffn of Llama-3.1-405B): honest kernels of every order
 * stay inside, and what a kernel does wrong there is seen: an accumulator in bf16 or with fp16's 11 bits, a block of k that is left out.
 * docs/TOLERANCES.md section 10 has the table of `caught`. */
#include "tests/support/ref_bounds.h"

enum { T = 2, N = 8, WIDEST = 53248 };
typedef enum { HONEST, BF16_SUM, FP16_SUM, DROPPED_16, DROPPED_64, N_FAULTS } fault;

/* Rounded to `bits` of significand behind each fma. */
static float narrow_sum(const float *a, const float *b, int64_t n, int bits)
{
    double s = 0.0;
    for (int64_t k = 0; k < n; k++) {
        int e;
        s = (double)fmaf(a[k], b[k], (float)s);
        (void)frexp(s, &e);
        s = ldexp(nearbyint(ldexp(s, bits - e)), e - bits);
    }
    return (float)s;
}

static float sum_with(fault f, float *a, const float *b, int64_t k, const assay_arith *arith, test_rng *r)
{
    if (f == BF16_SUM || f == FP16_SUM)
        return narrow_sum(a, b, k, f == BF16_SUM ? 8 : 11);
    for (int64_t i = k / 2; f >= DROPPED_16 && i < k / 2 + (f == DROPPED_16 ? 16 : 64); i++)
        a[i] = 0.0f;
    return emulate_dot(a, b, k, arith, r);
}

/* Elements of 16 that are outside their bound; *worst: the largest ratio. */
static int caught(fault f, int order, int mode, assay_dtype dtype, double *worst)
{
    const int64_t k = WIDEST;
    static float fa[WIDEST], fw[WIDEST];
    test_rng r = {7};
    trial x = trial_new("linear_fwd", arith_case(order));
    const double *a =
        trial_in(&x, "x", ASSAY_BF16, mode_data(&r, mode, T * k, k, ASSAY_BF16, 1.0), SHAPE(T, k));
    const double *w =
        trial_in(&x, "weight", ASSAY_BF16, mode_data(&r, mode, N * k, k, ASSAY_BF16, 1.0), SHAPE(N, k));
    double *y = trial_out(&x, "y", dtype, SHAPE(T, N));
    if (dtype == ASSAY_F32)
        json_object_set_new(x.attrs, "dtype", json_string("F32"));
    for (int64_t i = 0; i < T * N; i++) {
        column_to_float(fa, a + i / N * k, k, 1, 0);
        column_to_float(fw, w + i % N * k, k, 1, 0);
        y[i] = (double)sum_with(f, fa, fw, k, &x.arith, &r);
    }
    trial_store(&x);
    trial_judge(&x);
    const int bad = (int)x.n_bad;
    *worst = x.worst;
    trial_free(&x);
    return bad;
}

/* Every declared order, results stored in bf16 and in fp32. */
typedef void (*law)(const char *what, int order, assay_dtype dtype);
static void all_orders(law hold)
{
    static const int orders[] = {0, 1, 3, 5, 6}; /* of arith_case: chains, a tree, matrix units, unknown */
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++)
        for (int d = 0; d < 2; d++) {
            char what[64];
            snprintf(what, sizeof what, "order %d, %s", (int)arith_case(orders[o]).order, d ? "F32" : "BF16");
            hold(what, orders[o], d ? ASSAY_F32 : ASSAY_BF16);
        }
}

static void honest_passes(const char *what, int order, assay_dtype dtype)
{
    for (int mode = MODE_GAUSSIAN; mode <= MODE_POSITIVE; mode++) {
        double worst;
        cr_expect_eq(caught(HONEST, order, mode, dtype, &worst), 0, "%s, mode %d: %g", what, mode, worst);
        cr_expect_gt(worst, 0.0);
    }
}

Test(ref_bounds_widths, honest_kernels_stay_inside)
{
    all_orders(honest_passes);
}

/* On data of one sign a narrow sum stops growing: every element shows it, whatever the order that is declared. */
static void narrow_fails(const char *what, int order, assay_dtype dtype)
{
    double worst;
    cr_expect_eq(caught(BF16_SUM, order, MODE_POSITIVE, dtype, &worst), T * N, "%s", what);
    cr_expect_gt(worst, 100.0, "%s: %g", what, worst);
    cr_expect_eq(caught(FP16_SUM, order, MODE_POSITIVE, dtype, &worst), T * N, "%s", what);
    cr_expect_gt(worst, 100.0, "%s: %g", what, worst);
}

Test(ref_bounds_widths, narrow_accumulators_are_seen_on_data_of_one_sign)
{
    all_orders(narrow_fails);
}

/* On zero-mean data the sum is small and its declared order's bound is, too.  Where no order is declared the bound covers the worst one, which
 * at this length is more than a block: not seen, and a reason to declare it. */
static void dropped_fails(const char *what, int order, assay_dtype dtype)
{
    const bool declared = arith_case(order).order != ASSAY_ORDER_UNKNOWN;
    for (fault f = DROPPED_16; f <= DROPPED_64; f++) {
        double worst;
        const int n = caught(f, order, MODE_GAUSSIAN, dtype, &worst);
        cr_expect(declared ? n >= T * N / 2 : n == 0, "%s, fault %d: %d elements, %g", what, (int)f, n,
                  worst);
    }
}

Test(ref_bounds_widths, a_block_that_is_left_out_is_seen_where_the_order_is_declared)
{
    all_orders(dropped_fails);
}
