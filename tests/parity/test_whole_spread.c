/* How often an honest run is called wrong: errors of known spectra, drawn, judged by four runs of the same law, and by sixteen
 * where the four call it wrong. */
#include "parity/checks/whole_subject.h"
#include "tests/support/ref.h"

#include <math.h>

TestSuite(parity_whole_spread, .timeout = 120);

enum { MOST = 41, FEW = PARITY_WHOLE_FIRST_RUNS, R = PARITY_WHOLE_RUNS };

/* `large` errors of variance 1, one of variance `second`, `small` of variance `rest`; the share of honest runs that is called wrong
 * is known to be at most `few` with four runs alone, `most` after the second look. */
typedef struct spectrum {
    int large, small;
    double second, rest, few, most;
} spectrum;

/* Four standard deviations leave 6.3e-5; one direction leaves 1.2e-4, as the expansion of kappa does at 4 degrees of freedom; a factor
 * with something small beside it more, because three cosines of four runs do not always show it. */
static const spectrum spectra[] = {
    {1, 0, 0.0, 0.0, 3e-4, 1e-4},  {1, 0, 0.03, 0.0, 1e-3, 1e-4},   {1, 0, 0.1, 0.0, 3e-4, 1e-4},
    {1, 0, 0.3, 0.0, 2e-4, 1e-4},  {2, 0, 0.0, 0.0, 1e-4, 1e-4},    {5, 0, 0.0, 0.0, 1e-4, 1e-4},
    {1, 10, 0.0, 0.1, 1e-4, 1e-4}, {1, 39, 0.0, 0.001, 5e-3, 1e-4}, {1, 39, 0.5, 0.02, 1e-3, 1e-4},
    {40, 0, 0.0, 0.0, 1e-4, 1e-4},
};
enum { N_SPECTRA = sizeof spectra / sizeof spectra[0] };

static int sizes_of(const spectrum *x, double size[MOST])
{
    int n = 0;
    for (int i = 0; i < x->large; i++)
        size[n++] = 1.0;
    if (x->second > 0.0)
        size[n++] = sqrt(x->second);
    for (int i = 0; i < x->small; i++)
        size[n++] = sqrt(x->rest);
    return n;
}

/* One slice: products of the runs' errors, and the sum of squares of one more run. */
static double draw(double gram[R][R], const double *size, int n, test_rng *r)
{
    double fifth = 0.0;
    for (int k = 0; k < R; k++)
        for (int l = 0; l < R; l++)
            gram[k][l] = 0.0;
    for (int i = 0; i < n; i++) {
        double e[R + 1];
        for (int k = 0; k <= R; k++)
            e[k] = size[i] * rng_normal(r);
        for (int k = 0; k < R; k++)
            for (int l = 0; l < R; l++)
                gram[k][l] += e[k] * e[l];
        fifth += e[R] * e[R];
    }
    return fifth;
}

static double allowance(double gram[R][R], int runs, int n, bool blind)
{
    double spread = 0.0;
    for (int k = 0; k < runs; k++)
        spread += gram[k][k];
    const double nu = blind ? 16.0 : parity_whole_freedom(gram, runs, n);
    return parity_whole_kappa(runs * nu) * sqrt(spread / runs);
}

/* Shares of honest runs beyond the allowance of four runs, and of both; blind: every error counts as independent. */
typedef struct shares {
    double few, both;
} shares;

static shares alarms(const spectrum *x, int draws, bool blind)
{
    double size[MOST], gram[R][R];
    const int n = sizes_of(x, size);
    test_rng r = {7};
    shares beyond = {0.0, 0.0};
    for (int i = 0; i < draws; i++) {
        const double error = sqrt(draw(gram, size, n, &r));
        const bool first = error > allowance(gram, FEW, n, blind);
        beyond.few += first;
        beyond.both += first && error > allowance(gram, R, n, blind);
    }
    return (shares){beyond.few / draws, beyond.both / draws};
}

Test(parity_whole_spread, an_honest_run_is_seldom_called_wrong)
{
    for (int i = 0; i < N_SPECTRA; i++) {
        const spectrum *x = &spectra[i];
        const shares share = alarms(x, x->small + x->large > 11 ? 20000 : 200000, false);
        cr_expect_leq(share.few, x->few, "spectrum %d, four runs: %g", i, share.few);
        cr_expect_leq(share.both, x->most, "spectrum %d, after the second look: %g", i, share.both);
    }
    cr_expect_gt(alarms(&spectra[0], 20000, true).few, 5e-3,
                 "a common factor that nobody looks for would be seen");
}

/* A term of six times the spread, in every element or along the factor. */
Test(parity_whole_spread, the_second_look_sees_more_not_less)
{
    double size[MOST], gram[R][R];
    for (int i = 0; i < N_SPECTRA; i++) {
        const int n = sizes_of(&spectra[i], size);
        test_rng r = {11};
        int few = 0, both = 0;
        double variance = 0.0;
        for (int k = 0; k < n; k++)
            variance += size[k] * size[k];
        for (int k = 0; k < 2000; k++) {
            (void)draw(gram, size, n, &r);
            const double wrong = 6.0 * sqrt(variance);
            const bool first = wrong > allowance(gram, FEW, n, false);
            few += first;
            both += wrong > allowance(gram, R, n, false);
        }
        cr_expect_geq(both, few, "spectrum %d: %d of 2000 seen by sixteen runs, %d by four", i, both, few);
    }
}

Test(parity_whole_spread, one_direction_is_one_degree_and_many_are_many)
{
    double size[MOST], gram[R][R];
    test_rng r = {3};
    for (int i = 0; i < 100; i++) {
        (void)draw(gram, size, sizes_of(&spectra[0], size), &r);
        cr_expect_float_eq(parity_whole_freedom(gram, FEW, 1), 1.0, 1e-9);
        cr_expect_float_eq(parity_whole_freedom(gram, FEW, 40), 1.0, 1e-9, "40 elements, one factor");
        const int n = sizes_of(&spectra[N_SPECTRA - 1], size);
        (void)draw(gram, size, n, &r);
        const double nu = parity_whole_freedom(gram, FEW, n);
        cr_expect(nu > 5.0 && nu <= 40.0, "%g", nu);
    }
}

/* A second moment whose gradient is nothing but uncertainty, judged by 16 runs; squares: as it is. */
static double alarms_of_second_moments(double gradient, bool squares, int draws)
{
    const int64_t shape[1] = {1};
    const assay_model_config none = {0};
    const parity_scales scales = {0};
    test_rng r = {5};
    int wrong = 0;
    for (int i = 0; i < draws; i++) {
        double v[R + 1], truth = gradient * gradient;
        parity_result result;
        parity_whole_subject s = {.found = v + R,
                                  .truth = &truth,
                                  .wanted = &truth,
                                  .widen = 1.0,
                                  .runs = R,
                                  .count = 1,
                                  .shape = shape,
                                  .ndim = 1,
                                  .stored = ASSAY_F32,
                                  .squares = squares};
        for (int k = 0; k <= R; k++) {
            const double g = gradient + rng_normal(&r);
            v[k] = g * g;
        }
        for (int k = 0; k < R; k++)
            s.perturbed[k] = &v[k];
        parity_result_init(&result);
        cr_assert_eq(parity_whole_judge(&s, "w.exp_avg_sq", &none, "the truth", NULL, &scales, &result),
                     ASSAY_OK);
        wrong += result.verdict == PARITY_FAIL;
    }
    return (double)wrong / draws;
}

/* Gradients from 0 to far above their uncertainty.  Four standard deviations leave 6e-5 of the roots at both ends and up to 6e-4 between
 * them, where their law is lopsided; 1e-2 of the squares. */
Test(parity_whole_spread, second_moments_are_compared_by_their_roots)
{
    static const struct {
        double gradient, most, of_squares;
    } table[] = {
        {0.0, 2e-4, 5e-3}, {0.3, 1e-3, 5e-3}, {1.0, 1e-3, 5e-3}, {3.0, 2e-4, 5e-4}, {100.0, 2e-4, 0.0}};
    for (int i = 0; i < 5; i++) {
        const double roots = alarms_of_second_moments(table[i].gradient, true, 50000),
                     squares = alarms_of_second_moments(table[i].gradient, false, 50000);
        cr_expect_leq(roots, table[i].most, "gradient %g: %g", table[i].gradient, roots);
        cr_expect_geq(squares, table[i].of_squares, "gradient %g, squares: %g", table[i].gradient, squares);
    }
}

/* A perturbed run that overflows where the truth does not allows an infinite distance: nothing but the truth lies within it. */
Test(parity_whole_spread, an_infinite_allowance_decides_nothing)
{
    enum { N = 4 };
    static const int64_t shape[1] = {N};
    static const double truth[N] = {1.0, 2.0, 3.0, 4.0}, over[N] = {1.0, 2.0, (double)INFINITY, 4.0},
                        near[N] = {1.0, 2.0, 3.5, 4.0};
    static const struct {
        const double *found;
        parity_verdict verdict;
    } rows[] = {{truth, PARITY_PASS}, {near, PARITY_FAIL}, {over, PARITY_FAIL}};
    static const assay_model_config none = {0};
    static const parity_scales scales = {
        .tp = 1, .dp = 1, .ep = 1, .pp = 1, .cp = 1, .world = 1, .microbatches = 1};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        parity_result r;
        parity_whole_subject s = {.found = rows[i].found,
                                  .truth = truth,
                                  .wanted = truth,
                                  .widen = 1.0,
                                  .runs = 2,
                                  .perturbed = {over, over},
                                  .count = N,
                                  .shape = shape,
                                  .ndim = 1,
                                  .stored = ASSAY_F32};
        parity_result_init(&r);
        cr_assert_eq(parity_whole_judge(&s, "x", &none, "the truth", NULL, &scales, &r), ASSAY_OK);
        cr_expect_eq(r.verdict, rows[i].verdict, "%zu: %s", i, r.message);
    }
}
