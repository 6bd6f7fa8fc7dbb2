/* Jumps of the masters.  Where a gradient is smaller than its own uncertainty, the first steps of AdamW turn its sign
 * into a step of +-lr: the perturbed runs have as many such jumps, elsewhere.
 *
 * Jumps come together.  The gradient of a weight [N,K] is dy^T x over the tokens that reach it; of an expert with one
 * token every element is a product dy_i x_j, and an x_j that is smaller than its uncertainty turns all N elements of
 * its column at once.  With a gradient of rank r the K elements of a row are combinations of r uncertain numbers (and
 * the N of a column, too): they jump in clusters of K / r.  So a slice with clusters of c has a Poisson number of
 * clusters, of mean n rate / c, and c times its quantile bounds the jumps.  Rank is meant as the participation ratio
 * of the singular values, (sum s^2)^2 / sum s^4, which counts those that matter; the least of all steps decides. */
#include "parity/checks/whole.h"

#include <math.h>
#include <string.h>

/* Smallest k that a Poisson variable of mean lambda exceeds no more often than a normal one exceeds 4 sigma.
 */
static double poisson_quantile(double lambda)
{
    const double tail = erfc(4.0 / sqrt(2.0));
    double term = exp(-lambda), sum = term, k = 0.0;
    while (1.0 - sum > tail && k < 1e6 && term >= 0.0) {
        k += 1.0;
        term *= lambda / k;
        sum += term;
        if (k > lambda && term < 1e-20)
            break;
    }
    return lambda > 700.0 ? lambda + 4.0 * sqrt(lambda) : k;
}

double parity_whole_jump_count(double n, double rate, double cluster)
{
    return cluster * poisson_quantile(n * rate / cluster);
}

/* Participation ratio of g [rows, columns]: |g|^4 / |g g^T|^2 in Frobenius norms; 0 where g is zero. */
static double effective_rank(const double *g, int64_t rows, int64_t columns)
{
    const bool tall = rows > columns; /* g g^T and g^T g have the same norm: the smaller one */
    const int64_t n = tall ? columns : rows, inner = tall ? rows : columns;
    const int64_t step = tall ? 1 : columns, next = tall ? columns : 1;
    double norm = 0.0, square = 0.0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double dot = 0.0;
            for (int64_t k = 0; k < inner; k++)
                dot += g[i * step + k * next] * g[j * step + k * next];
            norm += i == j ? dot : 0.0;
            square += (i == j ? 1.0 : 2.0) * dot * dot;
        }
    return square > 0.0 ? norm * norm / square : 0.0;
}

static double cluster_of(double line, double rank)
{
    return rank > 0.0 ? fmax(1.0, line / rank) : 1.0;
}

double parity_whole_clusters(const ref_run_result *truth, const char *parameter, double *clusters)
{
    double most = 1.0;
    for (int64_t step = 0; step < truth->steps; step++) {
        const ref_named_tensor *t = ref_result_find(truth, "grad", parameter, step);
        if (!t || t->ndim < 2)
            continue; /* no factor is shared */
        const int64_t columns = t->shape[t->ndim - 1], rows = t->shape[t->ndim - 2];
        if (rows == 0 || columns == 0)
            continue;
        const int64_t matrices = t->ndim > 2 ? t->shape[0] : 1;
        for (int64_t e = 0; e < matrices; e++) {
            const double rank = effective_rank(t->data + e * rows * columns, rows, columns);
            const double whole = cluster_of((double)(rows > columns ? rows : columns), rank);
            most = fmax(most, whole);
            if (t->ndim > 2)
                clusters[e] = fmax(clusters[e], whole);
            for (int64_t i = 0; i < rows && t->ndim == 2;
                 i++) /* a slice is a row: its columns are elsewhere */
                clusters[i] = fmax(clusters[i], cluster_of((double)columns, rank));
        }
    }
    return most;
}
