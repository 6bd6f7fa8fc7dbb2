/* Stored formats: every code of the small ones, and every rounding between two of them. */
#include "core/files/tensorfile.h"
#include "ref/weights_quantize.h"
#include "ref/weights_read.h"
#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

TestSuite(ref_weights_read);

Test(ref_weights_read, every_half_goes_there_and_back)
{
    for (uint32_t code = 0; code < 65536; code++) {
        const uint16_t stored = (uint16_t)code;
        const assay_dtype types[] = {ASSAY_F16, ASSAY_BF16};
        for (int t = 0; t < 2; t++) {
            uint16_t back;
            int64_t overflow;
            const double x = ref_stored_element(&stored, types[t], 0);
            cr_assert_eq(ref_stored_write(&x, 1, types[t], &back, &overflow), ASSAY_OK);
            cr_assert(isnan(x) ? isnan(ref_stored_element(&back, types[t], 0)) : back == stored,
                      "%s %#x: %#x", assay_dtype_name(types[t]), stored, back);
            cr_assert_eq(overflow, -1);
        }
    }
}

/* Halfway between neighbours to the even one; a hair more or less to the nearer: from double at once, not by way of float. */
Test(ref_weights_read, halves_are_rounded_once)
{
    for (uint32_t code = 0; code < 0x7BFF; code++) {
        const uint16_t low = (uint16_t)code, high = (uint16_t)(code + 1);
        const double a = ref_stored_element(&low, ASSAY_F16, 0), b = ref_stored_element(&high, ASSAY_F16, 0);
        const double middle = a + (b - a) / 2,
                     x[] = {middle, nextafter(middle, 0.0), nextafter(middle, 1e9), -middle};
        uint16_t found[4];
        int64_t overflow;
        cr_assert_eq(ref_stored_write(x, 4, ASSAY_F16, found, &overflow), ASSAY_OK);
        const uint16_t even = code % 2 == 0 ? low : high;
        cr_assert(found[0] == even && found[1] == low && found[2] == high && found[3] == (even | 0x8000),
                  "%#x", (unsigned)code);
    }
}

Test(ref_weights_read, what_does_not_fit_is_told)
{
    const double x[] = {1.0, 65519.9, -65520.0, HUGE_VAL, 1e300};
    uint16_t half[5];
    float single[5];
    int64_t overflow;
    cr_assert_eq(ref_stored_write(x, 5, ASSAY_F16, half, &overflow), ASSAY_OK);
    cr_expect(overflow == 2 && half[1] == 0x7BFF && half[2] == 0xFC00 && half[3] == 0x7C00);
    cr_assert_eq(ref_stored_write(x, 5, ASSAY_F32, single, &overflow), ASSAY_OK);
    cr_expect(overflow == 4 && single[3] == HUGE_VALF);
    cr_assert_eq(ref_stored_write(x, 4, ASSAY_F32, single, &overflow), ASSAY_OK);
    cr_expect_eq(overflow, -1); /* an infinity is one */
    cr_expect_eq(ref_stored_write(x, 1, ASSAY_F8_E4M3, half, &overflow), ASSAY_UNSUPPORTED);
}

/* torch's values of all codes (golden/make_fp8.py). */
Test(ref_weights_read, fp8_codes_are_torch_s)
{
    assay_tensorfile *f;
    cr_assert_eq(assay_tensorfile_open(&f, ASSAY_SOURCE_DIR "/golden/fp8/codes.safetensors"), ASSAY_OK, "%s",
                 assay_error_message());
    static const char *const names[] = {"e4m3", "e8m0"};
    for (int k = 0; k < 2; k++) {
        char value[32];
        snprintf(value, sizeof value, "%s_value", names[k]);
        const assay_tensor_info *code = assay_tensorfile_find(f, names[k]),
                                *expected = assay_tensorfile_find(f, value);
        cr_assert(code && expected && code->count == 256 && expected->dtype == ASSAY_F64);
        for (int64_t i = 0; i < 256; i++) {
            const double x = ref_stored_element(code->data, code->dtype, i);
            const double y = ref_stored_element(expected->data, ASSAY_F64, i);
            cr_expect(isnan(y) ? isnan(x) : x == y && signbit(x) == signbit(y), "%s %lld: %g, expected %g",
                      names[k], (long long)i, x, y);
        }
    }
    assay_tensorfile_close(f);
}

/* Every code is its own, halfway between two is the even one, a hair beside it the nearer, and beyond the greatest is the greatest. */
Test(ref_weights_read, fp8_codes_are_the_nearest)
{
    for (unsigned code = 0; code < 0x7E; code++) {
        const unsigned char low = (unsigned char)code, high = (unsigned char)(code + 1);
        const double a = ref_stored_element(&low, ASSAY_F8_E4M3, 0),
                     b = ref_stored_element(&high, ASSAY_F8_E4M3, 0);
        const double middle = a + (b - a) / 2;
        const unsigned char even = code % 2 == 0 ? low : high;
        cr_expect(ref_e4m3_code(a) == low && ref_e4m3_code(b) == high, "%#x", code);
        cr_expect(ref_e4m3_code(middle) == even && ref_e4m3_code(-middle) == (even | 0x80), "%#x", code);
        cr_expect(ref_e4m3_code(nextafter(middle, 0.0)) == low &&
                      ref_e4m3_code(nextafter(middle, 1e9)) == high,
                  "%#x", code);
    }
    cr_expect(ref_e4m3_code(-0.0) == 0x80 && ref_e4m3_code(449.0) == 0x7E && ref_e4m3_code(-1e300) == 0xFE);
}

Test(ref_weights_read, fp8_blocks_refuse_what_they_cannot_hold)
{
    const ref_fp8_blocks b = {.height = 1, .width = 3, .rows = 1, .columns = 2}, powers = {1, 3, 1, 2, true};
    static const struct {
        double x[3];
        assay_status single, power;
    } rows[] = {{{1.0, 2.0, 0.0}, ASSAY_OK, ASSAY_OK},
                {{1.0, 2.0, (double)NAN}, ASSAY_LIMIT, ASSAY_LIMIT},
                {{HUGE_VAL, 2.0, 0.0}, ASSAY_LIMIT, ASSAY_LIMIT},
                {{0.0, 0.0, 1e42}, ASSAY_LIMIT, ASSAY_LIMIT},
                {{0.0, 0.0, 0x1p136}, ASSAY_OK, ASSAY_LIMIT}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t codes[3];
        float scales[2];
        cr_expect_eq(ref_fp8_quantize(rows[i].x, &b, codes, scales), rows[i].single, "row %zu", i);
        cr_expect_eq(ref_fp8_quantize(rows[i].x, &powers, codes, scales), rows[i].power, "row %zu", i);
    }
}
