/* Element types and checked products. */
#include "core/base/dtype.h"
#include "tests/support/core.h"

Test(core_dtype, names_and_sizes)
{
    static const struct {
        const char *name;
        assay_dtype dtype;
        int bits;
        int64_t bytes;
    } rows[] = {
        {"BOOL", ASSAY_BOOL, 8, 1},       {"F4", ASSAY_F4, 4, 0},
        {"F6_E2M3", ASSAY_F6_E2M3, 6, 0}, {"F6_E3M2", ASSAY_F6_E3M2, 6, 0},
        {"U8", ASSAY_U8, 8, 1},           {"I8", ASSAY_I8, 8, 1},
        {"F8_E5M2", ASSAY_F8_E5M2, 8, 1}, {"F8_E4M3", ASSAY_F8_E4M3, 8, 1},
        {"F8_E8M0", ASSAY_F8_E8M0, 8, 1}, {"F8_E4M3FNUZ", ASSAY_F8_E4M3FNUZ, 8, 1},
        {"I16", ASSAY_I16, 16, 2},        {"F8_E5M2FNUZ", ASSAY_F8_E5M2FNUZ, 8, 1},
        {"U16", ASSAY_U16, 16, 2},        {"F16", ASSAY_F16, 16, 2},
        {"BF16", ASSAY_BF16, 16, 2},      {"I32", ASSAY_I32, 32, 4},
        {"U32", ASSAY_U32, 32, 4},        {"F32", ASSAY_F32, 32, 4},
        {"C64", ASSAY_C64, 64, 8},        {"F64", ASSAY_F64, 64, 8},
        {"I64", ASSAY_I64, 64, 8},        {"U64", ASSAY_U64, 64, 8},
    };
    cr_assert_eq(sizeof rows / sizeof rows[0], ASSAY_DTYPE_COUNT);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assay_dtype dtype = ASSAY_DTYPE_COUNT;
        expect_ok(assay_dtype_from_name(rows[i].name, &dtype));
        cr_expect_eq(dtype, rows[i].dtype, "%s", rows[i].name);
        cr_expect_str_eq(assay_dtype_name(dtype), rows[i].name);
        cr_expect_eq(assay_dtype_bits(dtype), rows[i].bits, "%s", rows[i].name);
        cr_expect_eq(assay_dtype_bytes(dtype), rows[i].bytes, "%s", rows[i].name);
    }
}

Test(core_dtype, formats_match_the_compiler)
{
    cr_expect_eq(assay_dtype_precision(ASSAY_F32), __FLT_MANT_DIG__);
    cr_expect_eq(assay_dtype_emin(ASSAY_F32), __FLT_MIN_EXP__ - 1);
    cr_expect_eq(assay_dtype_emax(ASSAY_F32), __FLT_MAX_EXP__ - 1);
    cr_expect_eq(assay_dtype_precision(ASSAY_F64), __DBL_MANT_DIG__);
    cr_expect_eq(assay_dtype_emin(ASSAY_F64), __DBL_MIN_EXP__ - 1);
    cr_expect_eq(assay_dtype_emax(ASSAY_F64), __DBL_MAX_EXP__ - 1);
    cr_expect_eq(assay_dtype_precision(ASSAY_BF16), 8);
    cr_expect_eq(assay_dtype_emin(ASSAY_BF16), assay_dtype_emin(ASSAY_F32));
    cr_expect_eq(assay_dtype_precision(ASSAY_F16), 11);
    cr_expect_eq(assay_dtype_emax(ASSAY_F16), 15);
}

Test(core_dtype, integers_and_bools_are_not_floats)
{
    cr_expect(assay_dtype_is_float(ASSAY_BF16));
    cr_expect(assay_dtype_is_float(ASSAY_F8_E8M0));
    cr_expect(!assay_dtype_is_float(ASSAY_I64));
    cr_expect(!assay_dtype_is_float(ASSAY_BOOL));
    cr_expect(!assay_dtype_is_float(ASSAY_C64));
}

Test(core_dtype, unknown_names_are_named)
{
    static const char *const wrong[] = {"", "f32", "F33", "BF16 ", "float32"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char expected[64];
        assay_dtype dtype = ASSAY_F64;
        snprintf(expected, sizeof expected, "unknown dtype '%s'", wrong[i]);
        expect_error(assay_dtype_from_name(wrong[i], &dtype), ASSAY_UNSUPPORTED, expected);
        cr_expect_eq(dtype, ASSAY_F64);
    }
}

Test(core_dtype, a_value_outside_the_enum_is_a_question_mark)
{
    cr_expect_str_eq(assay_dtype_name(ASSAY_DTYPE_COUNT), "?");
    cr_expect_str_eq(assay_dtype_name((assay_dtype)1000), "?");
    cr_expect_eq(assay_dtype_bytes((assay_dtype)1000), 0);
}

Test(core_dtype, the_writer_order_never_lowers_alignment)
{
    for (int i = 1; i < ASSAY_DTYPE_COUNT; i++)
        cr_expect(assay_dtype_bytes((assay_dtype)i) >= assay_dtype_bytes((assay_dtype)(i - 1)) ||
                      assay_dtype_bytes((assay_dtype)i) == 0,
                  "%s", assay_dtype_name((assay_dtype)i));
}

Test(core_dtype, products_and_sums_are_checked)
{
    static const struct {
        int64_t a, b;
        bool mul, add;
    } rows[] = {
        {0, 0, true, true},
        {0, INT64_MAX, true, true},
        {3, 5, true, true},
        {INT64_MAX, 1, true, false},
        {INT64_MAX, 2, false, false},
        {(int64_t)1 << 31, (int64_t)1 << 31, true, true},
        {(int64_t)1 << 32, (int64_t)1 << 31, false, true},
        {-1, 1, false, false},
        {1, -1, false, false},
        {INT64_MIN, 0, false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t out = -7;
        cr_expect_eq(assay_mul_i64(rows[i].a, rows[i].b, &out), rows[i].mul, "row %zu", i);
        cr_expect_eq(out, rows[i].mul ? rows[i].a * rows[i].b : -7, "row %zu", i);
        out = -7;
        cr_expect_eq(assay_add_i64(rows[i].a, rows[i].b, &out), rows[i].add, "row %zu", i);
        cr_expect_eq(out, rows[i].add ? rows[i].a + rows[i].b : -7, "row %zu", i);
    }
}

Test(core_dtype, shape_counts)
{
    int64_t count = -1;
    cr_expect(assay_shape_count(NULL, 0, &count) && count == 1);
    cr_expect(assay_shape_count((int64_t[]){2, 3, 5}, 3, &count) && count == 30);
    cr_expect(assay_shape_count((int64_t[]){2, 0, 5}, 3, &count) && count == 0);
    cr_expect(!assay_shape_count((int64_t[]){(int64_t)1 << 40, (int64_t)1 << 40}, 2, &count));
    cr_expect(!assay_shape_count((int64_t[]){2, -3}, 2, &count));
    cr_expect_eq(count, 0, "a refused count leaves the result alone");
}
