/* Multi-latent attention between its linears: the compressed keys and values apart from the shared rotated part, and rotation
 * of interleaved pairs.  Source: DeepSeek-V2 (2024), DeepSeek-V3 (2024). */
#include "ref/ops.h"

#include <assert.h>

/* of none: a tensor without elements may be no memory at all */
static void copy(double *to, const double *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = from[i];
}

void ref_kv_down_split_fwd(double *kv_compressed, double *k_pos_emb, const double *kv_combined, int64_t t,
                           int64_t latent, int64_t pos)
{
    for (int64_t i = 0; i < t; i++) {
        const double *row = kv_combined + i * (latent + pos);
        copy(kv_compressed + i * latent, row, latent);
        copy(k_pos_emb + i * pos, row + latent, pos);
    }
}

void ref_kv_down_split_bwd(double *dkv_combined, const double *dkv_compressed, const double *dk_pos_emb,
                           int64_t t, int64_t latent, int64_t pos)
{
    for (int64_t i = 0; i < t; i++) {
        double *row = dkv_combined + i * (latent + pos);
        copy(row, dkv_compressed + i * latent, latent);
        copy(row + latent, dk_pos_emb + i * pos, pos);
    }
}

/* Neighbours of x turn and go to the halves of y. */
static void turn(double *y, const double *x, const double *c, const double *s, int64_t half)
{
    for (int64_t j = 0; j < half; j++) {
        y[j] = x[2 * j] * c[j] - x[2 * j + 1] * s[j];
        y[half + j] = x[2 * j + 1] * c[j] + x[2 * j] * s[j];
    }
}

static void turn_back(double *dx, const double *dy, const double *c, const double *s, int64_t half)
{
    for (int64_t j = 0; j < half; j++) {
        dx[2 * j] = dy[j] * c[j] + dy[half + j] * s[j];
        dx[2 * j + 1] = dy[half + j] * c[j] - dy[j] * s[j];
    }
}

void ref_mla_rope_q_fwd(double *y, const double *q, const double *cos_table, const double *sin_table,
                        const int64_t *position, int64_t rotary, int64_t t, int64_t heads, int64_t dim)
{
    const int64_t half = rotary / 2, nope = dim - rotary;
    assert(rotary >= 0 && rotary % 2 == 0 && nope >= 0);
    for (int64_t i = 0; i < t * heads; i++) {
        const int64_t entry = position[i / heads] * half;
        copy(y + i * dim, q + i * dim, nope);
        turn(y + i * dim + nope, q + i * dim + nope, cos_table + entry, sin_table + entry, half);
    }
}

void ref_mla_rope_q_bwd(double *dx, const double *dy, const double *cos_table, const double *sin_table,
                        const int64_t *position, int64_t rotary, int64_t t, int64_t heads, int64_t dim)
{
    const int64_t half = rotary / 2, nope = dim - rotary;
    assert(rotary >= 0 && rotary % 2 == 0 && nope >= 0);
    for (int64_t i = 0; i < t * heads; i++) {
        const int64_t entry = position[i / heads] * half;
        copy(dx + i * dim, dy + i * dim, nope);
        turn_back(dx + i * dim + nope, dy + i * dim + nope, cos_table + entry, sin_table + entry, half);
    }
}

void ref_mla_rope_kv_fwd(double *k, double *v, const double *kv, const double *k_pos_emb,
                         const double *cos_table, const double *sin_table, const int64_t *position,
                         int64_t rotary, int64_t t, int64_t heads, int64_t nope, int64_t value)
{
    const int64_t half = rotary / 2;
    assert(rotary >= 0 && rotary % 2 == 0);
    for (int64_t i = 0; i < t * heads; i++) {
        const int64_t token = i / heads, entry = position[token] * half;
        const double *from = kv + i * (nope + value);
        double *to = k + i * (nope + rotary);
        copy(to, from, nope);
        turn(to + nope, k_pos_emb + token * rotary, cos_table + entry, sin_table + entry, half);
        copy(v + i * value, from + nope, value);
    }
}

void ref_mla_rope_kv_bwd(double *dkv, double *dk_pos_emb, const double *dk, const double *dv,
                         const double *cos_table, const double *sin_table, const int64_t *position,
                         int64_t rotary, int64_t t, int64_t heads, int64_t nope, int64_t value)
{
    const int64_t half = rotary / 2, dim = nope + rotary;
    assert(rotary >= 0 && rotary % 2 == 0);
    for (int64_t i = 0; i < t * heads; i++) {
        double *to = dkv + i * (nope + value);
        copy(to, dk + i * dim, nope);
        copy(to + nope, dv + i * value, value);
    }
    for (int64_t i = 0; i < t; i++) {
        const double *c = cos_table + position[i] * half, *s = sin_table + position[i] * half;
        for (int64_t j = 0; j < half; j++) {
            double first = 0.0, second = 0.0;
            for (int64_t a = 0; a < heads; a++) {
                first += dk[(i * heads + a) * dim + nope + j];
                second += dk[(i * heads + a) * dim + nope + half + j];
            }
            const double both[] = {first, second};
            turn_back(dk_pos_emb + i * rotary + 2 * j, both, c + j, s + j, 1);
        }
    }
}
