/* Split, norm and rope in one launch are judged as their parts: honest kernels that round the norm before rope reads it, or do not, are
 * within the bound of what they declare and outside of the other one; planted mistakes fail. */
#include "tests/support/ref_bounds.h"

TestSuite(ref_bounds_qkv, .timeout = 60);

enum { T = 5, A = 4, G = 2, D = 20, HALF = 6, POSITIONS = 9, IN_GROUP = A / G + 2, ROW = (A + 2 * G) * D };

typedef enum { HONEST, NO_EPS, OTHER_POSITION, OTHER_HEAD } mistake;

/* One head x -> raw, norm, rstd, out.  gamma NULL: no norm. */
static void one_head(const trial *t, test_rng *r, const double *x, const double *gamma, const double *c,
                     const double *s, assay_dtype dtype, bool stored, mistake wrong, double *raw,
                     double *norm, double *rstd, double *out)
{
    float f[D];
    for (int j = 0; j < D; j++) {
        f[j] = (float)x[j];
        raw[j] = x[j];
    }
    if (gamma) {
        const float eps = wrong == NO_EPS ? 0.0f : 1e-5f;
        const float q = 1.0f / sqrtf(emulate_dot(f, f, D, &t->arith, r) / (float)D + eps);
        *rstd = (double)q;
        for (int j = 0; j < D; j++) {
            const float y = (float)gamma[j] * (f[j] * q);
            norm[j] = (double)y;
            f[j] = stored ? (float)ref_round((double)y, dtype) : y;
        }
    }
    for (int j = 0; j < HALF; j++) {
        const float a = f[j], b = f[HALF + j];
        out[j] = (double)(a * (float)c[j] - b * (float)s[j]);
        out[HALF + j] = (double)(b * (float)c[j] + a * (float)s[j]);
    }
    for (int j = 2 * HALF; j < D; j++)
        out[j] = (double)f[j];
}

static double *small_angles(trial *t, test_rng *r, const char *slot)
{
    double *x = calloc(POSITIONS * HALF, sizeof *x);
    for (int i = 0; i < POSITIONS * HALF; i++)
        x[i] = ref_round(fmod(rng_normal(r), 1.0), ASSAY_F32);
    return trial_in(t, slot, ASSAY_F32, x, SHAPE(POSITIONS, HALF));
}

/* stored: rope reads the norm as it is stored; declared: what the kernel says of that. */
static trial qkv(test_rng *r, assay_arith arith, int mode, assay_dtype dtype, bool norm, bool stored,
                 bool declared, mistake wrong)
{
    arith.rounding = declared ? ASSAY_ROUND_NORM : 0;
    trial x = trial_new(norm ? "qkv_norm_rope_fwd" : "qkv_rope_fwd", arith);
    const double scale = wrong == NO_EPS ? 1e-3 : 1.0;
    json_object_set_new(x.attrs, "heads", json_integer(A));
    json_object_set_new(x.attrs, "groups", json_integer(G));
    json_object_set_new(x.attrs, "head_dim", json_integer(D));
    if (norm)
        json_object_set_new(x.attrs, "eps", json_real(1e-5));
    const double *in =
        trial_in(&x, "qkv", dtype, mode_data(r, mode, T * ROW, ROW, dtype, scale), SHAPE(T, ROW));
    const double *gamma[2] = {NULL, NULL};
    static const char *const gammas[2] = {"q_gamma", "k_gamma"};
    for (int k = 0; k < 2 && norm; k++)
        gamma[k] = trial_in(&x, gammas[k], dtype, mode_data(r, MODE_POSITIVE, D, D, dtype, 1.0), SHAPE(D));
    const double *c = small_angles(&x, r, "cos"), *s = small_angles(&x, r, "sin");
    int64_t *position = calloc(T, sizeof *position);
    for (int i = 0; i < T; i++)
        position[i] = (5 * i + 1) % POSITIONS;
    trial_in_int(&x, "position", position, SHAPE(T));
    double *raw[2] = {trial_out(&x, "q_raw", dtype, SHAPE(T, A, D)),
                      trial_out(&x, "k_raw", dtype, SHAPE(T, G, D))},
           *normed[2] = {NULL, NULL}, *rstd[2] = {NULL, NULL};
    if (norm) {
        normed[0] = trial_out(&x, "q_norm", dtype, SHAPE(T, A, D));
        normed[1] = trial_out(&x, "k_norm", dtype, SHAPE(T, G, D));
        rstd[0] = trial_out(&x, "q_rstd", ASSAY_F32, SHAPE(T, A));
        rstd[1] = trial_out(&x, "k_rstd", ASSAY_F32, SHAPE(T, G));
    }
    double *out[2] = {trial_out(&x, "q", dtype, SHAPE(T, A, D)), trial_out(&x, "k", dtype, SHAPE(T, G, D))},
           *v = trial_out(&x, "v", dtype, SHAPE(T, G, D));
    for (int row = 0; row < T * G * IN_GROUP; row++) {
        const int group = row / IN_GROUP, head = row % IN_GROUP, which = head < A / G ? 0 : 1;
        const double *from = in + (int64_t)row * D;
        const int64_t at = position[group / G] * HALF,
                      p = wrong == OTHER_POSITION ? at / 2 / HALF * HALF : at;
        const int64_t to = which == 0 ? (int64_t)group * (A / G) + head : group;
        if (head == A / G + 1)
            memcpy(v + (int64_t)group * D, wrong == OTHER_HEAD ? from - D : from, D * sizeof *v);
        else
            one_head(&x, r, from, gamma[which], c + p, s + p, dtype, stored, wrong, raw[which] + to * D,
                     norm ? normed[which] + to * D : NULL, norm ? rstd[which] + to : NULL,
                     out[which] + to * D);
    }
    trial_store(&x);
    return x;
}

Test(ref_bounds_qkv, an_honest_kernel_of_either_form_is_within_its_bound)
{
    test_rng r = {21};
    for (int a = 0; a < N_ARITHS; a++)
        for (int mode = 0; mode < N_MODES; mode++)
            for (int k = 0; k < 6; k++) {
                const bool norm = k >= 2, stored = k >= 4;
                trial x = qkv(&r, arith_case(a), mode, k & 1 ? ASSAY_BF16 : ASSAY_F32, norm, stored, stored,
                              HONEST);
                trial_expect_pass(&x, norm ? stored ? "stored" : "not stored" : "no norm");
                trial_free(&x);
            }
}

/* In bf16, where the two differ: what the kernel does is not what it says. */
Test(ref_bounds_qkv, the_other_form_than_declared_is_found)
{
    test_rng r = {22};
    for (int mode = 0; mode < N_MODES; mode++)
        for (int stored = 0; stored < 2; stored++) {
            if (mode == MODE_CONSTANT)
                continue; /* its norm is gamma, which is rounded already */
            trial x = qkv(&r, arith_case(0), mode, ASSAY_BF16, true, stored, !stored, HONEST);
            trial_judge(&x);
            cr_expect_gt(x.n_bad, T, "mode %d, stored %d: %lld", mode, stored, (long long)x.n_bad);
            trial_free(&x);
        }
}

Test(ref_bounds_qkv, planted_mistakes_fail)
{
    test_rng r = {23};
    for (int k = 0; k < 8; k++) {
        const assay_dtype dtype = k & 1 ? ASSAY_BF16 : ASSAY_F32;
        const bool norm = k & 2, stored = k & 4;
        for (mistake wrong = norm ? NO_EPS : OTHER_POSITION; wrong <= OTHER_HEAD; wrong++) {
            trial x = qkv(&r, arith_case(0), 0, dtype, norm, stored, stored, wrong);
            trial_judge(&x);
            cr_expect_gt(x.n_bad, T * G * D / 2, "mistake %d, norm %d, stored %d: %lld", wrong, norm, stored,
                         (long long)x.n_bad);
            trial_free(&x);
        }
    }
}

/* What rope is declared to read has to be there; where it is not stored nobody has to show it. */
Test(ref_bounds_qkv, a_stored_norm_that_nobody_recorded_is_refused)
{
    test_rng r = {24};
    for (int stored = 0; stored < 2; stored++) {
        trial x = qkv(&r, arith_case(0), 0, ASSAY_BF16, true, stored, stored, HONEST);
        const assay_declaration declared = assay_declaration_make(x.arith);
        const ref_value norms[2] = {x.out[2], x.out[3]};
        ref_replay_result result;
        memmove(&x.out[2], &x.out[4], (size_t)(x.n_out - 4) * sizeof x.out[0]);
        x.n_out -= 2;
        const assay_status st = ref_replay(x.op, x.attrs, &declared, x.in, x.n_in, x.out, x.n_out, &result);
        if (stored) {
            cr_expect_eq(st, ASSAY_INVALID_ARGUMENT);
            cr_expect_not_null(
                strstr(assay_error_message(), "expected an output q_norm of 400 elements, found none"), "%s",
                assay_error_message());
        } else {
            cr_expect_eq(st, ASSAY_OK, "%s", assay_error_message());
            cr_expect_eq(result.n_outputs, x.n_out);
            ref_replay_free(&result);
        }
        free(norms[0].value);
        free(norms[1].value);
        trial_free(&x);
    }
}
