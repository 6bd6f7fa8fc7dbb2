/* Functions that change no result here: hints to caches and the driver, managed memory's placement, limits; and how many
 * blocks a multiprocessor holds. */
#include "schedule.hpp"

#include "cuda_runtime_api.h"

using namespace sim;

static bool valid(int device)
{
    return device >= 0 && device < config().devices;
}

extern "C" {

cudaError_t cudaGetDeviceFlags(unsigned int *flags)
{
    *flags = cudaDeviceScheduleAuto;
    return cudaSuccess;
}

cudaError_t cudaChooseDevice(int *device, const cudaDeviceProp *prop)
{
    (void)prop; /* all are alike */
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetValidDevices(int *device_arr, int len)
{
    for (int i = 0; i < len; ++i) {
        if (!valid(device_arr[i]))
            return record_error(cudaErrorInvalidDevice);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags)
{
    (void)flags;
    return record_error(valid(peerDevice) ? cudaErrorPeerAccessUnsupported : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceDisablePeerAccess(int peerDevice)
{
    return record_error(valid(peerDevice) ? cudaErrorPeerAccessNotEnabled : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value)
{
    (void)limit;
    (void)value; /* kernels allocate from the host's heap and print to its standard output */
    return cudaSuccess;
}

cudaError_t cudaDeviceGetLimit(size_t *pValue, cudaLimit limit)
{
    *pValue = limit == cudaLimitStackSize        ? config().stack_bytes
              : limit == cudaLimitPrintfFifoSize ? size_t{1} << 20
              : limit == cudaLimitMallocHeapSize ? size_t{8} << 20
                                                 : 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache cacheConfig)
{
    (void)cacheConfig;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache *pCacheConfig)
{
    *pCacheConfig = cudaFuncCachePreferNone;
    return cudaSuccess;
}

cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig shared)
{
    (void)shared;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig *pConfig)
{
    *pConfig = cudaSharedMemBankSizeFourByte;
    return cudaSuccess;
}

cudaError_t cudaThreadSynchronize(void)
{
    return cudaDeviceSynchronize();
}

cudaError_t cudaThreadExit(void)
{
    return cudaDeviceReset();
}

cudaError_t cudaFuncSetCacheConfig(const void *func, cudaFuncCache cacheConfig)
{
    (void)cacheConfig;
    return func ? cudaSuccess : record_error(cudaErrorInvalidDeviceFunction);
}

cudaError_t cudaFuncSetSharedMemConfig(const void *func, cudaSharedMemConfig shared)
{
    (void)shared;
    return func ? cudaSuccess : record_error(cudaErrorInvalidDeviceFunction);
}

/* By threads, blocks and dynamic shared memory; registers and static shared memory are not known before a kernel has run. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *numBlocks, const void *func, int blockSize,
                                                          size_t dynamicSMemSize)
{
    if (numBlocks == nullptr || func == nullptr || blockSize < 1) {
        return record_error(cudaErrorInvalidValue);
    }
    int blocks = blockSize > 1024 ? 0 : 2048 / ((blockSize + 31) / 32 * 32);
    blocks = blocks > 32 ? 32 : blocks;
    const size_t by_memory = dynamicSMemSize > max_shared_optin ? 0 : 233472 / (dynamicSMemSize + 1024);
    *numBlocks = static_cast<size_t>(blocks) < by_memory ? blocks : static_cast<int>(by_memory);
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *numBlocks, const void *func,
                                                                   int blockSize, size_t dynamicSMemSize,
                                                                   unsigned int flags)
{
    (void)flags;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks, func, blockSize, dynamicSMemSize);
}

/* --- managed memory ------------------------------------------------------------------------------------------------ */

static cudaError_t managed(const char *what, const void *p, size_t count, int device)
{
    memory_kind kind;
    if (device != cudaCpuDeviceId && !valid(device)) {
        return record_error(cudaErrorInvalidDevice);
    }
    if (!memory_contains(p, count, &kind) || kind != MEMORY_MANAGED) {
        return refuse(cudaErrorInvalidValue, "invalid pointer", "%s: %zu bytes at %p are no managed memory",
                      what, count, p);
    }
    return cudaSuccess;
}

cudaError_t cudaMemPrefetchAsync(const void *devPtr, size_t count, int dstDevice, cudaStream_t stream)
{
    (void)stream;
    return managed("cudaMemPrefetchAsync", devPtr, count, dstDevice);
}

cudaError_t cudaMemAdvise(const void *devPtr, size_t count, cudaMemoryAdvise advice, int device)
{
    (void)advice;
    return managed("cudaMemAdvise", devPtr, count, device);
}

cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void *devPtr, size_t length, unsigned int flags)
{
    (void)stream;
    (void)flags;
    return managed("cudaStreamAttachMemAsync", devPtr, length, 0);
}

} /* extern "C" */
