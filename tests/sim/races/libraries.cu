/* Work of libraries beside kernels: what cuBLASLt and NCCL read and write counts like any access of their stream. */
#include "races.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <nccl.h>
#include <stdlib.h>

enum { N = 16, WORKSPACE = 4096 };

__global__ void before_a_product(int *x)
{
    x[threadIdx.x] = 0; /* a: product_without_event */
}
__global__ void behind_a_product(int *y, const int *x)
{
    y[threadIdx.x] = x[threadIdx.x]; /* a: result_without_event */
}
__global__ void before_a_bias(int *x)
{
    x[threadIdx.x] = 0; /* a: bias_without_event */
}
__global__ void behind_a_workspace(int *y)
{
    y[threadIdx.x] = 0; /* a: workspace_without_event */
}
__global__ void before_a_vector(int *x)
{
    x[threadIdx.x] = 0; /* a: vector_without_event */
}
__global__ void behind_a_vector(int *y, const int *x)
{
    y[threadIdx.x] = x[2 * threadIdx.x]; /* a: vector_result_without_event */
}
__global__ void before_a_factor(int *x)
{
    x[threadIdx.x] = 0; /* a: factor_without_event */
}
__global__ void before_a_sum(int *x)
{
    x[threadIdx.x] = 1; /* a: sum_without_event */
}
__global__ void behind_a_gather(int *y, const int *x)
{
    y[threadIdx.x] = x[threadIdx.x]; /* a: gather_without_event */
}
__global__ void ordered(int *x)
{
    x[threadIdx.x] += 1;
}

struct streams {
    cudaStream_t compute, other;
    cudaEvent_t event;
    streams()
    {
        (void)cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking);
        (void)cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
        (void)cudaEventCreate(&event);
        (void)cudaDeviceSynchronize();
    }
    void order() /* other, then compute */
    {
        (void)cudaEventRecord(event, other);
        (void)cudaStreamWaitEvent(compute, event, 0);
    }
};

/* Of the algorithms that are offered, the one that writes its workspace. */
static cublasLtMatmulAlgo_t with_workspace(cublasLtHandle_t lt, cublasLtMatmulDesc_t how,
                                           cublasLtMatrixLayout_t square)
{
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t offered[8];
    const size_t bytes = WORKSPACE;
    int n = 0;
    (void)cublasLtMatmulPreferenceCreate(&wish);
    (void)cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                               sizeof bytes);
    (void)cublasLtMatmulAlgoGetHeuristic(lt, how, square, square, square, square, wish, 8, offered, &n);
    (void)cublasLtMatmulPreferenceDestroy(wish);
    for (int i = 0; i < n; ++i) {
        if (offered[i].workspaceSize > 0)
            return offered[i].algo;
    }
    abort(); /* the case would show nothing */
}

/* d = a b (+ bias) on the stream, N x N of float. */
static void multiply(cudaStream_t stream, int *d, const int *a, const int *b, const int *bias = nullptr,
                     int *workspace = nullptr)
{
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t square;
    cublasLtMatmulAlgo_t algo;
    const float one = 1.0f, zero = 0.0f;
    const int32_t epilogue = bias != nullptr ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    (void)cublasLtCreate(&lt);
    (void)cublasLtMatmulDescCreate(&how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    (void)cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    (void)cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    (void)cublasLtMatrixLayoutCreate(&square, CUDA_R_32F, N, N, N);
    if (workspace != nullptr)
        algo = with_workspace(lt, how, square);
    (void)cublasLtMatmul(lt, how, &one, a, square, b, square, &zero, d, square, d, square,
                         workspace != nullptr ? &algo : nullptr, workspace,
                         workspace != nullptr ? WORKSPACE : 0, stream);
    (void)cublasLtMatrixLayoutDestroy(square);
    (void)cublasLtMatmulDescDestroy(how);
    (void)cublasLtDestroy(lt);
}

/* y += factor x, N elements of which every second is touched in x; the factor lies in device memory. */
static void add_vector(cudaStream_t stream, int *y, const int *x, const int *factor)
{
    cublasHandle_t h;
    (void)cublasCreate(&h);
    (void)cublasSetStream(h, stream);
    (void)cublasSetPointerMode(h, CUBLAS_POINTER_MODE_DEVICE);
    (void)cublasSaxpy(h, N, reinterpret_cast<const float *>(factor), reinterpret_cast<const float *>(x), 2,
                      reinterpret_cast<float *>(y), 2);
    (void)cublasDestroy(h);
}

struct alone { /* a communicator of one rank */
    ncclComm_t comm;
    alone()
    {
        ncclUniqueId id;
        (void)ncclGetUniqueId(&id);
        (void)ncclCommInitRank(&comm, 1, id, 0);
    }
    ~alone()
    {
        (void)cudaDeviceSynchronize();
        (void)ncclCommDestroy(comm);
    }
};

static void run_product_without_event(int *x, int *y)
{
    streams s;
    (void)GPU_LAUNCH(before_a_product, 1, 32, 0, s.other, x);
    multiply(s.compute, y, x, x);
}

static void run_result_without_event(int *x, int *y)
{
    streams s;
    multiply(s.other, y, x, x);
    (void)GPU_LAUNCH(behind_a_product, 1, 32, 0, s.compute, x + 2048, y);
}

static void run_bias_without_event(int *x, int *y)
{
    streams s;
    (void)GPU_LAUNCH(before_a_bias, 1, N, 0, s.other, x + 2048);
    multiply(s.compute, y, x, x, x + 2048);
}

/* Behind the last element of the bias. */
static void run_beside_the_bias(int *x, int *y)
{
    streams s;
    (void)GPU_LAUNCH(ordered, 1, N, 0, s.other, x + 2048 + N);
    multiply(s.compute, y, x, x, x + 2048);
}

static void run_bias_behind_an_event(int *x, int *y)
{
    streams s;
    (void)GPU_LAUNCH(ordered, 1, N, 0, s.other, x + 2048);
    s.order();
    multiply(s.compute, y, x, x, x + 2048);
}

static void run_workspace_without_event(int *x, int *y)
{
    streams s;
    multiply(s.other, y, x, x, nullptr, y + 2048);
    (void)GPU_LAUNCH(behind_a_workspace, 1, 32, 0, s.compute, y + 2048);
}

static void run_one_workspace_of_two_products(int *x, int *y)
{
    streams s;
    multiply(s.other, y, x, x, nullptr, y + 2048);
    multiply(s.compute, y + N * N, x, x, nullptr, y + 2048);
}

static void run_vector_without_event(int *x, int *y)
{
    streams s;
    (void)GPU_LAUNCH(before_a_vector, 1, 32, 0, s.other, x);
    add_vector(s.compute, y, x, x + 2048);
}

static void run_vector_result_without_event(int *x, int *y)
{
    streams s;
    add_vector(s.other, y, x, x + 2048);
    (void)GPU_LAUNCH(behind_a_vector, 1, N, 0, s.compute, x + 1024, y);
}

/* Between the elements of a vector is nobody. */
static void run_between_the_elements(int *x, int *y)
{
    streams s;
    add_vector(s.compute, y, x, x + 2048);
    (void)GPU_LAUNCH(ordered, 1, 1, 0, s.other, x + 1);
}

static void run_factor_without_event(int *x, int *y)
{
    streams s;
    (void)GPU_LAUNCH(before_a_factor, 1, 32, 0, s.other, x + 2048);
    add_vector(s.compute, y, x, x + 2048);
}

static void run_product_behind_an_event(int *x, int *y)
{
    streams s;
    (void)GPU_LAUNCH(ordered, 1, 32, 0, s.other, x);
    s.order();
    multiply(s.compute, y, x, x);
    (void)GPU_LAUNCH(ordered, 1, 32, 0, s.compute, y);
}

/* Two products read the same, and write what lies side by side. */
static void run_products_beside_each_other(int *x, int *y)
{
    streams s;
    multiply(s.compute, y, x, x);
    multiply(s.other, y + N * N, x, x);
}

static void run_sum_without_event(int *x, int *y)
{
    streams s;
    alone a;
    (void)GPU_LAUNCH(before_a_sum, 1, 32, 0, s.other, x);
    (void)ncclAllReduce(x, y, 32, ncclInt32, ncclSum, a.comm, s.compute);
}

static void run_gather_without_event(int *x, int *y)
{
    streams s;
    alone a;
    (void)ncclAllGather(x, y, 32, ncclInt32, a.comm, s.other);
    (void)GPU_LAUNCH(behind_a_gather, 1, 32, 0, s.compute, x + 2048, y);
}

/* In place a rank's own part is not written: of one rank, nothing. */
static void run_own_part_of_a_gather(int *x, int *y)
{
    streams s;
    alone a;
    (void)ncclAllGather(x, x, 32, ncclInt32, a.comm, s.other);
    (void)GPU_LAUNCH(behind_a_gather, 1, 32, 0, s.compute, y, x);
}

static void run_collective_behind_an_event(int *x, int *y)
{
    streams s;
    alone a;
    (void)GPU_LAUNCH(ordered, 1, 32, 0, s.other, x);
    s.order();
    (void)ncclReduceScatter(x, y, 32, ncclInt32, ncclSum, a.comm, s.compute);
    (void)GPU_LAUNCH(ordered, 1, 32, 0, s.compute, y);
}

/* The other side is the library's: it has no line of ours. */
#define CASE(name) MARKED(name, "race", "of two streams", 1)
#define FREE(name)                                                                                           \
    {                                                                                                        \
#name, nullptr, "", __FILE__, run_##name                                                             \
    }
const race_case RACES_WITH_LIBRARIES[] = {
    CASE(product_without_event),
    CASE(result_without_event),
    CASE(bias_without_event),
    CASE(workspace_without_event),
    MARKED(one_workspace_of_two_products, "race", "of two streams", 0),
    CASE(vector_without_event),
    CASE(vector_result_without_event),
    CASE(factor_without_event),
    CASE(sum_without_event),
    CASE(gather_without_event),
    FREE(product_behind_an_event),
    FREE(bias_behind_an_event),
    FREE(beside_the_bias),
    FREE(between_the_elements),
    FREE(own_part_of_a_gather),
    FREE(products_beside_each_other),
    FREE(collective_behind_an_event),
    {},
};
