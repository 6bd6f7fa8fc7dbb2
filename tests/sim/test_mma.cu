/* Tile products (gpu/mma.cuh) in the simulator: their numbers, the truncating model, and what is reported. */
#include "tests/support/sim.h"

#include "gpu/mma.cuh"

#include <math.h>
#include <vector>

enum { MT = 2, NT = 4, ROWS = 16 * MT, KEYS = 8 * NT };

/* What the lanes of a warp store of four 16 x 8 results whose element (row, column) is row 32 + column. */
__global__ void stored_rows(bf16 *to)
{
    const int lane = (int)threadIdx.x;
    for (int h = 0; h < 2; ++h) {
        const int row = mma_row(lane, 2 * h);
        float pair[4][2];
        for (int j = 0; j < 4; ++j)
            for (int e = 0; e < 2; ++e)
                pair[j][e] = static_cast<float>(row * 32 + j * 8 + mma_column(lane, e));
        gpu_write_words(to + row * 32 + lane % 4 * 8, mma_row_of_four(pair, lane));
    }
}

/* c = A B^T, o = round(c) V */
template <int D>
__global__ void products(float *c, float *o, const bf16 *a, const bf16 *b, const bf16 *v, int valid)
{
    GPU_DYNAMIC_SHARED(bf16, shared);
    bf16 *as = shared, *bs = as + ROWS * D, *vs = bs + KEYS * D;
    const int lane = (int)threadIdx.x;
    for (int i = lane; i < ROWS * (D / 8); i += GPU_WARP)
        mma_copy16(mma_chunk<D>(as, i / (D / 8), i % (D / 8)), a + i * 8, true);
    mma_commit();
    for (int i = lane; i < KEYS * (D / 8); i += GPU_WARP) {
        const bool in = i / (D / 8) < valid;
        mma_copy16(mma_chunk<D>(bs, i / (D / 8), i % (D / 8)), in ? b + i * 8 : nullptr, in);
        mma_copy16(mma_chunk<D>(vs, i / (D / 8), i % (D / 8)), in ? v + i * 8 : nullptr, in);
    }
    mma_commit();
    mma_wait<1>();
    __syncthreads();
    mma_rows<D, MT> rows;
    mma_load_rows(&rows, as, 0);
    mma_wait<0>();
    __syncthreads();
    float sum[MT][NT][4] = {}, out[MT][D / 8][4] = {};
    mma_abt(sum, rows, bs);
    mma_ab<D>(out, sum, vs);
    for (int m = 0; m < MT; ++m)
        for (int e = 0; e < 4; ++e) {
            const int row = m * 16 + mma_row(lane, e);
            for (int j = 0; j < NT; ++j)
                c[row * KEYS + j * 8 + mma_column(lane, e)] = sum[m][j][e];
            for (int j = 0; j < D / 8; ++j)
                o[row * D + j * 8 + mma_column(lane, e)] = out[m][j][e];
        }
}

/* c = A B with A the columns of one tile of 32 rows of terms, B columns of another, from first_a and first_b on. */
enum { TERMS = 32, OUT = 8 * NT };
template <int D>
__global__ void products_of_columns(float *c, const bf16 *a, const bf16 *b, int first_a, int first_b)
{
    GPU_DYNAMIC_SHARED(bf16, shared);
    bf16 *as = shared, *bs = as + TERMS * D;
    const int lane = (int)threadIdx.x;
    for (int i = lane; i < TERMS * (D / 8); i += GPU_WARP) {
        mma_copy16(mma_chunk<D>(as, i / (D / 8), i % (D / 8)), a + i * 8, true);
        mma_copy16(mma_chunk<D>(bs, i / (D / 8), i % (D / 8)), b + i * 8, true);
    }
    mma_commit();
    mma_wait<0>();
    __syncthreads();
    mma_rows<TERMS, MT> rows;
    mma_load_columns<D>(&rows, as, first_a);
    float sum[MT][NT][4] = {};
    mma_ab<D>(sum, rows, bs, first_b);
    for (int m = 0; m < MT; ++m)
        for (int j = 0; j < NT; ++j)
            for (int e = 0; e < 4; ++e)
                c[(m * 16 + mma_row(lane, e)) * OUT + j * 8 + mma_column(lane, e)] = sum[m][j][e];
}

static unsigned drawn = 1;
static float draw(bool positive)
{
    drawn = drawn * 1664525u + 1013904223u;
    const float x = static_cast<float>(drawn >> 8) / 16777216.0f;
    const float scale = ldexpf(
        1.0f, -static_cast<int>(drawn >> 4 & 7u)); /* of different sizes, or every sum fits in 24 bits */
    return __bfloat162float(__float2bfloat16_rn(scale * (positive ? 0.5f + x : 2.0f * x - 1.0f)));
}

template <class T> static T *device(const std::vector<T> &from)
{
    T *p = nullptr;
    cr_assert(cudaMalloc(&p, from.size() * sizeof(T)) == cudaSuccess);
    cr_assert(cudaMemcpy(p, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
    return p;
}

/* One sum in steps of 16, each added exactly and rounded once. */
static float in_steps(const float *a, const float *b, int stride, int k)
{
    float c = 0.0f;
    for (int s = 0; s < k; s += 16) {
        double sum = static_cast<double>(c);
        for (int i = s; i < s + 16; ++i)
            sum += static_cast<double>(a[i]) * static_cast<double>(b[i * stride]);
        c = static_cast<float>(sum);
    }
    return c;
}

/* What docs/TOLERANCES.md allows a tensor core with k_step 16 and 2 guard bits. */
static double allowed(const float *a, const float *b, int stride, int k)
{
    const double u = 0x1p-24;
    double bound = 0.0, sum = 0.0;
    for (int s = 0; s < k; s += 16) {
        double h = fabs(sum) + bound;
        for (int i = s; i < s + 16; ++i) {
            const double p = static_cast<double>(a[i]) * static_cast<double>(b[i * stride]);
            h = fmax(h, fabs(p));
            sum += p;
        }
        bound += 17.0 * 0x1p-25 * h;
        bound += 2.0 * u * (fabs(sum) + bound);
    }
    return bound;
}

struct numbers {
    std::vector<float> a, b, v, c, o;
};

template <int D> static numbers run(bool positive, int valid)
{
    numbers x;
    std::vector<bf16> a, b, v;
    for (int i = 0; i < ROWS * D; ++i)
        x.a.push_back(draw(positive));
    for (int i = 0; i < KEYS * D; ++i) {
        x.b.push_back(i / D < valid ? draw(positive) : 0.0f);
        x.v.push_back(i / D < valid ? draw(positive) : 0.0f);
    }
    for (float f : x.a)
        a.push_back(__float2bfloat16_rn(f));
    for (float f : x.b)
        b.push_back(__float2bfloat16_rn(f));
    for (float f : x.v)
        v.push_back(__float2bfloat16_rn(f));
    x.c.assign(ROWS * KEYS, 0.0f);
    x.o.assign(static_cast<size_t>(ROWS) * D, 0.0f);
    float *c = device(x.c), *o = device(x.o);
    cr_assert_eq(GPU_LAUNCH(products<D>, 2, GPU_WARP, sizeof(bf16) * (ROWS + 2 * KEYS) * D, nullptr, c, o,
                            device(a), device(b), device(v), valid),
                 cudaSuccess);
    cr_assert_eq(cudaMemcpy(x.c.data(), c, x.c.size() * sizeof(float), cudaMemcpyDeviceToHost), cudaSuccess);
    cr_assert_eq(cudaMemcpy(x.o.data(), o, x.o.size() * sizeof(float), cudaMemcpyDeviceToHost), cudaSuccess);
    return x;
}

template <int D> static void exact_in_every_order(int valid)
{
    for (int order = 0; order < 5; ++order) {
        assay_sim_set_order(order < 2 ? static_cast<assay_sim_order>(order) : ASSAY_SIM_ORDER_RANDOM,
                            static_cast<unsigned>(order));
        const numbers x = run<D>(false, valid);
        for (int i = 0; i < ROWS; ++i) {
            float p[KEYS];
            for (int j = 0; j < KEYS; ++j) {
                const float c =
                    in_steps(&x.a[static_cast<size_t>(i) * D], &x.b[static_cast<size_t>(j) * D], 1, D);
                cr_assert_eq(x.c[static_cast<size_t>(i * KEYS + j)], c, "D %d, order %d: c[%d][%d]", D, order,
                             i, j);
                p[j] = __bfloat162float(__float2bfloat16_rn(c));
            }
            for (int d = 0; d < D; ++d)
                cr_assert_eq(x.o[static_cast<size_t>(i * D + d)],
                             in_steps(p, &x.v[static_cast<size_t>(d)], D, KEYS), "D %d, order %d: o[%d][%d]",
                             D, order, i, d);
        }
    }
}

Test(sim_mma, products_are_exact_in_a_step_and_rounded_once)
{
    exact_in_every_order<32>(KEYS);
    exact_in_every_order<64>(KEYS);
    exact_in_every_order<96>(KEYS - 5);
    exact_in_every_order<128>(1);
}

Test(sim_mma, rows_of_four_results_are_stored_in_their_order)
{
    std::vector<bf16> host(16 * 32);
    bf16 *to = device(host);
    cr_assert_eq(GPU_LAUNCH(stored_rows, 1, GPU_WARP, 0, nullptr, to), cudaSuccess);
    cr_assert_eq(cudaMemcpy(host.data(), to, host.size() * sizeof(bf16), cudaMemcpyDeviceToHost),
                 cudaSuccess);
    for (int i = 0; i < 16 * 32; ++i)
        cr_expect_eq(__bfloat162float(host[static_cast<size_t>(i)]),
                     __bfloat162float(__float2bfloat16_rn(static_cast<float>(i))), "element %d", i);
}

template <int D> static void exact_from_columns(int first_a, int first_b)
{
    std::vector<float> a, b, host(static_cast<size_t>(ROWS) * OUT);
    std::vector<bf16> narrow_a, narrow_b;
    for (int i = 0; i < TERMS * D; ++i) {
        a.push_back(draw(false));
        b.push_back(draw(false));
        narrow_a.push_back(__float2bfloat16_rn(a.back()));
        narrow_b.push_back(__float2bfloat16_rn(b.back()));
    }
    float *c = device(host);
    cr_assert_eq(GPU_LAUNCH(products_of_columns<D>, 1, GPU_WARP, sizeof(bf16) * 2 * TERMS * D, nullptr, c,
                            device(narrow_a), device(narrow_b), first_a, first_b),
                 cudaSuccess);
    cr_assert_eq(cudaMemcpy(host.data(), c, host.size() * sizeof(float), cudaMemcpyDeviceToHost),
                 cudaSuccess);
    for (int i = 0; i < ROWS; ++i) {
        float row[TERMS];
        for (int t = 0; t < TERMS; ++t)
            row[t] = a[static_cast<size_t>(t * D + first_a + i)];
        for (int j = 0; j < OUT; ++j)
            cr_assert_eq(host[static_cast<size_t>(i * OUT + j)],
                         in_steps(row, &b[static_cast<size_t>(first_b + j)], D, TERMS),
                         "D %d, columns from %d and %d: c[%d][%d]", D, first_a, first_b, i, j);
    }
}

Test(sim_mma, operands_from_columns)
{
    exact_from_columns<32>(0, 0);
    exact_from_columns<64>(32, 24);
    exact_from_columns<64>(8, 0);
    exact_from_columns<96>(64, 64);
}

/* The model errs more than rounding does, never by more than is declared, and downwards where all terms are positive. */
Test(sim_mma, truncating_model_is_within_what_is_declared)
{
    assay_sim_set_matrix_truncates(1);
    for (int positive = 0; positive < 2; ++positive) {
        const numbers x = run<128>(positive != 0, KEYS);
        double worst = 0.0;
        int beyond_rounding = 0;
        for (int i = 0; i < ROWS; ++i)
            for (int j = 0; j < KEYS; ++j) {
                const float *a = &x.a[static_cast<size_t>(i) * 128], *b = &x.b[static_cast<size_t>(j) * 128];
                double sum = 0.0;
                for (int k = 0; k < 128; ++k)
                    sum += static_cast<double>(a[k]) * static_cast<double>(b[k]);
                const double error = static_cast<double>(x.c[static_cast<size_t>(i * KEYS + j)]) - sum;
                const double share = fabs(error) / allowed(a, b, 1, 128);
                /* each, because fmax drops a NaN */
                cr_assert_leq(share, 1.0, "%g of what is declared", share);
                worst = fmax(worst, share);
                beyond_rounding += x.c[static_cast<size_t>(i * KEYS + j)] != in_steps(a, b, 1, 128);
                cr_assert(!positive || error <= 0.0, "truncation adds nothing: %g", error);
            }
        cr_expect_geq(worst, 0.02, "%g of what is declared", worst);
        cr_expect_gt(beyond_rounding, ROWS * KEYS / 4);
    }
}

/* --- misuse ----------------------------------------------------------------------------------------------------- */

enum misuse {
    NO_MISUSE,
    NO_WAIT,
    NO_COMMIT,
    NOT_LOADED,
    OTHER_LANES_ROWS,
    MISALIGNED_TILE,
    MISALIGNED_SOURCE,
    OTHER_TILES,
    HALF_A_WARP,
    COPY_ONTO_COPY,
    COPY_TO_STATIC,
    NO_WAIT_AT_THE_END
};

__global__ void misused(float *c, const bf16 *from, misuse how)
{
    enum { D = 32 };
    GPU_DYNAMIC_SHARED(bf16, shared);
    GPU_SHARED(bf16, fixed, 64);
    const int lane = (int)threadIdx.x;
    bf16 *tile = shared + (how == MISALIGNED_TILE ? 4 : 0);
    for (int i = lane; i < 16 * (D / 8); i += GPU_WARP)
        mma_copy16(mma_chunk<D>(how == MISALIGNED_TILE ? shared : tile, i / (D / 8), i % (D / 8)),
                   from + i * 8 + (how == MISALIGNED_SOURCE ? 1 : 0), true);
    if (how == COPY_ONTO_COPY && lane == 1)
        mma_copy16(mma_chunk<D>(tile, 0, 1), from, true); /* lane 1 has copied there */
    if (how == COPY_TO_STATIC)
        mma_copy16(fixed, from, true);
    if (how != NO_COMMIT)
        mma_commit();
    if (how != NO_WAIT && how != NO_WAIT_AT_THE_END)
        mma_wait<0>();
    __syncthreads();
    if (how == NO_WAIT_AT_THE_END)
        return;
    mma_rows<D, 1> rows;
    memset((void *)&rows, 0, sizeof rows);
    if (how != NOT_LOADED)
        mma_load_rows(&rows, tile + (how == OTHER_TILES ? lane / 16 * 256 : 0), 0);
    if (how == OTHER_LANES_ROWS)
        rows.owner.thread ^= 1u;
    float sum[1][2][4] = {};
    if (how != HALF_A_WARP || lane < 16)
        mma_abt(sum, rows, tile);
    c[lane] = sum[0][0][0];
}

static void expect_misuse(misuse how, const char *kind, const char *text)
{
    quiet();
    for (int order = 0; order < 3; ++order) {
        assay_sim_set_order(static_cast<assay_sim_order>(order), 3);
        const std::vector<bf16> from(2048, __float2bfloat16_rn(1.0f));
        float *c = device(std::vector<float>(32, 0.0f));
        const cudaError_t launched = GPU_LAUNCH(misused, 1, GPU_WARP, 2048, nullptr, c, device(from), how);
        if (how == NO_MISUSE) {
            cr_assert_eq(launched, cudaSuccess);
            float host[32];
            cr_assert_eq(cudaMemcpy(host, c, sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
            cr_expect_eq(host[5], 32.0f);
            continue;
        }
        expect_fault(launched);
        expect_report(kind, "kernel misused block (0,0,0)", text);
        cudaDeviceReset();
    }
}

Test(sim_mma, no_misuse)
{
    expect_misuse(NO_MISUSE, "", "");
}
Test(sim_mma, tile_read_before_the_wait)
{
    expect_misuse(NO_WAIT, "late read", "has not waited for that group");
}
Test(sim_mma, copies_that_no_group_holds)
{
    expect_misuse(NO_COMMIT, "late read", "has not waited for that group");
}
Test(sim_mma, operand_that_was_not_loaded)
{
    expect_misuse(NOT_LOADED, "wrong fragment", "no lane has loaded");
}
Test(sim_mma, operand_of_another_lane)
{
    expect_misuse(OTHER_LANES_ROWS, "wrong fragment", "another lane has loaded");
}
Test(sim_mma, misaligned_tile)
{
    expect_misuse(MISALIGNED_TILE, "misaligned", "multiple of 16 bytes");
}
Test(sim_mma, misaligned_source)
{
    expect_misuse(MISALIGNED_SOURCE, "misaligned", "multiple of 16");
}
Test(sim_mma, lanes_with_different_tiles)
{
    expect_misuse(OTHER_TILES, "wrong fragment", "different rows of tiles");
}
Test(sim_mma, half_a_warp)
{
    expect_misuse(HALF_A_WARP, "absent lane", "lacks lane 16");
}
Test(sim_mma, copy_onto_a_copy)
{
    expect_misuse(COPY_ONTO_COPY, "late read", "another one is under way");
}
Test(sim_mma, copy_to_a_static_array)
{
    expect_misuse(COPY_TO_STATIC, "out of bounds", "dynamic shared memory");
}
Test(sim_mma, block_that_ends_before_its_copies)
{
    expect_misuse(NO_WAIT_AT_THE_END, "late read", "before thread (0,0,0) has waited");
}
