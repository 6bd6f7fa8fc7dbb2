/* Conversions of the short float formats, for every bit pattern, against a rounding that is done in double by
 * other means. */
#include <criterion/criterion.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

struct format {
    int exp_bits, man_bits;
    bool infinity;
    double largest;
};

static const format bf16 = {8, 7, true, 0x1.FEp127};
static const format fp16 = {5, 10, true, 65504.0};
static const format e4m3 = {4, 3, false, 448.0};
static const format e5m2 = {5, 2, true, 57344.0};
static const format e2m1 = {2, 1, false, 6.0};

/* The value of a pattern, from the definition of the format. */
static double value_of(const format &f, unsigned bits)
{
    const int bias = (1 << (f.exp_bits - 1)) - 1;
    const int e = static_cast<int>(bits >> f.man_bits) & ((1 << f.exp_bits) - 1);
    const double man =
        static_cast<double>(bits & ((1u << f.man_bits) - 1u)) / static_cast<double>(1 << f.man_bits);
    const double sign = bits >> (f.exp_bits + f.man_bits) & 1u ? -1.0 : 1.0;
    if (f.infinity && e == (1 << f.exp_bits) - 1) {
        return man == 0.0 ? sign * static_cast<double>(INFINITY) : static_cast<double>(NAN);
    }
    if (!f.infinity && (bits & 0x7fu) == 0x7fu) {
        return static_cast<double>(NAN);
    }
    return sign * (e == 0 ? ldexp(man, 1 - bias) : ldexp(1.0 + man, e - bias));
}

/* Nearest even by scaling to the format's quantum and rounding to an integer; infinity beyond the largest
 * value. */
static double round_to(const format &f, double x)
{
    int e;
    if (x == 0.0 || !isfinite(x)) {
        return x;
    }
    frexp(x, &e);
    const int e_min = 2 - (1 << (f.exp_bits - 1));
    const int quantum = (e - 1 > e_min ? e - 1 : e_min) - f.man_bits;
    const double r = ldexp(nearbyint(ldexp(x, -quantum)), quantum);
    return fabs(r) > f.largest ? copysign(static_cast<double>(INFINITY), x) : r;
}

static bool same(double a, double b)
{
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

/* Every value, and the points around the middle between neighbours, where roundings differ. */
template <class Convert> static void check_format(const format &f, Convert convert)
{
    const unsigned patterns = 1u << (f.exp_bits + f.man_bits + 1);
    for (unsigned bits = 0; bits < patterns; ++bits) {
        const double v = value_of(f, bits), next = value_of(f, bits + 1 < patterns ? bits + 1 : bits);
        const double mid = isfinite(v) && isfinite(next) ? (v + next) / 2.0 : v;
        const double points[] = {v,        mid,          nextafter(mid, -1e300), nextafter(mid, 1e300),
                                 v * 0.75, v * 1.0000001};
        for (double p : points) {
            cr_assert(convert(p), "pattern %x, value %a", bits, p);
        }
    }
    const double far[] = {1e-320,
                          -1e-320,
                          1e300,
                          -1e300,
                          f.largest * 1.5,
                          static_cast<double>(INFINITY),
                          -static_cast<double>(INFINITY),
                          static_cast<double>(NAN)};
    for (double p : far) {
        cr_assert(convert(p), "value %a", p);
    }
}

Test(sim_float, bf16_widening_is_exact)
{
    for (unsigned b = 0; b < 65536; ++b) {
        const float got = __bfloat162float(__ushort_as_bfloat16(static_cast<unsigned short>(b)));
        cr_assert(same(static_cast<double>(got), value_of(bf16, b)), "pattern %x", b);
    }
}

Test(sim_float, fp16_widening_is_exact)
{
    for (unsigned b = 0; b < 65536; ++b) {
        const float got = __half2float(__ushort_as_half(static_cast<unsigned short>(b)));
        cr_assert(same(static_cast<double>(got), value_of(fp16, b)), "pattern %x", b);
    }
}

Test(sim_float, fp8_widening_is_exact)
{
    for (unsigned b = 0; b < 256; ++b) {
        __nv_fp8_e4m3 x;
        __nv_fp8_e5m2 y;
        x.__x = y.__x = static_cast<unsigned char>(b);
        cr_assert(same(static_cast<double>(float(x)), value_of(e4m3, b)), "pattern %x", b);
        cr_assert(same(static_cast<double>(float(y)), value_of(e5m2, b)), "pattern %x", b);
    }
}

Test(sim_float, rounding_to_bf16)
{
    check_format(bf16, [](double p) {
        const float f = static_cast<float>(p);
        return same(static_cast<double>(float(__double2bfloat16(p))), round_to(bf16, p)) &&
               same(static_cast<double>(float(__float2bfloat16(f))), round_to(bf16, static_cast<double>(f)));
    });
    cr_expect(__bfloat16_as_ushort(__float2bfloat16(NAN)) == 0x7fff);
    cr_expect(__bfloat16_as_ushort(__float2bfloat16(-NAN)) == 0x7fff);
}

Test(sim_float, rounding_to_fp16)
{
    check_format(fp16, [](double p) {
        const float f = static_cast<float>(p);
        return same(static_cast<double>(float(__double2half(p))), round_to(fp16, p)) &&
               same(static_cast<double>(float(__float2half(f))), round_to(fp16, static_cast<double>(f)));
    });
    cr_expect(__half_as_ushort(__float2half(NAN)) == 0x7fff);
}

static double saturated(const format &f, double p)
{
    const double r = round_to(f, p);
    return isinf(r) ? copysign(f.largest, r) : r;
}

Test(sim_float, rounding_to_fp8_saturates_or_not)
{
    check_format(e4m3, [](double p) {
        __nv_fp8_e4m3 open;
        open.__x = __nv_cvt_double_to_fp8(p, __NV_NOSAT, __NV_E4M3);
        const double r = round_to(e4m3, p);
        return same(static_cast<double>(float(__nv_fp8_e4m3(p))), saturated(e4m3, p)) &&
               (isinf(r) ? isnan(float(open)) : same(static_cast<double>(float(open)), r));
    });
    check_format(e5m2, [](double p) {
        __nv_fp8_e5m2 open;
        open.__x = __nv_cvt_double_to_fp8(p, __NV_NOSAT, __NV_E5M2);
        return same(static_cast<double>(float(__nv_fp8_e5m2(p))), saturated(e5m2, p)) &&
               same(static_cast<double>(float(open)), round_to(e5m2, p));
    });
}

Test(sim_float, fp4_rounds_to_nearest_even_and_saturates)
{
    for (unsigned b = 0; b < 16; ++b) {
        __nv_fp4_e2m1 x;
        x.__x = static_cast<unsigned char>(b);
        cr_expect(same(static_cast<double>(float(x)), value_of(e2m1, b)), "pattern %x", b);
    }
    check_format(e2m1, [](double p) {
        const double expected = isnan(p) ? 6.0 : saturated(e2m1, p);
        return same(static_cast<double>(float(__nv_fp4_e2m1(p))), expected);
    });
    const float4 four = static_cast<float4>(__nv_fp4x4_e2m1(float4{0.5f, -1.0f, 3.0f, -100.0f}));
    cr_expect(four.x == 0.5f && four.y == -1.0f && four.z == 3.0f && four.w == -6.0f);
    const float2 two = static_cast<float2>(__nv_fp4x2_e2m1(float2{1.25f, 1.75f}));
    cr_expect(two.x == 1.0f && two.y == 2.0f);
}

/* Scales of blocks: powers of two, never below |x| where they are rounded up. */
Test(sim_float, e8m0_rounds_to_powers_of_two)
{
    for (int e = -127; e <= 127; ++e) {
        const double x = ldexp(1.0, e);
        const unsigned char code = static_cast<unsigned char>(e + 127);
        cr_expect(__nv_fp8_e8m0(x).__x == code && static_cast<double>(__nv_fp8_e8m0(-x)) == x, "2^%d", e);
        cr_expect(__nv_cvt_double_to_e8m0(1.5 * x, __NV_NOSAT, cudaRoundZero) == code, "1.5 2^%d down", e);
        cr_expect(__nv_cvt_double_to_e8m0(nextafter(x, 1e300), __NV_SATFINITE, cudaRoundPosInf) ==
                      (e < 127 ? code + 1 : code),
                  "beyond 2^%d up", e);
    }
    cr_expect(__nv_fp8_e8m0(0.0f).__x == 0 && __nv_fp8_e8m0(1e-45f).__x == 0);
    cr_expect(__nv_fp8_e8m0(NAN).__x == 0xFF && isnan(float(__nv_fp8_e8m0(NAN))));
    cr_expect(__nv_fp8_e8m0(INFINITY).__x == 0xFE);
    cr_expect(__nv_cvt_float_to_e8m0(INFINITY, __NV_NOSAT, cudaRoundPosInf) == 0xFF);
}

Test(sim_float, directed_roundings_enclose_the_value)
{
    for (unsigned b = 1; b < 65535; b += 7) {
        const double v = value_of(fp16, b), next = value_of(fp16, b + 1);
        if (!isfinite(v) || !isfinite(next) || signbit(v) != signbit(next)) {
            continue;
        }
        const float x = static_cast<float>(v + (next - v) * 0.3);
        const float down = float(__float2half_rd(x)), up = float(__float2half_ru(x)),
                    zero = float(__float2half_rz(x));
        cr_assert(down < x && x < up && zero == (x < 0.0f ? up : down));
        cr_assert(static_cast<double>(up) - static_cast<double>(down) == fabs(next - v));
    }
}

/* a * b + c in bf16 and fp16, rounded once: against 80-bit arithmetic, which is exact for these operands'
 * products and sums. */
Test(sim_float, fused_multiply_add_rounds_once)
{
    uint32_t seed = 1;
    for (int i = 0; i < 200000; ++i) {
        unsigned short r[3];
        for (unsigned short &v : r) {
            seed = seed * 1664525u + 1013904223u;
            v = static_cast<unsigned short>((seed >> 8 & 0x83ffu) | (0x3000u + (seed >> 20 & 0x0c00u)));
        }
        const double a = value_of(fp16, r[0]), b = value_of(fp16, r[1]), c = value_of(fp16, r[2]);
        const double want = round_to(fp16, a * b + c); /* at most 22 + 12 bits: exact in double */
        const __half got = __hfma(__ushort_as_half(r[0]), __ushort_as_half(r[1]), __ushort_as_half(r[2]));
        cr_assert(static_cast<double>(float(got)) == want, "%x %x %x", r[0], r[1], r[2]);
    }
    /* 1 + 2^-8 lies in the middle of two bf16 values; a tiny third operand decides, which a twice rounded
     * result would lose. */
    const __nv_bfloat16 one(1.0f), small(0x1p-8f), tiny(0x1p-100f);
    const __nv_bfloat16 x = __hfma(__nv_bfloat16(1.0f + 0x1p-7f), __nv_bfloat16(1.0f + 0x1p-7f), tiny);
    cr_expect(float(x) == 1.0f + 0x1p-6f);
    cr_expect(float(__hfma(small, one, one)) == 1.0f);
    cr_expect(float(__hfma(tiny, one, __nv_bfloat16(3.0f))) == 3.0f);
}

Test(sim_float, pairs_and_operators)
{
    const __nv_bfloat162 p = __floats2bfloat162_rn(1.5f, -2.0f), q = __float2bfloat162_rn(3.0f);
    const float2 s = __bfloat1622float2(__hadd2(p, q)), m = __bfloat1622float2(__hmul2(p, q));
    cr_expect(s.x == 4.5f && s.y == 1.0f && m.x == 4.5f && m.y == -6.0f);
    cr_expect(__low2float(p) == 1.5f && __high2float(p) == -2.0f && float(__hmax(p.x, p.y)) == 1.5f);
    uint32_t raw;
    memcpy(&raw, &p, sizeof raw);
    cr_expect(raw == 0xc0003fc0u, "the first element lies in the low half");
    const __half2 h = __floats2half2_rn(1.0f, 2.0f);
    cr_expect(float((h + h).y) == 4.0f && (h == h) && float(__hfma2(h, h, h).y) == 6.0f);
    cr_expect(float(__nv_bfloat16((1LL << 40) + (1LL << 32) + 1)) == 0x1.02p40f,
              "one rounding from 64-bit integers");
    const __nv_fp8x4_e4m3 four(float4{1.0f, -2.0f, 448.0f, 1000.0f});
    const float4 back = static_cast<float4>(four);
    cr_expect(back.x == 1.0f && back.y == -2.0f && back.z == 448.0f && back.w == 448.0f);
    cr_expect(__hisnan(__nv_bfloat16(NAN)) && !__hisnan(p.x) && __hisinf(__half(INFINITY)) == 1);
}
