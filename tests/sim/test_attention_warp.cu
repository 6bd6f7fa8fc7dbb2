/* The products that the simulator computes for a warp at once have the bits of each lane's own share. */
#include "tests/support/sim.h"

#include "gpu/ops/attention_warp.cuh"

#include <math.h>
#include <string.h>

enum { N_ROWS = ATTENTION_ROWS, TILE = ATTENTION_TILE, MOST = 100, CHUNKS = 4 };

typedef struct result {
    float dots[2][N_ROWS], acc[2][N_ROWS][CHUNKS], sum[N_ROWS];
    unsigned any;
} result;

__global__ void both(result *together, result *alone, const float *x, const unsigned *bits, int64_t n,
                     int64_t n2, bool two)
{
    GPU_SHARED(float, rows, 2 * MOST * N_ROWS);
    GPU_SHARED_2D(float, columns, TILE, MOST + 1);
    GPU_SHARED(float, weight, 2 * N_ROWS * TILE);
    GPU_SHARED(unsigned, seen, TILE);
    const int lane = (int)threadIdx.x;
    for (int i = lane; i < 2 * MOST * N_ROWS; i += GPU_WARP)
        rows[i] = x[i];
    for (int i = 0; i < MOST + 1; ++i)
        columns[lane][i] = x[1000 + lane * (MOST + 1) + i];
    for (int i = lane; i < 2 * N_ROWS * TILE; i += GPU_WARP)
        weight[i] = x[300 + i];
    seen[lane] = bits[lane];
    __syncwarp();
    for (int form = 0; form < 2; ++form) {
        result *r = (form == 0 ? together : alone) + lane;
        r->any = 0;
        for (int i = 0; i < N_ROWS; ++i) {
            r->sum[i] = x[50 + i];
            for (int c = 0; c < CHUNKS; ++c)
                r->acc[0][i][c] = r->acc[1][i][c] = x[77 + i + c + lane];
        }
        const attention_dots first = {r->dots[0], rows, columns[lane], n},
                             second = {r->dots[1], rows + MOST * N_ROWS, columns[lane] + 1, n2};
        const attention_adds<CHUNKS>
            adds = {r->acc[0], seen,   weight, columns[0], MOST + 1, n, weight + N_ROWS * TILE,
                    r->sum,    &r->any},
            others = {r->acc[1], seen,   weight + N_ROWS * TILE, columns[0], MOST + 1, n2, nullptr,
                      nullptr,   nullptr};
        if (form == 0) {
            attention_warp_dots(true, &first, two ? &second : nullptr);
            attention_warp_adds<CHUNKS>(&adds, two ? &others : nullptr);
            continue;
        }
        attention_dots_lane(first);
        attention_adds_lane(adds, lane);
        if (two) {
            attention_dots_lane(second);
            attention_adds_lane(others, lane);
        }
    }
}

static void compare(int64_t n, int64_t n2, bool two, bool hidden_nan)
{
    enum { NUMBERS = 1000 + TILE * (MOST + 1) };
    static float x[NUMBERS];
    static result t[GPU_WARP], a[GPU_WARP];
    unsigned bits[TILE], state = 7 + (unsigned)(n * 31 + n2);
    float *numbers = nullptr;
    unsigned *mask = nullptr;
    result *together = nullptr, *alone = nullptr;
    for (int i = 0; i < NUMBERS; ++i) {
        state = state * 1664525u + 1013904223u;
        x[i] = ldexpf(static_cast<float>(static_cast<int>(state)), -31 - static_cast<int>(state >> 3 & 7u));
    }
    for (int i = 0; i < TILE; ++i) {
        state = state * 1664525u + 1013904223u;
        bits[i] = i == 5 ? 0u : state >> 20 & 15u;
        if (bits[i] == 0 && hidden_nan)
            for (int k = 0; k < MOST + 1; ++k)
                x[1000 + i * (MOST + 1) + k] = NAN;
    }
    cr_assert(cudaMalloc(&numbers, sizeof x) == cudaSuccess &&
              cudaMalloc(&mask, sizeof bits) == cudaSuccess &&
              cudaMalloc(&together, sizeof t) == cudaSuccess && cudaMalloc(&alone, sizeof a) == cudaSuccess);
    cudaMemcpy(numbers, x, sizeof x, cudaMemcpyHostToDevice);
    cudaMemcpy(mask, bits, sizeof bits, cudaMemcpyHostToDevice);
    cudaMemset(together, 0, sizeof t);
    cudaMemset(alone, 0, sizeof a);
    cr_assert_eq(GPU_LAUNCH(both, 1, GPU_WARP, 0, nullptr, together, alone, numbers, mask, n, n2, two),
                 cudaSuccess);
    cr_assert_eq(cudaMemcpy(t, together, sizeof t, cudaMemcpyDeviceToHost), cudaSuccess);
    cr_assert_eq(cudaMemcpy(a, alone, sizeof a, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int l = 0; l < GPU_WARP; ++l) {
        cr_assert_eq(memcmp(&t[l], &a[l], sizeof t[l]), 0, "n %d, %d: lane %d", (int)n, (int)n2, l);
        for (int r = 0; r < N_ROWS; ++r)
            cr_assert(!hidden_nan || (isfinite(t[l].acc[0][r][0]) && isfinite(t[l].sum[r])),
                      "lane %d, row %d", l, r);
    }
    cudaFree(numbers);
    cudaFree(mask);
    cudaFree(together);
    cudaFree(alone);
}

Test(sim_attention_warp, bits_of_the_lanes)
{
    static const int64_t sizes[][2] = {{64, 64}, {1, 3}, {31, 33}, {32, 96}, {100, 7}, {80, 99}, {0, 5}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i)
        for (int k = 0; k < 4; ++k)
            compare(sizes[i][0], sizes[i][1], (k & 1) != 0, (k & 2) != 0);
}
