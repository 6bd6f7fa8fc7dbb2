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

#include "ref/ops/vector.h"

enum { BLOCK = 8 };

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

/* Terms k0 <= k < k1 of up to BLOCK columns in one chain: s the sum, r = sum |s_k|, g = sum |p_k|, first =
 * |p_k0|. */
typedef struct chain_state {
    double s[BLOCK], r[BLOCK], g[BLOCK], first[BLOCK];
} chain_state;

typedef struct terms {
    const double *a, *b;
    int64_t lda, ldb;
} terms;

/* The common width has a loop of its own, in two vectors that stay in registers.  Every lane adds in the same
 * order with the same roundings whatever the width of the machine's vectors: the bits are the same
 * everywhere. */
typedef double lanes4 __attribute__((vector_size(32)));
/* at any address of a double */
typedef double lanes4_at __attribute__((vector_size(32), aligned(8), may_alias));
typedef int64_t bits4 __attribute__((vector_size(32)));

#define ABS4(x) ((lanes4)((bits4)(x)&not_sign))

static inline __attribute__((always_inline)) void chain_block_body(chain_state *z, const terms *x, int64_t k0,
                                                                   int64_t k1)
{
    const bits4 not_sign = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    lanes4 s0 = {0}, s1 = {0}, r0 = {0}, r1 = {0}, g0 = {0}, g1 = {0}, b0, b1;
    for (int64_t k = k0; k < k1; k++) {
        const double a = x->a ? x->a[k * x->lda] : 1.0, *b = x->b + k * x->ldb;
        b0 = *(const lanes4_at *)b * a;
        b1 = *(const lanes4_at *)(b + 4) * a;
        s0 = s0 + b0;
        s1 = s1 + b1;
        r0 = r0 + ABS4(s0);
        r1 = r1 + ABS4(s1);
        g0 = g0 + ABS4(b0);
        g1 = g1 + ABS4(b1);
    }
    *(lanes4_at *)z->s = s0;
    *(lanes4_at *)(z->s + 4) = s1;
    *(lanes4_at *)z->r = r0;
    *(lanes4_at *)(z->r + 4) = r1;
    *(lanes4_at *)z->g = g0;
    *(lanes4_at *)(z->g + 4) = g1;
}

/* One tensor-core chain for BLOCK columns: s the sum, b its bound, fed back. */
static inline __attribute__((always_inline)) void
tensor_block_body(double *sum, double *bound, const terms *x, int64_t k0, int64_t k1, const ref_order *o)
{
    const bits4 not_sign = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    const double first = (double)(o->k_step + 1) * o->align, own = 0x1p-53 * (double)(o->k_step + 1);
    const double own_largest = own * (double)o->k_step;
    for (int half = 0; half < 2; half++) {
        lanes4 s = {0}, b = {0};
        for (int64_t k = k0; k < k1; k += o->k_step) {
            const int64_t end = k + o->k_step < k1 ? k + o->k_step : k1;
            lanes4 largest = {0}, step = {0};
            for (int64_t i = k; i < end; i++) {
                lanes4 p =
                    *(const lanes4_at *)(x->b + i * x->ldb + 4 * half) * (x->a ? x->a[i * x->lda] : 1.0);
                step = step + p;
                p = ABS4(p);
                const bits4 more = p > largest;
                largest = (lanes4)(((bits4)p & more) | ((bits4)largest & ~more));
            }
            lanes4 aligned = ABS4(s) + b;
            const bits4 more = largest > aligned;
            aligned = (lanes4)(((bits4)largest & more) | ((bits4)aligned & ~more));
            s = s + step;
            b = b + first * aligned;
            b = b + (2.0 * o->u * (ABS4(s) + b) + o->eta);
            /* the reference's own additions, which the step above does not see */
            b = b + (own_largest * largest + own * aligned);
        }
        *(lanes4_at *)(sum + 4 * half) = s;
        *(lanes4_at *)(bound + 4 * half) = b;
    }
}

static void chain_block_any(chain_state *z, const terms *x, int64_t k0, int64_t k1)
{
    chain_block_body(z, x, k0, k1);
}

static void tensor_block_any(double *s, double *b, const terms *x, int64_t k0, int64_t k1, const ref_order *o)
{
    tensor_block_body(s, b, x, k0, k1, o);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void chain_block_avx2(chain_state *z, const terms *x, int64_t k0,
                                                             int64_t k1)
{
    chain_block_body(z, x, k0, k1);
}

__attribute__((target("avx2"))) static void tensor_block_avx2(double *s, double *b, const terms *x,
                                                              int64_t k0, int64_t k1, const ref_order *o)
{
    tensor_block_body(s, b, x, k0, k1, o);
}

static bool wide(void)
{
    return __builtin_cpu_supports("avx2") != 0;
}
#else
#define chain_block_avx2 chain_block_any
#define tensor_block_avx2 tensor_block_any
static bool wide(void)
{
    return false;
}
#endif

static void chain_block(chain_state *z, const terms *x, int64_t k0, int64_t k1)
{
    if (wide())
        chain_block_avx2(z, x, k0, k1);
    else
        chain_block_any(z, x, k0, k1);
}

static void chain_narrow(chain_state *z, const terms *x, int64_t k0, int64_t k1, int64_t columns)
{
    for (int64_t c = 0; c < columns; c++) {
        double s = 0.0, r = 0.0, g = 0.0;
        for (int64_t k = k0; k < k1; k++) {
            const double p = (x->a ? x->a[k * x->lda] : 1.0) * x->b[k * x->ldb + c];
            s += p;
            r += fabs(s);
            g += fabs(p);
        }
        z->s[c] = s;
        z->r[c] = r;
        z->g[c] = g;
    }
}

static void chain(chain_state *z, const terms *x, int64_t k0, int64_t k1, int64_t columns)
{
    if (columns == BLOCK)
        chain_block(z, x, k0, k1);
    else
        chain_narrow(z, x, k0, k1, columns);
    for (int64_t c = 0; c < columns; c++)
        z->first[c] = k0 < k1 ? fabs((x->a ? x->a[k0 * x->lda] : 1.0) * x->b[k0 * x->ldb + c]) : 0.0;
}

static int64_t ceil_log2(int64_t n)
{
    int64_t levels = 0;
    while (levels < 62 && ((int64_t)1 << levels) < n)
        levels++;
    return levels;
}

/* 0 + p_1 is exact: a chain of rounded products (or of plain terms) has no error in its first addition; a
 * fused chain rounds its first product there. */
static double chain_bound(double r, double g, double first, bool products, const ref_order *o)
{
    if (products && o->fma)
        return o->u * r;
    return o->u * (fmax(r - first, 0.0) + (products ? g : 0.0));
}

static double tree_bound(double g, int64_t n, bool products, const ref_order *o)
{
    const int64_t chain_terms = (n + o->lanes - 1) / o->lanes;
    const int64_t depth = chain_terms + ceil_log2(o->lanes) - (products ? 0 : 1);
    return expm1((double)depth * o->u) * g + (double)n * 0x1p-53 * g;
}

static double any_bound(double s, double g, int64_t n, bool products, const ref_order *o)
{
    return o->u * ((double)(n - 1) * 0.5 * (g + fabs(s)) + (products ? g : 0.0)) * exp((double)n * o->u);
}

/* One chain, or `split` contiguous chains of ceil(n/split) terms added in order. */
static void sequential(double *y, double *bound, const terms *x, int64_t n, int64_t columns,
                       const ref_order *o)
{
    const int64_t length = (n + o->split - 1) / o->split;
    double total[BLOCK] = {0}, b[BLOCK] = {0};
    chain_state z;
    for (int64_t k0 = 0; k0 < n; k0 += length) {
        const int64_t k1 = k0 + length < n ? k0 + length : n;
        chain(&z, x, k0, k1, columns);
        for (int64_t c = 0; c < columns; c++) {
            total[c] += z.s[c];
            b[c] += chain_bound(z.r[c], z.g[c], z.first[c], x->a != NULL, o) +
                    (k0 > 0 ? o->u * fabs(total[c]) : 0.0);
        }
    }
    for (int64_t c = 0; c < columns; c++) {
        y[c] = total[c];
        bound[c] = b[c] * exp((double)n * o->u);
    }
}

static void one_pass(double *y, double *bound, const terms *x, int64_t n, int64_t columns, const ref_order *o)
{
    const bool products = x->a != NULL;
    chain_state z;
    chain(&z, x, 0, n, columns);
    for (int64_t c = 0; c < columns; c++) {
        y[c] = z.s[c];
        if (o->order != ASSAY_ORDER_TREE) {
            bound[c] = any_bound(z.s[c], z.g[c], n, products, o);
            continue;
        }
        const double in_chain = chain_bound(z.r[c], z.g[c], z.first[c], products, o) * exp((double)n * o->u);
        bound[c] = tree_bound(z.g[c], n, products, o);
        if (o->or_chain)
            bound[c] = fmax(bound[c], in_chain);
    }
}

/* The same for one column. */
static ref_iv tensor_narrow(const terms *x, int64_t c, int64_t k0, int64_t k1, const ref_order *o)
{
    double s = 0.0, b = 0.0;
    for (int64_t k = k0; k < k1; k += o->k_step) {
        const int64_t end = k + o->k_step < k1 ? k + o->k_step : k1;
        double largest = 0.0, step = 0.0;
        for (int64_t i = k; i < end; i++) {
            const double p = (x->a ? x->a[i * x->lda] : 1.0) * x->b[i * x->ldb + c];
            largest = fabs(p) > largest ? fabs(p) : largest;
            step += p;
        }
        const double aligned = largest > fabs(s) + b ? largest : fabs(s) + b;
        s += step;
        b += (double)(o->k_step + 1) * o->align * aligned;
        b += 2.0 * o->u * (fabs(s) + b) + o->eta;
        b += 0x1p-53 * (double)(o->k_step + 1) * ((double)o->k_step * largest + aligned);
    }
    return (ref_iv){s, b};
}

static void tensor_chain(double *s, double *b, const terms *x, int64_t k0, int64_t k1, int64_t columns,
                         const ref_order *o)
{
    if (columns == BLOCK && wide()) {
        tensor_block_avx2(s, b, x, k0, k1, o);
    } else if (columns == BLOCK) {
        tensor_block_any(s, b, x, k0, k1, o);
    } else {
        for (int64_t c = 0; c < columns; c++) {
            const ref_iv z = tensor_narrow(x, c, k0, k1, o);
            s[c] = z.v;
            b[c] = z.b;
        }
    }
}

static void tensor_core(double *y, double *bound, const terms *x, int64_t n, int64_t columns,
                        const ref_order *o)
{
    const int64_t length = (n + o->split - 1) / o->split;
    double s[BLOCK], b[BLOCK];
    for (int64_t k0 = 0; k0 < n; k0 += length) {
        tensor_chain(s, b, x, k0, k0 + length < n ? k0 + length : n, columns, o);
        for (int64_t c = 0; c < columns; c++) {
            y[c] = k0 == 0 ? s[c] : y[c] + s[c];
            bound[c] = k0 == 0 ? b[c] : bound[c] + b[c];
            if (k0 > 0)
                bound[c] += o->u * (fabs(y[c]) + bound[c]);
        }
    }
}

void ref_sum_columns(double *y, double *bound, const double *a, int64_t lda, const double *b, int64_t ldb,
                     int64_t n, int64_t columns, const ref_order *order)
{
    for (int64_t c0 = 0; c0 < columns; c0 += BLOCK) {
        const int64_t width = columns - c0 < BLOCK ? columns - c0 : BLOCK;
        const terms x = {a, b + c0, lda, ldb};
        if (n == 0) {
            ref_vec_zero(y + c0, width);
            ref_vec_zero(bound + c0, width);
            continue;
        }
        if (order->order == ASSAY_ORDER_SEQUENTIAL)
            sequential(y + c0, bound + c0, &x, n, width, order);
        else if (order->order == ASSAY_ORDER_TENSOR_CORE)
            tensor_core(y + c0, bound + c0, &x, n, width, order);
        else
            one_pass(y + c0, bound + c0, &x, n, width, order);
        for (int64_t c = 0; a && c < width; c++)
            bound[c0 + c] += (double)n * order->eta;
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

double ref_sum_positive(const double *x, int64_t n, const ref_order *order)
{
    if (order->order == ASSAY_ORDER_SEQUENTIAL || order->order == ASSAY_ORDER_TREE) {
        const ref_iv z = ref_sum_dot(NULL, x, n, order);
        return z.v > 0.0 ? z.b / z.v : 0.0;
    }
    return expm1((double)n * order->u);
}
