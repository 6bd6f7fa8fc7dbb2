/* Tiles of sm_90a (gpu/wgmma.cuh) in the simulator: their numbers in every order of threads, the truncating model, and what is
 * reported.  One kernel does everything rightly; each misuse changes one line of it. */
#include "tests/support/sim.h"

#include "gpu/wgmma.cuh"

#include <math.h>
#include <vector>

enum { BOX_BYTES = WGMMA_TILE * 2, STEPS = 3, STAGES = 2 };

static unsigned drawn = 1;
static float draw(void)
{
    drawn = drawn * 1664525u + 1013904223u;
    const float scale = ldexpf(1.0f, -static_cast<int>(drawn >> 4 & 7u)); /* or every sum fits in 24 bits */
    return __bfloat162float(
        __float2bfloat16_rn(scale * (static_cast<float>(drawn >> 8) / 8388608.0f - 1.0f)));
}

template <class T> static T *device(const std::vector<T> &from)
{
    T *p = nullptr;
    cr_assert(cudaMalloc(&p, from.size() * sizeof(T)) == cudaSuccess);
    cr_assert(cudaMemcpy(p, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
    return p;
}

/* --- numbers ---------------------------------------------------------------------------------------------------- */

/* c [64][8 NT] = A B^T over `terms`: warps 0 to 3 load (one lane of warp 0 does), warps 4 to 7 multiply; two stages. */
template <bool A_COLUMNS, bool B_COLUMNS, int NT>
__global__ void product(float *c, TMA_MAP_PARAMETER a, TMA_MAP_PARAMETER b, int terms)
{
    GPU_DYNAMIC_SHARED(unsigned char, shared);
    GPU_SHARED(mbarrier, full, STAGES);
    GPU_SHARED(mbarrier, empty, STAGES);
    bf16 *tiles = wgmma_tiles(shared);
    const int thread = (int)threadIdx.x, steps = (terms + WGMMA_TERMS - 1) / WGMMA_TERMS, b_tiles = NT / 8;
    if (thread == 0) {
        for (int s = 0; s < STAGES; ++s) {
            mbarrier_init(&full[s], 1);
            mbarrier_init(&empty[s], WGMMA_THREADS);
        }
        mbarrier_fence_init();
    }
    __syncthreads();
    if (thread < WGMMA_THREADS) {
        setmaxnreg_dec<40>();
        if (thread >= GPU_WARP || !elect_one())
            return;
        for (int i = 0; i < steps; ++i) {
            bf16 *at = tiles + i % STAGES * (1 + b_tiles) * WGMMA_TILE;
            mbarrier_wait(&empty[i % STAGES], i / STAGES % 2 ^ 1);
            mbarrier_arrive_expect(&full[i % STAGES], (1 + b_tiles) * BOX_BYTES);
            tma_load(at, &a, &full[i % STAGES], A_COLUMNS ? 0 : i * WGMMA_TERMS,
                     A_COLUMNS ? i * WGMMA_TERMS : 0, 0);
            for (int t = 0; t < b_tiles; ++t)
                tma_load(at + (1 + t) * WGMMA_TILE, &b, &full[i % STAGES],
                         B_COLUMNS ? t * 64 : i * WGMMA_TERMS, B_COLUMNS ? i * WGMMA_TERMS : t * 64, 0);
        }
        return;
    }
    setmaxnreg_inc<232>();
    float sum[NT][4];
    for (int i = 0; i < steps; ++i) {
        bf16 *at = tiles + i % STAGES * (1 + b_tiles) * WGMMA_TILE;
        mbarrier_wait(&full[i % STAGES], i / STAGES % 2);
        wgmma_fence();
        wgmma_multiply<A_COLUMNS, B_COLUMNS>(sum, at, at + WGMMA_TILE, i > 0);
        wgmma_commit();
        wgmma_wait<0>(sum);
        mbarrier_arrive(&empty[i % STAGES]);
    }
    for (int j = 0; j < NT; ++j)
        for (int e = 0; e < 4; ++e)
            c[wgmma_row(thread, e) * NT * 8 + wgmma_column(thread, j, e)] = sum[j][e];
}

struct matrix {
    int rows, columns;
    std::vector<float> wide;
    bf16 *data;
};
static matrix matrix_of(int rows, int columns)
{
    matrix m = {rows, columns, {}, nullptr};
    std::vector<bf16> narrow;
    for (int i = 0; i < rows * columns; ++i) {
        m.wide.push_back(draw());
        narrow.push_back(__float2bfloat16_rn(m.wide.back()));
    }
    m.data = device(narrow);
    return m;
}
/* The number of row i and term k of an operand; 0 beyond its matrix. */
static float number(const matrix &m, bool columns, int i, int k)
{
    const int row = columns ? k : i, column = columns ? i : k;
    return row < m.rows && column < m.columns ? m.wide[static_cast<size_t>(row * m.columns + column)] : 0.0f;
}

/* A has `a_rows` rows, B `b_rows`, both `terms` terms; what lies beyond is zero. */
template <bool A_COLUMNS, bool B_COLUMNS, int NT>
static int compare(int a_rows, int b_rows, int terms, bool exact)
{
    const matrix a = A_COLUMNS ? matrix_of(terms, a_rows) : matrix_of(a_rows, terms);
    const matrix b = B_COLUMNS ? matrix_of(terms, b_rows) : matrix_of(b_rows, terms);
    std::vector<float> host(64 * 8 * NT);
    float *c = device(host);
    tma_map a_map, b_map;
    cr_assert_eq(tma_map_make(&a_map, a.data, 1, a.rows, a.columns, 64), cudaSuccess);
    cr_assert_eq(tma_map_make(&b_map, b.data, 1, b.rows, b.columns, 64), cudaSuccess);
    const int bytes = WGMMA_TILE_ALIGN - 16 + STAGES * (1 + NT / 8) * BOX_BYTES;
    cr_assert_eq(cudaFuncSetAttribute((const void *)product<A_COLUMNS, B_COLUMNS, NT>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                 cudaSuccess);
    cr_assert_eq(GPU_LAUNCH((product<A_COLUMNS, B_COLUMNS, NT>), 1, 2 * WGMMA_THREADS, (size_t)bytes, nullptr,
                            c, a_map, b_map, terms),
                 cudaSuccess);
    cr_assert_eq(cudaMemcpy(host.data(), c, host.size() * sizeof(float), cudaMemcpyDeviceToHost),
                 cudaSuccess);
    int differ = 0;
    for (int i = 0; i < 64; ++i) {
        for (int j = 0; j < 8 * NT; ++j) {
            float sum = 0.0f;
            for (int s = 0; s < terms; s += 16) { /* a step is added exactly and rounded once */
                double step = static_cast<double>(sum);
                for (int k = s; k < s + 16; ++k)
                    step += static_cast<double>(number(a, A_COLUMNS, i, k)) *
                            static_cast<double>(number(b, B_COLUMNS, j, k));
                sum = static_cast<float>(step);
            }
            const float found = host[static_cast<size_t>(i * 8 * NT + j)];
            differ += found != sum;
            cr_assert(!exact || found == sum, "c[%d][%d]: expected %a, found %a", i, j, sum, found);
            cr_assert(fabs(found - sum) < 1e-3, "c[%d][%d]: expected %a, found %a", i, j, sum, found);
        }
    }
    cudaFree(a.data);
    cudaFree(b.data);
    cudaFree(c);
    return differ;
}

Test(sim_wgmma, products_of_rows_and_columns_in_every_order)
{
    for (int order = 0; order < 6; ++order) {
        assay_sim_set_order(order < 2 ? static_cast<assay_sim_order>(order) : ASSAY_SIM_ORDER_RANDOM,
                            static_cast<unsigned>(order));
        compare<false, false, 8>(64, 64, 64 * STEPS, true);
        compare<false, true, 16>(64, 128, 64 * STEPS, true);
        compare<true, false, 16>(64, 128, 64 * 5, true);
        compare<true, true, 8>(64, 64, 64, true);
    }
}

Test(sim_wgmma, zeros_beyond_the_matrices)
{
    compare<false, false, 16>(37, 100, 200, true);
    compare<false, true, 16>(1, 72, 72, true);
    compare<true, true, 16>(8, 8, 65, true);
}

/* Some sums differ from those that are rounded, so that the model is on. */
Test(sim_wgmma, the_truncating_model_is_used)
{
    assay_sim_set_matrix_truncates(1);
    const int differ = compare<false, true, 8>(64, 64, 64 * STEPS, false);
    cr_expect_gt(differ, 64 * 64 / 4);
}

/* --- misuse ----------------------------------------------------------------------------------------------------- */

enum misuse {
    NO_MISUSE,
    /* mbarriers */
    NO_FENCE_OF_INIT,
    NOT_INITIALIZED,
    INITIALIZED_TWICE,
    BARRIER_OVERWRITTEN,
    BARRIER_NOT_SHARED,
    FEWER_BYTES,
    MORE_BYTES,
    TOO_MANY_BYTES,
    TOO_MANY_ARRIVALS,
    ARRIVAL_MISSING,
    SAME_PARITY,
    WRONG_PARITY,
    PHASE_LEFT_OUT,
    /* loads */
    NO_WAIT_FOR_LOAD,
    LOAD_ONTO_LOAD,
    DESTINATION_WRITTEN,
    MISALIGNED_BOX,
    BOX_OUTSIDE,
    LOAD_LEFT,
    LOAD_ONTO_OPERAND,
    MAP_NOT_MADE,
    /* products */
    NO_WGMMA_FENCE,
    RESULT_WRITTEN_WITHOUT_FENCE,
    OPERAND_WITHOUT_FENCE,
    OPERAND_WRITTEN,
    OPERAND_WRITTEN_AND_FENCE,
    RESULT_WRITTEN,
    RESULT_READ,
    NO_COMMIT,
    NO_WAIT_FOR_PRODUCT,
    MISALIGNED_TILE,
    HALF_A_GROUP,
    HALF_A_WARP,
    OTHER_TILES,
    OTHER_LINES,
    /* stores */
    STORE_WITHOUT_FENCE,
    STORE_HALF_FENCED,
    FENCE_OUTSIDE,
    STORE_SOURCE_WRITTEN,
    STORE_LEFT,
    STORE_NOT_COMMITTED,
    LOAD_ONTO_STORE,
    /* roles */
    BARRIER_ZERO,
    BARRIER_OF_HALF_WARPS,
    BARRIER_OF_OTHER_COUNTS,
    BARRIER_ALONE,
    BARRIER_LEFT,
    REGISTERS_BY_ONE_WARP,
    REGISTERS_ILLEGAL,
    REGISTERS_DOWN,
    REGISTERS_TOO_MANY
};

/* One warpgroup: A and B by loads, a product, its result by a store to c [64][64] bf16. */
__global__ void misused(TMA_MAP_PARAMETER a, TMA_MAP_PARAMETER b, TMA_MAP_PARAMETER c, misuse how)
{
    GPU_DYNAMIC_SHARED(unsigned char, shared);
    GPU_SHARED(mbarrier, bar, 3);
    bf16 *at = wgmma_tiles(shared), *bt = at + WGMMA_TILE, *ct = bt + WGMMA_TILE;
    const int thread = (int)threadIdx.x;
    const bool first = thread == 0;
    if (first) {
        if (how != NOT_INITIALIZED)
            mbarrier_init(&bar[0], how == ARRIVAL_MISSING ? 2 : 1);
        if (how == INITIALIZED_TWICE)
            mbarrier_init(&bar[0], 1);
        if (how == BARRIER_NOT_SHARED)
            mbarrier_init((mbarrier *)(uintptr_t)a.data, 1);
        if (how != NO_FENCE_OF_INIT)
            mbarrier_fence_init();
        if (how == BARRIER_OVERWRITTEN)
            memset((void *)&bar[0], 0, sizeof bar[0]);
    }
    __syncthreads();
    if (how == REGISTERS_BY_ONE_WARP && thread < 32)
        setmaxnreg_dec<40>();
    if (how == REGISTERS_ILLEGAL)
        setmaxnreg_inc<20>();
    if (how == REGISTERS_DOWN) {
        setmaxnreg_inc<128>();
        setmaxnreg_inc<64>();
    }
    if (how == REGISTERS_TOO_MANY)
        setmaxnreg_inc<256>();
    if (how == BARRIER_ZERO)
        named_barrier_sync(0, 128);
    if (how == BARRIER_OF_HALF_WARPS)
        named_barrier_sync(1, 48);
    if (how == BARRIER_OF_OTHER_COUNTS)
        named_barrier_sync(1, thread < 32 ? 64 : 128);
    if (how == BARRIER_ALONE) {
        if (thread < 96)
            named_barrier_sync(1, 128);
        return;
    }
    if (how == BARRIER_LEFT && thread < 96)
        named_barrier_arrive(1, 128);
    if (how == MAP_NOT_MADE && first) {
        static const tma_map nothing = {};
        tma_load(at, &nothing, &bar[0], 0, 0, 0);
    }
    if (first) {
        mbarrier_arrive_expect(&bar[0], how == FEWER_BYTES      ? BOX_BYTES
                                        : how == MORE_BYTES     ? 3 * BOX_BYTES
                                        : how == TOO_MANY_BYTES ? 1 << 20
                                                                : 2 * BOX_BYTES);
        tma_load(how == MISALIGNED_BOX ? at + 8
                 : how == BOX_OUTSIDE  ? ct + 4 * WGMMA_TILE
                                       : at,
                 &a, &bar[0], 0, 0, 0);
        tma_load(how == LOAD_ONTO_LOAD ? at : bt, &b, &bar[0], 0, 0, 0);
        if (how == DESTINATION_WRITTEN)
            memset((void *)at, 0, 16);
        if (how == TOO_MANY_ARRIVALS)
            mbarrier_arrive(&bar[0]);
    }
    if (how == NO_WAIT_FOR_LOAD)
        wgmma_fence();
    if (how == LOAD_LEFT)
        return;
    if (how != NO_WAIT_FOR_LOAD)
        mbarrier_wait(&bar[0], how == WRONG_PARITY ? 1 : 0);
    if (how == WRONG_PARITY)
        mbarrier_wait(&bar[0], 0), mbarrier_wait(&bar[0], 1); /* nobody arrives for phase 1 */
    if (how == SAME_PARITY)
        mbarrier_wait(&bar[0], 0);
    if (how == PHASE_LEFT_OUT) {
        __syncthreads();
        if (first) {
            mbarrier_arrive(&bar[0]);
            mbarrier_arrive(&bar[0]);
        }
        __syncthreads();
        mbarrier_wait(&bar[0], 0);
    }
    bf16 *operand = at;
    if (how == OPERAND_WITHOUT_FENCE) {
        memset((void *)(ct + thread * 32), 0, 64);
        __syncthreads();
        operand = ct;
    }
    if (how == MISALIGNED_TILE)
        operand = at + 64;
    float sum[8][4] = {};
    if (how != NO_WGMMA_FENCE)
        wgmma_fence();
    if (how == OTHER_TILES)
        operand = thread % 32 < 16 ? at : bt;
    if ((how != HALF_A_GROUP || thread < 64) && (how != HALF_A_WARP || thread % 32 < 16)) {
        if (how == OTHER_LINES && thread < 32)
            wgmma_multiply<false, false>(sum, operand, bt, true);
        else
            wgmma_multiply<false, false>(sum, operand, bt, true);
    }
    if (how != NO_COMMIT)
        wgmma_commit();
    if ((how == OPERAND_WRITTEN || how == OPERAND_WRITTEN_AND_FENCE) && first)
        memset((void *)at, 0, 256);
    if (how == OPERAND_WRITTEN_AND_FENCE)
        proxy_fence();
    if (how == RESULT_WRITTEN)
        sum[0][0] = 1.0f;
    const float early = sum[3][2];
    if (how == LOAD_ONTO_OPERAND && first) {
        mbarrier_arrive_expect(&bar[0], BOX_BYTES);
        tma_load(at, &a, &bar[0], 0, 0, 0);
    }
    if (how != NO_WAIT_FOR_PRODUCT)
        wgmma_wait<0>(sum);
    if (how == RESULT_READ)
        sum[3][2] = early;
    if (how == RESULT_WRITTEN_WITHOUT_FENCE) {
        sum[0][0] = 1.0f;
        wgmma_multiply<false, false>(sum, operand, bt, true);
        wgmma_commit();
        wgmma_wait<0>(sum);
    }
    for (int j = 0; j < 8; ++j)
        for (int e = 0; e < 4; ++e) {
            const int row = wgmma_row(thread, e), column = wgmma_column(thread, j, e);
            mma_chunk<64>(ct, row, column / 8)[column % 8] = __float2bfloat16_rn(sum[j][e]);
        }
    if (how == STORE_HALF_FENCED)
        proxy_fence(ct, WGMMA_TILE);
    else if (how == FENCE_OUTSIDE)
        proxy_fence(ct, 1 << 20);
    else if (how != STORE_WITHOUT_FENCE)
        proxy_fence(ct, WGMMA_TILE * 2);
    __syncthreads();
    if (first) {
        tma_store(&c, ct, 0, 0, 0);
        if (how != STORE_NOT_COMMITTED)
            tma_store_commit();
        if (how == STORE_SOURCE_WRITTEN)
            memset((void *)ct, 0, 16);
        if (how == LOAD_ONTO_STORE) {
            mbarrier_arrive_expect(&bar[0], BOX_BYTES);
            tma_load(ct, &a, &bar[0], 0, 0, 0);
        }
        if (how != STORE_LEFT)
            tma_store_wait_read<0>();
    }
}

struct launched {
    cudaError_t error;
    std::vector<bf16> c;
};

static launched launch(misuse how, int threads)
{
    const std::vector<bf16> ones(WGMMA_TILE, __float2bfloat16_rn(1.0f));
    bf16 *a = device(ones), *b = device(ones), *c = device(ones);
    tma_map maps[3];
    cr_assert_eq(tma_map_make(&maps[0], a, 1, 64, 64, 64), cudaSuccess);
    cr_assert_eq(tma_map_make(&maps[1], b, 1, 64, 64, 64), cudaSuccess);
    cr_assert_eq(tma_map_make(&maps[2], c, 1, 64, 64, 64), cudaSuccess);
    launched x = {cudaSuccess, ones};
    x.error = GPU_LAUNCH(misused, 1, (unsigned)threads, WGMMA_TILE_ALIGN - 16 + 3 * BOX_BYTES, nullptr,
                         maps[0], maps[1], maps[2], how);
    if (threads == 128 && (how == NO_MISUSE || how == RESULT_READ))
        cr_assert_eq(cudaMemcpy(x.c.data(), c, x.c.size() * sizeof(bf16), cudaMemcpyDeviceToHost),
                     cudaSuccess);
    return x;
}

/* In forward and reverse order: in random ones a copy or product may be over in time. */
static void expect_misuse(misuse how, const char *kind, const char *text)
{
    quiet();
    for (int order = 0; order < 2; ++order) {
        assay_sim_set_order(static_cast<assay_sim_order>(order), 3);
        expect_fault(launch(how, 128).error);
        expect_report(kind, "kernel misused block (0,0,0)", text);
        cudaDeviceReset();
    }
}

Test(sim_wgmma, no_misuse)
{
    for (int order = 0; order < 6; ++order) {
        assay_sim_set_order(order < 2 ? static_cast<assay_sim_order>(order) : ASSAY_SIM_ORDER_RANDOM,
                            static_cast<unsigned>(order));
        const launched x = launch(NO_MISUSE, 128);
        cr_assert_eq(x.error, cudaSuccess);
        for (const bf16 &v : x.c)
            cr_assert_eq(__bfloat162float(v), 64.0f);
    }
}

/* What is read before the wait is poison. */
Test(sim_wgmma, result_that_is_read_before_the_wait_is_poison)
{
    const launched x = launch(RESULT_READ, 128);
    int nan = 0;
    for (const bf16 &v : x.c)
        nan += isnan(__bfloat162float(v)) != 0;
    cr_expect_eq(nan, 128);
}

#define MISUSE(law, how, kind, text)                                                                         \
    Test(sim_wgmma, law)                                                                                     \
    {                                                                                                        \
        expect_misuse(how, kind, text);                                                                      \
    }
MISUSE(barrier_that_copies_do_not_know, NO_FENCE_OF_INIT, "missing fence", "mbarrier_fence_init")
MISUSE(barrier_that_was_not_initialized, NOT_INITIALIZED, "wrong barrier",
       "shared array bar (24 bytes) was not initialized")
MISUSE(barrier_initialized_twice, INITIALIZED_TWICE, "wrong barrier", "initialized a second time")
MISUSE(barrier_that_was_overwritten, BARRIER_OVERWRITTEN, "wrong barrier", "was overwritten")
MISUSE(barrier_outside_shared_memory, BARRIER_NOT_SHARED, "wrong barrier", "does not lie in shared memory")
MISUSE(fewer_bytes_than_copies_bring, FEWER_BYTES, "wrong barrier",
       "8192 bytes fewer were announced than its copies bring")
MISUSE(more_bytes_than_copies_bring, MORE_BYTES, "divergent barrier",
       "waits for ever for phase 0 of the mbarrier at byte 0 of shared array bar")
MISUSE(more_bytes_than_a_barrier_counts, TOO_MANY_BYTES, "wrong barrier", "at most 1048575")
MISUSE(more_arrivals_than_expected, TOO_MANY_ARRIVALS, "wrong barrier", "has them all")
MISUSE(arrival_that_nobody_makes, ARRIVAL_MISSING, "divergent barrier",
       "1 of 2 arrivals are missing, and 16384 announced")
MISUSE(phase_waited_for_twice, SAME_PARITY, "wrong barrier", "a second time")
MISUSE(phase_that_nobody_ends, WRONG_PARITY, "divergent barrier", "waits for ever for phase 1")
MISUSE(phase_left_out, PHASE_LEFT_OUT, "wrong barrier", "has not waited for phase 1")

MISUSE(tile_read_before_its_load, NO_WAIT_FOR_LOAD, "late read", "a product reads where the load of line")
MISUSE(load_onto_a_load, LOAD_ONTO_LOAD, "late read", "a copy where the load of line")
MISUSE(destination_of_a_load_written, DESTINATION_WRITTEN, "late read", "was written while it was under way")
MISUSE(misaligned_box, MISALIGNED_BOX, "misaligned", "multiple of 128 bytes")
MISUSE(box_outside_shared_memory, BOX_OUTSIDE, "out of bounds", "a box of 8192 bytes")
MISUSE(block_that_ends_before_its_loads, LOAD_LEFT, "late read", "waited for this load")
MISUSE(load_onto_an_operand, LOAD_ONTO_OPERAND, "late read", "that the product of line")
MISUSE(map_that_nobody_made, MAP_NOT_MADE, "wrong map", "nobody has made")

MISUSE(product_without_a_fence, NO_WGMMA_FENCE, "missing fence", "the first product of a warp")
MISUSE(result_written_without_a_fence, RESULT_WRITTEN_WITHOUT_FENCE, "missing fence",
       "registers of a result were written")
MISUSE(operand_written_by_threads_without_a_fence, OPERAND_WITHOUT_FENCE, "missing fence",
       "a product reads byte")
MISUSE(operand_written_under_a_product, OPERAND_WRITTEN, "missing fence",
       "a product that is under way reads byte")
MISUSE(operand_written_under_a_product_and_fence, OPERAND_WRITTEN_AND_FENCE, "late read",
       "a tile was written while the product of line")
MISUSE(result_written_under_a_product, RESULT_WRITTEN, "late read",
       "registers of a result were written before")
MISUSE(product_that_no_group_holds, NO_COMMIT, "late read", "which no wgmma_commit has followed")
MISUSE(block_that_ends_before_its_products, NO_WAIT_FOR_PRODUCT, "late read", "has waited for this product")
MISUSE(misaligned_tile, MISALIGNED_TILE, "misaligned", "multiple of 1024 bytes")
MISUSE(half_a_warpgroup, HALF_A_GROUP, "absent warp", "products of warpgroup 0: warp 2 has not come")
MISUSE(half_a_warp, HALF_A_WARP, "divergent warp", "arrives here with mask 0xffffffff")
MISUSE(lanes_with_different_tiles, OTHER_TILES, "wrong fragment", "name different tiles")
MISUSE(warps_at_different_lines, OTHER_LINES, "divergent warp", "of the warpgroup has it in line")

MISUSE(store_without_a_fence, STORE_WITHOUT_FENCE, "missing fence", "a store reads byte")
MISUSE(store_of_a_tile_half_of_which_is_fenced, STORE_HALF_FENCED, "missing fence", "a store reads byte")
MISUSE(fence_outside_shared_memory, FENCE_OUTSIDE, "out of bounds", "a proxy_fence of 1048576 bytes")
MISUSE(source_of_a_store_written, STORE_SOURCE_WRITTEN, "late read", "the tile of the store of line")
MISUSE(block_that_ends_before_its_stores, STORE_LEFT, "late read", "waited for this store")
MISUSE(store_that_no_group_holds, STORE_NOT_COMMITTED, "late read", "waited for this store")
MISUSE(load_onto_a_store, LOAD_ONTO_STORE, "late read", "that the store of line")

MISUSE(named_barrier_zero, BARRIER_ZERO, "wrong barrier", "0 is __syncthreads")
MISUSE(named_barrier_of_half_warps, BARRIER_OF_HALF_WARPS, "wrong barrier", "expected whole warps")
MISUSE(named_barrier_of_different_counts, BARRIER_OF_OTHER_COUNTS, "wrong barrier", "others wait for")
MISUSE(named_barrier_that_is_not_full, BARRIER_ALONE, "divergent barrier", "96 of 128 threads have come")
MISUSE(named_barrier_left_at_the_end, BARRIER_LEFT, "divergent barrier",
       "96 of 128 threads have come to named barrier 1")
MISUSE(registers_of_one_warp, REGISTERS_BY_ONE_WARP, "absent warp",
       "setmaxnreg of warpgroup 0: warp 1 has not come")
MISUSE(registers_not_by_eight, REGISTERS_ILLEGAL, "wrong registers", "multiple of 8 from 24 to 256")
MISUSE(registers_in_the_wrong_direction, REGISTERS_DOWN, "wrong registers", "setmaxnreg.inc from 128 to 64")

/* One warpgroup may have 256 registers, and not three. */
Test(sim_wgmma, registers_of_all_warpgroups)
{
    quiet();
    expect_fault(launch(REGISTERS_TOO_MANY, 384).error);
    expect_report("wrong registers", "kernel misused", "65536 registers: it got at most 64512");
}

Test(sim_wgmma, block_that_ends_within_a_warpgroup)
{
    quiet();
    expect_fault(launch(NO_MISUSE, 96).error);
    expect_report("absent warp", "kernel misused", "the block has 96 threads");
}

Test(sim_wgmma, maps_that_no_driver_makes)
{
    bf16 *p = device(std::vector<bf16>(4096, __float2bfloat16_rn(1.0f)));
    quiet();
    tma_map m;
    const uint64_t sizes[6] = {64, 4, 4, 1, 1, 1}, strides[5] = {128, 512, 2048, 2048, 2048};
    const uint32_t box[6] = {64, 4, 1, 1, 1, 1};
    cr_expect_eq(assay_sim_tensor_map_make(&m, p, 2, 5, sizes, strides, box, 128), cudaSuccess);
    const struct {
        const char *words;
        int at; /* elements into the memory */
        int rank, swizzle;
        uint64_t columns, stride;
        uint32_t box[2];
    } rows[] = {{"rank 6", 0, 6, 128, 64, 128, {64, 4}},
                {"an address that is no multiple of 16", 4, 2, 128, 64, 128, {64, 4}},
                {"a swizzle of 64 bytes", 0, 2, 64, 64, 128, {64, 4}},
                {"size 0 of dimension 0", 0, 2, 128, 0, 128, {64, 4}},
                {"a box of 257 in dimension 1", 0, 2, 128, 64, 128, {64, 257}},
                {"a box of 0 in dimension 0", 0, 2, 128, 64, 128, {0, 4}},
                {"a stride of 120 bytes", 0, 2, 128, 60, 120, {64, 4}},
                {"rows of a box of 24 bytes", 0, 2, 128, 64, 128, {12, 4}},
                {"at most those of the swizzle", 0, 2, 128, 64, 128, {128, 4}},
                {"that are no allocation", 0, 2, 128, 64, 4096, {64, 4}}};
    for (const auto &r : rows) {
        const uint64_t size[6] = {r.columns, 4, 1, 1, 1, 1}, stride[5] = {r.stride, 512, 512, 512, 512};
        const uint32_t b[6] = {r.box[0], r.box[1], 1, 1, 1, 1};
        cr_expect_neq(assay_sim_tensor_map_make(&m, p + r.at, 2, r.rank, size, stride, b, r.swizzle),
                      cudaSuccess, "%s", r.words);
        expect_report("wrong map", "cuTensorMapEncodeTiled", r.words);
    }
}

/* --- what is not modelled --------------------------------------------------------------------------------------- */

__global__ void waits_for_another_grid(int which)
{
    if (which == 0)
        cudaGridDependencySynchronize();
    else
        cudaTriggerProgrammaticLaunchCompletion();
}

Test(sim_wgmma, clusters_and_dependent_launches_are_refused_by_name)
{
    quiet();
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = dim3(1);
    config.attrs = &attribute;
    config.numAttrs = 1;
    attribute.id = cudaLaunchAttributeClusterDimension;
    cr_expect_eq(cudaLaunchKernelEx(&config, waits_for_another_grid, 0), cudaErrorNotSupported);
    expect_report("unsupported", "cudaLaunchKernelEx", "clusters");
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    cr_expect_eq(cudaLaunchKernelEx(&config, waits_for_another_grid, 0), cudaErrorNotSupported);
    expect_report("unsupported", "cudaLaunchKernelEx", "programmatic dependent launch");
    expect_fault(GPU_LAUNCH(waits_for_another_grid, 1, 1, 0, nullptr, 0));
    expect_report("unsupported", "kernel waits_for_another_grid", "cudaGridDependencySynchronize");
    cudaDeviceReset();
    expect_fault(GPU_LAUNCH(waits_for_another_grid, 1, 1, 0, nullptr, 1));
    expect_report("unsupported", "kernel waits_for_another_grid", "cudaTriggerProgrammaticLaunchCompletion");
}
