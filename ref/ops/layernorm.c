/* LayerNorm over the last axis.  Source: Ba, Kiros & Hinton 2016, equation 4. */
#include "ref/ops.h"

#include <math.h>

void ref_layernorm_fwd(double *y, double *mean, double *rstd, const double *x, const double *gamma,
                       const double *beta, double eps, int64_t t, int64_t h)
{
    for (int64_t i = 0; i < t; i++) {
        const double *xi = x + i * h;
        double sum = 0.0, squares = 0.0;
        for (int64_t j = 0; j < h; j++)
            sum += xi[j];
        mean[i] = h > 0 ? sum / (double)h : 0.0;
        for (int64_t j = 0; j < h; j++)
            squares += (xi[j] - mean[i]) * (xi[j] - mean[i]);
        rstd[i] = 1.0 / sqrt((h > 0 ? squares / (double)h : 0.0) + eps);
        for (int64_t j = 0; j < h; j++)
            y[i * h + j] = gamma[j] * ((xi[j] - mean[i]) * rstd[i]) + (beta ? beta[j] : 0.0);
    }
}

void ref_layernorm_bwd(double *dx, double *dgamma, double *dbeta, const double *dy, const double *x,
                       const double *gamma, const double *mean, const double *rstd, int64_t t, int64_t h)
{
    for (int64_t i = 0; i < t; i++) {
        const double *dyi = dy + i * h, *xi = x + i * h;
        double sum = 0.0, dot = 0.0; /* of g, and of g xh */
        for (int64_t j = 0; j < h; j++) {
            const double g = dyi[j] * gamma[j], xh = (xi[j] - mean[i]) * rstd[i];
            sum += g;
            dot += g * xh;
            dgamma[j] += dyi[j] * xh;
            if (dbeta)
                dbeta[j] += dyi[j];
        }
        for (int64_t j = 0; j < h; j++) {
            const double xh = (xi[j] - mean[i]) * rstd[i];
            dx[i * h + j] = rstd[i] * (dyi[j] * gamma[j] - sum / (double)h - xh * (dot / (double)h));
        }
    }
}
