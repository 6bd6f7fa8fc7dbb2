/* What the checker sees of memory besides races, at the instruction and its line. */
#include "races.h"

#define KERNEL(name, grid, block)                                                                            \
    __global__ void name(int *x, int *y);                                                                    \
    LAUNCH_CASE(name, grid, block, 0)                                                                        \
    __global__ void name([[maybe_unused]] int *x, [[maybe_unused]] int *y)

KERNEL(read_just_behind, 1, 1)
{
    y[0] = x[4100] == 3 ? 1 : 2; /* a: read_just_behind */
}

KERNEL(write_just_behind, 1, 1)
{
    x[4099] = 1; /* a: write_just_behind */
}

KERNEL(shared_array_left, 1, 2)
{
    GPU_SHARED(int, s, 5);
    s[threadIdx.x + 4] = 1; /* a: shared_array_left */
}

KERNEL(unaligned_vector, 1, 1)
{
    const float4 *v = reinterpret_cast<const float4 *>(x + 1);
    reinterpret_cast<float4 *>(y)[0] = v[0]; /* a: unaligned_vector */
}

KERNEL(unaligned_store, 1, 1)
{
    *reinterpret_cast<double *>(x + 1) = 1.0; /* a: unaligned_store */
}

KERNEL(shared_never_written, 1, 32)
{
    GPU_SHARED(int, s, 64);
    s[threadIdx.x] = 1;
    y[threadIdx.x] = s[threadIdx.x + 32]; /* a: shared_never_written */
}

__global__ void read_it(const int *fresh, int *y)
{
    y[0] = fresh[3] + 1; /* a: device_never_written */
}

static void run_device_never_written(int *, int *y)
{
    int *fresh = nullptr;
    (void)cudaMalloc(&fresh, 64);
    (void)GPU_LAUNCH(read_it, 1, 1, 0, nullptr, fresh, y);
    (void)cudaDeviceSynchronize();
    (void)cudaFree(fresh);
}

__global__ void read_managed(const int *fresh, int *y)
{
    y[0] = fresh[3] + 1; /* a: managed_never_written */
}

static void run_managed_never_written(int *, int *y)
{
    int *fresh = nullptr;
    (void)cudaMallocManaged(&fresh, 64);
    fresh[2] = fresh[4] = 1;
    (void)GPU_LAUNCH(read_managed, 1, 1, 0, nullptr, fresh, y);
    (void)cudaDeviceSynchronize();
    (void)cudaFree(fresh);
}

__global__ void read_freed(const int *gone, int *y)
{
    y[0] = gone[3]; /* a: use_after_free */
}

static void run_use_after_free(int *, int *y)
{
    int *gone = nullptr;
    (void)cudaMalloc(&gone, 64);
    (void)cudaFree(gone);
    (void)GPU_LAUNCH(read_freed, 1, 1, 0, nullptr, gone, y);
}

static void run_double_free(int *, int *)
{
    int *gone = nullptr;
    (void)cudaMalloc(&gone, 64);
    (void)cudaFree(gone);
    (void)cudaFree(gone);
}

static volatile int sink;
static void run_host_reads_device(int *x, int *)
{
    sink = x[2]; /* a: host_reads_device */
}

#define CASE(name, kind, words)                                                                              \
    {                                                                                                        \
#name, kind, words, __FILE__, run_##name                                                             \
    }

const race_case RACES_OF_MEMORY[] = {
    CASE(read_just_behind, "out of bounds", "a read of 4 bytes"),
    CASE(write_just_behind, "out of bounds", "byte 16396 of device block"),
    CASE(shared_array_left, "out of bounds", "thread (1,0,0)"),
    CASE(unaligned_vector, "misaligned", "no multiple of 16"),
    CASE(unaligned_store, "misaligned", "no multiple of 8"),
    CASE(shared_never_written, "uninitialized", "shared memory"),
    CASE(device_never_written, "uninitialized", "global memory, byte 12 of a block of 64 bytes"),
    CASE(managed_never_written, "uninitialized", "global memory, byte 12 of a block of 64 bytes"),
    CASE(use_after_free, "illegal address", "which has been freed"),
    MARKED(double_free, "invalid pointer", "", 0),
    CASE(host_reads_device, "illegal address", "host code"),
    {},
};
