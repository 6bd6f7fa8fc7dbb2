/* Merging in closed form: what is equal stays, what is orthogonal turns, what disagrees is decided, what is kept is counted. */
#include "core/base/philox.h"
#include "ref/adapter.h"
#include "ref/merge.h"
#include <criterion/criterion.h>

#include <math.h>

TestSuite(ref_merge);

enum { N = 1001 };

static void fill(double *x, uint64_t seed)
{
    for (uint64_t i = 0; i < N; i++)
        x[i] = ((double)assay_philox_below(seed, 0, i, 20001) - 10000.0) / 8192.0;
}

Test(ref_merge, equal_models_stay_what_they_are)
{
    static double a[N], out[N];
    const double *three[] = {a, a, a}, w[] = {0.25, 1.5, 0.25};
    fill(a, 1);
    a[5] = -0.0;
    ref_merge_linear(out, three, w, 3, N, true);
    for (int i = 0; i < N; i++)
        cr_assert(out[i] == a[i] && signbit(out[i]) == signbit(a[i]));
    ref_merge_slerp(out, a, a, 0.25, N); /* parallel: the straight line */
    for (int i = 0; i < N; i++)
        cr_assert_eq(out[i], 0.75 * a[i] + 0.25 * a[i]);
}

Test(ref_merge, linear_is_the_weighted_sum)
{
    const double a[] = {1.0, -2.0}, b[] = {3.0, 8.0}, *x[] = {a, b}, w[] = {3.0, 1.0};
    double out[2];
    ref_merge_linear(out, x, w, 2, 2, true);
    cr_expect(out[0] == 1.5 && out[1] == 0.5);
    ref_merge_linear(out, x, w, 2, 2, false);
    cr_expect(out[0] == 6.0 && out[1] == 2.0);
}

Test(ref_merge, slerp_turns_what_is_orthogonal)
{
    const double a[] = {3.0, 0.0}, b[] = {0.0, 5.0}, zero[] = {0.0, 0.0}, minus[] = {-3.0, 0.0};
    double out[2];
    for (int k = 0; k <= 4; k++) {
        const double angle = k * acos(-1.0) / 8.0; /* of the way to a right angle */
        ref_merge_slerp(out, a, b, k / 4.0, 2);
        cr_expect(fabs(out[0] - 3.0 * cos(angle)) < 1e-15 && fabs(out[1] - 5.0 * sin(angle)) < 1e-15);
    }
    ref_merge_slerp(out, a, zero, 0.5, 2); /* no angle with a zero: dot 0, a right one */
    cr_expect(fabs(out[0] - 3.0 * sqrt(0.5)) < 1e-15 && out[1] == 0.0);
    ref_merge_slerp(out, a, minus, 0.25, 2); /* opposite: the straight line */
    cr_expect(out[0] == 1.5 && out[1] == 0.0);
}

Test(ref_merge, trimming_keeps_as_many_as_it_says)
{
    static double x[N], y[N];
    static const double densities[] = {0.0, 0.0001, 0.1, 1.0 / 3.0, 0.5, 0.999, 1.0};
    for (int d = 0; d < 7; d++) {
        int64_t kept = 0, expected = (int64_t)(densities[d] * N);
        double least = HUGE_VAL, most = 0.0;
        expected = expected == 0 && densities[d] > 0.0 ? 1 : expected;
        fill(x, 7);
        for (int i = 0; i < N; i++)
            x[i] = y[i] = x[i] == 0.0 ? 1e-6 : x[i];
        ref_merge_trim(y, N, densities[d]);
        for (int i = 0; i < N; i++) {
            cr_assert(y[i] == 0.0 || y[i] == x[i]);
            kept += y[i] != 0.0;
            least = y[i] != 0.0 && fabs(y[i]) < least ? fabs(y[i]) : least;
            most = y[i] == 0.0 && fabs(x[i]) > most ? fabs(x[i]) : most;
        }
        cr_expect_eq(kept, expected, "density %g: %lld", densities[d], (long long)kept);
        cr_expect(least >= most, "density %g", densities[d]);
    }
    double equal[] = {1.0, -2.0, 2.0, 2.0, -1.0}; /* of equal ones the first */
    ref_merge_trim(equal, 5, 0.4);
    cr_expect(equal[0] == 0.0 && equal[1] == -2.0 && equal[2] == 2.0 && equal[3] == 0.0 && equal[4] == 0.0);
}

Test(ref_merge, signs_are_elected)
{
    /* opposite and equal: the sum is 0, plus wins; opposite: the greater; agreeing: the mean; nothing: nothing */
    const double base[] = {10.0, 10.0, 10.0, 10.0}, a[] = {1.0, -3.0, 2.0, 0.0}, b[] = {-1.0, 1.0, 4.0, 0.0};
    const double *delta[] = {a, b}, w[] = {1.0, 1.0};
    double out[4];
    ref_merge_elect(out, base, delta, w, 2, 4, true, 1.0, REF_MERGE_TOTAL);
    cr_expect(out[0] == 11.0 && out[1] == 7.0 && out[2] == 13.0 && out[3] == 10.0);
    ref_merge_elect(out, base, delta, w, 2, 4, false, 0.5, REF_MERGE_TOTAL);
    cr_expect(out[0] == 10.5 && out[1] == 8.5 && out[2] == 13.0 && out[3] == 10.0);
    /* by their number: one of each, plus wins */
    ref_merge_elect(out, base, delta, w, 2, 4, true, 1.0, REF_MERGE_FREQUENCY);
    cr_expect(out[0] == 11.0 && out[1] == 11.0 && out[2] == 13.0 && out[3] == 10.0);
}

Test(ref_merge, dropping_rescales_and_no_cut_changes_it)
{
    static double x[N], y[N], z[N];
    int64_t kept = 0;
    fill(x, 3);
    for (int i = 0; i < N; i++)
        y[i] = z[i] = x[i] == 0.0 ? x[i] = 1.0 : x[i];
    ref_merge_drop(y, N, 1.0, 5, "name", 0); /* keeps all: then dare is linear */
    for (int i = 0; i < N; i++)
        cr_assert_eq(y[i], x[i]);
    ref_merge_drop(y, N, 0.25, 5, "name", 0);
    ref_merge_drop(z, N, 0.25, 5, "name", 0);
    for (int i = 0; i < N; i++) {
        cr_assert(y[i] == z[i] && (y[i] == 0.0 || y[i] == x[i] / 0.25));
        kept += y[i] != 0.0;
    }
    cr_expect(fabs((double)kept - 0.25 * N) < 5.0 * sqrt(N * 0.25 * 0.75), "%lld kept", (long long)kept);
    /* of the tensor's beginning the same as of the whole; another model, seed or name is another draw */
    static double part[N];
    const struct {
        uint64_t seed;
        const char *name;
        int k;
        bool same;
    } draws[] = {{5, "name", 0, true}, {6, "name", 0, false}, {5, "other", 0, false}, {5, "name", 1, false}};
    for (int d = 0; d < 4; d++) {
        bool same = true;
        for (int i = 0; i < 501; i++)
            part[i] = x[i];
        ref_merge_drop(part, 501, 0.25, draws[d].seed, draws[d].name, draws[d].k);
        for (int i = 0; i < 501; i++)
            same = same && part[i] == y[i];
        cr_expect_eq(same, draws[d].same, "draw %d", d);
    }
}

Test(ref_merge, differences_add_up)
{
    const double base[] = {1.0, 2.0}, a[] = {0.5, -1.0}, b[] = {0.25, 1.0}, *delta[] = {a, b},
                 w[] = {2.0, -2.0};
    double out[2];
    ref_merge_add(out, base, delta, w, 2, 2, false, 1.0);
    cr_expect(out[0] == 1.5 && out[1] == -2.0);
    ref_merge_add(out, base, delta, w, 2, 2, true, 1.0); /* weights that cancel divide nothing */
    cr_expect(out[0] == 1.5 && out[1] == -2.0);
}

Test(ref_merge, adapters_add_a_product)
{
    const double a[] = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, b[] = {1.0, -1.0, 0.5, 2.0}; /* a [2,3], b [2,2] */
    const double expected[] = {-3.0, -3.0, -3.0, 8.5, 11.0, 13.5};
    double delta[6], w[6] = {0};
    int64_t row;
    ref_lora_delta(delta, a, b, 2, 3, 2, 2.0);
    for (int i = 0; i < 6; i++)
        cr_expect_eq(delta[i], 2.0 * expected[i], "%d", i);
    ref_lora_delta_embedding(delta, a, b, 3, 2, 2, 1.0);
    for (int v = 0; v < 3; v++)
        for (int h = 0; h < 2; h++)
            cr_expect_eq(delta[v * 2 + h], expected[h * 3 + v], "%d %d", v, h);
    /* DoRA: rows of the length that it says; one without a length is named */
    const double length[] = {2.0, 3.0}, turned[] = {3.0, 4.0, 0.0, 0.0, 0.0, 0.0};
    ref_dora_merge(w, turned, length, 2, 3, &row);
    cr_expect(row == 1 && fabs(w[0] - 1.2) < 1e-15 && fabs(w[1] - 1.6) < 1e-15 && w[2] == 0.0);
}
