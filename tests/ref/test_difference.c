/* The comparison that tests of several folders share does not lose a NaN. */
#include "tests/support/difference.h"

enum { N = 3 };

static double difference(const double *found, const double *expected)
{
    const assay_tensor_info f = {.name = "x", .dtype = ASSAY_F64, .count = N, .data = found},
                            e = {.name = "x", .dtype = ASSAY_F64, .count = N, .data = expected};
    return tensor_difference(&f, &e);
}

Test(difference, a_nan_stays_wherever_it_is)
{
    static const double numbers[N] = {1.0, -4.0, 2.0};
    for (int at = 0; at < N; at++) {
        double x[N];
        memcpy(x, numbers, sizeof x);
        x[at] = (double)NAN;
        cr_expect(isnan(difference(x, numbers)), "found a NaN at %d", at);
        cr_expect(isnan(difference(numbers, x)), "expected a NaN at %d", at);
        x[at] = (double)INFINITY;
        cr_expect(!(difference(x, x) <= 1.0), "two infinities at %d", at);
    }
}

Test(difference, is_relative_to_the_largest_expected)
{
    static const double expected[N] = {1.0, -4.0, 2.0}, found[N] = {1.5, -4.0, 3.0}, zeros[N];
    cr_expect_eq(difference(expected, expected), 0.0);
    cr_expect_eq(difference(found, expected), 0.25);
    cr_expect_eq(difference(found, zeros), 4.0);
}

Test(difference, the_worse_of_two)
{
    cr_expect_eq(worse_of(1.0, 2.0), 2.0);
    cr_expect_eq(worse_of(2.0, 1.0), 2.0);
    cr_expect(isnan(worse_of((double)NAN, 1.0)) && isnan(worse_of(1.0, (double)NAN)));
}
