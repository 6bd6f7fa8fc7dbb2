/* Laws of the reference operations: results that do not depend on the number of threads, empty sizes, ties,
 * groups, sharded statistics, copies that invert each other. */
#include "ref/ops.h"
#include "tests/support/ref.h"
#include <omp.h>

typedef struct buffers {
    double *x, *w, *y, *dx, *dw, *q, *k, *v, *o, *lse, *dq, *dk, *dv, *dgamma, *rstd;
} buffers;

enum { T = 150, N = 600, K = 70, S = 33, B = 2, A = 4, G = 2, D = 16 };

/* One pass over everything that runs in parallel; returns the number of doubles written to out. */
static int64_t run_all(double *out)
{
    test_rng r = {11};
    double *x = random_normal(&r, T * K), *w = random_normal(&r, N * K), *dy = random_normal(&r, T * N);
    const int64_t counts[4] = {70, 0, 79, 1}, tq = S * B;
    double *at = out;
    ref_linear_fwd(at, x, w, NULL, T, N, K);
    at += T * N;
    ref_linear_bwd_input(at, dy, w, T, N, K);
    at += T * K;
    memset(at, 0, sizeof(double) * N * K);
    ref_linear_bwd_weight(at, dy, x, T, N, K);
    at += N * K;
    memset(at, 0, sizeof(double) * 600 * 70);
    ref_grouped_linear_bwd_weight(at, dy, x, counts, 4, N / 4, K); /* rows of N/4: a part of dy */
    at += N * K;
    ref_rmsnorm_fwd(at, at + T * K, x, w, 1e-6, T, K);
    memset(at + T * K + T, 0, sizeof(double) * K);
    ref_rmsnorm_bwd(at + T * K + T + K, at + T * K + T, dy, x, w, at + T * K, T, K);
    at += 2 * T * K + T + K;
    int64_t position[S * B];
    for (int64_t i = 0; i < tq; i++)
        position[i] = i / B;
    const ref_attention_desc d = {.batch = B,
                                  .seq_q = S,
                                  .seq_k = S,
                                  .heads = A,
                                  .groups = G,
                                  .head_dim = D,
                                  .head_dim_v = D,
                                  .scale = 0.25,
                                  .q_position = position,
                                  .k_position = position};
    double *o = at, *lse = o + tq * A * D, *dq = lse + tq * A, *dk = dq + tq * A * D, *dv = dk + tq * G * D;
    ref_attention_fwd(o, lse, dy, x, w, &d);
    ref_attention_bwd(dq, dk, dv, dy + 1000, dy, x, w, o, lse, &d);
    at = dv + tq * G * D;
    ref_swiglu_fwd(at, dy, NULL, T, N / 2);
    at += T * N / 2;
    free(x), free(w), free(dy);
    return at - out;
}

Test(ref_laws, bits_do_not_depend_on_the_number_of_threads)
{
    const int64_t capacity = 1 << 20;
    double *one = calloc((size_t)capacity, 8), *two = calloc((size_t)capacity, 8);
    omp_set_num_threads(1);
    const int64_t n = run_all(one);
    cr_assert(n < capacity);
    for (int threads = 2; threads <= 5; threads += 3) {
        omp_set_num_threads(threads);
        run_all(two);
        cr_expect(memcmp(one, two, (size_t)n * 8) == 0, "%d threads give other bits than one", threads);
    }
    free(one), free(two);
}

Test(ref_laws, ties_keep_the_lower_index)
{
    const double keys[2][5] = {{1, 3, 3, 3, 0}, {2, 2, 2, 2, 2}};
    const ref_router_desc d = {.tokens = 2, .experts = 5, .topk = 2};
    int64_t indices[4];
    ref_router_topk(indices, &keys[0][0], &d);
    cr_expect(indices[0] == 1 && indices[1] == 2 && indices[2] == 0 && indices[3] == 1);
}

/* Groups tie too; within a kept group a key of -inf may have to be taken. */
Test(ref_laws, groups)
{
    const double keys[8] = {1, 5, 6, 0, 5, 1, 3, 3}; /* groups of 2: sums 6, 6, 6, 6 */
    const ref_router_desc d = {.tokens = 1, .experts = 8, .topk = 4, .num_groups = 4, .group_topk = 2};
    int64_t indices[4];
    ref_router_topk(indices, keys, &d);
    for (int i = 0; i < 4; i++)
        cr_expect(indices[i] == i, "the first two groups win a tie");
    const ref_router_desc best = {.tokens = 1, .experts = 8, .topk = 2, .num_groups = 4, .group_topk = 2};
    ref_router_topk(indices, keys, &best); /* group score: the best key: 5, 6, 5, 3 */
    cr_expect(indices[0] == 1 && indices[1] == 2);
}

/* Gradients that cancel to 0 have terms: 2 |dprobs| p where every probability is normalised and all get one gradient, and twice the
 * pull of a load that is balanced.  Elsewhere a gradient is at most what its terms add up to. */
Test(ref_laws, magnitudes_are_those_of_the_terms)
{
    static const ref_router_mode modes[] = {REF_ROUTER_TOPK_SOFTMAX, REF_ROUTER_SOFTMAX_TOPK,
                                            REF_ROUTER_SIGMOID};
    enum { TOKENS = 2, EXPERTS = 3, ELEMENTS = TOKENS * EXPERTS };
    const double logits[ELEMENTS] = {0.3, -1.2, 0.9, 2.0, 0.1, -0.4},
                 same[ELEMENTS] = {-0.7, -0.7, -0.7, -0.7, -0.7, -0.7},
                 other[ELEMENTS] = {0.2, -1.0, 0.5, 0.1, 0.0, -3.0};
    const int64_t all[ELEMENTS] = {0, 1, 2, 0, 1, 2}, balanced[EXPERTS] = {4, 4, 4},
                  uneven[EXPERTS] = {9, 0, 3};
    const ref_balance balance = {.aux_coeff = 0.5, .tokens = 12, .rows = 1, .divisor = 1};
    for (int i = 0; i < 3; i++) {
        ref_router_desc d = {.tokens = TOKENS,
                             .experts = EXPERTS,
                             .topk = EXPERTS,
                             .mode = modes[i],
                             .norm_topk_prob = true,
                             .scaling_factor = 2.0};
        double scores[ELEMENTS], keys[ELEMENTS], probs[ELEMENTS], value[ELEMENTS], size[ELEMENTS];
        ref_router_scores(scores, keys, logits, NULL, &d);
        ref_router_probs(probs, scores, logits, all, &d);
        for (int k = 0; k < 4; k++) {
            const double *dprobs = k % 2 ? other : same;
            memset(value, 0, sizeof value);
            memset(size, 0, sizeof size);
            for (int m = 0; m < 2; m++) {
                d.magnitudes = m == 1;
                if (k < 2)
                    ref_router_bwd(m ? size : value, dprobs, all, scores, logits, &d);
                else
                    ref_router_aux_bwd(m ? size : value, logits, k == 2 ? balanced : uneven, &balance, 1.0,
                                       &d);
            }
            for (int j = 0; j < ELEMENTS; j++) {
                cr_expect_geq(size[j], fabs(value[j]), "mode %d, kind %d, element %d", i, k, j);
                cr_expect_gt(size[j], 0.0);
                if (k % 2 == 0)
                    cr_expect_lt(fabs(value[j]), 1e-15, "mode %d, kind %d, element %d: %g", i, k, j,
                                 value[j]);
            }
            for (int j = 0; k == 0 && modes[i] == REF_ROUTER_TOPK_SOFTMAX && j < ELEMENTS; j++)
                cr_expect_float_eq(size[j], 2.0 * 0.7 * probs[j], 1e-14);
        }
    }
}

Test(ref_laws, nothing_writes_nothing)
{
    double guard[4] = {7, 7, 7, 7}, z = NOT_A_NUMBER;
    int64_t counts[2] = {9, 9};
    const ref_attention_desc a = {
        .batch = 1, .heads = 2, .groups = 1, .head_dim = 3, .head_dim_v = 3, .scale = 1};
    const ref_router_desc d = {.tokens = 0, .experts = 2, .topk = 1};
    ref_linear_fwd(guard, guard, guard, guard, 0, 2, 2);
    ref_linear_bwd_weight(guard, guard, guard, 0, 2, 2);
    ref_linear_bwd_bias(guard, guard, 0, 4);
    ref_rmsnorm_fwd(guard, guard, guard, guard, 1e-5, 0, 4);
    ref_attention_fwd(guard, guard, guard, guard, guard, &a);
    ref_attention_bwd(guard, guard, guard, guard, guard, guard, guard, guard, guard, &a);
    ref_embedding_bwd(guard, guard, counts, 0, -1, 0, 2, 2);
    ref_combine_rows(guard, guard, counts, 0, 2, 2);
    ref_gather_rows(guard, guard, counts, 0, 2);
    ref_router_topk(counts, guard, &d);
    for (int i = 0; i < 4; i++)
        cr_expect(guard[i] == 7.0);
    ref_router_aux_sums(guard, counts, &z, guard, counts, guard, &d);
    cr_expect(guard[0] == 0.0 && guard[1] == 0.0 && counts[0] == 0 && z == 0.0, "empty sums are zero");
    cr_expect(ref_sum(guard, 0) == 0.0 && ref_sumsq(guard, 0) == 0.0 && ref_count_zeros(guard, 0) == 0);
}

Test(ref_laws, zeros_of_both_signs_are_counted_and_nothing_else)
{
    const double x[7] = {0.0, -0.0, 0x1p-1074, -0x1p-1074, (double)NAN, HUGE_VAL, 1.0};
    cr_expect_eq(ref_count_zeros(x, 7), 2);
}

Test(ref_laws, an_inner_length_of_zero_gives_the_bias)
{
    double y[4] = {7, 7, 7, 7};
    const double bias[2] = {1, -2};
    ref_linear_fwd(y, y, y, bias, 2, 2, 0);
    cr_expect(y[0] == 1.0 && y[1] == -2.0 && y[2] == 1.0 && y[3] == -2.0);
}

Test(ref_laws, packed_heads_invert)
{
    test_rng r = {19};
    double *x = random_normal(&r, 5 * 6 * 2), y[60], back[60];
    ref_pack_heads(y, x, 5, 6, 2, 3);
    ref_unpack_heads(back, y, 5, 6, 2, 3);
    cr_expect(memcmp(x, back, sizeof back) == 0);
    cr_expect(y[0] == x[0] && y[4] == x[12] && y[20] == x[4], "part, token, heads of the part");
    free(x);
}

Test(ref_laws, qkv_split_and_permutation_invert)
{
    test_rng r = {12};
    double *qkv = random_normal(&r, 5 * 8 * 3), q[60], k[30], v[30], back[120];
    ref_qkv_split_fwd(q, k, v, qkv, 5, 4, 2, 3);
    ref_qkv_split_bwd(back, q, k, v, 5, 4, 2, 3);
    cr_expect(memcmp(qkv, back, sizeof back) == 0);
    cr_expect(k[0] == qkv[6] && v[0] == qkv[9] && q[6] == qkv[12], "per group: query heads, key, value");
    free(qkv);

    const int64_t indices[8] = {1, 4, 0, 4, 1, 2, 0, 1};
    int64_t row_token[8], row_entry[8], counts[6], token_row[8];
    ref_permute_plan(row_token, row_entry, counts, token_row, indices, 4, 2, 6, 0, 6);
    for (int64_t row = 0; row < 8; row++)
        cr_expect(token_row[row_entry[row]] == row && row_entry[row] / 2 == row_token[row]);
    cr_expect(counts[0] == 2 && counts[1] == 3 && counts[2] == 1 && counts[3] == 0 && counts[4] == 2 &&
              counts[5] == 0);
    const double one[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    double y[4];
    ref_combine_rows(y, one, token_row, 4, 2, 1);
    for (int i = 0; i < 4; i++)
        cr_expect(y[i] == 2.0);
}

/* Not-a-number reaches the outputs of its row, and only those. */
Test(ref_laws, nan_spreads_in_its_row_only)
{
    double logits[6] = {1, NOT_A_NUMBER, 2, 1, 2, 3}, stats[6], lse[2], loss[2];
    const int64_t targets[2] = {0, 1};
    ref_cross_entropy_stats(stats, logits, targets, 0, 2, 3);
    ref_cross_entropy_loss(lse, loss, stats, targets, 1, 2);
    cr_expect(isnan(lse[0]) && isnan(loss[0]) && isfinite(lse[1]) && isfinite(loss[1]));
    double x[6] = {1, NOT_A_NUMBER, 2, 1, 2, 3}, y[6], rstd[2];
    const double gamma[3] = {1, 1, 1};
    ref_rmsnorm_fwd(y, rstd, x, gamma, 1e-5, 2, 3);
    cr_expect(isnan(y[0]) && isnan(rstd[0]) && isfinite(y[3]));
}

Test(ref_laws, compensated_sums)
{
    const double x[4] = {1.0, 1e100, 1.0, -1e100}, bad[3] = {1.0, HUGE_VAL, 2.0};
    cr_expect(ref_sum(x, 4) == 2.0);
    cr_expect(ref_sum(bad, 3) == HUGE_VAL && ref_sumsq(bad, 3) == HUGE_VAL);
}

/* Three tokens of two experts each, two for expert 0: the smaller prob goes, or the later token; equal probs: the later. */
Test(ref_laws, experts_beyond_their_capacity)
{
    const int64_t indices[6] = {0, 1, 0, 2, 0, 1}, token[3] = {4, 2, 9}, ordered[3] = {0, 1, 2};
    const double probs[6] = {0.3, 0.5, 0.2, 0.1, 0.4, 0.5};
    int64_t routed[6], counts[3];
    ref_router_drop(routed, counts, indices, probs, token, 3, 2, 3, 2, 0, 3);
    cr_expect(routed[0] == 0 && routed[2] == -1 && routed[4] == 0, "the smallest of 0.3, 0.2, 0.4 goes");
    cr_expect(counts[0] == 2 && counts[1] == 2 && counts[2] == 1);
    ref_router_drop(routed, counts, indices, NULL, token, 3, 2, 3, 1, 0, 3);
    cr_expect(routed[0] == -1 && routed[2] == 0 && routed[4] == -1 && routed[1] == 1 && routed[5] == -1,
              "the first of tokens 4, 2, 9 stays");
    ref_router_drop(routed, counts, indices, probs, ordered, 3, 2, 3, 1, 1, 2);
    cr_expect(routed[0] == -1 && routed[2] == 0 && routed[3] == -1 && counts[1] == 0, "tokens 1 and 2 alone");
    ref_router_drop(routed, counts, indices, probs, token, 3, 2, 3, 0, 0, 3);
    cr_expect(counts[0] == 0 && routed[1] == -1, "a capacity of nothing");
    /* Megatron-LM get_capacity: ceil(T*K / E * factor) */
    cr_expect(ref_expert_capacity(21, 2, 8, 1.0) == 6 && ref_expert_capacity(16, 2, 8, 1.0) == 4 &&
              ref_expert_capacity(16, 2, 8, 0.1) == 1 && ref_expert_capacity(16, 2, 8, 1.01) == 5);
}

/* Rows that nobody sends are nowhere: no row, zeros, no term. */
Test(ref_laws, a_plan_of_what_is_left)
{
    const int64_t indices[6] = {0, -1, -1, 2, -1, -1};
    int64_t row_token[2], row_entry[2], counts[3], token_row[6];
    const double x[4] = {1, 2, 3, 4};
    double y[6];
    ref_permute_plan(row_token, row_entry, counts, token_row, indices, 3, 2, 3, 0, 3);
    cr_expect(row_token[0] == 0 && row_token[1] == 1 && row_entry[0] == 0 && row_entry[1] == 3);
    cr_expect(counts[0] == 1 && counts[1] == 0 && counts[2] == 1);
    cr_expect(token_row[0] == 0 && token_row[1] == -1 && token_row[3] == 1 && token_row[5] == -1);
    ref_combine_rows(y, x, token_row, 3, 2, 2);
    cr_expect(y[0] == 1 && y[1] == 2 && y[2] == 3 && y[3] == 4 && y[4] == 0 && y[5] == 0);
    ref_gather_rows(y, x, token_row, 3, 2);
    cr_expect(y[0] == 1 && y[2] == 0 && y[3] == 0 && y[4] == 0);
}
