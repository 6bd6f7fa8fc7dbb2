/* Element-wise operations: residual add, SwiGLU (Shazeer 2020) with the combine weight of its row, sigmoid
 * gate. */
#include "ref/ops.h"
#include "ref/ops/vector.h"
#include "ref/replay.h"

#include <math.h>

/* Never overflows: exp is taken of a number that is not positive. */
static double sigmoid(double x)
{
    if (x >= 0.0)
        return 1.0 / (1.0 + exp(-x));
    const double e = exp(x);
    return e / (1.0 + e);
}

void ref_add(double *y, const double *a, const double *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

void ref_clamp_fwd(double *y, const double *x, double limit, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];
}

void ref_clamp_bwd(double *dx, const double *dy, const double *x, double limit, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dx[i] = fabs(x[i]) < limit ? dy[i] : 0.0;
}

void ref_swiglu_fwd(double *y, const double *x, const double *probs, int64_t t, int64_t f)
{
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * f * 8))
    for (int64_t i = 0; i < t; i++) {
        const double *gate = x + i * 2 * f, *up = gate + f;
        const double p = probs ? probs[i] : 1.0;
        for (int64_t j = 0; j < f; j++)
            y[i * f + j] = gate[j] * sigmoid(gate[j]) * up[j] * p;
    }
}

void ref_swiglu_bwd(double *dx, double *dprobs, const double *dy, const double *x, const double *probs,
                    int64_t t, int64_t f)
{
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * f * 8))
    for (int64_t i = 0; i < t; i++) {
        const double *gate = x + i * 2 * f, *up = gate + f, *dyi = dy + i * f;
        double *dgate = dx + i * 2 * f, *dup = dgate + f;
        const double p = probs ? probs[i] : 1.0;
        double sum = 0.0;
        for (int64_t j = 0; j < f; j++) {
            const double s = sigmoid(gate[j]);
            sum += dyi[j] * (gate[j] * s * up[j]);
            dgate[j] = dyi[j] * p * up[j] * s * (1.0 + gate[j] * (1.0 - s));
            dup[j] = dyi[j] * p * gate[j] * s;
        }
        if (probs && dprobs)
            dprobs[i] = sum;
    }
}

void ref_sigmoid_gate_fwd(double *y, const double *x, const double *gate, int64_t t, int64_t h)
{
    for (int64_t i = 0; i < t; i++) {
        const double s = sigmoid(gate[i]);
        for (int64_t j = 0; j < h; j++)
            y[i * h + j] = x[i * h + j] * s;
    }
}

void ref_sigmoid_gate_bwd(double *dx, double *dgate, const double *dy, const double *x, const double *gate,
                          int64_t t, int64_t h, assay_dtype stored)
{
    for (int64_t i = 0; i < t; i++) {
        const double s = ref_round(sigmoid(gate[i]), stored);
        dgate[i] = s * (1.0 - s) * ref_vec_dot(dy + i * h, x + i * h, h);
        for (int64_t j = 0; j < h; j++)
            dx[i * h + j] = dy[i * h + j] * s;
    }
}
