/* 8-bit floats: e4m3 (largest 448, no infinity), e5m2 (largest 57344), and the powers of two of e8m0 (2^(x - 127), 0xFF: NaN).  The types' constructors saturate,
 * as CUDA's do;
 * __nv_cvt_float_to_fp8 takes the choice as an argument.  A NaN becomes 0x7F. */
#ifndef ASSAY_SIM_CUDA_FP8_H
#define ASSAY_SIM_CUDA_FP8_H

#include "assay_sim_float.h"
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "driver_types.h"
#include "vector_types.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;

typedef enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE } __nv_saturation_t;
typedef enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 } __nv_fp8_interpretation_t;

static inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double x, __nv_saturation_t saturate,
                                                        __nv_fp8_interpretation_t kind)
{
    return assay_sim_f64_to_fp8(x, kind == __NV_E5M2, saturate == __NV_SATFINITE);
}
static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturate,
                                                       __nv_fp8_interpretation_t kind)
{
    return __nv_cvt_double_to_fp8((double)x, saturate, kind);
}
static inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t saturate,
                                                            __nv_fp8_interpretation_t kind)
{
    const unsigned lo = __nv_cvt_float_to_fp8(x.x, saturate, kind);
    const unsigned hi = __nv_cvt_float_to_fp8(x.y, saturate, kind);
    return (__nv_fp8x2_storage_t)(hi << 8 | lo);
}
static inline __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw x, __nv_saturation_t saturate,
                                                         __nv_fp8_interpretation_t kind)
{
    return __nv_cvt_float_to_fp8(assay_sim_f16_to_f32(x.x), saturate, kind);
}
static inline __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw x, __nv_saturation_t saturate,
                                                             __nv_fp8_interpretation_t kind)
{
    return __nv_cvt_float_to_fp8(assay_sim_bf16_to_f32(x.x), saturate, kind);
}
static inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind)
{
    __half_raw r; /* every 8-bit value is a binary16 value */
    r.x = assay_sim_f32_to_f16(assay_sim_fp8_to_f32(x, kind == __NV_E5M2));
    return r;
}

/* |x| as a power of two, rounded up or (cudaRoundZero) down, at least 2^-127; beyond 2^127 that (saturate) or NaN. */
static inline __nv_fp8_storage_t __nv_cvt_double_to_e8m0(double x, __nv_saturation_t saturate,
                                                         enum cudaRoundMode rounding)
{
    int e = 0;
    double part;
    if (x != x)
        return 0xFF;
    if (x - x != 0.0)
        return saturate == __NV_SATFINITE ? 0xFE : 0xFF;
    part = frexp(x < 0.0 ? -x : x, &e); /* x = part 2^e, part 0 or in [0.5, 1) */
    e -= part > 0.5 && rounding == cudaRoundPosInf ? 0 : 1;
    if (part == 0.0 || e < -127)
        return 0;
    return (__nv_fp8_storage_t)(e <= 127 ? e + 127 : saturate == __NV_SATFINITE ? 0xFE : 0xFF);
}
static inline __nv_fp8_storage_t __nv_cvt_float_to_e8m0(float x, __nv_saturation_t saturate,
                                                        enum cudaRoundMode rounding)
{
    return __nv_cvt_double_to_e8m0((double)x, saturate, rounding);
}

#ifdef __cplusplus

struct __nv_fp8_e8m0 {
    __nv_fp8_storage_t __x;
    __nv_fp8_e8m0() = default;
    explicit __nv_fp8_e8m0(float f) : __x(__nv_cvt_float_to_e8m0(f, __NV_SATFINITE, cudaRoundPosInf))
    {
    }
    explicit __nv_fp8_e8m0(double f) : __x(__nv_cvt_double_to_e8m0(f, __NV_SATFINITE, cudaRoundPosInf))
    {
    }
    explicit operator float() const
    {
        return __x == 0xFF ? assay_sim_bf16_to_f32(0x7FFF) : ldexpf(1.0f, int(__x) - 127);
    }
    explicit operator double() const
    {
        return double(float(*this));
    }
};

#define ASSAY_SIM_FP8(name, kind)                                                                            \
    struct name {                                                                                            \
        __nv_fp8_storage_t __x;                                                                              \
        name() = default;                                                                                    \
        explicit name(float f) : __x(__nv_cvt_float_to_fp8(f, __NV_SATFINITE, kind))                         \
        {                                                                                                    \
        }                                                                                                    \
        explicit name(double f) : __x(__nv_cvt_double_to_fp8(f, __NV_SATFINITE, kind))                       \
        {                                                                                                    \
        }                                                                                                    \
        explicit name(int v) : __x(__nv_cvt_double_to_fp8(double(v), __NV_SATFINITE, kind))                  \
        {                                                                                                    \
        }                                                                                                    \
        explicit name(__half v) : __x(__nv_cvt_float_to_fp8(float(v), __NV_SATFINITE, kind))                 \
        {                                                                                                    \
        }                                                                                                    \
        explicit name(__nv_bfloat16 v) : __x(__nv_cvt_float_to_fp8(float(v), __NV_SATFINITE, kind))          \
        {                                                                                                    \
        }                                                                                                    \
        explicit operator float() const                                                                      \
        {                                                                                                    \
            return assay_sim_fp8_to_f32(__x, (kind) == __NV_E5M2);                                           \
        }                                                                                                    \
        explicit operator double() const                                                                     \
        {                                                                                                    \
            return double(float(*this));                                                                     \
        }                                                                                                    \
        explicit operator __half() const                                                                     \
        {                                                                                                    \
            return __half(float(*this));                                                                     \
        }                                                                                                    \
        explicit operator __nv_bfloat16() const                                                              \
        {                                                                                                    \
            return __nv_bfloat16(float(*this));                                                              \
        }                                                                                                    \
    };
ASSAY_SIM_FP8(__nv_fp8_e4m3, __NV_E4M3)
ASSAY_SIM_FP8(__nv_fp8_e5m2, __NV_E5M2)
#undef ASSAY_SIM_FP8

#define ASSAY_SIM_FP8_VECTORS(suffix, kind)                                                                  \
    struct __nv_fp8x2_##suffix {                                                                             \
        __nv_fp8x2_storage_t __x;                                                                            \
        __nv_fp8x2_##suffix() = default;                                                                     \
        explicit __nv_fp8x2_##suffix(float2 f) : __x(__nv_cvt_float2_to_fp8x2(f, __NV_SATFINITE, kind))      \
        {                                                                                                    \
        }                                                                                                    \
        explicit operator float2() const                                                                     \
        {                                                                                                    \
            return float2{assay_sim_fp8_to_f32(static_cast<unsigned char>(__x & 0xff), (kind) == __NV_E5M2), \
                          assay_sim_fp8_to_f32(static_cast<unsigned char>(__x >> 8), (kind) == __NV_E5M2)};  \
        }                                                                                                    \
    };                                                                                                       \
    struct __nv_fp8x4_##suffix {                                                                             \
        __nv_fp8x4_storage_t __x;                                                                            \
        __nv_fp8x4_##suffix() = default;                                                                     \
        explicit __nv_fp8x4_##suffix(float4 f)                                                               \
            : __x(static_cast<__nv_fp8x4_storage_t>(                                                         \
                      __nv_cvt_float2_to_fp8x2(float2{f.z, f.w}, __NV_SATFINITE, kind))                      \
                      << 16 |                                                                                \
                  __nv_cvt_float2_to_fp8x2(float2{f.x, f.y}, __NV_SATFINITE, kind))                          \
        {                                                                                                    \
        }                                                                                                    \
        explicit operator float4() const                                                                     \
        {                                                                                                    \
            __nv_fp8x2_##suffix lo, hi;                                                                      \
            lo.__x = static_cast<__nv_fp8x2_storage_t>(__x & 0xffffu);                                       \
            hi.__x = static_cast<__nv_fp8x2_storage_t>(__x >> 16);                                           \
            const float2 a = static_cast<float2>(lo), b = static_cast<float2>(hi);                           \
            return float4{a.x, a.y, b.x, b.y};                                                               \
        }                                                                                                    \
    };
ASSAY_SIM_FP8_VECTORS(e4m3, __NV_E4M3)
ASSAY_SIM_FP8_VECTORS(e5m2, __NV_E5M2)
#undef ASSAY_SIM_FP8_VECTORS

#else

typedef struct {
    __nv_fp8_storage_t __x;
} __nv_fp8_e4m3;
typedef struct {
    __nv_fp8_storage_t __x;
} __nv_fp8_e5m2;

#endif

#endif
