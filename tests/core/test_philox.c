/* Philox4x32-10 against the published known answers (Random123 1.14, tests/kat_vectors). */
#include "core/base/philox.h"
#include "tests/support/core.h"

Test(core_philox, published_known_answers)
{
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } rows[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t out[4];
        assay_philox4x32_10(rows[i].counter, rows[i].key, out);
        cr_expect_arr_eq(out, rows[i].out, sizeof out, "vector %zu", i);
    }
}

Test(core_philox, counter_and_key_words_are_where_the_header_says)
{
    uint32_t a[4], b[4];
    assay_philox(UINT64_C(0x299f31d0a4093822), UINT64_C(0x0370734413198a2e), UINT64_C(0x85a308d3243f6a88), a);
    static const uint32_t expected[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    cr_expect_arr_eq(a, expected, sizeof a);
    assay_philox(1, 2, 3, a);
    assay_philox(1, 2, 4, b);
    cr_expect_arr_neq(a, b, sizeof a);
    assay_philox(1, 3, 3, b);
    cr_expect_arr_neq(a, b, sizeof a);
    assay_philox(2, 2, 3, b);
    cr_expect_arr_neq(a, b, sizeof a);
}

Test(core_philox, below_stays_below_and_reaches_every_value)
{
    static const uint64_t sizes[] = {1, 2, 3, 5, 7, 100};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        int64_t seen[100] = {0};
        for (uint64_t i = 0; i < 5000; i++) {
            const uint64_t x = assay_philox_below(9, 1, i, sizes[s]);
            cr_assert(x < sizes[s]);
            seen[x]++;
        }
        /* A fair draw of 5000 stays within 60 % of the mean for every value at these sizes. */
        for (uint64_t x = 0; x < sizes[s]; x++)
            cr_expect(seen[x] * (int64_t)sizes[s] > 2000 && seen[x] * (int64_t)sizes[s] < 8000,
                      "n %llu value %llu: %lld", (unsigned long long)sizes[s], (unsigned long long)x,
                      (long long)seen[x]);
    }
    cr_expect(assay_philox_below(9, 1, 0, UINT64_MAX) < UINT64_MAX);
}

Test(core_philox, normal4_is_the_centred_sum_of_the_four_words)
{
    for (uint64_t i = 0; i < 100; i++) {
        uint32_t w[4];
        assay_philox(5, 6, i, w);
        int64_t expected = -2 * (int64_t)UINT32_MAX;
        for (int k = 0; k < 4; k++)
            expected += w[k];
        cr_expect_eq(assay_philox_normal4(5, 6, i), expected);
    }
}

Test(core_philox, normal4_has_the_stated_mean_and_variance)
{
    const int n = 20000;
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < n; i++) {
        const double x = (double)assay_philox_normal4(11, 3, (uint64_t)i) * ASSAY_PHILOX_UNIT;
        sum += x;
        squares += x * x;
    }
    /* Mean 0 +- 5/sqrt(n); variance 1 with kurtosis 2.7: +- 5*sqrt(1.7/n). */
    cr_expect(sum / n > -0.036 && sum / n < 0.036, "mean %g", sum / n);
    cr_expect(squares / n > 0.953 && squares / n < 1.047, "variance %g", squares / n);
}

Test(core_philox, unit_is_the_square_root_of_three_over_two_to_the_32)
{
    const double unit = ASSAY_PHILOX_UNIT * 0x1p32;
    cr_expect(unit * unit > 3.0 - 1e-15 && unit * unit < 3.0 + 1e-15, "%.17g", unit * unit);
}
