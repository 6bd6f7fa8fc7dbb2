/* Kernels that are right give right results, in every order of threads and blocks. */
#include "tests/support/sim.h"

#include "gpu/launch.cuh"

#include <vector>

template <class T> static T *device(size_t n)
{
    T *p = nullptr;
    cr_assert(cudaMalloc(&p, n * sizeof(T)) == cudaSuccess);
    return p;
}

template <class T> static std::vector<T> fetch(const T *p, size_t n)
{
    std::vector<T> h(n);
    cr_assert(cudaMemcpy(h.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return h;
}

static void every_order(void (*body)(void *), void *arg, const void *out, size_t bytes)
{
    cr_expect(assay_sim_compare_orders(body, arg, out, bytes, 4) == 0);
}

/* --- indices ------------------------------------------------------------------------------------------------ */

__global__ void indices(uint3 *out)
{
    const unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned n = blockDim.x * blockDim.y * blockDim.z;
    out[2 * (b * n + t)] = threadIdx;
    out[2 * (b * n + t) + 1] = blockIdx;
}

Test(sim_kernels, indices_cover_grid_and_block)
{
    const dim3 grid(3, 2, 2), block(5, 3, 2);
    const size_t n = 12 * 30;
    for (int promised = 0; promised < 2; ++promised) {
        for (int order = 0; order < 3; ++order) {
            assay_sim_set_order(static_cast<assay_sim_order>(order), 7);
            uint3 *out = device<uint3>(2 * n);
            if (promised) {
                cr_assert(GPU_LAUNCH_NO_BARRIER(indices, grid, block, 0, nullptr, out) == cudaSuccess);
            } else {
                cr_assert(GPU_LAUNCH(indices, grid, block, 0, nullptr, out) == cudaSuccess);
            }
            const std::vector<uint3> h = fetch(out, 2 * n);
            for (unsigned i = 0; i < n; ++i) {
                const unsigned t = i % 30, b = i / 30;
                const uint3 a = h[2 * i], c = h[2 * i + 1];
                cr_assert(a.x == t % 5 && a.y == t / 5 % 3 && a.z == t / 15);
                cr_assert(c.x == b % 3 && c.y == b / 3 % 2 && c.z == b / 6);
            }
            cudaFree(out);
        }
    }
}

/* --- the block barrier -------------------------------------------------------------------------------------- */

__global__ void block_sums(float *out, const float *x, int n)
{
    GPU_SHARED(float, part, 256);
    const int t = static_cast<int>(threadIdx.x);
    part[t] = t < n ? x[blockIdx.x * static_cast<unsigned>(n) + threadIdx.x] : 0.0f;
    __syncthreads();
    for (int half = static_cast<int>(blockDim.x) / 2; half > 0; half /= 2) {
        if (t < half)
            part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0)
        out[blockIdx.x] = part[0];
}

struct sums_case {
    float *out, *x;
};

static void run_sums(void *arg)
{
    const sums_case *c = static_cast<const sums_case *>(arg);
    cr_assert(GPU_LAUNCH(block_sums, 9, 256, 0, nullptr, c->out, c->x, 250) == cudaSuccess);
}

Test(sim_kernels, tree_reduction_in_every_order_and_on_several_threads)
{
    sums_case c = {device<float>(9), device<float>(9 * 250)};
    std::vector<float> x(9 * 250);
    for (size_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<float>(i % 17);
    cudaMemcpy(c.x, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice);
    every_order(run_sums, &c, c.out, 9 * sizeof(float));
    assay_sim_set_threads(3);
    every_order(run_sums, &c, c.out, 9 * sizeof(float));
    const std::vector<float> h = fetch(c.out, 9);
    for (size_t b = 0; b < 9; ++b) {
        float want = 0.0f;
        for (size_t i = 0; i < 250; ++i)
            want += x[b * 250 + i];
        cr_expect(h[b] == want);
    }
}

__global__ void counts(int *out)
{
    const int t = static_cast<int>(threadIdx.x);
    const int a = __syncthreads_count(t % 3 == 0);
    const int b = __syncthreads_and(t < 1000);
    const int c = __syncthreads_or(t == 5);
    const int d = __syncthreads_or(0);
    if (t == 40)
        out[0] = a;
    if (t == 41)
        out[1] = b;
    if (t == 42)
        out[2] = c;
    if (t == 43)
        out[3] = d;
}

Test(sim_kernels, block_votes)
{
    int *out = device<int>(4);
    cr_assert(GPU_LAUNCH(counts, 1, 100, 0, nullptr, out) == cudaSuccess);
    const std::vector<int> h = fetch(out, 4);
    cr_expect(h[0] == 34 && h[1] == 1 && h[2] == 1 && h[3] == 0);
}

__global__ void static_shared(int *out)
{
    __shared__ int plain[64];
    GPU_SHARED_2D(int, square, 8, 8);
    GPU_DYNAMIC_SHARED(int, dynamic);
    const unsigned t = threadIdx.x;
    plain[t] = static_cast<int>(t);
    square[t / 8][t % 8] = static_cast<int>(2 * t);
    dynamic[t] = static_cast<int>(3 * t);
    __syncthreads();
    out[t] = plain[63 - t] + square[(63 - t) / 8][(63 - t) % 8] + dynamic[63 - t];
}

Test(sim_kernels, shared_arrays_of_all_kinds)
{
    int *out = device<int>(64);
    cr_assert(GPU_LAUNCH(static_shared, 1, 64, 64 * sizeof(int), nullptr, out) == cudaSuccess);
    const std::vector<int> h = fetch(out, 64);
    for (int t = 0; t < 64; ++t)
        cr_expect(h[static_cast<size_t>(t)] == 6 * (63 - t));
}

/* --- warps -------------------------------------------------------------------------------------------------- */

template <class T> __global__ void shuffles(T *out, int width)
{
    const int t = static_cast<int>(threadIdx.x);
    const T v = static_cast<T>(t + 1);
    T *mine = out + 4 * t;
    mine[0] = __shfl_sync(0xffffffffu, v, t + 3, width);
    mine[1] = __shfl_up_sync(0xffffffffu, v, 3, width);
    mine[2] = __shfl_down_sync(0xffffffffu, v, 3, width);
    mine[3] = __shfl_xor_sync(0xffffffffu, v, 5, width);
}

template <class T> static void check_shuffles()
{
    T *out = device<T>(4 * 64);
    for (int width = 1; width <= 32; width *= 2) {
        cr_assert(GPU_LAUNCH((shuffles<T>), 1, 64, 0, nullptr, out, width) == cudaSuccess);
        const std::vector<T> h = fetch(out, 4 * 64);
        for (int t = 0; t < 64; ++t) {
            const int base = t / width * width, last = base + width - 1, lane = t % 32, warp = t - lane;
            const int idx = base + (t + 3) % width;
            const int up = t - 3 < base ? t : t - 3, down = t + 3 > last ? t : t + 3;
            const int flip = warp + (lane ^ 5), x = flip > last ? t : flip;
            const T *mine = &h[static_cast<size_t>(4 * t)];
            cr_assert(mine[0] == static_cast<T>(idx + 1) && mine[1] == static_cast<T>(up + 1) &&
                          mine[2] == static_cast<T>(down + 1) && mine[3] == static_cast<T>(x + 1),
                      "width %d thread %d", width, t);
        }
    }
}

Test(sim_kernels, shuffles_of_every_width_and_type)
{
    check_shuffles<int>();
    check_shuffles<unsigned>();
    check_shuffles<float>();
    check_shuffles<double>();
    check_shuffles<long long>();
}

__global__ void votes(unsigned *out)
{
    const unsigned t = threadIdx.x;
    const unsigned mask = t < 16 ? 0x0000ffffu : 0xffff0000u;
    unsigned *mine = out + 8 * t;
    if (t < 16) { /* two halves of a warp, each with its own mask, at their own pace */
        mine[0] = __ballot_sync(mask, t & 1);
    } else {
        mine[0] = __ballot_sync(mask, t % 3 == 0);
    }
    mine[1] = static_cast<unsigned>(__any_sync(mask, t == 3));
    mine[2] = static_cast<unsigned>(__all_sync(mask, t >= 16));
    mine[3] = __match_any_sync(0xffffffffu, t % 4);
    mine[4] = __reduce_add_sync(0xffffffffu, t);
    mine[5] = static_cast<unsigned>(__reduce_min_sync(0xffffffffu, static_cast<int>(t) - 20));
    mine[6] = __reduce_max_sync(0xffffffffu, t);
    __syncwarp();
    mine[7] = __activemask();
}

Test(sim_kernels, votes_and_warp_reductions)
{
    unsigned *out = device<unsigned>(8 * 32);
    cr_assert(GPU_LAUNCH(votes, 1, 32, 0, nullptr, out) == cudaSuccess);
    const std::vector<unsigned> h = fetch(out, 8 * 32);
    for (unsigned t = 0; t < 32; ++t) {
        const unsigned *m = &h[8 * t];
        cr_expect(m[0] == (t < 16 ? 0x0000aaaau : 0x49240000u), "thread %u: %08x", t, m[0]);
        cr_expect(m[1] == (t < 16) && m[2] == (t >= 16));
        cr_expect(m[3] == 0x11111111u << t % 4);
        cr_expect(m[4] == 496 && m[5] == static_cast<unsigned>(-20) && m[6] == 31 && m[7] == 1u << t);
    }
}

__global__ void partial_warp(int *out)
{
    int v = static_cast<int>(threadIdx.x);
    __syncwarp();
    const unsigned all = __ballot_sync(0xffffffffu, 1);
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    out[threadIdx.x] = v + static_cast<int>(all);
}

Test(sim_kernels, a_block_smaller_than_a_warp)
{
    int *out = device<int>(8);
    cr_assert(GPU_LAUNCH(partial_warp, 1, 8, 0, nullptr, out) == cudaSuccess);
    const std::vector<int> h = fetch(out, 8);
    for (int t = 0; t < 8; ++t)
        cr_expect(h[static_cast<size_t>(t)] == t + (t ^ 1) + 255);
}

/* --- threads that have returned ------------------------------------------------------------------------------ */

__global__ void tails(int *out, int n)
{
    GPU_SHARED(int, part, 128);
    const int t = static_cast<int>(threadIdx.x);
    if (t >= n)
        return; /* legal since Volta: barriers and masks wait for the others */
    part[t] = t;
    __syncthreads();
    int s = part[n - 1 - t];
    const int count = __syncthreads_count(t % 2), all = __syncthreads_and(1),
              some = __syncthreads_or(t == n - 1);
    s += 1000 * count + 100000 * all + 200000 * some;
    const unsigned ballot = __ballot_sync(0xffffffffu, 1);
    out[2 * t] = s;
    out[2 * t + 1] = static_cast<int>(ballot);
    __syncwarp();
}

struct tails_case {
    int *out, n;
};

static void run_tails(void *arg)
{
    const tails_case *c = static_cast<const tails_case *>(arg);
    cr_assert(GPU_LAUNCH(tails, 2, 128, 0, nullptr, c->out, c->n) == cudaSuccess);
}

Test(sim_kernels, threads_that_have_returned_are_not_waited_for)
{
    static const int sizes[] = {1, 31, 32, 33, 100, 127, 128};
    for (int n : sizes) {
        tails_case c = {device<int>(256), n};
        every_order(run_tails, &c, c.out, 256 * sizeof(int));
        const std::vector<int> h = fetch(c.out, 256);
        for (int t = 0; t < n; ++t) {
            const int live = n - t / 32 * 32;
            const unsigned ballot = live >= 32 ? 0xffffffffu : (1u << live) - 1u;
            cr_expect(h[static_cast<size_t>(2 * t)] == n - 1 - t + 1000 * (n / 2) + 300000, "n %d, thread %d",
                      n, t);
            cr_expect(static_cast<unsigned>(h[static_cast<size_t>(2 * t + 1)]) == ballot, "n %d, thread %d",
                      n, t);
        }
        cudaFree(c.out);
    }
}

/* --- atomics and conversions -------------------------------------------------------------------------------- */

__global__ void atomics(int *i, unsigned *u, unsigned long long *l, float *f, double *d, int *last)
{
    const int t = static_cast<int>(threadIdx.x + blockIdx.x * blockDim.x);
    atomicAdd(i, 1);
    atomicMax(i + 1, t);
    atomicMin(i + 2, t);
    atomicSub(i + 3, 2);
    atomicAdd(u, 3u);
    atomicOr(u + 1, 1u << t % 32);
    atomicXor(u + 2, static_cast<unsigned>(t));
    atomicInc(u + 3, 9u);
    atomicAdd(l, 5);
    atomicAdd(f, 0.5f);
    atomicAdd(d, 0.25);
    if (atomicCAS(last, 0, t + 1) == 0)
        atomicExch(last + 1, t + 1);
}

Test(sim_kernels, atomics_from_many_blocks_and_threads)
{
    int *i = device<int>(6);
    unsigned *u = device<unsigned>(4);
    unsigned long long *l = device<unsigned long long>(1);
    float *f = device<float>(1);
    double *d = device<double>(1);
    const int n = 64 * 128;
    assay_sim_set_threads(4);
    cudaMemset(i, 0, 6 * sizeof(int));
    cudaMemset(u, 0, 4 * sizeof(unsigned));
    cudaMemset(l, 0, sizeof *l);
    cudaMemset(f, 0, sizeof *f);
    cudaMemset(d, 0, sizeof *d);
    cr_assert(GPU_LAUNCH_NO_BARRIER(atomics, 128, 64, 0, nullptr, i, u, l, f, d, i + 4) == cudaSuccess);
    const std::vector<int> hi = fetch(i, 6);
    const std::vector<unsigned> hu = fetch(u, 4);
    cr_expect(hi[0] == n && hi[1] == n - 1 && hi[2] == 0 && hi[3] == -2 * n);
    cr_expect(hi[4] != 0 && hi[4] == hi[5]);
    unsigned x = 0;
    for (int t = 0; t < n; ++t)
        x ^= static_cast<unsigned>(t);
    cr_expect(hu[0] == 3u * n && hu[1] == 0xffffffffu && hu[2] == x &&
              hu[3] == static_cast<unsigned>(n) % 10u);
    cr_expect(fetch(l, 1)[0] == 5ull * n && fetch(f, 1)[0] == 0.5f * n && fetch(d, 1)[0] == 0.25 * n);
}

__global__ void intrinsics(int *out, const float4 *x)
{
    const float4 v = __ldg(x);
    int k = 0;
    out[k++] =
        __clz(1) == 31 && __clz(0) == 32 && __clzll(1) == 63 && __popc(0xf0u) == 4 && __popcll(~0ull) == 64;
    out[k++] = __ffs(8) == 4 && __ffs(0) == 0 && __brev(1u) == 0x80000000u && __umulhi(1u << 31, 4u) == 2u;
    out[k++] =
        __byte_perm(0x03020100u, 0x07060504u, 0x7531u) == 0x07050301u && __funnelshift_l(1u, 2u, 31) == 0u;
    out[k++] = __float_as_int(1.0f) == 0x3f800000 && __int_as_float(0x40000000) == 2.0f;
    out[k++] = __float2int_rn(2.5f) == 2 && __float2int_rz(-2.9f) == -2 &&
               __float2int_rn(3e9f) == 2147483647 && __float2int_rz(__int_as_float(0x7fc00000)) == 0;
    out[k++] = min(3, 4) == 3 && max(2.0f, 1.0f) == 2.0f && min(1.5, 2.5f) == 1.5 && max(1u, 2) == 2u;
    out[k++] = rsqrtf(4.0f) == 0.5f && __frcp_rn(8.0f) == 0.125f && __fsqrt_rn(9.0f) == 3.0f &&
               __expf(0.0f) == 1.0f && __logf(1.0f) == 0.0f && __fdividef(1.0f, 4.0f) == 0.25f &&
               __saturatef(7.0f) == 1.0f;
    out[k++] = v.x == 1.0f && v.y == 2.0f && v.z == 3.0f && v.w == 4.0f;
    out[k++] = fmaf(2.0f, 3.0f, 4.0f) == 10.0f && __fmaf_rn(1.0f, 1.0f, 1.0f) == 2.0f && warpSize == 32;
}

Test(sim_kernels, intrinsics_that_need_no_other_thread)
{
    int *out = device<int>(9);
    float4 *x = device<float4>(1);
    const float4 v = make_float4(1, 2, 3, 4);
    cudaMemcpy(x, &v, sizeof v, cudaMemcpyHostToDevice);
    cr_assert(GPU_LAUNCH(intrinsics, 1, 1, 0, nullptr, out, x) == cudaSuccess);
    const std::vector<int> h = fetch(out, 9);
    for (size_t k = 0; k < 9; ++k)
        cr_expect(h[k] == 1, "group %zu", k);
}

/* --- launches ----------------------------------------------------------------------------------------------- */

__global__ void nothing()
{
}

__global__ void large_dynamic(int *out)
{
    GPU_DYNAMIC_SHARED(int, a);
    a[20000] = 5;
    out[0] = a[20000];
}

Test(sim_kernels, launch_limits_are_cudas)
{
    quiet();
    int *out = device<int>(1);
    cr_expect(GPU_LAUNCH(nothing, 0, 32, 0, nullptr) == cudaErrorInvalidConfiguration);
    cr_expect(GPU_LAUNCH(nothing, 1, 1025, 0, nullptr) == cudaErrorInvalidConfiguration);
    cr_expect(GPU_LAUNCH(nothing, dim3(1, 65536), 1, 0, nullptr) == cudaErrorInvalidConfiguration);
    cr_expect(GPU_LAUNCH(nothing, 1, dim3(1, 1, 65), 0, nullptr) == cudaErrorInvalidConfiguration);
    cr_expect(cudaGetLastError() == cudaSuccess, "the launch's error was returned, not left behind");
    cr_expect(GPU_LAUNCH(large_dynamic, 1, 1, 100000, nullptr, out) == cudaErrorInvalidValue);
    cr_expect(cudaFuncSetAttribute(large_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000) ==
              cudaSuccess);
    cr_expect(GPU_LAUNCH(large_dynamic, 1, 1, 100000, nullptr, out) == cudaSuccess);
    cr_expect(fetch(out, 1)[0] == 5);
    cr_expect(cudaFuncSetAttribute(large_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 232449) ==
              cudaErrorInvalidValue);
}

__global__ void keep_argument(int *out, int v)
{
    out[0] = v;
}

Test(sim_kernels, arguments_are_copied_at_the_launch)
{
    int *out = device<int>(1);
    int v = 3;
    cr_assert(GPU_LAUNCH(keep_argument, 1, 1, 0, nullptr, out, v) == cudaSuccess);
    v = 4;
    cr_expect(fetch(out, 1)[0] == 3);
}

struct alignas(16) pair16 {
    double a;
    int b, c;
};

__global__ void wide_shuffles(float4 *out, pair16 *pairs)
{
    const float t = static_cast<float>(threadIdx.x);
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, make_float4(t, 10.0f * t, 20.0f * t, 30.0f * t), 3);
    const pair16 mine = {static_cast<double>(t), static_cast<int>(threadIdx.x), -1};
    pairs[threadIdx.x] = __shfl_sync(0xffffffffu, mine, 5);
}

Test(sim_kernels, shuffles_of_sixteen_bytes)
{
    float4 *out = device<float4>(32);
    pair16 *pairs = device<pair16>(32);
    cr_assert(GPU_LAUNCH(wide_shuffles, 1, 32, 0, nullptr, out, pairs) == cudaSuccess);
    const std::vector<float4> h = fetch(out, 32);
    const std::vector<pair16> p = fetch(pairs, 32);
    for (unsigned i = 0; i < 32; ++i) {
        const float t = static_cast<float>(i ^ 3u);
        cr_expect(h[i].x == t && h[i].y == 10.0f * t && h[i].z == 20.0f * t && h[i].w == 30.0f * t);
        cr_expect(p[i].a == 5.0 && p[i].b == 5 && p[i].c == -1);
    }
}

__global__ void wait_politely(volatile int *flag, int *out)
{
    if (threadIdx.x == 0) {
        while (flag[0] == 0)
            __nanosleep(20);
        out[0] = flag[0];
    } else {
        flag[0] = 5;
    }
}

Test(sim_kernels, a_loop_that_waits_with_nanosleep_lets_the_other_threads_run)
{
    int *flag = device<int>(1), *out = device<int>(1);
    cr_assert(cudaMemset(flag, 0, sizeof *flag) == cudaSuccess);
    cr_assert(GPU_LAUNCH(wait_politely, 1, 2, 0, nullptr, flag, out) == cudaSuccess);
    cr_expect(fetch(out, 1)[0] == 5);
}
