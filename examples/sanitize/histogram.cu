/* Counts how often each value occurs in a row, and the sum of a row's squares.  It runs on a GPU and usually prints the right
 * numbers.  Two things are wrong with it; run.sh says what the simulator says of them. */
#include <cstdio>
#include <cstdlib>

#define BINS 16

#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        const cudaError_t error = (call);                                                                    \
        if (error != cudaSuccess) {                                                                          \
            printf("%s: %s\n", #call, cudaGetErrorString(error));                                            \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

__global__ void histogram(int *counts, const unsigned char *values, int n)
{
    __shared__ int mine[BINS];
#ifdef FIXED
    if (threadIdx.x < BINS)
        mine[threadIdx.x] = 0;
    __syncthreads();
#endif
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        atomicAdd(&mine[values[blockIdx.x * n + i] % BINS], 1);
    __syncthreads();
    if (threadIdx.x < BINS)
        counts[blockIdx.x * BINS + threadIdx.x] = mine[threadIdx.x];
}

__global__ void squares(float *sums, const unsigned char *values, int n)
{
    extern __shared__ float part[];
    float s = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        s += (float)values[blockIdx.x * n + i] * values[blockIdx.x * n + i];
    part[threadIdx.x] = s;
#ifdef FIXED
    __syncthreads();
#endif
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        if ((int)threadIdx.x < step)
            part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        sums[blockIdx.x] = part[0];
}

int main()
{
    const int rows = 3, n = 1000, threads = 128;
    unsigned char *values = (unsigned char *)malloc(rows * n), *d_values;
    int *d_counts, counts[rows * BINS], bad = 0;
    float *d_sums, sums[rows];
    for (int i = 0; i < rows * n; ++i)
        values[i] = (unsigned char)(i * 7 % 23);
    CHECK(cudaMalloc(&d_values, rows * n));
    CHECK(cudaMalloc(&d_counts, sizeof counts));
    CHECK(cudaMalloc(&d_sums, sizeof sums));
    CHECK(cudaMemcpy(d_values, values, rows * n, cudaMemcpyHostToDevice));
    histogram<<<rows, threads>>>(d_counts, d_values, n);
    squares<<<rows, threads, threads * sizeof(float)>>>(d_sums, d_values, n);
    CHECK(cudaMemcpy(counts, d_counts, sizeof counts, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(sums, d_sums, sizeof sums, cudaMemcpyDeviceToHost));
    for (int r = 0; r < rows; ++r) {
        int want[BINS] = {0};
        float sum = 0;
        for (int i = 0; i < n; ++i) {
            ++want[values[r * n + i] % BINS];
            sum += (float)values[r * n + i] * values[r * n + i];
        }
        for (int b = 0; b < BINS; ++b) {
            if (counts[r * BINS + b] != want[b] && bad++ == 0)
                printf("row %d bin %d: %d, expected %d\n", r, b, counts[r * BINS + b], want[b]);
        }
        if (!(sums[r] == sum))
            printf("row %d: sum of squares %g, expected %g\n", r, sums[r], sum), ++bad;
    }
    printf("%s\n", bad ? "WRONG" : "RIGHT");
    free(values);
    CHECK(cudaFree(d_values));
    CHECK(cudaFree(d_counts));
    CHECK(cudaFree(d_sums));
    return bad != 0;
}
