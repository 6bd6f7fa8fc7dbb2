/* Attention in tiles against attention row by row, over more queries than a tile; numbers that are not finite
 * under keys that nobody sees; the exponential beside libm's. */
#include "ref/ops.h"
#include "ref/ops/vector.h"
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
    x->d = (ref_attention_desc){B, S, S, A, G, D, DV, 0.3, window, x->position, x->position, x->first_key};
    return x;
}

static void problem_run(problem *x)
{
    ref_attention_fwd(x->o, x->lse, x->q, x->k, x->v, &x->d);
    ref_attention_bwd(x->dq, x->dk, x->dv, x->dout, x->q, x->k, x->v, x->o, x->lse, &x->d);
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

static void check_tiles(int64_t window, int64_t document)
{
    problem *x = problem_new(window, document), *plain = problem_new(window, document);
    for (int64_t i = 0; i < TQ; i++)
        for (int64_t a = 0; a < A; a++)
            plain_row(plain, i, a);
    problem_run(x);
    cr_expect(relative_error(x->o, plain->o, NO) <= 1e-13);
    cr_expect(relative_error(x->lse, plain->lse, TQ * A) <= 1e-13);
    cr_expect(relative_error(x->dq, plain->dq, NQ) <= 1e-13);
    cr_expect(relative_error(x->dk, plain->dk, NK) <= 1e-13);
    cr_expect(relative_error(x->dv, plain->dv, TQ * G * DV) <= 1e-13);
    free(x), free(plain);
}

Test(ref_attention, tiles_are_the_formula)
{
    check_tiles(0, 0);
    check_tiles(70, 0);
    check_tiles(3, 0);
    check_tiles(0, 41);
    check_tiles(20, 75);
}

/* Poisons what batch row 0 holds at position 100: queries before it and the other batch row must not notice.
 */
static void check_poison(double poison, bool query)
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
    problem_run(clean);
    problem_run(x);
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
    check_poison(NOT_A_NUMBER, false);
}

Test(ref_attention, a_bad_query_reaches_only_the_keys_that_it_sees)
{
    check_poison(NOT_A_NUMBER, true);
    check_poison(HUGE_VAL, true);
}

Test(ref_attention, a_query_without_a_key)
{
    problem *x = problem_new(0, 0);
    x->first_key[4] = S;
    problem_run(x);
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

Test(ref_attention, exp_is_within_one_ulp)
{
    test_rng r = {32};
    double *u = random_normal(&r, 200000);
    for (int64_t i = 0; i < 200000; i++) {
        const double x = i % 3 == 0 ? u[i] : i % 3 == 1 ? 20.0 * u[i] : 250.0 * u[i], y = ref_exp(x);
        const long double exact = expl((long double)x);
        const double near = (double)exact, ulp = nextafter(near, HUGE_VAL) - near;
        cr_assert(near == y || fabsl((long double)y - exact) < (long double)ulp, "exp(%a) = %a", x, y);
    }
    cr_expect(ref_exp(0.0) == 1.0 && ref_exp(-HUGE_VAL) == 0.0 && ref_exp(HUGE_VAL) == HUGE_VAL);
    cr_expect(isnan(ref_exp(NOT_A_NUMBER)) && ref_exp(-745.0) == 0x1p-1074 && ref_exp(-1e300) == 0.0);
    free(u);
}
