/* What the judge asks of an engine's device (`assay probe`), as a file: the numbers that matrix units and functions are given.  The answer
 * has their results as F32, in the order of the questions: 256 for each product, one for each argument. */
#ifndef ASSAY_CORE_PROBE_H
#define ASSAY_CORE_PROBE_H

#include "core/base/status.h"
#include <stdint.h>

ASSAY_BEGIN_DECLS

enum { ASSAY_PROBE_TERMS = 32, ASSAY_PROBE_TILE = 256 };
#define ASSAY_PROBE_MAGIC "assay probe 1\n"

typedef struct assay_probe_header {
    char magic[16];
    int64_t products, functions;
} assay_probe_header;

/* One sum of 32 products of bf16 numbers, added to c, in every element of a tile of 16 x 16. */
typedef struct assay_probe_product {
    float c;
    uint16_t a[ASSAY_PROBE_TERMS], b[ASSAY_PROBE_TERMS];
} assay_probe_product;

/* X(enum, name) */
#define ASSAY_PROBE_FUNCTION_MAP(X)                                                                          \
    X(EXP, "exp")                                                                                            \
    X(LOG, "log")                                                                                            \
    X(RSQRT, "rsqrt")                                                                                        \
    X(SIGMOID, "sigmoid")                                                                                    \
    X(SIN, "sin")                                                                                            \
    X(COS, "cos")                                                                                            \
    X(TANH, "tanh")                                                                                          \
    X(ERF, "erf")
typedef enum {
#define ASSAY_PROBE_ENUM(name, text) ASSAY_PROBE_##name,
    ASSAY_PROBE_FUNCTION_MAP(ASSAY_PROBE_ENUM)
#undef ASSAY_PROBE_ENUM
        ASSAY_PROBE_FUNCTIONS
} assay_probe_function;

/* A function of the F32 numbers whose bits are first, first + stride, ... (modulo 2^32). */
typedef struct assay_probe_arguments {
    int32_t function;
    uint32_t first, stride, reserved;
    int64_t count;
} assay_probe_arguments;

ASSAY_END_DECLS

#endif
