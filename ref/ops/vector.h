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

/* Work below this many multiplications is not worth waking a second thread.  A region of one thread still ends by asking the system to
 * wake the others: what is called very often calls its part outside a region instead (ref_policy_store). */
static inline bool ref_vec_parallel(int64_t work)
{
    return work > 20000;
}

#endif
