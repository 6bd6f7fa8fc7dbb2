/* Bound of a sum over ranks. */
#include "ref/bounds/interval.h"
#include "ref/replay.h"

void ref_bound_sum(double *y, double *bound, const double *const *pieces, int n, int64_t count,
                   const assay_arith *arith, assay_dtype hop)
{
    const ref_num num = ref_num_of(arith);
    const bool narrow = assay_dtype_is_float(hop) && assay_dtype_precision(hop) < 24;
    const double u_hop = narrow ? ldexp(1.0, -assay_dtype_precision(hop)) : 0.0;
    const double eta_hop = narrow ? ldexp(1.0, assay_dtype_emin(hop) - assay_dtype_precision(hop)) : 0.0;
    const bool in_order = arith->order == ASSAY_ORDER_SEQUENTIAL && !arith->atomics;
    for (int64_t i = 0; i < count; i++) {
        double s = 0.0, b = 0.0, g = 0.0;
        for (int r = 0; r < n; r++) {
            s += pieces[r][i];
            g += fabs(pieces[r][i]);
            if (r == 0 || !in_order)
                continue;
            b += num.u * (fabs(s) + b);
            /* the last partial sum is the output: its rounding is the output's */
            if (narrow && r + 1 < n)
                b += u_hop * (fabs(s) + b) + eta_hop;
        }
        if (!in_order && n > 1) {
            const double largest = 0.5 * (g + fabs(s));
            b = expm1((double)(n - 1) * log1p(num.u + u_hop)) * largest + (double)(n - 1) * eta_hop;
        }
        y[i] = s;
        bound[i] = b + 0x1p-53 * (double)n * g;
    }
}
