/* The way back of split, norm and rope in one launch is judged as its parts: honest kernels that round what turned back before the norm
 * reads it, or do not, are within the bound of what they declare, those that say the other are not; planted mistakes fail. */
#include "tests/support/ref_bounds.h"

TestSuite(ref_bounds_qkv_bwd, .timeout = 60);

enum { T = 5, A = 4, G = 2, D = 20, HALF = 6, POSITIONS = 9, IN_GROUP = A / G + 2, ROWS = T * A };

typedef enum { HONEST, TURNS_FORWARD, OTHER_POSITION, NO_MEAN, OTHER_VALUE, NOT_ADDED, N_MISTAKES } mistake;

/* there: what turned back, and what the norm made, are outputs; stored: the norm reads it as it is stored; declared: what is said of that. */
typedef struct form {
    assay_dtype dtype;
    bool norm, there, stored, declared;
    mistake wrong;
} form;

/* Queries (0) or keys (1), all tokens. */
typedef struct side {
    int heads;
    const double *dy, *x, *gamma, *rstd, *old;
    double *turned, *raw, *dgamma;
    float inside[ROWS * D], made[ROWS * D];
} side;

static double *numbers(trial *t, test_rng *r, const char *slot, assay_dtype dtype, int mode, int64_t n,
                       int64_t row)
{
    return trial_in(t, slot, dtype, mode_data(r, mode, n, row, dtype, 1.0), SHAPE(n / row, row));
}

static void turn_back(side *s, const form *f, const double *c, const double *sn, const int64_t *position)
{
    for (int row = 0; row < T * s->heads; row++) {
        const int64_t p = position[row / s->heads], at = (f->wrong == OTHER_POSITION ? p / 2 : p) * HALF;
        const double *dy = s->dy + (int64_t)row * D;
        float *out = s->inside + (int64_t)row * D;
        for (int j = 0; j < HALF; j++) {
            const float a = (float)dy[j], b = (float)dy[HALF + j], cj = (float)c[at + j],
                        sj = (f->wrong == TURNS_FORWARD ? 1.0f : -1.0f) * (float)sn[at + j];
            out[j] = a * cj - b * sj;
            out[HALF + j] = b * cj + a * sj;
        }
        for (int j = 2 * HALF; j < D; j++)
            out[j] = (float)dy[j];
    }
    for (int i = 0; i < T * s->heads * D; i++) {
        if (f->there && s->turned)
            s->turned[i] = (double)s->inside[i];
        if (f->stored)
            s->inside[i] = (float)ref_round((double)s->inside[i], f->dtype);
    }
}

static void norm_back(side *s, const form *f, const trial *t, test_rng *r)
{
    const int rows = T * s->heads;
    static float terms[2][ROWS], xh[ROWS * D];
    for (int row = 0; row < rows; row++) {
        const float q = (float)s->rstd[row];
        float g[D], *h = xh + (int64_t)row * D;
        for (int j = 0; j < D; j++) {
            g[j] = s->inside[row * D + j] * (float)s->gamma[j];
            h[j] = (float)s->x[row * D + j] * q;
        }
        const float mean = f->wrong == NO_MEAN ? 0.0f : emulate_dot(g, h, D, &t->arith, r) / (float)D;
        for (int j = 0; j < D; j++)
            s->made[row * D + j] = q * fmaf(-h[j], mean, g[j]);
    }
    for (int j = 0; j < D && s->dgamma; j++) {
        for (int row = 0; row < rows; row++) {
            terms[0][row] = s->inside[row * D + j];
            terms[1][row] = xh[row * D + j];
        }
        const float old = f->wrong == NOT_ADDED ? 0.0f : (float)s->old[j];
        s->dgamma[j] = (double)(emulate_dot(terms[0], terms[1], rows, &t->arith, r) + old);
    }
}

static void pack(double *dqkv, const side *s, const double *dv, const form *f)
{
    for (int row = 0; row < T * G * IN_GROUP; row++) {
        const int group = row / IN_GROUP, head = row % IN_GROUP;
        for (int j = 0; j < D; j++)
            dqkv[row * D + j] = head < A / G    ? (double)s[0].made[(group * (A / G) + head) * D + j]
                                : head == A / G ? (double)s[1].made[group * D + j]
                                                : dv[(f->wrong == OTHER_VALUE ? 0 : group) * D + j];
    }
}

static void inputs(trial *t, test_rng *r, const form *f, int mode, side *s)
{
    static const char *const slot[2][5] = {{"dq", "q_raw", "q_gamma", "q_rstd", "q_dgamma_in"},
                                           {"dk", "k_raw", "k_gamma", "k_rstd", "k_dgamma_in"}};
    for (int k = 0; k < 2; k++) {
        const int n = T * s[k].heads;
        s[k].dy = numbers(t, r, slot[k][0], f->dtype, mode, n * D, D);
        if (!f->norm)
            continue;
        s[k].x = numbers(t, r, slot[k][1], f->dtype, mode, n * D, D);
        s[k].gamma = numbers(t, r, slot[k][2], f->dtype, MODE_POSITIVE, D, D);
        s[k].rstd = numbers(t, r, slot[k][3], ASSAY_F32, MODE_POSITIVE, n, n);
        s[k].old = numbers(t, r, slot[k][4], ASSAY_F32, MODE_POSITIVE, D, D);
    }
}

static void outputs(trial *t, const form *f, side *s)
{
    static const char *const turned[] = {"dq_norm", "dk_norm"}, *const raw[] = {"dq_raw", "dk_raw"},
                             *const sums[] = {"q_dgamma", "k_dgamma"};
    for (int k = 0; k < 2; k++) {
        if (f->norm && f->there)
            s[k].turned = trial_out(t, turned[k], f->dtype, SHAPE(T * s[k].heads, D));
        if (f->there)
            s[k].raw = trial_out(t, raw[k], f->dtype, SHAPE(T * s[k].heads, D));
        if (f->norm)
            s[k].dgamma = trial_out(t, sums[k], ASSAY_F32, SHAPE(D));
    }
}

static trial back(test_rng *r, assay_arith arith, int mode, const form *f)
{
    static side s[2];
    arith.rounding = f->declared ? ASSAY_ROUND_NORM : 0;
    trial t = trial_new(f->norm ? "qkv_norm_rope_bwd" : "qkv_rope_bwd", arith);
    memset(s, 0, sizeof s);
    s[0].heads = A;
    s[1].heads = G;
    json_object_set_new(t.attrs, "heads", json_integer(A));
    json_object_set_new(t.attrs, "groups", json_integer(G));
    json_object_set_new(t.attrs, "head_dim", json_integer(D));
    inputs(&t, r, f, mode, s);
    const double *dv = numbers(&t, r, "dv", f->dtype, mode, T * G * D, D),
                 *c = numbers(&t, r, "cos", ASSAY_F32, 0, POSITIONS * HALF, HALF),
                 *sn = numbers(&t, r, "sin", ASSAY_F32, 0, POSITIONS * HALF, HALF);
    int64_t *position = calloc(T, sizeof *position);
    for (int i = 0; i < T; i++)
        position[i] = (5 * i + 1) % POSITIONS;
    trial_in_int(&t, "position", position, SHAPE(T));
    outputs(&t, f, s);
    double *dqkv = trial_out(&t, "dqkv", f->dtype, SHAPE(T, (A + 2 * G) * D));
    for (int k = 0; k < 2; k++) {
        turn_back(&s[k], f, c, sn, position);
        memcpy(s[k].made, s[k].inside, sizeof s[k].made);
        if (f->norm)
            norm_back(&s[k], f, &t, r);
        for (int i = 0; i < T * s[k].heads * D && s[k].raw; i++)
            s[k].raw[i] = (double)s[k].made[i];
    }
    pack(dqkv, s, dv, f);
    trial_store(&t);
    return t;
}

Test(ref_bounds_qkv_bwd, an_honest_kernel_of_every_form_is_within_its_bound)
{
    test_rng r = {31};
    for (int a = 0; a < N_ARITHS; a++)
        for (int mode = 0; mode < N_MODES; mode++)
            for (int k = 0; k < 12; k++) {
                const bool norm = k >= 4, stored = k >= 8;
                const form f = {k & 1 ? ASSAY_BF16 : ASSAY_F32, norm, k & 2, stored, stored, HONEST};
                trial x = back(&r, arith_case(a), mode, &f);
                trial_expect_pass(&x, norm ? stored ? "stored" : "not stored" : "no norm");
                trial_free(&x);
            }
}

/* In bf16, where the two differ: what the kernel does is not what it says. */
Test(ref_bounds_qkv_bwd, the_other_form_than_declared_is_found)
{
    test_rng r = {32};
    for (int mode = 0; mode < N_MODES; mode++)
        for (int stored = 0; stored < 2; stored++) {
            const form f = {ASSAY_BF16, true, true, stored, !stored, HONEST};
            trial x = back(&r, arith_case(0), mode, &f);
            trial_judge(&x);
            cr_expect_gt(x.n_bad, T, "mode %d, stored %d: %lld", mode, stored, (long long)x.n_bad);
            trial_free(&x);
        }
}

Test(ref_bounds_qkv_bwd, planted_mistakes_fail)
{
    test_rng r = {33};
    for (int k = 0; k < 8; k++)
        for (mistake wrong = TURNS_FORWARD; wrong < N_MISTAKES; wrong++) {
            const bool norm = k & 2;
            const form f = {k & 1 ? ASSAY_BF16 : ASSAY_F32, norm, k & 4, norm, norm, wrong};
            if (!norm && (wrong == NO_MEAN || wrong == NOT_ADDED))
                continue;
            trial x = back(&r, arith_case(0), 0, &f);
            trial_judge(&x);
            cr_expect_gt(x.n_bad, D / 2, "mistake %d, norm %d, there %d: %lld", wrong, norm, f.there,
                         (long long)x.n_bad);
            trial_free(&x);
        }
}

/* The packed gradient is a copy of what is stored: another number, though within the bound of the norm, is none. */
Test(ref_bounds_qkv_bwd, the_packed_gradient_has_the_stored_numbers)
{
    test_rng r = {34};
    for (int norm = 0; norm < 2; norm++) {
        const form f = {ASSAY_F32, norm, true, norm, norm, HONEST};
        trial x = back(&r, arith_case(0), 0, &f);
        double *dqkv = x.out[x.n_out - 1].value;
        cr_assert_str_eq(x.out[x.n_out - 1].slot, "dqkv");
        dqkv[0] = (double)nextafterf((float)dqkv[0], INFINITY);
        trial_judge(&x);
        cr_expect_eq(x.n_bad, 1, "norm %d: %lld", norm, (long long)x.n_bad);
        trial_free(&x);
    }
}
