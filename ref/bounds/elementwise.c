/* Bounds of element-wise operations, of the rotary embedding, and of sums over few or chosen rows. */
#include "ref/bounds/bounds.h"
#include "ref/fast/vector.h"

#include <stdlib.h>

/* SAME is a constant in the calls below, so that the loop has no branch and runs in vectors. */
static inline __attribute__((always_inline)) void add_body(ref_pair y, const double *a, const double *b,
                                                           int64_t n, ref_num num, const bool SAME)
{
    y.same = SAME;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        ref_pair_set(y, i, iv_add(&num, iv_exact(a[i]), iv_exact(b[i])), &num);
}

REF_WIDE static void add_range(ref_pair y, const double *a, const double *b, int64_t n, const ref_num *num)
{
    if (y.same)
        add_body(y, a, b, n, *num, true);
    else
        add_body(y, a, b, n, *num, false);
}

void ref_bound_add(ref_pair y, const double *a, const double *b, int64_t n, const ref_declared *d)
{
    add_range(y, a, b, n, &d->num);
}

void ref_bound_dropout(ref_pair y, const double *x, const int64_t *token, int64_t t, int64_t h,
                       const ref_dropout *drop, const ref_declared *d)
{
    for (int64_t i = 0; i < t * h; i++) {
        const double factor =
            ref_dropout_factor(drop, (uint64_t)token[i / h] * (uint64_t)h + (uint64_t)(i % h));
        /* nothing is rounded where an element is dropped or p is 0 */
        const ref_iv kept = factor == 0.0 || factor == 1.0
                                ? iv_exact(x[i] * factor)
                                : iv_mul(&d->num, iv_exact(x[i]), iv_constant(&d->num, factor));
        ref_pair_set(y, i, kept, &d->num);
    }
}

void ref_bound_clamp_fwd(ref_pair y, const double *x, double limit, int64_t n, const ref_declared *d)
{
    for (int64_t i = 0; i < n; i++) {
        const double v = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];
        ref_pair_set(y, i, iv_exact(v), &d->num);
    }
}

void ref_bound_clamp_bwd(ref_pair dx, const double *dy, const double *x, double limit, int64_t n,
                         const ref_declared *d)
{
    for (int64_t i = 0; i < n; i++)
        ref_pair_set(dx, i, iv_exact(fabs(x[i]) < limit ? dy[i] : 0.0), &d->num);
}

/* One token: y [F] from gate and up [F]; the flags are constants in the calls, as in add_body. */
static inline __attribute__((always_inline)) void swiglu_fwd_body(ref_pair y, int64_t at, const double *gate,
                                                                  const double *up, double p, int64_t f,
                                                                  ref_num num, const bool SCALED,
                                                                  const bool SAME)
{
    const ref_num *n = &num;
    y.same = SAME;
#pragma omp simd
    for (int64_t j = 0; j < f; j++) {
        ref_iv z = iv_mul(n, iv_exact(gate[j]), iv_sigmoid(n, gate[j]));
        z = iv_mul(n, z, iv_exact(up[j]));
        if (SCALED)
            z = iv_mul(n, z, iv_exact(p));
        const double above = iv_above_one(gate[j]) * iv_above_one(up[j]) * iv_above_one(SCALED ? p : 1.0);
        ref_pair_set(y, at + j, iv_any_association(n, z, SCALED ? 3 : 2, above), n);
    }
}

/* probs NULL: not scaled */
REF_WIDE static void swiglu_fwd_row(ref_pair y, int64_t at, const double *x, const double *probs, int64_t f,
                                    const ref_num *n)
{
    const double *gate = x, *up = x + f;
    if (probs)
        swiglu_fwd_body(y, at, gate, up, *probs, f, *n, true, y.same);
    else if (y.same)
        swiglu_fwd_body(y, at, gate, up, 1.0, f, *n, false, true);
    else
        swiglu_fwd_body(y, at, gate, up, 1.0, f, *n, false, false);
}

/* The same of a module that stores gate sigmoid(gate). */
static void swiglu_stored_row(ref_pair y, int64_t at, const double *x, const double *probs, int64_t f,
                              const ref_declared *d)
{
    const ref_num *n = &d->num;
    for (int64_t j = 0; j < f; j++) {
        const ref_iv silu =
            ref_stored(d, ASSAY_ROUND_BEFORE_UP, iv_mul(n, iv_exact(x[j]), iv_sigmoid(n, x[j])));
        const ref_iv h = iv_mul(n, silu, iv_exact(x[f + j]));
        ref_pair_set(y, at + j, probs ? iv_mul(n, h, iv_exact(*probs)) : h, n);
    }
}

void ref_bound_swiglu_fwd(ref_pair y, const double *x, const double *probs, int64_t t, int64_t f,
                          const ref_declared *d)
{
    for (int64_t i = 0; i < t && d->rounding & ASSAY_ROUND_BEFORE_UP; i++)
        swiglu_stored_row(y, i * f, x + i * 2 * f, probs ? probs + i : NULL, f, d);
    if (d->rounding & ASSAY_ROUND_BEFORE_UP)
        return;
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * f * 16))
    for (int64_t i = 0; i < t; i++)
        swiglu_fwd_row(y, i * f, x + i * 2 * f, probs ? probs + i : NULL, f, &d->num);
}

/* s(1 + g(1-s)), s = sigmoid(g).  Its errors are taken relative to s(1 + |g|(1-s)), so that s + g s (1-s) and similar forms
 * are covered where the sum cancels. */
static inline __attribute__((always_inline)) ref_iv silu_slope(const ref_num *n, double gate, ref_iv s)
{
    const ref_iv rest = iv_sub(n, iv_exact(1.0), s);
    const ref_iv inner = iv_add(n, iv_exact(1.0), iv_mul(n, iv_exact(gate), rest));
    ref_iv z = iv_mul(n, s, inner);
    z.b += 3.0 * n->u * s.v * (1.0 + fabs(gate) * rest.v);
    return z;
}

/* One token: dx [2F], terms [2F] those of dprobs and their bounds; the flags are constants in the calls. */
static inline __attribute__((always_inline)) void swiglu_bwd_body(ref_pair dx, int64_t at, double *terms,
                                                                  const double *dy, const double *x,
                                                                  double scale, int64_t f, ref_num num,
                                                                  const bool SCALED, const bool SAME)
{
    const ref_num *n = &num;
    dx.same = SAME;
#pragma omp simd
    for (int64_t j = 0; j < f; j++) {
        const double gate = x[j], up = x[f + j];
        const ref_iv g = iv_exact(dy[j]);
        const ref_iv s = iv_sigmoid(n, gate), silu = iv_mul(n, iv_exact(gate), s);
        const ref_iv gp = SCALED ? iv_mul(n, g, iv_exact(scale)) : g;
        const double above_g = iv_above_one(dy[j]) * iv_above_one(gate), above_up = iv_above_one(up),
                     above_p = iv_above_one(SCALED ? scale : 1.0);
        if (SCALED) {
            const ref_iv h =
                iv_any_association(n, iv_mul(n, g, iv_mul(n, silu, iv_exact(up))), 3, above_g * above_up);
            terms[j] = h.v;
            terms[f + j] = h.b;
        }
        /* the slope is at most 1 + |gate|; its other form s + g s (1 - s) has two products more */
        const ref_iv dgate = iv_mul(n, iv_mul(n, gp, iv_exact(up)), silu_slope(n, gate, s));
        ref_pair_set(dx, at + j, iv_any_association(n, dgate, 6, 2.0 * above_g * above_up * above_p), n);
        ref_pair_set(dx, at + f + j, iv_any_association(n, iv_mul(n, gp, silu), 3, above_g * above_p), n);
    }
}

/* The same of a module that stores silu and the gradient of it; it has no probs. */
static void swiglu_bwd_stored_row(ref_pair dx, int64_t at, const double *dy, const double *x, int64_t f,
                                  const ref_declared *d)
{
    const ref_num *n = &d->num;
    for (int64_t j = 0; j < f; j++) {
        const ref_iv g = iv_exact(dy[j]), s = iv_sigmoid(n, x[j]);
        const ref_iv silu = ref_stored(d, ASSAY_ROUND_BEFORE_UP, iv_mul(n, iv_exact(x[j]), s));
        const ref_iv dsilu = ref_stored(d, ASSAY_ROUND_BEFORE_UP, iv_mul(n, g, iv_exact(x[f + j])));
        ref_pair_set(dx, at + j, iv_mul(n, dsilu, silu_slope(n, x[j], s)), n);
        ref_pair_set(dx, at + f + j, iv_mul(n, g, silu), n);
    }
}

/* probs NULL: not scaled */
REF_WIDE static void swiglu_bwd_range(ref_pair dx, int64_t at, double *terms, const double *dy,
                                      const double *x, const double *probs, int64_t f, const ref_num *n)
{
    if (probs)
        swiglu_bwd_body(dx, at, terms, dy, x, *probs, f, *n, true, dx.same);
    else if (dx.same)
        swiglu_bwd_body(dx, at, terms, dy, x, 1.0, f, *n, false, true);
    else
        swiglu_bwd_body(dx, at, terms, dy, x, 1.0, f, *n, false, false);
}

static void swiglu_bwd_row(ref_pair dx, ref_pair dprobs, double *terms, int64_t i, const double *dy,
                           const double *x, const double *probs, int64_t f, const ref_declared *d)
{
    if (d->rounding & ASSAY_ROUND_BEFORE_UP && !probs) {
        swiglu_bwd_stored_row(dx, i * 2 * f, dy, x, f, d);
        return;
    }
    swiglu_bwd_range(dx, i * 2 * f, terms, dy, x, probs ? probs + i : NULL, f, &d->num);
    if (probs) {
        const ref_iv sum = ref_sum_terms(terms, terms + f, f, &d->order);
        dprobs.y[i] = sum.v;
        dprobs.b[i] = sum.b;
    }
}

assay_status ref_bound_swiglu_bwd(ref_pair dx, ref_pair dprobs, const double *dy, const double *x,
                                  const double *probs, int64_t t, int64_t f, const ref_declared *d)
{
    bool failed = false;
#pragma omp parallel if (ref_vec_parallel(t * f * 16)) reduction(|| : failed)
    {
        double *terms = malloc((size_t)(2 * f + 1) * sizeof *terms);
        failed = terms == NULL;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < t; i++)
            if (terms)
                swiglu_bwd_row(dx, dprobs, terms, i, dy + i * f, x + i * 2 * f, probs, f, d);
        free(terms);
    }
    ASSAY_CHECK(!failed, ASSAY_OUT_OF_MEMORY, "swiglu_bwd: rows of %lld", (long long)f);
    return ASSAY_OK;
}

void ref_bound_sigmoid_gate_fwd(ref_pair y, const double *x, const double *gate, int64_t t, int64_t h,
                                const ref_declared *d)
{
    for (int64_t i = 0; i < t; i++) {
        const ref_iv s = iv_sigmoid(&d->num, gate[i]);
        for (int64_t j = 0; j < h; j++)
            ref_pair_set(y, i * h + j, iv_mul(&d->num, iv_exact(x[i * h + j]), s), &d->num);
    }
}

void ref_bound_sigmoid_gate_bwd(ref_pair dx, ref_pair dgate, const double *dy, const double *x,
                                const double *gate, int64_t t, int64_t h, const ref_declared *d)
{
    const ref_num *n = &d->num;
    for (int64_t i = 0; i < t; i++) {
        const ref_iv s = iv_sigmoid(n, gate[i]), rest = iv_sub(n, iv_exact(1.0), s);
        const ref_iv sum = ref_sum_dot(dy + i * h, x + i * h, h, &d->order);
        ref_pair_set(dgate, i, iv_mul(n, iv_mul(n, s, rest), sum), n);
        for (int64_t j = 0; j < h; j++)
            ref_pair_set(dx, i * h + j, iv_mul(n, iv_exact(dy[i * h + j]), s), n);
    }
}

/* yarn without truncation: how wrong the share of linear's frequency may be for pair i, where it is not 0 or 1 for certain: logarithms
 * of quotients place both ends.  Truncated ends are whole numbers.  The frequencies that it mixes differ by no more than the larger. */
static double yarn_share_error(const ref_rope_desc *desc, int64_t i, double u)
{
    double low, high;
    if (desc->type != ASSAY_ROPE_YARN || desc->truncate)
        return 0.0;
    ref_rope_yarn_range(desc, &low, &high);
    const double ends = low + fabs(high) + (double)desc->rotary_dim * (1.0 + 1.0 / log(desc->base)),
                 share = ((double)i - low) / (high - low), error = 8.0 * u * ends / fabs(high - low);
    return share < -error || share > 1.0 + error ? 0.0 : error;
}

/* Both engines work in double.  The angle p f carries the error of pow and, for llama3 and yarn, of the interpolation:
 * a few double roundings relative, so p f 2^-46 absolute; cos and sin are Lipschitz. */
void ref_bound_rope_table(ref_pair cos_table, ref_pair sin_table, const ref_rope_desc *desc,
                          int64_t n_positions, const ref_declared *d)
{
    const int64_t half = desc->rotary_dim / 2;
    /* base to a rounded power: ln(base) u and the power's own error; the inverse, scaling and smoothing, the angle: 12 roundings */
    const bool angles = d->rounding & ASSAY_ROUND_ANGLES, yarn = desc->type == ASSAY_ROPE_YARN;
    const double times = yarn ? desc->attention_factor * fmax(1.0, 1.0 / desc->factor) : 1.0,
                 relative =
                     angles ? (fabs(log(desc->base)) + (yarn ? 16.0 : 12.0)) * d->num.u + d->num.f : 0x1p-46,
                 stored =
                     angles ? d->num.f + (yarn ? d->num.u : 0.0) : 0x1p-40; /* yarn: its factor is rounded */
    ref_rope_table(cos_table.y, sin_table.y, desc, n_positions);
    for (int64_t p = 0; p < n_positions; p++)
        for (int64_t i = 0; i < half; i++) {
            /* the frequency is at most 1 (base >= 1), so p bounds the angle; base < 1 turns the other way
             * round */
            const double f = fmax(1.0, pow(desc->base, -2.0 * (double)i / (double)desc->rotary_dim));
            const double angle = (double)p * (desc->base >= 1.0 ? fmin(f, 1.0) : f) * times *
                                 (relative + yarn_share_error(desc, i, angles ? d->num.u : 0x1p-53));
            cos_table.b[p * half + i] = stored * fabs(cos_table.y[p * half + i]) + angle;
            sin_table.b[p * half + i] = stored * fabs(sin_table.y[p * half + i]) + angle;
        }
}

/* One head of one token; c, s [half]; SAME as in add_body. */
static inline __attribute__((always_inline)) void rope_body(ref_pair y, int64_t at, const double *x,
                                                            const double *c, const double *s, int64_t half,
                                                            double sign, ref_num num, const bool SAME)
{
    const ref_num *n = &num;
    y.same = SAME;
#pragma omp simd
    for (int64_t j = 0; j < half; j++) {
        const ref_iv a = iv_exact(x[j]), b = iv_exact(x[half + j]), cj = iv_exact(c[j]),
                     sj = iv_exact(sign * s[j]);
        ref_pair_set(y, at + j, iv_sub(n, iv_mul(n, a, cj), iv_mul(n, b, sj)), n);
        ref_pair_set(y, at + half + j, iv_add(n, iv_mul(n, b, cj), iv_mul(n, a, sj)), n);
    }
}

REF_WIDE static void rope_row(ref_pair y, int64_t at, const double *x, const double *c, const double *s,
                              int64_t half, double sign, const ref_num *n)
{
    if (y.same)
        rope_body(y, at, x, c, s, half, sign, *n, true);
    else
        rope_body(y, at, x, c, s, half, sign, *n, false);
}

/* The same of a module that stores the products. */
static void rope_stored_row(ref_pair y, int64_t at, const double *x, const double *c, const double *s,
                            int64_t half, double sign, const ref_declared *d)
{
    const ref_num *n = &d->num;
    for (int64_t j = 0; j < half; j++) {
        const ref_iv a = iv_exact(x[j]), b = iv_exact(x[half + j]), cj = iv_exact(c[j]),
                     sj = iv_exact(sign * s[j]);
        const ref_iv ac = ref_stored(d, ASSAY_ROUND_PRODUCTS, iv_mul(n, a, cj)),
                     bs = ref_stored(d, ASSAY_ROUND_PRODUCTS, iv_mul(n, b, sj)),
                     bc = ref_stored(d, ASSAY_ROUND_PRODUCTS, iv_mul(n, b, cj)),
                     as = ref_stored(d, ASSAY_ROUND_PRODUCTS, iv_mul(n, a, sj));
        ref_pair_set(y, at + j, iv_sub(n, ac, bs), n);
        ref_pair_set(y, at + half + j, iv_add(n, bc, as), n);
    }
}

/* One number with its bound of a head that turns: j of the first half, or of the second. */
static ref_iv rope_of(const double *x, const double *xb, double c, double s, int64_t j, int64_t half,
                      bool second, const ref_declared *d)
{
    const ref_num *n = &d->num;
    const ref_iv a = {x[j], xb[j]}, b = {x[half + j], xb[half + j]}, cj = iv_exact(c), sj = iv_exact(s);
    const ref_iv kept = ref_stored(d, ASSAY_ROUND_PRODUCTS, iv_mul(n, second ? b : a, cj)),
                 turned = ref_stored(d, ASSAY_ROUND_PRODUCTS, iv_mul(n, second ? a : b, sj));
    return second ? iv_add(n, kept, turned) : iv_sub(n, kept, turned);
}

void ref_bound_rope_of(ref_pair y, const double *x, const double *xb, const double *cos_table,
                       const double *sin_table, const int64_t *position, int64_t rotary_dim, int64_t t,
                       int64_t heads, int64_t dim, const ref_declared *d)
{
    const int64_t half = rotary_dim / 2;
    for (int64_t i = 0; i < t * heads; i++) {
        const int64_t at = i * dim, row = position[i / heads] * half;
        for (int64_t j = 0; j < rotary_dim; j++) {
            const int64_t entry = row + j % half;
            ref_pair_set(
                y, at + j,
                rope_of(x + at, xb + at, cos_table[entry], sin_table[entry], j % half, half, j >= half, d),
                &d->num);
        }
        for (int64_t j = rotary_dim; j < dim; j++)
            ref_pair_set(y, at + j, (ref_iv){x[at + j], xb[at + j]}, &d->num);
    }
}

void ref_bound_rope(ref_pair y, const double *x, const double *cos_table, const double *sin_table,
                    const int64_t *position, int64_t rotary_dim, int64_t t, int64_t heads, int64_t dim,
                    double sign, const ref_declared *d)
{
    const int64_t half = rotary_dim / 2;
#pragma omp parallel for schedule(static) if (ref_vec_parallel(t * heads * dim))
    for (int64_t i = 0; i < t * heads; i++) {
        const int64_t row = position[i / heads] * half;
        if (d->rounding & ASSAY_ROUND_PRODUCTS)
            rope_stored_row(y, i * dim, x + i * dim, cos_table + row, sin_table + row, half, sign, d);
        else
            rope_row(y, i * dim, x + i * dim, cos_table + row, sin_table + row, half, sign, &d->num);
        for (int64_t j = rotary_dim; j < dim; j++) {
            y.y[i * dim + j] = x[i * dim + j];
            y.b[i * dim + j] = 0.0;
        }
    }
}

/* rows [n, H] packed: the rows that meet in one row of the table. */
static void embedding_row(ref_pair out, int64_t at, double *rows, double *scratch, int64_t n,
                          const double *old, int64_t h, const ref_declared *d)
{
    double *y = out.y + at * h, *b = out.b + at * h;
    ref_sum_columns(y, b, NULL, 0, rows, h, n, h, &d->order);
    memmove(rows + h, rows, (size_t)(n * h) * sizeof *rows);
    ref_vec_copy(rows, old + at * h, h);
    ref_sum_columns(scratch, scratch + h, NULL, 0, rows, h, n + 1, h, &d->order);
    for (int64_t j = 0; j < h; j++) {
        y[j] = n > 0 ? y[j] + old[at * h + j] : old[at * h + j];
        const double added_last = n > 0 ? b[j] + d->num.u * (fabs(y[j]) + b[j]) : 0.0;
        b[j] = fmax(added_last, n > 0 ? scratch[h + j] : 0.0);
    }
    if ((d->rounding & ASSAY_ROUND_PARTIAL_SUMS) == 0)
        return;
    for (int64_t i = 0; i <= n; i++) /* the old value is the first of the rows now */
        for (int64_t j = 0; j < h; j++)
            b[j] += expm1((double)(n + 1) * d->u_store) * fabs(rows[i * h + j]) + d->eta_store;
}

assay_status ref_bound_embedding_bwd(ref_pair dweight, const double *dy, const int64_t *ids,
                                     const double *old, int64_t vocab_start, int64_t padding_idx, int64_t t,
                                     int64_t v, int64_t h, const ref_declared *d)
{
    double *rows = malloc((size_t)((t + 3) * h + 1) * sizeof *rows);
    int64_t *next = malloc((size_t)(t + v + 1) * sizeof *next), *head = next ? next + t : NULL;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(rows && next, ASSAY_OUT_OF_MEMORY, st, done, "embedding_bwd: %lld tokens", (long long)t);
    /* A list of tokens for each row of the table, ascending. */
    for (int64_t i = 0; i < v; i++)
        head[i] = -1;
    for (int64_t i = t - 1; i >= 0; i--)
        if (ids[i] != padding_idx && ids[i] >= vocab_start && ids[i] - vocab_start < v) {
            next[i] = head[ids[i] - vocab_start];
            head[ids[i] - vocab_start] = i;
        }
    for (int64_t r = 0; r < v; r++) {
        int64_t n = 0;
        for (int64_t i = head[r]; i >= 0; i = next[i])
            ref_vec_copy(rows + n++ * h, dy + i * h, h);
        embedding_row(dweight, r, rows, rows + (t + 1) * h, n, old, h, d);
    }
done:
    free(rows);
    free(next);
    return st;
}

assay_status ref_bound_combine_rows(ref_pair y, const double *x, const int64_t *token_row, int64_t t,
                                    int64_t k, int64_t h, const ref_declared *d)
{
    double *rows = malloc((size_t)(k * h + 1) * sizeof *rows);
    ASSAY_CHECK(rows, ASSAY_OUT_OF_MEMORY, "combine_rows: %lld rows of %lld", (long long)k, (long long)h);
    for (int64_t i = 0; i < t; i++) {
        for (int64_t j = 0; j < k; j++)
            if (token_row[i * k + j] < 0)
                ref_vec_zero(rows + j * h, h); /* leaves a sum as it is */
            else
                ref_vec_copy(rows + j * h, x + token_row[i * k + j] * h, h);
        ref_sum_columns(y.y + i * h, y.b + i * h, NULL, 0, rows, h, k, h, &d->order);
    }
    free(rows);
    return ASSAY_OK;
}
