/* Rotary position embedding on halves of the first R dimensions of a head.  Source: Su et al. 2021; the
 * llama3 frequency rule is Hugging Face's; yarn: Peng et al. 2023, section 3 and appendix. */
#include "ref/ops.h"
#include "ref/ops/vector.h"

#include <math.h>

static const double TWO_PI = 6.28318530717958647692;

/* The pair that turns `turns` times in the original length, as a real number. */
static double yarn_pair(const ref_rope_desc *d, double turns)
{
    return (double)d->rotary_dim * log((double)d->original_max_position_embeddings / (turns * TWO_PI)) /
           (2.0 * log(d->base));
}

void ref_rope_yarn_range(const ref_rope_desc *d, double *low, double *high)
{
    *low = yarn_pair(d, d->beta_fast);
    *high = yarn_pair(d, d->beta_slow);
    if (d->truncate) {
        *low = floor(*low);
        *high = ceil(*high);
    }
    *low = fmax(*low, 0.0);
    *high = fmin(*high, (double)d->rotary_dim - 1.0);
    if (*high == *low)
        *high += 0.001;
}

/* Pairs before the range keep their frequency, those behind it have linear's, between them it passes over. */
static double yarn_inv_freq(const ref_rope_desc *d, double f, int64_t i)
{
    double low, high;
    ref_rope_yarn_range(d, &low, &high);
    const double part = fmin(fmax(((double)i - low) / (high - low), 0.0), 1.0);
    return f / d->factor * part + f * (1.0 - part);
}

static double rope_inv_freq(const ref_rope_desc *d, int64_t i)
{
    const double f = pow(d->base, -2.0 * (double)i / (double)d->rotary_dim);
    if (d->type == ASSAY_ROPE_LINEAR)
        return f / d->factor;
    if (d->type == ASSAY_ROPE_YARN)
        return yarn_inv_freq(d, f, i);
    if (d->type != ASSAY_ROPE_LLAMA3)
        return f;
    const double wavelength = TWO_PI / f, original = (double)d->original_max_position_embeddings;
    if (wavelength < original / d->high_freq_factor)
        return f;
    if (wavelength > original / d->low_freq_factor)
        return f / d->factor;
    const double smooth =
        (original / wavelength - d->low_freq_factor) / (d->high_freq_factor - d->low_freq_factor);
    return (1.0 - smooth) * f / d->factor + smooth * f;
}

void ref_rope_table(double *cos_table, double *sin_table, const ref_rope_desc *d, int64_t n_positions)
{
    const int64_t half = d->rotary_dim / 2;
    const double times = d->type == ASSAY_ROPE_YARN ? d->attention_factor : 1.0;
    assert(d->rotary_dim >= 0 && d->rotary_dim % 2 == 0);
    for (int64_t i = 0; i < half; i++) {
        const double f = rope_inv_freq(d, i);
        for (int64_t p = 0; p < n_positions; p++) {
            cos_table[p * half + i] = times * cos((double)p * f);
            sin_table[p * half + i] = times * sin((double)p * f);
        }
    }
}

/* sign +1 rotates, -1 rotates back */
static void rope_rotate(double *y, const double *x, const double *cos_table, const double *sin_table,
                        const int64_t *position, int64_t rotary_dim, int64_t t, int64_t heads, int64_t d,
                        double sign)
{
    const int64_t half = rotary_dim / 2;
    assert(rotary_dim >= 0 && rotary_dim % 2 == 0 && rotary_dim <= d);
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * heads * d))
    for (int64_t i = 0; i < t; i++) {
        assert(position[i] >= 0);
        const double *c = cos_table + position[i] * half, *s = sin_table + position[i] * half;
        for (int64_t a = 0; a < heads; a++) {
            const double *xi = x + (i * heads + a) * d;
            double *yi = y + (i * heads + a) * d;
            for (int64_t j = 0; j < half; j++) {
                const double first = xi[j], second = xi[half + j], sj = sign * s[j];
                yi[j] = first * c[j] - second * sj;
                yi[half + j] = second * c[j] + first * sj;
            }
            for (int64_t j = rotary_dim; j < d; j++)
                yi[j] = xi[j];
        }
    }
}

void ref_rope_fwd(double *y, const double *x, const double *cos_table, const double *sin_table,
                  const int64_t *position, int64_t rotary_dim, int64_t t, int64_t heads, int64_t d)
{
    rope_rotate(y, x, cos_table, sin_table, position, rotary_dim, t, heads, d, 1.0);
}

void ref_rope_bwd(double *dx, const double *dy, const double *cos_table, const double *sin_table,
                  const int64_t *position, int64_t rotary_dim, int64_t t, int64_t heads, int64_t d)
{
    rope_rotate(dx, dy, cos_table, sin_table, position, rotary_dim, t, heads, d, -1.0);
}
