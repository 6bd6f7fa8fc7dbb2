/* Grouped products, one for each expert, on matrix units (k2); grouped_mma.cu. */
#ifndef GPU_OPS_GROUPED_CUH
#define GPU_OPS_GROUPED_CUH

#include "gpu/ops/product.cuh"

/* More would not fit into a kernel's parameters. */
enum { GROUPED_MOST_EXPERTS = 384 };

/* Whether k2 takes the product of all experts: bf16, widths that are multiples of 8, addresses of 16, 1 to 384 experts. */
bool gpu_grouped_takes_mma(const product *p);
/* In one launch; for an expert without rows nothing is added, or zeros are written. */
assay_status gpu_grouped_mma(const gpu_work *w, const product *p);

#endif
