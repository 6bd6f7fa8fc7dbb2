/* Bounds of sums.  u is the unit roundoff, p_k the terms, s_k the prefix sums.
 *
 *   chain      |error| <= sum_k u |s_k| (+ u |p_k| when products are rounded), fed back: times (1+u)^n
 *   tree       every term passes at most `depth` roundings: ((1+u)^depth - 1) sum |p_k|
 *   any order  each of the n-1 partial sums lies in [-P_minus, P_plus]: u (n-1) max(P_plus, P_minus)
 *   tensor     per step of k_step terms, alignment to the largest and truncation, fed back exactly
 *
 * Source of the tensor-core model: Khattak & Mikaitis, arXiv 2512.07004.  Running error: Higham, Accuracy and
 * Stability of Numerical Algorithms, chapter 3. */
#include "ref/bounds/sum.h"

#include "ref/bounds/chain.h"
#include "ref/fast/vector.h"

enum { BLOCK = REF_CHAIN_COLUMNS };

assay_status ref_order_of(ref_order *out, const assay_arith *arith, const char *op)
{
    const ref_num num = ref_num_of(arith);
    ASSAY_CHECK(arith->accumulate == ASSAY_F32 || arith->accumulate == ASSAY_F64, ASSAY_UNSUPPORTED,
                "%s: declared arithmetic: accumulate must be F32 or F64, found %s", op,
                assay_dtype_name(arith->accumulate));
    ASSAY_CHECK((int)arith->order >= 0 && arith->order <= ASSAY_ORDER_UNKNOWN, ASSAY_UNSUPPORTED,
                "%s: declared arithmetic: unknown order %d", op, (int)arith->order);
    ASSAY_CHECK(arith->order != ASSAY_ORDER_TREE || arith->lanes >= 1, ASSAY_UNSUPPORTED,
                "%s: declared arithmetic: order tree needs lanes >= 1, found %d", op, arith->lanes);
    ASSAY_CHECK(arith->order != ASSAY_ORDER_TENSOR_CORE || arith->k_step >= 1, ASSAY_UNSUPPORTED,
                "%s: declared arithmetic: order tensor_core needs k_step >= 1, found %d", op, arith->k_step);
    ASSAY_CHECK(arith->guard_bits >= -23 && arith->guard_bits <= 64, ASSAY_UNSUPPORTED,
                "%s: declared arithmetic: guard_bits must be in [-23, 64], found %d", op, arith->guard_bits);
    ASSAY_CHECK(arith->split >= 0 && arith->math_ulp >= 0 && arith->tile >= 0, ASSAY_UNSUPPORTED,
                "%s: declared arithmetic: split, math_ulp and tile must not be negative", op);
    *out = (ref_order){.order = arith->order,
                       .u = num.u,
                       .eta = num.eta,
                       .lanes = arith->lanes > 1 ? arith->lanes : 1,
                       .split = arith->split > 1 ? arith->split : 1,
                       .k_step = arith->k_step,
                       .align = 2.0 * num.u * ldexp(1.0, -arith->guard_bits),
                       .fma = arith->fma};
    /* Atomics join whatever the declared order makes in an order of their own. */
    if (arith->order == ASSAY_ORDER_NONE || arith->atomics)
        out->order = ASSAY_ORDER_UNKNOWN;
    return ASSAY_OK;
}

static int64_t ceil_log2(int64_t n)
{
    int64_t levels = 0;
    while (levels < 62 && ((int64_t)1 << levels) < n)
        levels++;
    return levels;
}

/* A tile of cells: `rows` rows of one block of columns, or one row of `blocks` blocks.  The first `width`
 * columns of y and bound are stored; the rows of both are ldy apart. */
typedef struct tile {
    double *y, *bound;
    int64_t ldy, rows, blocks, width;
} tile;

/* What the formulas need to know of all columns: growth = (1+u)^n. */
typedef struct rules {
    const ref_order *o;
    int64_t n;
    bool products;
    double growth, eta;
} rules;

static rules rules_of(const ref_order *o, int64_t n, bool products)
{
    return (rules){o, n, products, exp((double)n * o->u), products ? (double)n * o->eta : 0.0};
}

/* 0 + p_1 is exact: a chain of rounded products (or of plain terms) has no error in its first addition; a
 * fused chain rounds its first product there. */
static inline double chain_bound(double r, double g, double first, const rules *f)
{
    if (f->products && f->o->fma)
        return f->o->u * r;
    const double later = r - first;
    return f->o->u * ((later > 0.0 ? later : 0.0) + (f->products ? g : 0.0));
}

static double tree_factor(const rules *f)
{
    const int64_t chain_terms = (f->n + f->o->lanes - 1) / f->o->lanes;
    const int64_t depth = chain_terms + ceil_log2(f->o->lanes) - (f->products ? 0 : 1);
    return expm1((double)depth * f->o->u);
}

static inline double any_bound(double s, double g, const rules *f)
{
    return f->o->u * ((double)(f->n - 1) * 0.5 * (g + fabs(s)) + (f->products ? g : 0.0)) * f->growth;
}

/* Steps of a matrix unit of which each holds one term or more: at most n, after each of which the partial sum, and each term, is
 * at most the larger of the positive and the negative sum; then the chains of a split are joined. */
static inline double steps_bound(double s, double g, const rules *f)
{
    const double step = (double)(f->o->k_step + 1) * f->o->align + 2.0 * f->o->u;
    return 0.5 * (g + fabs(s)) * expm1((double)(f->n + f->o->split - 1) * step);
}

/* Orders whose bound follows from one pass over the terms. */
static bool is_one_pass(const ref_order *o)
{
    if (o->order == ASSAY_ORDER_TENSOR_CORE)
        return o->any_steps;
    return o->order != ASSAY_ORDER_SEQUENTIAL || o->split == 1;
}

static ref_chain_wants wants_of(const rules *f)
{
    if (f->o->order == ASSAY_ORDER_SEQUENTIAL)
        return f->products && f->o->fma ? REF_CHAIN_PREFIXES : REF_CHAIN_BOTH;
    return f->o->order == ASSAY_ORDER_TREE && f->o->or_chain ? REF_CHAIN_BOTH : REF_CHAIN_MAGNITUDES;
}

/* The fused chain, which is the common case. */
REF_WIDE static void store_fused(const tile *t, const ref_cells *z, const rules *f)
{
    const double u = f->o->u, growth = f->growth, eta = f->eta;
    for (int64_t i = 0; i < t->rows; i++) {
        const double *s = z->s + i * BLOCK, *r = z->r + i * BLOCK;
        double *y = t->y + i * t->ldy, *b = t->bound + i * t->ldy;
#pragma omp simd
        for (int64_t c = 0; c < t->width; c++) {
            y[c] = s[c];
            b[c] = u * r[c] * growth + eta;
        }
    }
}

/* Sums and bounds after one pass. */
static void store(const tile *t, const ref_cells *z, const rules *f)
{
    if (wants_of(f) == REF_CHAIN_PREFIXES) {
        store_fused(t, z, f);
        return;
    }
    const double own = (double)f->n * 0x1p-53;
    const double tree = f->o->order == ASSAY_ORDER_TREE ? tree_factor(f) : 0.0;
    const bool prefixes = wants_of(f) == REF_CHAIN_BOTH; /* else r and first were not written */
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t c = 0; c < t->width; c++) {
            const int64_t at = i * BLOCK + c;
            const double s = z->s[at], g = z->g[at],
                         chain = prefixes ? chain_bound(z->r[at], g, z->first[at], f) * f->growth : 0.0;
            double bound = tree * g + own * g;
            if (f->o->order == ASSAY_ORDER_SEQUENTIAL)
                bound = chain;
            else if (f->o->order == ASSAY_ORDER_TENSOR_CORE)
                bound += steps_bound(s, g, f);
            else if (f->o->order != ASSAY_ORDER_TREE)
                bound = any_bound(s, g, f);
            else if (f->o->or_chain)
                bound = fmax(bound, chain);
            t->y[i * t->ldy + c] = s;
            t->bound[i * t->ldy + c] = bound + f->eta;
        }
}

/* `split` contiguous chains of ceil(n/split) terms added in order. */
static void split_chains(const tile *t, const ref_terms *x, const rules *f)
{
    const int64_t n = f->n, length = (n + f->o->split - 1) / f->o->split;
    ref_cells z;
    for (int64_t k0 = 0; k0 < n; k0 += length) {
        ref_chain(&z, x, k0, k0 + length < n ? k0 + length : n, t->rows, t->blocks, wants_of(f));
        for (int64_t i = 0; i < t->rows; i++)
            for (int64_t c = 0; c < t->width; c++) {
                const int64_t at = i * BLOCK + c;
                double *y = &t->y[i * t->ldy + c], *b = &t->bound[i * t->ldy + c];
                const double own = chain_bound(z.r[at], z.g[at], z.first[at], f);
                *y = k0 == 0 ? z.s[at] : *y + z.s[at];
                *b = k0 == 0 ? own : *b + (own + f->o->u * fabs(*y));
            }
    }
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t c = 0; c < t->width; c++)
            t->bound[i * t->ldy + c] = t->bound[i * t->ldy + c] * f->growth + f->eta;
}

static void tensor_core(const tile *t, const ref_terms *x, const rules *f)
{
    const int64_t n = f->n, length = (n + f->o->split - 1) / f->o->split;
    const ref_steps steps = {f->o->k_step, f->o->align, f->o->u, f->o->eta};
    ref_cells z;
    for (int64_t k0 = 0; k0 < n; k0 += length) {
        ref_tensor_chain(&z, x, k0, k0 + length < n ? k0 + length : n, t->rows, t->blocks, &steps);
        for (int64_t i = 0; i < t->rows; i++)
            for (int64_t c = 0; c < t->width; c++) {
                const int64_t at = i * BLOCK + c;
                double *y = &t->y[i * t->ldy + c], *b = &t->bound[i * t->ldy + c];
                *y = k0 == 0 ? z.s[at] : *y + z.s[at];
                *b = k0 == 0 ? z.r[at] : *b + z.r[at];
                if (k0 > 0)
                    *b += f->o->u * (fabs(*y) + *b);
            }
    }
    for (int64_t i = 0; i < t->rows; i++)
        for (int64_t c = 0; c < t->width; c++)
            t->bound[i * t->ldy + c] += f->eta;
}

static void tile_sum(const tile *t, const ref_terms *x, const rules *f)
{
    ref_cells z;
    if (f->n <= 0) {
        for (int64_t i = 0; i < t->rows; i++) {
            ref_vec_zero(t->y + i * t->ldy, t->width);
            ref_vec_zero(t->bound + i * t->ldy, t->width);
        }
    } else if (is_one_pass(f->o)) {
        ref_chain(&z, x, 0, f->n, t->rows, t->blocks, wants_of(f));
        store(t, &z, f);
    } else if (f->o->order == ASSAY_ORDER_SEQUENTIAL) {
        split_chains(t, x, f);
    } else {
        tensor_core(t, x, f);
    }
}

void ref_sum_panel(double *y, double *bound, int64_t ldy, const double *a, int64_t m, const double *panel,
                   int64_t n, int64_t width, const ref_order *order)
{
    const rules f = rules_of(order, n, a != NULL);
    for (int64_t i = 0; i < m; i += REF_PANEL) {
        const int64_t rows = m - i < REF_PANEL ? m - i : REF_PANEL;
        const ref_terms x = {a ? a + i * n : NULL, panel, 1, REF_PANEL, BLOCK, BLOCK, NULL, false};
        tile_sum(&(tile){y + i * ldy, bound + i * ldy, ldy, rows, 1, width}, &x, &f);
    }
}

/* Whole blocks of the next tile; 0: fewer than a block's columns are left. */
static int64_t blocks_at(int64_t c, int64_t columns)
{
    const int64_t blocks = (columns - c) / BLOCK;
    return blocks < REF_CHAIN_CELLS ? blocks : REF_CHAIN_CELLS;
}

void ref_sum_columns(double *y, double *bound, const double *a, int64_t lda, const double *b, int64_t ldb,
                     int64_t n, int64_t columns, const ref_order *order)
{
    const rules f = rules_of(order, n, a != NULL);
    for (int64_t c = 0; c < columns;) {
        const int64_t blocks = blocks_at(c, columns), width = blocks > 0 ? blocks * BLOCK : columns - c;
        const ref_terms x = {a, b + c, 0, lda, ldb, blocks > 0 ? BLOCK : width, NULL, false};
        tile_sum(&(tile){y + c, bound + c, 0, 1, blocks > 0 ? blocks : 1, width}, &x, &f);
        c += width;
    }
}

/* Columns c0 ... of ref_sum_rows, the pieces one after the other in one chain. */
static void rows_tile(const tile *t, double *own, const double *a, const double *error, const ref_rows *x,
                      int64_t pieces, int64_t c0, int64_t ldb, const rules *f)
{
    ref_cells z;
    for (int64_t i = 0, k = 0; i < pieces; k += x[i++].n) {
        const ref_terms terms = {a + k,     x[i].x + c0, 0, 1, ldb, t->width < BLOCK ? t->width : BLOCK,
                                 error + k, i > 0};
        ref_chain(&z, &terms, 0, x[i].n, 1, t->blocks, wants_of(f));
    }
    store(t, &z, f);
    ref_vec_copy(own, z.own, t->width);
}

void ref_sum_rows(double *y, double *bound, double *own, const double *a, const double *error,
                  const ref_rows *x, int64_t pieces, int64_t width, double *gathered, const ref_order *order)
{
    int64_t n = 0;
    for (int64_t i = 0; i < pieces; i++)
        n += x[i].n;
    if (!is_one_pass(order) || n == 0) {
        for (int64_t i = 0, k = 0; pieces > 1 && i < pieces; k += x[i++].n)
            ref_vec_copy(gathered + k * width, x[i].x, x[i].n * width);
        const double *rows = pieces == 1 ? x[0].x : gathered;
        ref_sum_columns(y, bound, a, 1, rows, width, n, width, order);
        ref_sum_magnitudes(own, error, rows, width, n, width);
        return;
    }
    const rules f = rules_of(order, n, true);
    for (int64_t c = 0; c < width;) {
        const int64_t blocks = blocks_at(c, width), columns = blocks > 0 ? blocks * BLOCK : width - c;
        const tile t = {y + c, bound + c, 0, 1, blocks > 0 ? blocks : 1, columns};
        rows_tile(&t, own + c, a, error, x, pieces, c, width, &f);
        c += columns;
    }
}

void ref_sum_magnitudes(double *g, const double *a, const double *b, int64_t ldb, int64_t n, int64_t columns)
{
    ref_cells z;
    for (int64_t c = 0; c < columns;) {
        const int64_t blocks = blocks_at(c, columns), width = blocks > 0 ? blocks * BLOCK : columns - c;
        const ref_terms x = {a, b + c, 0, 1, ldb, blocks > 0 ? BLOCK : width, NULL, false};
        ref_chain(&z, &x, 0, n, 1, blocks > 0 ? blocks : 1, REF_CHAIN_G);
        ref_vec_copy(g + c, z.g, width);
        c += width;
    }
}

ref_iv ref_sum_dot(const double *a, const double *b, int64_t n, const ref_order *order)
{
    ref_iv z;
    ref_sum_columns(&z.v, &z.b, a, 1, b, 1, n, 1, order);
    return z;
}

ref_iv ref_sum_terms(const double *v, const double *b, int64_t n, const ref_order *order)
{
    ref_iv z = ref_sum_dot(NULL, v, n, order);
    double own = 0.0;
    for (int64_t i = 0; i < n; i++)
        own += b[i];
    /* the terms that are added are the computed ones: (1 + n u) covers their own errors in the additions */
    z.b += own * (1.0 + 2.0 * (double)n * order->u);
    return z;
}

ref_iv ref_sum_few(const ref_num *num, const ref_iv *x, int64_t n)
{
    double s = 0.0, g = 0.0, own = 0.0;
    for (int64_t i = 0; i < n; i++) {
        s += x[i].v;
        g += fabs(x[i].v) + x[i].b;
        own += x[i].b;
    }
    return (ref_iv){s, n > 0 ? own + expm1((double)(n - 1) * num->u) * g : 0.0};
}

/* *s = sum x_i, *r = the sum of its prefixes, in which term i stands n - i times */
REF_WIDE static void positive_chain(double *s, double *r, const double *x, int64_t n)
{
    ref_eight sums = REF_EIGHT(0.0), prefixes = sums, left = REF_EIGHT((double)n);
    left -= (ref_eight){0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const ref_eight p = *(const ref_eight *)(x + i);
        sums += p;
        prefixes += left * p;
        left -= REF_EIGHT(8.0);
    }
    *s = REF_EIGHT_SUM(sums);
    *r = REF_EIGHT_SUM(prefixes);
    for (; i < n; i++) {
        *s += x[i];
        *r += (double)(n - i) * x[i];
    }
}

double ref_sum_positive(const double *x, int64_t n, const ref_order *order)
{
    const bool chain = order->order == ASSAY_ORDER_SEQUENTIAL, tree = order->order == ASSAY_ORDER_TREE;
    if (!chain && !tree)
        return expm1((double)n * order->u);
    if (n == 0)
        return 0.0;
    if (chain && order->split > 1) {
        const ref_iv z = ref_sum_dot(NULL, x, n, order);
        return z.v > 0.0 ? z.b / z.v : 0.0;
    }
    const rules f = rules_of(order, n, false);
    double s, r, bound = 0.0;
    positive_chain(&s, &r, x, n);
    if (tree)
        bound = (tree_factor(&f) + (double)n * 0x1p-53) * s;
    if (chain || order->or_chain)
        bound = fmax(bound, chain_bound(r, s, x[0], &f) * f.growth);
    return s > 0.0 ? bound / s : 0.0;
}
