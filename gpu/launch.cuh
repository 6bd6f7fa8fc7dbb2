/* What every .cu file of the engine includes: kernel launches and shared memory, spelled so that nvcc
 * compiles them for a GPU and g++ -std=c++17 -x c++ -DASSAY_SIM=1 -I gpu/sim/include for the simulator.
 *
 *   GPU_LAUNCH(kernel, grid, block, smem_bytes, stream, args...)   -> cudaError_t of the launch itself
 *       A kernel template is written in parentheses: GPU_LAUNCH((scale_k0<float, 4>), grid, block, 0, stream,
 * y, x, n). Arguments convert to the parameter types.  Faults of the kernel's execution arrive at the next
 * synchronization. GPU_LAUNCH_NO_BARRIER(...)   the same; promises that the kernel uses no barrier, warp
 * intrinsic or shared memory. The simulator then runs it as a plain loop over threads, and reports the kernel
 * by name when the promise is broken. GPU_DYNAMIC_SHARED(type, name)          extern __shared__: the block's
 * dynamic shared memory, 16-byte aligned. GPU_SHARED(type, name, count)           __shared__ type
 * name[count]; poisoned and guarded in the simulator. GPU_SHARED_2D(type, name, rows, cols)   __shared__ type
 * name[rows][cols]. GPU_PARAMETER(type)   a large structure as a kernel's parameter, which threads only read.
 * Plain __shared__ works too; the simulator then neither poisons nor guards the array. */
#ifndef ASSAY_GPU_LAUNCH_CUH
#define ASSAY_GPU_LAUNCH_CUH

#include <cuda_runtime.h>

#if defined(__CUDACC__)

#include <utility>

template <class... P, class... A>
static inline cudaError_t gpu_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                                     cudaStream_t stream, A &&...args)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    const cudaError_t error = cudaLaunchKernelEx(&config, kernel, std::forward<A>(args)...);
    if (error != cudaSuccess)
        (void)cudaGetLastError(); /* reported here; must not be found again by a later call */
    return error;
}

#define GPU_LAUNCH(kernel, grid, block, smem_bytes, stream, ...)                                             \
    gpu_launch((kernel), (grid), (block), (smem_bytes), (stream), ##__VA_ARGS__)
#define GPU_LAUNCH_NO_BARRIER(kernel, grid, block, smem_bytes, stream, ...)                                  \
    gpu_launch((kernel), (grid), (block), (smem_bytes), (stream), ##__VA_ARGS__)

/* One untyped array under a single name: two element types under one extern name would be a redeclaration. */
extern __shared__ __align__(16) unsigned char gpu_dynamic_shared_bytes[];
#define GPU_DYNAMIC_SHARED(type, name) type *name = reinterpret_cast<type *>(gpu_dynamic_shared_bytes)
#define GPU_SHARED(type, name, count) __shared__ type name[count]
#define GPU_SHARED_2D(type, name, rows, cols) __shared__ type name[rows][cols]
#define GPU_PARAMETER(type) type

#elif defined(ASSAY_SIM)

template <class... P, class... A>
static inline cudaError_t gpu_launch(const char *name, int no_barrier, void (*kernel)(P...), dim3 grid,
                                     dim3 block, size_t shared_bytes, cudaStream_t stream, A &&...args)
{
    const cudaError_t error = assay_sim::launch(name, no_barrier, kernel, grid, block, shared_bytes, stream,
                                                std::forward<A>(args)...);
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    return error;
}

#define GPU_PARAMETER(type) const type & /* one copy for the launch */
#define GPU_LAUNCH(kernel, grid, block, smem_bytes, stream, ...)                                             \
    gpu_launch(#kernel, 0, (kernel), (grid), (block), (smem_bytes), (stream), ##__VA_ARGS__)
#define GPU_LAUNCH_NO_BARRIER(kernel, grid, block, smem_bytes, stream, ...)                                  \
    gpu_launch(#kernel, 1, (kernel), (grid), (block), (smem_bytes), (stream), ##__VA_ARGS__)

#define GPU_DYNAMIC_SHARED(type, name)                                                                       \
    type *name = reinterpret_cast<type *>(assay_sim_dynamic_shared(__LINE__))
#define GPU_SHARED(type, name, count)                                                                        \
    static char name##_site;                                                                                 \
    type(&name)[count] = *reinterpret_cast<type(*)[count]>(                                                  \
        assay_sim_shared_array(&name##_site, #name, sizeof(type) * (count), alignof(type), __LINE__))
#define GPU_SHARED_2D(type, name, rows, cols)                                                                \
    static char name##_site;                                                                                 \
    type(&name)[rows][cols] = *reinterpret_cast<type(*)[rows][cols]>(assay_sim_shared_array(                 \
        &name##_site, #name, sizeof(type) * (rows) * (cols), alignof(type), __LINE__))

#else
#error "a .cu file is compiled by nvcc, or by a host C++ compiler with -DASSAY_SIM=1 -I gpu/sim/include"
#endif

#endif
