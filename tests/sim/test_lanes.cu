/* What the simulator computes for a whole warp at once has the bits of the intrinsics that a device executes. */
#include "tests/support/sim.h"

#include "gpu/device.cuh"

#include <string.h>

template <int LANES, typename T> __global__ void sums(T *together, T *shuffled, const T *x)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    together[i] = gpu_lanes_sum<LANES>(x[i]);
    shuffled[i] = gpu_lanes_sum_shuffled<LANES>(x[i]);
}

enum { N = 96 * 50 };

template <int LANES, typename T> static void compare(const T *x)
{
    T *a = nullptr, *b = nullptr, *from = nullptr;
    static T together[N], shuffled[N];
    cr_assert(cudaMalloc(&a, sizeof together) == cudaSuccess &&
              cudaMalloc(&b, sizeof together) == cudaSuccess &&
              cudaMalloc(&from, sizeof together) == cudaSuccess);
    cr_assert_eq(cudaMemcpy(from, x, sizeof together, cudaMemcpyHostToDevice), cudaSuccess);
    cr_assert_eq(GPU_LAUNCH((sums<LANES, T>), 50, 96, 0, nullptr, a, b, from), cudaSuccess);
    cr_assert_eq(cudaMemcpy(together, a, sizeof together, cudaMemcpyDeviceToHost), cudaSuccess);
    cr_assert_eq(cudaMemcpy(shuffled, b, sizeof together, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < N; ++i)
        cr_assert_eq(memcmp(&together[i], &shuffled[i], sizeof(T)), 0, "%d lanes, element %d: %a and %a",
                     LANES, i, static_cast<double>(together[i]), static_cast<double>(shuffled[i]));
    cudaFree(a);
    cudaFree(b);
    cudaFree(from);
}

Test(sim_lanes, sums_of_lanes)
{
    static float x[N];
    unsigned state = 1;
    for (int i = 0; i < N; ++i) {
        state = state * 1664525u + 1013904223u;
        const float sign = (state >> 30 & 1u) != 0 ? -1.0f : 1.0f;
        x[i] = sign * ldexpf(1.0f + static_cast<float>(state & 0xffffu) / 65536.0f,
                             static_cast<int>(state >> 16 & 31u) - 16);
    }
    x[40] = INFINITY;
    x[100] = -INFINITY;
    x[101] = INFINITY;
    x[200] = -0.0f;
    compare<4>(x);
    compare<8>(x);
    compare<32>(x);
    static double wide[N];
    static long long whole[N];
    for (int i = 0; i < N; ++i) {
        wide[i] = static_cast<double>(x[i]) / 3.0;
        whole[i] = static_cast<long long>(i) * i * 1000003 - 7;
    }
    compare<32>(wide);
    compare<32>(whole);
}

/* The warp that runs first waits for one that has not begun, in a loop of intrinsics of its own lanes. */
__global__ void waits_for_a_later_warp(volatile int *flag, int *rounds, int waits)
{
    if (static_cast<int>(threadIdx.x) / 32 != waits) {
        *flag = 1;
        return;
    }
    int n = 0;
    while (__shfl_sync(0xffffffffu, *flag, 0) == 0)
        ++n;
    rounds[threadIdx.x % 32] = n;
}

Test(sim_lanes, a_warp_that_goes_on_lets_the_others_run)
{
    int *flag = nullptr, *rounds = nullptr, found[32];
    cr_assert(cudaMalloc(&flag, sizeof *flag) == cudaSuccess &&
              cudaMalloc(&rounds, sizeof found) == cudaSuccess);
    for (int waits = 0; waits < 2; ++waits) { /* the first warp in either order of threads */
        assay_sim_set_order(waits == 0 ? ASSAY_SIM_ORDER_FORWARD : ASSAY_SIM_ORDER_REVERSE, 0);
        cr_assert_eq(cudaMemset(flag, 0, sizeof *flag), cudaSuccess);
        cr_assert_eq(GPU_LAUNCH(waits_for_a_later_warp, 1, 64, 0, nullptr, flag, rounds, waits), cudaSuccess);
        cr_assert_eq(cudaMemcpy(found, rounds, sizeof found, cudaMemcpyDeviceToHost), cudaSuccess);
        for (int l = 0; l < 32; ++l) {
            cr_expect_eq(found[l], found[0], "lanes leave a loop of theirs together");
            cr_expect_lt(found[l], 1000);
        }
    }
    assay_sim_set_order(ASSAY_SIM_ORDER_FORWARD, 0);
    cudaFree(rounds);
    cudaFree(flag);
}
