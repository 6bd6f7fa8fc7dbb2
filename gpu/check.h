/* Argument checks of the operations: every public operation calls these before its first CUDA call.  Messages
 * have the form "rmsnorm_fwd: gamma: expected shape [64], found [63]". */
#ifndef GPU_CHECK_H
#define GPU_CHECK_H

#include "gpu/gpu.h"

ASSAY_BEGIN_DECLS

/* Present, one of the two dtypes (give the same twice for one), contiguous, aligned to its element, shape not
 * negative and its product inside int64_t.  An empty tensor may have data NULL. */
assay_status gpu_check_tensor(const char *op, const char *operand, gpu_tensor t, assay_dtype a,
                              assay_dtype b);
/* F32 or BF16. */
assay_status gpu_check_act(const char *op, const char *operand, gpu_tensor t);
/* Number of elements. */
assay_status gpu_check_count(const char *op, const char *operand, gpu_tensor t, int64_t expected);
/* I64, one for each row of `operand`, which has n elements. */
assay_status gpu_check_row_tokens(const char *op, gpu_tensor token, const char *operand, int64_t n);
/* The exact shape, extents d0.. of which the first `ndim` count. */
assay_status gpu_check_shape2(const char *op, const char *operand, gpu_tensor t, int64_t d0, int64_t d1);
/* Same dtype as another operand. */
assay_status gpu_check_same_dtype(const char *op, const char *operand, gpu_tensor t, const char *other,
                                  gpu_tensor o);
/* The call arena holds at least `bytes`. */
assay_status gpu_check_workspace(const char *op, const gpu_ctx *ctx, size_t bytes);

/* Views [.., cols] as rows x cols: cols is the last extent, rows the product of the others (1 for ndim 1). */
int64_t gpu_tensor_cols(gpu_tensor t);
int64_t gpu_tensor_row_count(gpu_tensor t);
bool gpu_tensor_present(gpu_tensor t);
/* "[3,5]" into out. */
void gpu_tensor_describe(gpu_tensor t, char *out, size_t bytes);

ASSAY_END_DECLS

#endif
