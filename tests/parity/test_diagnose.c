/* Each kind of mistake is recognised; an innocent difference is not explained away. */
#include "tests/support/parity.h"

enum { ROWS = 6, COLUMNS = 4, N = ROWS * COLUMNS };
static const parity_scales scales = {
    .tp = 2, .dp = 3, .ep = 1, .pp = 1, .cp = 1, .microbatches = 5, .topk = 7, .world = 12};
static const int64_t shape[2] = {ROWS, COLUMNS};

static void make(double *e)
{
    for (int i = 0; i < N; i++)
        e[i] = sin(1.7 * i + 0.3) + 0.01 * i;
}

static void expect(const double *f, const double *e, assay_dtype stored, const char *word)
{
    char text[PARITY_TEXT];
    double allowance[N];
    for (int i = 0; i < N; i++)
        allowance[i] = 1e-7;
    parity_diagnose(f, e, allowance, shape, 2, stored, &scales, text);
    cr_assert(strstr(text, word), "expected '%s' in '%s'", word, text);
}

Test(parity_diagnose, constant_ratio_names_the_group_size)
{
    double e[N], f[N];
    make(e);
    for (int i = 0; i < N; i++)
        f[i] = 2.0 * e[i];
    expect(f, e, ASSAY_F32, "2 times the expected one = tp");
    for (int i = 0; i < N; i++)
        f[i] = e[i] / 3.0;
    expect(f, e, ASSAY_F32, "= 1/dp");
    for (int i = 0; i < N; i++)
        f[i] = 5.0 * e[i];
    expect(f, e, ASSAY_F32, "= microbatches");
    for (int i = 0; i < N; i++)
        f[i] = 7.0 * e[i];
    expect(f, e, ASSAY_F32, "= top-k");
}

Test(parity_diagnose, flipped_sign)
{
    double e[N], f[N];
    make(e);
    for (int i = 0; i < N; i++)
        f[i] = -e[i];
    expect(f, e, ASSAY_F32, "sign is flipped");
}

Test(parity_diagnose, transposition)
{
    double e[N], f[N];
    make(e);
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLUMNS; j++)
            f[j * ROWS + i] = e[i * COLUMNS + j];
    }
    expect(f, e, ASSAY_F32, "transposed");
}

Test(parity_diagnose, permuted_rows)
{
    double e[N], f[N];
    make(e);
    memcpy(f, e, sizeof f);
    memcpy(f + 1 * COLUMNS, e + 4 * COLUMNS, COLUMNS * sizeof *f);
    memcpy(f + 4 * COLUMNS, e + 1 * COLUMNS, COLUMNS * sizeof *f);
    expect(f, e, ASSAY_F32, "row 1 holds row 4");
}

Test(parity_diagnose, rows_shifted_by_one)
{
    double e[N], f[N];
    make(e);
    memcpy(f, e, sizeof f);
    memcpy(f + COLUMNS, e, (N - COLUMNS) * sizeof *f);
    expect(f, e, ASSAY_F32, "shifted by one: row i holds row i-1");
    memcpy(f, e + COLUMNS, (N - COLUMNS) * sizeof *f);
    expect(f, e, ASSAY_F32, "shifted by one: row i holds row i+1");
}

Test(parity_diagnose, zeros_and_poison)
{
    double e[N], f[N];
    make(e);
    memcpy(f, e, sizeof f);
    for (int j = 0; j < COLUMNS; j++)
        f[2 * COLUMNS + j] = 0.0;
    expect(f, e, ASSAY_F32, "zero where values belong");
    expect(f, e, ASSAY_F32, "only slice 2 of 6 of dimension 0");
    const uint32_t poison = 0x7fa5a5a5u;
    float p;
    memcpy(&p, &poison, 4);
    for (int j = 0; j < COLUMNS; j++)
        f[2 * COLUMNS + j] = (double)p;
    expect(f, e, ASSAY_F32, "poison, never written or made of unwritten memory");
}

/* Where no finite value belongs, none is missed. */
Test(parity_diagnose, classes_in_each_other_s_places)
{
    double e[N], f[N];
    make(e);
    memcpy(f, e, sizeof f);
    e[9] = (double)NAN;
    f[9] = (double)INFINITY;
    expect(f, e, ASSAY_F32, "1 infinities where NaN belong");
    e[10] = -(double)INFINITY;
    f[10] = (double)NAN;
    expect(f, e, ASSAY_F32, "1 NaN where infinities belong, 1 infinities where NaN belong");
    f[11] = (double)NAN;
    expect(f, e, ASSAY_F32, "1 NaN and 0 infinities where finite values belong, the first at [2, 3]");
}

Test(parity_diagnose, first_nan_is_named)
{
    double e[N], f[N];
    make(e);
    memcpy(f, e, sizeof f);
    f[9] = (double)NAN;
    expect(f, e, ASSAY_F32, "the first at [2, 1]");
    f[10] = (double)INFINITY;
    expect(f, e, ASSAY_F32, "1 NaN and 1 infinities");
}

Test(parity_diagnose, one_slice_and_one_shard)
{
    double e[N], f[N];
    make(e);
    memcpy(f, e, sizeof f);
    for (int i = 0; i < ROWS; i++)
        f[i * COLUMNS + 3] += 0.1 * (i + 1) * (i + 2);
    expect(f, e, ASSAY_F32, "only slice 3 of 4 of dimension 1");
    memcpy(f, e, sizeof f);
    for (int i = 3 * COLUMNS; i < N; i++)
        f[i] += 0.1 * i * i;
    expect(f, e, ASSAY_F32, "only shard 1 of 2 along dimension 0");
}

Test(parity_diagnose, bf16_grid)
{
    double e[N], f[N];
    make(e);
    for (int i = 0; i < N; i++) {
        float x = (float)e[i];
        uint32_t u;
        memcpy(&u, &x, 4);
        u &= 0xffff0000u;
        memcpy(&x, &u, 4);
        f[i] = (double)x;
    }
    expect(f, e, ASSAY_F32, "bf16 grid");
}

Test(parity_diagnose, one_element_and_nothing)
{
    double e[N], f[N];
    char text[PARITY_TEXT] = "x";
    make(e);
    memcpy(f, e, sizeof f);
    parity_diagnose(f, e, NULL, shape, 2, ASSAY_F32, NULL, text);
    cr_assert_str_eq(text, "");
    f[7] += 1.0;
    expect(f, e, ASSAY_F32, "only the element [1, 3] is wrong");
    parity_diagnose(NULL, NULL, NULL, (int64_t[]){0, 4}, 2, ASSAY_F32, NULL, text);
    cr_assert_str_eq(text, "");
}

/* --- when a kind must not be said ---------------------------------------------------------------------------- */

/* What is said of `count` values as an array of `ndim` dimensions. */
static const char *said(const double *f, const double *e, const double *allowance, const int64_t *dims,
                        int ndim, assay_dtype stored)
{
    static char text[PARITY_TEXT];
    parity_diagnose(f, e, allowance, dims, ndim, stored, &scales, text);
    return text;
}

static double round_to_bf16(double x)
{
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, 4);
    u = (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
    memcpy(&f, &u, 4);
    return (double)f;
}

/* The right values, off by a little more than is allowed. */
Test(parity_diagnose, rounding_errors_are_not_explained_away)
{
    enum { R = 8, C = 32, M = R * C };
    double e[M], f[M], allowance[M];
    for (int i = 0; i < M; i++) {
        e[i] = sin(1.7 * i + 0.3);
        allowance[i] = fabs(e[i]) * 0x1p-9;
        f[i] = round_to_bf16(e[i] * (1.0 + (i % 3 == 0 ? 0x1p-7 : i % 3 == 1 ? -0x1p-7 : 0.0)));
    }
    cr_assert_str_eq(said(f, e, allowance, (int64_t[]){R, C}, 2, ASSAY_BF16), "");
    cr_assert_str_eq(said(f, e, allowance, (int64_t[]){M}, 1, ASSAY_BF16), "");
    for (int i = 0; i < M; i++) {
        allowance[i] = fabs(e[i]) * 0x1p-24;
        f[i] = e[i] * (1.0 + (i % 2 ? 3e-7 : -2.7e-7));
    }
    cr_assert_str_eq(said(f, e, allowance, (int64_t[]){R, C}, 2, ASSAY_F32), "");
}

/* Another eps in a norm: each row by a factor of its own, near 1. */
Test(parity_diagnose, another_eps_is_neither_a_permutation_nor_a_factor)
{
    enum { R = 16, C = 16, M = R * C };
    double e[M], f[M], allowance[M];
    for (int i = 0; i < M; i++) {
        e[i] = cos(0.9 * i) + 0.1;
        allowance[i] = fabs(e[i]) * 0x1p-9;
        f[i] = round_to_bf16(e[i] * (1.0 - 0.002 * (1 + i / C)));
    }
    const char *text = said(f, e, allowance, (int64_t[]){R, C}, 2, ASSAY_BF16);
    cr_assert(!strstr(text, "row ") && !strstr(text, "rows") && !strstr(text, "times"), "%s", text);
}

Test(parity_diagnose, a_scalar_has_no_place)
{
    const double e[1] = {6.25}, f[1] = {6.31}, allowance[1] = {1e-3};
    cr_assert_str_eq(said(f, e, allowance, (int64_t[]){1}, 1, ASSAY_F32), "");
    cr_assert_str_eq(said(f, e, allowance, NULL, 0, ASSAY_F32), "");
}

Test(parity_diagnose, a_scalar_may_be_a_group_size_too_large)
{
    const double e[1] = {6.25}, f[1] = {12.5}, allowance[1] = {1e-6};
    cr_assert(strstr(said(f, e, allowance, (int64_t[]){1}, 1, ASSAY_F32), "the wrong value is 2 times"), "%s",
              said(f, e, allowance, (int64_t[]){1}, 1, ASSAY_F32));
}

/* 2 stands beside 1 everywhere in it: no evidence that anything moved. */
Test(parity_diagnose, repeated_values_did_not_move)
{
    const double e[8] = {1, 2, 1, 1, 2, 2, 1, 2}, f[8] = {1, 1, 2, 1, 2, 2, 1, 2};
    const char *text = said(f, e, NULL, (int64_t[]){8}, 1, ASSAY_F32);
    cr_assert(!strstr(text, "row"), "%s", text);
    const double ramp[8] = {0, 0, 0, 0, 1, 1, 1, 1}, early[8] = {0, 0, 1, 1, 1, 1, 1, 1};
    const char *other = said(early, ramp, NULL, (int64_t[]){8}, 1, ASSAY_F32);
    cr_assert(!strstr(other, "row"), "%s", other);
}

Test(parity_diagnose, a_symmetric_matrix_is_not_transposed)
{
    enum { S = 6 };
    double e[S * S], f[S * S];
    for (int i = 0; i < S * S; i++) {
        const int row = i / S, column = i % S;
        e[i] = sin(1.3 * (row + column) + 0.7 * abs(row - column));
        f[i] = e[i] * (1.0 + 4e-7 * (i % 3));
    }
    cr_assert_str_eq(said(f, e, NULL, (int64_t[]){S, S}, 2, ASSAY_F32), "");
}

/* Rows that hold nothing known are not rows of something else. */
Test(parity_diagnose, unknown_values_have_no_kind)
{
    double e[N], f[N];
    make(e);
    for (int i = 0; i < N; i++)
        f[i] = cos(5.3 * i + 0.1);
    cr_assert_str_eq(said(f, e, NULL, shape, 2, ASSAY_F32), "");
}

/* A constant that is off may as well have been added to. */
Test(parity_diagnose, a_constant_has_no_factor_without_a_name)
{
    double e[8], f[8];
    for (int i = 0; i < 8; i++) {
        e[i] = 0.25;
        f[i] = 0.3;
    }
    const char *text = said(f, e, NULL, (int64_t[]){8}, 1, ASSAY_F32);
    cr_assert(!strstr(text, "every wrong value"), "%s", text);
}

/* Most values are near what was expected: no factor of 0.97. */
Test(parity_diagnose, near_one_is_no_usual_factor)
{
    double e[N], f[N];
    make(e);
    for (int i = 0; i < N; i++)
        f[i] = e[i] * (0.97 + 0.001 * (i % 7));
    const char *text = said(f, e, NULL, shape, 2, ASSAY_F32);
    cr_assert(!strstr(text, "times"), "%s", text);
}

Test(parity_diagnose, half_the_signs_are_not_the_sign)
{
    double e[N], f[N];
    make(e);
    for (int i = 0; i < N; i++)
        f[i] = i % 2 ? -e[i] : 1.3 * e[i] + 0.2;
    const char *text = said(f, e, NULL, shape, 2, ASSAY_F32);
    cr_assert(!strstr(text, "sign"), "%s", text);
}

Test(parity_diagnose, plain_numbers_are_not_rounded_to_bf16)
{
    double e[N], f[N];
    make(e);
    for (int i = 0; i < N; i++)
        f[i] = 1.0 + i % 2;
    const char *text = said(f, e, NULL, shape, 2, ASSAY_F32);
    cr_assert(!strstr(text, "bf16"), "%s", text);
    for (int i = 0; i < N; i++)
        e[i] = 0.5 * i;
    const char *lattice = said(f, e, NULL, shape, 2, ASSAY_F32);
    cr_assert(!strstr(lattice, "bf16"), "%s", lattice);
}

/* Two errors in a large tensor lie in one half of it half of the time. */
Test(parity_diagnose, two_scattered_errors_are_no_shard_and_no_slice)
{
    double e[N], f[N];
    make(e);
    memcpy(f, e, sizeof f);
    f[3 * COLUMNS] += 0.37;
    f[5 * COLUMNS + 2] -= 0.11;
    f[4 * COLUMNS + 1] += 0.23;
    cr_assert_str_eq(said(f, e, NULL, shape, 2, ASSAY_F32), "");
    memcpy(f, e, sizeof f);
    f[2 * COLUMNS] += 0.37;
    f[2 * COLUMNS + 2] -= 0.11;
    cr_assert_str_eq(said(f, e, NULL, shape, 2, ASSAY_F32), "");
}

Test(parity_diagnose, flushed_or_cancelled_is_not_a_missing_term)
{
    double e[N], f[N] = {0};
    for (int i = 0; i < N; i++)
        e[i] = 1e-40 * (i + 1);
    const char *text = said(f, e, NULL, shape, 2, ASSAY_F32);
    cr_assert(!strstr(text, "missing term") && strstr(text, "flushed"), "%s", text);
    make(e);
    memcpy(f, e, sizeof f);
    for (int i = 0; i < 6; i++) {
        e[3 * i] = 1e-8 * (i + 1);
        f[3 * i] = 0.0;
    }
    const char *cancelled = said(f, e, NULL, shape, 2, ASSAY_F32);
    cr_assert(!strstr(cancelled, "missing term"), "%s", cancelled);
}

/* What arithmetic makes, and what two different causes left, is not poison. */
Test(parity_diagnose, a_plain_nan_was_written)
{
    double e[N], f[N];
    make(e);
    memcpy(f, e, sizeof f);
    f[4] = f[9] = (double)NAN;
    const char *plain = said(f, e, NULL, shape, 2, ASSAY_F32);
    cr_assert(strstr(plain, "2 NaN") && !strstr(plain, "never written"), "%s", plain);
    const uint32_t patterns[2] = {0x7fa5a5a5u, 0x7fa12345u};
    float p[2];
    memcpy(p, patterns, sizeof p);
    f[4] = (double)p[0];
    f[9] = (double)p[1];
    const char *mixed = said(f, e, NULL, shape, 2, ASSAY_F32);
    cr_assert(!strstr(mixed, "never written"), "%s", mixed);
}

/* Rows out of order are named, with the row that each holds, never with itself. */
Test(parity_diagnose, a_row_never_holds_itself)
{
    double e[N], f[N];
    make(e);
    memcpy(f, e, sizeof f);
    memcpy(f + 2 * COLUMNS, e + 5 * COLUMNS, COLUMNS * sizeof *f);
    const char *text = said(f, e, NULL, shape, 2, ASSAY_F32);
    cr_assert(strstr(text, "1 row holds another row, row 2 holds row 5"), "%s", text);
}
