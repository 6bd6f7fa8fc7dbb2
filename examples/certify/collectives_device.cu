/* Two collectives in device memory: all_reduce through the memory of the other ranks, which adds in the order of the ranks, and all_gather as
 * a ring of messages.  Everything is enqueued on the call's stream, and nothing is waited for: messages and barriers order the streams.
 *
 *   assay-cc -O2 -shared --with-simulator -I PREFIX/include/assay -o collectives_device.so collectives_device.cu              # for the simulator
 *   nvcc -O2 -shared -Xcompiler -fPIC -cudart shared -I PREFIX/include/assay -o collectives_device.so collectives_device.cu   # for a device
 *   assay certify --so ./collectives_device.so:example_all_reduce_device */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "check.h"

/* in both operations */
enum { SEND = ASSAY_KERNEL_SLOT_ALL_REDUCE_SEND, RECV = ASSAY_KERNEL_SLOT_ALL_REDUCE_RECV };
enum { SUM, MAX, AVG };
enum { THREADS = 128, MOST_RANKS = 64 };

static size_t width_of(int32_t dtype)
{
    return dtype == ASSAY_KERNEL_F32 ? 4 : 2;
}

static int32_t check(const assay_kernel_call *c)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || c->size < offsetof(assay_kernel_call, comm) + sizeof c->comm || c->comm == NULL)
        return code;
    if (c->slot[SEND] == NULL || c->slot[RECV] == NULL)
        return code;
    const int32_t dtype = c->slot[SEND]->dtype;
    if ((dtype != ASSAY_KERNEL_F32 && dtype != ASSAY_KERNEL_BF16) || c->comm->n_ranks > MOST_RANKS)
        return ASSAY_KERNEL_UNSUPPORTED;
    if ((code = check_tensor(c->slot[SEND], dtype, 1)) != 0)
        return code;
    return check_tensor(c->slot[RECV], dtype, 1);
}

/* On the call's stream; nothing where both are the same memory. */
static int32_t copy(const assay_kernel_call *c, void *to, const void *from, size_t bytes)
{
    if (bytes == 0 || to == from)
        return ASSAY_KERNEL_OK;
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)c->stream) == cudaSuccess
               ? ASSAY_KERNEL_OK
               : ASSAY_KERNEL_DEVICE;
}

/* --- all_reduce ------------------------------------------------------------------------------------------------- */
typedef struct pieces {
    const void *of[MOST_RANKS];
    int n;
} pieces;

static __device__ float value(const float *p, int64_t i)
{
    return p[i];
}
static __device__ float value(const __nv_bfloat16 *p, int64_t i)
{
    return __bfloat162float(p[i]);
}
static __device__ void put(float *p, int64_t i, float x)
{
    p[i] = x;
}
static __device__ void put(__nv_bfloat16 *p, int64_t i, float x)
{
    p[i] = __float2bfloat16(x);
}

/* y[i] = sum, maximum or mean over the ranks, of elements [first, n). */
template <class A> __global__ void reduce(A *y, pieces p, int64_t first, int64_t n, int reduction)
{
    const int64_t i = first + (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    float x = value((const A *)p.of[0], i);
    for (int r = 1; r < p.n; r++) {
        const float other = value((const A *)p.of[r], i);
        if (reduction != MAX)
            x += other;
        else if (x == x && !(other <= x)) /* a NaN stays */
            x = other;
    }
    put(y, i, reduction == AVG ? x / (float)p.n : x);
}

template <class A> static int32_t launch(const assay_kernel_call *c, int64_t first, int64_t n, int reduction)
{
    pieces p = {};
    const cudaStream_t stream = (cudaStream_t)c->stream;
    p.n = c->comm->n_ranks;
    for (int r = 0; r < p.n; r++)
        p.of[r] = c->comm->workspace[r];
    const unsigned blocks = (unsigned)((n - first + THREADS - 1) / THREADS);
    if (blocks > 0)
        reduce<A><<<blocks, THREADS, 0, stream>>>((A *)c->slot[RECV]->data, p, first, n, reduction);
    return cudaGetLastError() == cudaSuccess ? ASSAY_KERNEL_OK : ASSAY_KERNEL_DEVICE;
}

static size_t workspace_all_reduce(const assay_kernel_call *c)
{
    if (c->slot[SEND] == NULL || c->slot[SEND]->shape[0] < 0)
        return 0;
    return (size_t)c->slot[SEND]->shape[0] * width_of(c->slot[SEND]->dtype);
}

static int32_t run_all_reduce(const assay_kernel_call *c)
{
    int32_t code = check(c);
    if (code != ASSAY_KERNEL_OK)
        return code;
    const int64_t n = c->slot[SEND]->shape[0], first = c->attr[ASSAY_KERNEL_ATTR_ALL_REDUCE_START]->integer;
    const int reduction = (int)c->attr[ASSAY_KERNEL_ATTR_ALL_REDUCE_REDUCTION]->integer;
    const size_t width = width_of(c->slot[SEND]->dtype);
    if (c->slot[RECV]->shape[0] != n || first < 0 || first > n)
        return ASSAY_KERNEL_INVALID;
    if (c->workspace_bytes < workspace_all_reduce(c))
        return ASSAY_KERNEL_WORKSPACE;
    if ((code = copy(c, c->workspace, c->slot[SEND]->data, (size_t)n * width)) != 0 ||
        (code = copy(c, c->slot[RECV]->data, c->slot[SEND]->data, (size_t)first * width)) != 0)
        return code;
    if (c->comm->barrier(c->comm) != 0)
        return ASSAY_KERNEL_INTERNAL;
    return width == 4 ? launch<float>(c, first, n, reduction) : launch<__nv_bfloat16>(c, first, n, reduction);
}

/* --- all_gather ------------------------------------------------------------------------------------------------- */
static int32_t run_all_gather(const assay_kernel_call *c)
{
    int32_t code = check(c);
    if (code != ASSAY_KERNEL_OK)
        return code;
    const assay_kernel_attr *counts = c->attr[ASSAY_KERNEL_ATTR_ALL_GATHER_COUNTS];
    const int32_t ranks = c->comm->n_ranks, me = c->comm->rank;
    const size_t width = width_of(c->slot[SEND]->dtype);
    int64_t start[MOST_RANKS + 1] = {0};
    if (counts->list != NULL && counts->n_list != ranks)
        return ASSAY_KERNEL_INVALID;
    for (int32_t r = 0; r < ranks; r++)
        start[r + 1] = start[r] + (counts->list != NULL ? counts->list[r] : c->slot[SEND]->shape[0]);
    if (c->slot[RECV]->shape[0] != start[ranks] || c->slot[SEND]->shape[0] != start[me + 1] - start[me])
        return ASSAY_KERNEL_INVALID;
    char *all = (char *)c->slot[RECV]->data;
    if ((code = copy(c, all + (size_t)start[me] * width, c->slot[SEND]->data,
                     (size_t)c->slot[SEND]->shape[0] * width)) != 0)
        return code;
    for (int32_t step = 0; step + 1 < ranks; step++) {
        const int32_t out = (me - step + ranks) % ranks, in = (me - step - 1 + ranks) % ranks;
        if (c->comm->send(c->comm, (me + 1) % ranks, all + (size_t)start[out] * width,
                          (size_t)(start[out + 1] - start[out]) * width) != 0 ||
            c->comm->recv(c->comm, (me + ranks - 1) % ranks, all + (size_t)start[in] * width,
                          (size_t)(start[in + 1] - start[in]) * width) != 0)
            return ASSAY_KERNEL_INTERNAL;
    }
    return ASSAY_KERNEL_OK;
}

/* --- descriptions ----------------------------------------------------------------------------------------------- */
static int32_t synchronize(void *stream)
{
    return cudaStreamSynchronize((cudaStream_t)stream) == cudaSuccess ? 0 : 1;
}

static assay_kernel_output output(int32_t order)
{
    assay_kernel_output o = {};
    o.size = sizeof o;
    o.slot = RECV;
    o.arith.size = sizeof o.arith;
    o.arith.accumulate = ASSAY_KERNEL_F32;
    o.arith.order = order;
    return o;
}

static assay_kernel describe(const char *name, const char *operation, const assay_kernel_output *outputs)
{
    assay_kernel k = {};
    k.size = sizeof k;
    k.abi = ASSAY_KERNEL_ABI;
    k.name = name;
    k.version = "1";
    k.operation = operation;
    k.built = "-O2";
    k.memory = ASSAY_KERNEL_MEMORY_DEVICE;
    k.dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32) | ASSAY_KERNEL_SET(ASSAY_KERNEL_BF16);
    k.flags = ASSAY_KERNEL_DETERMINISTIC;
    k.in_place = "recv=send";
    k.n_outputs = 1;
    k.outputs = outputs;
    k.synchronize = synchronize;
    return k;
}

extern "C" const assay_kernel *example_all_reduce_device(uint32_t abi)
{
    static const assay_kernel_output in_rank_order = output(ASSAY_KERNEL_ORDER_SEQUENTIAL);
    static assay_kernel k = describe("example all_reduce on a device", "all_reduce", &in_rank_order);
    k.workspace = workspace_all_reduce;
    k.run = run_all_reduce;
    return abi == ASSAY_KERNEL_ABI ? &k : NULL;
}

extern "C" const assay_kernel *example_all_gather_device(uint32_t abi)
{
    static const assay_kernel_output copied = output(ASSAY_KERNEL_ORDER_NONE);
    static assay_kernel k = describe("example all_gather on a device", "all_gather", &copied);
    k.run = run_all_gather;
    return abi == ASSAY_KERNEL_ABI ? &k : NULL;
}
