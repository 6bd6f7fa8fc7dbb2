/* Numbers of stored tensors as doubles, and back: what files hold, not what a recipe stores (ref/policy.h). */
#ifndef REF_WEIGHTS_READ_H
#define REF_WEIGHTS_READ_H

#include "core/files/tensorfile.h"
#include "core/model/quantization.h"

/* Element i of stored data (any alignment): F64, F32, BF16, F16, F8_E4M3, F8_E8M0; exact. */
double ref_stored_element(const void *data, assay_dtype dtype, int64_t i);
/* out [t->count] = the tensor; fp8 elements times their scales (docs/CHECKPOINT.md): a product of 4 and at most 24 bits, exact.
 * ASSAY_UNSUPPORTED: another type than F64, F32, BF16, F16 and F8_E4M3. */
assay_status ref_stored_read(const assay_tensorfile *f, const assay_quantization *q,
                             const assay_tensor_info *t, double *out);
/* data [count] of dtype (F64, F32, BF16, F16) = x, each rounded once, to nearest even.  *overflow: the first finite x that becomes
 * infinite, -1: none. */
assay_status ref_stored_write(const double *x, int64_t count, assay_dtype dtype, void *data,
                              int64_t *overflow);

#endif
