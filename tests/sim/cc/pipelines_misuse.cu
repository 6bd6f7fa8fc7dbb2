/* What cuda::pipeline, cuda::barrier and memcpy_async must not be given: one mistake for each argument. */
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_pipeline.h>
#include <stdio.h>
#include <string.h>

namespace cg = cooperative_groups;

typedef cuda::barrier<cuda::thread_scope_block> barrier;
typedef cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state_of_two;

__global__ void read_before_wait(int *x)
{
    __shared__ int s[32];
    auto pipe = cuda::make_pipeline();
    cuda::memcpy_async(&s[threadIdx.x], &x[threadIdx.x], sizeof(int), pipe);
    pipe.producer_commit();
    x[32 + threadIdx.x] = s[threadIdx.x] + 1;
    pipe.consumer_wait();
}
__global__ void wait_one_stage_short(int *x)
{
    __shared__ int s[2][32];
    auto pipe = cuda::make_pipeline();
    for (int i = 0; i < 2; ++i) {
        cuda::memcpy_async(&s[i][threadIdx.x], &x[threadIdx.x], sizeof(int), pipe);
        pipe.producer_commit();
    }
    cuda::pipeline_consumer_wait_prior<1>(pipe);
    x[32 + threadIdx.x] = s[1][threadIdx.x];
    cuda::pipeline_consumer_wait_prior<0>(pipe);
}
__global__ void source_written(int *x)
{
    __shared__ int s[32];
    auto pipe = cuda::make_pipeline();
    cuda::memcpy_async(&s[threadIdx.x], &x[threadIdx.x], sizeof(int), pipe);
    pipe.producer_commit();
    x[threadIdx.x] = 77;
    pipe.consumer_wait();
}
__global__ void destination_written(int *x)
{
    __shared__ int s[32];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s, x, sizeof s);
    s[threadIdx.x] = 5;
    cg::wait(block);
}
__global__ void two_copies_to_one_place(int *x)
{
    __shared__ int s[32];
    auto pipe = cuda::make_pipeline();
    cuda::memcpy_async(&s[threadIdx.x], &x[threadIdx.x], sizeof(int), pipe);
    cuda::memcpy_async(&s[threadIdx.x], &x[threadIdx.x + 1], sizeof(int), pipe);
    pipe.producer_commit();
    pipe.consumer_wait();
}
__global__ void never_waited(int *x)
{
    __shared__ __align__(16) int s[128];
    __pipeline_memcpy_async(&s[4 * threadIdx.x], &x[4 * threadIdx.x], 16);
    __pipeline_commit();
    __pipeline_wait_prior(1);
}
/* The wait of a thread is for its own copies: others know of them behind a barrier. */
__global__ void no_barrier_behind_wait(int *x)
{
    __shared__ int s[64];
    auto pipe = cuda::make_pipeline();
    cuda::memcpy_async(&s[threadIdx.x], &x[threadIdx.x], sizeof(int), pipe);
    pipe.producer_commit();
    __syncthreads();
    pipe.consumer_wait();
    x[64 + threadIdx.x] = s[63 - threadIdx.x];
}
/* The same, and the data are there when they are read. */
__global__ void waited_behind_barrier(int *x)
{
    __shared__ int s[64];
    auto pipe = cuda::make_pipeline();
    if (threadIdx.x == 0)
        cuda::memcpy_async(s, x, sizeof s, pipe);
    pipe.producer_commit();
    __syncthreads();
    pipe.consumer_wait();
    if (threadIdx.x == 40)
        x[64] = s[7];
}
__global__ void not_acquired(int *x)
{
    __shared__ int s[32];
    __shared__ state_of_two state;
    auto pipe = cuda::make_pipeline(cg::this_thread_block(), &state);
    cuda::memcpy_async(&s[threadIdx.x], &x[threadIdx.x], sizeof(int), pipe);
    pipe.producer_commit();
}
__global__ void released_unwaited(int *)
{
    __shared__ state_of_two state;
    auto pipe = cuda::make_pipeline(cg::this_thread_block(), &state);
    pipe.producer_acquire();
    pipe.producer_commit();
    pipe.consumer_release();
}
__global__ void too_many_stages(int *)
{
    __shared__ state_of_two state;
    auto pipe = cuda::make_pipeline(cg::this_thread_block(), &state);
    for (int i = 0; i < 3; ++i) {
        pipe.producer_acquire();
        pipe.producer_commit();
    }
}
__global__ void nothing_committed(int *)
{
    __shared__ state_of_two state;
    auto pipe = cuda::make_pipeline(cg::this_thread_block(), &state);
    pipe.consumer_wait();
}
__global__ void wrong_role(int *)
{
    __shared__ state_of_two state;
    auto pipe = cuda::make_pipeline(cg::this_thread_block(), &state, size_t{16});
    pipe.producer_acquire();
}
__global__ void read_behind_release(int *x)
{
    __shared__ int s[32];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 1> state;
    auto pipe = cuda::make_pipeline(cg::this_thread_block(), &state);
    for (int i = 0; i < 2; ++i) {
        pipe.producer_acquire();
        cuda::memcpy_async(&s[threadIdx.x], &x[threadIdx.x], sizeof(int), pipe);
        pipe.producer_commit();
        pipe.consumer_wait();
        pipe.consumer_release();
        x[32 + threadIdx.x] = s[31 - threadIdx.x];
    }
}
__global__ void promise(int *x)
{
    __shared__ __align__(16) int s[36];
    auto pipe = cuda::make_pipeline();
    cuda::memcpy_async(s, x + 1, cuda::aligned_size_t<16>(64), pipe);
}
__global__ void primitive_alignment(int *x)
{
    __shared__ __align__(16) int s[36];
    __pipeline_memcpy_async(s + 1, x, 8);
}
__global__ void primitive_to_global(int *x)
{
    __pipeline_memcpy_async(x, x + 64, 4);
}
__global__ void too_few_arrivals(int *)
{
    __shared__ barrier bar;
    if (threadIdx.x == 0)
        init(&bar, 33);
    __syncthreads();
    bar.arrive_and_wait();
}
__global__ void too_many_arrivals(int *)
{
    __shared__ barrier bar;
    if (threadIdx.x == 0)
        init(&bar, 31);
    __syncthreads();
    if (threadIdx.x < 30)
        (void)bar.arrive();
    else
        (void)bar.arrive(2);
}
__global__ void never_initialized(int *)
{
    __shared__ barrier bar;
    bar.arrive_and_wait();
}
__global__ void old_token(int *)
{
    __shared__ barrier bar;
    if (threadIdx.x == 0)
        init(&bar, 32);
    __syncthreads();
    auto token = bar.arrive();
    bar.wait(token);
    bar.arrive_and_wait();
    bar.wait(token);
}
__global__ void barrier_copy_read_early(int *x)
{
    __shared__ int s[32];
    __shared__ barrier bar;
    if (threadIdx.x == 0)
        init(&bar, 32);
    __syncthreads();
    cuda::memcpy_async(cg::this_thread_block(), s, x, sizeof s, bar);
    auto token = bar.arrive();
    x[32 + threadIdx.x] = s[threadIdx.x] + 1;
    bar.wait(token);
}

int main(int argc, char **argv)
{
#define CASE(name, threads)                                                                                  \
    {                                                                                                        \
#name, name, threads                                                                                 \
    }
    static const struct {
        const char *name;
        void (*kernel)(int *);
        int threads;
    } all[] = {
        CASE(read_before_wait, 32),
        CASE(wait_one_stage_short, 32),
        CASE(source_written, 32),
        CASE(destination_written, 32),
        CASE(two_copies_to_one_place, 32),
        CASE(never_waited, 32),
        CASE(no_barrier_behind_wait, 64),
        CASE(waited_behind_barrier, 64),
        CASE(not_acquired, 32),
        CASE(released_unwaited, 32),
        CASE(too_many_stages, 32),
        CASE(nothing_committed, 32),
        CASE(wrong_role, 32),
        CASE(read_behind_release, 32),
        CASE(promise, 32),
        CASE(primitive_alignment, 32),
        CASE(primitive_to_global, 32),
        CASE(too_few_arrivals, 32),
        CASE(too_many_arrivals, 32),
        CASE(never_initialized, 32),
        CASE(old_token, 32),
        CASE(barrier_copy_read_early, 32),
    };
    for (const auto &k : all) {
        int *x, h[256];
        if (argc > 1 && strcmp(argv[1], k.name) != 0)
            continue;
        printf("%s:", k.name);
        cudaMalloc(&x, sizeof h);
        cudaMemset(x, 0, sizeof h);
        k.kernel<<<1, k.threads>>>(x);
        if (cudaMemcpy(h, x, sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess)
            printf(" %d %d\n", h[32], h[63]);
        else
            printf(" failed\n");
        fflush(stdout);
        cudaFree(x);
        cudaDeviceReset();
    }
    return 0;
}
