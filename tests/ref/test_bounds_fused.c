/* A fused operation is judged as its parts: honest kernels that store the residual before the norm reads it, or do not, are within
 * the bound of what they declare and outside of the other one; planted mistakes fail. */
#include "tests/support/ref_bounds.h"

TestSuite(ref_bounds_fused, .timeout = 60);

enum { T = 5, H = 130 };

typedef enum { HONEST, NO_EPS, OTHER_RESIDUAL } mistake;

/* stored: the norm reads the sum as it is stored; declared: what the kernel says of that. */
static trial residual_norm(test_rng *r, assay_arith arith, int mode, assay_dtype dtype, bool stored,
                           bool declared, mistake wrong)
{
    const float eps = wrong == NO_EPS ? 0.0f : 1e-5f;
    arith.rounding = declared ? ASSAY_ROUND_RESIDUAL : 0;
    trial x = trial_new("add_rmsnorm_fwd", arith);
    json_object_set_new(x.attrs, "eps", json_real(1e-5));
    const double scale = wrong == NO_EPS ? 1e-3 : 1.0;
    const double *a = trial_in(&x, "a", dtype, mode_data(r, mode, T * H, H, dtype, scale), SHAPE(T, H)),
                 *b = trial_in(&x, "b", dtype, mode_data(r, mode, T * H, H, dtype, 0.3 * scale), SHAPE(T, H)),
                 *gamma =
                     trial_in(&x, "gamma", dtype, mode_data(r, MODE_POSITIVE, H, H, dtype, 1.0), SHAPE(H));
    double *residual = trial_out(&x, "residual", dtype, SHAPE(T, H)),
           *y = trial_out(&x, "y", dtype, SHAPE(T, H)), *rstd = trial_out(&x, "rstd", ASSAY_F32, SHAPE(T));
    for (int64_t i = 0; i < T; i++) {
        float f[H];
        for (int64_t j = 0; j < H; j++) {
            const float sum = (float)a[i * H + j] + (float)b[i * H + j];
            f[j] = stored ? (float)ref_round((double)sum, dtype) : sum;
            residual[i * H + j] = wrong == OTHER_RESIDUAL ? a[i * H + j] : (double)sum;
        }
        const float q = 1.0f / sqrtf(emulate_dot(f, f, H, &x.arith, r) / (float)H + eps);
        rstd[i] = (double)q;
        for (int64_t j = 0; j < H; j++)
            y[i * H + j] = (double)((float)gamma[j] * (f[j] * q));
    }
    trial_store(&x);
    return x;
}

Test(ref_bounds_fused, an_honest_kernel_of_either_form_is_within_its_bound)
{
    test_rng r = {11};
    for (int a = 0; a < N_ARITHS; a++)
        for (int mode = 0; mode < N_MODES; mode++)
            for (int k = 0; k < 4; k++) {
                const bool stored = k & 1;
                trial x = residual_norm(&r, arith_case(a), mode, k & 2 ? ASSAY_BF16 : ASSAY_F32, stored,
                                        stored, HONEST);
                trial_expect_pass(&x, stored ? "stored" : "not stored");
                trial_free(&x);
            }
}

/* In bf16, where the two differ: what the kernel does is not what it says. */
Test(ref_bounds_fused, the_other_form_than_declared_is_found)
{
    test_rng r = {12};
    for (int mode = 0; mode < N_MODES; mode++)
        for (int stored = 0; stored < 2; stored++) {
            if (mode == MODE_CONSTANT)
                continue; /* one number, whose rounding is a common factor: the norm divides it out */
            trial x = residual_norm(&r, arith_case(0), mode, ASSAY_BF16, stored, !stored, HONEST);
            trial_judge(&x);
            cr_expect_gt(x.n_bad, T, "mode %d, stored %d: %lld", mode, stored, (long long)x.n_bad);
            trial_free(&x);
        }
}

Test(ref_bounds_fused, planted_mistakes_fail)
{
    test_rng r = {13};
    for (int k = 0; k < 4; k++) {
        const assay_dtype dtype = k & 1 ? ASSAY_BF16 : ASSAY_F32;
        const bool stored = k & 2;
        trial x = residual_norm(&r, arith_case(0), 0, dtype, stored, stored, NO_EPS);
        trial_judge(&x);
        cr_expect_gt(x.n_bad, T * H / 2, "without eps: %lld", (long long)x.n_bad);
        trial_free(&x);
        x = residual_norm(&r, arith_case(0), 0, dtype, stored, stored, OTHER_RESIDUAL);
        trial_judge(&x);
        cr_expect_gt(x.n_bad, T * H / 2, "another residual: %lld", (long long)x.n_bad);
        trial_free(&x);
    }
}

/* What the norm is declared to read has to be there. */
Test(ref_bounds_fused, a_stored_residual_that_nobody_recorded_is_refused)
{
    test_rng r = {14};
    trial x = residual_norm(&r, arith_case(0), 0, ASSAY_BF16, true, true, HONEST);
    const assay_declaration declared = assay_declaration_make(x.arith);
    ref_replay_result result;
    cr_expect_eq(ref_replay(x.op, x.attrs, &declared, x.in, x.n_in, x.out + 1, x.n_out - 1, &result),
                 ASSAY_INVALID_ARGUMENT);
    cr_expect_not_null(
        strstr(assay_error_message(), "expected an output residual of 650 elements, found none"), "%s",
        assay_error_message());
    trial_free(&x);
}

/* --- the backward ------------------------------------------------------------------------------------------- */
typedef enum { ADDS, FORGETS_RESIDUAL, FORGETS_MEAN } bwd_mistake;

/* stored: dx is rounded before it is added; there: it is an output, too. */
static trial norm_bwd_add(test_rng *r, assay_arith arith, int mode, assay_dtype dtype, bool stored,
                          bool there, bool declared, bwd_mistake wrong)
{
    arith.rounding = declared ? ASSAY_ROUND_RESIDUAL : 0;
    trial x = trial_new("rmsnorm_bwd_add", arith);
    const double *dy = trial_in(&x, "dy", dtype, mode_data(r, mode, T * H, H, dtype, 1.0), SHAPE(T, H)),
                 *in = trial_in(&x, "x", dtype, mode_data(r, mode, T * H, H, dtype, 1.0), SHAPE(T, H)),
                 *gamma =
                     trial_in(&x, "gamma", dtype, mode_data(r, MODE_POSITIVE, H, H, dtype, 1.0), SHAPE(H)),
                 *rstd = trial_in(&x, "rstd", ASSAY_F32, mode_data(r, MODE_POSITIVE, T, T, ASSAY_F32, 0.8),
                                  SHAPE(T)),
                 *residual =
                     trial_in(&x, "dresidual", dtype, mode_data(r, mode, T * H, H, dtype, 0.3), SHAPE(T, H));
    double *dx = there ? trial_out(&x, "dx", dtype, SHAPE(T, H)) : NULL,
           *y = trial_out(&x, "y", dtype, SHAPE(T, H));
    for (int64_t i = 0; i < T; i++) {
        float g[H], xh[H];
        const float q = (float)rstd[i];
        for (int64_t j = 0; j < H; j++) {
            g[j] = (float)dy[i * H + j] * (float)gamma[j];
            xh[j] = (float)in[i * H + j] * q;
        }
        const float mean = wrong == FORGETS_MEAN ? 0.0f : emulate_dot(g, xh, H, &x.arith, r) / (float)H;
        for (int64_t j = 0; j < H; j++) {
            const float d = q * fmaf(-xh[j], mean, g[j]), kept = (float)ref_round((double)d, dtype);
            if (there)
                dx[i * H + j] = (double)d;
            y[i * H + j] = (double)((wrong == FORGETS_RESIDUAL ? 0.0f : (float)residual[i * H + j]) +
                                    (stored ? kept : d));
        }
    }
    trial_store(&x);
    return x;
}

Test(ref_bounds_fused, an_honest_backward_is_within_its_bound)
{
    test_rng r = {21};
    for (int a = 0; a < N_ARITHS; a++)
        for (int mode = 0; mode < N_MODES; mode++)
            for (int k = 0; k < 8; k++) {
                const bool stored = k & 1;
                trial x = norm_bwd_add(&r, arith_case(a), mode, k & 2 ? ASSAY_BF16 : ASSAY_F32, stored, k & 4,
                                       stored, ADDS);
                trial_expect_pass(&x, stored ? "dx rounded" : "dx not rounded");
                trial_free(&x);
            }
}

/* In bf16: dx that is added unrounded although it is said to be stored, where it is there to be read, and the other way round. */
Test(ref_bounds_fused, the_other_form_of_dx_than_declared_is_found)
{
    test_rng r = {22};
    for (int k = 0; k < 3; k++) {
        trial x = norm_bwd_add(&r, arith_case(0), 0, ASSAY_BF16, k > 0, k < 2, k == 0, ADDS);
        trial_judge(&x);
        cr_expect_gt(x.n_bad, T, "form %d: %lld", k, (long long)x.n_bad);
        trial_free(&x);
    }
}

Test(ref_bounds_fused, planted_mistakes_of_a_backward_fail)
{
    test_rng r = {23};
    for (int k = 0; k < 8; k++) {
        const bool stored = k & 2;
        trial x = norm_bwd_add(&r, arith_case(0), 0, k & 1 ? ASSAY_BF16 : ASSAY_F32, stored, k & 4, stored,
                               FORGETS_RESIDUAL);
        trial_judge(&x);
        cr_expect_gt(x.n_bad, T * H / 2, "without the residual: %lld", (long long)x.n_bad);
        trial_free(&x);
        x = norm_bwd_add(&r, arith_case(0), 0, k & 1 ? ASSAY_BF16 : ASSAY_F32, stored, k & 4, stored,
                         FORGETS_MEAN);
        trial_judge(&x);
        cr_expect_gt(x.n_bad, T * H / 4, "without the mean: %lld", (long long)x.n_bad);
        trial_free(&x);
    }
}
