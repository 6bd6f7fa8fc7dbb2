/* Kernels that are wrong are reported, with kernel, block, thread and line, and fail the synchronization. */
#include "tests/support/sim.h"

#include "gpu/launch.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

static float *device(size_t n)
{
    float *p = nullptr;
    cr_assert(cudaMalloc(&p, n * sizeof(float)) == cudaSuccess);
    return p;
}

/* --- barriers ----------------------------------------------------------------------------------------------- */

/* The line of a statement, written beside it: the reports quote it. */
#define LINE_TEXT_OF(line) #line
#define LINE_TEXT(line) LINE_TEXT_OF(line)
#define LINE_IS(name) static const char *const name = "line " LINE_TEXT(__LINE__)

__global__ void divergent(float *x)
{
    if (threadIdx.x < 7) {
        __syncthreads();
    } else {
        x[threadIdx.x] = 1.0f;
        __syncthreads();
    }
}
LINE_IS(after_divergent);

Test(sim_misuse, divergent_barrier)
{
    quiet();
    expect_fault(GPU_LAUNCH(divergent, 3, 32, 0, nullptr, device(32)));
    const int end = atoi(after_divergent + 5);
    char here[128], there[128];
    snprintf(here, sizeof here,
             "divergent barrier: kernel divergent block (0,0,0) thread (7,0,0) line %d:", end - 3);
    snprintf(there, sizeof there, "thread (0,0,0) waits at the one in line %d", end - 6);
    expect_report(here, there, "");
}

/* --- one line, or one helper, reached in two ways --------------------------------------------------------------- */

// clang-format off
__global__ void two_barriers_in_one_line(float *x)
{
    if (threadIdx.x < 7) { __syncthreads(); } else { x[threadIdx.x] = 1.0f; __syncthreads(); }
    x[threadIdx.x] = 2.0f;
}

__global__ void two_shuffles_in_one_line(float *x)
{
    x[threadIdx.x] = threadIdx.x < 16 ? __shfl_xor_sync(0xffffffffu, 1.0f, 1) : 2.0f * __shfl_xor_sync(0xffffffffu, 2.0f, 1);
}
// clang-format on

static __device__ inline float meet_inlined(float v)
{
    __syncthreads();
    return v + 1.0f;
}

static __device__ __attribute__((noinline)) float meet_called(volatile float *x)
{
    x[0] = 1.0f;
    __syncthreads();
    return x[0] + 1.0f;
}

static __device__ __attribute__((noinline)) float shuffle_called(volatile float *x)
{
    const float v = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
    x[threadIdx.x] = v;
    return v + 1.0f;
}

__global__ void through_an_inlined_helper(float *x)
{
    if (threadIdx.x < 7) {
        x[threadIdx.x] = meet_inlined(x[threadIdx.x]);
    } else {
        x[threadIdx.x + 1] = 3.0f;
        x[threadIdx.x] = 2.0f * meet_inlined(x[threadIdx.x]);
    }
}

__global__ void through_a_called_helper(float *x)
{
    if (threadIdx.x < 7) {
        x[threadIdx.x] = meet_called(x + threadIdx.x);
    } else {
        static_cast<volatile float *>(x)[threadIdx.x] = 3.0f;
        x[threadIdx.x] = 2.0f * meet_called(x + threadIdx.x);
    }
}

/* Without the store in one arm the two calls begin their arms alike, and clang may make one call of them. */
__global__ void lanes_through_a_called_helper(float *x)
{
    if (threadIdx.x < 7) {
        x[threadIdx.x] = shuffle_called(x);
    } else {
        static_cast<volatile float *>(x)[threadIdx.x] = 3.0f;
        x[threadIdx.x] = 2.0f * shuffle_called(x);
    }
}

Test(sim_misuse, divergence_within_one_line_or_through_one_helper)
{
    static const struct {
        void (*kernel)(float *);
        const char *name, *kind, *there;
    } forms[] = {{two_barriers_in_one_line, "two_barriers_in_one_line", "divergent barrier", ", column "},
                 {two_shuffles_in_one_line, "two_shuffles_in_one_line", "divergent warp", ", column "},
                 {through_an_inlined_helper, "through_an_inlined_helper", "divergent barrier",
                  "reached by test_misuse.cu:"},
                 {through_a_called_helper, "through_a_called_helper", "divergent barrier",
                  "reached by test_misuse.cu:"},
                 {lanes_through_a_called_helper, "lanes_through_a_called_helper", "divergent warp",
                  "reached by test_misuse.cu:"}};
    quiet();
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; ++i) {
        expect_fault(assay_sim::launch(forms[i].name, 0, forms[i].kernel, 1, 32, 0, nullptr, device(64)));
        expect_report(forms[i].kind, forms[i].name, forms[i].there);
        cudaDeviceReset();
    }
}

/* The compiler may copy these barriers into the arms of the branches, or unroll the loop: each is one in the source. */
__global__ void one_barrier_behind_branches(float *x, int n)
{
    float v = x[threadIdx.x];
    for (int i = 0; i < n; ++i) {
        const bool low = static_cast<int>(threadIdx.x) < i;
        if (low)
            v = 2.0f * v + 1.0f;
        __syncthreads();
        if (low)
            v -= x[0];
        __syncthreads();
        if (low)
            x[threadIdx.x] = v;
    }
}

__global__ void called_by_all(float *x)
{
    float v = threadIdx.x % 2 ? 1.0f : 2.0f;
    for (int i = 0; i < 3; ++i)
        v += meet_called(x) + meet_inlined(v);
    x[threadIdx.x] = v + shuffle_called(x);
}

Test(sim_misuse, one_place_that_all_threads_reach_is_no_divergence)
{
    float *x = device(64);
    cr_expect(GPU_LAUNCH(called_by_all, 2, 32, 0, nullptr, x) == cudaSuccess);
    cr_expect(GPU_LAUNCH(one_barrier_behind_branches, 2, 32, 0, nullptr, x, 9) == cudaSuccess);
    cr_expect(cudaDeviceSynchronize() == cudaSuccess);
}

__global__ void early_exit(float *x, unsigned n)
{
    if (threadIdx.x >= n)
        return;
    x[threadIdx.x] = 1.0f;
    __syncthreads();
    x[threadIdx.x] = 2.0f;
}
LINE_IS(after_early_exit);

Test(sim_misuse, early_exit_while_others_wait_in_every_order_when_strict)
{
    quiet();
    assay_sim_set_strict(1);
    float *x = device(64);
    char where[128];
    snprintf(where, sizeof where,
             "divergent barrier: kernel early_exit block (0,0,0) thread (0,0,0) line %d:",
             atoi(after_early_exit + 5) - 3);
    for (int order = 0; order < 3; ++order) {
        assay_sim_set_order(static_cast<assay_sim_order>(order), 3);
        expect_fault(GPU_LAUNCH(early_exit, 1, 64, 0, nullptr, x, 60u));
        expect_report(where, "60 of 64 threads wait", "4 have exited, the first of them thread (60,0,0)");
        cudaDeviceReset();
    }
    cr_expect(GPU_LAUNCH(early_exit, 1, 64, 0, nullptr, x, 64u) == cudaSuccess);
    cr_expect(cudaDeviceSynchronize() == cudaSuccess);
}

__global__ void missing_barrier(float *out, const float *x)
{
    GPU_SHARED(float, tile, 64);
    tile[threadIdx.x] = x[threadIdx.x];
    out[threadIdx.x] = tile[63 - threadIdx.x]; /* needs a barrier before it */
}

struct race_case {
    float *out, *x;
};

static void run_race(void *arg)
{
    const race_case *c = static_cast<const race_case *>(arg);
    GPU_LAUNCH(missing_barrier, 1, 64, 0, nullptr, c->out, c->x);
}

Test(sim_misuse, a_missing_barrier_changes_the_result_with_the_order)
{
    race_case c = {device(64), device(64)};
    std::vector<float> x(64);
    for (size_t i = 0; i < 64; ++i)
        x[i] = static_cast<float>(i);
    cudaMemcpy(c.x, x.data(), 64 * sizeof(float), cudaMemcpyHostToDevice);
    cr_expect(assay_sim_compare_orders(run_race, &c, c.out, 64 * sizeof(float), 3) == 4);
}

/* --- warps -------------------------------------------------------------------------------------------------- */

__global__ void mask_without_caller(float *x)
{
    x[threadIdx.x] = __shfl_sync(0x0000ffffu, 1.0f, 0);
}

Test(sim_misuse, mask_that_does_not_name_the_caller)
{
    quiet();
    expect_fault(GPU_LAUNCH(mask_without_caller, 1, 32, 0, nullptr, device(32)));
    expect_report("wrong mask: kernel mask_without_caller block (0,0,0) thread (16,0,0)", "mask 0x0000ffff",
                  "calling lane 16");
}

__global__ void absent_lane(float *x)
{
    if (threadIdx.x < 16)
        x[threadIdx.x] = __shfl_sync(0x0000ffffu, 1.0f, 20);
}

Test(sim_misuse, shuffle_from_a_lane_that_does_not_take_part)
{
    quiet();
    expect_fault(GPU_LAUNCH(absent_lane, 1, 32, 0, nullptr, device(32)));
    expect_report("absent lane: kernel absent_lane block (0,0,0) thread (0,0,0)", "reads lane 20",
                  "does not name");
}

__global__ void lane_of_partial_warp(float *x)
{
    x[threadIdx.x] = __shfl_down_sync(0xffffffffu, 1.0f, 4);
}

Test(sim_misuse, shuffle_from_a_lane_that_does_not_exist)
{
    quiet();
    expect_fault(GPU_LAUNCH(lane_of_partial_warp, 1, 8, 0, nullptr, device(32)));
    expect_report("absent lane: kernel lane_of_partial_warp", "thread (4,0,0)",
                  "reads lane 8, which does not exist");
}

__global__ void mask_names_exited(float *x)
{
    if (threadIdx.x == 9)
        return;
    x[threadIdx.x] = static_cast<float>(__ballot_sync(0xffffffffu, 1));
}

Test(sim_misuse, mask_that_names_an_exited_thread_when_strict)
{
    quiet();
    assay_sim_set_strict(1);
    for (int order = 0; order < 2; ++order) {
        assay_sim_set_order(static_cast<assay_sim_order>(order), 0);
        expect_fault(GPU_LAUNCH(mask_names_exited, 1, 32, 0, nullptr, device(32)));
        expect_report("kernel mask_names_exited block (0,0,0) thread (", "mask 0xffffffff", "exited");
        cudaDeviceReset();
    }
}

__global__ void reads_exited(float *x)
{
    if (threadIdx.x == 9)
        return;
    x[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 9);
}

Test(sim_misuse, shuffle_from_a_lane_that_has_returned)
{
    quiet();
    for (int order = 0; order < 2; ++order) {
        assay_sim_set_order(static_cast<assay_sim_order>(order), 0);
        expect_fault(GPU_LAUNCH(reads_exited, 1, 32, 0, nullptr, device(32)));
        expect_report("absent lane: kernel reads_exited block (0,0,0) thread (", "reads lane 9",
                      "which has returned");
        cudaDeviceReset();
    }
}

__global__ void half_never_comes(float *x)
{
    if (threadIdx.x < 16) {
        __syncwarp();
    }
    __syncthreads();
    x[threadIdx.x] = 0.0f;
}

Test(sim_misuse, warp_barrier_that_half_the_warp_skips)
{
    quiet();
    expect_fault(GPU_LAUNCH(half_never_comes, 2, 64, 0, nullptr, device(64)));
    expect_report("divergent warp: kernel half_never_comes block (0,0,0) thread (0,0,0)",
                  "waits for lanes 0xffff0000 that never arrive",
                  "thread (16,0,0) waits at the block barrier");
}

__global__ void two_lines(float *x)
{
    if (threadIdx.x % 2) {
        x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
    } else {
        x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 2.0f, 1);
    }
}

Test(sim_misuse, shuffles_that_meet_from_two_lines)
{
    quiet();
    expect_fault(GPU_LAUNCH(two_lines, 1, 32, 0, nullptr, device(32)));
    expect_report("divergent warp: kernel two_lines block (0,0,0) thread (1,0,0)", "thread (0,0,0) waits",
                  "line");
}

__global__ void odd_width(float *x)
{
    x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1, 12);
}

Test(sim_misuse, shuffle_width_that_is_no_power_of_two)
{
    quiet();
    expect_fault(GPU_LAUNCH(odd_width, 1, 32, 0, nullptr, device(32)));
    expect_report("kernel odd_width", "width 12", "thread (0,0,0)");
}

/* --- promises ----------------------------------------------------------------------------------------------- */

Test(sim_misuse, broken_promise_of_a_kernel_without_barriers)
{
    quiet();
    float *x = device(64);
    expect_fault(GPU_LAUNCH_NO_BARRIER(early_exit, 4, 64, 0, nullptr, x, 64u));
    expect_report("broken promise: kernel early_exit block (0,0,0) thread (0,0,0) line", "block barrier",
                  "GPU_LAUNCH_NO_BARRIER");
    cudaDeviceReset();
    expect_fault(GPU_LAUNCH_NO_BARRIER(two_lines, 1, 64, 0, nullptr, x));
    expect_report("broken promise: kernel two_lines", "warp intrinsic", "");
    cudaDeviceReset();
    expect_fault(GPU_LAUNCH_NO_BARRIER(missing_barrier, 1, 64, 0, nullptr, x, x));
    expect_report("broken promise: kernel missing_barrier", "shared memory", "");
}

__global__ void trapped(float *x)
{
    if (threadIdx.x == 3 && x)
        __trap();
}

Test(sim_misuse, trap_names_the_thread)
{
    quiet();
    expect_fault(GPU_LAUNCH(trapped, 1, 32, 0, nullptr, device(1)));
    expect_report("trap: kernel trapped block (0,0,0) thread (3,0,0)", "__trap", "");
}

/* --- memory ------------------------------------------------------------------------------------------------- */

__global__ void sum_uninitialized(float *out, const float *x, int n)
{
    GPU_SHARED(float, tile, 32);
    GPU_DYNAMIC_SHARED(float, dynamic);
    float s = 0.0f;
    if (n == 0)
        tile[threadIdx.x] = dynamic[threadIdx.x] = 0.0f;
    for (int i = 0; i < n; ++i)
        s += x[i];
    out[3 * threadIdx.x] = s;
    out[3 * threadIdx.x + 1] = tile[threadIdx.x];
    out[3 * threadIdx.x + 2] = dynamic[threadIdx.x];
}

Test(sim_misuse, memory_that_nobody_wrote_reads_as_nan)
{
    float *out = device(96), *x = device(4);
    float h[96];
    cr_assert(GPU_LAUNCH(sum_uninitialized, 2, 32, 32 * sizeof(float), nullptr, out, x, 1) == cudaSuccess);
    cr_assert(cudaMemcpy(h, out, sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int i = 0; i < 96; ++i)
        cr_expect(isnan(h[i]), "element %d", i);
    /* A large block is poisoned as well, though its pages are mapped and not filled. */
    float *big = device(3 << 20);
    cr_assert(cudaMemcpy(h, big + (2 << 20), sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int i = 0; i < 96; ++i)
        cr_expect(isnan(h[i]), "element %d", i);
}

Test(sim_misuse, poison_does_not_survive_in_shared_memory_from_block_to_block)
{
    float *out = device(96), *x = device(4);
    float h[96];
    cr_assert(GPU_LAUNCH(sum_uninitialized, 1, 32, 32 * sizeof(float), nullptr, out, x, 0) == cudaSuccess);
    cr_assert(GPU_LAUNCH(sum_uninitialized, 1, 32, 32 * sizeof(float), nullptr, out, x, 1) == cudaSuccess);
    cr_assert(cudaMemcpy(h, out, sizeof h, cudaMemcpyDeviceToHost) == cudaSuccess);
    cr_expect(isnan(h[1]) && isnan(h[2]));
}

#if !defined(__SANITIZE_ADDRESS__) /* which stops the program at the write itself */

__global__ void write_at(float *x, int i)
{
    x[i] = 1.0f;
}

Test(sim_misuse, out_of_bounds_writes_hit_a_guard)
{
    quiet();
    float *x = device(7);
    expect_fault(GPU_LAUNCH(write_at, 1, 1, 0, nullptr, x, 7));
    expect_report("out of bounds: kernel write_at", "a write at byte 28 of device block",
                  "(28 bytes, device 0)");
    cudaDeviceReset();
    expect_fault(GPU_LAUNCH(write_at, 1, 1, 0, nullptr, x, -1));
    expect_report("out of bounds: kernel write_at", "4 bytes before the start", "");
    cudaDeviceReset();
    cr_expect(GPU_LAUNCH(write_at, 1, 1, 0, nullptr, x, 6) == cudaSuccess);
    cr_expect(cudaFree(x) == cudaSuccess);
}

__global__ void shared_overflow(float *x, int i)
{
    GPU_SHARED(float, tile, 33);
    GPU_DYNAMIC_SHARED(float, dynamic);
    volatile float *a = tile, *b = dynamic;
    if (i > 0)
        a[i] = 1.0f;
    if (i < 0)
        b[-i] = 1.0f;
    x[0] = a[0];
}

Test(sim_misuse, out_of_bounds_writes_to_shared_memory_hit_a_guard)
{
    quiet();
    float *x = device(1);
    expect_fault(GPU_LAUNCH(shared_overflow, 1, 1, 40, nullptr, x, 33));
    expect_report("out of bounds: kernel shared_overflow block (0,0,0)", "shared array tile",
                  "0 bytes behind it");
    cudaDeviceReset();
    expect_fault(GPU_LAUNCH(shared_overflow, 1, 1, 40, nullptr, x, -11));
    expect_report("out of bounds: kernel shared_overflow", "shared array (dynamic)", "4 bytes behind it");
    cudaDeviceReset();
    cr_expect(GPU_LAUNCH(shared_overflow, 1, 1, 40, nullptr, x, 32) == cudaSuccess);
    cr_expect(cudaDeviceSynchronize() == cudaSuccess);
}

#endif

__global__ void too_much_shared(float *x)
{
    GPU_SHARED(float, huge, 12289);
    x[0] = huge[0];
}

Test(sim_misuse, static_shared_memory_beyond_48_kib)
{
    quiet();
    expect_fault(GPU_LAUNCH(too_much_shared, 1, 1, 0, nullptr, device(1)));
    expect_report("shared memory: kernel too_much_shared", "array huge", "49152");
}

/* Without cudaFuncSetAttribute static and dynamic arrays have 48 KiB together: a device refuses the launch. */
__global__ void static_beside_dynamic(float *x)
{
    GPU_DYNAMIC_SHARED(float, whole);
    GPU_SHARED(float, one, 1);
    whole[0] = one[0] = x[0];
    x[1] = whole[0] + one[0];
}

Test(sim_misuse, static_beside_dynamic_shared_memory_beyond_48_kib)
{
    quiet();
    float *x = device(2);
    expect_fault(GPU_LAUNCH(static_beside_dynamic, 1, 1, 49152, nullptr, x));
    expect_report("shared memory: kernel static_beside_dynamic", "array one", "cudaFuncSetAttribute");
}

Test(sim_misuse, static_beside_dynamic_shared_memory_that_was_asked_for)
{
    quiet();
    float *x = device(2);
    cr_assert(cudaFuncSetAttribute((const void *)static_beside_dynamic,
                                   cudaFuncAttributeMaxDynamicSharedMemorySize, 49152) == cudaSuccess);
    cr_expect(GPU_LAUNCH(static_beside_dynamic, 1, 1, 49152, nullptr, x) == cudaSuccess);
    cr_expect(cudaDeviceSynchronize() == cudaSuccess);
}

/* st.global and ld.global of shared memory: a device refuses them, a host's memory is all one. */
enum state_space { STORE_DYNAMIC, STORE_STATIC, LOAD_DYNAMIC };
template <int WHAT> __global__ void wrong_space(float4 *x)
{
    GPU_DYNAMIC_SHARED(float4, whole);
    GPU_SHARED(float4, one, 1);
    if (WHAT == STORE_DYNAMIC)
        __stwb(whole, x[0]);
    if (WHAT == STORE_STATIC)
        __stcs(one, x[0]);
    one[0] = whole[0] = x[0];
    if (WHAT == LOAD_DYNAMIC)
        x[1] = __ldcg(whole);
    __stwb(x + 1, one[0]); /* as it should be */
}

static void expect_space(cudaError_t launched, const char *what)
{
    expect_fault(launched);
    expect_report("wrong state space: kernel", what, "");
    cudaDeviceReset();
}
Test(sim_misuse, global_instructions_of_shared_memory)
{
    quiet();
    expect_space(GPU_LAUNCH((wrong_space<STORE_DYNAMIC>), 1, 1, 16, nullptr, (float4 *)device(8)),
                 "__stwb of byte 0 of shared array (dynamic)");
    expect_space(GPU_LAUNCH((wrong_space<STORE_STATIC>), 1, 1, 16, nullptr, (float4 *)device(8)),
                 "__stcs of byte 0 of shared array one");
    expect_space(GPU_LAUNCH((wrong_space<LOAD_DYNAMIC>), 1, 1, 16, nullptr, (float4 *)device(8)),
                 "__ldcg of byte 0 of shared array (dynamic)");
    cr_expect(GPU_LAUNCH((wrong_space<-1>), 1, 1, 16, nullptr, (float4 *)device(8)) == cudaSuccess);
    cr_expect(cudaDeviceSynchronize() == cudaSuccess);
}

/* --- functions of a whole warp ---------------------------------------------------------------------------------- */

static void add_lanes(void *const *lane)
{
    float sum = 0.0f;
    for (int i = 0; i < 32; ++i)
        sum += *static_cast<const float *>(lane[i]);
    for (int i = 0; i < 32; ++i)
        *static_cast<float *>(lane[i]) = sum;
}

static void keep_lanes(void *const *)
{
}

__global__ void sum_of_warp(float *x, int from)
{
    float v = x[threadIdx.x];
    if (static_cast<int>(threadIdx.x) >= from)
        assay_sim_warp_call(add_lanes, &v, ASSAY_SIM_HERE);
    x[threadIdx.x] = v;
}

Test(sim_misuse, function_of_a_warp_has_all_operands)
{
    quiet();
    float host[64];
    for (int order = 0; order < 3; ++order) {
        float *x = device(64);
        assay_sim_set_order(static_cast<assay_sim_order>(order), 5);
        for (int i = 0; i < 64; ++i)
            host[i] = static_cast<float>(i);
        cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice);
        cr_assert_eq(GPU_LAUNCH(sum_of_warp, 1, 64, 0, nullptr, x, 0), cudaSuccess);
        cr_assert_eq(cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
        for (int i = 0; i < 64; ++i)
            cr_assert_eq(host[i], i < 32 ? 496.0f : 1520.0f, "lane %d: %g", i, static_cast<double>(host[i]));
    }
}

Test(sim_misuse, function_of_a_warp_that_lacks_lanes)
{
    quiet();
    expect_fault(GPU_LAUNCH(sum_of_warp, 1, 24, 0, nullptr, device(32), 0));
    expect_report("absent lane: kernel sum_of_warp", "lacks lane 24, which does not exist", "");
    cudaDeviceReset();
    expect_fault(GPU_LAUNCH(sum_of_warp, 1, 32, 0, nullptr, device(32), 3));
    expect_report("absent lane: kernel sum_of_warp", "lacks lane 0, which has returned", "");
}

__global__ void two_functions(float *x)
{
    float v = 1.0f;
    assay_sim_warp_call(threadIdx.x < 5 ? keep_lanes : add_lanes, &v, ASSAY_SIM_HERE);
    x[threadIdx.x] = v;
}

Test(sim_misuse, lanes_that_call_different_functions)
{
    quiet();
    expect_fault(GPU_LAUNCH(two_functions, 1, 32, 0, nullptr, device(32)));
    expect_report("divergent warp: kernel two_functions block (0,0,0) thread (5,0,0)",
                  "thread (0,0,0) waits with it", "");
}

__global__ void function_without_a_barrier(float *x)
{
    float v = 1.0f;
    assay_sim_warp_call(add_lanes, &v, ASSAY_SIM_HERE);
    x[threadIdx.x] = v;
}

Test(sim_misuse, function_of_a_warp_in_a_plain_loop)
{
    quiet();
    expect_fault(GPU_LAUNCH_NO_BARRIER(function_without_a_barrier, 1, 32, 0, nullptr, device(32)));
    expect_report("broken promise: kernel function_without_a_barrier", "warp intrinsic", "");
}
