/* Vectors for ref/fast and ref/bounds: functions for several widths of registers, and an exponential that runs
 * in them. */
#ifndef REF_FAST_VECTOR_H
#define REF_FAST_VECTOR_H

#include "ref/ops/vector.h"

#include <math.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define REF_THREAD_SANITIZER
#endif
#elif defined(__SANITIZE_THREAD__)
#define REF_THREAD_SANITIZER
#endif

/* A function of one long loop, compiled for several widths of vector registers; the processor chooses when
 * the program starts (before the thread sanitizer does).  Multiply and add are never contracted
 * (-ffp-contract=off), so every width gives the same bits.  Its name stands in one file only: clang 14 makes the
 * choosing function of a static one global. */
#if defined(__x86_64__) && defined(__linux__) && !defined(REF_THREAD_SANITIZER)
#define REF_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define REF_WIDE
#endif

/* Eight doubles side by side, at any address: a sum in eight of them has the same bits in registers of every width. */
typedef double ref_eight __attribute__((vector_size(64), aligned(8), may_alias));
#define REF_EIGHT(x) ((ref_eight){x, x, x, x, x, x, x, x})
#define REF_EIGHT_SUM(s) ((((s)[0] + (s)[4]) + ((s)[2] + (s)[6])) + (((s)[1] + (s)[5]) + ((s)[3] + (s)[7])))

/* The largest of x; not a number where one of x is none; -infinity of nothing. */
static inline double ref_vec_max(const double *x, int64_t n)
{
    enum { LANES = 8 };
    double lane[LANES], max = -HUGE_VAL;
    int64_t numbers[LANES] = {0}, i = 0, total = 0;
    for (int k = 0; k < LANES; k++)
        lane[k] = -HUGE_VAL;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            lane[k] = x[i + k] > lane[k] ? x[i + k] : lane[k];
            numbers[k] += x[i + k] == x[i + k];
        }
    for (int k = 0; k < LANES; k++) {
        max = lane[k] > max ? lane[k] : max;
        total += numbers[k];
    }
    for (; i < n; i++) {
        max = x[i] > max ? x[i] : max;
        total += x[i] == x[i];
    }
    return total == n ? max : (double)NAN;
}

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

/* x = n ln 2 + r with |r| <= ln 2 / 2. */
static inline double ref_exp_reduce(double x, double *n)
{
    const double ROUND = 0x1.8p52; /* adding it rounds to an integer */
    const double LN2_HIGH = 0x1.62e42feep-1, LN2_LOW = 0x1.a39ef35793c76p-33, LOG2_E = 0x1.71547652b82fep+0;
    *n = (x * LOG2_E + ROUND) - ROUND;
    return (x - *n * LN2_HIGH) - *n * LN2_LOW; /* n * LN2_HIGH is exact */
}

/* exp(r) - 1 = r + r^2 sum_k r^k / (k+2)! of such an r */
static inline double ref_exp_series(double r)
{
    double q = 1.0 / 6227020800.0;
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
    return r + r * r * q;
}

/* exp(x) with an error below one ulp, without a branch or a table, so that a loop over it runs in vector
 * registers: exp(r) from its Taylor series, 2^n in two factors because the result may be subnormal.  NaN stays NaN. */
static inline double ref_fast_exp(double x)
{
    const double ROUND = 0x1.8p52;
    double n;
    x = x < -746.0 ? -746.0 : x; /* underflows to zero */
    x = x > 710.0 ? 710.0 : x;   /* overflows to infinity */
    const double r = ref_exp_reduce(x, &n);
    const double half = n * 0.5 + ROUND, rest = n - (half - ROUND);
    return (1.0 + ref_exp_series(r)) * ref_power_of_two(half) * ref_power_of_two(rest + ROUND);
}

/* exp(x) - 1 to the last bits for x >= 0, infinity beyond 709; otherwise as ref_fast_exp. */
static inline double ref_fast_expm1(double x)
{
    const double ROUND = 0x1.8p52;
    double n;
    const double r = ref_exp_reduce(x > 709.0 ? 709.0 : x, &n), power = ref_power_of_two(n + ROUND);
    const double y = power * ref_exp_series(r) + (power - 1.0);
    return x > 709.0 ? HUGE_VAL : y;
}

#endif
