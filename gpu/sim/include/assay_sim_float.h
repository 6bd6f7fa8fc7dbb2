/* Exact conversions between double and the short binary formats (fp16, bf16, fp8 e4m3 and e5m2), in integers,
 * for C and C++. One rounding from the exact value of the argument; float arguments are exact in double.
 * Source: IEEE 754-2019 section 4.3; OCP 8-bit Floating Point Specification 1.0 for the two 8-bit formats
 * (e4m3: no infinity, one NaN per sign, largest 448). */
#ifndef ASSAY_SIM_FLOAT_H
#define ASSAY_SIM_FLOAT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum assay_sim_rounding { ASSAY_SIM_RN, ASSAY_SIM_RZ, ASSAY_SIM_RU, ASSAY_SIM_RD };

/* The bits of |x| rounded to a format of exp_bits and man_bits (no sign bit), not limited from above: a
 * result at or beyond the format's infinity is an overflow that the caller resolves.  x is finite. */
static inline uint64_t assay_sim_encode_magnitude(double x, int exp_bits, int man_bits,
                                                  enum assay_sim_rounding mode)
{
    uint64_t bits, sig, n, rest = 0, half = 1;
    int e, shift, up;
    const int e_min = 2 - (1 << (exp_bits - 1));
    memcpy(&bits, &x, sizeof bits);
    e = (int)(bits >> 52 & 0x7ff);
    sig = bits & (((uint64_t)1 << 52) - 1);
    if (e == 0) {
        e = -1022;
    } else {
        sig |= (uint64_t)1 << 52;
        e -= 1023;
    }
    if (sig == 0)
        return 0;
    shift = (e > e_min ? e : e_min) - man_bits - e + 52;
    if (shift > 62) {
        n = 0; /* below a quarter of the smallest subnormal */
        rest = 1;
        half = 2;
    } else {
        n = sig >> shift;
        rest = sig & (((uint64_t)1 << shift) - 1);
        half = (uint64_t)1 << (shift - 1);
    }
    up = mode == ASSAY_SIM_RN   ? rest > half || (rest == half && (n & 1) != 0)
         : mode == ASSAY_SIM_RU ? rest != 0 && !(bits >> 63)
         : mode == ASSAY_SIM_RD ? rest != 0 && bits >> 63
                                : 0;
    n += up ? 1u : 0u;
    /* The exponent field is added, not inserted, so that a carry out of the mantissa moves to the next
     * binade. */
    return e >= e_min ? ((uint64_t)(e - e_min) << man_bits) + n : n;
}

/* A 16-bit format with infinities; NaN becomes 0x7FFF as CUDA's conversions give. */
static inline unsigned short assay_sim_encode16(double x, int exp_bits, int man_bits,
                                                enum assay_sim_rounding mode)
{
    uint64_t bits, n;
    const uint64_t inf = (((uint64_t)1 << exp_bits) - 1) << man_bits;
    unsigned sign;
    memcpy(&bits, &x, sizeof bits);
    sign = (unsigned)(bits >> 48 & 0x8000u);
    if (x != x)
        return 0x7fff;
    if ((bits & ~((uint64_t)1 << 63)) == (uint64_t)0x7ff << 52)
        return (unsigned short)(sign | inf);
    n = assay_sim_encode_magnitude(x, exp_bits, man_bits, mode);
    if (n >= inf) {
        const int to_inf =
            mode == ASSAY_SIM_RN || (mode == ASSAY_SIM_RU && !sign) || (mode == ASSAY_SIM_RD && sign);
        n = to_inf ? inf : inf - 1;
    }
    return (unsigned short)(sign | n);
}

static inline double assay_sim_decode(unsigned bits, int exp_bits, int man_bits, int has_inf)
{
    const int total = exp_bits + man_bits;
    const unsigned sign = bits >> total & 1u;
    const unsigned e = bits >> man_bits & ((1u << exp_bits) - 1u);
    const unsigned man = bits & ((1u << man_bits) - 1u);
    const int e_min = 2 - (1 << (exp_bits - 1));
    double v;
    if (has_inf && e == (1u << exp_bits) - 1u) {
        v = man ? (double)NAN : (double)INFINITY;
    } else if (!has_inf && (bits & ((1u << total) - 1u)) == (1u << total) - 1u) {
        v = (double)NAN;
    } else {
        v = e ? ldexp((double)((1u << man_bits) + man), e_min + (int)e - 1 - man_bits)
              : ldexp((double)man, e_min - man_bits);
    }
    return sign ? -v : v;
}

static inline unsigned short assay_sim_f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return (unsigned short)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float assay_sim_bf16_to_f32(unsigned short h)
{
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float assay_sim_f16_to_f32(unsigned short h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t e = h >> 10 & 31u, man = h & 1023u;
    uint32_t u;
    float f;
    if (e == 31u) {
        u = sign | 0x7f800000u | man << 13;
    } else if (e != 0u) {
        u = sign | (e + 112u) << 23 | man << 13;
    } else {
        f = (float)man * 5.9604644775390625e-8f; /* 2^-24, exact */
        memcpy(&u, &f, sizeof u);
        u |= sign;
    }
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline unsigned short assay_sim_f32_to_f16(float f)
{
    uint32_t u, n;
    memcpy(&u, &f, sizeof u);
    n = u & 0x7fffffffu;
    if (n >= 0x38800000u && n < 0x477fe000u) { /* normal in both, rounding cannot overflow */
        n = n - 0x38000000u + 0xfffu + (n >> 13 & 1u);
        return (unsigned short)((u >> 16 & 0x8000u) | n >> 13);
    }
    return assay_sim_encode16((double)f, 5, 10, ASSAY_SIM_RN);
}

static inline unsigned short assay_sim_f64_to_bf16(double x)
{
    return assay_sim_encode16(x, 8, 7, ASSAY_SIM_RN);
}
static inline unsigned short assay_sim_f64_to_f16(double x)
{
    return assay_sim_encode16(x, 5, 10, ASSAY_SIM_RN);
}

/* saturate: an overflow (infinities included) becomes the largest finite value; otherwise NaN (e4m3) or
 * infinity (e5m2). */
static inline unsigned char assay_sim_f64_to_fp8(double x, int e5m2, int saturate)
{
    const unsigned inf = e5m2 ? 0x7cu : 0x7fu;
    uint64_t bits, n;
    unsigned sign;
    memcpy(&bits, &x, sizeof bits);
    sign = (unsigned)(bits >> 56 & 0x80u);
    if (x != x)
        return 0x7f;
    n = (bits & ~((uint64_t)1 << 63)) == (uint64_t)0x7ff << 52
            ? inf
            : assay_sim_encode_magnitude(x, e5m2 ? 5 : 4, e5m2 ? 2 : 3, ASSAY_SIM_RN);
    if (n >= inf)
        n = saturate ? inf - 1u : inf;
    return (unsigned char)(sign | n);
}

static inline float assay_sim_fp8_to_f32(unsigned char v, int e5m2)
{
    return (float)assay_sim_decode(v, e5m2 ? 5 : 4, e5m2 ? 2 : 3, e5m2);
}

/* a * b + c rounded to odd in double: rounding the result once more to a short format gives the correctly
 * rounded fused result. a * b must be exact in double.  Source: Boldo and Melquiond 2008, "Emulation of FMA
 * and correctly rounded sums". */
static inline double assay_sim_fma_to_odd(double a, double b, double c)
{
    const double p = a * b, s = p + c;
    const double bb = s - p, err = (p - (s - bb)) + (c - bb);
    uint64_t bits;
    double r = s;
    if (!(err == err) || err == 0.0)
        return s;
    memcpy(&bits, &s, sizeof bits);
    if ((bits & 1) == 0)
        bits += (err > 0.0) == (s > 0.0) ? 1u : (uint64_t)-1;
    memcpy(&r, &bits, sizeof r);
    return r;
}

#endif
