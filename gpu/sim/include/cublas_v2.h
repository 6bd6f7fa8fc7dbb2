/* cuBLAS, the subset that programs beside a training engine use.
 *
 * DECLARED ARITHMETIC.  Matrix products are those of cublasLt.h ("sequential fma"), matrix-vector products are products with
 * one column.  Level 1 goes through its elements in ascending order: axpy fma(alpha, x, y), scal one rounding, dot and nrm2 a
 * chain of fma from 0 in the type of the data (nrm2 takes the root at the end), asum a chain of additions.
 *
 * Modelled: float and double; GemmEx and its strided batches for the types of cublasLt.h; host and device pointer mode in
 * level 1, host pointer mode elsewhere.  What is not declared is not modelled; what meets a type, a flag or a stride that is
 * not modelled returns CUBLAS_STATUS_NOT_SUPPORTED and prints a line that names it. */
#ifndef ASSAY_SIM_CUBLAS_V2_H
#define ASSAY_SIM_CUBLAS_V2_H
#define CUBLAS_API_H_ /* CUDA's own guards, which other people's headers ask for */
#define CUBLAS_V2_H_

#include "cuComplex.h"
#include "cublasLt.h"
#include "cuda_bf16.h" /* cuBLAS has them, and programs count on it */
#include "cuda_fp16.h"
#include "cuda_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cublasContext *cublasHandle_t;
typedef cudaDataType cublasDataType_t;
typedef enum {
    CUBLAS_DEFAULT_MATH = 0,
    CUBLAS_TENSOR_OP_MATH = 1,
    CUBLAS_PEDANTIC_MATH = 2,
    CUBLAS_TF32_TENSOR_OP_MATH = 3,
    CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
} cublasMath_t;
typedef enum {
    CUBLAS_GEMM_DFALT = -1,
    CUBLAS_GEMM_DEFAULT = -1,
    CUBLAS_GEMM_DFALT_TENSOR_OP = 99,
    CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99
} cublasGemmAlgo_t;
typedef enum {
    CUBLAS_FILL_MODE_LOWER = 0,
    CUBLAS_FILL_MODE_UPPER = 1,
    CUBLAS_FILL_MODE_FULL = 2
} cublasFillMode_t;
typedef enum { CUBLAS_DIAG_NON_UNIT = 0, CUBLAS_DIAG_UNIT = 1 } cublasDiagType_t;
typedef enum { CUBLAS_SIDE_LEFT = 0, CUBLAS_SIDE_RIGHT = 1 } cublasSideMode_t;
typedef enum { CUBLAS_ATOMICS_NOT_ALLOWED = 0, CUBLAS_ATOMICS_ALLOWED = 1 } cublasAtomicsMode_t;

cublasStatus_t cublasCreate(cublasHandle_t *handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasGetVersion(cublasHandle_t handle, int *version);
const char *cublasGetStatusName(cublasStatus_t status);
const char *cublasGetStatusString(cublasStatus_t status);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t *stream);
cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode);
cublasStatus_t cublasGetPointerMode(cublasHandle_t handle, cublasPointerMode_t *mode);
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode);
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode);    /* none are used */
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes); /* none is needed */

cublasStatus_t cublasSetVector(int n, int elemSize, const void *x, int incx, void *devicePtr, int incy);
cublasStatus_t cublasGetVector(int n, int elemSize, const void *x, int incx, void *y, int incy);
cublasStatus_t cublasSetMatrix(int rows, int cols, int elemSize, const void *A, int lda, void *B, int ldb);
cublasStatus_t cublasGetMatrix(int rows, int cols, int elemSize, const void *A, int lda, void *B, int ldb);

#define ASSAY_SIM_CUBLAS(letter, lower, type)                                                                \
    cublasStatus_t cublas##letter##axpy(cublasHandle_t handle, int n, const type *alpha, const type *x,      \
                                        int incx, type *y, int incy);                                        \
    cublasStatus_t cublas##letter##scal(cublasHandle_t handle, int n, const type *alpha, type *x, int incx); \
    cublasStatus_t cublas##letter##copy(cublasHandle_t handle, int n, const type *x, int incx, type *y,      \
                                        int incy);                                                           \
    cublasStatus_t cublas##letter##swap(cublasHandle_t handle, int n, type *x, int incx, type *y, int incy); \
    cublasStatus_t cublas##letter##dot(cublasHandle_t handle, int n, const type *x, int incx, const type *y, \
                                       int incy, type *result);                                              \
    cublasStatus_t cublas##letter##nrm2(cublasHandle_t handle, int n, const type *x, int incx,               \
                                        type *result);                                                       \
    cublasStatus_t cublas##letter##asum(cublasHandle_t handle, int n, const type *x, int incx,               \
                                        type *result);                                                       \
    cublasStatus_t cublasI##lower##amax(cublasHandle_t handle, int n, const type *x, int incx, int *result); \
    cublasStatus_t cublas##letter##gemv(cublasHandle_t handle, cublasOperation_t trans, int m, int n,        \
                                        const type *alpha, const type *A, int lda, const type *x, int incx,  \
                                        const type *beta, type *y, int incy);                                \
    cublasStatus_t cublas##letter##gemm(cublasHandle_t handle, cublasOperation_t transa,                     \
                                        cublasOperation_t transb, int m, int n, int k, const type *alpha,    \
                                        const type *A, int lda, const type *B, int ldb, const type *beta,    \
                                        type *C, int ldc);                                                   \
    cublasStatus_t cublas##letter##gemmStridedBatched(                                                       \
        cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,      \
        const type *alpha, const type *A, int lda, long long strideA, const type *B, int ldb,                \
        long long strideB, const type *beta, type *C, int ldc, long long strideC, int batchCount);
ASSAY_SIM_CUBLAS(S, s, float)
ASSAY_SIM_CUBLAS(D, d, double)
#undef ASSAY_SIM_CUBLAS

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m,
                            int n, int k, const void *alpha, const void *A, cudaDataType Atype, int lda,
                            const void *B, cudaDataType Btype, int ldb, const void *beta, void *C,
                            cudaDataType Ctype, int ldc, cublasComputeType_t computeType,
                            cublasGemmAlgo_t algo);
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                          cublasOperation_t transb, int m, int n, int k, const void *alpha,
                                          const void *A, cudaDataType Atype, int lda, long long strideA,
                                          const void *B, cudaDataType Btype, int ldb, long long strideB,
                                          const void *beta, void *C, cudaDataType Ctype, int ldc,
                                          long long strideC, int batchCount, cublasComputeType_t computeType,
                                          cublasGemmAlgo_t algo);
#ifdef __cplusplus
}

/* The older form names the type of the computation. */
static inline cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                                          cublasOperation_t transb, int m, int n, int k, const void *alpha,
                                          const void *A, cudaDataType Atype, int lda, const void *B,
                                          cudaDataType Btype, int ldb, const void *beta, void *C,
                                          cudaDataType Ctype, int ldc, cudaDataType computeType,
                                          cublasGemmAlgo_t algo)
{
    const cublasComputeType_t compute = computeType == CUDA_R_32F   ? CUBLAS_COMPUTE_32F
                                        : computeType == CUDA_R_64F ? CUBLAS_COMPUTE_64F
                                        : computeType == CUDA_R_16F ? CUBLAS_COMPUTE_16F
                                                                    : CUBLAS_COMPUTE_32I;
    return cublasGemmEx(handle, transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb, beta, C, Ctype,
                        ldc, compute, algo);
}
#endif

#define cublasCreate_v2 cublasCreate
#define cublasDestroy_v2 cublasDestroy
#define cublasSetStream_v2 cublasSetStream
#define cublasSgemm_v2 cublasSgemm
#define cublasDgemm_v2 cublasDgemm

#endif
