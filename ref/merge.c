/* Merging models.
 * Source: Wortsman et al. 2022 (linear); Shoemake 1985 (slerp); Ilharco et al. 2022 (task arithmetic); Yadav et al. 2023 (TIES);
 * Yu et al. 2023 (DARE); conventions of mergekit 0.1.5 and PEFT 0.21. */
#include "ref/merge.h"

#include "core/base/hash.h"
#include "core/base/philox.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static double sum_of(const double *w, int models)
{
    double sum = 0.0;
    for (int k = 0; k < models; k++)
        sum += w[k];
    return sum;
}

void ref_merge_linear(double *out, const double *const *x, const double *w, int models, int64_t n,
                      bool normalize)
{
    const double total = normalize ? sum_of(w, models) : 1.0;
    for (int64_t i = 0; i < n; i++) {
        double sum = w[0] * x[0][i]; /* from the first on: -0 stays */
        for (int k = 1; k < models; k++)
            sum += w[k] * x[k][i];
        out[i] = sum / total;
    }
}

/* Of nearly a zero: 1, so that it stays what it is. */
static double norm_or_one(const double *x, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    const double norm = sqrt(sum);
    return norm > 1e-8 ? norm : 1.0;
}

void ref_merge_slerp(double *out, const double *a, const double *b, double t, int64_t n)
{
    const double na = norm_or_one(a, n), nb = norm_or_one(b, n);
    double dot = 0.0, ca = 1.0 - t, cb = t;
    for (int64_t i = 0; i < n; i++)
        dot += a[i] / na * (b[i] / nb);
    /* Nearly parallel or nearly opposite: sin(theta) decides nothing, the straight line does. */
    if (fabs(dot) <= 0.9995) {
        const double theta = acos(dot);
        ca = sin((1.0 - t) * theta) / sin(theta);
        cb = sin(t * theta) / sin(theta);
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = ca * a[i] + cb * b[i];
}

/* --- what is kept of a difference ---------------------------------------------------------------------------- */
/* Magnitudes as integers: of numbers that are not negative the order of the bits is the order of the values. */
static uint64_t magnitude(double x)
{
    uint64_t bits;
    x = fabs(x);
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The keep-th greatest magnitude, found byte by byte from the top; *equal: how many of those that have it are kept. */
static uint64_t least_kept(const double *x, int64_t n, int64_t keep, int64_t *equal)
{
    uint64_t found = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        int64_t count[256] = {0};
        const uint64_t above = shift == 56 ? 0 : ~(uint64_t)0 << (shift + 8);
        for (int64_t i = 0; i < n; i++)
            if ((magnitude(x[i]) & above) == found)
                count[magnitude(x[i]) >> shift & 255]++;
        int digit = 255;
        for (; keep > count[digit]; digit--)
            keep -= count[digit];
        found |= (uint64_t)digit << shift;
    }
    *equal = keep;
    return found;
}

void ref_merge_trim(double *x, int64_t n, double density)
{
    int64_t keep = (int64_t)(density * (double)n), equal = 0;
    if (keep >= n)
        return;
    keep = keep == 0 && density > 0.0 ? 1 : keep;
    const uint64_t least = keep > 0 ? least_kept(x, n, keep, &equal) : ~(uint64_t)0;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t m = magnitude(x[i]);
        if (m < least || (m == least && equal-- <= 0))
            x[i] = 0.0;
    }
}

void ref_merge_drop(double *x, int64_t n, double density, uint64_t seed, const char *name, int k)
{
    char stream[1100];
    uint32_t words[4] = {0};
    if (density >= 1.0)
        return;
    snprintf(stream, sizeof stream, "%s/dare/%d", name, k);
    const uint64_t hash = assay_name_hash(stream);
    for (int64_t i = 0; i < n; i++) {
        if (i % 4 == 0)
            assay_philox(seed, hash, (uint64_t)i / 4, words);
        x[i] = (double)words[i % 4] * 0x1p-32 < density ? x[i] / density : 0.0;
    }
}

/* --- the differences together -------------------------------------------------------------------------------- */
static double divided(double sum, double by, bool normalize)
{
    return normalize && fabs(by) >= 1e-8 ? sum / by : sum;
}

void ref_merge_add(double *out, const double *base, const double *const *delta, const double *w, int models,
                   int64_t n, bool normalize, double lambda)
{
    const double total = sum_of(w, models);
    for (int64_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (int k = 0; k < models; k++)
            sum += w[k] * delta[k][i];
        out[i] = base[i] + lambda * divided(sum, total, normalize);
    }
}

static int sign_of(double x)
{
    return (x > 0.0) - (x < 0.0);
}

void ref_merge_elect(double *out, const double *base, const double *const *delta, const double *w, int models,
                     int64_t n, bool normalize, double lambda, ref_merge_election election)
{
    for (int64_t i = 0; i < n; i++) {
        double votes = 0.0, sum = 0.0, weights = 0.0;
        for (int k = 0; k < models; k++) {
            const double x = w[k] * delta[k][i];
            votes += election == REF_MERGE_TOTAL ? x : (double)sign_of(x);
        }
        const int elected = votes >= 0.0 ? 1 : -1; /* never 0 */
        for (int k = 0; k < models; k++) {
            const double x = w[k] * delta[k][i];
            sum += sign_of(x) == elected ? x : 0.0;
            weights += sign_of(x) == elected ? w[k] : 0.0;
        }
        out[i] = base[i] + lambda * divided(sum, weights, normalize);
    }
}
