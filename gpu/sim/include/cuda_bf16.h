/* bfloat16: 8 exponent bits, 7 mantissa bits; conversions round to nearest even, a NaN becomes 0x7FFF.
 * In C only the storage type exists, as in CUDA's own header. */
#ifndef ASSAY_SIM_CUDA_BF16_H
#define ASSAY_SIM_CUDA_BF16_H

#include "assay_sim_float.h"
#include "vector_types.h"

typedef struct ASSAY_SIM_ALIGN(2) {
    unsigned short x;
} __nv_bfloat16_raw;
typedef struct ASSAY_SIM_ALIGN(4) {
    unsigned short x;
    unsigned short y;
} __nv_bfloat162_raw;

#ifdef __cplusplus

struct ASSAY_SIM_ALIGN(2) __nv_bfloat16 {
    unsigned short __x;

    __nv_bfloat16() = default;
    __nv_bfloat16(const __nv_bfloat16_raw &r) : __x(r.x)
    {
    }
    __nv_bfloat16(float f) : __x(assay_sim_f32_to_bf16(f))
    {
    }
    __nv_bfloat16(double f) : __x(assay_sim_f64_to_bf16(f))
    {
    }
    __nv_bfloat16(int v) : __x(assay_sim_f64_to_bf16(double(v)))
    {
    }
    __nv_bfloat16(unsigned v) : __x(assay_sim_f64_to_bf16(double(v)))
    {
    }
    /* Rounded to odd at 52 bits first, so that the second rounding is the only one that counts. */
    __nv_bfloat16(long long v)
        : __x(assay_sim_f64_to_bf16(
              assay_sim_fma_to_odd(double(v >> 32), 4294967296.0, double(v & 0xffffffffLL))))
    {
    }
    __nv_bfloat16(unsigned long long v)
        : __x(assay_sim_f64_to_bf16(
              assay_sim_fma_to_odd(double(v >> 32), 4294967296.0, double(v & 0xffffffffULL))))
    {
    }
    __nv_bfloat16(long v) : __nv_bfloat16(static_cast<long long>(v))
    {
    }
    __nv_bfloat16(unsigned long v) : __nv_bfloat16(static_cast<unsigned long long>(v))
    {
    }
    operator __nv_bfloat16_raw() const
    {
        __nv_bfloat16_raw r;
        r.x = __x;
        return r;
    }
    operator float() const
    {
        return assay_sim_bf16_to_f32(__x);
    }
};

struct ASSAY_SIM_ALIGN(4) __nv_bfloat162 {
    __nv_bfloat16 x;
    __nv_bfloat16 y;

    __nv_bfloat162() = default;
    __nv_bfloat162(const __nv_bfloat16 &a, const __nv_bfloat16 &b) : x(a), y(b)
    {
    }
};

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

#define ASSAY_SIM_HALF __nv_bfloat16
#define ASSAY_SIM_HALF2 __nv_bfloat162
#define ASSAY_SIM_FROM_F64(x) assay_sim_f64_to_bf16(x)
#include "assay_sim_half_ops.h"
#undef ASSAY_SIM_HALF
#undef ASSAY_SIM_HALF2
#undef ASSAY_SIM_FROM_F64

static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v)
{
    __nv_bfloat16 r;
    r.__x = v;
    return r;
}
static inline __nv_bfloat16 __short_as_bfloat16(short v)
{
    return __ushort_as_bfloat16(static_cast<unsigned short>(v));
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v)
{
    return v.__x;
}
static inline short __bfloat16_as_short(__nv_bfloat16 v)
{
    return static_cast<short>(v.__x);
}
static inline __nv_bfloat16 __float2bfloat16(float f)
{
    return __nv_bfloat16(f);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    return __nv_bfloat16(f);
}
static inline __nv_bfloat16 __float2bfloat16_rz(float f)
{
    return __ushort_as_bfloat16(assay_sim_encode16(double(f), 8, 7, ASSAY_SIM_RZ));
}
static inline __nv_bfloat16 __float2bfloat16_ru(float f)
{
    return __ushort_as_bfloat16(assay_sim_encode16(double(f), 8, 7, ASSAY_SIM_RU));
}
static inline __nv_bfloat16 __float2bfloat16_rd(float f)
{
    return __ushort_as_bfloat16(assay_sim_encode16(double(f), 8, 7, ASSAY_SIM_RD));
}
static inline __nv_bfloat16 __double2bfloat16(double f)
{
    return __nv_bfloat16(f);
}
static inline __nv_bfloat16 __int2bfloat16_rn(int v)
{
    return __nv_bfloat16(v);
}
static inline __nv_bfloat16 __uint2bfloat16_rn(unsigned v)
{
    return __nv_bfloat16(v);
}
static inline __nv_bfloat16 __ll2bfloat16_rn(long long v)
{
    return __nv_bfloat16(v);
}
static inline __nv_bfloat16 __ull2bfloat16_rn(unsigned long long v)
{
    return __nv_bfloat16(v);
}
static inline float __bfloat162float(__nv_bfloat16 v)
{
    return float(v);
}
static inline __nv_bfloat162 __float2bfloat162_rn(float f)
{
    return __nv_bfloat162(f, f);
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return __nv_bfloat162(a, b);
}
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v)
{
    return __nv_bfloat162(v.x, v.y);
}
static inline float2 __bfloat1622float2(__nv_bfloat162 v)
{
    return float2{float(v.x), float(v.y)};
}
static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 v)
{
    return __nv_bfloat162(v, v);
}
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return __nv_bfloat162(a, b);
}
static inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return __nv_bfloat162(a, b);
}
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v)
{
    return v.x;
}
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v)
{
    return v.y;
}
static inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 v)
{
    return __nv_bfloat162(v.x, v.x);
}
static inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 v)
{
    return __nv_bfloat162(v.y, v.y);
}

#else

typedef __nv_bfloat16_raw __nv_bfloat16;
typedef __nv_bfloat162_raw __nv_bfloat162;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

#endif

#endif
