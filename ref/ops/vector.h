/* Loops that several operations share.  The order of every sum is fixed by the sizes alone. */
#ifndef REF_OPS_VECTOR_H
#define REF_OPS_VECTOR_H

/* A violated precondition of an operation is a bug, in every build. */
#undef NDEBUG
#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* sum_i a[i] b[i] in four interleaved chains, joined (0+1)+(2+3): as exact as one chain, four times as fast.
 */
static inline double ref_vec_dot(const double *a, const double *b, int64_t n)
{
    double s0 = 0.0, s1 = 0.0, s2 = 0.0, s3 = 0.0;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        s0 += a[i] * b[i];
        s1 += a[i + 1] * b[i + 1];
        s2 += a[i + 2] * b[i + 2];
        s3 += a[i + 3] * b[i + 3];
    }
    for (; i < n; i++)
        s0 += a[i] * b[i];
    return (s0 + s1) + (s2 + s3);
}

/* y[i] += alpha x[i] */
static inline void ref_vec_axpy(double *y, double alpha, const double *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] += alpha * x[i];
}

static inline void ref_vec_zero(double *y, int64_t n)
{
    if (n > 0)
        memset(y, 0, (size_t)n * sizeof *y);
}

static inline void ref_vec_copy(double *y, const double *x, int64_t n)
{
    if (n > 0)
        memcpy(y, x, (size_t)n * sizeof *y);
}

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
static inline double ref_exp(double x)
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

/* Work below this many multiplications is not worth waking a second thread. */
static inline bool ref_vec_parallel(int64_t work)
{
    return work > 20000;
}

#endif
