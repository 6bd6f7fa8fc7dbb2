/* cuda::pipeline, cuda::barrier, memcpy_async: every kernel reverses or sums what it copies.  Prints what tests/sim/test_cc.c expects. */
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/std/type_traits>
#include <cuda_pipeline.h>
#include <stdio.h>

namespace cg = cooperative_groups;

static_assert(cuda::std::is_same<cuda::std::remove_const_t<const int>, int>::value, "cuda::std's traits");

#define N 1024 /* numbers that a kernel sees: 16 batches of 64 */
#define BATCH 64

__global__ void one_thread_each(int *out, const int *in)
{
    __shared__ int s[3][BATCH];
    auto pipe = cuda::make_pipeline();
    const int t = threadIdx.x;
    for (int fetch = 0, use = 0; use < N / BATCH; ++use) {
        for (; fetch < N / BATCH && fetch < use + 3; ++fetch) {
            pipe.producer_acquire();
            cuda::memcpy_async(&s[fetch % 3][t], &in[fetch * BATCH + t], cuda::aligned_size_t<4>(sizeof(int)),
                               pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        __syncthreads();
        out[use * BATCH + t] = s[use % 3][BATCH - 1 - t];
        __syncthreads();
        pipe.consumer_release();
    }
}

__global__ void prior(int *out, const int *in)
{
    __shared__ int s[2][BATCH];
    auto pipe = cuda::make_pipeline();
    const int t = threadIdx.x;
    cuda::memcpy_async(&s[0][t], &in[t], sizeof(int), pipe);
    pipe.producer_commit();
    for (int use = 0; use < N / BATCH; ++use) {
        if (use + 1 < N / BATCH)
            cuda::memcpy_async(&s[(use + 1) % 2][t], &in[(use + 1) * BATCH + t], sizeof(int), pipe);
        pipe.producer_commit();
        cuda::pipeline_consumer_wait_prior<1>(pipe);
        __syncthreads();
        out[use * BATCH + t] = s[use % 2][BATCH - 1 - t];
        __syncthreads();
    }
}

__global__ void all_together(int *out, const int *in)
{
    __shared__ int s[2][BATCH];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    const int t = threadIdx.x;
    for (int fetch = 0, use = 0; use < N / BATCH; ++use) {
        for (; fetch < N / BATCH && fetch < use + 2; ++fetch) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, s[fetch % 2], in + fetch * BATCH, sizeof s[0], pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        out[use * BATCH + t] = s[use % 2][BATCH - 1 - t];
        pipe.consumer_release();
    }
}

/* The second half of the threads uses what the first half brings. */
template <int Form> __global__ void divided(int *out, const int *in)
{
    __shared__ int s[4][BATCH];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 4> state;
    auto block = cg::this_thread_block();
    const int t = threadIdx.x % BATCH;
    const bool produces = threadIdx.x < BATCH;
    auto pipe = Form == 0 ? cuda::make_pipeline(block, &state, size_t{BATCH})
                          : cuda::make_pipeline(block, &state,
                                                produces ? cuda::pipeline_role::producer
                                                         : cuda::pipeline_role::consumer);
    for (int i = 0; i < N / BATCH; ++i) {
        if (produces) {
            pipe.producer_acquire();
            cuda::memcpy_async(&s[i % 4][t], &in[i * BATCH + t], sizeof(int), pipe);
            pipe.producer_commit();
        } else {
            pipe.consumer_wait();
            out[i * BATCH + t] = s[i % 4][BATCH - 1 - t];
            pipe.consumer_release();
        }
    }
}

__global__ void by_barrier(int *out, const int *in)
{
    __shared__ int s[BATCH];
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    auto block = cg::this_thread_block();
    if (block.thread_rank() == 0)
        init(&bar, block.size());
    block.sync();
    for (int i = 0; i < N / BATCH; ++i) {
        cuda::memcpy_async(block, s, in + i * BATCH, cuda::aligned_size_t<16>(sizeof s), bar);
        bar.arrive_and_wait();
        out[i * BATCH + threadIdx.x] = s[BATCH - 1 - threadIdx.x];
        block.sync();
    }
}

__global__ void by_groups(int *out, const int *in)
{
    __shared__ int s[2][BATCH];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s[0], in, sizeof s[0]);
    for (int i = 0; i < N / BATCH; ++i) {
        if (i + 1 < N / BATCH) {
            cg::memcpy_async(block, s[(i + 1) % 2], BATCH, in + (i + 1) * BATCH, BATCH);
            cg::wait_prior<1>(block);
        } else {
            cg::wait(block);
        }
        out[i * BATCH + threadIdx.x] = s[i % 2][BATCH - 1 - threadIdx.x];
        block.sync();
    }
}

/* Four numbers a thread; the last of each batch are zeros that are not read. */
__global__ void primitives(int *out, const int *in)
{
    __shared__ __align__(16) int s[2][BATCH];
    const int t = threadIdx.x;
    if (t < BATCH / 4)
        __pipeline_memcpy_async(&s[0][4 * t], &in[4 * t], 16);
    __pipeline_commit();
    for (int i = 0; i < N / BATCH; ++i) {
        if (i + 1 < N / BATCH && t < BATCH / 4)
            __pipeline_memcpy_async(&s[(i + 1) % 2][4 * t], &in[(i + 1) * BATCH + 4 * t], 16,
                                    i + 2 == N / BATCH && t == BATCH / 4 - 1 ? 16 : 0);
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        out[i * BATCH + t] = s[i % 2][BATCH - 1 - t];
        __syncthreads();
    }
}

static int *in, *out, failures;

static void check(const char *what, int zeros)
{
    int h[N];
    if (cudaMemcpy(h, out, sizeof h, cudaMemcpyDeviceToHost) != cudaSuccess)
        ++failures;
    for (int i = 0; i < N; ++i) {
        const int from = i / BATCH * BATCH + BATCH - 1 - i % BATCH,
                  want = from >= N - zeros ? 0 : 3 * from + 1;
        if (h[i] != want && failures++ < 3)
            fprintf(stderr, "%s: element %d is %d, not %d\n", what, i, h[i], want);
    }
    cudaMemset(out, 0, sizeof h);
}

int main()
{
    int h[N];
    cudaMalloc(&in, sizeof h);
    cudaMalloc(&out, sizeof h);
    for (int i = 0; i < N; ++i)
        h[i] = 3 * i + 1;
    cudaMemcpy(in, h, sizeof h, cudaMemcpyHostToDevice);
    one_thread_each<<<1, BATCH>>>(out, in);
    check("one_thread_each", 0);
    prior<<<1, BATCH>>>(out, in);
    check("prior", 0);
    all_together<<<1, BATCH>>>(out, in);
    check("all_together", 0);
    divided<0><<<1, 2 * BATCH>>>(out, in);
    check("divided by count", 0);
    divided<1><<<1, 2 * BATCH>>>(out, in);
    check("divided by role", 0);
    by_barrier<<<1, BATCH>>>(out, in);
    check("by_barrier", 0);
    by_groups<<<1, BATCH>>>(out, in);
    check("by_groups", 0);
    primitives<<<1, BATCH>>>(out, in);
    check("primitives", 4);
    cudaFree(in);
    cudaFree(out);
    printf("%d wrong\n", failures);
    return failures != 0;
}
