/* Numbers from stored bytes. */
#include "parity/judge/judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool parity_is_integer(assay_dtype dtype)
{
    switch (dtype) {
    case ASSAY_BOOL:
    case ASSAY_U8:
    case ASSAY_I8:
    case ASSAY_I16:
    case ASSAY_U16:
    case ASSAY_I32:
    case ASSAY_U32:
    case ASSAY_I64:
    case ASSAY_U64:
        return true;
    default:
        return false;
    }
}

bool parity_can_decode(assay_dtype dtype)
{
    switch (dtype) {
    case ASSAY_F64:
    case ASSAY_F32:
    case ASSAY_BF16:
    case ASSAY_F16:
    case ASSAY_F8_E4M3:
    case ASSAY_F8_E5M2:
        return true;
    default:
        return parity_is_integer(dtype);
    }
}

/* Sign, exponent and fraction of a small format with a bias of emax (IEEE: all-ones exponent is special). */
static double decode_small(uint32_t bits, int exponent_bits, int fraction_bits, bool ieee)
{
    const uint32_t fraction = bits & ((1u << fraction_bits) - 1u);
    const int top = (1 << exponent_bits) - 1;
    const int exponent = (int)(bits >> fraction_bits) & top;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const bool negative = (bits >> (exponent_bits + fraction_bits)) & 1u;
    double x;
    if (exponent == top && ieee)
        x = fraction ? (double)NAN : (double)INFINITY;
    else if (exponent == top && !ieee && fraction == (1u << fraction_bits) - 1u)
        x = (double)NAN; /* E4M3 has one NaN and no infinity */
    else if (exponent == 0)
        x = ldexp((double)fraction, 1 - bias - fraction_bits);
    else
        x = ldexp((double)(fraction | (1u << fraction_bits)), exponent - bias - fraction_bits);
    return negative ? -x : x;
}

static double decode_f32(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

int64_t parity_decode_integer(const void *data, int64_t index, assay_dtype dtype)
{
    const unsigned char *p = (const unsigned char *)data + (size_t)index * (size_t)assay_dtype_bytes(dtype);
    uint64_t u = 0;
    memcpy(&u, p, (size_t)assay_dtype_bytes(dtype));
    switch (dtype) {
    case ASSAY_I8:
        return (int8_t)u;
    case ASSAY_I16:
        return (int16_t)u;
    case ASSAY_I32:
        return (int32_t)u;
    default:
        return (int64_t)u;
    }
}

double parity_decode(const void *data, int64_t index, assay_dtype dtype)
{
    const unsigned char *p = (const unsigned char *)data + (size_t)index * (size_t)assay_dtype_bytes(dtype);
    double d;
    uint32_t w = 0;
    switch (dtype) {
    case ASSAY_F64:
        memcpy(&d, p, sizeof d);
        return d;
    case ASSAY_F32:
        memcpy(&w, p, 4);
        return decode_f32(w);
    case ASSAY_BF16:
        memcpy(&w, p, 2);
        return decode_f32(w << 16);
    case ASSAY_F16:
        memcpy(&w, p, 2);
        return decode_small(w, 5, 10, true);
    case ASSAY_F8_E4M3:
        return decode_small(*p, 4, 3, false);
    case ASSAY_F8_E5M2:
        return decode_small(*p, 5, 2, true);
    case ASSAY_U64:
        return (double)(uint64_t)parity_decode_integer(data, index, dtype);
    default:
        return parity_is_integer(dtype) ? (double)parity_decode_integer(data, index, dtype) : (double)NAN;
    }
}

assay_status parity_decode_all(const void *data, int64_t count, assay_dtype dtype, double **out)
{
    *out = NULL;
    ASSAY_CHECK(parity_can_decode(dtype), ASSAY_UNSUPPORTED, "values of dtype %s cannot be compared",
                assay_dtype_name(dtype));
    ASSAY_CHECK(data || count == 0, ASSAY_NOT_FOUND, "the trace holds no data (hash-only)");
    double *values = malloc(((size_t)count + 1) * sizeof *values);
    ASSAY_CHECK(values, ASSAY_OUT_OF_MEMORY, "%lld values", (long long)count);
    const unsigned char *p = data;
    if (dtype == ASSAY_F32) {
        for (int64_t i = 0; i < count; i++) {
            float f;
            memcpy(&f, p + 4 * i, 4);
            values[i] = (double)f;
        }
    } else if (dtype == ASSAY_BF16) {
        for (int64_t i = 0; i < count; i++)
            values[i] = decode_f32((uint32_t)(p[2 * i] | p[2 * i + 1] << 8) << 16);
    } else {
        for (int64_t i = 0; i < count; i++)
            values[i] = parity_decode(data, i, dtype);
    }
    *out = values;
    return ASSAY_OK;
}

assay_status parity_decode_integers(const void *data, int64_t count, assay_dtype dtype, int64_t **out)
{
    *out = NULL;
    ASSAY_CHECK(parity_is_integer(dtype), ASSAY_UNSUPPORTED, "expected an integer dtype, found %s",
                assay_dtype_name(dtype));
    ASSAY_CHECK(data || count == 0, ASSAY_NOT_FOUND, "the trace holds no data (hash-only)");
    int64_t *values = malloc(((size_t)count + 1) * sizeof *values);
    ASSAY_CHECK(values, ASSAY_OUT_OF_MEMORY, "%lld values", (long long)count);
    for (int64_t i = 0; i < count; i++)
        values[i] = parity_decode_integer(data, i, dtype);
    *out = values;
    return ASSAY_OK;
}

void parity_unflatten(int64_t flat, const int64_t *shape, int ndim, int64_t *index)
{
    for (int d = ndim - 1; d >= 0; d--) {
        const int64_t extent = shape[d] > 0 ? shape[d] : 1;
        index[d] = flat % extent;
        flat /= extent;
    }
}

void parity_index_text(const int64_t *index, int ndim, char *out, size_t capacity)
{
    size_t used = (size_t)snprintf(out, capacity, "[");
    for (int d = 0; d < ndim && used < capacity; d++)
        used += (size_t)snprintf(out + used, capacity - used, "%s%lld", d ? ", " : "", (long long)index[d]);
    if (used < capacity)
        snprintf(out + used, capacity - used, "]");
}
