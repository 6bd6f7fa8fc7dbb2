/* Bounds of AdamW, element-wise. */
#include "ref/bounds/bounds.h"
#include "ref/ops/vector.h"

void ref_bound_adamw(ref_pair param, ref_pair exp_avg, ref_pair exp_avg_sq, const double *param_in,
                     const double *exp_avg_in, const double *exp_avg_sq_in, const double *grad,
                     const ref_adamw_desc *desc, int64_t count, const ref_declared *d)
{
    const ref_num *n = &d->num;
    const double power1 = pow(desc->beta1, (double)desc->step), power2 = pow(desc->beta2, (double)desc->step);
    /* beta^t in the accumulate format: pow within 8u of it, then a subtraction that may cancel */
    const ref_iv c1 = iv_rounded(n, (ref_iv){1.0 - power1, 8.0 * n->u * power1});
    const ref_iv c2 = iv_rounded(n, (ref_iv){1.0 - power2, 8.0 * n->u * power2});
    const ref_iv b1 = iv_constant(n, desc->beta1), b2 = iv_constant(n, desc->beta2);
    const ref_iv r1 = iv_constant(n, 1.0 - desc->beta1), r2 = iv_constant(n, 1.0 - desc->beta2);
    const ref_iv eps = iv_constant(n, desc->eps), decay = iv_constant(n, desc->weight_decay),
                 lr = iv_constant(n, desc->lr);
    const bool scaled = desc->grad_scale != 1.0;
#pragma omp parallel for schedule(static) if (ref_vec_parallel(count * 64))
    for (int64_t i = 0; i < count; i++) {
        ref_iv g = iv_exact(grad[i]);
        if (scaled)
            g = iv_mul(n, g, iv_constant(n, desc->grad_scale));
        const ref_iv m = iv_add(n, iv_mul(n, b1, iv_exact(exp_avg_in[i])), iv_mul(n, r1, g));
        const ref_iv v = iv_add(n, iv_mul(n, b2, iv_exact(exp_avg_sq_in[i])), iv_mul(n, iv_mul(n, r2, g), g));
        ref_iv u = iv_div(n, m, c1);
        u = iv_div(n, u, iv_add(n, iv_sqrt(n, iv_div(n, v, c2)), eps));
        if (desc->weight_decay != 0.0)
            u = iv_add(n, u, iv_mul(n, decay, iv_exact(param_in[i])));
        const ref_iv p = iv_sub(n, iv_exact(param_in[i]), iv_mul(n, lr, u));
        /* one more rounding of the step: lr/c1 and sqrt(v)/sqrt(c2) are legal ways to group the factors */
        const ref_iv step = {p.v, p.b + 2.0 * n->u * fabs(desc->lr * u.v)};
        ref_pair_set(exp_avg, i, m, n);
        ref_pair_set(exp_avg_sq, i, v, n);
        ref_pair_set(param, i, step, n);
    }
}
