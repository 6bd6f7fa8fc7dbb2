/* Questions about the device itself (core/run/probe.h). */
#ifndef GPU_PROBE_H
#define GPU_PROBE_H

#include "core/run/probe.h"
#include "gpu/gpu.h"

ASSAY_BEGIN_DECLS

/* d [n][256], c [n], a and b bf16 [n][32]: all 256 elements of a tile are c + sum a b, by the matrix units. */
cudaError_t gpu_probe_products(float *d, const float *c, const void *a, const void *b, int64_t n,
                               cudaStream_t stream);
cudaError_t gpu_probe_function(float *y, const assay_probe_arguments *x, cudaStream_t stream);

ASSAY_END_DECLS

#endif
