/* The law of ref/fast.h: fast equals plain within the derived bound.
 *
 * The bound comes from ref/bounds for a computation in double precision that adds in any order, with an exp
 * right to one ulp.  Plain and fast are two such computations: each lies within it of the value, so they lie
 * within twice of it of each other. */
#ifndef TESTS_TEST_REF_FAST_SUPPORT_H
#define TESTS_TEST_REF_FAST_SUPPORT_H

#include "ref/bounds/bounds.h"
#include "ref/fast.h"
#include "tests/support/ref.h"

static inline ref_declared double_precision(void)
{
    const assay_arith arith = {.accumulate = ASSAY_F64,
                               .order = ASSAY_ORDER_UNKNOWN,
                               .lanes = 1,
                               .split = 1,
                               .fma = false,
                               .math_ulp = 1};
    ref_declared d;
    cr_assert(ref_declared_of(&d, &arith, "double precision") == ASSAY_OK);
    return d;
}

static inline ref_pair pair_new(int64_t n)
{
    return (ref_pair){new_real(n), new_real(n), false};
}

static inline void pair_free(ref_pair p)
{
    free(p.y);
    free(p.b);
}

/* Elements of fast [n] that break the law. */
static inline int64_t law_broken(const double *fast, const double *plain, ref_pair derived, int64_t n)
{
    int64_t broken = 0;
    for (int64_t i = 0; i < n; i++) {
        bool holds = fabs(fast[i] - plain[i]) <= 2.0 * derived.b[i];
        if (!isfinite(plain[i]))
            holds = isnan(plain[i]) ? isnan(fast[i]) : fast[i] == plain[i];
        broken += !holds;
    }
    return broken;
}

/* The sizes every operation is tried with: nothing, one, around a tile of 64 rows, primes. */
static const int64_t LAW_SIZES[] = {0, 1, 2, 3, 5, 7, 13, 63, 64, 65};
enum { N_LAW_SIZES = sizeof LAW_SIZES / sizeof LAW_SIZES[0] };

typedef enum { LAW_ZERO_MEAN, LAW_ONE_SIGNED, N_LAW_DATA } law_data;

static inline double *law_values(test_rng *r, int64_t n, law_data data, double scale)
{
    double *x = random_normal(r, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = scale * (data == LAW_ONE_SIGNED ? fabs(x[i]) + 0.1 : x[i]);
    return x;
}

#endif
