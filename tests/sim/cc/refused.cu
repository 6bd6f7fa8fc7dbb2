/* What is not modelled, by name; and what a kernel of this file does wrong. */
#include <cassert>
#include <cstdio>
#include <cuda.h>
#include <cudnn.h>
#include <nvrtc.h>

__global__ void child()
{
}
__global__ void parent()
{
    child<<<1, 1>>>();
}
__global__ void ptx(int *x)
{
    if (threadIdx.x == 3)
        asm volatile("shl.b32 %0, 1, 2;" : "=r"(x[0]));
}
__global__ void claims(int n)
{
    assert((int)threadIdx.x < n);
}
__global__ void assumes(int n)
{
    __builtin_assume((int)threadIdx.x < n && n > 0);
}
__global__ void past(int *x, int n)
{
    __shared__ int s[32];
    s[threadIdx.x] = 1;
    if ((int)threadIdx.x <= n)
        x[threadIdx.x] = s[threadIdx.x];
}

struct counted { /* whose copies synchronize: a kernel's thread makes one */
    int n;
    counted() : n(3)
    {
    }
    counted(const counted &c) : n(c.n)
    {
        cudaDeviceSynchronize();
    }
};
__global__ void by_value(counted c, int *x)
{
    *x = c.n;
}
__global__ void of_sm90(int *x, int which)
{
    if (which == 0)
        asm volatile("barrier.cluster.arrive;");
    if (which == 1)
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
            "[%1], 16, [%2], %3;" ::"r"(0),
            "l"(x), "r"(0), "h"((short)3));
    if (which == 2)
        asm volatile("griddepcontrol.wait;");
}

static void say(const char *what)
{
    printf("%s: %s\n", what, cudaGetErrorName(cudaDeviceSynchronize()));
    fflush(stdout);
    cudaDeviceReset();
}

int main()
{
    int *x;
    cudaGraph_t graph;
    cudaMalloc(&x, 16 * sizeof(int));
    parent<<<1, 1>>>();
    say("dynamic parallelism");
    ptx<<<1, 4>>>(x);
    say("PTX");
    for (int which = 0; which < 3; ++which) {
        of_sm90<<<1, 1>>>(x, which);
        say("PTX of sm_90");
    }
    claims<<<1, 8>>>(5);
    say("assert");
    assumes<<<1, 8>>>(8);
    say("true assumption");
    assumes<<<1, 8>>>(6);
    say("assumption");
    printf("driver: %d\n", cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, nullptr, nullptr));
    printf("nvrtc: %s\n", nvrtcGetErrorString(nvrtcVersion(nullptr, nullptr)));
    printf("cudnn: %d\n", cudnnCreate(nullptr));
    printf("graph: %s\n", cudaGetErrorName(cudaGraphCreate(&graph, 0)));
    child();
    printf("host: %s\n", cudaGetErrorName(cudaGetLastError()));
    by_value<<<1, 1>>>(counted(), x);
    say("by value");
    past<<<1, 32>>>(x, 16); /* under the address sanitizer the last thing that happens */
    say("past the end");
    return 0;
}
