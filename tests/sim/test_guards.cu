/* Kernels that touch memory that is not theirs, form by form: what a release build reports, and with which words. */
#include "tests/support/sim.h"

#include "gpu/launch.cuh"

#include <cuda_bf16.h>
#include <math.h>
#include <stdlib.h>

#if !defined(__SANITIZE_ADDRESS__) /* which stops the program at the access itself */

template <class T> static T *device(size_t n)
{
    T *p = nullptr;
    cr_assert(cudaMalloc(&p, n * sizeof(T)) == cudaSuccess && cudaMemset(p, 0, n * sizeof(T)) == cudaSuccess);
    return p;
}

/* The fault arrives at the synchronization as `error`, with a report that holds the three texts. */
static void expect_seen(cudaError_t launched, cudaError_t error, const char *a, const char *b, const char *c)
{
    cr_expect(launched == cudaSuccess);
    const cudaError_t found = cudaDeviceSynchronize();
    cr_expect(found == error, "found %s, expected %s", cudaGetErrorName(found), cudaGetErrorName(error));
    expect_report(a, b, c);
    cudaDeviceReset();
}

/* --- one element too many, from one array into another ---------------------------------------------------------- */

template <class T> __device__ T same(T v)
{
    return v;
}
template <class T> __device__ T twice(T v)
{
    return v * T(2);
}
template <class T> __device__ T plus_one(T v)
{
    return v + T(1);
}
static __device__ float halved(float v)
{
    return 0.5f * v;
}
static __device__ __nv_bfloat16 through_fp32(__nv_bfloat16 v)
{
    return __float2bfloat16(__bfloat162float(v));
}

template <class T, T (*F)(T)> __global__ void map_one_too_many(T *y, const T *x, int n)
{
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i <= n) /* off by one */
        y[i] = F(x[i]);
}

/* The byte that the last report names: the first of the element whose bits are not the guard's. */
static size_t reported_byte()
{
    char text[1024];
    assay_sim_last_report(text, sizeof text);
    const char *at = strstr(text, " at byte ");
    cr_expect(at != NULL, "%s", text);
    return at ? static_cast<size_t>(atol(at + 9)) : 0;
}

template <class T, T (*F)(T)> static void expect_map_seen(const char *what)
{
    for (int n = 1; n <= 40; ++n) {
        const size_t count = static_cast<size_t>(n);
        /* Where no guard fits between the block's end and its zone, already the read is a fault. */
        const cudaError_t error =
            count * sizeof(T) % 256 == 0 ? cudaErrorIllegalAddress : cudaErrorLaunchFailure;
        T *x = device<T>(count), *y = device<T>(count);
        cr_expect(GPU_LAUNCH_NO_BARRIER((map_one_too_many<T, F>), 1, 64, 0, nullptr, y, x, n) == cudaSuccess);
        cr_expect(cudaDeviceSynchronize() == error, "%s, n %d", what, n);
        const size_t at = reported_byte();
        cr_expect(at >= count * sizeof(T) && at < (count + 1) * sizeof(T), "%s, n %d: byte %zu", what, n, at);
        cudaDeviceReset();
        /* In place: the guard is read and written where it is. */
        if (F != same<T>) {
            cr_expect(GPU_LAUNCH_NO_BARRIER((map_one_too_many<T, F>), 1, 64, 0, nullptr, y, y, n) ==
                      cudaSuccess);
            cr_expect(cudaDeviceSynchronize() == error, "%s in place, n %d", what, n);
            cudaDeviceReset();
        }
        cudaFree(x);
        cudaFree(y);
    }
}

Test(sim_guards, a_map_of_one_element_too_many_is_seen_in_every_type_and_at_every_length)
{
    quiet();
    expect_map_seen<float, same<float>>("same of float");
    expect_map_seen<float, twice<float>>("twice of float");
    expect_map_seen<float, plus_one<float>>("plus_one of float");
    expect_map_seen<float, halved>("halved of float");
    expect_map_seen<double, same<double>>("same of double");
    expect_map_seen<double, twice<double>>("twice of double");
    expect_map_seen<double, plus_one<double>>("plus_one of double");
    expect_map_seen<int, same<int>>("same of int");
    expect_map_seen<int, plus_one<int>>("plus_one of int");
    expect_map_seen<unsigned char, same<unsigned char>>("same of unsigned char");
    expect_map_seen<__nv_bfloat16, through_fp32>("through_fp32 of __nv_bfloat16");
}

__global__ void sum_of(float *y, const float *x, int n)
{
    float s = 0.0f;
    for (int i = 0; i <= n; ++i) /* off by one */
        s += x[i];
    y[0] = s;
}

Test(sim_guards, a_read_behind_a_block_is_a_nan_inside_its_rounding_and_a_fault_behind_it)
{
    quiet();
    float *y = device<float>(1);
    for (int n = 1; n <= 63; ++n) {
        float *x = device<float>(static_cast<size_t>(n)), h = 0.0f;
        cr_assert(GPU_LAUNCH(sum_of, 1, 1, 0, nullptr, y, x, n) == cudaSuccess);
        cr_assert(cudaMemcpy(&h, y, sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess);
        cr_expect(isnan(h), "n %d", n);
        cudaFree(x);
    }
    expect_seen(GPU_LAUNCH(sum_of, 1, 1, 0, nullptr, y, device<float>(64), 64), cudaErrorIllegalAddress,
                "illegal address: kernel sum_of block (0,0,0) thread (0,0,0)",
                "a read at byte 256 of device block", "(256 bytes, device 0)");
}

/* --- elsewhere ---------------------------------------------------------------------------------------------------- */

__global__ void write_at(float *x, long i)
{
    if (threadIdx.x == 5)
        x[i] = 1.0f;
}

__global__ void read_at(float *y, const float *x, long i)
{
    if (threadIdx.x == 5)
        y[0] = x[i];
}

Test(sim_guards, a_far_access_names_block_thread_and_memory)
{
    quiet();
    static const struct {
        long at;
        const char *where;
    } far[] = {{100, "byte 400 of device block"},
               {5000, "byte 20000 of device block"},
               {200000, "byte 800000 of device block"},
               {-2000, "8000 bytes before the start of device block"},
               {-200000, "800000 bytes before the start of device block"}};
    float *x = device<float>(7), *y = device<float>(1);
    for (size_t i = 0; i < sizeof far / sizeof far[0]; ++i) {
        expect_seen(GPU_LAUNCH(write_at, dim3(1, 2), 32, 0, nullptr, x, far[i].at), cudaErrorIllegalAddress,
                    "illegal address: kernel write_at block (0,0,0) thread (5,0,0)", "a write at",
                    far[i].where);
        expect_seen(GPU_LAUNCH_NO_BARRIER(read_at, 1, 32, 0, nullptr, y, x, far[i].at),
                    cudaErrorIllegalAddress, "illegal address: kernel read_at block (0,0,0) thread (5,0,0)",
                    "a read at", far[i].where);
    }
    /* A large block has zones as large as itself. */
    float *big = device<float>(4u << 20);
    expect_seen(GPU_LAUNCH(write_at, 1, 32, 0, nullptr, big, (8 << 20) - 1), cudaErrorIllegalAddress,
                "illegal address: kernel write_at", "byte 33554428 of device block",
                "(16777216 bytes, device 0)");
}

Test(sim_guards, a_write_just_before_a_block_is_seen)
{
    quiet();
    for (size_t n = 1; n <= 1024;
         n *= 4) { /* 1024 floats fill a page: the zone begins where the block does */
        float *x = device<float>(n);
        expect_seen(GPU_LAUNCH(write_at, 1, 32, 0, nullptr, x, -1),
                    n == 1024 ? cudaErrorIllegalAddress : cudaErrorLaunchFailure, "kernel write_at",
                    "4 bytes before the start of device block", "");
    }
}

Test(sim_guards, a_write_anywhere_between_page_and_block_is_seen)
{
    quiet();
    for (size_t n = 64; n <= 960; n += 896) { /* 3840 and 256 bytes of guard in front */
        float *x = device<float>(n);
        for (long back = 1; back <= static_cast<long>(1024 - n); ++back) {
            char where[64];
            snprintf(where, sizeof where, " %ld bytes before the start of device block", 4 * back);
            expect_seen(GPU_LAUNCH(write_at, 1, 32, 0, nullptr, x, -back), cudaErrorLaunchFailure,
                        "kernel write_at", where, "");
        }
    }
}

Test(sim_guards, freed_memory_faults)
{
    quiet();
    float *x = device<float>(1000), *y = device<float>(1);
    cr_assert(cudaFree(x) == cudaSuccess);
    float *z = device<float>(1000); /* not the same addresses */
    cr_expect(z != x);
    expect_seen(GPU_LAUNCH(read_at, 1, 32, 0, nullptr, y, x, 3), cudaErrorIllegalAddress,
                "illegal address: kernel read_at block (0,0,0) thread (5,0,0)",
                "a read at byte 12 of device block", "which has been freed");
    expect_seen(GPU_LAUNCH(write_at, 1, 32, 0, nullptr, x, 3), cudaErrorIllegalAddress, "kernel write_at",
                "a write at byte 12", "which has been freed");
}

Test(sim_guards, many_allocations_do_not_use_up_the_address_space)
{
    float *first = device<float>(10);
    for (int i = 0; i < 20000; ++i) {
        float *p = nullptr;
        cr_assert(cudaMalloc(&p, i % 64 == 0 ? 8u << 20 : 1000) == cudaSuccess, "allocation %d", i);
        cr_assert(cudaFree(p) == cudaSuccess);
    }
    cr_expect(cudaFree(first) == cudaSuccess);
}

__global__ void follow(float *y, const float *const *p)
{
    y[0] = p[0][threadIdx.x];
}

Test(sim_guards, a_null_pointer_in_a_kernel_is_a_report)
{
    quiet();
    float *y = device<float>(1);
    const float **p = device<const float *>(1);
    expect_seen(GPU_LAUNCH(follow, dim3(1, 1, 2), 4, 0, nullptr, y, p), cudaErrorIllegalAddress,
                "illegal address: kernel follow block (0,0,0) thread (0,0,0)",
                "a read at (nil), which is no device memory", "test_guards.cu:");
    /* The simulator goes on after the fault. */
    cr_expect(GPU_LAUNCH(write_at, 1, 32, 0, nullptr, y, 0) == cudaSuccess);
    cr_expect(cudaDeviceSynchronize() == cudaSuccess);
}

__global__ void divide(int *y, int by)
{
    y[threadIdx.x] = 7 / (by - static_cast<int>(threadIdx.x));
}

Test(sim_guards, a_division_by_zero_is_a_report)
{
    quiet();
    expect_seen(GPU_LAUNCH(divide, 1, 32, 0, nullptr, device<int>(32), 9), cudaErrorIllegalAddress,
                "kernel divide block (0,0,0) thread (9,0,0)", "integer division by zero", "");
}

static __device__ int deeper(volatile int *x, int n)
{
    volatile int page[256];
    page[n % 256] = n;
    return n == 0 ? 0 : deeper(x, n - 1) + page[n % 256] + x[0];
}

__global__ void recursive(int *x)
{
    x[0] = deeper(x, 1000 * 1000);
}

Test(sim_guards, a_stack_that_is_full_is_a_report)
{
    quiet();
    expect_seen(GPU_LAUNCH(recursive, 1, 2, 0, nullptr, device<int>(1)), cudaErrorIllegalAddress,
                "kernel recursive block (0,0,0) thread (0,0,0)", "stack", "ASSAY_SIM_STACK_KB");
}

/* --- threads that never wait --------------------------------------------------------------------------------------- */

__global__ void spin_for_a_neighbour(volatile int *flag)
{
    if (threadIdx.x == 1) {
        while (flag[0] == 0) {
        }
    } else if (threadIdx.x == 2) {
        flag[0] = 1;
    }
}

Test(sim_guards, a_thread_that_spins_is_a_report)
{
    quiet();
    assay_sim_set_spin_limit(1);
    int *flag = device<int>(1);
    expect_seen(GPU_LAUNCH(spin_for_a_neighbour, 1, 4, 0, nullptr, flag), cudaErrorLaunchTimeout,
                "spinning thread: kernel spin_for_a_neighbour block (0,0,0) thread (1,0,0)",
                "ASSAY_SIM_SPIN_S", "test_guards.cu:");
    expect_seen(GPU_LAUNCH_NO_BARRIER(spin_for_a_neighbour, 1, 4, 0, nullptr, flag), cudaErrorLaunchTimeout,
                "spinning thread: kernel spin_for_a_neighbour block (0,0,0) thread (1,0,0)",
                "ASSAY_SIM_SPIN_S", "");
}

/* --- shared memory ------------------------------------------------------------------------------------------------- */

__global__ void shared_writes(float *x, int tile_at, int dynamic_at)
{
    GPU_SHARED(float, tile, 33);
    GPU_DYNAMIC_SHARED(float, dynamic);
    volatile float *a = tile, *b = dynamic;
    a[threadIdx.x] = b[threadIdx.x] = 0.0f;
    __syncthreads();
    if (threadIdx.x == 3 && tile_at != 0)
        a[tile_at] = 1.0f;
    if (threadIdx.x == 4 && dynamic_at != 0)
        b[dynamic_at] = 1.0f;
    __syncthreads();
    x[threadIdx.x] = a[threadIdx.x];
}

Test(sim_guards, an_overflow_of_a_shared_array_names_thread_and_line)
{
    quiet();
    static const struct {
        int tile, dynamic;
        cudaError_t error;
        const char *thread, *what, *bytes;
    } forms[] = {{33, 0, cudaErrorLaunchFailure, "thread (3,0,0) line ",
                  "past the end of shared array tile, 0 bytes behind it", "132 bytes"},
                 {35, 0, cudaErrorLaunchFailure, "thread (3,0,0) line ",
                  "past the end of shared array tile, 8 bytes behind it", "132 bytes"},
                 {36, 0, cudaErrorIllegalAddress, "thread (3,0,0) line ",
                  "a write at byte 144 of shared array tile", "132 bytes"},
                 {1000, 0, cudaErrorIllegalAddress, "thread (3,0,0) line ",
                  "a write at byte 4000 of shared array tile", "132 bytes"},
                 {-1, 0, cudaErrorLaunchFailure, "thread (3,0,0) line ",
                  "4 bytes before the start of shared array tile", "132 bytes"},
                 {0, 10, cudaErrorLaunchFailure, "thread (4,0,0) line ",
                  "past the end of shared array (dynamic), 0 bytes", "40 bytes"},
                 {0, 12, cudaErrorIllegalAddress, "thread (4,0,0) line ",
                  "a write at byte 48 of shared array (dynamic)", "40 bytes"}};
    float *x = device<float>(8);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; ++i) {
        cr_expect(GPU_LAUNCH(shared_writes, 1, 8, 40, nullptr, x, forms[i].tile, forms[i].dynamic) ==
                  cudaSuccess);
        cr_expect(cudaDeviceSynchronize() == forms[i].error, "form %zu", i);
        expect_report(forms[i].thread, forms[i].what, forms[i].bytes);
        char text[1024];
        assay_sim_last_report(text, sizeof text);
        const char *line = strstr(text, " line ");
        cr_expect(line != NULL && atoi(line + 6) > 0, "%s", text);
        cudaDeviceReset();
    }
}

__global__ void shared_map(float *y, const float *x)
{
    GPU_SHARED(float, tile, 30);
    for (unsigned i = threadIdx.x; i < 30; i += blockDim.x)
        tile[i] = x[i];
    __syncthreads();
    for (unsigned i = threadIdx.x; i <= 30; i += blockDim.x) /* off by one */
        y[i] = tile[i];
}

Test(sim_guards, a_shared_guard_copied_into_a_device_guard_is_seen)
{
    quiet();
    for (int serial = 0; serial < 70; ++serial) {
        float *x = device<float>(30), *y = device<float>(30);
        expect_seen(GPU_LAUNCH(shared_map, 1, 32, 0, nullptr, y, x), cudaErrorLaunchFailure,
                    "kernel shared_map", "a write at byte 12", "(120 bytes, device 0)");
        cudaFree(x);
        cudaFree(y);
    }
}

#else

Test(sim_guards, the_address_sanitizer_sees_these_itself)
{
    cr_expect(true);
}

#endif
