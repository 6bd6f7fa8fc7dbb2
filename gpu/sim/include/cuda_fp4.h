/* 4-bit floats, e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 of both signs; two or four of them packed, the first in the low bits.  Conversions round
 * to nearest even and saturate; a NaN becomes 6, as CUDA's do.  Another rounding is refused by name.
 * Source: OCP Microscaling Formats 1.0, section 5.3.3. */
#ifndef ASSAY_SIM_CUDA_FP4_H
#define ASSAY_SIM_CUDA_FP4_H

#include "assay_sim.h"
#include "cuda_fp8.h"

typedef __nv_fp8_storage_t __nv_fp4_storage_t;
typedef __nv_fp8_storage_t __nv_fp4x2_storage_t;
typedef __nv_fp8x2_storage_t __nv_fp4x4_storage_t;
typedef enum __nv_fp4_interpretation_t { __NV_E2M1 } __nv_fp4_interpretation_t;

static inline __nv_fp4_storage_t __nv_cvt_double_to_fp4(double x, __nv_fp4_interpretation_t kind,
                                                        enum cudaRoundMode rounding)
{
    uint64_t bits, n;
    (void)kind;
    if (rounding != cudaRoundNearest)
        assay_sim_refuse("conversion to fp4 with a rounding other than cudaRoundNearest");
    memcpy(&bits, &x, sizeof bits);
    if (x != x)
        return 7;
    n = x - x == 0.0 ? assay_sim_encode_magnitude(x, 2, 1, ASSAY_SIM_RN) : 7;
    return (__nv_fp4_storage_t)((bits >> 63) << 3 | (n < 7 ? n : 7));
}
static inline __nv_fp4_storage_t __nv_cvt_float_to_fp4(float x, __nv_fp4_interpretation_t kind,
                                                       enum cudaRoundMode rounding)
{
    return __nv_cvt_double_to_fp4((double)x, kind, rounding);
}
static inline __nv_fp4x2_storage_t __nv_cvt_float2_to_fp4x2(float2 x, __nv_fp4_interpretation_t kind,
                                                            enum cudaRoundMode rounding)
{
    return (__nv_fp4x2_storage_t)(__nv_cvt_float_to_fp4(x.y, kind, rounding) << 4 |
                                  __nv_cvt_float_to_fp4(x.x, kind, rounding));
}
static inline float assay_sim_fp4_to_f32(unsigned bits)
{
    static const float value[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return bits & 8u ? -value[bits & 7u] : value[bits & 7u];
}

#ifdef __cplusplus

struct __nv_fp4_e2m1 {
    __nv_fp4_storage_t __x;
    __nv_fp4_e2m1() = default;
    explicit __nv_fp4_e2m1(float f) : __x(__nv_cvt_float_to_fp4(f, __NV_E2M1, cudaRoundNearest))
    {
    }
    explicit __nv_fp4_e2m1(double f) : __x(__nv_cvt_double_to_fp4(f, __NV_E2M1, cudaRoundNearest))
    {
    }
    explicit operator float() const
    {
        return assay_sim_fp4_to_f32(__x);
    }
};

struct __nv_fp4x2_e2m1 {
    __nv_fp4x2_storage_t __x;
    __nv_fp4x2_e2m1() = default;
    explicit __nv_fp4x2_e2m1(float2 f) : __x(__nv_cvt_float2_to_fp4x2(f, __NV_E2M1, cudaRoundNearest))
    {
    }
    explicit operator float2() const
    {
        return float2{assay_sim_fp4_to_f32(__x & 15u), assay_sim_fp4_to_f32(__x >> 4)};
    }
};

struct __nv_fp4x4_e2m1 {
    __nv_fp4x4_storage_t __x;
    __nv_fp4x4_e2m1() = default;
    explicit __nv_fp4x4_e2m1(float4 f)
        : __x(static_cast<__nv_fp4x4_storage_t>(
              __nv_cvt_float2_to_fp4x2(float2{f.z, f.w}, __NV_E2M1, cudaRoundNearest) << 8 |
              __nv_cvt_float2_to_fp4x2(float2{f.x, f.y}, __NV_E2M1, cudaRoundNearest)))
    {
    }
    explicit operator float4() const
    {
        return float4{assay_sim_fp4_to_f32(__x & 15u), assay_sim_fp4_to_f32(__x >> 4 & 15u),
                      assay_sim_fp4_to_f32(__x >> 8 & 15u), assay_sim_fp4_to_f32(unsigned(__x) >> 12)};
    }
};

#endif

#endif
