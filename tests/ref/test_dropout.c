/* Laws of dropout: masks by global indices alone, the share that stays and its scale, gradients with the mask held fixed. */
#include "core/base/philox.h"
#include "ref/fast.h"
#include "ref/ops.h"
#include "tests/support/ref.h"

/* The number of an element picks a word of a block of Philox: docs/OPS.md 6. */
Test(ref_dropout, elements_are_words_of_philox)
{
    const ref_dropout d = {.p = 0.25, .seed = 77, .stream = 6, .draw = 3};
    int dropped = 0;
    for (uint64_t e = 0; e < 1000; e++) {
        uint32_t counter[4] = {(uint32_t)(e / 4), 0, 0x80000006u, 3}, key[2] = {77, 0}, word[4];
        assay_philox4x32_10(counter, key, word);
        const double f = ref_dropout_factor(&d, e);
        cr_expect(f == (word[e % 4] < 0x40000000u ? 0.0 : 4.0 / 3.0), "element %d", (int)e);
        dropped += f == 0.0;
    }
    cr_expect(dropped > 200 && dropped < 300);
    const ref_dropout none = {.p = 0.0, .seed = 77, .stream = 6, .draw = 3};
    for (uint64_t e = 0; e < 1000; e++)
        cr_assert(ref_dropout_factor(&none, e) == 1.0, "nothing is dropped");
}

/* The share that stays is 1 - p within 5 standard deviations, and so is its scatter over rows; the mean of the factor is 1. */
Test(ref_dropout, share_mean_and_variance)
{
    enum { T = 400, H = 50 };
    static const double shares[] = {0.05, 0.1, 0.5, 0.9};
    static double x[T * H], y[T * H];
    static int64_t token[T];
    for (int64_t i = 0; i < T * H; i++)
        x[i] = 1.0;
    for (int64_t t = 0; t < T; t++)
        token[t] = t;
    for (size_t s = 0; s < sizeof shares / sizeof shares[0]; s++) {
        const double p = shares[s];
        const ref_dropout d = {.p = p, .seed = 1234, .stream = 1, .draw = 0};
        double kept = 0.0, squares = 0.0, sum = 0.0;
        ref_dropout_fwd(y, x, token, T, H, &d);
        for (int64_t t = 0; t < T; t++) {
            double row = 0.0;
            for (int64_t h = 0; h < H; h++) {
                cr_assert(y[t * H + h] == 0.0 || y[t * H + h] == 1.0 / (1.0 - p));
                row += y[t * H + h] != 0.0;
                sum += y[t * H + h];
            }
            kept += row;
            squares += (row - (1.0 - p) * H) * (row - (1.0 - p) * H);
        }
        const double sd = sqrt(p * (1.0 - p) * T * H);
        cr_expect_lt(fabs(kept - (1.0 - p) * T * H), 5.0 * sd, "p %g: %g of %d stay", p, kept, T * H);
        cr_expect_lt(fabs(sum / (T * H) - 1.0), 5.0 * sd / ((1.0 - p) * T * H), "p %g: mean %g", p,
                     sum / (T * H));
        cr_expect_lt(fabs(squares / T / (p * (1.0 - p) * H) - 1.0), 0.4, "p %g: rows are independent", p);
    }
}

/* Another seed, stream or draw is another mask; a token keeps its row wherever it stands. */
Test(ref_dropout, masks_are_distinct_and_follow_the_token)
{
    enum { T = 64, H = 9 };
    static double x[T * H], y[5][T * H];
    static int64_t token[T];
    const ref_dropout d[4] = {{0.5, 1, 2, 3}, {0.5, 2, 2, 3}, {0.5, 1, 3, 3}, {0.5, 1, 2, 4}};
    for (int64_t i = 0; i < T * H; i++)
        x[i] = 1.0 + (double)(i % H);
    for (int64_t t = 0; t < T; t++)
        token[t] = t;
    for (int i = 0; i < 4; i++)
        ref_dropout_fwd(y[i], x, token, T, H, &d[i]);
    for (int i = 1; i < 4; i++) {
        int same = 0;
        for (int64_t k = 0; k < T * H; k++)
            same += y[i][k] == y[0][k];
        cr_expect(same > T * H / 3 && same < T * H * 2 / 3, "mask %d: %d elements as the first", i, same);
    }
    for (int64_t t = 0; t < T; t++)
        token[t] = T - 1 - t;
    ref_dropout_bwd(y[4], x, token, T, H, &d[0]);
    for (int64_t t = 0; t < T; t++)
        cr_expect_eq(memcmp(y[4] + t * H, y[0] + (T - 1 - t) * H, H * sizeof(double)), 0,
                     "backward and forward are one mask, token %d", (int)t);
}

/* --- attention ------------------------------------------------------------------------------------------------ */
enum { B = 2, S = 9, A = 4, G = 2, D = 6, Q = B * S };

static ref_attention_desc whole(const int64_t *position)
{
    return (ref_attention_desc){.batch = B,
                                .seq_q = S,
                                .seq_k = S,
                                .heads = A,
                                .groups = G,
                                .head_dim = D,
                                .head_dim_v = D,
                                .scale = 0.4,
                                .q_position = position,
                                .k_position = position,
                                .dropout = {.p = 0.4, .seed = 3, .stream = 8, .draw = 5},
                                .all_rows = B,
                                .all_heads = A,
                                .all_keys = S};
}

/* lse is that of the softmax before dropout, o the masked and scaled sum; the tiled form agrees. */
Test(ref_dropout, attention_drops_probabilities_and_not_scores)
{
    test_rng r = {5};
    int64_t position[Q];
    double o[2][Q * A * D], lse[3][Q * A], plain[Q * A * D];
    for (int64_t i = 0; i < Q; i++)
        position[i] = i / B;
    ref_attention_desc d = whole(position);
    double *q = random_normal(&r, Q * A * D), *k = random_normal(&r, Q * G * D),
           *v = random_normal(&r, Q * G * D);
    ref_attention_fwd(o[0], lse[0], q, k, v, &d);
    ref_fast_attention_fwd(o[1], lse[1], q, k, v, &d);
    const double share = d.dropout.p;
    d.dropout.p = 0.0;
    ref_attention_fwd(plain, lse[2], q, k, v, &d);
    d.dropout.p = share;
    cr_expect_eq(memcmp(lse[0], lse[2], sizeof lse[0]), 0, "statistics are those without dropout");
    int changed = 0;
    for (int64_t i = 0; i < Q * A * D; i++) {
        const int64_t row = i / D / A, head = i / D % A;
        double sum = 0.0;
        for (int64_t j = 0; j <= row / B; j++) {
            const int64_t key = j * B + row % B, g = head / (A / G);
            double score = 0.0;
            for (int c = 0; c < D; c++)
                score += q[(row * A + head) * D + c] * k[(key * G + g) * D + c];
            const uint64_t element = (uint64_t)(((row / B * B + row % B) * A + head) * S + j);
            sum += exp(0.4 * score - lse[0][row * A + head]) * ref_dropout_factor(&d.dropout, element) *
                   v[(key * G + g) * D + i % D];
        }
        cr_expect_lt(fabs(o[0][i] - sum), 1e-13);
        cr_expect_lt(fabs(o[1][i] - o[0][i]), 1e-13);
        changed += o[0][i] != plain[i];
    }
    cr_expect_gt(changed, Q * A * D / 2);
    free(q), free(k), free(v);
}

/* A piece of the heads and one row of the batch have their part of the whole mask. */
Test(ref_dropout, attention_pieces_have_parts_of_one_mask)
{
    test_rng r = {6};
    int64_t position[Q], row_position[S];
    double o[Q * A * D], lse[Q * A], part[S * A / 2 * D], part_lse[S * A / 2], in[3][S * A * D];
    for (int64_t i = 0; i < Q; i++)
        position[i] = i / B;
    for (int64_t i = 0; i < S; i++)
        row_position[i] = i;
    ref_attention_desc d = whole(position), piece = whole(row_position);
    double *q = random_normal(&r, Q * A * D), *k = random_normal(&r, Q * G * D),
           *v = random_normal(&r, Q * G * D);
    ref_attention_fwd(o, lse, q, k, v, &d);
    piece.batch = 1;
    piece.heads = A / 2;
    piece.groups = G / 2;
    piece.first_row = 1;
    piece.first_head = A / 2;
    for (int64_t s = 0; s < S; s++) {
        memcpy(in[0] + s * A / 2 * D, q + ((s * B + 1) * A + A / 2) * D, sizeof(double) * A / 2 * D);
        memcpy(in[1] + s * D, k + ((s * B + 1) * G + 1) * D, sizeof(double) * D);
        memcpy(in[2] + s * D, v + ((s * B + 1) * G + 1) * D, sizeof(double) * D);
    }
    ref_attention_fwd(part, part_lse, in[0], in[1], in[2], &piece);
    for (int64_t s = 0; s < S; s++)
        cr_expect_eq(
            memcmp(part + s * A / 2 * D, o + ((s * B + 1) * A + A / 2) * D, sizeof(double) * A / 2 * D), 0,
            "position %d", (int)s);
    free(q), free(k), free(v);
}

typedef struct attention_case {
    double *o, *lse, *q, *k, *v, *dout;
    ref_attention_desc d;
    bool tiled;
} attention_case;

static double objective(void *context)
{
    const attention_case *c = context;
    (c->tiled ? ref_fast_attention_fwd : ref_attention_fwd)(c->o, c->lse, c->q, c->k, c->v, &c->d);
    return dot(c->o, c->dout, Q * A * D);
}

Test(ref_dropout, attention_gradients)
{
    int64_t position[Q], first[Q];
    for (int64_t i = 0; i < Q; i++) {
        position[i] = i / B;
        first[i] = i / B / 4 * 4;
    }
    for (int tiled = 0; tiled < 2; tiled++) {
        test_rng r = {8};
        attention_case c = {new_real(Q * A * D),
                            new_real(Q * A),
                            random_normal(&r, Q * A * D),
                            random_normal(&r, Q * G * D),
                            random_normal(&r, Q * G * D),
                            random_normal(&r, Q * A * D),
                            whole(position),
                            tiled};
        c.d.first_key = first;
        c.d.window = 3;
        double *dq = new_real(Q * A * D), *dk = new_real(Q * G * D), *dv = new_real(Q * G * D);
        (void)objective(&c);
        (tiled ? ref_fast_attention_bwd : ref_attention_bwd)(dq, dk, dv, c.dout, c.q, c.k, c.v, c.o, c.lse,
                                                             &c.d);
        expect_gradient("dq", objective, &c, c.q, dq, Q * A * D);
        expect_gradient("dk", objective, &c, c.k, dk, Q * G * D);
        expect_gradient("dv", objective, &c, c.v, dv, Q * G * D);
        free(c.o), free(c.lse), free(c.q), free(c.k), free(c.v), free(c.dout), free(dq), free(dk), free(dv);
    }
}
