/* CUDA's C++ overloads for the host beyond cuda_runtime.h's first ones: symbols, occupancy, hints.  And what is refused:
 * functions that are declared so that a program which names them compiles, and says so when it calls them. */
#ifndef ASSAY_SIM_HOST_H
#define ASSAY_SIM_HOST_H

#include "assay_sim.h"

/* --- kernels ------------------------------------------------------------------------------------------------------- */

template <class... P> static inline cudaError_t cudaFuncSetCacheConfig(void (*)(P...), cudaFuncCache)
{
    return cudaSuccess; /* a hint */
}
template <class... P>
static inline cudaError_t cudaFuncSetSharedMemConfig(void (*)(P...), cudaSharedMemConfig)
{
    return cudaSuccess; /* a hint */
}
template <class... P>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, void (*func)(P...),
                                                                        int blockSize, size_t dynamicSMemSize)
{
    return ::cudaOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks, assay_sim::body_of(func), blockSize,
                                                           dynamicSMemSize);
}
template <class... P>
static inline cudaError_t
cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, void (*func)(P...), int blockSize,
                                                       size_t dynamicSMemSize, unsigned int)
{
    return ::cudaOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks, assay_sim::body_of(func), blockSize,
                                                           dynamicSMemSize);
}
/* Registers are not modelled: the largest block that shared memory and the limit allow. */
template <class F, class S>
static inline cudaError_t cudaOccupancyMaxPotentialBlockSizeVariableSMem(int *minGridSize, int *blockSize,
                                                                         F func, S bytes_of,
                                                                         int blockSizeLimit = 0)
{
    int device = 0, processors = 0;
    const int most = blockSizeLimit > 0 && blockSizeLimit < 1024 ? blockSizeLimit : 1024;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    for (int size = most; size >= 1; size = size % 32 ? size / 32 * 32 : size - 32) {
        int blocks = 0;
        const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
            &blocks, func, size, static_cast<size_t>(bytes_of(size)));
        if (error != cudaSuccess)
            return error;
        if (blocks > 0) {
            *blockSize = size;
            *minGridSize = blocks * processors;
            return cudaSuccess;
        }
        if (size <= 32)
            break;
    }
    return cudaErrorInvalidConfiguration;
}
template <class F>
static inline cudaError_t cudaOccupancyMaxPotentialBlockSize(int *minGridSize, int *blockSize, F func,
                                                             size_t dynamicSMemSize = 0,
                                                             int blockSizeLimit = 0)
{
    return cudaOccupancyMaxPotentialBlockSizeVariableSMem(
        minGridSize, blockSize, func, [=](int) { return dynamicSMemSize; }, blockSizeLimit);
}

/* --- symbols ------------------------------------------------------------------------------------------------------- */

template <class T> static inline cudaError_t cudaGetSymbolAddress(void **devPtr, const T &symbol)
{
    *devPtr = const_cast<void *>(static_cast<const volatile void *>(&symbol));
    return assay_sim_symbol(*devPtr, sizeof symbol);
}
template <class T> static inline cudaError_t cudaGetSymbolSize(size_t *size, const T &symbol)
{
    *size = sizeof symbol;
    return cudaSuccess;
}
#define ASSAY_SIM_SYMBOL_TO(name, with_stream, given_stream, synchronous)                                    \
    template <class T>                                                                                       \
    static inline cudaError_t name(const T &symbol, const void *src, size_t count, size_t offset = 0,        \
                                   cudaMemcpyKind kind = cudaMemcpyHostToDevice with_stream)                 \
    {                                                                                                        \
        return assay_sim_symbol_copy(#name, const_cast<void *>(static_cast<const volatile void *>(&symbol)), \
                                     sizeof symbol, const_cast<void *>(src), count, offset, kind,            \
                                     given_stream, 1, synchronous);                                          \
    }
#define ASSAY_SIM_SYMBOL_FROM(name, with_stream, given_stream, synchronous)                                  \
    template <class T>                                                                                       \
    static inline cudaError_t name(void *dst, const T &symbol, size_t count, size_t offset = 0,              \
                                   cudaMemcpyKind kind = cudaMemcpyDeviceToHost with_stream)                 \
    {                                                                                                        \
        return assay_sim_symbol_copy(#name, const_cast<void *>(static_cast<const volatile void *>(&symbol)), \
                                     sizeof symbol, dst, count, offset, kind, given_stream, 0, synchronous); \
    }
#define ASSAY_SIM_WITH_STREAM , cudaStream_t stream = 0
ASSAY_SIM_SYMBOL_TO(cudaMemcpyToSymbol, , nullptr, 1)
ASSAY_SIM_SYMBOL_FROM(cudaMemcpyFromSymbol, , nullptr, 1)
ASSAY_SIM_SYMBOL_TO(cudaMemcpyToSymbolAsync, ASSAY_SIM_WITH_STREAM, stream, 0)
ASSAY_SIM_SYMBOL_FROM(cudaMemcpyFromSymbolAsync, ASSAY_SIM_WITH_STREAM, stream, 0)
#undef ASSAY_SIM_WITH_STREAM
#undef ASSAY_SIM_SYMBOL_TO
#undef ASSAY_SIM_SYMBOL_FROM

/* --- small overloads ------------------------------------------------------------------------------------------------ */

template <class T>
static inline cudaError_t cudaMallocPitch(T **devPtr, size_t *pitch, size_t width, size_t height)
{
    return ::cudaMallocPitch(reinterpret_cast<void **>(devPtr), pitch, width, height);
}
template <class T>
static inline cudaError_t cudaHostGetDevicePointer(T **pDevice, void *pHost, unsigned int flags)
{
    return ::cudaHostGetDevicePointer(reinterpret_cast<void **>(pDevice), pHost, flags);
}
/* CUDA 13's forms. */
static inline cudaError_t cudaMemAdvise(const void *devPtr, size_t count, cudaMemoryAdvise advice,
                                        cudaMemLocation location)
{
    return cudaMemAdvise(devPtr, count, advice,
                         location.type == cudaMemLocationTypeHost ? cudaCpuDeviceId : location.id);
}
static inline cudaError_t cudaMemPrefetchAsync(const void *devPtr, size_t count, cudaMemLocation location,
                                               unsigned int flags, cudaStream_t stream = 0)
{
    (void)flags;
    return cudaMemPrefetchAsync(
        devPtr, count, location.type == cudaMemLocationTypeHost ? cudaCpuDeviceId : location.id, stream);
}
static inline cudaError_t cudaEventCreate(cudaEvent_t *event, unsigned int flags)
{
    return cudaEventCreateWithFlags(event, flags);
}
static inline cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                                        unsigned long long flags)
{
    return cudaGraphInstantiate(exec, graph, flags);
}
/* The signature before CUDA 12: where an error lies is not said. */
static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                               cudaGraphNode_t *node, char *log, size_t bytes)
{
    if (node != nullptr)
        *node = nullptr;
    if (log != nullptr && bytes > 0)
        log[0] = '\0';
    return cudaGraphInstantiate(exec, graph, 0);
}
static inline cudaError_t cudaMallocHost(void **ptr, size_t size, unsigned int flags)
{
    return cudaHostAlloc(ptr, size, flags);
}

/* --- refused by name ------------------------------------------------------------------------------------------------ */

typedef struct cudaArray *cudaArray_t;
typedef struct cudaMipmappedArray *cudaMipmappedArray_t;
typedef unsigned long long cudaTextureObject_t, cudaSurfaceObject_t;
typedef struct cudaIpcMemHandle_st {
    char reserved[64];
} cudaIpcMemHandle_t;
typedef struct cudaIpcEventHandle_st {
    char reserved[64];
} cudaIpcEventHandle_t;

#define ASSAY_SIM_REFUSE(name)                                                                               \
    template <class... A> static inline cudaError_t name(A &&...)                                            \
    {                                                                                                        \
        return assay_sim_refuse(#name);                                                                      \
    }
ASSAY_SIM_REFUSE(cudaStreamGetCaptureInfo)
ASSAY_SIM_REFUSE(cudaGraphCreate)
ASSAY_SIM_REFUSE(cudaGraphExecUpdate)
ASSAY_SIM_REFUSE(cudaGraphClone)
ASSAY_SIM_REFUSE(cudaGraphAddKernelNode)
ASSAY_SIM_REFUSE(cudaGraphAddMemcpyNode)
ASSAY_SIM_REFUSE(cudaGraphAddMemcpyNode1D)
ASSAY_SIM_REFUSE(cudaGraphAddMemsetNode)
ASSAY_SIM_REFUSE(cudaGraphAddHostNode)
ASSAY_SIM_REFUSE(cudaGraphAddDependencies)
ASSAY_SIM_REFUSE(cudaGraphAddNode)
ASSAY_SIM_REFUSE(cudaIpcGetMemHandle)
ASSAY_SIM_REFUSE(cudaIpcOpenMemHandle)
ASSAY_SIM_REFUSE(cudaIpcCloseMemHandle)
ASSAY_SIM_REFUSE(cudaIpcGetEventHandle)
ASSAY_SIM_REFUSE(cudaIpcOpenEventHandle)
ASSAY_SIM_REFUSE(cudaMallocArray)
ASSAY_SIM_REFUSE(cudaMalloc3DArray)
ASSAY_SIM_REFUSE(cudaMalloc3D)
ASSAY_SIM_REFUSE(cudaMemcpy3D)
ASSAY_SIM_REFUSE(cudaMemcpy3DAsync)
ASSAY_SIM_REFUSE(cudaFreeArray)
ASSAY_SIM_REFUSE(cudaMemcpy2DToArray)
ASSAY_SIM_REFUSE(cudaMemcpyToArray)
ASSAY_SIM_REFUSE(cudaCreateTextureObject)
ASSAY_SIM_REFUSE(cudaDestroyTextureObject)
ASSAY_SIM_REFUSE(cudaCreateSurfaceObject)
ASSAY_SIM_REFUSE(cudaDestroySurfaceObject)
ASSAY_SIM_REFUSE(cudaLaunchCooperativeKernelMultiDevice)
ASSAY_SIM_REFUSE(cudaDeviceGetDefaultMemPool)
ASSAY_SIM_REFUSE(cudaMemPoolCreate)
ASSAY_SIM_REFUSE(cudaMemPoolDestroy)
ASSAY_SIM_REFUSE(cudaMemPoolSetAttribute)
ASSAY_SIM_REFUSE(cudaMemPoolGetAttribute)
ASSAY_SIM_REFUSE(cudaMemPoolTrimTo)
ASSAY_SIM_REFUSE(cudaMemPoolSetAccess)
ASSAY_SIM_REFUSE(cudaMallocFromPoolAsync)
ASSAY_SIM_REFUSE(cudaUserObjectCreate)
ASSAY_SIM_REFUSE(cudaStreamSetAttribute)
ASSAY_SIM_REFUSE(cudaCtxResetPersistingL2Cache)
#undef ASSAY_SIM_REFUSE

#endif
