/* SwiGLU with the exponential of vector registers beside libm's: the law of ref/fast.h, and that exponential by
 * itself. */
#include "ref/fast/vector.h"
#include "tests/support/ref_fast.h"

enum { T = 3 };

/* fault: relative error planted into fast's inputs */
static int64_t broken(int64_t f, law_data data, double scale, bool with_probs, double fault)
{
    const ref_declared d = double_precision();
    test_rng r = {50 + (uint64_t)f};
    double *x = law_values(&r, T * 2 * f, data, scale), *dy = law_values(&r, T * f, data, 1.0);
    double *p = law_values(&r, T, data, 1.0), *probs = with_probs ? p : NULL;
    double *fast[3] = {new_real(T * f), new_real(T * 2 * f), new_real(T)};
    double *plain[3] = {new_real(T * f), new_real(T * 2 * f), new_real(T)};
    const ref_pair y = pair_new(T * f), dx = pair_new(T * 2 * f), dprobs = pair_new(T);
    ref_swiglu_fwd(plain[0], x, probs, T, f);
    ref_swiglu_bwd(plain[1], with_probs ? plain[2] : NULL, dy, x, probs, T, f);
    ref_bound_swiglu_fwd(y, x, probs, T, f, &d);
    cr_assert(ref_bound_swiglu_bwd(dx, dprobs, dy, x, probs, T, f, &d) == ASSAY_OK);
    for (int64_t i = 0; i < T * 2 * f; i++)
        x[i] *= 1.0 + fault;
    ref_fast_swiglu_fwd(fast[0], x, probs, T, f);
    ref_fast_swiglu_bwd(fast[1], with_probs ? fast[2] : NULL, dy, x, probs, T, f);
    const int64_t n = law_broken(fast[0], plain[0], y, T * f) + law_broken(fast[1], plain[1], dx, T * 2 * f) +
                      (with_probs ? law_broken(fast[2], plain[2], dprobs, T) : 0);
    for (int i = 0; i < 3; i++)
        free(fast[i]), free(plain[i]);
    pair_free(y), pair_free(dx), pair_free(dprobs);
    free(x), free(dy), free(p);
    return n;
}

Test(ref_fast_activation, swiglu_equals_plain)
{
    const double scales[] = {1e-3, 1.0, 30.0, 900.0}; /* 900: exp under- and overflows */
    for (int n = 0; n < N_LAW_SIZES; n++)
        for (int data = 0; data < N_LAW_DATA; data++)
            for (int scale = 0; scale < 4; scale++)
                for (int probs = 0; probs < 2; probs++) {
                    const int64_t bad = broken(LAW_SIZES[n], (law_data)data, scales[scale], probs != 0, 0.0);
                    cr_expect(bad == 0, "f %lld, data %d, scale %g, probs %d: %lld elements",
                              (long long)LAW_SIZES[n], data, scales[scale], probs, (long long)bad);
                }
}

Test(ref_fast_activation, a_fault_breaks_the_law)
{
    cr_expect(broken(13, LAW_ZERO_MEAN, 1.0, true, 1e-13) > 0);
}

Test(ref_fast_activation, exp_is_within_one_ulp)
{
    test_rng r = {32};
    double *u = random_normal(&r, 200000);
    for (int64_t i = 0; i < 200000; i++) {
        const double x = i % 3 == 0 ? u[i] : i % 3 == 1 ? 20.0 * u[i] : 250.0 * u[i], y = ref_fast_exp(x);
        const long double exact = expl((long double)x);
        const double near = (double)exact, ulp = nextafter(near, HUGE_VAL) - near;
        cr_assert(near == y || fabsl((long double)y - exact) < (long double)ulp, "exp(%a) = %a", x, y);
    }
    cr_expect(ref_fast_exp(0.0) == 1.0 && ref_fast_exp(-HUGE_VAL) == 0.0 &&
              ref_fast_exp(HUGE_VAL) == HUGE_VAL);
    cr_expect(isnan(ref_fast_exp(NOT_A_NUMBER)) && ref_fast_exp(-745.0) == 0x1p-1074 &&
              ref_fast_exp(-1e300) == 0.0);
    free(u);
}
