/* Every form of launch, kernel and shared memory; prints what tests/sim/test_cc.c expects. */
#include <cassert>
#include <cstdio>

#define N 256
#define LAUNCH(k, ...) k<<<1, N>>>(__VA_ARGS__)
#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        cudaError_t e_ = (call);                                                                             \
        if (e_ != cudaSuccess) {                                                                             \
            printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e_));                               \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

extern __shared__ float everywhere[];
__shared__ int of_the_file[4];
__constant__ float scale[4];
__device__ int counter;
__managed__ int managed_word;

template <typename T, int B>
__global__ void __launch_bounds__(B) sum(T *__restrict__ out, const T *const in, const int n = 7)
{
    __shared__ T part[B], other[2][B + 1];
    extern __shared__ __align__(16) unsigned char raw[];
    T *dynamic = reinterpret_cast<T *>(raw);
    const int t = threadIdx.x;
    part[t] = in[t];
    dynamic[t] = 0;
    everywhere[t] = 1;
    other[1][t] = 1;
    if (t < 4)
        of_the_file[t] = t;
    __syncthreads();
    for (int s = B / 2; s > 0; s >>= 1) {
        if (t < s)
            part[t] += part[t + s];
        __syncthreads();
    }
    if (t == 0)
        *out = part[0] + of_the_file[3] + dynamic[5] + n;
}

struct pod {
    int a;
    float b;
};
__global__ void unnamed(float *, int, pod p, float *x)
{
    x[threadIdx.x] = p.b * scale[threadIdx.x];
    atomicAdd(&counter, 1);
    if (threadIdx.x == 0)
        managed_word = 17;
}
template <typename... A> __global__ void packs(int *out, A... a)
{
    if (threadIdx.x == 0)
        out[0] = (a + ...);
}
namespace ns
{
template <class T> __global__ void set(T *x, T v)
{
    x[threadIdx.x] = v;
}
} // namespace ns
__global__ void large(int *x)
{
    extern __shared__ int s[];
    s[threadIdx.x] = threadIdx.x;
    s[20000] = 1;
    *x = s[20000];
}

typedef void (*fn)(float *, const float *, int);

int main()
{
    float *d, *o, h, ones[N];
    int *i, n;
    for (float &v : ones)
        v = 1;
    CHECK(cudaMalloc(&d, sizeof ones));
    CHECK(cudaMalloc(&o, sizeof ones));
    CHECK(cudaMalloc(&i, 64));
    CHECK(cudaMemcpy(d, ones, sizeof ones, cudaMemcpyHostToDevice));
    sum<float, N><<<1, N, N * sizeof(float)>>>(o, d, 0);
    CHECK(cudaMemcpy(&h, o, 4, cudaMemcpyDeviceToHost));
    printf("sum %g\n", h);

    fn table[2] = {sum<float, N>, nullptr};
    table[0]<<<dim3(1), N, N * 4, 0>>>(o, d, 5);
    CHECK(cudaMemcpy(&h, o, 4, cudaMemcpyDeviceToHost));
    printf("table %g\n", h);

    const float f[4] = {1, 2, 3, 4};
    CHECK(cudaMemcpyToSymbol(scale, f, sizeof f));
    unnamed<<<1, 4>>>(NULL, 0, pod{1, 2.5f}, o);
    CHECK(cudaMemcpy(&h, o + 3, 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpyFromSymbol(&n, counter, sizeof n));
    printf("unnamed %g %d %d\n", h, n, managed_word);

    LAUNCH(ns::set, o, 4.0f);
    LAUNCH(::ns::set<float>, o, 5);
    packs<<<1, 1>>>(i, 1, 2, 3);
    CHECK(cudaMemcpy(&n, i, 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(&h, o, 4, cudaMemcpyDeviceToHost));
    printf("names %g %d\n", h, n);

    n = 3;
    void *args[] = {&o, &d, &n};
    CHECK(cudaLaunchKernel((const void *)sum<float, N>, dim3(1), dim3(N), args, N * 4, 0));
    CHECK(cudaMemcpy(&h, o, 4, cudaMemcpyDeviceToHost));
    printf("untyped %g\n", h);

    large<<<1, 32, 81920>>>(i);
    printf("large %s\n", cudaGetErrorName(cudaGetLastError()));
    CHECK(cudaFuncSetAttribute((const void *)large, cudaFuncAttributeMaxDynamicSharedMemorySize, 81920));
    large<<<1, 32, 81920>>>(i);
    CHECK(cudaMemcpy(&n, i, 4, cudaMemcpyDeviceToHost));
    printf("large %d\n", n);
    CHECK(cudaFree(d));
    CHECK(cudaFree(o));
    return cudaFree(i);
}
