/* Products through OpenBLAS in tiles beside one dot product for each element: the law of ref/fast.h. */
#include "tests/support/ref_fast.h"

typedef struct operands {
    int64_t t, n, k;
    double *x, *w, *dy, *bias, *old;
} operands;

static operands operands_new(int64_t t, int64_t n, int64_t k, law_data data)
{
    test_rng r = {70 + (uint64_t)(t + 100 * n + 10000 * k)};
    return (operands){t,
                      n,
                      k,
                      law_values(&r, t * k, data, 1.0),
                      law_values(&r, n * k, data, 1.0),
                      law_values(&r, t * n, data, 1.0),
                      law_values(&r, n, data, 1.0),
                      law_values(&r, n * k, data, 1.0)};
}

static void operands_free(operands *o)
{
    free(o->x), free(o->w), free(o->dy), free(o->bias), free(o->old);
}

static double *copy_of(const double *x, int64_t n)
{
    double *y = new_real(n);
    memcpy(y, x, (size_t)n * sizeof *x);
    return y;
}

/* fault: terms that the fast products leave out */
static int64_t broken(int64_t t, int64_t n, int64_t k, law_data data, int64_t fault)
{
    const ref_declared d = double_precision();
    operands o = operands_new(t, n, k, data);
    const ref_pair y = pair_new(t * n), dx = pair_new(t * k), dw = pair_new(n * k);
    double *fast[3] = {new_real(t * n), new_real(t * k), copy_of(o.old, n * k)};
    double *plain[3] = {new_real(t * n), new_real(t * k), copy_of(o.old, n * k)};
    ref_linear_fwd(plain[0], o.x, o.w, o.bias, t, n, k);
    ref_linear_bwd_input(plain[1], o.dy, o.w, t, n, k);
    ref_linear_bwd_weight(plain[2], o.dy, o.x, t, n, k);
    cr_assert(ref_bound_linear_fwd(y, o.x, o.w, o.bias, t, n, k, &d) == ASSAY_OK);
    cr_assert(ref_bound_linear_bwd_input(dx, o.dy, o.w, t, n, k, &d) == ASSAY_OK);
    cr_assert(ref_bound_linear_bwd_weight(dw, o.dy, o.x, o.old, t, n, k, &d) == ASSAY_OK);
    for (int64_t i = 0; i < fault; i++)
        o.x[i] = 0.0;
    ref_fast_linear_fwd(fast[0], o.x, o.w, o.bias, t, n, k);
    ref_fast_linear_bwd_input(fast[1], o.dy, o.w, t, n, k);
    ref_fast_linear_bwd_weight(fast[2], o.dy, o.x, t, n, k);
    const int64_t bad = law_broken(fast[0], plain[0], y, t * n) + law_broken(fast[1], plain[1], dx, t * k) +
                        law_broken(fast[2], plain[2], dw, n * k);
    for (int i = 0; i < 3; i++)
        free(fast[i]), free(plain[i]);
    pair_free(y), pair_free(dx), pair_free(dw);
    operands_free(&o);
    return bad;
}

static void check_sizes(law_data data)
{
    const int64_t widths[] = {0, 1, 5, 64, 511, 512, 513}; /* a tile is 64 x 512 */
    for (int i = 0; i < N_LAW_SIZES; i++)
        for (int j = 0; j < 7; j++)
            for (int l = 0; l < 4; l++) {
                const int64_t t = LAW_SIZES[i], n = widths[j], k = widths[l];
                const int64_t bad = broken(t, n, k, data, 0);
                cr_expect(bad == 0, "t %lld, n %lld, k %lld: %lld elements", (long long)t, (long long)n,
                          (long long)k, (long long)bad);
            }
}

Test(ref_fast_linear, equals_plain_on_zero_mean_data)
{
    check_sizes(LAW_ZERO_MEAN);
}

Test(ref_fast_linear, equals_plain_on_one_signed_data)
{
    check_sizes(LAW_ONE_SIGNED);
}

Test(ref_fast_linear, a_missing_term_breaks_the_law)
{
    cr_expect(broken(65, 7, 64, LAW_ZERO_MEAN, 1) > 0);
}

/* Experts with no rows, with one, with more than a tile. */
static int64_t grouped_broken(law_data data, const int64_t *fast_counts)
{
    enum { E = 5, N = 7, K = 13, ROWS = 136 };
    const int64_t counts[E] = {0, 1, 65, 0, 70};
    const ref_declared d = double_precision();
    operands o = operands_new(ROWS, E * N, K, data); /* w and old [E,N,K] */
    const ref_pair y = pair_new(ROWS * N), dx = pair_new(ROWS * K), dw = pair_new(E * N * K);
    double *fast[3] = {new_real(ROWS * N), new_real(ROWS * K), copy_of(o.old, E * N * K)};
    double *plain[3] = {new_real(ROWS * N), new_real(ROWS * K), copy_of(o.old, E * N * K)};
    ref_grouped_linear_fwd(plain[0], o.x, o.w, counts, E, N, K);
    ref_grouped_linear_bwd_input(plain[1], o.dy, o.w, counts, E, N, K);
    ref_grouped_linear_bwd_weight(plain[2], o.dy, o.x, counts, E, N, K);
    ref_fast_grouped_linear_fwd(fast[0], o.x, o.w, fast_counts ? fast_counts : counts, E, N, K);
    ref_fast_grouped_linear_bwd_input(fast[1], o.dy, o.w, fast_counts ? fast_counts : counts, E, N, K);
    ref_fast_grouped_linear_bwd_weight(fast[2], o.dy, o.x, fast_counts ? fast_counts : counts, E, N, K);
    for (int64_t i = 0, row = 0; i < E; row += counts[i++]) {
        const ref_pair yi = {y.y + row * N, y.b + row * N, false},
                       dxi = {dx.y + row * K, dx.b + row * K, false},
                       dwi = {dw.y + i * N * K, dw.b + i * N * K, false};
        const double *w = o.w + i * N * K, *dy = o.dy + row * N, *x = o.x + row * K;
        cr_assert(ref_bound_linear_fwd(yi, x, w, NULL, counts[i], N, K, &d) == ASSAY_OK);
        cr_assert(ref_bound_linear_bwd_input(dxi, dy, w, counts[i], N, K, &d) == ASSAY_OK);
        cr_assert(ref_bound_linear_bwd_weight(dwi, dy, x, o.old + i * N * K, counts[i], N, K, &d) ==
                  ASSAY_OK);
    }
    const int64_t bad = law_broken(fast[0], plain[0], y, ROWS * N) +
                        law_broken(fast[1], plain[1], dx, ROWS * K) +
                        law_broken(fast[2], plain[2], dw, E * N * K);
    for (int i = 0; i < 3; i++)
        free(fast[i]), free(plain[i]);
    pair_free(y), pair_free(dx), pair_free(dw);
    operands_free(&o);
    return bad;
}

Test(ref_fast_linear, grouped_products_equal_plain)
{
    cr_expect(grouped_broken(LAW_ZERO_MEAN, NULL) == 0);
    cr_expect(grouped_broken(LAW_ONE_SIGNED, NULL) == 0);
}

Test(ref_fast_linear, a_row_of_another_expert_breaks_the_law)
{
    cr_expect(grouped_broken(LAW_ZERO_MEAN, (const int64_t[]){0, 2, 64, 0, 70}) > 0);
}
