/* AdamW with decoupled weight decay (Loshchilov & Hutter 2019; torch.optim.AdamW), the sum of squares of the
 * gradient norm, the clip factor. */
#include "ref/ops.h"
#include "ref/ops/vector.h"

#include <math.h>

void ref_adamw(double *param, double *exp_avg, double *exp_avg_sq, const double *grad,
               const ref_adamw_desc *d, int64_t n)
{
    assert(d->step >= 1);
    const double correction1 = 1.0 - pow(d->beta1, (double)d->step);
    const double correction2 = 1.0 - pow(d->beta2, (double)d->step);
#pragma omp parallel for simd schedule(static) if (ref_vec_parallel(n * 8))
    for (int64_t i = 0; i < n; i++) {
        const double g = grad[i] * d->grad_scale;
        const double m = d->beta1 * exp_avg[i] + (1.0 - d->beta1) * g;
        const double v = d->beta2 * exp_avg_sq[i] + (1.0 - d->beta2) * g * g;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        param[i] -= d->lr * (m / correction1 / (sqrt(v / correction2) + d->eps) + d->weight_decay * param[i]);
    }
}

/* Blocks of 1024 in four chains, blocks added in order: the error does not grow with n in practice. */
double ref_sumsq(const double *x, int64_t n)
{
    enum { BLOCK = 1024 };
    double sum = 0.0, lost = 0.0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        const double s = ref_vec_dot(x + i, x + i, n - i < BLOCK ? n - i : BLOCK), next = sum + s;
        lost += sum >= s ? (sum - next) + s : (s - next) + sum;
        sum = next;
    }
    return isfinite(sum) ? sum + lost : sum;
}

int64_t ref_count_zeros(const double *x, int64_t n)
{
    int64_t zeros = 0;
    for (int64_t i = 0; i < n; i++)
        zeros += x[i] == 0.0;
    return zeros;
}

double ref_clip_scale(double norm, double clip_grad)
{
    if (clip_grad == 0.0)
        return 1.0;
    const double c = clip_grad / (norm + 1e-6);
    /* A norm that is not a number must not turn into "no clipping". */
    return c >= 1.0 ? 1.0 : c;
}
