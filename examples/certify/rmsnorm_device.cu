/* rmsnorm in device memory, forward and backward (docs/OPS.md 3): a block for each row, everything on the call's stream.
 *
 *   assay-cc -O2 -shared --with-simulator -I PREFIX/include/assay -o rmsnorm_device.so rmsnorm_device.cu              # for the simulator
 *   nvcc -O2 -shared -Xcompiler -fPIC -cudart shared -I PREFIX/include/assay -o rmsnorm_device.so rmsnorm_device.cu   # for a device
 *   assay certify --so ./rmsnorm_device.so:example_rmsnorm_fwd */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "check.h"

enum { THREADS = 256 };

static __device__ float to_float(float x)
{
    return x;
}
static __device__ float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
static __device__ void put(float *p, float x)
{
    *p = x;
}
static __device__ void put(__nv_bfloat16 *p, float x)
{
    *p = __float2bfloat16(x);
}

/* The sum over the block's threads, as a binary tree, in every thread. */
static __device__ float block_sum(float x)
{
    __shared__ float part[THREADS];
    part[threadIdx.x] = x;
    __syncthreads();
    for (unsigned n = THREADS / 2; n > 0; n /= 2) {
        if (threadIdx.x < n)
            part[threadIdx.x] += part[threadIdx.x + n];
        __syncthreads();
    }
    return part[0];
}

/* --- kernels ------------------------------------------------------------------------------------------------- */

/* y[T,H] = x rstd gamma, rstd[T] = 1 / sqrt(mean(x^2) + eps) */
template <class A>
__global__ void forward(A *y, float *rstd, const A *x, const A *gamma, float eps, int64_t columns)
{
    const A *row = x + blockIdx.x * columns;
    float sum = 0.0f;
    for (int64_t h = threadIdx.x; h < columns; h += THREADS)
        sum = fmaf(to_float(row[h]), to_float(row[h]), sum);
    sum = block_sum(sum);
    const float r = rsqrtf((columns > 0 ? sum / (float)columns : 0.0f) + eps);
    if (threadIdx.x == 0)
        rstd[blockIdx.x] = r;
    for (int64_t h = threadIdx.x; h < columns; h += THREADS)
        put(y + blockIdx.x * columns + h, to_float(row[h]) * r * to_float(gamma[h]));
}

/* mean[T] = mean_h(dy gamma x rstd) */
template <class A>
__global__ void backward_mean(float *mean, const A *gamma, const A *dy, const A *x, const float *rstd,
                              int64_t columns)
{
    const int64_t at = blockIdx.x * columns;
    float sum = 0.0f;
    for (int64_t h = threadIdx.x; h < columns; h += THREADS)
        sum = fmaf(to_float(dy[at + h]) * to_float(gamma[h]), to_float(x[at + h]) * rstd[blockIdx.x], sum);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        mean[blockIdx.x] = columns > 0 ? sum / (float)columns : 0.0f;
}

/* dx[T,H] = rstd (dy gamma - x rstd mean) */
template <class A>
__global__ void backward_input(A *dx, const A *gamma, const A *dy, const A *x, const float *rstd,
                               const float *mean, int64_t columns)
{
    const int64_t at = blockIdx.x * columns;
    const float r = rstd[blockIdx.x], m = mean[blockIdx.x];
    for (int64_t h = threadIdx.x; h < columns; h += THREADS)
        put(dx + at + h, r * (to_float(dy[at + h]) * to_float(gamma[h]) - to_float(x[at + h]) * r * m));
}

/* dgamma[H] += sum_t dy x rstd; a thread for each column */
template <class A>
__global__ void backward_gamma(float *dgamma, const A *dy, const A *x, const float *rstd, int64_t rows,
                               int64_t columns)
{
    const int64_t h = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (h >= columns)
        return;
    float sum = 0.0f;
    for (int64_t t = 0; t < rows; t++)
        sum = fmaf(to_float(dy[t * columns + h]), to_float(x[t * columns + h]) * rstd[t], sum);
    dgamma[h] += sum;
}

/* --- calls --------------------------------------------------------------------------------------------------- */
static int32_t launched(void)
{
    return cudaGetLastError() == cudaSuccess ? ASSAY_KERNEL_OK : ASSAY_KERNEL_DEVICE;
}

template <class A> static int32_t launch_forward(const assay_kernel_call *c, int64_t rows, int64_t columns)
{
    enum { GAMMA = ASSAY_KERNEL_SLOT_RMSNORM_FWD_GAMMA, X = ASSAY_KERNEL_SLOT_RMSNORM_FWD_X };
    enum { Y = ASSAY_KERNEL_SLOT_RMSNORM_FWD_Y, RSTD = ASSAY_KERNEL_SLOT_RMSNORM_FWD_RSTD };
    const cudaStream_t stream = (cudaStream_t)c->stream;
    const float eps = (float)c->attr[ASSAY_KERNEL_ATTR_RMSNORM_FWD_EPS]->number;
    const unsigned blocks = (unsigned)rows;
    A *y = (A *)c->slot[Y]->data;
    float *rstd = (float *)c->slot[RSTD]->data;
    const A *x = (const A *)c->slot[X]->data, *gamma = (const A *)c->slot[GAMMA]->data;
    forward<A><<<blocks, THREADS, 0, stream>>>(y, rstd, x, gamma, eps, columns);
    return launched();
}

static int32_t run_forward(const assay_kernel_call *c)
{
    enum { GAMMA = ASSAY_KERNEL_SLOT_RMSNORM_FWD_GAMMA, X = ASSAY_KERNEL_SLOT_RMSNORM_FWD_X };
    enum { Y = ASSAY_KERNEL_SLOT_RMSNORM_FWD_Y, RSTD = ASSAY_KERNEL_SLOT_RMSNORM_FWD_RSTD };
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[GAMMA], c->act, 1)) != 0 ||
        (code = check_tensor(c->slot[X], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[Y], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[RSTD], ASSAY_KERNEL_F32, 1)) != 0)
        return code;
    const int64_t *x = c->slot[X]->shape, *y = c->slot[Y]->shape;
    if (x[0] != y[0] || x[1] != y[1] || x[0] != c->slot[RSTD]->shape[0] || x[1] != c->slot[GAMMA]->shape[0])
        return ASSAY_KERNEL_INVALID;
    if (x[0] > INT32_MAX)
        return ASSAY_KERNEL_UNSUPPORTED;
    if (x[0] == 0) /* a launch of no blocks is an error */
        return ASSAY_KERNEL_OK;
    return c->act == ASSAY_KERNEL_F32 ? launch_forward<float>(c, x[0], x[1])
                                      : launch_forward<__nv_bfloat16>(c, x[0], x[1]);
}

enum { B_GAMMA = ASSAY_KERNEL_SLOT_RMSNORM_BWD_GAMMA, B_DY = ASSAY_KERNEL_SLOT_RMSNORM_BWD_DY };
enum { B_X = ASSAY_KERNEL_SLOT_RMSNORM_BWD_X, B_RSTD = ASSAY_KERNEL_SLOT_RMSNORM_BWD_RSTD };
enum { B_DX = ASSAY_KERNEL_SLOT_RMSNORM_BWD_DX, B_DGAMMA = ASSAY_KERNEL_SLOT_RMSNORM_BWD_DGAMMA };

template <class A> static int32_t launch_backward(const assay_kernel_call *c, int64_t rows, int64_t columns)
{
    const cudaStream_t stream = (cudaStream_t)c->stream;
    const A *gamma = (const A *)c->slot[B_GAMMA]->data, *dy = (const A *)c->slot[B_DY]->data,
            *x = (const A *)c->slot[B_X]->data;
    const float *rstd = (const float *)c->slot[B_RSTD]->data;
    float *mean = (float *)c->workspace;
    const unsigned blocks = (unsigned)((columns + THREADS - 1) / THREADS);
    if (rows > 0) {
        backward_mean<A><<<(unsigned)rows, THREADS, 0, stream>>>(mean, gamma, dy, x, rstd, columns);
        backward_input<A><<<(unsigned)rows, THREADS, 0, stream>>>((A *)c->slot[B_DX]->data, gamma, dy, x,
                                                                  rstd, mean, columns);
    }
    if (c->slot[B_DGAMMA] != NULL && blocks > 0)
        backward_gamma<A>
            <<<blocks, THREADS, 0, stream>>>((float *)c->slot[B_DGAMMA]->data, dy, x, rstd, rows, columns);
    return launched();
}

static size_t workspace_backward(const assay_kernel_call *c)
{
    return (size_t)c->slot[B_X]->shape[0] * sizeof(float);
}

static int32_t run_backward(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || (code = check_tensor(c->slot[B_GAMMA], c->act, 1)) != 0 ||
        (code = check_tensor(c->slot[B_DY], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[B_X], c->act, 2)) != 0 ||
        (code = check_tensor(c->slot[B_RSTD], ASSAY_KERNEL_F32, 1)) != 0 ||
        (code = check_tensor(c->slot[B_DX], c->act, 2)) != 0 ||
        (c->slot[B_DGAMMA] != NULL && (code = check_tensor(c->slot[B_DGAMMA], ASSAY_KERNEL_F32, 1)) != 0))
        return code;
    const int64_t *x = c->slot[B_X]->shape, *dy = c->slot[B_DY]->shape, *dx = c->slot[B_DX]->shape;
    if (x[0] != dy[0] || x[1] != dy[1] || x[0] != dx[0] || x[1] != dx[1] ||
        x[0] != c->slot[B_RSTD]->shape[0] || x[1] != c->slot[B_GAMMA]->shape[0] ||
        (c->slot[B_DGAMMA] != NULL && x[1] != c->slot[B_DGAMMA]->shape[0]))
        return ASSAY_KERNEL_INVALID;
    if (x[0] > INT32_MAX || x[1] > INT32_MAX)
        return ASSAY_KERNEL_UNSUPPORTED;
    if (c->workspace_bytes < workspace_backward(c))
        return ASSAY_KERNEL_WORKSPACE;
    return c->act == ASSAY_KERNEL_F32 ? launch_backward<float>(c, x[0], x[1])
                                      : launch_backward<__nv_bfloat16>(c, x[0], x[1]);
}

static int32_t synchronize(void *stream)
{
    return cudaStreamSynchronize((cudaStream_t)stream) == cudaSuccess ? 0 : 1;
}

/* --- descriptions -------------------------------------------------------------------------------------------- */
static assay_kernel_arith sum(int32_t order, int32_t lanes)
{
    assay_kernel_arith a = {};
    a.size = sizeof a;
    a.accumulate = ASSAY_KERNEL_F32;
    a.order = order;
    a.lanes = lanes;
    a.fma = 1;
    a.math_ulp = 2;
    return a;
}

static assay_kernel describe(const char *operation, const assay_kernel_output *outputs)
{
    assay_kernel k = {};
    k.size = sizeof k;
    k.abi = ASSAY_KERNEL_ABI;
    k.name = "example rmsnorm on a device";
    k.version = "1";
    k.operation = operation;
    k.built = "-O2";
    k.memory = ASSAY_KERNEL_MEMORY_DEVICE;
    k.dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32) | ASSAY_KERNEL_SET(ASSAY_KERNEL_BF16);
    k.flags = ASSAY_KERNEL_DETERMINISTIC | ASSAY_KERNEL_BATCH_INVARIANT;
    k.n_outputs = 2;
    k.outputs = outputs;
    k.synchronize = synchronize;
    return k;
}

extern "C" const assay_kernel *example_rmsnorm_fwd(uint32_t abi)
{
    static const assay_kernel_output outputs[] = {
        {sizeof(assay_kernel_output), ASSAY_KERNEL_SLOT_RMSNORM_FWD_Y, sum(ASSAY_KERNEL_ORDER_TREE, THREADS)},
        {sizeof(assay_kernel_output), ASSAY_KERNEL_SLOT_RMSNORM_FWD_RSTD,
         sum(ASSAY_KERNEL_ORDER_TREE, THREADS)},
    };
    static assay_kernel k = describe("rmsnorm_fwd", outputs);
    k.run = run_forward;
    return abi == ASSAY_KERNEL_ABI ? &k : NULL;
}

extern "C" const assay_kernel *example_rmsnorm_bwd(uint32_t abi)
{
    static const assay_kernel_output outputs[] = {
        {sizeof(assay_kernel_output), B_DX, sum(ASSAY_KERNEL_ORDER_TREE, THREADS)},
        {sizeof(assay_kernel_output), B_DGAMMA, sum(ASSAY_KERNEL_ORDER_SEQUENTIAL, 1)},
    };
    static assay_kernel k = describe("rmsnorm_bwd", outputs);
    k.run = run_backward;
    k.workspace = workspace_backward;
    return abi == ASSAY_KERNEL_ABI ? &k : NULL;
}
