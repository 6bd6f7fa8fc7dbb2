/* What the bounds share: preparing a declared arithmetic, storing a result. */
#include "ref/bounds/bounds.h"

assay_status ref_declared_of(ref_declared *out, const assay_arith *arith, const char *op)
{
    *out = (ref_declared){.num = ref_num_of(arith), .tile = arith->tile};
    ASSAY_TRY(ref_order_of(&out->order, arith, op));
    return ASSAY_OK;
}

void ref_pair_set(ref_pair out, int64_t i, ref_iv z, const ref_num *num)
{
    if (out.same) {
        /* z.b = b + u (|v| + b) with b the bound before the last rounding; 2^-50: the reference's own error
         */
        z.b = fmax(0.0, (z.b - num->u * fabs(z.v)) / (1.0 + num->u)) + 0x1p-50 * fabs(z.v);
    }
    out.y[i] = z.v;
    out.b[i] = z.b;
}
