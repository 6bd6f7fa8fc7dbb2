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
    expect(f, e, ASSAY_F32, "never written");
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
