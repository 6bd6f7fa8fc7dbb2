/* Rounding into stored formats and the verdict on one element, exhaustively for bf16. */
#include "ref/replay.h"
#include "tests/support/ref.h"

static double bf16_value(uint32_t bits)
{
    const uint32_t wide = bits << 16;
    float f;
    memcpy(&f, &wide, sizeof f);
    return (double)f;
}

/* Every finite bf16 number is itself; halfway to its neighbour goes to the even one; a hair more goes up. */
Test(ref_round, bf16_exhaustive)
{
    for (uint32_t bits = 0; bits < 0x7f80; bits++) {
        const double x = bf16_value(bits), next = bits + 1 < 0x7f80 ? bf16_value(bits + 1) : ldexp(1.0, 128);
        const double middle = 0.5 * (x + next), up = bits + 1 < 0x7f80 ? next : HUGE_VAL;
        for (int sign = -1; sign <= 1; sign += 2) {
            cr_assert(ref_round(sign * x, ASSAY_BF16) == sign * x, "%x", bits);
            cr_assert(ref_round(sign * middle, ASSAY_BF16) == sign * (bits % 2 ? up : x), "%x", bits);
            cr_assert(ref_round(sign * nextafter(middle, 1e300), ASSAY_BF16) == sign * up, "%x", bits);
            cr_assert(ref_round(sign * nextafter(middle, 0.0), ASSAY_BF16) == sign * x, "%x", bits);
        }
        cr_assert(ref_ulp(x, ASSAY_BF16) == next - x && ref_ulp(-x, ASSAY_BF16) == next - x, "%x", bits);
    }
    cr_expect(ref_round(HUGE_VAL, ASSAY_BF16) == HUGE_VAL && isnan(ref_round(NOT_A_NUMBER, ASSAY_BF16)));
    cr_expect(signbit(ref_round(-0.0, ASSAY_BF16)));
    cr_expect(signbit(ref_round(-0x1p-140, ASSAY_BF16)) && ref_round(-0x1p-140, ASSAY_BF16) == 0.0);
}

Test(ref_round, f32_is_the_cast)
{
    test_rng r = {1};
    for (int i = 0; i < 200000; i++) {
        const double x = ldexp(rng_normal(&r), (int)rng_below(&r, 300) - 160);
        cr_assert(ref_round(x, ASSAY_F32) == (double)(float)x);
        if (isfinite((float)x) && x != 0.0)
            cr_assert(ref_ulp((double)(float)x, ASSAY_F32) ==
                      (double)nextafterf(fabsf((float)x), (float)HUGE_VAL) - fabs((double)(float)x));
    }
    cr_expect(ref_round(1.0 + 0x1p-40, ASSAY_F64) == 1.0 + 0x1p-40);
    cr_expect(ref_ulp(1.0, ASSAY_F64) == 0x1p-52 && ref_ulp(0.0, ASSAY_F64) == 0x1p-1074);
}

Test(ref_round, small_formats)
{
    cr_expect(ref_round(448.0, ASSAY_F8_E4M3) == 448.0 && ref_round(500.0, ASSAY_F8_E4M3) == HUGE_VAL);
    cr_expect(ref_round(57344.0, ASSAY_F8_E5M2) == 57344.0 && ref_round(61440.0, ASSAY_F8_E5M2) == HUGE_VAL);
    cr_expect(ref_round(65504.0, ASSAY_F16) == 65504.0 && ref_round(65519.9, ASSAY_F16) == 65504.0 &&
              ref_round(65520.0, ASSAY_F16) == HUGE_VAL);
    cr_expect(ref_round(0x1p-24, ASSAY_F16) == 0x1p-24 && ref_round(0x1p-25, ASSAY_F16) == 0.0);
    cr_expect(ref_round(0x1.8p-9, ASSAY_F8_E4M3) == 0x1p-8,
              "halfway between two subnormals goes to the even one");
}

/* The rounded truth is admissible with no bound at all; its next but one neighbour never is. */
Test(ref_admissible, exact_numbers_need_no_bound)
{
    test_rng r = {2};
    double ratio;
    for (int i = 0; i < 100000; i++) {
        const double y = ldexp(rng_normal(&r), (int)rng_below(&r, 260) - 135);
        const double yhat = ref_round(y, ASSAY_BF16), ulp = ref_ulp(y, ASSAY_BF16);
        if (!isfinite(yhat))
            continue;
        cr_assert(ref_admissible(yhat, y, 0.0, ASSAY_BF16, &ratio) && ratio <= 1.0);
        cr_assert(!ref_admissible(yhat + 2.0 * ulp, y, 0.0, ASSAY_BF16, &ratio) && ratio > 1.0);
        cr_assert(!ref_admissible(yhat - 2.0 * ulp, y, 0.0, ASSAY_BF16, &ratio) && ratio > 1.0);
    }
}

Test(ref_admissible, classes_come_first)
{
    double ratio;
    cr_expect(!ref_admissible(NOT_A_NUMBER, 1.0, 1e30, ASSAY_F32, &ratio) && ratio == HUGE_VAL);
    cr_expect(ref_admissible(NOT_A_NUMBER, NOT_A_NUMBER, 0.0, ASSAY_F32, &ratio) &&
              !ref_admissible(1.0, NOT_A_NUMBER, 1e30, ASSAY_F32, &ratio));
    cr_expect(ref_admissible(-HUGE_VAL, -HUGE_VAL, 0.0, ASSAY_F32, &ratio));
    cr_expect(!ref_admissible(HUGE_VAL, -HUGE_VAL, 0.0, ASSAY_F32, &ratio));
    cr_expect(!ref_admissible(3e38, HUGE_VAL, 0.0, ASSAY_F32, &ratio));
    cr_expect(!ref_admissible(HUGE_VAL, 3e38, 1e30, ASSAY_F32, &ratio), "no overflow within the bound");
    cr_expect(ref_admissible(HUGE_VAL, 3e38, 1e38, ASSAY_F32, &ratio), "overflow within the bound");
    cr_expect(!ref_admissible(-HUGE_VAL, 3e38, 1e38, ASSAY_F32, &ratio));
    cr_expect(ref_admissible(HUGE_VAL, 65519.0, 2.0, ASSAY_F16, &ratio));
}

Test(ref_admissible, an_unusable_bound_fails)
{
    double ratio;
    cr_expect(!ref_admissible(1.0, 1.0, NOT_A_NUMBER, ASSAY_F32, &ratio));
    cr_expect(!ref_admissible(1.0, 1.0, HUGE_VAL, ASSAY_F32, &ratio));
    cr_expect(!ref_admissible(1.0, 1.0, -1.0, ASSAY_F32, &ratio));
}

Test(ref_admissible, zero_allowance)
{
    double ratio;
    cr_expect(ref_admissible(0.0, 0.0, 0.0, ASSAY_I64, &ratio) && ratio == 0.0);
    cr_expect(!ref_admissible(1.0, 0.0, 0.0, ASSAY_I64, &ratio) && ratio == HUGE_VAL);
    cr_expect(ref_admissible(0x1p-150, 0.0, 0.0, ASSAY_F32, &ratio) && ratio == 1.0,
              "half the smallest subnormal");
}
