/* Rounding into a stored format, and the verdict on one element. */
#include "ref/replay.h"

#include <math.h>
#include <string.h>

/* Largest finite number of the format. */
static double format_max(assay_dtype dtype)
{
    /* E4M3 gives its top code to NaN. */
    if (dtype == ASSAY_F8_E4M3)
        return 448.0;
    return ldexp(2.0 - ldexp(1.0, 1 - assay_dtype_precision(dtype)), assay_dtype_emax(dtype));
}

ref_format ref_format_of(assay_dtype dtype)
{
    return (ref_format){assay_dtype_precision(dtype), assay_dtype_emin(dtype)};
}

double ref_ulp(double x, assay_dtype dtype)
{
    return ref_format_ulp(ref_format_of(dtype), x);
}

double ref_round(double x, assay_dtype dtype)
{
    if (dtype == ASSAY_BF16 && ref_bf16_is_normal(x))
        return ref_round_bf16_normal(x);
    if (dtype == ASSAY_F64 || !assay_dtype_is_float(dtype) || !isfinite(x) || x == 0.0)
        return x;
    if (dtype ==
        ASSAY_F32) /* the cast does the same: to nearest even, subnormals kept, overflow to infinity */
        return (double)(float)x;
    const double ulp = ref_ulp(x, dtype), y = rint(x / ulp) * ulp;
    return fabs(y) > format_max(dtype) ? copysign(HUGE_VAL, x) : y;
}

bool ref_admissible(double yhat, double y, double bound, assay_dtype stored, double *ratio)
{
    *ratio = HUGE_VAL;
    if (!isfinite(y)) {
        const bool same = isnan(y) ? isnan(yhat) : yhat == y || (bound == REF_OR_NAN && isnan(yhat));
        if (same)
            *ratio = 0.0;
        return same;
    }
    /* A bound that is not a finite number decides nothing, and what was not decided did not pass. */
    if (isnan(yhat) || !isfinite(bound) || bound < 0.0)
        return false;
    if (isinf(yhat)) {
        const bool pass = ref_round(y + copysign(bound, yhat), stored) == yhat;
        if (pass)
            *ratio = 1.0;
        return pass;
    }
    const double half = assay_dtype_is_float(stored) ? 0.5 * ref_ulp(fabs(y) + bound, stored) : 0.0;
    return ref_within(fabs(yhat - y), bound, half, ratio);
}
