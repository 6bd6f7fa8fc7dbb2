/* Vectors for ref/fast and ref/bounds: functions for several widths of registers, and an exponential that runs
 * in them. */
#ifndef REF_FAST_VECTOR_H
#define REF_FAST_VECTOR_H

#include "ref/ops/vector.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define REF_THREAD_SANITIZER
#endif
#elif defined(__SANITIZE_THREAD__)
#define REF_THREAD_SANITIZER
#endif

/* A function of one long loop, compiled for several widths of vector registers; the processor chooses when
 * the program starts (before the thread sanitizer does).  Multiply and add are never contracted
 * (-ffp-contract=off), so every width gives the same bits. */
#if defined(__x86_64__) && defined(__linux__) && !defined(REF_THREAD_SANITIZER)
#define REF_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define REF_WIDE
#endif

/* 2^n from n + ROUND, whose low bits hold the integer n: moved up, they are an exponent. */
static inline double ref_power_of_two(double shifted)
{
    const double one = 1.0;
    uint64_t n, bits;
    memcpy(&n, &shifted, sizeof n);
    memcpy(&bits, &one, sizeof bits);
    bits += n << 52;
    memcpy(&shifted, &bits, sizeof bits);
    return shifted;
}

/* exp(x) with an error below one ulp, without a branch or a table, so that a loop over it runs in vector
 * registers: x = n ln 2 + r with |r| <= ln 2 / 2, exp(r) from its Taylor series, 2^n in two factors because
 * the result may be subnormal.  NaN stays NaN. */
static inline double ref_fast_exp(double x)
{
    const double ROUND = 0x1.8p52; /* adding it rounds to an integer */
    const double LN2_HIGH = 0x1.62e42feep-1, LN2_LOW = 0x1.a39ef35793c76p-33, LOG2_E = 0x1.71547652b82fep+0;
    x = x < -746.0 ? -746.0 : x; /* underflows to zero */
    x = x > 710.0 ? 710.0 : x;   /* overflows to infinity */
    const double n = (x * LOG2_E + ROUND) - ROUND;
    const double r = (x - n * LN2_HIGH) - n * LN2_LOW; /* n * LN2_HIGH is exact */
    double q = 1.0 / 6227020800.0;                     /* (exp(r) - 1 - r) / r^2 = sum_k r^k / (k+2)! */
    q = q * r + 1.0 / 479001600.0;
    q = q * r + 1.0 / 39916800.0;
    q = q * r + 1.0 / 3628800.0;
    q = q * r + 1.0 / 362880.0;
    q = q * r + 1.0 / 40320.0;
    q = q * r + 1.0 / 5040.0;
    q = q * r + 1.0 / 720.0;
    q = q * r + 1.0 / 120.0;
    q = q * r + 1.0 / 24.0;
    q = q * r + 1.0 / 6.0;
    q = q * r + 1.0 / 2.0;
    const double half = n * 0.5 + ROUND, rest = n - (half - ROUND);
    return (1.0 + (r + r * r * q)) * ref_power_of_two(half) * ref_power_of_two(rest + ROUND);
}

#endif
