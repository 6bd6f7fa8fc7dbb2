/* What sums over ranks declare: NCCL's rings do not add in rank order. */
#include "gpu/comm.h"
#include "ref/replay.h"
#include <criterion/criterion.h>
#include <math.h>

enum { MOST = 8, COUNT = 512 };

/* Pieces of all signs, the first two large; they cancel in every second element: the order of the sum shows. */
static double pieces[MOST][COUNT];
static const double *rows[MOST];

static void fill(void)
{
    for (int r = 0; r < MOST; r++) {
        rows[r] = pieces[r];
        for (int i = 0; i < COUNT; i++)
            pieces[r][i] =
                (double)(float)(sin((double)(7 * i + 13 * r + 1)) * exp2((double)(r < 2 ? i % 9 : -6)));
    }
    for (int i = 0; i < COUNT; i += 2)
        pieces[1][i] = -pieces[0][i];
}

/* A ring: the chunk that an element lies in says at which rank its sum begins.  skip: a rank that is left out; -1: none. */
static float ring_sum(int i, int ranks, int skip)
{
    const int chunk = i * ranks / COUNT;
    float s = 0.0f;
    for (int k = 1; k <= ranks; k++) {
        const int r = (chunk + k) % ranks;
        s += r == skip ? 0.0f : (float)pieces[r][i];
    }
    return s;
}

/* Elements of a ring's sum over `ranks` that lie outside the bound of what is declared. */
static int outside(const assay_arith *arith, int ranks, int skip)
{
    double y[COUNT], bound[COUNT], ratio;
    int bad = 0;
    ref_bound_sum(y, bound, rows, ranks, COUNT, arith, ASSAY_F32);
    for (int i = 0; i < COUNT; i++)
        bad += !ref_admissible((double)ring_sum(i, ranks, skip), y[i], bound[i], ASSAY_F32, &ratio);
    return bad;
}

Test(collective_arith, the_simulator_adds_in_rank_order)
{
    for (int ranks = 1; ranks <= MOST; ranks++)
        cr_expect_eq(gpu_comm_arith(true, ranks, ASSAY_F32).order, ASSAY_ORDER_SEQUENTIAL, "%d ranks", ranks);
}

Test(collective_arith, nccl_declares_no_order_beyond_two_ranks)
{
    for (int ranks = 1; ranks <= MOST; ranks++)
        cr_expect_eq(gpu_comm_arith(false, ranks, ASSAY_F32).order,
                     ranks <= 2 ? ASSAY_ORDER_SEQUENTIAL : ASSAY_ORDER_UNKNOWN, "%d ranks", ranks);
    cr_expect_eq(gpu_comm_arith(false, 4, ASSAY_F64).accumulate, ASSAY_F64);
    cr_expect_eq(gpu_comm_arith(false, 4, ASSAY_BF16).accumulate, ASSAY_F32);
}

Test(collective_arith, a_ring_passes_as_nccl_declares_it)
{
    fill();
    for (int ranks = 2; ranks <= MOST; ranks++) {
        const assay_arith arith = gpu_comm_arith(false, ranks, ASSAY_F32);
        cr_expect_eq(outside(&arith, ranks, -1), 0, "%d ranks", ranks);
    }
}

/* Why the declaration is needed: as rank order the same sums fail. */
Test(collective_arith, a_ring_is_not_rank_order)
{
    fill();
    for (int ranks = 3; ranks <= MOST; ranks++) {
        const assay_arith arith = gpu_comm_arith(true, ranks, ASSAY_F32);
        cr_expect_gt(outside(&arith, ranks, -1), 0, "%d ranks", ranks);
    }
}

Test(collective_arith, a_ring_without_one_rank_fails)
{
    fill();
    for (int ranks = 3; ranks <= MOST; ranks++)
        for (int skip = 0; skip < ranks; skip++) {
            const assay_arith arith = gpu_comm_arith(false, ranks, ASSAY_F32);
            cr_expect_gt(outside(&arith, ranks, skip), COUNT * 9 / 10, "%d ranks without rank %d", ranks,
                         skip);
        }
}
