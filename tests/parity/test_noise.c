/* What rounding explains of two runs: an infinity explains nothing but itself. */
#include "parity/checks/noise.h"
#include "tests/support/parity.h"

#include <math.h>

enum { COUNT = 4 };

static parity_verdict judged(const double first[COUNT], const double second[COUNT])
{
    const parity_noise n = {.unit = ASSAY_BF16, .longest = 1.0};
    const int64_t shape[2] = {2, 2};
    const parity_noise_subject s = {
        .first = first, .second = second, .count = COUNT, .shape = shape, .ndim = 2, .name = "x"};
    double allowance[COUNT];
    parity_result r;
    parity_result_init(&r);
    must(parity_noise_judge(&n, &s, allowance, &r));
    return r.verdict;
}

Test(parity_noise, infinities_and_nan_do_not_widen_what_is_allowed)
{
    static const struct {
        double first[COUNT], second[COUNT];
        parity_verdict verdict;
    } rows[] = {
        {{1.0, 2.0, 3.0, 4.0}, {1.0, 2.0, 3.0, 4.001}, PARITY_PASS},
        {{1.0, 2.0, 3.0, 4.0}, {1.0, 2.0, 3.0, 5.0}, PARITY_FAIL},
        {{(double)INFINITY, 1.0, 2.0, 3.0}, {(double)INFINITY, 1.0, 2.0, 3.0}, PARITY_PASS},
        {{(double)INFINITY, 1.0, 2.0, 3.0}, {(double)INFINITY, -1e6, 2.0, 3.0}, PARITY_FAIL},
        {{(double)INFINITY, 1.0, 2.0, 3.0}, {5.0, -1e6, 2e6, 7.0}, PARITY_FAIL},
        {{1.0, 2.0, 3.0, 4.0}, {(double)INFINITY, 2.0, 3.0, 4.0}, PARITY_FAIL},
        {{(double)NAN, 2.0, 3.0, 4.0}, {(double)NAN, 9.0, 3.0, 4.0}, PARITY_FAIL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_expect_eq(judged(rows[i].first, rows[i].second), rows[i].verdict, "row %zu", i);
}
