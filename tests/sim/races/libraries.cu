/* Work of libraries beside kernels: what cuBLASLt and NCCL read and write counts like any access of their stream. */
#include "races.h"

#include <cublasLt.h>
#include <nccl.h>

enum { N = 16 };

__global__ void before_a_product(int *x)
{
    x[threadIdx.x] = 0; /* a: product_without_event */
}
__global__ void behind_a_product(int *y, const int *x)
{
    y[threadIdx.x] = x[threadIdx.x]; /* a: result_without_event */
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

/* d = a b on the stream, N x N of float. */
static void multiply(cudaStream_t stream, int *d, const int *a, const int *b)
{
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t square;
    const float one = 1.0f, zero = 0.0f;
    (void)cublasLtCreate(&lt);
    (void)cublasLtMatmulDescCreate(&how, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    (void)cublasLtMatrixLayoutCreate(&square, CUDA_R_32F, N, N, N);
    (void)cublasLtMatmul(lt, how, &one, a, square, b, square, &zero, d, square, d, square, nullptr, nullptr,
                         0, stream);
    (void)cublasLtMatrixLayoutDestroy(square);
    (void)cublasLtMatmulDescDestroy(how);
    (void)cublasLtDestroy(lt);
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

#define CASE(name)                                                                                           \
    {                                                                                                        \
#name, "race", "of two streams", __FILE__, run_##name                                                \
    }
#define FREE(name)                                                                                           \
    {                                                                                                        \
#name, nullptr, "", __FILE__, run_##name                                                             \
    }
const race_case RACES_WITH_LIBRARIES[] = {
    CASE(product_without_event),      CASE(result_without_event),       CASE(sum_without_event),
    CASE(gather_without_event),       FREE(product_behind_an_event),    FREE(own_part_of_a_gather),
    FREE(products_beside_each_other), FREE(collective_behind_an_event), {},
};
