/* How far a tensor of a file is from what it should be.  A NaN is the worst difference: it stays, whatever comes after it. */
#ifndef TESTS_DIFFERENCE_H
#define TESTS_DIFFERENCE_H

#include "core/files/tensorfile.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

/* fmax drops a NaN, and `b <= a ? a : b` replaces one by the next number. */
static inline double worse_of(double a, double b)
{
    return isnan(a) || b <= a ? a : b;
}

static inline double tensor_element(const assay_tensor_info *t, int64_t i)
{
    float narrow;
    double wide;
    if (t->dtype == ASSAY_F64) {
        memcpy(&wide, (const char *)t->data + 8 * i, 8);
        return wide;
    }
    cr_assert_eq(t->dtype, ASSAY_F32, "%s", t->name);
    memcpy(&narrow, (const char *)t->data + 4 * i, 4);
    return (double)narrow;
}

/* Largest difference in units of the expected tensor's largest magnitude, or as it is where that is 0; NaN when either holds one. */
static inline double tensor_difference(const assay_tensor_info *found, const assay_tensor_info *expected)
{
    double most = 0.0, worst = 0.0;
    cr_assert_eq(found->count, expected->count, "%s: %lld elements, expected %lld", expected->name,
                 (long long)found->count, (long long)expected->count);
    for (int64_t i = 0; i < expected->count; i++) {
        const double e = tensor_element(expected, i);
        most = fmax(most, fabs(e));
        worst = worse_of(worst, fabs(tensor_element(found, i) - e));
    }
    return most > 0.0 ? worst / most : worst;
}

#endif
