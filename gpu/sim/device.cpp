/* The simulated devices: how many there are and what they say about themselves. */
#include "schedule.hpp"

#include <stdio.h>
#include <string.h>

using namespace sim;

/* The limits of a device of compute capability 9.0, from the CUDA programming guide's table. */
struct attribute {
    cudaDeviceAttr attr;
    int value;
};
static const attribute attributes[] = {{cudaDevAttrMaxThreadsPerBlock, 1024},
                                       {cudaDevAttrMaxBlockDimX, 1024},
                                       {cudaDevAttrMaxBlockDimY, 1024},
                                       {cudaDevAttrMaxBlockDimZ, 64},
                                       {cudaDevAttrMaxGridDimX, 2147483647},
                                       {cudaDevAttrMaxGridDimY, 65535},
                                       {cudaDevAttrMaxGridDimZ, 65535},
                                       {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
                                       {cudaDevAttrTotalConstantMemory, 65536},
                                       {cudaDevAttrWarpSize, 32},
                                       {cudaDevAttrMaxRegistersPerBlock, 65536},
                                       {cudaDevAttrClockRate, 1000000},
                                       {cudaDevAttrMultiProcessorCount, 4},
                                       {cudaDevAttrIntegrated, 0},
                                       {cudaDevAttrConcurrentKernels, 1},
                                       {cudaDevAttrPciDomainId, 0},
                                       {cudaDevAttrPciDeviceId, 0},
                                       {cudaDevAttrL2CacheSize, 50 << 20},
                                       {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
                                       {cudaDevAttrAsyncEngineCount, 2},
                                       {cudaDevAttrUnifiedAddressing, 1},
                                       {cudaDevAttrComputeCapabilityMajor, 9},
                                       {cudaDevAttrComputeCapabilityMinor, 0},
                                       {cudaDevAttrStreamPrioritiesSupported, 1},
                                       {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
                                       {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
                                       {cudaDevAttrManagedMemory, 1},
                                       {cudaDevAttrCooperativeLaunch, 1},
                                       {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
                                       {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
                                       {cudaDevAttrMaxPitch, 2147483647},
                                       {cudaDevAttrTextureAlignment, 512},
                                       {cudaDevAttrGpuOverlap, 1},
                                       {cudaDevAttrKernelExecTimeout, 0},
                                       {cudaDevAttrCanMapHostMemory, 1},
                                       {cudaDevAttrComputeMode, cudaComputeModeDefault},
                                       {cudaDevAttrEccEnabled, 0},
                                       {cudaDevAttrTccDriver, 0},
                                       {cudaDevAttrMemoryClockRate, 1000000},
                                       {cudaDevAttrGlobalMemoryBusWidth, 64},
                                       {cudaDevAttrHostNativeAtomicSupported, 0},
                                       {cudaDevAttrPageableMemoryAccess, 0},
                                       {cudaDevAttrConcurrentManagedAccess, 0},
                                       {cudaDevAttrComputePreemptionSupported, 0},
                                       {cudaDevAttrMemoryPoolsSupported, 0}};

static bool valid(int device)
{
    return device >= 0 && device < config().devices;
}

extern "C" {

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = config().devices;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return record_error(set_current_device(device));
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device)
{
    if (!valid(device)) {
        return record_error(cudaErrorInvalidDevice);
    }
    if (attr == cudaDevAttrPciBusId) {
        *value = device + 1;
        return cudaSuccess;
    }
    for (const attribute &a : attributes) {
        if (a.attr == attr) {
            *value = a.value;
            return cudaSuccess;
        }
    }
    return refuse(cudaErrorNotSupported, "unsupported", "cudaDeviceGetAttribute: attribute %d",
                  static_cast<int>(attr));
}

static int get(cudaDeviceAttr attr)
{
    int v = 0;
    cudaDeviceGetAttribute(&v, attr, 0);
    return v;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device)
{
    if (!valid(device)) {
        return record_error(cudaErrorInvalidDevice);
    }
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "assay simulated device (compute capability 9.0)");
    memcpy(prop->uuid.bytes, "assay-sim-device", 16);
    prop->uuid.bytes[15] = static_cast<char>(device);
    prop->totalGlobalMem = config().memory_bytes;
    prop->sharedMemPerBlock = static_cast<size_t>(get(cudaDevAttrMaxSharedMemoryPerBlock));
    prop->sharedMemPerBlockOptin = static_cast<size_t>(get(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    prop->sharedMemPerMultiprocessor = static_cast<size_t>(get(cudaDevAttrMaxSharedMemoryPerMultiprocessor));
    prop->reservedSharedMemPerBlock = 1024;
    prop->totalConstMem = 65536;
    prop->memPitch = 2147483647;
    prop->regsPerBlock = prop->regsPerMultiprocessor = get(cudaDevAttrMaxRegistersPerBlock);
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024;
    prop->maxThreadsDim[2] = 64;
    prop->maxGridSize[0] = 2147483647;
    prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
    prop->major = 9;
    prop->multiProcessorCount = get(cudaDevAttrMultiProcessorCount);
    prop->maxThreadsPerMultiProcessor = get(cudaDevAttrMaxThreadsPerMultiProcessor);
    prop->maxBlocksPerMultiProcessor = get(cudaDevAttrMaxBlocksPerMultiprocessor);
    prop->canMapHostMemory = prop->concurrentKernels = prop->unifiedAddressing = 1;
    prop->streamPrioritiesSupported = prop->managedMemory = prop->cooperativeLaunch = prop->deviceOverlap = 1;
    prop->clockRate = prop->memoryClockRate = 1000000;
    prop->textureAlignment = prop->surfaceAlignment = 512;
    prop->pciBusID = device + 1;
    prop->asyncEngineCount = 2;
    prop->memoryBusWidth = 64;
    prop->l2CacheSize = get(cudaDevAttrL2CacheSize);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *pciBusId, int len, int device)
{
    if (!valid(device) || len < 13) {
        return record_error(valid(device) ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    }
    snprintf(pciBusId, static_cast<size_t>(len), "0000:%02X:00.0", static_cast<unsigned>(device + 1) & 0xffu);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *canAccessPeer, int device, int peerDevice)
{
    if (!valid(device) || !valid(peerDevice)) {
        return record_error(cudaErrorInvalidDevice);
    }
    *canAccessPeer = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    *leastPriority = 0;
    *greatestPriority = -5;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned int flags)
{
    return flags & ~0x1fu ? record_error(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    return record_error(device_sync());
}

/* Drops queued work and the fault that a kernel left; memory, streams and events stay valid, which is kinder
 * than CUDA. */
cudaError_t cudaDeviceReset(void)
{
    streams_reset();
    report_clear();
    (void)cudaGetLastError();
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *driverVersion)
{
    *driverVersion = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *runtimeVersion)
{
    *runtimeVersion = CUDART_VERSION;
    return cudaSuccess;
}

} /* extern "C" */
