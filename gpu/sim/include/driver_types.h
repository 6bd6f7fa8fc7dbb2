/* Types of the CUDA runtime that the simulator models: errors, handles, flags, device properties.  Numeric
 * values are those of CUDA 13, so that a number in a log means the same on both. */
#ifndef ASSAY_SIM_DRIVER_TYPES_H
#define ASSAY_SIM_DRIVER_TYPES_H
#define __DRIVER_TYPES_H__ /* CUDA's own guard, which other people's headers ask for */

#include <stddef.h>

/* name, value, text */
#define ASSAY_SIM_CUDA_ERRORS(X)                                                                             \
    X(cudaSuccess, 0, "no error")                                                                            \
    X(cudaErrorInvalidValue, 1, "invalid argument")                                                          \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                                         \
    X(cudaErrorInitializationError, 3, "initialization error")                                               \
    X(cudaErrorCudartUnloading, 4, "runtime is shutting down")                                               \
    X(cudaErrorInvalidConfiguration, 9, "invalid launch configuration")                                      \
    X(cudaErrorInvalidPitchValue, 12, "invalid pitch")                                                       \
    X(cudaErrorInvalidSymbol, 13, "invalid device symbol")                                                   \
    X(cudaErrorInvalidHostPointer, 16, "invalid host pointer")                                               \
    X(cudaErrorInvalidDevicePointer, 17, "invalid device pointer")                                           \
    X(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction")                                         \
    X(cudaErrorInsufficientDriver, 35, "driver is older than the runtime")                                   \
    X(cudaErrorMissingConfiguration, 52, "missing launch configuration")                                     \
    X(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                                         \
    X(cudaErrorNoDevice, 100, "no device")                                                                   \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                                 \
    X(cudaErrorDeviceUninitialized, 201, "invalid device context")                                           \
    X(cudaErrorNoKernelImageForDevice, 209, "no kernel image for this device")                               \
    X(cudaErrorECCUncorrectable, 214, "uncorrectable memory error")                                          \
    X(cudaErrorPeerAccessUnsupported, 217, "peer access is not supported")                                   \
    X(cudaErrorOperatingSystem, 304, "operating system call failed")                                         \
    X(cudaErrorInvalidResourceHandle, 400, "invalid stream or event handle")                                 \
    X(cudaErrorIllegalState, 401, "illegal state")                                                           \
    X(cudaErrorSymbolNotFound, 500, "symbol not found")                                                      \
    X(cudaErrorNotReady, 600, "not ready: work is still pending")                                            \
    X(cudaErrorIllegalAddress, 700, "illegal memory access")                                                 \
    X(cudaErrorLaunchOutOfResources, 701, "launch needs more resources than a block may have")               \
    X(cudaErrorLaunchTimeout, 702, "launch timed out")                                                       \
    X(cudaErrorPeerAccessAlreadyEnabled, 704, "peer access is already enabled")                              \
    X(cudaErrorPeerAccessNotEnabled, 705, "peer access is not enabled")                                      \
    X(cudaErrorContextIsDestroyed, 709, "context is destroyed")                                              \
    X(cudaErrorAssert, 710, "device-side assert")                                                            \
    X(cudaErrorHostMemoryAlreadyRegistered, 712, "host memory is already registered")                        \
    X(cudaErrorHostMemoryNotRegistered, 713, "host memory is not registered")                                \
    X(cudaErrorMisalignedAddress, 716, "misaligned address")                                                 \
    X(cudaErrorLaunchFailure, 719, "launch failure")                                                         \
    X(cudaErrorCooperativeLaunchTooLarge, 720, "cooperative launch is too large")                            \
    X(cudaErrorNotPermitted, 800, "operation not permitted")                                                 \
    X(cudaErrorNotSupported, 801, "operation not supported")                                                 \
    X(cudaErrorSystemNotReady, 802, "system not ready")                                                      \
    X(cudaErrorStreamCaptureUnsupported, 900, "stream capture is not supported")                             \
    X(cudaErrorStreamCaptureInvalidated, 901, "stream capture is invalid")                                   \
    X(cudaErrorStreamCaptureMerge, 902, "two captures would become one")                                     \
    X(cudaErrorStreamCaptureUnmatched, 903, "capture was not begun in this stream")                          \
    X(cudaErrorStreamCaptureUnjoined, 904, "captured work was not joined")                                   \
    X(cudaErrorStreamCaptureIsolation, 905, "captured work depends on work outside")                         \
    X(cudaErrorStreamCaptureImplicit, 906, "legacy default stream depends on a captured stream")             \
    X(cudaErrorCapturedEvent, 907, "event was recorded in a captured stream")                                \
    X(cudaErrorStreamCaptureWrongThread, 908, "capture was begun by another thread")                         \
    X(cudaErrorTimeout, 909, "timed out")                                                                    \
    X(cudaErrorUnknown, 999, "unknown error")

typedef enum cudaError {
#define ASSAY_SIM_ENUMERATOR(name, value, text) name = value,
    ASSAY_SIM_CUDA_ERRORS(ASSAY_SIM_ENUMERATOR)
#undef ASSAY_SIM_ENUMERATOR
        cudaErrorApiFailureBase = 10000
} cudaError_t;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUmemPoolHandle_st *cudaMemPool_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef struct CUgraphNode_st *cudaGraphNode_t;
typedef enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2
} cudaStreamCaptureMode;
typedef enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone = 0,
    cudaStreamCaptureStatusActive = 1,
    cudaStreamCaptureStatusInvalidated = 2
} cudaStreamCaptureStatus;
typedef void (*cudaHostFn_t)(void *userData);
typedef void (*cudaStreamCallback_t)(cudaStream_t stream, cudaError_t status, void *userData);

#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)

#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02
#define cudaEventInterprocess 0x04
#define cudaEventRecordDefault 0x00
#define cudaEventRecordExternal 0x01
#define cudaEventWaitDefault 0x00
#define cudaEventWaitExternal 0x01
#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01
#define cudaHostAllocMapped 0x02
#define cudaHostAllocWriteCombined 0x04
#define cudaHostRegisterDefault 0x00
#define cudaHostRegisterPortable 0x01
#define cudaHostRegisterMapped 0x02
#define cudaHostRegisterReadOnly 0x08
#define cudaMemAttachGlobal 0x01
#define cudaMemAttachHost 0x02
#define cudaMemAttachSingle 0x04
#define cudaCpuDeviceId (-1)
#define cudaInvalidDeviceId (-2)
#define cudaOccupancyDefault 0x00
#define cudaOccupancyDisableCachingOverride 0x01
#define cudaIpcMemLazyEnablePeerAccess 0x01
#define cudaDeviceMapHost 0x08
#define cudaDeviceBlockingSync 0x04
#define cudaDeviceLmemResizeToMax 0x10
#define cudaHostRegisterIoMemory 0x04
#define cudaDeviceScheduleAuto 0x00
#define cudaDeviceScheduleSpin 0x01
#define cudaDeviceScheduleYield 0x02
#define cudaDeviceScheduleBlockingSync 0x04

enum cudaRoundMode { cudaRoundNearest, cudaRoundZero, cudaRoundPosInf, cudaRoundMinInf };
typedef enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
} cudaMemcpyKind;

typedef enum cudaComputeMode {
    cudaComputeModeDefault = 0,
    cudaComputeModeExclusive = 1,
    cudaComputeModeProhibited = 2,
    cudaComputeModeExclusiveProcess = 3
} cudaComputeMode;

typedef enum cudaFuncCache {
    cudaFuncCachePreferNone = 0,
    cudaFuncCachePreferShared = 1,
    cudaFuncCachePreferL1 = 2,
    cudaFuncCachePreferEqual = 3
} cudaFuncCache;

typedef enum cudaSharedCarveout {
    cudaSharedmemCarveoutDefault = -1,
    cudaSharedmemCarveoutMaxL1 = 0,
    cudaSharedmemCarveoutMaxShared = 100
} cudaSharedCarveout;

typedef enum cudaSharedMemConfig {
    cudaSharedMemBankSizeDefault = 0,
    cudaSharedMemBankSizeFourByte = 1,
    cudaSharedMemBankSizeEightByte = 2
} cudaSharedMemConfig;

typedef enum cudaLimit {
    cudaLimitStackSize = 0,
    cudaLimitPrintfFifoSize = 1,
    cudaLimitMallocHeapSize = 2,
    cudaLimitDevRuntimeSyncDepth = 3,
    cudaLimitDevRuntimePendingLaunchCount = 4,
    cudaLimitMaxL2FetchGranularity = 5,
    cudaLimitPersistingL2CacheSize = 6
} cudaLimit;

typedef enum cudaMemoryAdvise {
    cudaMemAdviseSetReadMostly = 1,
    cudaMemAdviseUnsetReadMostly = 2,
    cudaMemAdviseSetPreferredLocation = 3,
    cudaMemAdviseUnsetPreferredLocation = 4,
    cudaMemAdviseSetAccessedBy = 5,
    cudaMemAdviseUnsetAccessedBy = 6
} cudaMemoryAdvise;

typedef enum cudaMemLocationType {
    cudaMemLocationTypeInvalid = 0,
    cudaMemLocationTypeDevice = 1,
    cudaMemLocationTypeHost = 2
} cudaMemLocationType;

typedef struct cudaMemLocation {
    cudaMemLocationType type;
    int id;
} cudaMemLocation;

typedef enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3
} cudaMemoryType;

struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
    void *devicePointer;
    void *hostPointer;
};
typedef struct cudaPointerAttributes cudaPointerAttributes;

typedef enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9,
    cudaFuncAttributeClusterDimMustBeSet = 10,
    cudaFuncAttributeMax
} cudaFuncAttribute;

struct cudaFuncAttributes {
    size_t sharedSizeBytes;
    size_t constSizeBytes;
    size_t localSizeBytes;
    int maxThreadsPerBlock;
    int numRegs;
    int ptxVersion;
    int binaryVersion;
    int maxDynamicSharedSizeBytes;
};
typedef struct cudaFuncAttributes cudaFuncAttributes;

typedef enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxBlockDimX = 2,
    cudaDevAttrMaxBlockDimY = 3,
    cudaDevAttrMaxBlockDimZ = 4,
    cudaDevAttrMaxGridDimX = 5,
    cudaDevAttrMaxGridDimY = 6,
    cudaDevAttrMaxGridDimZ = 7,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrTotalConstantMemory = 9,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrMaxRegistersPerBlock = 12,
    cudaDevAttrMaxPitch = 11,
    cudaDevAttrClockRate = 13,
    cudaDevAttrTextureAlignment = 14,
    cudaDevAttrGpuOverlap = 15,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrKernelExecTimeout = 17,
    cudaDevAttrIntegrated = 18,
    cudaDevAttrCanMapHostMemory = 19,
    cudaDevAttrComputeMode = 20,
    cudaDevAttrConcurrentKernels = 31,
    cudaDevAttrEccEnabled = 32,
    cudaDevAttrPciBusId = 33,
    cudaDevAttrPciDeviceId = 34,
    cudaDevAttrTccDriver = 35,
    cudaDevAttrMemoryClockRate = 36,
    cudaDevAttrGlobalMemoryBusWidth = 37,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrAsyncEngineCount = 40,
    cudaDevAttrUnifiedAddressing = 41,
    cudaDevAttrPciDomainId = 50,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrStreamPrioritiesSupported = 78,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxRegistersPerMultiprocessor = 82,
    cudaDevAttrManagedMemory = 83,
    cudaDevAttrHostNativeAtomicSupported = 86,
    cudaDevAttrPageableMemoryAccess = 88,
    cudaDevAttrConcurrentManagedAccess = 89,
    cudaDevAttrComputePreemptionSupported = 90,
    cudaDevAttrCooperativeLaunch = 95,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
    cudaDevAttrMaxBlocksPerMultiprocessor = 106,
    cudaDevAttrMemoryPoolsSupported = 115
} cudaDeviceAttr;

typedef struct CUuuid_st {
    char bytes[16];
} cudaUUID_t;

/* The members that portable programs read; the order is not CUDA's, the names and types are. */
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    size_t sharedMemPerBlockOptin;
    size_t sharedMemPerMultiprocessor;
    size_t reservedSharedMemPerBlock;
    size_t totalConstMem;
    size_t memPitch;
    int regsPerBlock;
    int regsPerMultiprocessor;
    int warpSize;
    int maxThreadsPerBlock;
    int maxThreadsDim[3];
    int maxGridSize[3];
    int major;
    int minor;
    int multiProcessorCount;
    int maxThreadsPerMultiProcessor;
    int maxBlocksPerMultiProcessor;
    int integrated;
    int canMapHostMemory;
    int concurrentKernels;
    int ECCEnabled;
    int pciBusID;
    int pciDeviceID;
    int pciDomainID;
    int asyncEngineCount;
    int unifiedAddressing;
    int memoryBusWidth;
    int l2CacheSize;
    int managedMemory;
    int cooperativeLaunch;
    int clusterLaunch;
    int memoryPoolsSupported;
    int streamPrioritiesSupported;
    /* Members that CUDA 13 has dropped and older programs read. */
    int clockRate;
    int memoryClockRate;
    int computeMode;
    int deviceOverlap;
    int kernelExecTimeoutEnabled;
    /* Textures are not modelled: sizes of 0. */
    size_t textureAlignment, surfaceAlignment, texturePitchAlignment;
    int maxTexture1D, maxTexture1DLinear, maxTexture2D[2], maxTexture3D[3], maxTexture1DLayered[2],
        maxTexture2DLayered[3];
    int tccDriver;
    int isMultiGpuBoard;
    int multiGpuBoardGroupID;
    int computePreemptionSupported;
    int hostNativeAtomicSupported;
    int pageableMemoryAccess;
    int concurrentManagedAccess;
    int canUseHostPointerForRegisteredMem;
    int directManagedMemAccessFromHost;
    int pageableMemoryAccessUsesHostPageTables;
    int cooperativeMultiDeviceLaunch;
    int persistingL2CacheMaxSize;
    int accessPolicyMaxWindowSize;
    int globalL1CacheSupported;
    int localL1CacheSupported;
    int singleToDoublePrecisionPerfRatio;
    int hostRegisterSupported;
};
typedef struct cudaDeviceProp cudaDeviceProp;

#endif
