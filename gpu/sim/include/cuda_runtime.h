/* cudart's umbrella header.  C and C++ callers get the host functions and the vector types.  C++ files that
 * are compiled as kernels' files (macro ASSAY_SIM set to 1) get the device side as well: threadIdx,
 * __syncthreads, shuffles, atomics. */
#ifndef ASSAY_SIM_CUDA_RUNTIME_H
#define ASSAY_SIM_CUDA_RUNTIME_H
#define __CUDA_RUNTIME_H__ /* CUDA's own guard, which other people's headers ask for */

#include "cuda_runtime_api.h"
#include "vector_functions.h"

#if defined(__cplusplus) && defined(ASSAY_SIM)
#include "assay_sim_device.h"
#else
/* Headers that both engines' halves share may carry these words; they mean nothing to a host compiler. */
#ifndef __host__
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#endif
#endif

#ifdef __cplusplus
/* CUDA's C++ overload: any T *, not only void *. */
template <class T> static inline cudaError_t cudaMalloc(T **devPtr, size_t size)
{
    return ::cudaMalloc(reinterpret_cast<void **>(devPtr), size);
}
template <class T> static inline cudaError_t cudaMallocHost(T **ptr, size_t size)
{
    return ::cudaMallocHost(reinterpret_cast<void **>(ptr), size);
}
template <class T> static inline cudaError_t cudaHostAlloc(T **ptr, size_t size, unsigned int flags)
{
    return ::cudaHostAlloc(reinterpret_cast<void **>(ptr), size, flags);
}
template <class T> static inline cudaError_t cudaMallocAsync(T **devPtr, size_t size, cudaStream_t stream)
{
    return ::cudaMallocAsync(reinterpret_cast<void **>(devPtr), size, stream);
}
template <class T>
static inline cudaError_t cudaMallocManaged(T **devPtr, size_t size, unsigned int flags = 1)
{
    return ::cudaMallocManaged(reinterpret_cast<void **>(devPtr), size, flags);
}
namespace assay_sim
{
#if defined(ASSAY_CC)
template <class... P> static inline const void *body_of(void (*kernel_at)(P...)); /* assay_sim_cc.h */
#else
template <class... P> static inline const void *body_of(void (*kernel_at)(P...))
{
    return reinterpret_cast<const void *>(kernel_at);
}
#endif
} /* namespace assay_sim */
template <class... P>
static inline cudaError_t cudaFuncSetAttribute(void (*func)(P...), cudaFuncAttribute attr, int value)
{
    return ::cudaFuncSetAttribute(assay_sim::body_of(func), attr, value);
}
template <class... P>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attr, void (*func)(P...))
{
    return ::cudaFuncGetAttributes(attr, assay_sim::body_of(func));
}
#include "assay_sim_host.h"
#endif

#endif
