/* The inner loops of the bounds: a product in tiles has the bits of one column after another, whatever stands
 * beside a cell and whatever the machine's vectors are; ulps from bits are frexp's. */
#include "tests/support/ref_bounds.h"

enum { M = 19, N = 37, COLUMNS = 21 };

static void expect_bits(const char *what, int arith, int64_t i, int64_t c, double got, double want)
{
    cr_expect(memcmp(&got, &want, sizeof got) == 0, "arith %d: %s [%lld,%lld]: %a, alone %a", arith, what,
              (long long)i, (long long)c, got, want);
}

/* y [M,COLUMNS] = a b^T through the product, and each element by itself (the narrow loops). */
static void check_product(int arith, bool fma, int split)
{
    test_rng r = {91};
    assay_arith declared = arith_case(arith);
    declared.fma = fma;
    declared.split = split;
    ref_declared d;
    cr_assert(ref_declared_of(&d, &declared, "linear_fwd") == ASSAY_OK);
    double *a = random_normal(&r, M * N), *b = random_normal(&r, COLUMNS * N);
    const ref_pair y = {new_real(M * COLUMNS), new_real(M * COLUMNS), false};
    cr_assert(ref_bound_linear_fwd(y, a, b, NULL, M, COLUMNS, N, &d) == ASSAY_OK);
    for (int64_t i = 0; i < M; i++)
        for (int64_t c = 0; c < COLUMNS; c++) {
            const ref_iv alone = ref_sum_dot(a + i * N, b + c * N, N, &d.order);
            expect_bits("value", arith, i, c, y.y[i * COLUMNS + c], alone.v);
            expect_bits("bound", arith, i, c, y.b[i * COLUMNS + c], alone.b);
        }
    free(a), free(b), free(y.y), free(y.b);
}

Test(ref_bounds_chain, a_tile_has_the_bits_of_single_columns)
{
    for (int arith = 0; arith < N_ARITHS; arith++)
        for (int fma = 0; fma < 2; fma++)
            for (int split = 1; split < 4; split += 2)
                check_product(arith, fma != 0, split);
}

/* Columns side by side under one row, in every number of blocks. */
Test(ref_bounds_chain, a_row_has_the_bits_of_single_columns)
{
    enum { WIDEST = 83 };
    test_rng r = {92};
    for (int arith = 0; arith < N_ARITHS; arith++) {
        const assay_arith declared = arith_case(arith);
        ref_declared d;
        cr_assert(ref_declared_of(&d, &declared, "row") == ASSAY_OK);
        double *a = random_normal(&r, N), *b = random_normal(&r, N * WIDEST);
        double y[WIDEST], bound[WIDEST], g[WIDEST], column[N];
        for (int64_t columns = 1; columns <= WIDEST; columns += 2) {
            ref_sum_columns(y, bound, a, 1, b, WIDEST, N, columns, &d.order);
            ref_sum_magnitudes(g, a, b, WIDEST, N, columns);
            for (int64_t c = 0; c < columns; c++) {
                double size = 0.0;
                for (int64_t k = 0; k < N; k++)
                    column[k] = b[k * WIDEST + c];
                ref_sum_magnitudes(&size, a, column, 1, N, 1);
                const ref_iv alone = ref_sum_dot(a, column, N, &d.order);
                expect_bits("value", arith, columns, c, y[c], alone.v);
                expect_bits("bound", arith, columns, c, bound[c], alone.b);
                expect_bits("magnitude", arith, columns, c, g[c], size);
            }
        }
        free(a), free(b);
    }
}

/* The fused loops bound what they should: never less than u sum |s_k| of the exact prefixes (tree: of the exact
 * magnitudes), and more only by the widening of u and the feedback. */
Test(ref_bounds_chain, bounds_are_those_of_exact_prefixes)
{
    enum { LONGEST = 700, RUNS = 40 };
    const double u = 0x1p-24, room = 1.0 + 0x1p-13;
    test_rng r = {95};
    for (int run = 0; run < RUNS; run++) {
        const int64_t n = 1 + run * (LONGEST - 1) / (RUNS - 1);
        assay_arith sequential = {.accumulate = ASSAY_F32, .order = ASSAY_ORDER_SEQUENTIAL, .fma = true};
        assay_arith tree = {.accumulate = ASSAY_F32, .order = ASSAY_ORDER_TREE, .lanes = 1};
        ref_declared chain, lanes;
        cr_assert(ref_declared_of(&chain, &sequential, "dot") == ASSAY_OK);
        cr_assert(ref_declared_of(&lanes, &tree, "dot") == ASSAY_OK);
        double *a = random_normal(&r, n), *b = random_normal(&r, n);
        long double s = 0.0L, prefixes = 0.0L, magnitudes = 0.0L;
        for (int64_t k = 0; k < n; k++) {
            a[k] = (double)(float)(run % 2 ? a[k] : fabs(a[k]));
            b[k] = (double)(float)(run % 2 ? b[k] : fabs(b[k]));
            s += (long double)a[k] * (long double)b[k];
            prefixes += s < 0.0L ? -s : s;
            magnitudes += fabsl((long double)a[k] * (long double)b[k]);
        }
        const double least[2] = {u * (double)prefixes, (double)n * u * (double)magnitudes};
        for (int i = 0; i < 2; i++) {
            const ref_iv z = ref_sum_dot(a, b, n, i == 0 ? &chain.order : &lanes.order);
            cr_expect(fabs(z.v - (double)s) <= (double)n * 0x1p-52 * (double)magnitudes, "%lld: %a is not %a",
                      (long long)n, z.v, (double)s);
            cr_expect(z.b >= least[i] && z.b <= least[i] * room + 0x1p-130, "%lld: %a, at least %a",
                      (long long)n, z.b, least[i]);
        }
        free(a), free(b);
    }
}

/* Two chains that differ in one product have different bits: the comparison above can fail. */
Test(ref_bounds_chain, one_changed_product_changes_the_bits)
{
    const assay_arith declared = arith_case(0);
    ref_declared d;
    test_rng r = {93};
    double *a = random_normal(&r, N), *b = random_normal(&r, N);
    cr_assert(ref_declared_of(&d, &declared, "row") == ASSAY_OK);
    const ref_iv before = ref_sum_dot(a, b, N, &d.order);
    b[N / 2] = nextafter(b[N / 2], 10.0) + 0x1p-40;
    const ref_iv after = ref_sum_dot(a, b, N, &d.order);
    cr_expect(memcmp(&before.v, &after.v, sizeof before.v) != 0);
    free(a), free(b);
}

Test(ref_bounds_chain, ulp_is_what_frexp_says)
{
    const assay_dtype dtypes[] = {ASSAY_F64, ASSAY_F32, ASSAY_BF16, ASSAY_F16, ASSAY_F8_E4M3};
    test_rng r = {94};
    for (int t = 0; t < 5; t++) {
        const int p = assay_dtype_precision(dtypes[t]), emin = assay_dtype_emin(dtypes[t]);
        for (int i = 0; i < 20000; i++) {
            const uint64_t bits = i < 4 ? (uint64_t)i : rng_u64(&r);
            double x;
            int e = 0;
            memcpy(&x, &bits, sizeof x);
            if (!isfinite(x))
                continue;
            (void)frexp(x, &e);
            if (x == 0.0 || e - 1 < emin)
                e = emin + 1;
            cr_assert(ref_ulp(x, dtypes[t]) == ldexp(1.0, e - p), "%a in type %d", x, t);
        }
        cr_expect(ref_ulp(-HUGE_VAL, dtypes[t]) == HUGE_VAL && isnan(ref_ulp(NOT_A_NUMBER, dtypes[t])));
    }
}

/* The short series is expm1 to the last bits. */
Test(ref_bounds_chain, errors_of_exponents_are_expm1)
{
    for (double x = 0x1p-60; x < 4.0; x *= 1.1)
        cr_expect(fabs(ref_fast_expm1(x) - expm1(x)) <= 2.0 * ref_ulp(expm1(x), ASSAY_F64), "%a", x);
    cr_expect(ref_fast_expm1(0.0) == 0.0 && isnan(ref_fast_expm1(NOT_A_NUMBER)) &&
              ref_fast_expm1(HUGE_VAL) == HUGE_VAL);
}
