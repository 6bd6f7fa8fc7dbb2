/* Low-rank adapters.
 * Source: Hu et al. 2021 (LoRA); Kalajdzievski 2023 (rsLoRA, the scale); Liu et al. 2024 (DoRA); PEFT 0.21 (lora/layer.py, lora/dora.py). */
#include "ref/adapter.h"

#include <math.h>

double ref_lora_scale(double alpha, int64_t r, bool use_rslora)
{
    return alpha / (use_rslora ? sqrt((double)r) : (double)r);
}

void ref_lora_delta(double *delta, const double *a, const double *b, int64_t out, int64_t in, int64_t r,
                    double scale)
{
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            double sum = 0.0;
            for (int64_t k = 0; k < r; k++)
                sum += b[o * r + k] * a[k * in + i];
            delta[o * in + i] = scale * sum;
        }
}

void ref_lora_delta_embedding(double *delta, const double *a, const double *b, int64_t vocab, int64_t hidden,
                              int64_t r, double scale)
{
    for (int64_t v = 0; v < vocab; v++)
        for (int64_t h = 0; h < hidden; h++) {
            double sum = 0.0;
            for (int64_t k = 0; k < r; k++)
                sum += b[h * r + k] * a[k * vocab + v];
            delta[v * hidden + h] = scale * sum;
        }
}

void ref_dora_merge(double *w, const double *delta, const double *m, int64_t out, int64_t in, int64_t *row)
{
    *row = -1;
    for (int64_t o = 0; o < out; o++) {
        double sum = 0.0;
        for (int64_t i = 0; i < in; i++) {
            w[o * in + i] += delta[o * in + i];
            sum += w[o * in + i] * w[o * in + i];
        }
        if (sum == 0.0 && *row < 0)
            *row = o;
        for (int64_t i = 0; i < in; i++)
            w[o * in + i] *= m[o] / sqrt(sum);
    }
}
