/* Grouped products, one for each expert: what their kernels share, and k2, on matrix units (grouped_mma.cu). */
#ifndef GPU_OPS_GROUPED_CUH
#define GPU_OPS_GROUPED_CUH

#include "gpu/ops/product.cuh"

/* Rows of an expert as the kernels read its count: not below 0, and no more than are left.  Counts in device memory are not
 * checked before the launch; whatever they say, no kernel leaves its buffers. */
__device__ static __forceinline__ int64_t grouped_count(int64_t count, int64_t left)
{
    return count < 0 ? 0 : count < left ? count : left;
}

/* Whether k2 takes the product of all experts: bf16, widths that are multiples of 8, addresses of 16, 1 to 65535 experts. */
bool gpu_grouped_takes_mma(const product *p);
/* In one launch; nothing is written for an expert without rows. */
assay_status gpu_grouped_mma(const gpu_work *w, const product *p);

#endif
