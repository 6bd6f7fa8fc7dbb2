/* The bound of the loss over pieces of the vocabulary: every split, every place of the target, and statistics in which
 * several pieces hold a part of it. */
#include "tests/support/ref_bounds.h"

enum { V = 23, MOST = 5 };

static ref_declared declared(void)
{
    const assay_arith a = {.accumulate = ASSAY_F32, .order = ASSAY_ORDER_SEQUENTIAL, .math_ulp = 2};
    ref_declared d;
    cr_assert(ref_declared_of(&d, &a, "cross_entropy_loss") == ASSAY_OK);
    return d;
}

/* The kernel's own arithmetic, in floats. */
static void loss_in_floats(double *lse, double *loss, const double *stats, int n_pieces, int64_t t, int64_t i)
{
    float max = -(float)HUGE_VAL, sum = 0.0f, target = 0.0f;
    for (int p = 0; p < n_pieces; p++)
        max = fmaxf(max, (float)stats[p * 3 * t + i]);
    for (int p = 0; p < n_pieces; p++) {
        sum += (float)stats[p * 3 * t + t + i] * expf((float)stats[p * 3 * t + i] - max);
        target += (float)stats[p * 3 * t + 2 * t + i];
    }
    *lse = (double)(max + logf(sum));
    *loss = (double)((float)*lse - target);
}

/* Token i has target i: on both sides of every boundary of every split. */
Test(ref_bounds_loss, every_split_and_every_target)
{
    const ref_declared d = declared();
    test_rng r = {61};
    double *logits = random_normal(&r, V * V);
    int64_t targets[V];
    for (int64_t i = 0; i < V; i++)
        targets[i] = i;
    for (int64_t i = 0; i < V * V; i++)
        logits[i] = (double)(float)logits[i];
    for (int pieces = 1; pieces <= MOST; pieces++) {
        double stats[MOST * 3 * V], lse[V], loss[V], lse_b[V], loss_b[V];
        for (int p = 0; p < pieces; p++) {
            const int64_t first = p * V / pieces, n = (p + 1) * V / pieces - first;
            double piece[V * V];
            for (int64_t i = 0; i < V; i++)
                memcpy(piece + i * n, logits + i * V + first, (size_t)n * sizeof *piece);
            ref_cross_entropy_stats(stats + p * 3 * V, piece, targets, first, V, n);
        }
        for (int i = 0; i < pieces * 3 * V; i++)
            stats[i] = (double)(float)stats[i];
        ref_bound_cross_entropy_loss((ref_pair){lse, lse_b, true}, (ref_pair){loss, loss_b, true}, stats,
                                     targets, pieces, V, &d);
        for (int64_t i = 0; i < V; i++) {
            double l, y;
            loss_in_floats(&l, &y, stats, pieces, V, i);
            const double l_room = lse_b[i] + ref_ulp(lse[i], ASSAY_F32),
                         room = loss_b[i] + ref_ulp(loss[i], ASSAY_F32);
            cr_expect(fabs(l - lse[i]) <= l_room && fabs(y - loss[i]) <= room,
                      "%d pieces, target %lld: %g of %g", pieces, (long long)i, y, loss[i]);
            cr_expect(loss_b[i] <= 0x1p-20 * (fabs(lse[i]) + fabs(logits[i * V + i]) + 1.0),
                      "%d pieces: loose", pieces);
        }
    }
    free(logits);
}

/* Parts that nearly cancel leave an error that the size of the loss does not tell. */
Test(ref_bounds_loss, parts_of_a_target_are_rounded_where_they_meet)
{
    const ref_declared d = declared();
    const int64_t target[1] = {0};
    const double parts[3] = {1048576.0625, 0.0390625, -1048576.0};
    double stats[9], lse, loss, lse_b, loss_b, l, y;
    for (int p = 0; p < 3; p++) {
        stats[3 * p] = 0.0;
        stats[3 * p + 1] = 1.0;
        stats[3 * p + 2] = parts[p];
    }
    ref_bound_cross_entropy_loss((ref_pair){&lse, &lse_b, true}, (ref_pair){&loss, &loss_b, true}, stats,
                                 target, 3, 1, &d);
    loss_in_floats(&l, &y, stats, 3, 1, 0);
    const double alone =
        0x1p-20 * (fabs(lse) + fabs(loss) + 1.0); /* what one holder of the target would be allowed */
    cr_expect(fabs(y - loss) > alone, "the sum of the parts is exact: nothing is shown");
    cr_expect(fabs(y - loss) <= loss_b, "%a is not %a within %a", y, loss, loss_b);
}
