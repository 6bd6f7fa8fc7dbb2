/* Bounds of AdamW, element-wise.  No declaration names how the formula is grouped, so the bound is the larger of
 * those of the two ways in use: the paper's, p - lr (u + wd p), and PyTorch's, p (1 - lr wd) - lr u with
 * m + (1 - beta1) (g - m) for the first moment.  Where one way gives an infinity and the other no number, both are right. */
#include "ref/bounds/bounds.h"
#include "ref/fast/vector.h"

/* One step with its constants. */
typedef struct step {
    ref_pair param, exp_avg, exp_avg_sq;
    const double *param_in, *exp_avg_in, *exp_avg_sq_in, *grad;
    ref_num num;
    ref_divisor c1, c2;
    ref_iv b1, b2, r1, r2, eps, decay, lr, grad_scale;
    ref_iv
        kept; /* 1 - lr wd: its rounding, and that of its product with p, are of the size of p, not of the step */
    bool scaled, decayed;
} step;

/* Two ways to the same number: either may have been taken. */
static inline __attribute__((always_inline)) ref_iv either(ref_iv x, ref_iv y)
{
    return (ref_iv){x.v, x.b < y.b ? y.b : x.b};
}

/* Elements [first, end).  The flags are constants in the calls below: a loop without branches runs in vectors, of
 * which one holds several of the divisions and roots that most of the time goes into. */
static inline __attribute__((always_inline)) void
adamw_body(const step *s, int64_t first, int64_t end, const bool SCALED, const bool DECAYED, const bool SAME)
{
    const ref_num num = s->num, *n = &num;
    const ref_pair param = {s->param.y, s->param.b, SAME || s->param.same};
    const ref_pair exp_avg = {s->exp_avg.y, s->exp_avg.b, SAME || s->exp_avg.same};
    const ref_pair exp_avg_sq = {s->exp_avg_sq.y, s->exp_avg_sq.b, SAME || s->exp_avg_sq.same};
    const ref_divisor c1 = s->c1, c2 = s->c2;
    const ref_iv b1 = s->b1, b2 = s->b2, r1 = s->r1, r2 = s->r2;
    const ref_iv eps = s->eps, decay = s->decay, lr = s->lr, grad_scale = s->grad_scale, kept = s->kept;
    const double *param_in = s->param_in, *m_in = s->exp_avg_in, *v_in = s->exp_avg_sq_in, *grad = s->grad;
#pragma omp simd
    for (int64_t i = first; i < end; i++) {
        ref_iv g = iv_exact(grad[i]);
        if (SCALED)
            g = iv_mul(n, g, grad_scale);
        const ref_iv old = iv_exact(m_in[i]), was = iv_exact(param_in[i]);
        const ref_iv m = either(iv_add(n, iv_mul(n, b1, old), iv_mul(n, r1, g)),
                                iv_add(n, old, iv_mul(n, r1, iv_sub(n, g, old))));
        const ref_iv v = iv_add(n, iv_mul(n, b2, iv_exact(v_in[i])), iv_mul(n, iv_mul(n, r2, g), g));
        ref_iv u = iv_div_by(n, m, c1);
        const ref_iv below = iv_add(n, iv_sqrt(n, iv_div_by(n, v, c2)), eps);
        u = iv_div(n, u, below);
        const ref_iv apart = iv_sub(n, iv_mul(n, kept, was), iv_mul(n, lr, u));
        if (DECAYED)
            u = iv_add(n, u, iv_mul(n, decay, was));
        const ref_iv together = iv_sub(n, was, iv_mul(n, lr, u));
        const ref_iv p = DECAYED ? either(together, apart) : together;
        /* one more rounding of the step: lr/c1 and sqrt(v)/sqrt(c2) are legal ways to group the factors; (lr/c1) m divided last may
         * have underflowed before: half an eta over what divides it, the other half for the roundings behind */
        const double least = below.v - below.b;
        const double lost = least > 0.0 ? n->eta / least : HUGE_VAL;
        const ref_iv next = {isinf(was.v) ? apart.v : p.v, p.b + 2.0 * n->u * fabs(lr.v * u.v) + lost};
        ref_pair_set(exp_avg, i, m, n);
        ref_pair_set(exp_avg_sq, i, v, n);
        ref_pair_set(param, i, next, n);
        /* Of an infinite moment the second way subtracts it from itself, of an infinite parameter the first. */
        const bool of_moment = isinf(old.v), of_either = of_moment || isinf(was.v);
        exp_avg.b[i] = of_moment && isinf(m.v) ? REF_OR_NAN : exp_avg.b[i];
        param.b[i] = of_either && isinf(next.v) ? REF_OR_NAN : param.b[i];
    }
}

REF_WIDE static void adamw_range(const step *s, int64_t first, int64_t end)
{
    const bool same = s->param.same && s->exp_avg.same && s->exp_avg_sq.same;
    if (!same)
        adamw_body(s, first, end, s->scaled, s->decayed, false);
    else if (s->scaled && s->decayed)
        adamw_body(s, first, end, true, true, true);
    else if (s->scaled)
        adamw_body(s, first, end, true, false, true);
    else if (s->decayed)
        adamw_body(s, first, end, false, true, true);
    else
        adamw_body(s, first, end, false, false, true);
}

void ref_bound_adamw(ref_pair param, ref_pair exp_avg, ref_pair exp_avg_sq, const double *param_in,
                     const double *exp_avg_in, const double *exp_avg_sq_in, const double *grad,
                     const ref_adamw_desc *desc, int64_t count, const ref_declared *d)
{
    enum { CHUNK = 4096 };
    const ref_num *n = &d->num;
    /* where every intermediate result is stored, the stored type's rounding is that of each step; constants keep their own */
    const ref_num stored = {d->u_store, d->eta_store, d->eta_store / d->u_store, 2.0 * d->u_store};
    const double power1 = pow(desc->beta1, (double)desc->step), power2 = pow(desc->beta2, (double)desc->step);
    /* beta^t in the accumulate format: pow within 8u of it, then a subtraction that may cancel */
    const step s = {.param = param,
                    .exp_avg = exp_avg,
                    .exp_avg_sq = exp_avg_sq,
                    .param_in = param_in,
                    .exp_avg_in = exp_avg_in,
                    .exp_avg_sq_in = exp_avg_sq_in,
                    .grad = grad,
                    .num = d->rounding & ASSAY_ROUND_EVERY ? stored : *n,
                    .c1 = iv_divisor(iv_rounded(n, (ref_iv){1.0 - power1, 8.0 * n->u * power1})),
                    .c2 = iv_divisor(iv_rounded(n, (ref_iv){1.0 - power2, 8.0 * n->u * power2})),
                    .b1 = iv_constant(n, desc->beta1),
                    .b2 = iv_constant(n, desc->beta2),
                    .r1 = iv_constant(n, 1.0 - desc->beta1),
                    .r2 = iv_constant(n, 1.0 - desc->beta2),
                    .eps = iv_constant(n, desc->eps),
                    .decay = iv_constant(n, desc->weight_decay),
                    .lr = iv_constant(n, desc->lr),
                    .grad_scale = iv_constant(n, desc->grad_scale),
                    .kept = iv_sub(n, iv_exact(1.0),
                                   iv_mul(n, iv_constant(n, desc->lr), iv_constant(n, desc->weight_decay))),
                    .scaled = desc->grad_scale != 1.0,
                    .decayed = desc->weight_decay != 0.0};
#pragma omp parallel for schedule(static) if (ref_vec_parallel(count * 64))
    for (int64_t i = 0; i < count; i += CHUNK)
        adamw_range(&s, i, count - i < CHUNK ? count : i + CHUNK);
}

void ref_bound_clip_coefficient(ref_pair norm, ref_pair scale, double sumsq, double clip_grad)
{
    /* twice 2^-53: the reference's own root, sum and quotient are rounded, too */
    const ref_num n = {0x1p-52, 0x1p-1074, 0x1p-1022, 0x1p-51};
    ref_iv root = iv_sqrt(&n, iv_exact(sumsq));
    ref_iv c = iv_div(&n, iv_exact(clip_grad), iv_add(&n, root, iv_exact(1e-6)));
    if (!isfinite(root.v)) {
        root.b = 0.0;
        c = iv_exact(isinf(root.v) ? 0.0 : 1.0); /* what is no number is not below 1 */
    }
    /* The smaller of two numbers is off by no more than what it is chosen from. */
    if (clip_grad == 0.0 || c.v - c.b >= 1.0)
        c = iv_exact(1.0);
    else if (c.v > 1.0)
        c.v = 1.0;
    norm.y[0] = root.v;
    norm.b[0] = root.b;
    scale.y[0] = c.v;
    scale.b[0] = c.b;
}
