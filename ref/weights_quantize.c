/* Blocks of a weight into E4M3. */
#include "ref/weights_quantize.h"

#include <math.h>
#include <string.h>

/* E4M3: four digits of significance, ulps from 2^-9 (subnormal, and of [2^-6, 2^-5)) on; no infinity. */
enum { DIGITS = 4, LEAST_ULP = -9, GREATEST_CODE = 0x7E, E8M0_BIAS = 127 };
#define GREATEST 448.0
#define LEAST_SCALE (-126)

uint8_t ref_e4m3_code(double x)
{
    int exponent;
    const uint8_t sign = signbit(x) ? 0x80 : 0;
    if (fabs(x) >= GREATEST)
        return sign | GREATEST_CODE;
    (void)frexp(x, &exponent); /* |x| in [2^(exponent-1), 2^exponent) */
    const int ulp = x == 0.0 || exponent - DIGITS < LEAST_ULP ? LEAST_ULP : exponent - DIGITS;
    const int n =
        (int)nearbyint(ldexp(fabs(x), -ulp)); /* ties to even; the next power of two carries by itself */
    const int code = (ulp - LEAST_ULP) * 8 + n;
    return sign | (uint8_t)(code > GREATEST_CODE ? GREATEST_CODE : code);
}

typedef struct block {
    int64_t row, row_end, column, column_end;
} block;

static assay_status greatest(const double *x, int64_t width, const block *k, double *out)
{
    *out = 0.0;
    for (int64_t i = k->row; i < k->row_end; i++)
        for (int64_t j = k->column; j < k->column_end; j++) {
            const double a = fabs(x[i * width + j]);
            ASSAY_CHECK(isfinite(a), ASSAY_LIMIT, "element [%lld,%lld] is %g: fp8 blocks hold finite numbers",
                        (long long)i, (long long)j, x[i * width + j]);
            *out = a > *out ? a : *out;
        }
    return ASSAY_OK;
}

/* The exponent of the least power of two that is not below a / 448 = a / (7 * 2^6). */
static int power_above(double a)
{
    int exponent;
    const double f = frexp(a, &exponent); /* 448 = 0.875 * 2^9 */
    return exponent - 9 + (f > 0.875);
}

static assay_status scale_of(double a, bool power_of_two, double *scale)
{
    if (a == 0.0) {
        *scale = 1.0;
        return ASSAY_OK;
    }
    if (power_of_two) {
        const int e = power_above(a);
        ASSAY_CHECK(e <= E8M0_BIAS, ASSAY_LIMIT, "the scale of %g is more than F8_E8M0 holds", a);
        *scale = ldexp(1.0, e < LEAST_SCALE ? LEAST_SCALE : e);
        return ASSAY_OK;
    }
    const float single = (float)(a / GREATEST);
    ASSAY_CHECK(isfinite(single), ASSAY_LIMIT, "the scale of %g is more than F32 holds", a);
    *scale = fmax((double)single, ldexp(1.0, LEAST_SCALE));
    return ASSAY_OK;
}

static void store_scale(double scale, bool power_of_two, int64_t i, void *scales)
{
    const float single = (float)scale;
    if (power_of_two)
        ((uint8_t *)scales)[i] = (uint8_t)(ilogb(scale) + E8M0_BIAS);
    else
        memcpy((char *)scales + i * (int64_t)sizeof single, &single, sizeof single);
}

assay_status ref_fp8_quantize(const double *x, const ref_fp8_blocks *b, uint8_t *codes, void *scales)
{
    const int64_t down = ref_fp8_grid_rows(b), across = ref_fp8_grid_columns(b);
    for (int64_t g = 0; g < down * across; g++) {
        const int64_t row = g / across * b->rows, column = g % across * b->columns;
        const block k = {row, row + (b->rows < b->height - row ? b->rows : b->height - row), column,
                         column + (b->columns < b->width - column ? b->columns : b->width - column)};
        double a, scale;
        ASSAY_TRY(greatest(x, b->width, &k, &a));
        ASSAY_TRY(scale_of(a, b->power_of_two, &scale));
        store_scale(scale, b->power_of_two, g, scales);
        for (int64_t i = k.row; i < k.row_end; i++)
            for (int64_t j = k.column; j < k.column_end; j++)
                codes[i * b->width + j] = ref_e4m3_code(x[i * b->width + j] / scale);
    }
    return ASSAY_OK;
}
