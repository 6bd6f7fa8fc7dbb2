/* Attention, plain and in tiles, against the formulas of docs/OPS.md over more queries than a tile; numbers that
 * are not finite under keys that nobody sees. */
#include "ref/fast.h"
#include "tests/support/ref.h"

enum {
    S = 150,
    B = 2,
    A = 4,
    G = 2,
    D = 8,
    DV = 5,
    TQ = S * B,
    NQ = TQ * A * D,
    NK = TQ * G * D,
    NO = TQ * A * DV
};

typedef struct problem {
    ref_attention_desc d;
    int64_t position[TQ], first_key[TQ];
    double q[NQ], k[NK], v[TQ * G * DV], dout[NO], o[NO], lse[TQ * A], dq[NQ], dk[NK], dv[TQ * G * DV];
} problem;

/* window 0: none; document > 0: a new document starts every `document` positions */
static problem *problem_new(int64_t window, int64_t document)
{
    problem *x = calloc(1, sizeof *x);
    test_rng r = {31};
    double *const fill[] = {x->q, x->k, x->v, x->dout};
    const int64_t n[] = {NQ, NK, TQ * G * DV, NO};
    for (int i = 0; i < 4; i++) {
        double *values = random_normal(&r, n[i]);
        memcpy(fill[i], values, (size_t)n[i] * sizeof(double));
        free(values);
    }
    for (int64_t i = 0; i < TQ; i++) {
        x->position[i] = i / B;
        x->first_key[i] = document ? i / B / document * document : 0;
    }
    x->d = (ref_attention_desc){.batch = B,
                                .seq_q = S,
                                .seq_k = S,
                                .heads = A,
                                .groups = G,
                                .head_dim = D,
                                .head_dim_v = DV,
                                .scale = 0.3,
                                .window = window,
                                .q_position = x->position,
                                .k_position = x->position,
                                .first_key = x->first_key};
    return x;
}

typedef enum { PLAIN, FAST } form;

static void problem_run(problem *x, form which)
{
    if (which == PLAIN) {
        ref_attention_fwd(x->o, x->lse, x->q, x->k, x->v, &x->d);
        ref_attention_bwd(x->dq, x->dk, x->dv, x->dout, x->q, x->k, x->v, x->o, x->lse, &x->d);
    } else {
        ref_fast_attention_fwd(x->o, x->lse, x->q, x->k, x->v, &x->d);
        ref_fast_attention_bwd(x->dq, x->dk, x->dv, x->dout, x->q, x->k, x->v, x->o, x->lse, &x->d);
    }
}

static bool sees(const problem *x, int64_t i, int64_t j)
{
    return i % B == j % B && x->position[j] <= x->position[i] && x->position[j] >= x->first_key[i] &&
           (x->d.window == 0 || x->position[j] > x->position[i] - x->d.window);
}

/* The formulas of docs/OPS.md, section 5, for one query and head. */
static void plain_row(problem *x, int64_t i, int64_t a)
{
    const int64_t g = a / (A / G), at = i * A + a;
    double sum = 0.0, delta = 0.0, *o = x->o + at * DV;
    for (int64_t pass = 0; pass < 3; pass++) /* sum, output, gradients */
        for (int64_t j = 0; j < TQ; j++) {
            const double *q = x->q + at * D, *k = x->k + (j * G + g) * D, *v = x->v + (j * G + g) * DV;
            double s = 0.0, dp = 0.0;
            if (!sees(x, i, j))
                continue;
            for (int c = 0; c < D; c++)
                s += x->d.scale * q[c] * k[c];
            for (int c = 0; c < DV; c++)
                dp += x->dout[at * DV + c] * v[c];
            const double p = exp(s) / sum, ds = x->d.scale * p * (dp - delta);
            if (pass == 0)
                sum += exp(s);
            for (int c = 0; c < DV && pass == 1; c++) {
                o[c] += p * v[c];
                delta += x->dout[at * DV + c] * p * v[c];
            }
            for (int c = 0; c < DV && pass == 2; c++)
                x->dv[(j * G + g) * DV + c] += p * x->dout[at * DV + c];
            for (int c = 0; c < D && pass == 2; c++) {
                x->dq[at * D + c] += ds * k[c];
                x->dk[(j * G + g) * D + c] += ds * q[c];
            }
        }
    x->lse[at] = log(sum);
}

static void check_formula(form which, int64_t window, int64_t document)
{
    problem *x = problem_new(window, document), *plain = problem_new(window, document);
    for (int64_t i = 0; i < TQ; i++)
        for (int64_t a = 0; a < A; a++)
            plain_row(plain, i, a);
    problem_run(x, which);
    cr_expect(relative_error(x->o, plain->o, NO) <= 1e-13);
    cr_expect(relative_error(x->lse, plain->lse, TQ * A) <= 1e-13);
    cr_expect(relative_error(x->dq, plain->dq, NQ) <= 1e-13);
    cr_expect(relative_error(x->dk, plain->dk, NK) <= 1e-13);
    cr_expect(relative_error(x->dv, plain->dv, TQ * G * DV) <= 1e-13);
    free(x), free(plain);
}

static void check_masks(form which)
{
    check_formula(which, 0, 0);
    check_formula(which, 70, 0);
    check_formula(which, 3, 0);
    check_formula(which, 0, 41);
    check_formula(which, 20, 75);
}

Test(ref_attention, plain_is_the_formula)
{
    check_masks(PLAIN);
}

Test(ref_attention, tiles_are_the_formula)
{
    check_masks(FAST);
}

/* Poisons what batch row 0 holds at position 100: queries before it and the other batch row must not notice.
 */
static void check_poison(form which, double poison, bool query)
{
    enum { BAD = 100 };
    problem *clean = problem_new(0, 0), *x = problem_new(0, 0);
    for (int64_t c = 0; c < G * D && !query; c++)
        x->k[BAD * B * G * D + c] = poison;
    for (int64_t c = 0; c < G * DV && !query; c++)
        x->v[BAD * B * G * DV + c] = poison;
    for (int64_t c = 0; c < A * D && query; c++)
        x->q[BAD * B * A * D + c] = poison;
    for (int64_t c = 0; c < A * DV && query; c++)
        x->dout[BAD * B * A * DV + c] = poison;
    problem_run(clean, which);
    problem_run(x, which);
    for (int64_t t = 0; t < TQ; t++) {
        const int64_t s = t / B, b = t % B;
        const bool hit = b == 0 && (query ? s == BAD : s >= BAD),
                   key_hit = b == 0 && (query ? s <= BAD : true);
        for (int64_t c = t * A * DV; c < (t + 1) * A * DV; c++)
            cr_expect(hit ? isnan(x->o[c]) : fabs(x->o[c] - clean->o[c]) <= 1e-13, "o at %lld", (long long)s);
        for (int64_t c = t * A * D; c < (t + 1) * A * D; c++)
            cr_expect(hit ? isnan(x->dq[c]) : fabs(x->dq[c] - clean->dq[c]) <= 1e-12, "dq at %lld",
                      (long long)s);
        for (int64_t c = t * G * DV; c < (t + 1) * G * DV; c++)
            cr_expect(key_hit ? isnan(x->dv[c]) : fabs(x->dv[c] - clean->dv[c]) <= 1e-12, "dv at %lld",
                      (long long)s);
        for (int64_t c = t * G * D; c < (t + 1) * G * D; c++)
            cr_expect(key_hit ? isnan(x->dk[c]) : fabs(x->dk[c] - clean->dk[c]) <= 1e-12, "dk at %lld",
                      (long long)s);
    }
    free(clean), free(x);
}

Test(ref_attention, a_bad_key_reaches_only_the_queries_that_see_it)
{
    check_poison(PLAIN, NOT_A_NUMBER, false);
    check_poison(FAST, NOT_A_NUMBER, false);
}

Test(ref_attention, a_bad_query_reaches_only_the_keys_that_it_sees)
{
    check_poison(PLAIN, NOT_A_NUMBER, true);
    check_poison(PLAIN, HUGE_VAL, true);
    check_poison(FAST, NOT_A_NUMBER, true);
    check_poison(FAST, HUGE_VAL, true);
}

static void check_lonely_query(form which)
{
    problem *x = problem_new(0, 0);
    x->first_key[4] = S;
    problem_run(x, which);
    for (int64_t a = 4 * A; a < 5 * A; a++) {
        cr_expect(x->lse[a] == -HUGE_VAL);
        for (int64_t c = 0; c < DV; c++)
            cr_expect(x->o[a * DV + c] == 0.0);
        for (int64_t c = 0; c < D; c++)
            cr_expect(x->dq[a * D + c] == 0.0);
    }
    for (int64_t c = 0; c < NK; c++)
        cr_assert(isfinite(x->dk[c]));
    for (int64_t c = 0; c < TQ * G * DV; c++)
        cr_assert(isfinite(x->dv[c]));
    free(x);
}

Test(ref_attention, a_query_without_a_key)
{
    check_lonely_query(PLAIN);
    check_lonely_query(FAST);
}
