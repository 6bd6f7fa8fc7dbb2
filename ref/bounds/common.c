/* What the bounds share: preparing a declared arithmetic. */
#include "ref/bounds/bounds.h"

assay_status ref_declared_of(ref_declared *out, const assay_arith *arith, const char *op)
{
    *out = (ref_declared){.num = ref_num_of(arith), .tile = arith->tile};
    ASSAY_TRY(ref_order_of(&out->order, arith, op));
    return ASSAY_OK;
}

void ref_declared_store(ref_declared *d, const assay_arith *arith, assay_dtype store)
{
    const int precision = assay_dtype_is_float(store) ? assay_dtype_precision(store) : 53;
    d->rounding = arith->rounding & (ASSAY_ROUND_ANGLES | ASSAY_ROUND_TIES);
    if (precision >= assay_dtype_precision(arith->accumulate))
        return;
    d->rounding = arith->rounding;
    d->u_store = ldexp(1.0, -precision) * (1.0 + 0x1p-20);
    d->eta_store = ldexp(1.0, assay_dtype_emin(store) - precision);
}
