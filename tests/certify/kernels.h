/* Short descriptions for the kernels of the tests. */
#ifndef TESTS_CERTIFY_KERNELS_H
#define TESTS_CERTIFY_KERNELS_H

#include "check.h"

#define ELEMENTWISE(ulp)                                                                                     \
    {                                                                                                        \
        .size = sizeof(assay_kernel_arith), .accumulate = ASSAY_KERNEL_F32, .math_ulp = (ulp)                \
    }
#define SEQUENTIAL(ulp)                                                                                      \
    {                                                                                                        \
        .size = sizeof(assay_kernel_arith), .accumulate = ASSAY_KERNEL_F32,                                  \
        .order = ASSAY_KERNEL_ORDER_SEQUENTIAL, .fma = 1, .math_ulp = (ulp)                                  \
    }
#define TREE(n, ulp)                                                                                         \
    {                                                                                                        \
        .size = sizeof(assay_kernel_arith), .accumulate = ASSAY_KERNEL_F32,                                  \
        .order = ASSAY_KERNEL_ORDER_TREE, .lanes = (n), .fma = 1, .math_ulp = (ulp)                          \
    }
#define IN_DOUBLE(order_, ulp)                                                                               \
    {                                                                                                        \
        .size = sizeof(assay_kernel_arith), .accumulate = ASSAY_KERNEL_F64,                                  \
        .order = ASSAY_KERNEL_ORDER_##order_, .fma = 1, .math_ulp = (ulp)                                    \
    }
#define PLAIN (ASSAY_KERNEL_DETERMINISTIC | ASSAY_KERNEL_BATCH_INVARIANT)

#define DEFAULTS(symbol, operation_)                                                                         \
    .size = sizeof(assay_kernel), .abi = ASSAY_KERNEL_ABI, .name = #symbol, .version = "1",                  \
    .operation = operation_, .built = "C17 -O2", .memory = ASSAY_KERNEL_MEMORY_HOST,                         \
    .dtypes = ASSAY_KERNEL_SET(ASSAY_KERNEL_F32) | ASSAY_KERNEL_SET(ASSAY_KERNEL_BF16)

/* Members of the description behind the count replace what the macro says. */
#if defined(__clang__)
#define REPLACES _Pragma("clang diagnostic ignored \"-Winitializer-overrides\"")
#else
#define REPLACES _Pragma("GCC diagnostic ignored \"-Woverride-init\"")
#endif
#define DESCRIBE(symbol, operation_, flags_, run_, outputs_, n, ...)                                         \
    REPLACES const assay_kernel *symbol(uint32_t abi);                                                       \
    const assay_kernel *symbol(uint32_t abi)                                                                 \
    {                                                                                                        \
        static const assay_kernel k = {DEFAULTS(symbol, operation_), .flags = (flags_), .run = (run_),       \
                                       .outputs = (outputs_),        .n_outputs = (n),  __VA_ARGS__};        \
        return abi == ASSAY_KERNEL_ABI ? &k : NULL;                                                          \
    }

#endif
