/* The types of CUDA's driver interface, for programs that name them beside the runtime.  Some of its functions are declared in C++ and
 * refused by name when they are called; the others are not declared: the driver interface is not modelled. */
#ifndef ASSAY_SIM_CUDA_H
#define ASSAY_SIM_CUDA_H
#define CUDA_VERSION 13000

#include "assay_sim.h"
#include "driver_types.h"

#include <stdint.h>

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUarray_st *CUarray;
typedef enum cudaError_enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_UNKNOWN = 999
} CUresult;

/* The arguments of cuTensorMapEncodeTiled. */
typedef struct __attribute__((aligned(64))) CUtensorMap_st {
    uint64_t opaque[16];
} CUtensorMap;
typedef enum CUtensorMapDataType_enum {
    CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0,
    CU_TENSOR_MAP_DATA_TYPE_UINT16,
    CU_TENSOR_MAP_DATA_TYPE_UINT32,
    CU_TENSOR_MAP_DATA_TYPE_INT32,
    CU_TENSOR_MAP_DATA_TYPE_UINT64,
    CU_TENSOR_MAP_DATA_TYPE_INT64,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ,
    CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
    CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ,
    CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B,
    CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B,
    CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B
} CUtensorMapDataType;
typedef enum CUtensorMapInterleave_enum {
    CU_TENSOR_MAP_INTERLEAVE_NONE = 0,
    CU_TENSOR_MAP_INTERLEAVE_16B,
    CU_TENSOR_MAP_INTERLEAVE_32B
} CUtensorMapInterleave;
typedef enum CUtensorMapSwizzle_enum {
    CU_TENSOR_MAP_SWIZZLE_NONE = 0,
    CU_TENSOR_MAP_SWIZZLE_32B,
    CU_TENSOR_MAP_SWIZZLE_64B,
    CU_TENSOR_MAP_SWIZZLE_128B
} CUtensorMapSwizzle;
typedef enum CUtensorMapL2promotion_enum {
    CU_TENSOR_MAP_L2_PROMOTION_NONE = 0,
    CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
    CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    CU_TENSOR_MAP_L2_PROMOTION_L2_256B
} CUtensorMapL2promotion;
typedef enum CUtensorMapFloatOOBfill_enum {
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0,
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
} CUtensorMapFloatOOBfill;
typedef enum CUfunction_attribute_enum {
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
} CUfunction_attribute;
typedef enum CUfunc_cache_enum {
    CU_FUNC_CACHE_PREFER_NONE = 0,
    CU_FUNC_CACHE_PREFER_SHARED = 1,
    CU_FUNC_CACHE_PREFER_L1 = 2,
    CU_FUNC_CACHE_PREFER_EQUAL = 3
} CUfunc_cache;

#ifdef __cplusplus
#define ASSAY_SIM_DRIVER(name)                                                                               \
    template <class... A> static inline CUresult name(A &&...)                                               \
    {                                                                                                        \
        assay_sim_refuse(#name);                                                                             \
        return CUDA_ERROR_NOT_SUPPORTED;                                                                     \
    }
ASSAY_SIM_DRIVER(cuInit)
ASSAY_SIM_DRIVER(cuDriverGetVersion)
ASSAY_SIM_DRIVER(cuDeviceGet)
ASSAY_SIM_DRIVER(cuDeviceGetCount)
ASSAY_SIM_DRIVER(cuDeviceGetName)
ASSAY_SIM_DRIVER(cuDeviceGetAttribute)
ASSAY_SIM_DRIVER(cuDeviceTotalMem)
ASSAY_SIM_DRIVER(cuDevicePrimaryCtxRetain)
ASSAY_SIM_DRIVER(cuDevicePrimaryCtxRelease)
ASSAY_SIM_DRIVER(cuCtxCreate)
ASSAY_SIM_DRIVER(cuCtxDestroy)
ASSAY_SIM_DRIVER(cuCtxGetCurrent)
ASSAY_SIM_DRIVER(cuCtxSetCurrent)
ASSAY_SIM_DRIVER(cuCtxSynchronize)
ASSAY_SIM_DRIVER(cuGetErrorName)
ASSAY_SIM_DRIVER(cuGetErrorString)
ASSAY_SIM_DRIVER(cuModuleLoad)
ASSAY_SIM_DRIVER(cuModuleLoadData)
ASSAY_SIM_DRIVER(cuModuleLoadDataEx)
ASSAY_SIM_DRIVER(cuModuleUnload)
ASSAY_SIM_DRIVER(cuModuleGetFunction)
ASSAY_SIM_DRIVER(cuModuleGetGlobal)
ASSAY_SIM_DRIVER(cuFuncSetAttribute)
ASSAY_SIM_DRIVER(cuFuncGetAttribute)
ASSAY_SIM_DRIVER(cuFuncSetCacheConfig)
ASSAY_SIM_DRIVER(cuLaunchKernel)
ASSAY_SIM_DRIVER(cuLaunchCooperativeKernel)
ASSAY_SIM_DRIVER(cuMemAlloc)
ASSAY_SIM_DRIVER(cuMemFree)
ASSAY_SIM_DRIVER(cuMemcpyHtoD)
ASSAY_SIM_DRIVER(cuMemcpyDtoH)
ASSAY_SIM_DRIVER(cuStreamSynchronize)
ASSAY_SIM_DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessor)
ASSAY_SIM_DRIVER(cuPointerGetAttribute)
ASSAY_SIM_DRIVER(cuTensorMapEncodeTiled)
#undef ASSAY_SIM_DRIVER
#endif

#endif
