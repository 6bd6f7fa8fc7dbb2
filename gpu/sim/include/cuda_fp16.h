/* half (IEEE binary16): 5 exponent bits, 10 mantissa bits; conversions round to nearest even, a NaN becomes
 * 0x7FFF. In C only the storage type exists, as in CUDA's own header. */
#ifndef ASSAY_SIM_CUDA_FP16_H
#define ASSAY_SIM_CUDA_FP16_H

#include "assay_sim_float.h"
#include "vector_types.h"

typedef struct ASSAY_SIM_ALIGN(2) {
    unsigned short x;
} __half_raw;
typedef struct ASSAY_SIM_ALIGN(4) {
    unsigned short x;
    unsigned short y;
} __half2_raw;

#ifdef __cplusplus

struct ASSAY_SIM_ALIGN(2) __half {
    unsigned short __x;

    __half() = default;
    __half(const __half_raw &r) : __x(r.x)
    {
    }
    __half(float f) : __x(assay_sim_f32_to_f16(f))
    {
    }
    __half(double f) : __x(assay_sim_f64_to_f16(f))
    {
    }
    __half(int v) : __x(assay_sim_f64_to_f16(double(v)))
    {
    }
    __half(unsigned v) : __x(assay_sim_f64_to_f16(double(v)))
    {
    }
    /* Rounded to odd at 52 bits first, so that the second rounding is the only one that counts. */
    __half(long long v)
        : __x(assay_sim_f64_to_f16(
              assay_sim_fma_to_odd(double(v >> 32), 4294967296.0, double(v & 0xffffffffLL))))
    {
    }
    __half(unsigned long long v)
        : __x(assay_sim_f64_to_f16(
              assay_sim_fma_to_odd(double(v >> 32), 4294967296.0, double(v & 0xffffffffULL))))
    {
    }
    __half(long v) : __half(static_cast<long long>(v))
    {
    }
    __half(unsigned long v) : __half(static_cast<unsigned long long>(v))
    {
    }
    operator __half_raw() const
    {
        __half_raw r;
        r.x = __x;
        return r;
    }
    operator float() const
    {
        return assay_sim_f16_to_f32(__x);
    }
};

struct ASSAY_SIM_ALIGN(4) __half2 {
    __half x;
    __half y;

    __half2() = default;
    __half2(const __half &a, const __half &b) : x(a), y(b)
    {
    }
};

typedef __half half;
typedef __half2 half2;

typedef __half nv_half;
typedef __half2 nv_half2;

#define ASSAY_SIM_HALF __half
#define ASSAY_SIM_HALF2 __half2
#define ASSAY_SIM_FROM_F64(x) assay_sim_f64_to_f16(x)
#include "assay_sim_half_ops.h"
#undef ASSAY_SIM_HALF
#undef ASSAY_SIM_HALF2
#undef ASSAY_SIM_FROM_F64

static inline __half __ushort_as_half(unsigned short v)
{
    __half r;
    r.__x = v;
    return r;
}
static inline __half __short_as_half(short v)
{
    return __ushort_as_half(static_cast<unsigned short>(v));
}
static inline unsigned short __half_as_ushort(__half v)
{
    return v.__x;
}
static inline short __half_as_short(__half v)
{
    return static_cast<short>(v.__x);
}
static inline __half __float2half(float f)
{
    return __half(f);
}
static inline __half __float2half_rn(float f)
{
    return __half(f);
}
static inline __half __float2half_rz(float f)
{
    return __ushort_as_half(assay_sim_encode16(double(f), 5, 10, ASSAY_SIM_RZ));
}
static inline __half __float2half_ru(float f)
{
    return __ushort_as_half(assay_sim_encode16(double(f), 5, 10, ASSAY_SIM_RU));
}
static inline __half __float2half_rd(float f)
{
    return __ushort_as_half(assay_sim_encode16(double(f), 5, 10, ASSAY_SIM_RD));
}
static inline __half __double2half(double f)
{
    return __half(f);
}
static inline __half __int2half_rn(int v)
{
    return __half(v);
}
static inline __half __uint2half_rn(unsigned v)
{
    return __half(v);
}
static inline __half __ll2half_rn(long long v)
{
    return __half(v);
}
static inline __half __ull2half_rn(unsigned long long v)
{
    return __half(v);
}
static inline float __half2float(__half v)
{
    return float(v);
}
static inline __half2 __float2half2_rn(float f)
{
    return __half2(f, f);
}
static inline __half2 __floats2half2_rn(float a, float b)
{
    return __half2(a, b);
}
static inline __half2 __float22half2_rn(float2 v)
{
    return __half2(v.x, v.y);
}
static inline float2 __half22float2(__half2 v)
{
    return float2{float(v.x), float(v.y)};
}
static inline __half2 __half2half2(__half v)
{
    return __half2(v, v);
}
static inline __half2 __halves2half2(__half a, __half b)
{
    return __half2(a, b);
}
static inline __half2 make_half2(__half a, __half b)
{
    return __half2(a, b);
}
static inline __half __low2half(__half2 v)
{
    return v.x;
}
static inline __half __high2half(__half2 v)
{
    return v.y;
}
static inline __half2 __low2half2(__half2 v)
{
    return __half2(v.x, v.x);
}
static inline __half2 __high2half2(__half2 v)
{
    return __half2(v.y, v.y);
}

#else

typedef __half_raw __half;
typedef __half2_raw __half2;

#endif

#endif
