/* What the simulator computes for a whole warp at once has the bits of the intrinsics that a device executes. */
#include "tests/support/sim.h"

#include "gpu/device.cuh"
#include "gpu/ops/attention_mma.cuh"
#include "gpu/ops/grouped.cuh"
#include "gpu/ops/router_topk.cuh"

#include <string.h>

template <int LANES, typename T> __global__ void sums(T *together, T *shuffled, const T *x)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    together[i] = gpu_lanes_sum<LANES>(x[i]);
    shuffled[i] = gpu_lanes_sum_shuffled<LANES>(x[i]);
}

enum { N = 96 * 50 };

template <int LANES, typename T> static void compare(const T *x)
{
    T *a = nullptr, *b = nullptr, *from = nullptr;
    static T together[N], shuffled[N];
    cr_assert(cudaMalloc(&a, sizeof together) == cudaSuccess &&
              cudaMalloc(&b, sizeof together) == cudaSuccess &&
              cudaMalloc(&from, sizeof together) == cudaSuccess);
    cr_assert_eq(cudaMemcpy(from, x, sizeof together, cudaMemcpyHostToDevice), cudaSuccess);
    cr_assert_eq(GPU_LAUNCH((sums<LANES, T>), 50, 96, 0, nullptr, a, b, from), cudaSuccess);
    cr_assert_eq(cudaMemcpy(together, a, sizeof together, cudaMemcpyDeviceToHost), cudaSuccess);
    cr_assert_eq(cudaMemcpy(shuffled, b, sizeof together, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < N; ++i)
        cr_assert_eq(memcmp(&together[i], &shuffled[i], sizeof(T)), 0, "%d lanes, element %d: %a and %a",
                     LANES, i, static_cast<double>(together[i]), static_cast<double>(shuffled[i]));
    cudaFree(a);
    cudaFree(b);
    cudaFree(from);
}

Test(sim_lanes, sums_of_lanes)
{
    static float x[N];
    unsigned state = 1;
    for (int i = 0; i < N; ++i) {
        state = state * 1664525u + 1013904223u;
        const float sign = (state >> 30 & 1u) != 0 ? -1.0f : 1.0f;
        x[i] = sign * ldexpf(1.0f + static_cast<float>(state & 0xffffu) / 65536.0f,
                             static_cast<int>(state >> 16 & 31u) - 16);
    }
    x[40] = INFINITY;
    x[100] = -INFINITY;
    x[101] = INFINITY;
    x[200] = -0.0f;
    compare<4>(x);
    compare<8>(x);
    compare<32>(x);
    static double wide[N];
    static long long whole[N];
    for (int i = 0; i < N; ++i) {
        wide[i] = static_cast<double>(x[i]) / 3.0;
        whole[i] = static_cast<long long>(i) * i * 1000003 - 7;
    }
    compare<32>(wide);
    compare<32>(whole);
}

/* --- results of matrix units and rows of experts ------------------------------------------------------------------ */

__global__ void quads(float *together, float *shuffled, const float *x)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    together[2 * i] = attention_quad_max(x[i]);
    shuffled[2 * i] = attention_quad_max_shuffled(x[i]);
    together[2 * i + 1] = attention_quad_sum(x[i]);
    shuffled[2 * i + 1] = attention_quad_sum_shuffled(x[i]);
}

__global__ void fours(unsigned *together, unsigned *shuffled)
{
    const unsigned i = threadIdx.x;
    unsigned a[4], b[4];
    for (unsigned j = 0; j < 4; ++j)
        a[j] = b[j] = i * 1000003u + j * 7919u;
    mma_turn_fours(a, static_cast<int>(i % 32));
    mma_turn_fours_shuffled(b, static_cast<int>(i % 32));
    for (unsigned j = 0; j < 4; ++j) {
        together[4 * i + j] = a[j];
        shuffled[4 * i + j] = b[j];
    }
}

template <int TILE>
__global__ void searches(grouped_range *together, grouped_range *searched, grouped_rows all)
{
    const grouped_range a = grouped_rows_of_tile<TILE>(all, static_cast<int>(blockIdx.x)),
                        b = grouped_rows_of_tile_searched<TILE>(all, static_cast<int>(blockIdx.x));
    together[blockIdx.x * 32 + threadIdx.x] = a;
    searched[blockIdx.x * 32 + threadIdx.x] = b;
}

/* What a lane knows behind the choice: its bits, and the ranks that are left. */
typedef struct taken {
    unsigned long long chosen;
    router_rank left[4];
} taken;

template <int CHUNKS> __global__ void takes(taken *together, taken *shuffled, const float *key, int experts)
{
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    taken a = {}, b = {};
    for (int i = 0; i < CHUNKS; ++i) {
        const int e = lane + 32 * i;
        a.left[i] = b.left[i] = e < experts ? router_rank_of(key[warp * 128 + e], e) : 0;
    }
    a.chosen = router_warp_take<CHUNKS>(a.left, 1 + 3 * warp);
    b.chosen = router_warp_take_shuffled<CHUNKS>(b.left, 1 + 3 * warp);
    together[threadIdx.x] = a;
    shuffled[threadIdx.x] = b;
}

/* Runs launch(a, b) and compares what it leaves in two arrays of n. */
template <typename T, typename LAUNCH> static void same_bits(size_t n, LAUNCH launch)
{
    T *a = nullptr, *b = nullptr, *got = new T[2 * n];
    cr_assert(cudaMalloc(&a, n * sizeof *a) == cudaSuccess && cudaMalloc(&b, n * sizeof *b) == cudaSuccess);
    cr_assert_eq(launch(a, b), cudaSuccess);
    cr_assert_eq(cudaMemcpy(got, a, n * sizeof *a, cudaMemcpyDeviceToHost), cudaSuccess);
    cr_assert_eq(cudaMemcpy(got + n, b, n * sizeof *b, cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t i = 0; i < n; ++i)
        cr_assert_eq(memcmp(&got[i], &got[n + i], sizeof(T)), 0, "element %zu of %zu", i, n);
    delete[] got;
    cudaFree(b);
    cudaFree(a);
}

Test(sim_lanes, quads_of_a_result)
{
    static float x[96];
    float *from = nullptr;
    for (int i = 0; i < 96; ++i)
        x[i] = static_cast<float>((i * 37 % 19 - 9)) / 7.0f;
    x[5] = NAN;
    x[9] = -INFINITY;
    x[40] = INFINITY;
    x[41] = -INFINITY;
    x[64] = -0.0f;
    x[65] = 0.0f;
    cr_assert_eq(cudaMalloc(&from, sizeof x), cudaSuccess);
    cr_assert_eq(cudaMemcpy(from, x, sizeof x, cudaMemcpyHostToDevice), cudaSuccess);
    same_bits<float>(2 * 96,
                     [&](float *a, float *b) { return GPU_LAUNCH(quads, 1, 96, 0, nullptr, a, b, from); });
    same_bits<unsigned>(4 * 96,
                        [&](unsigned *a, unsigned *b) { return GPU_LAUNCH(fours, 1, 96, 0, nullptr, a, b); });
    cudaFree(from);
}

/* Keys that tie, infinities, NaN; more to choose than there are experts. */
Test(sim_lanes, choices_of_experts)
{
    static float x[3 * 128];
    float *from = nullptr;
    for (int i = 0; i < 3 * 128; ++i)
        x[i] = static_cast<float>(i * 37 % 23 - 11) / 8.0f;
    x[3] = x[140] = NAN;
    x[7] = x[9] = -INFINITY;
    x[130] = x[133] = INFINITY;
    x[300] = -0.0f;
    x[301] = 0.0f;
    cr_assert_eq(cudaMalloc(&from, sizeof x), cudaSuccess);
    cr_assert_eq(cudaMemcpy(from, x, sizeof x, cudaMemcpyHostToDevice), cudaSuccess);
    for (const int experts : {1, 5, 32}) /* warps choose 1, 4 and 7 */
        same_bits<taken>(96, [&](taken *a, taken *b) {
            return GPU_LAUNCH(takes<1>, 1, 96, 0, nullptr, a, b, from, experts);
        });
    for (const int experts : {33, 100, 128})
        same_bits<taken>(96, [&](taken *a, taken *b) {
            return GPU_LAUNCH(takes<4>, 1, 96, 0, nullptr, a, b, from, experts);
        });
    cudaFree(from);
}

/* Counts of experts that fill, cross and miss tiles; that are none; more rows than there are, and rows that nobody has. */
Test(sim_lanes, rows_of_experts_by_tiles)
{
    static const struct {
        int experts, rows;
        int64_t count[40];
    } cases[] = {{1, 0, {0}},
                 {1, 200, {200}},
                 {5, 150, {64, 0, 1, 65, 20}},
                 {5, 190, {64, 0, 1, 65, 20}},
                 {3, 100, {90, 90, 5}},
                 {4, 64, {0, 0, 0, 0}},
                 {40, 333, {1, 0, 3, 0, 17, 64, 2, 0, 0, 9, 0, 0,  0,  0, 33, 1, 1, 1, 0,  0,
                            0, 0, 0, 0, 8,  0,  0, 0, 0, 0, 0, 40, 63, 0, 2,  0, 0, 5, 66, 7}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        int64_t *count = nullptr;
        cr_assert_eq(cudaMalloc(&count, sizeof cases[i].count), cudaSuccess);
        cr_assert_eq(cudaMemcpy(count, cases[i].count, sizeof cases[i].count, cudaMemcpyHostToDevice),
                     cudaSuccess);
        const grouped_rows all = {count, cases[i].experts, cases[i].rows};
        const unsigned blocks = grouped_most_tiles(all, 64) + 2;
        same_bits<grouped_range>(32 * blocks, [&](grouped_range *a, grouped_range *b) {
            return GPU_LAUNCH(searches<64>, blocks, 32, 0, nullptr, a, b, all);
        });
        cudaFree(count);
    }
}

/* The warp that runs first waits for one that has not begun, in a loop of intrinsics of its own lanes. */
__global__ void waits_for_a_later_warp(volatile int *flag, int *rounds, int waits)
{
    if (static_cast<int>(threadIdx.x) / 32 != waits) {
        *flag = 1;
        return;
    }
    int n = 0;
    while (__shfl_sync(0xffffffffu, *flag, 0) == 0)
        ++n;
    rounds[threadIdx.x % 32] = n;
}

Test(sim_lanes, a_warp_that_goes_on_lets_the_others_run)
{
    int *flag = nullptr, *rounds = nullptr, found[32];
    cr_assert(cudaMalloc(&flag, sizeof *flag) == cudaSuccess &&
              cudaMalloc(&rounds, sizeof found) == cudaSuccess);
    for (int waits = 0; waits < 2; ++waits) { /* the first warp in either order of threads */
        assay_sim_set_order(waits == 0 ? ASSAY_SIM_ORDER_FORWARD : ASSAY_SIM_ORDER_REVERSE, 0);
        cr_assert_eq(cudaMemset(flag, 0, sizeof *flag), cudaSuccess);
        cr_assert_eq(GPU_LAUNCH(waits_for_a_later_warp, 1, 64, 0, nullptr, flag, rounds, waits), cudaSuccess);
        cr_assert_eq(cudaMemcpy(found, rounds, sizeof found, cudaMemcpyDeviceToHost), cudaSuccess);
        for (int l = 0; l < 32; ++l) {
            cr_expect_eq(found[l], found[0], "lanes leave a loop of theirs together");
            cr_expect_lt(found[l], 1000);
        }
    }
    assay_sim_set_order(ASSAY_SIM_ORDER_FORWARD, 0);
    cudaFree(rounds);
    cudaFree(flag);
}
