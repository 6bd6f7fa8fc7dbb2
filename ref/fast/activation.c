/* SwiGLU of ref/ops/activation.c with an exponential in vector registers. */
#include "ref/fast.h"
#include "ref/fast/vector.h"

#include <math.h>

/* Never overflows: exp is taken of a number that is not positive. */
static inline double sigmoid(double x)
{
    const double e = ref_fast_exp(-fabs(x));
    return (x >= 0.0 ? 1.0 : e) / (1.0 + e);
}

REF_WIDE static void swiglu_row(double *y, const double *gate, const double *up, double p, int64_t f)
{
#pragma omp simd
    for (int64_t j = 0; j < f; j++)
        y[j] = gate[j] * sigmoid(gate[j]) * up[j] * p;
}

void ref_fast_swiglu_fwd(double *y, const double *x, const double *probs, int64_t t, int64_t f)
{
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * f * 8))
    for (int64_t i = 0; i < t; i++)
        swiglu_row(y + i * f, x + i * 2 * f, x + i * 2 * f + f, probs ? probs[i] : 1.0, f);
}

/* dx [2F], dy [F], x [2F] */
REF_WIDE static void swiglu_bwd_row(double *dx, const double *dy, const double *x, double p, int64_t f)
{
    const double *gate = x, *up = x + f;
    double *dgate = dx, *dup = dx + f;
#pragma omp simd
    for (int64_t j = 0; j < f; j++) {
        const double s = sigmoid(gate[j]);
        dgate[j] = dy[j] * p * up[j] * s * (1.0 + gate[j] * (1.0 - s));
        dup[j] = dy[j] * p * gate[j] * s;
    }
}

void ref_fast_swiglu_bwd(double *dx, double *dprobs, const double *dy, const double *x, const double *probs,
                         int64_t t, int64_t f)
{
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * f * 8))
    for (int64_t i = 0; i < t; i++) {
        const double *gate = x + i * 2 * f, *up = gate + f;
        swiglu_bwd_row(dx + i * 2 * f, dy + i * f, gate, probs ? probs[i] : 1.0, f);
        if (!probs || !dprobs)
            continue;
        dprobs[i] = 0.0;
        for (int64_t j = 0; j < f; j++)
            dprobs[i] += dy[i * f + j] * (gate[j] * sigmoid(gate[j]) * up[j]);
    }
}
