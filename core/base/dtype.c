/* Element types: one table, read by every function. */
#include "core/base/dtype.h"

#include <string.h>

typedef struct dtype_row {
    const char *name;
    int bits, precision, emin, emax;
} dtype_row;

static const dtype_row table[ASSAY_DTYPE_COUNT] = {
#define ASSAY_DTYPE_ROW(name, text, bits, p, emin, emax) [ASSAY_##name] = {text, bits, p, emin, emax},
    ASSAY_DTYPE_MAP(ASSAY_DTYPE_ROW)
#undef ASSAY_DTYPE_ROW
};

/* A value outside the enum (it may come from a file or a bug) reads as a row of zeros. */
static const dtype_row *row_of(assay_dtype dtype)
{
    static const dtype_row unknown = {"?", 0, 0, 0, 0};
    const int64_t index = (int64_t)dtype;
    return index >= 0 && index < ASSAY_DTYPE_COUNT ? &table[index] : &unknown;
}

const char *assay_dtype_name(assay_dtype dtype)
{
    return row_of(dtype)->name;
}

assay_status assay_dtype_from_name(const char *name, assay_dtype *out)
{
    for (int i = 0; i < ASSAY_DTYPE_COUNT; i++) {
        if (strcmp(table[i].name, name) == 0) {
            *out = (assay_dtype)i;
            return ASSAY_OK;
        }
    }
    ASSAY_FAIL(ASSAY_UNSUPPORTED, "unknown dtype '%.64s'", name);
}

int assay_dtype_bits(assay_dtype dtype)
{
    return row_of(dtype)->bits;
}

int64_t assay_dtype_bytes(assay_dtype dtype)
{
    const int bits = row_of(dtype)->bits;
    return bits % 8 == 0 ? bits / 8 : 0;
}

int assay_dtype_precision(assay_dtype dtype)
{
    return row_of(dtype)->precision;
}

int assay_dtype_emin(assay_dtype dtype)
{
    return row_of(dtype)->emin;
}

int assay_dtype_emax(assay_dtype dtype)
{
    return row_of(dtype)->emax;
}

bool assay_dtype_is_float(assay_dtype dtype)
{
    return row_of(dtype)->precision > 0;
}

bool assay_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t product;
    if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product))
        return false;
    *out = product;
    return true;
}

bool assay_add_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t sum;
    if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &sum))
        return false;
    *out = sum;
    return true;
}

bool assay_shape_count(const int64_t *shape, int ndim, int64_t *out)
{
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) {
        if (!assay_mul_i64(count, shape[i], &count))
            return false;
    }
    *out = count;
    return true;
}
