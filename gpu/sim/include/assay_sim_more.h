/* Intrinsics that our own kernels do not use and other people's do: directed rounding, 24-bit products, packed bytes,
 * special functions, conversions.  Part of assay_sim_device.h
 * in translated files.  Special functions are computed in double and rounded. */
#ifndef ASSAY_SIM_MORE_H
#define ASSAY_SIM_MORE_H

#include <fenv.h>

/* --- directed rounding ---------------------------------------------------------------------------------------------- */

namespace assay_sim
{
/* The operands come, and the result goes, through memory that the compiler does not look through. */
template <class T, class F> static inline __attribute__((noinline)) T rounded(int mode, F f)
{
    const int before = fegetround();
    fesetround(mode);
    volatile T r = f();
    fesetround(before);
    return r;
}
} /* namespace assay_sim */
#define ASSAY_SIM_DIRECTED_2(name, type, mode, expression)                                                   \
    static inline type name(type a, type b)                                                                  \
    {                                                                                                        \
        volatile type x = a, y = b;                                                                          \
        return assay_sim::rounded<type>(mode, [&] { return expression; });                                   \
    }
#define ASSAY_SIM_DIRECTED(mode, suffix)                                                                     \
    ASSAY_SIM_DIRECTED_2(__fadd_##suffix, float, mode, x + y)                                                \
    ASSAY_SIM_DIRECTED_2(__fsub_##suffix, float, mode, x - y)                                                \
    ASSAY_SIM_DIRECTED_2(__fmul_##suffix, float, mode, x *y)                                                 \
    ASSAY_SIM_DIRECTED_2(__fdiv_##suffix, float, mode, x / y)                                                \
    ASSAY_SIM_DIRECTED_2(__dadd_##suffix, double, mode, x + y)                                               \
    ASSAY_SIM_DIRECTED_2(__dsub_##suffix, double, mode, x - y)                                               \
    ASSAY_SIM_DIRECTED_2(__dmul_##suffix, double, mode, x *y)                                                \
    ASSAY_SIM_DIRECTED_2(__ddiv_##suffix, double, mode, x / y)                                               \
    static inline float __fsqrt_##suffix(float a)                                                            \
    {                                                                                                        \
        volatile float x = a;                                                                                \
        return assay_sim::rounded<float>(mode, [&] { return sqrtf(x); });                                    \
    }                                                                                                        \
    static inline double __dsqrt_##suffix(double a)                                                          \
    {                                                                                                        \
        volatile double x = a;                                                                               \
        return assay_sim::rounded<double>(mode, [&] { return sqrt(x); });                                    \
    }                                                                                                        \
    static inline float __frcp_##suffix(float a)                                                             \
    {                                                                                                        \
        return __fdiv_##suffix(1.0f, a);                                                                     \
    }                                                                                                        \
    static inline double __drcp_##suffix(double a)                                                           \
    {                                                                                                        \
        return __ddiv_##suffix(1.0, a);                                                                      \
    }                                                                                                        \
    static inline float __fmaf_##suffix(float a, float b, float c)                                           \
    {                                                                                                        \
        volatile float x = a, y = b, z = c;                                                                  \
        return assay_sim::rounded<float>(mode, [&] { return fmaf(x, y, z); });                               \
    }                                                                                                        \
    static inline double __fma_##suffix(double a, double b, double c)                                        \
    {                                                                                                        \
        volatile double x = a, y = b, z = c;                                                                 \
        return assay_sim::rounded<double>(mode, [&] { return fma(x, y, z); });                               \
    }                                                                                                        \
    static inline float __double2float_##suffix(double a)                                                    \
    {                                                                                                        \
        volatile double x = a;                                                                               \
        return assay_sim::rounded<float>(mode, [&] { return static_cast<float>(x); });                       \
    }                                                                                                        \
    static inline float __int2float_##suffix(int a)                                                          \
    {                                                                                                        \
        return __double2float_##suffix(a);                                                                   \
    }                                                                                                        \
    static inline float __uint2float_##suffix(unsigned a)                                                    \
    {                                                                                                        \
        return __double2float_##suffix(a);                                                                   \
    }
ASSAY_SIM_DIRECTED(FE_TOWARDZERO, rz)
ASSAY_SIM_DIRECTED(FE_DOWNWARD, rd)
ASSAY_SIM_DIRECTED(FE_UPWARD, ru)
#undef ASSAY_SIM_DIRECTED
#undef ASSAY_SIM_DIRECTED_2

/* --- conversions ---------------------------------------------------------------------------------------------------- */

static inline unsigned __float2uint_rd(float a)
{
    return assay_sim_to_uint(floor(static_cast<double>(a)));
}
static inline unsigned __float2uint_ru(float a)
{
    return assay_sim_to_uint(ceil(static_cast<double>(a)));
}
#define ASSAY_SIM_DOUBLE_TO(suffix, round)                                                                   \
    static inline unsigned __double2uint_##suffix(double a)                                                  \
    {                                                                                                        \
        return assay_sim_to_uint(round(a));                                                                  \
    }
ASSAY_SIM_DOUBLE_TO(rn, rint)
ASSAY_SIM_DOUBLE_TO(rz, trunc)
ASSAY_SIM_DOUBLE_TO(rd, floor)
ASSAY_SIM_DOUBLE_TO(ru, ceil)
#undef ASSAY_SIM_DOUBLE_TO
static inline int __double2int_rz(double a)
{
    return assay_sim_to_int(trunc(a));
}
static inline int __double2int_rd(double a)
{
    return assay_sim_to_int(floor(a));
}
static inline int __double2int_ru(double a)
{
    return assay_sim_to_int(ceil(a));
}
static inline long long __double2ll_rz(double a)
{
    return assay_sim_to_ll(trunc(a));
}
static inline double __uint2double_rn(unsigned a)
{
    return a;
}
static inline double __ll2double_rn(long long a)
{
    return static_cast<double>(a);
}
static inline double __ull2double_rn(unsigned long long a)
{
    return static_cast<double>(a);
}
static inline float __ull2float_rn(unsigned long long a)
{
    return static_cast<float>(a);
}
static inline int __double2hiint(double a)
{
    return static_cast<int>(__double_as_longlong(a) >> 32);
}
static inline int __double2loint(double a)
{
    return static_cast<int>(__double_as_longlong(a));
}
static inline double __hiloint2double(int hi, int lo)
{
    return __longlong_as_double(static_cast<long long>(
        static_cast<uint64_t>(static_cast<uint32_t>(hi)) << 32 | static_cast<uint32_t>(lo)));
}

/* --- integers ------------------------------------------------------------------------------------------------------- */

static inline int __mul24(int a, int b)
{
    const auto low =
        [](int v) { /* the lowest 24 bits and their sign */
                    return static_cast<unsigned>(static_cast<int>(static_cast<unsigned>(v) << 8) >> 8);
        };
    return static_cast<int>(low(a) * low(b));
}
static inline unsigned __umul24(unsigned a, unsigned b)
{
    return (a & 0xffffffu) * (b & 0xffffffu);
}
static inline int mul24(int a, int b)
{
    return __mul24(a, b);
}
static inline unsigned umul24(unsigned a, unsigned b)
{
    return __umul24(a, b);
}
static inline long long __mul64hi(long long a, long long b)
{
    __extension__ typedef __int128 wide;
    return static_cast<long long>(static_cast<wide>(a) * b >> 64);
}
static inline unsigned umin(unsigned a, unsigned b)
{
    return b < a ? b : a;
}
static inline unsigned umax(unsigned a, unsigned b)
{
    return a < b ? b : a;
}
static inline long long llmin(long long a, long long b)
{
    return b < a ? b : a;
}
static inline long long llmax(long long a, long long b)
{
    return a < b ? b : a;
}
static inline unsigned long long ullmin(unsigned long long a, unsigned long long b)
{
    return b < a ? b : a;
}
static inline unsigned long long ullmax(unsigned long long a, unsigned long long b)
{
    return a < b ? b : a;
}
static inline unsigned __sad(int a, int b, unsigned c)
{
    return c + (a < b ? static_cast<unsigned>(b) - static_cast<unsigned>(a)
                      : static_cast<unsigned>(a) - static_cast<unsigned>(b));
}
static inline unsigned __usad(unsigned a, unsigned b, unsigned c)
{
    return c + (a < b ? b - a : a - b);
}
static inline unsigned long long __brevll(unsigned long long v)
{
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(v))) << 32 |
           __brev(static_cast<unsigned>(v >> 32));
}
/* Four bytes of each operand; f gives a byte's value. */
#define ASSAY_SIM_BYTES(name, byte, expression)                                                              \
    static inline unsigned name(unsigned a, unsigned b)                                                      \
    {                                                                                                        \
        unsigned r = 0;                                                                                      \
        for (int i = 0; i < 32; i += 8) {                                                                    \
            const int x = static_cast<byte>(a >> i), y = static_cast<byte>(b >> i);                          \
            r |= (static_cast<unsigned>(expression) & 0xffu) << i;                                           \
        }                                                                                                    \
        return r;                                                                                            \
    }
ASSAY_SIM_BYTES(__vadd4, unsigned char, x + y)
ASSAY_SIM_BYTES(__vsub4, unsigned char, x - y)
ASSAY_SIM_BYTES(__vsubss4, signed char, x - y < -128 ? -128 : x - y > 127 ? 127 : x - y)
ASSAY_SIM_BYTES(__vaddss4, signed char, x + y < -128 ? -128 : x + y > 127 ? 127 : x + y)
ASSAY_SIM_BYTES(__vabsdiffu4, unsigned char, x < y ? y - x : x - y)
ASSAY_SIM_BYTES(__vavgu4, unsigned char, (x + y + 1) / 2)
ASSAY_SIM_BYTES(__vminu4, unsigned char, x < y ? x : y)
ASSAY_SIM_BYTES(__vmaxu4, unsigned char, x < y ? y : x)
ASSAY_SIM_BYTES(__vcmpeq4, unsigned char, x == y ? 0xff : 0)
ASSAY_SIM_BYTES(__vcmpgtu4, unsigned char, x > y ? 0xff : 0)
ASSAY_SIM_BYTES(__vcmpne4, unsigned char, x != y ? 0xff : 0)
ASSAY_SIM_BYTES(__vseteq4, unsigned char, x == y)
#undef ASSAY_SIM_BYTES
static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 32; i += 8)
        c += static_cast<signed char>(a >> i) * static_cast<signed char>(b >> i);
    return c;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c)
{
    for (int i = 0; i < 32; i += 8)
        c += (a >> i & 0xffu) * (b >> i & 0xffu);
    return c;
}

/* --- warps ---------------------------------------------------------------------------------------------------------- */

template <class T>
static inline unsigned __match_all_sync(unsigned mask, T value, int *pred, int line = ASSAY_SIM_HERE)
{
    const unsigned same = __match_any_sync(mask, value, line);
    *pred = __all_sync(mask, same == mask, line);
    return *pred ? mask : 0;
}

/* --- special functions ---------------------------------------------------------------------------------------------- */

static inline double assay_sim_normcdfinv(double p);
#define ASSAY_SIM_SPECIAL(name, expression)                                                                  \
    static inline double name(double x)                                                                      \
    {                                                                                                        \
        return expression;                                                                                   \
    }                                                                                                        \
    static inline float name##f(float v)                                                                     \
    {                                                                                                        \
        const double x = static_cast<double>(v);                                                             \
        return static_cast<float>(expression);                                                               \
    }
ASSAY_SIM_SPECIAL(sinpi, sin(M_PI *fmod(x, 2.0)))
ASSAY_SIM_SPECIAL(cospi, cos(M_PI *fmod(x, 2.0)))
ASSAY_SIM_SPECIAL(normcdf, 0.5 * erfc(-x * M_SQRT1_2))
ASSAY_SIM_SPECIAL(normcdfinv, assay_sim_normcdfinv(x))
ASSAY_SIM_SPECIAL(erfinv, assay_sim_normcdfinv(0.5 * (x + 1.0)) * M_SQRT1_2)
ASSAY_SIM_SPECIAL(erfcinv, -assay_sim_normcdfinv(0.5 * x) * M_SQRT1_2)
ASSAY_SIM_SPECIAL(erfcx, exp(x *x) * erfc(x))
#undef ASSAY_SIM_SPECIAL
/* Newton's method on the distribution from Acklam's region of start; converges to the last bits. */
static inline double assay_sim_normcdfinv(double p)
{
    if (!(p > 0.0 && p < 1.0))
        return p == 0.0 ? -INFINITY : p == 1.0 ? INFINITY : NAN;
    double x = 0.0;
    if (p < 0.02 || p > 0.98) {
        const double t = sqrt(-2.0 * log(p < 0.5 ? p : 1.0 - p));
        x = t - (2.515517 + t * (0.802853 + 0.010328 * t)) /
                    (1.0 + t * (1.432788 + t * (0.189269 + 0.001308 * t)));
        x = p < 0.5 ? -x : x;
    }
    for (int i = 0; i < 60; ++i) {
        const double step = (0.5 * erfc(-x * M_SQRT1_2) - p) / (exp(-0.5 * x * x) * 0.39894228040143267794);
        x -= step;
        if (!(fabs(step) > 1e-16 * fabs(x)))
            break;
    }
    return x;
}
static inline double rcbrt(double a)
{
    return 1.0 / cbrt(a);
}
static inline float fdividef(float a, float b)
{
    return a / b;
}
static inline float rhypotf(float a, float b)
{
    return static_cast<float>(1.0 / hypot(static_cast<double>(a), static_cast<double>(b)));
}
static inline double rhypot(double a, double b)
{
    return 1.0 / hypot(a, b);
}
static inline float norm3df(float a, float b, float c)
{
    return static_cast<float>(
        sqrt(static_cast<double>(a) * a + static_cast<double>(b) * b + static_cast<double>(c) * c));
}
static inline float rnorm3df(float a, float b, float c)
{
    return static_cast<float>(
        1.0 / sqrt(static_cast<double>(a) * a + static_cast<double>(b) * b + static_cast<double>(c) * c));
}
static inline void sincospif(float x, float *s, float *c)
{
    *s = sinpif(x);
    *c = cospif(x);
}
static inline void sincospi(double x, double *s, double *c)
{
    *s = sinpi(x);
    *c = cospi(x);
}

#endif
