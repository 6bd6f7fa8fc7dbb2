/* cuBLAS over cuBLASLt: products are its products; vectors are loops in the declared order, as stream work. */
#include "blas.hpp"
#include "sim.hpp"

#include "cublas_v2.h"

#include <functional>
#include <math.h>

struct cublasContext {
    cudaStream_t stream;
    cublasPointerMode_t pointers;
    cublasMath_t math;
    cublasLtHandle_t lt;
};

namespace
{

cublasStatus_t invalid(const char *what)
{
    assay_sim_report("cublas", "invalid: %s", what);
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t unsupported(const char *what)
{
    assay_sim_report("unsupported", "cublas: %s", what);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

typedef std::function<void()> task;

assay_sim_step task_step(void *state)
{
    (*static_cast<task *>(state))();
    return ASSAY_SIM_DONE;
}

void task_destroy(void *state)
{
    delete static_cast<task *>(state);
}

cublasStatus_t enqueue(cublasHandle_t h, const char *name, bool wait, task t)
{
    const assay_sim_work work = {name, task_step, nullptr, task_destroy, new task(std::move(t))};
    cudaError_t error = assay_sim_enqueue(h->stream, &work);
    if (error == cudaSuccess && wait)
        error = cudaStreamSynchronize(h->stream);
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

/* n elements from x on, inc apart, lie inside one block that this device may touch. */
bool reachable(const char *what, const void *x, int64_t n, int64_t inc, size_t bytes)
{
    const int64_t last = n == 0 ? 0 : (n - 1) * (inc < 0 ? -inc : inc) + 1;
    if (n == 0 || (x != nullptr && assay_sim_memory_kind(x, static_cast<size_t>(last) * bytes) != 0))
        return true;
    assay_sim_report("out of bounds",
                     "%s: a vector at %p needs %lld elements, which are not inside one device block", what, x,
                     static_cast<long long>(last));
    return false;
}

/* BLAS: with a negative increment the vector begins at its end. */
template <class T> T &at(T *x, int64_t i, int64_t n, int64_t inc)
{
    return x[inc < 0 ? (i - n + 1) * inc : i * inc];
}

/* What the work has read or written, for the race checker: one piece, or elements that lie apart. */
template <class T> void touch(const T *x, int64_t n, int64_t inc, bool write)
{
    const bool whole = inc == 1 || inc == -1;
    if (n > 0 && whole)
        sim::race_range(x, static_cast<size_t>(n) * sizeof(T), write);
    for (int64_t i = 0; i < n && !whole; ++i)
        sim::race_range(&at(x, i, n, inc), sizeof(T), write);
}

#define CHECK_HANDLE(h)                                                                                      \
    do {                                                                                                     \
        if ((h) == nullptr)                                                                                  \
            return CUBLAS_STATUS_NOT_INITIALIZED;                                                            \
    } while (0)
#define CHECK_VECTOR(name, x, n, inc, T)                                                                     \
    do {                                                                                                     \
        if ((n) > 0 && (inc) == 0)                                                                           \
            return invalid(name ": an increment of 0");                                                      \
        if (!reachable(name, x, (n) > 0 ? (n) : 0, inc, sizeof(T)))                                          \
            return CUBLAS_STATUS_INVALID_VALUE;                                                              \
    } while (0)

/* A factor: read now from the host, or when the work runs from the device. */
template <class T> std::function<T()> factor(cublasHandle_t h, const T *p)
{
    if (h->pointers == CUBLAS_POINTER_MODE_DEVICE)
        return [p] {
            touch(p, 1, 1, false);
            return *p;
        };
    const T value = *p;
    return [value] { return value; };
}

template <class T> T fused(T a, T b, T c)
{
    return static_cast<T>(
        sizeof(T) == 4
            ? static_cast<T>(fmaf(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c)))
            : static_cast<T>(fma(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c))));
}

template <class T>
cublasStatus_t axpy(cublasHandle_t h, int n, const T *alpha, const T *x, int incx, T *y, int incy)
{
    CHECK_HANDLE(h);
    CHECK_VECTOR("axpy", x, n, incx, T);
    CHECK_VECTOR("axpy", y, n, incy, T);
    const auto a = factor(h, alpha);
    return enqueue(h, "cublasaxpy", false, [=] {
        const T f = a();
        for (int64_t i = 0; i < n; ++i)
            at(y, i, n, incy) = fused(f, at(x, i, n, incx), at(y, i, n, incy));
        touch(x, n, incx, false);
        touch(y, n, incy, true);
    });
}

template <class T> cublasStatus_t scal(cublasHandle_t h, int n, const T *alpha, T *x, int incx)
{
    CHECK_HANDLE(h);
    CHECK_VECTOR("scal", x, n, incx, T);
    const auto a = factor(h, alpha);
    return enqueue(h, "cublasscal", false, [=] {
        const T f = a();
        for (int64_t i = 0; i < n; ++i)
            at(x, i, n, incx) *= f;
        touch(x, n, incx, true);
    });
}

template <class T> cublasStatus_t exchange(cublasHandle_t h, int n, T *x, int incx, T *y, int incy, bool both)
{
    CHECK_HANDLE(h);
    CHECK_VECTOR("copy", x, n, incx, T);
    CHECK_VECTOR("copy", y, n, incy, T);
    return enqueue(h, both ? "cublasswap" : "cublascopy", false, [=] {
        for (int64_t i = 0; i < n; ++i) {
            const T was = at(y, i, n, incy);
            at(y, i, n, incy) = at(x, i, n, incx);
            if (both)
                at(x, i, n, incx) = was;
        }
        touch(x, n, incx, both);
        touch(y, n, incy, true);
    });
}

enum reduction { DOT, NRM2, ASUM };

template <class T>
cublasStatus_t reduce(cublasHandle_t h, reduction how, int n, const T *x, int incx, const T *y, int incy,
                      T *result)
{
    CHECK_HANDLE(h);
    CHECK_VECTOR("dot, nrm2 or asum", x, n, incx, T);
    CHECK_VECTOR("dot, nrm2 or asum", y, n, incy, T);
    return enqueue(h, "cublas reduction", h->pointers == CUBLAS_POINTER_MODE_HOST, [=] {
        T sum = 0;
        for (int64_t i = 0; i < n; ++i) {
            const T v = at(x, i, n, incx);
            sum = how == ASUM ? sum + static_cast<T>(fabs(static_cast<double>(v)))
                              : fused(v, at(y, i, n, incy), sum);
        }
        *result = how == NRM2 ? static_cast<T>(sqrt(sum)) : sum;
        touch(x, n, incx, false);
        touch(y, n, incy, false);
        touch(result, 1, 1, true);
    });
}

template <class T> cublasStatus_t amax(cublasHandle_t h, int n, const T *x, int incx, int *result)
{
    CHECK_HANDLE(h);
    CHECK_VECTOR("amax", x, n, incx, T);
    return enqueue(h, "cublas amax", h->pointers == CUBLAS_POINTER_MODE_HOST, [=] {
        int best = n > 0 ? 1 : 0; /* counted from 1 */
        for (int64_t i = 1; i < n; ++i) {
            if (fabs(static_cast<double>(at(x, i, n, incx))) >
                fabs(static_cast<double>(at(x, best - 1, n, incx))))
                best = static_cast<int>(i) + 1;
        }
        *result = best;
        touch(x, n, incx, false);
        touch(result, 1, 1, true);
    });
}

struct matrix {
    const void *at;
    cudaDataType type;
    int64_t rows, cols, ld, stride;
    bool by_rows; /* of a vector whose elements lie ld apart */
};

cublasStatus_t layout(cublasLtMatrixLayoutOpaque_t *out, const matrix &m, int batches)
{
    const int32_t order = m.by_rows ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL, count = batches;
    cublasStatus_t s = cublasLtMatrixLayoutInit(out, m.type, static_cast<uint64_t>(m.rows),
                                                static_cast<uint64_t>(m.cols), m.ld);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &m.stride,
                                             sizeof m.stride);
    return s;
}

cublasStatus_t product(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, const void *alpha,
                       const matrix &a, const matrix &b, const void *beta, const matrix &c, int batches,
                       cublasComputeType_t compute)
{
    CHECK_HANDLE(h);
    if (h->pointers != CUBLAS_POINTER_MODE_HOST)
        return unsupported("a matrix product with factors in device memory");
    if (alpha == nullptr || beta == nullptr)
        return invalid("alpha or beta is NULL");
    if (c.rows == 0 || c.cols == 0 || batches == 0)
        return CUBLAS_STATUS_SUCCESS;
    const bool wide = compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC;
    if (compute == CUBLAS_COMPUTE_32F && h->math == CUBLAS_TF32_TENSOR_OP_MATH)
        compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    cublasLtMatmulDescOpaque_t how;
    cublasLtMatrixLayoutOpaque_t la, lb, lc;
    const int32_t op_a = ta, op_b = tb;
    cublasStatus_t s =
        cublasLtMatmulDescInit(&how, wide ? CUBLAS_COMPUTE_64F : compute, wide ? CUDA_R_64F : CUDA_R_32F);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulDescSetAttribute(&how, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulDescSetAttribute(&how, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = layout(&la, a, batches);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = layout(&lb, b, batches);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = layout(&lc, c, batches);
    if (s != CUBLAS_STATUS_SUCCESS)
        return s;
    return cublasLtMatmul(h->lt, &how, alpha, a.at, &la, b.at, &lb, beta, c.at, &lc, const_cast<void *>(c.at),
                          &lc, nullptr, nullptr, 0, h->stream);
}

cublasStatus_t gemm(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                    const void *alpha, const void *A, cudaDataType at_type, int lda, int64_t sa,
                    const void *B, cudaDataType bt_type, int ldb, int64_t sb, const void *beta, void *C,
                    cudaDataType ct_type, int ldc, int64_t sc, int batches, cublasComputeType_t compute)
{
    if (m < 0 || n < 0 || k < 0 || batches < 0)
        return invalid("a negative size");
    const matrix a = {A, at_type, ta == CUBLAS_OP_N ? m : k, ta == CUBLAS_OP_N ? k : m, lda, sa, false};
    const matrix b = {B, bt_type, tb == CUBLAS_OP_N ? k : n, tb == CUBLAS_OP_N ? n : k, ldb, sb, false};
    const matrix c = {C, ct_type, m, n, ldc, sc, false};
    return product(h, ta, tb, alpha, a, b, beta, c, batches, compute);
}

cublasStatus_t gemv(cublasHandle_t h, cublasOperation_t trans, int m, int n, const void *alpha, const void *A,
                    int lda, const void *x, int incx, const void *beta, void *y, int incy, cudaDataType type)
{
    if (incx < 1 || incy < 1)
        return unsupported("gemv with a negative increment");
    const int64_t in = trans == CUBLAS_OP_N ? n : m, out = trans == CUBLAS_OP_N ? m : n;
    const matrix a = {A, type, m, n, lda, 0, false};
    const matrix b = {x, type, in, 1, incx, 0, true};
    const matrix c = {y, type, out, 1, incy, 0, true};
    return product(h, trans, CUBLAS_OP_N, alpha, a, b, beta, c, 1,
                   type == CUDA_R_64F ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F);
}

cublasStatus_t transfer(int rows, int cols, int bytes, const void *from, int64_t from_ld, void *to,
                        int64_t to_ld, cudaMemcpyKind kind)
{
    if (rows < 0 || cols < 0 || bytes < 1 || from_ld < 1 || to_ld < 1)
        return invalid("a size of a copy between host and device");
    const size_t size = static_cast<size_t>(bytes);
    return cudaMemcpy2D(to, static_cast<size_t>(to_ld) * size, from, static_cast<size_t>(from_ld) * size,
                        static_cast<size_t>(rows) * size, static_cast<size_t>(cols), kind) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_MAPPING_ERROR;
}

} /* namespace */

extern "C" {

cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
    if (handle == nullptr)
        return CUBLAS_STATUS_INVALID_VALUE;
    *handle = new cublasContext{nullptr, CUBLAS_POINTER_MODE_HOST, CUBLAS_DEFAULT_MATH, nullptr};
    return cublasLtCreate(&(*handle)->lt);
}

cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
    CHECK_HANDLE(handle);
    const cublasStatus_t s = cublasLtDestroy(handle->lt);
    delete handle;
    return s;
}

cublasStatus_t cublasGetVersion(cublasHandle_t handle, int *version)
{
    (void)handle;
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusName(cublasStatus_t status)
{
    return cublasLtGetStatusName(status);
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    return cublasLtGetStatusString(status);
}

#define FIELD(Name, type, field)                                                                             \
    cublasStatus_t cublasSet##Name(cublasHandle_t handle, type value)                                        \
    {                                                                                                        \
        CHECK_HANDLE(handle);                                                                                \
        handle->field = value;                                                                               \
        return CUBLAS_STATUS_SUCCESS;                                                                        \
    }                                                                                                        \
    cublasStatus_t cublasGet##Name(cublasHandle_t handle, type *value)                                       \
    {                                                                                                        \
        CHECK_HANDLE(handle);                                                                                \
        *value = handle->field;                                                                              \
        return CUBLAS_STATUS_SUCCESS;                                                                        \
    }
FIELD(Stream, cudaStream_t, stream)
FIELD(PointerMode, cublasPointerMode_t, pointers)
FIELD(MathMode, cublasMath_t, math)

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode)
{
    (void)mode;
    CHECK_HANDLE(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes)
{
    (void)workspace;
    (void)bytes;
    CHECK_HANDLE(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetVector(int n, int elemSize, const void *x, int incx, void *devicePtr, int incy)
{
    return transfer(1, n, elemSize, x, incx, devicePtr, incy, cudaMemcpyHostToDevice);
}

cublasStatus_t cublasGetVector(int n, int elemSize, const void *x, int incx, void *y, int incy)
{
    return transfer(1, n, elemSize, x, incx, y, incy, cudaMemcpyDeviceToHost);
}

cublasStatus_t cublasSetMatrix(int rows, int cols, int elemSize, const void *A, int lda, void *B, int ldb)
{
    return transfer(rows, cols, elemSize, A, lda, B, ldb, cudaMemcpyHostToDevice);
}

cublasStatus_t cublasGetMatrix(int rows, int cols, int elemSize, const void *A, int lda, void *B, int ldb)
{
    return transfer(rows, cols, elemSize, A, lda, B, ldb, cudaMemcpyDeviceToHost);
}

#define TYPED(letter, lower, T, data, compute)                                                               \
    cublasStatus_t cublas##letter##axpy(cublasHandle_t h, int n, const T *alpha, const T *x, int incx, T *y, \
                                        int incy)                                                            \
    {                                                                                                        \
        return axpy(h, n, alpha, x, incx, y, incy);                                                          \
    }                                                                                                        \
    cublasStatus_t cublas##letter##scal(cublasHandle_t h, int n, const T *alpha, T *x, int incx)             \
    {                                                                                                        \
        return scal(h, n, alpha, x, incx);                                                                   \
    }                                                                                                        \
    cublasStatus_t cublas##letter##copy(cublasHandle_t h, int n, const T *x, int incx, T *y, int incy)       \
    {                                                                                                        \
        return exchange(h, n, const_cast<T *>(x), incx, y, incy, false);                                     \
    }                                                                                                        \
    cublasStatus_t cublas##letter##swap(cublasHandle_t h, int n, T *x, int incx, T *y, int incy)             \
    {                                                                                                        \
        return exchange(h, n, x, incx, y, incy, true);                                                       \
    }                                                                                                        \
    cublasStatus_t cublas##letter##dot(cublasHandle_t h, int n, const T *x, int incx, const T *y, int incy,  \
                                       T *result)                                                            \
    {                                                                                                        \
        return reduce(h, DOT, n, x, incx, y, incy, result);                                                  \
    }                                                                                                        \
    cublasStatus_t cublas##letter##nrm2(cublasHandle_t h, int n, const T *x, int incx, T *result)            \
    {                                                                                                        \
        return reduce(h, NRM2, n, x, incx, x, incx, result);                                                 \
    }                                                                                                        \
    cublasStatus_t cublas##letter##asum(cublasHandle_t h, int n, const T *x, int incx, T *result)            \
    {                                                                                                        \
        return reduce(h, ASUM, n, x, incx, x, incx, result);                                                 \
    }                                                                                                        \
    cublasStatus_t cublasI##lower##amax(cublasHandle_t h, int n, const T *x, int incx, int *result)          \
    {                                                                                                        \
        return amax(h, n, x, incx, result);                                                                  \
    }                                                                                                        \
    cublasStatus_t cublas##letter##gemv(cublasHandle_t h, cublasOperation_t trans, int m, int n,             \
                                        const T *alpha, const T *A, int lda, const T *x, int incx,           \
                                        const T *beta, T *y, int incy)                                       \
    {                                                                                                        \
        return gemv(h, trans, m, n, alpha, A, lda, x, incx, beta, y, incy, data);                            \
    }                                                                                                        \
    cublasStatus_t cublas##letter##gemm(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, \
                                        int n, int k, const T *alpha, const T *A, int lda, const T *B,       \
                                        int ldb, const T *beta, T *C, int ldc)                               \
    {                                                                                                        \
        return gemm(h, ta, tb, m, n, k, alpha, A, data, lda, 0, B, data, ldb, 0, beta, C, data, ldc, 0, 1,   \
                    compute);                                                                                \
    }                                                                                                        \
    cublasStatus_t cublas##letter##gemmStridedBatched(                                                       \
        cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const T *alpha,   \
        const T *A, int lda, long long sa, const T *B, int ldb, long long sb, const T *beta, T *C, int ldc,  \
        long long sc, int batches)                                                                           \
    {                                                                                                        \
        return gemm(h, ta, tb, m, n, k, alpha, A, data, lda, sa, B, data, ldb, sb, beta, C, data, ldc, sc,   \
                    batches, compute);                                                                       \
    }
TYPED(S, s, float, CUDA_R_32F, CUBLAS_COMPUTE_32F)
TYPED(D, d, double, CUDA_R_64F, CUBLAS_COMPUTE_64F)

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                            const void *alpha, const void *A, cudaDataType a_type, int lda, const void *B,
                            cudaDataType b_type, int ldb, const void *beta, void *C, cudaDataType c_type,
                            int ldc, cublasComputeType_t compute, cublasGemmAlgo_t algo)
{
    (void)algo; /* there is one */
    return gemm(h, ta, tb, m, n, k, alpha, A, a_type, lda, 0, B, b_type, ldb, 0, beta, C, c_type, ldc, 0, 1,
                compute);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
                                          int n, int k, const void *alpha, const void *A, cudaDataType a_type,
                                          int lda, long long sa, const void *B, cudaDataType b_type, int ldb,
                                          long long sb, const void *beta, void *C, cudaDataType c_type,
                                          int ldc, long long sc, int batches, cublasComputeType_t compute,
                                          cublasGemmAlgo_t algo)
{
    (void)algo; /* there is one */
    return gemm(h, ta, tb, m, n, k, alpha, A, a_type, lda, sa, B, b_type, ldb, sb, beta, C, c_type, ldc, sc,
                batches, compute);
}

} /* extern "C" */
