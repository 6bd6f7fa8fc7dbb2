/* Formats of files: sign, exponent, fraction.  Source: IEEE 754; bfloat16; OCP OFP8 (E4M3 has one NaN and no infinity) and OCP MX (E8M0). */
#include "ref/weights_read.h"

#include "ref/replay.h"
#include <math.h>
#include <string.h>

/* `bias` and `digits` of a small format whose exponent has `bits`. */
static double small_to_double(unsigned h, int bits, int digits, int bias)
{
    const unsigned exponent = (h >> digits) & ((1u << bits) - 1), fraction = h & ((1u << digits) - 1);
    const double x = exponent == 0
                         ? ldexp((double)fraction, 1 - bias - digits)
                         : ldexp((double)(fraction + (1u << digits)), (int)exponent - bias - digits);
    return (h >> (bits + digits)) & 1u ? -x : x;
}

static double half_to_double(uint16_t h)
{
    if ((h & 0x7C00u) != 0x7C00u)
        return small_to_double(h, 5, 10, 15);
    return h & 0x3FFu ? (double)NAN : copysign(HUGE_VAL, h & 0x8000u ? -1.0 : 1.0);
}

double ref_stored_element(const void *data, assay_dtype dtype, int64_t i)
{
    const unsigned char *at = (const unsigned char *)data + i * assay_dtype_bytes(dtype);
    uint16_t h;
    uint32_t bits;
    float single;
    double x;
    switch (dtype) {
    case ASSAY_F64:
        memcpy(&x, at, sizeof x);
        return x;
    case ASSAY_F32:
        memcpy(&single, at, sizeof single);
        return (double)single;
    case ASSAY_BF16:
        memcpy(&h, at, sizeof h);
        bits = (uint32_t)h << 16;
        memcpy(&single, &bits, sizeof single);
        return (double)single;
    case ASSAY_F16:
        memcpy(&h, at, sizeof h);
        return half_to_double(h);
    case ASSAY_F8_E4M3:
        return (*at & 0x7Fu) == 0x7Fu ? (double)NAN : small_to_double(*at, 4, 3, 7);
    case ASSAY_F8_E8M0:
        return *at == 0xFFu ? (double)NAN : ldexp(1.0, (int)*at - 127);
    default:
        return (double)NAN;
    }
}

assay_status ref_stored_read(const assay_tensorfile *f, const assay_quantization *q,
                             const assay_tensor_info *t, double *out)
{
    assay_block_scales s;
    ASSAY_CHECK(t->dtype == ASSAY_F64 || t->dtype == ASSAY_F32 || t->dtype == ASSAY_BF16 ||
                    t->dtype == ASSAY_F16 || t->dtype == ASSAY_F8_E4M3,
                ASSAY_UNSUPPORTED, "%s: expected F64, F32, BF16, F16 or F8_E4M3, found %s", t->name,
                assay_dtype_name(t->dtype));
    ASSAY_TRY(assay_block_scales_of(f, q, t, &s));
    for (int64_t i = 0; i < t->count; i++)
        out[i] = ref_stored_element(t->data, t->dtype, i);
    for (int64_t i = 0; s.scale != NULL && i < t->count; i++)
        out[i] *= ref_stored_element(s.scale->data, s.scale->dtype, assay_block_scale_at(&s, i));
    return ASSAY_OK;
}

/* --- back --------------------------------------------------------------------------------------------------- */
/* The bits of y, which the format holds. */
static uint16_t half_bits(double y)
{
    int exponent;
    const uint16_t sign = signbit(y) ? 0x8000u : 0;
    if (isnan(y))
        return 0x7E00u;
    if (isinf(y))
        return sign | 0x7C00u;
    const double fraction = frexp(fabs(y), &exponent); /* [0.5, 1) */
    if (fabs(y) < 0x1p-14)
        return sign | (uint16_t)(fabs(y) * 0x1p24);
    return (uint16_t)(sign | (unsigned)(exponent + 14) << 10 | ((unsigned)(fraction * 2048.0) & 0x3FFu));
}

assay_status ref_stored_write(const double *x, int64_t count, assay_dtype dtype, void *data,
                              int64_t *overflow)
{
    char *at = data;
    const size_t width = (size_t)assay_dtype_bytes(dtype);
    ASSAY_CHECK(dtype == ASSAY_F64 || dtype == ASSAY_F32 || dtype == ASSAY_BF16 || dtype == ASSAY_F16,
                ASSAY_UNSUPPORTED, "expected F64, F32, BF16 or F16, found %s", assay_dtype_name(dtype));
    *overflow = -1;
    for (int64_t i = 0; i < count; i++, at += width) {
        const double y = ref_round(x[i], dtype);
        const float single = (float)y;
        uint32_t bits;
        uint16_t h;
        if (isfinite(x[i]) && !isfinite(y) && *overflow < 0)
            *overflow = i;
        memcpy(&bits, &single, sizeof bits);
        if (dtype == ASSAY_F64)
            memcpy(at, &y, width);
        else if (dtype == ASSAY_F32)
            memcpy(at, &single, width);
        else {
            h = dtype == ASSAY_F16 ? half_bits(y) : (uint16_t)(bits >> 16 | (isnan(y) ? 0x40u : 0));
            memcpy(at, &h, width);
        }
    }
    return ASSAY_OK;
}
