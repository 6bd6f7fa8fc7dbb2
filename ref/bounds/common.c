/* What the bounds share: preparing a declared arithmetic. */
#include "ref/bounds/bounds.h"

assay_status ref_declared_of(ref_declared *out, const assay_arith *arith, const char *op)
{
    *out = (ref_declared){.num = ref_num_of(arith), .tile = arith->tile};
    ASSAY_TRY(ref_order_of(&out->order, arith, op));
    return ASSAY_OK;
}
