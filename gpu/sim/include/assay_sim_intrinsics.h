/* Device intrinsics that need no other thread: atomics, bit tricks, rounding-explicit arithmetic, fast math,
 * caching loads. Fast-math intrinsics (__expf, __fdividef, rsqrtf, ...) are computed here at least as
 * accurately as CUDA documents them, never with CUDA's bits; a kernel declares CUDA's error for them.  Part
 * of assay_sim_device.h. */
#ifndef ASSAY_SIM_INTRINSICS_H
#define ASSAY_SIM_INTRINSICS_H

#include <cmath>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* --- reinterpretation --------------------------------------------------------------------------------------- */

#define ASSAY_SIM_CAST(name, to, from)                                                                       \
    static inline to name(from v)                                                                            \
    {                                                                                                        \
        to r;                                                                                                \
        memcpy(&r, &v, sizeof r);                                                                            \
        return r;                                                                                            \
    }
ASSAY_SIM_CAST(__float_as_int, int, float)
ASSAY_SIM_CAST(__float_as_uint, unsigned, float)
ASSAY_SIM_CAST(__int_as_float, float, int)
ASSAY_SIM_CAST(__uint_as_float, float, unsigned)
ASSAY_SIM_CAST(__double_as_longlong, long long, double)
ASSAY_SIM_CAST(__longlong_as_double, double, long long)
#undef ASSAY_SIM_CAST

/* --- arithmetic rounded once, never contracted -------------------------------------------------------------- */

#if defined(__x86_64__)
#define ASSAY_SIM_KEEP(v) __asm__("" : "+x"(v))
#else
#define ASSAY_SIM_KEEP(v) __asm__("" : "+m"(v))
#endif
#define ASSAY_SIM_ROUNDED(name, type, expression)                                                            \
    static inline type name(type a, type b)                                                                  \
    {                                                                                                        \
        type r = expression;                                                                                 \
        ASSAY_SIM_KEEP(r);                                                                                   \
        return r;                                                                                            \
    }
ASSAY_SIM_ROUNDED(__fadd_rn, float, a + b)
ASSAY_SIM_ROUNDED(__fsub_rn, float, a - b)
ASSAY_SIM_ROUNDED(__fmul_rn, float, a *b)
ASSAY_SIM_ROUNDED(__fdiv_rn, float, a / b)
ASSAY_SIM_ROUNDED(__fdividef, float, a / b)
ASSAY_SIM_ROUNDED(__dadd_rn, double, a + b)
ASSAY_SIM_ROUNDED(__dsub_rn, double, a - b)
ASSAY_SIM_ROUNDED(__dmul_rn, double, a *b)
ASSAY_SIM_ROUNDED(__ddiv_rn, double, a / b)
#undef ASSAY_SIM_ROUNDED

/* Inner products are chains of fmaf, and a call of libm's costs several times the instruction: where the processor has
 * it, it is used here.  All round once, so the bits are the same.  Code that is compiled for FMA names the builtin, which
 * the compiler may put into vectors. */
static inline float assay_sim_fmaf(float a, float b, float c)
{
#if defined(__FMA__)
    return __builtin_fmaf(a, b, c);
#elif defined(__x86_64__)
    if (__builtin_expect(assay_sim_has_fma, 1)) {
        __asm__("vfmadd213ss %2, %1, %0" : "+x"(a) : "x"(b), "x"(c)); /* a = b a + c */
        return a;
    }
    return fmaf(a, b, c);
#else
    return fmaf(a, b, c);
#endif
}
#define fmaf assay_sim_fmaf
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}
static inline float __frcp_rn(float a)
{
    return 1.0f / a;
}
static inline double __drcp_rn(double a)
{
    return 1.0 / a;
}
static inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
static inline double __dsqrt_rn(double a)
{
    return sqrt(a);
}
static inline double rsqrt(double a)
{
    return 1.0 / sqrt(a);
}
static inline float rsqrtf(float a)
{
    return static_cast<float>(1.0 / sqrt(static_cast<double>(a)));
}
static inline float __frsqrt_rn(float a)
{
    return rsqrtf(a);
}
static inline float rcbrtf(float a)
{
    return static_cast<float>(1.0 / cbrt(static_cast<double>(a)));
}
/* The C library keeps these names for itself, so a macro, not a function, gives them to kernels. */
#define __expf assay_sim_fast_expf
#define __exp10f assay_sim_fast_exp10f
#define __logf assay_sim_fast_logf
#define __log2f assay_sim_fast_log2f
#define __log10f assay_sim_fast_log10f
#define __powf assay_sim_fast_powf
#define __sinf assay_sim_fast_sinf
#define __cosf assay_sim_fast_cosf
#define __tanf assay_sim_fast_tanf
#define __sincosf assay_sim_fast_sincosf
static inline float assay_sim_fast_expf(float a)
{
    return expf(a);
}
static inline float assay_sim_fast_exp10f(float a)
{
    return static_cast<float>(pow(10.0, static_cast<double>(a)));
}
static inline float assay_sim_fast_logf(float a)
{
    return logf(a);
}
static inline float assay_sim_fast_log2f(float a)
{
    return log2f(a);
}
static inline float assay_sim_fast_log10f(float a)
{
    return log10f(a);
}
static inline float assay_sim_fast_powf(float a, float b)
{
    return powf(a, b);
}
static inline float assay_sim_fast_sinf(float a)
{
    return sinf(a);
}
static inline float assay_sim_fast_cosf(float a)
{
    return cosf(a);
}
static inline float assay_sim_fast_tanf(float a)
{
    return tanf(a);
}
static inline void assay_sim_fast_sincosf(float a, float *s, float *c)
{
    *s = sinf(a);
    *c = cosf(a);
}
/* fmaxf drops a NaN, hence the order of the operands: a NaN saturates to 0, as on a GPU. */
static inline float __saturatef(float a)
{
    return fminf(fmaxf(a, 0.0f), 1.0f);
}

/* --- conversions -------------------------------------------------------------------------------------------- */

/* CUDA's float to integer conversions saturate and turn NaN into 0; C's are undefined there. */
static inline int assay_sim_to_int(double r)
{
    if (!(r == r))
        return 0;
    return r <= -2147483648.0 ? INT_MIN : r >= 2147483647.0 ? INT_MAX : static_cast<int>(r);
}
static inline unsigned assay_sim_to_uint(double r)
{
    if (!(r > 0.0))
        return 0;
    return r >= 4294967295.0 ? UINT_MAX : static_cast<unsigned>(r);
}
static inline long long assay_sim_to_ll(double r)
{
    if (!(r == r))
        return 0;
    return r <= -9223372036854775808.0  ? LLONG_MIN
           : r >= 9223372036854775808.0 ? LLONG_MAX
                                        : static_cast<long long>(r);
}
static inline int __float2int_rn(float a)
{
    return assay_sim_to_int(rint(static_cast<double>(a)));
}
static inline int __float2int_rz(float a)
{
    return assay_sim_to_int(trunc(static_cast<double>(a)));
}
static inline int __float2int_rd(float a)
{
    return assay_sim_to_int(floor(static_cast<double>(a)));
}
static inline int __float2int_ru(float a)
{
    return assay_sim_to_int(ceil(static_cast<double>(a)));
}
static inline unsigned __float2uint_rn(float a)
{
    return assay_sim_to_uint(rint(static_cast<double>(a)));
}
static inline unsigned __float2uint_rz(float a)
{
    return assay_sim_to_uint(trunc(static_cast<double>(a)));
}
static inline long long __float2ll_rn(float a)
{
    return assay_sim_to_ll(rint(static_cast<double>(a)));
}
static inline long long __float2ll_rz(float a)
{
    return assay_sim_to_ll(trunc(static_cast<double>(a)));
}
static inline int __double2int_rn(double a)
{
    return assay_sim_to_int(rint(a));
}
static inline long long __double2ll_rn(double a)
{
    return assay_sim_to_ll(rint(a));
}
static inline float __double2float_rn(double a)
{
    return static_cast<float>(a);
}
static inline float __int2float_rn(int a)
{
    return static_cast<float>(a);
}
static inline float __uint2float_rn(unsigned a)
{
    return static_cast<float>(a);
}
static inline float __ll2float_rn(long long a)
{
    return static_cast<float>(a);
}
static inline double __int2double_rn(int a)
{
    return static_cast<double>(a);
}

/* --- integers ----------------------------------------------------------------------------------------------- */

static inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}
static inline int __popcll(unsigned long long v)
{
    return __builtin_popcountll(v);
}
static inline int __clz(int v)
{
    return v ? __builtin_clz(static_cast<unsigned>(v)) : 32;
}
static inline int __clzll(long long v)
{
    return v ? __builtin_clzll(static_cast<unsigned long long>(v)) : 64;
}
static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}
static inline int __ffsll(long long v)
{
    return __builtin_ffsll(v);
}
static inline unsigned __brev(unsigned v)
{
    unsigned r = 0;
    for (int i = 0; i < 32; ++i)
        r |= (v >> i & 1u) << (31 - i);
    return r;
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
static inline int __mulhi(int a, int b)
{
    return static_cast<int>(static_cast<int64_t>(a) * b >> 32);
}
__extension__ typedef unsigned __int128 assay_sim_uint128;
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return static_cast<unsigned long long>(static_cast<assay_sim_uint128>(a) * b >> 64);
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s)
{
    const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned sel = s >> (4 * i) & 0xfu;
        unsigned byte = static_cast<unsigned>(both >> (8 * (sel & 7u))) & 0xffu;
        if (sel & 8u)
            byte = byte & 0x80u ? 0xffu : 0u; /* the selector's top bit replicates the sign */
        r |= byte << (8 * i);
    }
    return r;
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift)
{
    return static_cast<unsigned>((static_cast<uint64_t>(hi) << 32 | lo) << (shift & 31u) >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift)
{
    return static_cast<unsigned>((static_cast<uint64_t>(hi) << 32 | lo) >> (shift & 31u));
}

/* CUDA declares min and max without a namespace, for every pair of arithmetic types. */
#define ASSAY_SIM_MINMAX(type, ta, tb)                                                                       \
    static inline type min(ta a, tb b)                                                                       \
    {                                                                                                        \
        return static_cast<type>(b) < static_cast<type>(a) ? static_cast<type>(b) : static_cast<type>(a);    \
    }                                                                                                        \
    static inline type max(ta a, tb b)                                                                       \
    {                                                                                                        \
        return static_cast<type>(a) < static_cast<type>(b) ? static_cast<type>(b) : static_cast<type>(a);    \
    }
ASSAY_SIM_MINMAX(int, int, int)
ASSAY_SIM_MINMAX(unsigned, unsigned, unsigned)
ASSAY_SIM_MINMAX(unsigned, int, unsigned)
ASSAY_SIM_MINMAX(unsigned, unsigned, int)
ASSAY_SIM_MINMAX(long, long, long)
ASSAY_SIM_MINMAX(unsigned long, unsigned long, unsigned long)
ASSAY_SIM_MINMAX(unsigned long, long, unsigned long)
ASSAY_SIM_MINMAX(unsigned long, unsigned long, long)
ASSAY_SIM_MINMAX(long long, long long, long long)
ASSAY_SIM_MINMAX(unsigned long long, unsigned long long, unsigned long long)
ASSAY_SIM_MINMAX(unsigned long long, long long, unsigned long long)
ASSAY_SIM_MINMAX(unsigned long long, unsigned long long, long long)
#undef ASSAY_SIM_MINMAX
static inline float min(float a, float b)
{
    return fminf(a, b);
}
static inline float max(float a, float b)
{
    return fmaxf(a, b);
}
static inline double min(double a, double b)
{
    return fmin(a, b);
}
static inline double max(double a, double b)
{
    return fmax(a, b);
}
static inline double min(float a, double b)
{
    return fmin(static_cast<double>(a), b);
}
static inline double max(float a, double b)
{
    return fmax(static_cast<double>(a), b);
}
static inline double min(double a, float b)
{
    return fmin(a, static_cast<double>(b));
}
static inline double max(double a, float b)
{
    return fmax(a, static_cast<double>(b));
}

/* --- memory ------------------------------------------------------------------------------------------------- */

/* These instructions name the global state space (ld.global, st.global): of shared memory a device refuses them. */
static inline __attribute__((always_inline)) void assay_sim_global(const void *p, const char *what, int line)
{
    if (assay_sim_has_shared)
        assay_sim_global_only(p, what, line);
}
template <class T> static inline __attribute__((always_inline)) T __ldg(const T *p, int line = ASSAY_SIM_HERE)
{
    assay_sim_global(p, "__ldg", line);
    return *p;
}
template <class T>
static inline __attribute__((always_inline)) T __ldca(const T *p, int line = ASSAY_SIM_HERE)
{
    assay_sim_global(p, "__ldca", line);
    return *p;
}
template <class T>
static inline __attribute__((always_inline)) T __ldcg(const T *p, int line = ASSAY_SIM_HERE)
{
    assay_sim_global(p, "__ldcg", line);
    return *p;
}
template <class T>
static inline __attribute__((always_inline)) T __ldcs(const T *p, int line = ASSAY_SIM_HERE)
{
    assay_sim_global(p, "__ldcs", line);
    return *p;
}
template <class T>
static inline __attribute__((always_inline)) T __ldlu(const T *p, int line = ASSAY_SIM_HERE)
{
    assay_sim_global(p, "__ldlu", line);
    return *p;
}
template <class T>
static inline __attribute__((always_inline)) T __ldcv(const T *p, int line = ASSAY_SIM_HERE)
{
    assay_sim_global(p, "__ldcv", line);
    return *p;
}
template <class T>
static inline __attribute__((always_inline)) void __stcg(T *p, T v, int line = ASSAY_SIM_HERE)
{
    assay_sim_global(p, "__stcg", line);
    memcpy(__builtin_assume_aligned(p, alignof(T)), &v, sizeof v); /* whatever type the object has */
}
template <class T>
static inline __attribute__((always_inline)) void __stcs(T *p, T v, int line = ASSAY_SIM_HERE)
{
    assay_sim_global(p, "__stcs", line);
    memcpy(__builtin_assume_aligned(p, alignof(T)), &v, sizeof v); /* whatever type the object has */
}
template <class T>
static inline __attribute__((always_inline)) void __stwb(T *p, T v, int line = ASSAY_SIM_HERE)
{
    assay_sim_global(p, "__stwb", line);
    memcpy(__builtin_assume_aligned(p, alignof(T)), &v, sizeof v); /* whatever type the object has */
}
template <class T>
static inline __attribute__((always_inline)) void __stwt(T *p, T v, int line = ASSAY_SIM_HERE)
{
    assay_sim_global(p, "__stwt", line);
    memcpy(__builtin_assume_aligned(p, alignof(T)), &v, sizeof v); /* whatever type the object has */
}
/* What a scope tells the race checker (assay_cudasim_races); elsewhere fences and atomics of all scopes are one. */
#if !defined(ASSAY_SIM_INSTRUMENTED) && defined(__SANITIZE_THREAD__)
#define ASSAY_SIM_INSTRUMENTED 1
#elif !defined(ASSAY_SIM_INSTRUMENTED) && defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ASSAY_SIM_INSTRUMENTED 1
#endif
#endif
#ifdef ASSAY_SIM_INSTRUMENTED
extern "C" void assay_sim_fence(int scope);
extern "C" int assay_sim_scope(int scope);
namespace assay_sim
{
struct block_scope {
    int before;
    block_scope() : before(assay_sim_scope(0))
    {
    }
    ~block_scope()
    {
        assay_sim_scope(before);
    }
};
} /* namespace assay_sim */
#define ASSAY_SIM_FENCE(scope) assay_sim_fence(scope)
#define ASSAY_SIM_BLOCK_SCOPE assay_sim::block_scope narrow
#else
#define ASSAY_SIM_FENCE(scope) __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define ASSAY_SIM_BLOCK_SCOPE static_cast<void>(0)
#endif
static inline void __threadfence()
{
    ASSAY_SIM_FENCE(1);
}
static inline void __threadfence_block()
{
    ASSAY_SIM_FENCE(0);
}
static inline void __threadfence_system()
{
    ASSAY_SIM_FENCE(2);
}
/* Time: clock() is the C library's, in microseconds of this process; clock64() and the global timer count nanoseconds. */
static inline long long clock64()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<long long>(t.tv_sec) * 1000000000 + t.tv_nsec;
}
#if !defined(ASSAY_CC) /* it is not CUDA's: other people's programs have functions of this name */
static inline unsigned long long __globaltimer()
{
    return static_cast<unsigned long long>(clock64());
}
#endif
/* Lets the other threads of the block run, so that a loop that waits with it for one of them ends. */
static inline void __nanosleep(unsigned)
{
    assay_sim_yield();
}
static inline void __trap(int line = ASSAY_SIM_HERE)
{
    assay_sim_trap(line);
}
static inline bool __isGlobal(const void *p)
{
    return assay_sim_is_global(p) != 0;
}

namespace assay_sim
{
template <class T>
using same = typename std::enable_if<true, T>::type; /* not deduced: the other operand converts */

template <class T> struct bits_of {
    typedef typename std::conditional<
        sizeof(T) == 8, unsigned long long,
        typename std::conditional<sizeof(T) == 4, unsigned, unsigned short>::type>::type type;
};

/* Read-modify-write by compare-and-swap on the value's bits, so that one path serves integers and floats. */
template <class T, class F> static inline T atomic_update(T *p, F f)
{
    typedef typename bits_of<T>::type bits;
    bits *word = reinterpret_cast<bits *>(p);
    bits seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    for (;;) {
        T before, after;
        memcpy(static_cast<void *>(&before), &seen, sizeof before);
        after = f(before);
        bits want;
        memcpy(&want, static_cast<const void *>(&after), sizeof want);
        if (__atomic_compare_exchange_n(word, &seen, want, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return before;
    }
}
} /* namespace assay_sim */

#define ASSAY_SIM_ATOMIC(name, expression)                                                                   \
    template <class T> static inline T name(T *p, assay_sim::same<T> v)                                      \
    {                                                                                                        \
        return assay_sim::atomic_update(p, [v](T old) -> T { return static_cast<T>(expression); });          \
    }                                                                                                        \
    template <class T> static inline T name##_block(T *p, assay_sim::same<T> v)                              \
    {                                                                                                        \
        ASSAY_SIM_BLOCK_SCOPE;                                                                               \
        return name(p, v);                                                                                   \
    }                                                                                                        \
    template <class T> static inline T name##_system(T *p, assay_sim::same<T> v)                             \
    {                                                                                                        \
        return name(p, v);                                                                                   \
    }
ASSAY_SIM_ATOMIC(atomicAdd, old + v)
ASSAY_SIM_ATOMIC(atomicSub, old - v)
ASSAY_SIM_ATOMIC(atomicExch, ((void)old, v))
ASSAY_SIM_ATOMIC(atomicMax, old < v ? v : old)
ASSAY_SIM_ATOMIC(atomicMin, v < old ? v : old)
ASSAY_SIM_ATOMIC(atomicAnd, old &v)
ASSAY_SIM_ATOMIC(atomicOr, old | v)
ASSAY_SIM_ATOMIC(atomicXor, old ^ v)
ASSAY_SIM_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
ASSAY_SIM_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)
#undef ASSAY_SIM_ATOMIC
template <class T> static inline T atomicCAS(T *p, assay_sim::same<T> compare, assay_sim::same<T> v)
{
    typedef typename assay_sim::bits_of<T>::type bits;
    bits expected, wanted;
    memcpy(&expected, &compare, sizeof expected);
    memcpy(&wanted, &v, sizeof wanted);
    __atomic_compare_exchange_n(reinterpret_cast<bits *>(p), &expected, wanted, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
    T old;
    memcpy(&old, &expected, sizeof old);
    return old;
}
template <class T> static inline T atomicCAS_block(T *p, assay_sim::same<T> compare, assay_sim::same<T> v)
{
    ASSAY_SIM_BLOCK_SCOPE;
    return atomicCAS(p, compare, v);
}
template <class T> static inline T atomicCAS_system(T *p, assay_sim::same<T> compare, assay_sim::same<T> v)
{
    return atomicCAS(p, compare, v);
}

#endif
