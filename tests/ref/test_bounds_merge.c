/* Merged attention: equal to attention over all keys; an honest merge in floats stays within the bound, which is not loose;
 * wrong weights do not. */
#include "tests/support/ref_bounds.h"

enum { ROWS = 64, D = 5 };

static ref_declared declared(void)
{
    const assay_arith a = {.accumulate = ASSAY_F32, .order = ASSAY_ORDER_SEQUENTIAL, .math_ulp = 2};
    ref_declared d;
    cr_assert(ref_declared_of(&d, &a, "attention_merge") == ASSAY_OK);
    return d;
}

typedef struct merge {
    double o_a[ROWS * D], lse_a[ROWS], o_b[ROWS * D], lse_b[ROWS];
    double o[ROWS * D], lse[ROWS], o_bound[ROWS * D], lse_bound[ROWS];
} merge;

/* Sides of equal weight, sides that count little or nothing, one that sees no key, none that does. */
static void merge_make(merge *x, double spread)
{
    test_rng r = {77};
    double *draw = random_normal(&r, 2 * ROWS * (D + 1));
    for (int i = 0; i < ROWS * D; i++) {
        x->o_a[i] = (double)(float)draw[i];
        x->o_b[i] = (double)(float)(1.0 + draw[ROWS * D + i]);
    }
    for (int i = 0; i < ROWS; i++) {
        x->lse_a[i] = (double)(float)(3.0 + spread * draw[2 * ROWS * D + i]);
        x->lse_b[i] =
            i % 7 == 3 ? x->lse_a[i] : (double)(float)(3.0 + spread * draw[2 * ROWS * D + ROWS + i]);
        if (i % 7 == 4)
            x->lse_a[i] = -HUGE_VAL;
        if (i % 14 == 4 || i % 7 == 5)
            x->lse_b[i] = -HUGE_VAL;
        for (int c = 0; c < D; c++) {
            if (x->lse_a[i] == -HUGE_VAL)
                x->o_a[i * D + c] = 0.0;
            if (x->lse_b[i] == -HUGE_VAL)
                x->o_b[i * D + c] = 0.0;
        }
    }
    free(draw);
    const ref_declared d = declared();
    ref_bound_attention_merge((ref_pair){x->o, x->o_bound, true}, (ref_pair){x->lse, x->lse_bound, true},
                              x->o_a, x->lse_a, x->o_b, x->lse_b, ROWS, D, &d);
}

/* The kernel's own arithmetic, in floats; `forgotten`: the weight of b is 1. */
static void merge_in_floats(const merge *x, int i, int c, bool forgotten, double *o, double *lse)
{
    const float a = (float)x->lse_a[i], b = (float)x->lse_b[i], max = fmaxf(a, b);
    const bool nothing = a == -INFINITY && b == -INFINITY;
    const float w_a = nothing ? 0.0f : expf(a - max),
                w_b = forgotten ? 1.0f
                      : nothing ? 0.0f
                                : expf(b - max),
                sum = w_a + w_b;
    *lse = nothing ? -HUGE_VAL : (double)(max + logf(sum));
    *o = nothing ? 0.0 : (double)((w_a * (float)x->o_a[i * D + c] + w_b * (float)x->o_b[i * D + c]) / sum);
}

static bool within(double found, double expected, double bound)
{
    return found == expected || fabs(found - expected) <= bound + ref_ulp(expected, ASSAY_F32) / 2.0;
}

Test(ref_bounds_merge, honest_merges_pass_and_the_bound_is_tight)
{
    static const double spreads[] = {0.0, 1.0, 30.0};
    double worst_o = 0.0, worst_lse = 0.0;
    for (int k = 0; k < 3; k++) {
        merge x;
        merge_make(&x, spreads[k]);
        for (int i = 0; i < ROWS; i++)
            for (int c = 0; c < D; c++) {
                double o, lse;
                const int at = i * D + c;
                merge_in_floats(&x, i, c, false, &o, &lse);
                cr_expect(within(o, x.o[at], x.o_bound[at]) && within(lse, x.lse[i], x.lse_bound[i]),
                          "spread %g, row %d: %g of %g, lse %g of %g", spreads[k], i, o, x.o[at], lse,
                          x.lse[i]);
                const double size = fabs(x.o_a[at]) + fabs(x.o_b[at]), far = fabs(x.lse_a[i] - x.lse_b[i]);
                cr_expect(x.o_bound[at] <= 0x1p-20 * size * (1.0 + (isfinite(far) ? far : 0.0)),
                          "loose: %g for %g", x.o_bound[at], size);
                if (isfinite(lse)) {
                    worst_lse = fmax(worst_lse, fabs(lse - x.lse[i]) /
                                                    (x.lse_bound[i] + ref_ulp(x.lse[i], ASSAY_F32) / 2.0));
                    worst_o = fmax(worst_o,
                                   fabs(o - x.o[at]) / (x.o_bound[at] + ref_ulp(x.o[at], ASSAY_F32) / 2.0));
                }
                cr_expect(x.lse[i] == -HUGE_VAL || x.lse_bound[i] <= 0x1p-19 * (fabs(x.lse[i]) + 1.0));
            }
    }
    if (getenv("ASSAY_TEST_VERBOSE"))
        fprintf(stderr, "attention_merge o %.2f lse %.2f\n", worst_o, worst_lse);
}

Test(ref_bounds_merge, a_forgotten_weight_is_seen)
{
    merge x;
    merge_make(&x, 1.0);
    int seen = 0, could = 0;
    for (int i = 0; i < ROWS; i++) {
        double o, lse;
        merge_in_floats(&x, i, 0, true, &o, &lse);
        if (x.lse_b[i] == -HUGE_VAL || x.lse_a[i] == -HUGE_VAL || x.lse_b[i] >= x.lse_a[i])
            continue;
        could++;
        seen += !within(o, x.o[i * D], x.o_bound[i * D]) && !within(lse, x.lse[i], x.lse_bound[i]);
    }
    cr_assert_gt(could, 10);
    cr_assert_eq(seen, could);
}

Test(ref_bounds_merge, not_a_number_stays_one)
{
    double o, lse;
    const double one = 1.0, none = -HUGE_VAL, nan_ = (double)NAN;
    ref_attention_merge(&o, &lse, &one, &nan_, &one, &none, 1, 1);
    cr_expect(isnan(lse));
    ref_attention_merge(&o, &lse, &nan_, &one, &one, &one, 1, 1);
    cr_expect(isnan(o) && lse == 1.0 + log(2.0));
}

/* Attention over keys in three pieces, merged one after the other, is attention over all keys; rows that see no key of a
 * piece, or of any. */
Test(ref_bounds_merge, pieces_of_the_keys_merge_to_the_whole)
{
    enum { S = 9, A = 4, G = 2, W = 3, PIECES = 3, EACH = S / PIECES };
    test_rng r = {5};
    double *q = random_normal(&r, S * A * W), *k = random_normal(&r, S * G * W),
           *v = random_normal(&r, S * G * W);
    double o[S * A * W], lse[S * A], part[S * A * W], part_lse[S * A], all[S * A * W], all_lse[S * A];
    int64_t position[S];
    for (int64_t window = 0; window <= 4; window += 2) {
        for (int64_t i = 0; i < S; i++)
            position[i] = i;
        ref_attention_desc d = {.batch = 1,
                                .seq_q = S,
                                .seq_k = S,
                                .heads = A,
                                .groups = G,
                                .head_dim = W,
                                .head_dim_v = W,
                                .scale = 0.7,
                                .window = window,
                                .q_position = position,
                                .k_position = position};
        ref_attention_fwd(all, all_lse, q, k, v, &d);
        for (int p = 0; p < PIECES; p++) {
            const int first = (PIECES - 1 - p) * EACH; /* in another order than their positions */
            d.seq_k = EACH;
            d.k_position = position + first;
            ref_attention_fwd(p == 0 ? o : part, p == 0 ? lse : part_lse, q, k + first * G * W,
                              v + first * G * W, &d);
            if (p > 0)
                ref_attention_merge(o, lse, o, lse, part, part_lse, S * A, W);
        }
        for (int i = 0; i < S * A * W; i++)
            cr_expect(fabs(o[i] - all[i]) <= 1e-14 && fabs(lse[i / W] - all_lse[i / W]) <= 1e-14,
                      "window %lld, element %d: %g of %g", (long long)window, i, o[i], all[i]);
    }
    free(q);
    free(k);
    free(v);
}
