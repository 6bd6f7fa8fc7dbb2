/* Bound of attention over two sets of keys, merged: two exponentials of which one is 1, their sum, a weighted mean.
 *
 * The inputs are what the candidate recorded, so the error of the pieces is none of this bound's. */
#include "ref/bounds/bounds.h"

static ref_iv weight(const ref_num *n, double lse, double max)
{
    const double shift = lse - max;
    if (shift == 0.0)
        return iv_exact(1.0);
    if (shift == -HUGE_VAL)
        return iv_exact(0.0);
    return iv_exp(n, (ref_iv){shift, 2.0 * n->u * fabs(shift)});
}

void ref_bound_attention_merge(ref_pair o, ref_pair lse, const double *o_a, const double *lse_a,
                               const double *o_b, const double *lse_b, int64_t rows, int64_t head_dim,
                               const ref_declared *d)
{
    const ref_num *n = &d->num;
    for (int64_t r = 0; r < rows; r++) {
        const double a = lse_a[r], b = lse_b[r], max = fmax(a, b);
        ref_attention_merge(o.y + r * head_dim, lse.y + r, o_a + r * head_dim, lse_a + r, o_b + r * head_dim,
                            lse_b + r, 1, head_dim);
        if (a == -HUGE_VAL && b == -HUGE_VAL) {
            lse.b[r] = 0.0;
            for (int64_t i = r * head_dim; i < (r + 1) * head_dim; i++)
                o.b[i] = 0.0;
            continue;
        }
        const ref_iv w_a = weight(n, a, max), w_b = weight(n, b, max), sum = iv_add(n, w_a, w_b);
        /* a logarithm of base 2 is multiplied with a rounded ln 2 */
        const ref_iv total = iv_add(n, iv_exact(max), iv_rounded(n, iv_log(n, sum)));
        ref_pair_set(lse, r, (ref_iv){lse.y[r], total.b}, n);
        for (int64_t i = r * head_dim; i < (r + 1) * head_dim; i++) {
            const ref_iv terms =
                iv_add(n, iv_mul(n, w_a, iv_exact(o_a[i])), iv_mul(n, w_b, iv_exact(o_b[i])));
            ref_pair_set(o, i, (ref_iv){o.y[i], iv_div(n, terms, sum).b}, n);
        }
    }
}
