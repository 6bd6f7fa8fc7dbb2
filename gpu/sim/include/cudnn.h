/* cuDNN's handles, descriptors and status, for headers that name them; its functions are declared in C++ and refused by name when they are
 * called. */
#ifndef ASSAY_SIM_CUDNN_H
#define ASSAY_SIM_CUDNN_H

#include "assay_sim.h"

#define CUDNN_MAJOR 9
#define CUDNN_MINOR 0
#define CUDNN_PATCHLEVEL 0
#define CUDNN_VERSION (CUDNN_MAJOR * 10000 + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL)

typedef struct cudnnContext *cudnnHandle_t;
typedef struct cudnnTensorStruct *cudnnTensorDescriptor_t;
typedef struct cudnnFilterStruct *cudnnFilterDescriptor_t;
typedef struct cudnnConvolutionStruct *cudnnConvolutionDescriptor_t;
typedef struct cudnnActivationStruct *cudnnActivationDescriptor_t;
typedef struct cudnnPoolingStruct *cudnnPoolingDescriptor_t;
typedef struct cudnnDropoutStruct *cudnnDropoutDescriptor_t;
typedef void *cudnnBackendDescriptor_t;

typedef enum {
    CUDNN_STATUS_SUCCESS = 0,
    CUDNN_STATUS_NOT_INITIALIZED = 1001,
    CUDNN_STATUS_BAD_PARAM = 2000,
    CUDNN_STATUS_NOT_SUPPORTED = 3000,
    CUDNN_STATUS_INTERNAL_ERROR = 4000,
    CUDNN_STATUS_EXECUTION_FAILED = 5000
} cudnnStatus_t;

typedef enum {
    CUDNN_DATA_FLOAT = 0,
    CUDNN_DATA_DOUBLE = 1,
    CUDNN_DATA_HALF = 2,
    CUDNN_DATA_INT8 = 3,
    CUDNN_DATA_INT32 = 4,
    CUDNN_DATA_UINT8 = 6,
    CUDNN_DATA_BFLOAT16 = 9,
    CUDNN_DATA_INT64 = 10,
    CUDNN_DATA_BOOLEAN = 11,
    CUDNN_DATA_FP8_E4M3 = 12,
    CUDNN_DATA_FP8_E5M2 = 13
} cudnnDataType_t;
typedef enum { CUDNN_TENSOR_NCHW = 0, CUDNN_TENSOR_NHWC = 1 } cudnnTensorFormat_t;

static inline size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

static inline const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "cuDNN is not modelled by the simulator";
}

#ifdef __cplusplus
#define ASSAY_SIM_CUDNN(name)                                                                                \
    template <class... A> static inline cudnnStatus_t name(A &&...)                                          \
    {                                                                                                        \
        assay_sim_refuse(#name);                                                                             \
        return CUDNN_STATUS_NOT_SUPPORTED;                                                                   \
    }
ASSAY_SIM_CUDNN(cudnnCreate)
ASSAY_SIM_CUDNN(cudnnDestroy)
ASSAY_SIM_CUDNN(cudnnSetStream)
ASSAY_SIM_CUDNN(cudnnGetStream)
ASSAY_SIM_CUDNN(cudnnCreateTensorDescriptor)
ASSAY_SIM_CUDNN(cudnnSetTensor4dDescriptor)
ASSAY_SIM_CUDNN(cudnnSetTensorNdDescriptor)
ASSAY_SIM_CUDNN(cudnnDestroyTensorDescriptor)
ASSAY_SIM_CUDNN(cudnnCreateFilterDescriptor)
ASSAY_SIM_CUDNN(cudnnSetFilter4dDescriptor)
ASSAY_SIM_CUDNN(cudnnDestroyFilterDescriptor)
ASSAY_SIM_CUDNN(cudnnCreateConvolutionDescriptor)
ASSAY_SIM_CUDNN(cudnnSetConvolution2dDescriptor)
ASSAY_SIM_CUDNN(cudnnDestroyConvolutionDescriptor)
ASSAY_SIM_CUDNN(cudnnConvolutionForward)
ASSAY_SIM_CUDNN(cudnnConvolutionBackwardData)
ASSAY_SIM_CUDNN(cudnnConvolutionBackwardFilter)
ASSAY_SIM_CUDNN(cudnnGetConvolutionForwardWorkspaceSize)
ASSAY_SIM_CUDNN(cudnnSoftmaxForward)
ASSAY_SIM_CUDNN(cudnnSoftmaxBackward)
ASSAY_SIM_CUDNN(cudnnActivationForward)
ASSAY_SIM_CUDNN(cudnnPoolingForward)
ASSAY_SIM_CUDNN(cudnnAddTensor)
ASSAY_SIM_CUDNN(cudnnBackendCreateDescriptor)
ASSAY_SIM_CUDNN(cudnnBackendSetAttribute)
ASSAY_SIM_CUDNN(cudnnBackendFinalize)
ASSAY_SIM_CUDNN(cudnnBackendExecute)
#undef ASSAY_SIM_CUDNN
#endif

#endif
