/* Bounds of rotations of interleaved pairs, of multi-latent attention: those of rope, whose columns lie elsewhere. */
#include "ref/bounds/bounds.h"

#include <stdlib.h>

/* a c - b s, b c + a s; a module may store the products. */
static void turn(ref_iv out[2], ref_iv a, ref_iv b, double c, double s, const ref_declared *d)
{
    const ref_num *n = &d->num;
    const ref_iv ci = iv_exact(c), si = iv_exact(s);
    out[0] = iv_sub(n, ref_stored(d, ASSAY_ROUND_PRODUCTS, iv_mul(n, a, ci)),
                    ref_stored(d, ASSAY_ROUND_PRODUCTS, iv_mul(n, b, si)));
    out[1] = iv_add(n, ref_stored(d, ASSAY_ROUND_PRODUCTS, iv_mul(n, b, ci)),
                    ref_stored(d, ASSAY_ROUND_PRODUCTS, iv_mul(n, a, si)));
}

/* Pairs of x from its neighbours to the halves of y, from at on. */
static void to_halves(ref_pair y, int64_t at, const double *x, const double *c, const double *s, int64_t half,
                      const ref_declared *d)
{
    ref_iv z[2];
    for (int64_t j = 0; j < half; j++) {
        turn(z, iv_exact(x[2 * j]), iv_exact(x[2 * j + 1]), c[j], s[j], d);
        ref_pair_set(y, at + j, z[0], &d->num);
        ref_pair_set(y, at + half + j, z[1], &d->num);
    }
}

/* Back, of x with its bounds; xb NULL: it is exact. */
static void to_neighbours(ref_pair dx, int64_t at, const double *x, const double *xb, const double *c,
                          const double *s, int64_t half, const ref_declared *d)
{
    ref_iv z[2];
    for (int64_t j = 0; j < half; j++) {
        const ref_iv a = {x[j], xb ? xb[j] : 0.0}, b = {x[half + j], xb ? xb[half + j] : 0.0};
        turn(z, a, b, c[j], -s[j], d);
        ref_pair_set(dx, at + 2 * j, z[0], &d->num);
        ref_pair_set(dx, at + 2 * j + 1, z[1], &d->num);
    }
}

static void pass(ref_pair y, int64_t at, const double *x, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        y.y[at + j] = x[j];
        y.b[at + j] = 0.0;
    }
}

void ref_bound_mla_rope_q(ref_pair y, const double *x, const double *cos_table, const double *sin_table,
                          const int64_t *position, int64_t rotary, int64_t t, int64_t heads, int64_t dim,
                          bool back, const ref_declared *d)
{
    const int64_t half = rotary / 2, nope = dim - rotary;
    for (int64_t i = 0; i < t * heads; i++) {
        const double *c = cos_table + position[i / heads] * half, *s = sin_table + position[i / heads] * half;
        const double *row = x + i * dim;
        pass(y, i * dim, row, nope);
        if (back)
            to_neighbours(y, i * dim + nope, row + nope, NULL, c, s, half, d);
        else
            to_halves(y, i * dim + nope, row + nope, c, s, half, d);
    }
}

void ref_bound_mla_rope_k(ref_pair k, const double *kv, const double *k_pos_emb, const double *cos_table,
                          const double *sin_table, const int64_t *position, int64_t rotary, int64_t t,
                          int64_t heads, int64_t nope, int64_t value, const ref_declared *d)
{
    const int64_t half = rotary / 2, dim = nope + rotary;
    for (int64_t i = 0; i < t * heads; i++) {
        const int64_t token = i / heads, entry = position[token] * half;
        pass(k, i * dim, kv + i * (nope + value), nope);
        to_halves(k, i * dim + nope, k_pos_emb + token * rotary, cos_table + entry, sin_table + entry, half,
                  d);
    }
}

assay_status ref_bound_mla_rope_dk(ref_pair dk_pos_emb, const double *dk, const double *cos_table,
                                   const double *sin_table, const int64_t *position, int64_t rotary,
                                   int64_t t, int64_t heads, int64_t nope, const ref_declared *d)
{
    const int64_t half = rotary / 2, dim = nope + rotary;
    double *sum = malloc((size_t)(2 * rotary + 1) * sizeof *sum);
    ASSAY_CHECK(sum, ASSAY_OUT_OF_MEMORY, "mla_rope_kv_bwd: %lld columns", (long long)rotary);
    double *bound = sum + rotary;
    for (int64_t i = 0; i < t; i++) {
        const int64_t entry = position[i] * half;
        ref_sum_columns(sum, bound, NULL, 0, dk + i * heads * dim + nope, dim, heads, rotary, &d->order);
        to_neighbours(dk_pos_emb, i * rotary, sum, bound, cos_table + entry, sin_table + entry, half, d);
    }
    free(sum);
    return ASSAY_OK;
}
