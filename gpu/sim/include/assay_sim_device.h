/* The device side of CUDA for a host C++ compiler: built-in variables, barriers, warp intrinsics, launches.
 * Included by cuda_runtime.h in files that are compiled with ASSAY_SIM=1.  Every CUDA thread of a block is a
 * fiber; a function here that waits gives the processor to the next fiber.  Source lines are recorded by
 * default arguments. Not modelled: cooperative groups, mbarrier, cp.async, mma, textures, dynamic
 * parallelism; they are not declared. */
#ifndef ASSAY_SIM_DEVICE_H
#define ASSAY_SIM_DEVICE_H

#include "assay_sim.h"
#include "vector_functions.h"

#include <string.h>
#include <time.h>
#include <tuple>
#include <type_traits>
#include <utility>

#if !defined(__clang__)
#if __cplusplus >= 202002L
#include <source_location>
#else
namespace std
{
struct source_location { /* what __builtin_source_location() asks for, before C++20 has the header */
    struct __impl {
        const char *_M_file_name;
        const char *_M_function_name;
        unsigned _M_line;
        unsigned _M_column;
    };
};
} /* namespace std */
#endif
namespace assay_sim
{
static inline int here(const void *place)
{
    const std::source_location::__impl *p = static_cast<const std::source_location::__impl *>(place);
    return static_cast<int>(p->_M_line | (p->_M_column < 2048 ? p->_M_column : 2047) << 20);
}
} /* namespace assay_sim */
#endif

#define __host__
#define __device__
#define __constant__
#define __managed__
#if !defined(ASSAY_CC) /* whose translator wants to see these two */
#define __global__
/* One block runs at a time on an operating system thread, so a block's shared array is that thread's.  Such
 * an array keeps the values of the previous block; GPU_SHARED (gpu/launch.cuh) gives one that is poisoned and
 * guarded. */
#define __shared__ static thread_local __attribute__((unused))
#endif
#if defined(ASSAY_CC) /* whose programs also take the address of such a function */
#define __forceinline__ inline
#else
#define __forceinline__ inline __attribute__((always_inline))
#endif
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
/* Empty: the C++ library writes __attribute__((__noinline__)), and no kernel's result depends on it. */
#define __noinline__
/* Compute capability 9.0: what is written for device code is compiled, also in functions that the host may call. */
#ifndef __CUDA_ARCH__
#define __CUDA_ARCH__ 900
#endif

extern "C" {
extern __thread uint3 threadIdx;
extern __thread uint3 blockIdx;
extern __thread uint3 blockDim;
extern __thread uint3 gridDim;
extern __thread int assay_sim_has_shared; /* the running block has shared memory */
/* A report where p lies in it: `what` is an instruction of global memory. */
void assay_sim_global_only(const void *p, const char *what, int line);
/* Whether this processor has fused multiply-add. */
extern const bool assay_sim_has_fma;

/* What a waiting thread asks for. */
enum assay_sim_warp_op {
    ASSAY_SIM_WARP_SYNC,
    ASSAY_SIM_WARP_SHFL,
    ASSAY_SIM_WARP_SHFL_UP,
    ASSAY_SIM_WARP_SHFL_DOWN,
    ASSAY_SIM_WARP_SHFL_XOR,
    ASSAY_SIM_WARP_ALL,
    ASSAY_SIM_WARP_ANY,
    ASSAY_SIM_WARP_BALLOT,
    ASSAY_SIM_WARP_MATCH_ANY,
    ASSAY_SIM_WARP_ADD_U32,
    ASSAY_SIM_WARP_MIN_U32,
    ASSAY_SIM_WARP_MAX_U32,
    ASSAY_SIM_WARP_MIN_S32,
    ASSAY_SIM_WARP_MAX_S32,
    ASSAY_SIM_WARP_AND_U32,
    ASSAY_SIM_WARP_OR_U32,
    ASSAY_SIM_WARP_XOR_U32,
    ASSAY_SIM_WARP_CALL
};

/* What all 32 lanes of a warp compute together: the operands of the lanes in their order. */
typedef void assay_sim_warp_function(void *const *lane);

enum assay_sim_block_op {
    ASSAY_SIM_BLOCK_SYNC,
    ASSAY_SIM_BLOCK_COUNT,
    ASSAY_SIM_BLOCK_AND,
    ASSAY_SIM_BLOCK_OR
};

int assay_sim_block_barrier(assay_sim_block_op op, int predicate, int line);
uint64_t assay_sim_warp_exchange(assay_sim_warp_op op, unsigned mask, uint64_t value, int operand, int width,
                                 int line);
/* The last lane to arrive runs the function on the operands of all 32; a warp that lacks a lane is reported.  Not CUDA's: for
 * wrappers whose device code is a chain of warp intrinsics or an instruction of the whole warp. */
void assay_sim_warp_call(assay_sim_warp_function *run, void *operands, int line);
unsigned assay_sim_lane(void);
void *assay_sim_dynamic_shared(int line);
void *assay_sim_shared_array(const void *site, const char *name, size_t bytes, size_t align, int line);
void assay_sim_yield(void);
int assay_sim_is_global(const void *p);
void assay_sim_trap(int line) __attribute__((noreturn));

/* A launch: `args` is an object that `destroy` frees; `run` executes the kernel for the current thread,
 * `run_loop` for threads order[0..n) (0..n-1 when order is NULL) one after the other. */
typedef struct assay_sim_kernel {
    const char *name;
    const void *func;
    int no_barrier;
    void *args;
    void (*destroy)(void *args);
    void (*run)(const void *args);
    void (*run_loop)(const void *args, unsigned n, const unsigned *order);
    const void *const *pointers; /* those among the arguments, for the launch's checks */
    int n_pointers;
    int cooperative; /* all blocks run at once, so that they can wait for each other */
} assay_sim_kernel;

cudaError_t assay_sim_launch(const assay_sim_kernel *kernel, uint3 grid, uint3 block, size_t shared_bytes,
                             cudaStream_t stream);
}

static constexpr int warpSize = 32;

namespace assay_sim
{

/* A parameter of the kernel may be a reference to a constant: then threads read the launch's copy, as a device's read its
 * parameters, and none makes one of its own. */
template <class T> using stored = std::remove_cv_t<std::remove_reference_t<T>>;

template <class... P> struct call {
    void (*kernel)(P...);
    std::tuple<stored<P>...> args;

    static void run(const void *self)
    {
        const call *c = static_cast<const call *>(self);
        std::apply(c->kernel, c->args);
    }

    static void run_loop(const void *self, unsigned n, const unsigned *order)
    {
        const call *c = static_cast<const call *>(self);
        const unsigned nx = blockDim.x, ny = blockDim.y;
        if (order == nullptr && ny == 1 && n == nx) {
            threadIdx.y = 0;
            threadIdx.z = 0;
            for (unsigned i = 0; i < n; ++i) {
                threadIdx.x = i;
                std::apply(c->kernel, c->args);
            }
            return;
        }
        for (unsigned i = 0; i < n; ++i) {
            const unsigned t = order ? order[i] : i;
            threadIdx = uint3{t % nx, t / nx % ny, t / nx / ny};
            std::apply(c->kernel, c->args);
        }
    }

    static void destroy(void *self)
    {
        delete static_cast<call *>(self);
    }
};

template <class T> static inline void note_pointer(const T &v, const void **pointers, int *n)
{
    if constexpr (std::is_pointer<T>::value &&
                  !std::is_function<typename std::remove_pointer<T>::type>::value) {
        pointers[(*n)++] = const_cast<const void *>(static_cast<const volatile void *>(v));
    }
}

template <class... P, class... A>
cudaError_t launch_as(const char *name, int no_barrier, int cooperative, void (*kernel)(P...), dim3 grid,
                      dim3 block, size_t shared_bytes, cudaStream_t stream, A &&...args)
{
    static_assert(sizeof...(P) == sizeof...(A),
                  "a kernel is launched with as many arguments as it has parameters");
    typedef call<P...> call_type;
    static_assert(
        ((!std::is_reference<P>::value || std::is_const<typename std::remove_reference<P>::type>::value) &&
         ...),
        "a kernel's parameter is a value or a reference to a constant");
    call_type *c =
        new call_type{kernel, std::tuple<stored<P>...>(static_cast<stored<P>>(std::forward<A>(args))...)};
    const void *pointers[sizeof...(P) + 1] = {};
    int n_pointers = 0;
    std::apply([&](const stored<P> &...p) { (note_pointer(p, pointers, &n_pointers), ...); }, c->args);
    assay_sim_kernel k = {name,
                          reinterpret_cast<const void *>(kernel),
                          no_barrier,
                          c,
                          call_type::destroy,
                          call_type::run,
                          call_type::run_loop,
                          pointers,
                          n_pointers,
                          cooperative};
    return assay_sim_launch(&k, grid, block, shared_bytes, stream);
}

template <class... P, class... A>
cudaError_t launch(const char *name, int no_barrier, void (*kernel)(P...), dim3 grid, dim3 block,
                   size_t shared_bytes, cudaStream_t stream, A &&...args)
{
    return launch_as(name, no_barrier, 0, kernel, grid, block, shared_bytes, stream,
                     std::forward<A>(args)...);
}

/* What a lane offers: values of up to 8 bytes in one exchange, larger ones in two. */
template <class T>
static inline T exchange(assay_sim_warp_op op, unsigned mask, T value, int operand, int width, int line)
{
    static_assert(sizeof(T) <= 16 && std::is_trivially_copyable<T>::value,
                  "a shuffled value has at most 16 bytes");
    uint64_t words[2] = {0, 0};
    T out;
    memcpy(words, &value, sizeof value);
    words[0] = assay_sim_warp_exchange(op, mask, words[0], operand, width, line);
    if (sizeof(T) > 8)
        words[1] = assay_sim_warp_exchange(op, mask, words[1], operand, width, line);
    memcpy(static_cast<void *>(&out), words, sizeof out);
    return out;
}

} /* namespace assay_sim */

/* --- cudaLaunchKernelEx: CUDA's typed launch ---------------------------------------------------------------- */

/* None is modelled; those that a program names are refused by their names. */
enum cudaLaunchAttributeID {
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6
};
union cudaLaunchAttributeValue {
    char pad[64];
    int cooperative;
    struct {
        unsigned int x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed;
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    cudaLaunchAttributeValue val;
};
typedef struct cudaLaunchConfig_st {
    dim3 gridDim;
    dim3 blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned int numAttrs;
} cudaLaunchConfig_t;

template <class... P, class... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...),
                                             A &&...args)
{
    if (config->numAttrs != 0) {
        const int id = config->attrs != nullptr ? static_cast<int>(config->attrs[0].id) : -1;
        assay_sim_report(
            "unsupported", "cudaLaunchKernelEx: launch attributes (%u given): %s", config->numAttrs,
            id == cudaLaunchAttributeClusterDimension                  ? "clusters"
            : id == cudaLaunchAttributeProgrammaticStreamSerialization ? "programmatic dependent launch"
            : id == cudaLaunchAttributeCooperative ? "cooperative (cudaLaunchCooperativeKernel is modelled)"
                                                   : "unknown");
        return cudaErrorNotSupported;
    }
    return assay_sim::launch("(cudaLaunchKernelEx)", 0, kernel, config->gridDim, config->blockDim,
                             config->dynamicSmemBytes, config->stream, std::forward<A>(args)...);
}

/* Where a default argument's call stands: the line, and above 20 bits the column, so that two intrinsics in one line are
 * two places. */
#if defined(__clang__)
#define ASSAY_SIM_HERE (__builtin_LINE() | (__builtin_COLUMN() < 2048 ? __builtin_COLUMN() : 2047) << 20)
#else
#define ASSAY_SIM_HERE assay_sim::here(__builtin_source_location())
#endif

/* --- barriers ----------------------------------------------------------------------------------------------- */

extern "C" void assay_sim_misuse(const char *kind, const char *what, int line) __attribute__((noreturn));
/* griddepcontrol, by CUDA's names. */
static inline void cudaGridDependencySynchronize(int line = ASSAY_SIM_HERE)
{
    assay_sim_misuse("unsupported", "cudaGridDependencySynchronize: programmatic dependent launch", line);
}
static inline void cudaTriggerProgrammaticLaunchCompletion(int line = ASSAY_SIM_HERE)
{
    assay_sim_misuse("unsupported", "cudaTriggerProgrammaticLaunchCompletion: programmatic dependent launch",
                     line);
}

static inline void __syncthreads(int line = ASSAY_SIM_HERE)
{
    assay_sim_block_barrier(ASSAY_SIM_BLOCK_SYNC, 0, line);
}
static inline int __syncthreads_count(int predicate, int line = ASSAY_SIM_HERE)
{
    return assay_sim_block_barrier(ASSAY_SIM_BLOCK_COUNT, predicate, line);
}
static inline int __syncthreads_and(int predicate, int line = ASSAY_SIM_HERE)
{
    return assay_sim_block_barrier(ASSAY_SIM_BLOCK_AND, predicate, line);
}
static inline int __syncthreads_or(int predicate, int line = ASSAY_SIM_HERE)
{
    return assay_sim_block_barrier(ASSAY_SIM_BLOCK_OR, predicate, line);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, int line = ASSAY_SIM_HERE)
{
    assay_sim_warp_exchange(ASSAY_SIM_WARP_SYNC, mask, 0, 0, 32, line);
}

/* --- warp intrinsics ---------------------------------------------------------------------------------------- */

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, int line = ASSAY_SIM_HERE)
{
    return assay_sim::exchange(ASSAY_SIM_WARP_SHFL, mask, value, lane, width, line);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                               int line = ASSAY_SIM_HERE)
{
    return assay_sim::exchange(ASSAY_SIM_WARP_SHFL_UP, mask, value, static_cast<int>(delta), width, line);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                 int line = ASSAY_SIM_HERE)
{
    return assay_sim::exchange(ASSAY_SIM_WARP_SHFL_DOWN, mask, value, static_cast<int>(delta), width, line);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                                int line = ASSAY_SIM_HERE)
{
    return assay_sim::exchange(ASSAY_SIM_WARP_SHFL_XOR, mask, value, lane_mask, width, line);
}
static inline int __all_sync(unsigned mask, int predicate, int line = ASSAY_SIM_HERE)
{
    return static_cast<int>(assay_sim_warp_exchange(ASSAY_SIM_WARP_ALL, mask, predicate != 0, 0, 32, line));
}
static inline int __any_sync(unsigned mask, int predicate, int line = ASSAY_SIM_HERE)
{
    return static_cast<int>(assay_sim_warp_exchange(ASSAY_SIM_WARP_ANY, mask, predicate != 0, 0, 32, line));
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, int line = ASSAY_SIM_HERE)
{
    return static_cast<unsigned>(
        assay_sim_warp_exchange(ASSAY_SIM_WARP_BALLOT, mask, predicate != 0, 0, 32, line));
}
template <class T> static inline unsigned __match_any_sync(unsigned mask, T value, int line = ASSAY_SIM_HERE)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value,
                  "a matched value has at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return static_cast<unsigned>(assay_sim_warp_exchange(ASSAY_SIM_WARP_MATCH_ANY, mask, bits, 0, 32, line));
}
#define ASSAY_SIM_REDUCE(name, type, op)                                                                     \
    static inline type name(unsigned mask, type value, int line = ASSAY_SIM_HERE)                            \
    {                                                                                                        \
        return static_cast<type>(                                                                            \
            assay_sim_warp_exchange(op, mask, static_cast<uint32_t>(value), 0, 32, line));                   \
    }
ASSAY_SIM_REDUCE(__reduce_add_sync, unsigned, ASSAY_SIM_WARP_ADD_U32)
ASSAY_SIM_REDUCE(__reduce_min_sync, unsigned, ASSAY_SIM_WARP_MIN_U32)
ASSAY_SIM_REDUCE(__reduce_max_sync, unsigned, ASSAY_SIM_WARP_MAX_U32)
ASSAY_SIM_REDUCE(__reduce_and_sync, unsigned, ASSAY_SIM_WARP_AND_U32)
ASSAY_SIM_REDUCE(__reduce_or_sync, unsigned, ASSAY_SIM_WARP_OR_U32)
ASSAY_SIM_REDUCE(__reduce_xor_sync, unsigned, ASSAY_SIM_WARP_XOR_U32)
ASSAY_SIM_REDUCE(__reduce_add_sync, int, ASSAY_SIM_WARP_ADD_U32)
ASSAY_SIM_REDUCE(__reduce_min_sync, int, ASSAY_SIM_WARP_MIN_S32)
ASSAY_SIM_REDUCE(__reduce_max_sync, int, ASSAY_SIM_WARP_MAX_S32)
#undef ASSAY_SIM_REDUCE

/* Which lanes happen to be converged is up to the hardware; the least that CUDA promises is the caller
 * itself, and that is what the simulator answers, so that code which counts on more shows it. */
static inline unsigned __activemask()
{
    return 1u << assay_sim_lane();
}

#if defined(__clang__)
#if __has_feature(thread_sanitizer)
/* clang makes calls of memcpy of copied structures (a float4) and of loops, which the race checker does not see: it lacks this symbol, so
 * that such a program is refused when it is linked with it. */
extern "C" const int assay_sim_race_checker_needs_gcc;
static const int *const assay_sim_compiler __attribute__((used)) = &assay_sim_race_checker_needs_gcc;
#endif
#endif

#include "assay_sim_intrinsics.h"
#if defined(ASSAY_CC)
#include "assay_sim_more.h"
#endif

#endif
