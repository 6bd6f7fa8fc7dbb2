/* Products of a warpgroup whose first operand is in registers (wgmma_round, gpu/wgmma.cuh): their numbers in every order of threads, what
 * is reported, and how many registers warpgroups may ask for. */
#include "tests/support/sim.h"

#include "gpu/wgmma.cuh"

#include <vector>

enum factor_use {
    NO_MISUSE,
    WRITTEN_UNDER_PRODUCT,
    WRITTEN_WITHOUT_FENCE,
    TILE_IN_ONE_WARP,
};

/* c [64][8 NT] = round(a) B + round(a) B of other columns of a, a [64][128] in registers, B a tile of 64 rows of terms (columns) or of
 * 8 NT rows. */
template <bool B_COLUMNS, int NT>
__global__ void products(float *c, const float *a, const bf16 *b, factor_use how)
{
    GPU_DYNAMIC_SHARED(unsigned char, shared);
    bf16 *b_tile = wgmma_tiles(shared), *a_tile = b_tile + 2 * WGMMA_TILE;
    const int thread = (int)threadIdx.x;
    for (int i = thread; i < NT / 8 * WGMMA_TILE; i += WGMMA_THREADS)
        b_tile[i] = b[i];
    for (int i = thread; i < WGMMA_TILE; i += WGMMA_THREADS)
        a_tile[i] = b[0];
    proxy_fence();
    __syncthreads();
    float wide[16][4], sum[NT][4];
    for (int j = 0; j < 16; ++j)
        for (int e = 0; e < 4; ++e)
            wide[j][e] = a[wgmma_row(thread, e) * 128 + wgmma_column(thread, j, e)];
    unsigned rows[4][4];
    wgmma_round(rows, wide, 0);
    wgmma_fence();
    if (how == TILE_IN_ONE_WARP && thread < GPU_WARP)
        wgmma_multiply<false, B_COLUMNS>(sum, a_tile, b_tile, false);
    else
        wgmma_multiply<B_COLUMNS>(sum, rows, b_tile, false);
    wgmma_commit();
    if (how == WRITTEN_UNDER_PRODUCT)
        rows[3][3] ^= 1;
    wgmma_wait<0>(sum);
    wgmma_hold(rows);
    wgmma_round(rows, wide, 64);
    if (how != WRITTEN_WITHOUT_FENCE)
        wgmma_fence();
    wgmma_multiply<B_COLUMNS>(sum, rows, b_tile, true);
    wgmma_commit();
    wgmma_wait<0>(sum);
    for (int j = 0; j < NT; ++j)
        for (int e = 0; e < 4; ++e)
            c[wgmma_row(thread, e) * 8 * NT + wgmma_column(thread, j, e)] = sum[j][e];
}

enum { SHARED = WGMMA_TILE_ALIGN - 16 + 3 * WGMMA_TILE * 2 };

struct result {
    cudaError_t error;
    std::vector<float> a, b, c; /* b: the number of term k and row j of the operand at [k][j] */
};

template <class T> static T *device(const std::vector<T> &from)
{
    T *p = nullptr;
    cr_assert(cudaMalloc(&p, from.size() * sizeof(T)) == cudaSuccess);
    cr_assert(cudaMemcpy(p, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
    return p;
}

static float narrow(float v)
{
    return __bfloat162float(__float2bfloat16_rn(v));
}

template <bool B_COLUMNS, int NT> static result run(factor_use how)
{
    const size_t n = 8 * NT;
    result r = {cudaSuccess, std::vector<float>(64 * 128), std::vector<float>(64 * n),
                std::vector<float>(64 * n)};
    std::vector<bf16> tile(64 * n);
    unsigned drawn = 7;
    auto draw = [&] {
        drawn = drawn * 1664525u + 1013904223u;
        return (static_cast<float>(drawn >> 8) / 8388608.0f - 1.0f) /
               static_cast<float>(1u << (drawn >> 4 & 7u));
    };
    for (float &v : r.a)
        v = draw();
    for (size_t k = 0; k < 64; ++k) {
        for (size_t j = 0; j < n; ++j) {
            r.b[k * n + j] = narrow(draw());
            bf16 *at = B_COLUMNS
                           ? mma_chunk<64>(tile.data() + j / 64 * WGMMA_TILE, static_cast<int>(k),
                                           static_cast<int>(j % 64 / 8)) +
                                 j % 8
                           : mma_chunk<64>(tile.data(), static_cast<int>(j), static_cast<int>(k / 8)) + k % 8;
            *at = __float2bfloat16_rn(r.b[k * n + j]);
        }
    }
    float *a = device(r.a), *c = device(r.c);
    bf16 *b = device(tile);
    r.error = GPU_LAUNCH((products<B_COLUMNS, NT>), 1, WGMMA_THREADS, SHARED, nullptr, c, a, b, how);
    if (r.error == cudaSuccess && how == NO_MISUSE)
        cr_assert_eq(cudaMemcpy(r.c.data(), c, r.c.size() * sizeof(float), cudaMemcpyDeviceToHost),
                     cudaSuccess);
    return r;
}

template <bool B_COLUMNS, int NT> static void compare()
{
    const size_t n = 8 * NT;
    const result r = run<B_COLUMNS, NT>(NO_MISUSE);
    cr_assert_eq(r.error, cudaSuccess);
    for (size_t i = 0; i < 64; ++i) {
        for (size_t j = 0; j < n; ++j) {
            float sum = 0.0f;
            for (size_t s = 0; s < 128; s += 16) { /* a step is added exactly and rounded once */
                double step = static_cast<double>(sum);
                for (size_t k = s; k < s + 16; ++k)
                    step += static_cast<double>(narrow(r.a[i * 128 + k])) *
                            static_cast<double>(r.b[k % 64 * n + j]);
                sum = static_cast<float>(step);
            }
            cr_assert_eq(r.c[i * n + j], sum, "c[%zu][%zu]: expected %a, found %a", i, j, sum,
                         r.c[i * n + j]);
        }
    }
}

Test(sim_wgmma_factor, products_in_every_order)
{
    for (int order = 0; order < 6; ++order) {
        assay_sim_set_order(order < 2 ? static_cast<assay_sim_order>(order) : ASSAY_SIM_ORDER_RANDOM,
                            static_cast<unsigned>(order));
        compare<true, 16>();
        compare<false, 16>();
        compare<true, 8>();
        compare<false, 8>();
    }
}

static void expect_misuse(factor_use how, const char *kind, const char *text)
{
    quiet();
    for (int order = 0; order < 2; ++order) {
        assay_sim_set_order(static_cast<assay_sim_order>(order), 3);
        expect_fault(run<true, 8>(how).error);
        expect_report(kind, "kernel (products", text);
        cudaDeviceReset();
    }
}

Test(sim_wgmma_factor, written_under_the_product)
{
    expect_misuse(WRITTEN_UNDER_PRODUCT, "late read",
                  "registers of the first operand of the product of line");
}
Test(sim_wgmma_factor, written_without_a_fence)
{
    expect_misuse(WRITTEN_WITHOUT_FENCE, "missing fence", "registers of a first operand were written");
}
Test(sim_wgmma_factor, tile_in_one_warp_and_registers_in_another)
{
    expect_misuse(TILE_IN_ONE_WARP, "divergent warp", "");
}

/* 384 threads have 168 registers each at the launch, 64512 together: what one warpgroup gets others must have given back. */
__global__ void asks(bool too_many)
{
    if (threadIdx.x >= WGMMA_THREADS)
        setmaxnreg_inc<240>();
    else if (too_many)
        setmaxnreg_dec<32>();
    else
        setmaxnreg_dec<24>();
}

Test(sim_wgmma_factor, registers_that_the_launch_did_not_get)
{
    cr_expect_eq(GPU_LAUNCH(asks, 1, 3 * WGMMA_THREADS, 0, nullptr, false), cudaSuccess);
    quiet();
    expect_fault(GPU_LAUNCH(asks, 1, 3 * WGMMA_THREADS, 0, nullptr, true));
    expect_report("wrong registers", "kernel asks",
                  "65536 registers: it got at most 64512 at its launch, 168 a thread");
}
