/* Vocabulary-parallel cross entropy in three steps (statistics of a piece, loss from all pieces, gradient of
 * a piece), and the sum of the losses. */
#include "ref/ops.h"
#include "ref/ops/vector.h"

#include <math.h>

enum { IGNORED = -100 };

void ref_cross_entropy_stats(double *stats, const double *logits, const int64_t *targets, int64_t vocab_start,
                             int64_t t, int64_t v)
{
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * v * 8))
    for (int64_t i = 0; i < t; i++) {
        const double *row = logits + i * v;
        double max = -HUGE_VAL, sum = 0.0;
        for (int64_t j = 0; j < v; j++)
            if (row[j] > max || isnan(row[j])) /* a NaN wins and stays */
                max = row[j];
        for (int64_t j = 0; j < v && max != -HUGE_VAL; j++)
            sum += exp(row[j] - max);
        const int64_t local = targets[i] == IGNORED ? -1 : targets[i] - vocab_start;
        stats[i] = max;
        stats[t + i] = sum;
        stats[2 * t + i] = local >= 0 && local < v ? row[local] : 0.0;
    }
}

void ref_cross_entropy_loss(double *lse, double *loss, const double *stats, const int64_t *targets,
                            int n_pieces, int64_t t)
{
    for (int64_t i = 0; i < t; i++) {
        double max = -HUGE_VAL, sum = 0.0, target = 0.0;
        for (int r = 0; r < n_pieces; r++)
            if (stats[r * 3 * t + i] > max || isnan(stats[r * 3 * t + i]))
                max = stats[r * 3 * t + i];
        for (int r = 0; r < n_pieces; r++) {
            const double *piece = stats + r * 3 * t;
            if (max != -HUGE_VAL)
                sum += piece[t + i] * exp(piece[i] - max);
            target += piece[2 * t + i];
        }
        lse[i] = max == -HUGE_VAL ? max : max + log(sum);
        loss[i] = targets[i] == IGNORED ? 0.0 : lse[i] - target;
    }
}

void ref_cross_entropy_bwd(double *dlogits, const double *logits, const double *lse, const int64_t *targets,
                           int64_t vocab_start, double scale, int64_t t, int64_t v)
{
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * v * 8))
    for (int64_t i = 0; i < t; i++) {
        double *row = dlogits + i * v;
        if (targets[i] == IGNORED) {
            ref_vec_zero(row, v);
            continue;
        }
        const int64_t local = targets[i] - vocab_start;
        for (int64_t j = 0; j < v; j++)
            row[j] = (exp(logits[i * v + j] - lse[i]) - (j == local ? 1.0 : 0.0)) * scale;
    }
}

/* Neumaier's compensated sum; a sum that is not finite is returned as plain addition gives it. */
double ref_sum(const double *x, int64_t n)
{
    double sum = 0.0, lost = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double next = sum + x[i];
        lost += fabs(sum) >= fabs(x[i]) ? (sum - next) + x[i] : (x[i] - next) + sum;
        sum = next;
    }
    return isfinite(sum) ? sum + lost : sum;
}
