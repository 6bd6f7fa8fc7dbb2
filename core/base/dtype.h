/* Element types: names, sizes and format constants.  Core never touches an element's value. */
#ifndef ASSAY_CORE_DTYPE_H
#define ASSAY_CORE_DTYPE_H

#include "core/base/status.h"
#include <stdbool.h>
#include <stdint.h>

ASSAY_BEGIN_DECLS

/* X(enum, safetensors name, bits, precision p (bits of significand incl. the hidden one; 0: integer), emin,
 * emax) The order is the alignment order of the safetensors writer (later = more alignment). */
#define ASSAY_DTYPE_MAP(X)                                                                                   \
    X(BOOL, "BOOL", 8, 0, 0, 0)                                                                              \
    X(F4, "F4", 4, 2, 0, 2)                                                                                  \
    X(F6_E2M3, "F6_E2M3", 6, 4, 0, 2)                                                                        \
    X(F6_E3M2, "F6_E3M2", 6, 3, -2, 4)                                                                       \
    X(U8, "U8", 8, 0, 0, 0)                                                                                  \
    X(I8, "I8", 8, 0, 0, 0)                                                                                  \
    X(F8_E5M2, "F8_E5M2", 8, 3, -14, 15)                                                                     \
    X(F8_E4M3, "F8_E4M3", 8, 4, -6, 8)                                                                       \
    X(F8_E8M0, "F8_E8M0", 8, 1, -127, 127)                                                                   \
    X(F8_E4M3FNUZ, "F8_E4M3FNUZ", 8, 4, -7, 7)                                                               \
    X(F8_E5M2FNUZ, "F8_E5M2FNUZ", 8, 3, -15, 15)                                                             \
    X(I16, "I16", 16, 0, 0, 0)                                                                               \
    X(U16, "U16", 16, 0, 0, 0)                                                                               \
    X(F16, "F16", 16, 11, -14, 15)                                                                           \
    X(BF16, "BF16", 16, 8, -126, 127)                                                                        \
    X(I32, "I32", 32, 0, 0, 0)                                                                               \
    X(U32, "U32", 32, 0, 0, 0)                                                                               \
    X(F32, "F32", 32, 24, -126, 127)                                                                         \
    X(C64, "C64", 64, 0, 0, 0)                                                                               \
    X(F64, "F64", 64, 53, -1022, 1023)                                                                       \
    X(I64, "I64", 64, 0, 0, 0)                                                                               \
    X(U64, "U64", 64, 0, 0, 0)

typedef enum assay_dtype {
#define ASSAY_DTYPE_ENUM(name, text, bits, p, emin, emax) ASSAY_##name,
    ASSAY_DTYPE_MAP(ASSAY_DTYPE_ENUM)
#undef ASSAY_DTYPE_ENUM
        ASSAY_DTYPE_COUNT
} assay_dtype;

/* "BF16"; "?" for a value outside the enum. */
const char *assay_dtype_name(assay_dtype dtype);
/* Exact, case-sensitive name -> dtype; ASSAY_UNSUPPORTED names the unknown one. */
assay_status assay_dtype_from_name(const char *name, assay_dtype *out);
int assay_dtype_bits(assay_dtype dtype);
/* Whole bytes of one element; 0 for 4- and 6-bit types. */
int64_t assay_dtype_bytes(assay_dtype dtype);
/* Significand precision p (half-ulp relative error of round-to-nearest is 2^-p), smallest and largest normal
 * exponent. */
int assay_dtype_precision(assay_dtype dtype);
int assay_dtype_emin(assay_dtype dtype);
int assay_dtype_emax(assay_dtype dtype);
bool assay_dtype_is_float(assay_dtype dtype);

/* Checked products of sizes: false on overflow or a negative factor. */
bool assay_mul_i64(int64_t a, int64_t b, int64_t *out);
bool assay_add_i64(int64_t a, int64_t b, int64_t *out);
/* Product of a shape (1 for ndim 0), in order, checked. */
bool assay_shape_count(const int64_t *shape, int ndim, int64_t *out);

ASSAY_END_DECLS

#endif
