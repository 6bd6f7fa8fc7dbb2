/* CUDA's complex numbers. */
#ifndef ASSAY_SIM_CUCOMPLEX_H
#define ASSAY_SIM_CUCOMPLEX_H

#include "vector_types.h"

#include <math.h>

typedef float2 cuFloatComplex;
typedef double2 cuDoubleComplex;
typedef cuFloatComplex cuComplex;

#define ASSAY_SIM_COMPLEX(type, scalar, name, suffix)                                                        \
    static inline type make_##name(scalar r, scalar i)                                                       \
    {                                                                                                        \
        type z;                                                                                              \
        z.x = r;                                                                                             \
        z.y = i;                                                                                             \
        return z;                                                                                            \
    }                                                                                                        \
    static inline scalar cuCreal##suffix(type z)                                                             \
    {                                                                                                        \
        return z.x;                                                                                          \
    }                                                                                                        \
    static inline scalar cuCimag##suffix(type z)                                                             \
    {                                                                                                        \
        return z.y;                                                                                          \
    }                                                                                                        \
    static inline type cuConj##suffix(type z)                                                                \
    {                                                                                                        \
        return make_##name(z.x, -z.y);                                                                       \
    }                                                                                                        \
    static inline type cuCadd##suffix(type a, type b)                                                        \
    {                                                                                                        \
        return make_##name(a.x + b.x, a.y + b.y);                                                            \
    }                                                                                                        \
    static inline type cuCsub##suffix(type a, type b)                                                        \
    {                                                                                                        \
        return make_##name(a.x - b.x, a.y - b.y);                                                            \
    }                                                                                                        \
    static inline type cuCmul##suffix(type a, type b)                                                        \
    {                                                                                                        \
        return make_##name(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);                                    \
    }                                                                                                        \
    static inline type cuCdiv##suffix(type a, type b)                                                        \
    {                                                                                                        \
        const scalar d = b.x * b.x + b.y * b.y;                                                              \
        return make_##name((a.x * b.x + a.y * b.y) / d, (a.y * b.x - a.x * b.y) / d);                        \
    }
ASSAY_SIM_COMPLEX(cuFloatComplex, float, cuFloatComplex, f)
ASSAY_SIM_COMPLEX(cuDoubleComplex, double, cuDoubleComplex, )
#undef ASSAY_SIM_COMPLEX
#define make_cuComplex make_cuFloatComplex
static inline float cuCabsf(cuFloatComplex z)
{
    return hypotf(z.x, z.y);
}
static inline double cuCabs(cuDoubleComplex z)
{
    return hypot(z.x, z.y);
}

#endif
