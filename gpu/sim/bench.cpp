/* Measures the simulator: nanoseconds of CPU time (other programs on the machine do not count) per thread-barrier, per warp
 * shuffle, and per thread of a kernel without barriers; the least of five. Usage: assay_sim_bench.  Not a test;
 * docs/SIMULATOR.md quotes its output. */
#define ASSAY_SIM 1
#include <cuda_runtime.h>

#include <stdio.h>
#include <time.h>

static double now()
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

__global__ void barriers(float *x, int n)
{
    float *mine = x + blockIdx.x * blockDim.x;
    for (int i = 0; i < n; ++i) {
        const float v = mine[(threadIdx.x + 1) % blockDim.x];
        __syncthreads();
        mine[threadIdx.x] = v + 1.0f;
        __syncthreads();
    }
}

__global__ void shuffles(float *x, int n)
{
    float v = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (int i = 0; i < n; ++i)
        v += __shfl_xor_sync(0xffffffffu, v, 1 << i % 5);
    x[blockIdx.x * blockDim.x + threadIdx.x] = v;
}

__global__ void scale(float *y, const float *x, int n)
{
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        y[i] = 2.0f * x[i] + 1.0f;
}

static double timed(void (*body)(float *, unsigned), float *x, unsigned threads)
{
    double best = 1e30;
    for (int run = 0; run < 5; ++run) {
        const double t = now();
        body(x, threads);
        if (cudaDeviceSynchronize() != cudaSuccess)
            return -1.0;
        if (now() - t < best)
            best = now() - t;
    }
    return best;
}

static void run_barriers(float *x, unsigned threads)
{
    assay_sim::launch("barriers", 0, barriers, dim3(4), dim3(threads), 0, nullptr, x, 500);
}

static void run_shuffles(float *x, unsigned threads)
{
    assay_sim::launch("shuffles", 0, shuffles, dim3(4), dim3(threads), 0, nullptr, x, 500);
}

static void run_loop(float *x, unsigned threads)
{
    const int n = 1 << 20;
    assay_sim::launch("scale", 1, scale, dim3(static_cast<unsigned>(n) / threads), dim3(threads), 0, nullptr,
                      x + n, x, n);
}

static void run_unpromised(float *x, unsigned threads)
{
    const int n = 1 << 20;
    assay_sim::launch("scale", 0, scale, dim3(static_cast<unsigned>(n) / threads), dim3(threads), 0, nullptr,
                      x + n, x, n);
}

int main()
{
    float *x = nullptr;
    if (cudaMalloc(&x, (2u << 20) * sizeof(float)) != cudaSuccess)
        return 1;
    cudaMemset(x, 0, (2u << 20) * sizeof(float));
    printf("%-44s %8s %8s %8s %8s\n", "block size", "32", "128", "256", "1024");
    const unsigned sizes[] = {32, 128, 256, 1024};
    const struct {
        const char *name;
        void (*body)(float *, unsigned);
        double per_thread;
    } rows[] = {{"ns per thread-barrier", run_barriers, 4 * 1000.0},
                {"ns per thread-shuffle", run_shuffles, 4 * 500.0},
                {"ns per thread, NO_BARRIER", run_loop, 0.0},
                {"ns per thread, no barrier met, not promised", run_unpromised, 0.0}};
    for (const auto &row : rows) {
        printf("%-44s", row.name);
        for (unsigned threads : sizes) {
            const double work = row.per_thread > 0.0 ? row.per_thread * threads : double(1 << 20);
            printf(" %8.2f", timed(row.body, x, threads) / work * 1e9);
        }
        printf("\n");
    }
    return 0;
}
