/* What translated CUDA (assay-cc, gpu/sim/translate) calls: launches, kernels, shared memory.  assay-cc includes it in front of
 * every .cu file. */
#ifndef ASSAY_SIM_CC_H
#define ASSAY_SIM_CC_H

#include <cuda_runtime.h>

extern "C" {
/* What stands between <<< and >>>, until the kernel is called. */
typedef struct assay_sim_configuration {
    const char *name;
    int line, cooperative;
    uint3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
} assay_sim_configuration;

enum assay_sim_entry {
    ASSAY_SIM_ENTRY_RUN,    /* a thread of the device: run the body */
    ASSAY_SIM_ENTRY_LAUNCH, /* after a configuration: launch */
    ASSAY_SIM_ENTRY_NOTHING /* asked which body is behind a kernel's address; or called without a launch, and reported */
};

/* 0: call the kernel now; 1: reported, it must not be called. */
int assay_sim_configure(const assay_sim_configuration *c);
enum assay_sim_entry assay_sim_enter(const char *name, const void *body);
assay_sim_configuration assay_sim_configured(void);
void assay_sim_launched(cudaError_t error);
cudaError_t assay_sim_launch_result(void);
/* A kernel by its address: `run` launches it with untyped arguments, after a configuration. */
typedef void assay_sim_untyped(const void *kernel, void **args);
void assay_sim_register_kernel(const void *kernel, const void *body, assay_sim_untyped *run);
void assay_sim_ask_body(void);
const void *assay_sim_asked_body(void);
void assay_sim_inline_assembly(const char *text, int line);
void assay_sim_assert(const char *condition, const char *file, int line, const char *function);
}

namespace assay_sim
{

template <class T> struct as_given {
    typedef T type;
};

static inline int configure(const char *name, int line, dim3 grid, dim3 block, size_t shared_bytes = 0,
                            cudaStream_t stream = nullptr)
{
    const assay_sim_configuration c = {name, line, 0, grid, block, shared_bytes, stream};
    return assay_sim_configure(&c);
}

/* The body of every translated kernel. */
template <class... P>
static inline void kernel(const char *name, void (*body)(P...), typename as_given<P>::type... args)
{
    const enum assay_sim_entry entry = assay_sim_enter(name, reinterpret_cast<const void *>(body));
    if (__builtin_expect(entry == ASSAY_SIM_ENTRY_RUN, 1)) {
        body(static_cast<P &&>(args)...);
    } else if (entry == ASSAY_SIM_ENTRY_LAUNCH) {
        const assay_sim_configuration c = assay_sim_configured();
        assay_sim_launched(launch_as(c.name, 0, c.cooperative, body, c.grid, c.block, c.shared_bytes,
                                     c.stream, static_cast<P &&>(args)...));
    }
}

/* The body behind a kernel's address, which is what limits of dynamic shared memory are kept for. */
template <class... P> static inline const void *body_of(void (*kernel_at)(P...))
{
    if (kernel_at == nullptr)
        return nullptr;
    if constexpr ((std::is_trivially_copyable<P>::value && ...)) {
        alignas(64) static unsigned char zeros[(sizeof(P) + ... + 1)];
        assay_sim_ask_body();
        kernel_at(*reinterpret_cast<P *>(zeros)...);
        return assay_sim_asked_body();
    } else {
        assay_sim_report("unsupported",
                         "a kernel with parameters that are not trivially copyable: its address");
        return nullptr;
    }
}

template <class... P, size_t... I>
static inline void call_untyped(void (*kernel_at)(P...), void **args, std::index_sequence<I...>)
{
    (void)args;
    kernel_at(*static_cast<typename std::remove_const<P>::type *>(args[I])...);
}

template <class... P> static void run_untyped(const void *kernel_at, void **args)
{
    call_untyped(reinterpret_cast<void (*)(P...)>(const_cast<void *>(kernel_at)), args,
                 std::index_sequence_for<P...>());
}

/* What a cast of a kernel to `void *` becomes. */
template <class... P> static inline void *address_of(void (*kernel_at)(P...))
{
    const void *at = reinterpret_cast<const void *>(kernel_at);
    assay_sim_register_kernel(at, body_of(kernel_at), run_untyped<P...>);
    return const_cast<void *>(at);
}

template <class A, class S> static inline A &shared_array(const char *name, int line)
{
    static const char site = 0; /* one for each S */
    return *reinterpret_cast<A *>(assay_sim_shared_array(&site, name, sizeof(A), alignof(S), line));
}

template <class A> static inline typename std::remove_extent<A>::type *dynamic_shared(int line)
{
    return static_cast<typename std::remove_extent<A>::type *>(assay_sim_dynamic_shared(line));
}

/* nvcc optimizes by what it is told; here a condition that does not hold is reported. */
#define __builtin_assume(...)                                                                                \
    ((__VA_ARGS__)                                                                                           \
         ? (void)0                                                                                           \
         : ::assay_sim::failed_assert("__builtin_assume(" #__VA_ARGS__ ")", __FILE__, __LINE__, __func__))

static inline void failed_assert(const char *condition, const char *file, int line, const char *function)
{
    assay_sim_assert(condition, file, line, function);
}

/* mov.u32 %0, %<name>; for the registers that say where a thread is. */
enum register_name {
    LANEID,
    WARPID,
    NWARPID,
    SMID,
    NSMID,
    LANEMASK_EQ,
    LANEMASK_LT,
    LANEMASK_LE,
    LANEMASK_GT,
    LANEMASK_GE,
    GLOBALTIMER,
    CLOCK64
};
static inline unsigned long long special_register(enum register_name name)
{
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z),
                   lane = thread % 32;
    const unsigned bit = 1u << lane;
    switch (name) {
    case LANEID:
        return lane;
    case WARPID:
        return thread / 32;
    case NWARPID:
        return 64;
    case SMID:
        return blockIdx.x % 4;
    case NSMID:
        return 4;
    case LANEMASK_EQ:
        return bit;
    case LANEMASK_LT:
        return bit - 1;
    case LANEMASK_LE:
        return bit | (bit - 1);
    case LANEMASK_GT:
        return ~(bit | (bit - 1));
    case LANEMASK_GE:
        return ~(bit - 1);
    case GLOBALTIMER:
    case CLOCK64:
        return static_cast<unsigned long long>(clock64());
    }
    return 0;
}

static inline void inline_assembly(const char *text, int line)
{
    assay_sim_inline_assembly(text, line);
}

} /* namespace assay_sim */

template <class... P>
static inline cudaError_t cudaLaunchKernel(void (*func)(P...), dim3 grid, dim3 block, void **args,
                                           size_t shared_bytes = 0, cudaStream_t stream = nullptr)
{
    return ::cudaLaunchKernel(assay_sim::address_of(func), grid, block, args, shared_bytes, stream);
}
template <class... P>
static inline cudaError_t cudaLaunchCooperativeKernel(void (*func)(P...), dim3 grid, dim3 block, void **args,
                                                      size_t shared_bytes = 0, cudaStream_t stream = nullptr)
{
    return ::cudaLaunchCooperativeKernel(assay_sim::address_of(func), grid, block, args, shared_bytes,
                                         stream);
}

#endif
