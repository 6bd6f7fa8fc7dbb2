/* Sums and dot products in a declared order, with their bounds: the heart of every reduction.
 * Formulas: docs/TOLERANCES.md, section 2. */
#ifndef REF_BOUNDS_SUM_H
#define REF_BOUNDS_SUM_H

#include "ref/bounds/interval.h"

/* How the terms of a sum are joined. */
typedef struct ref_order {
    assay_order order; /* ASSAY_ORDER_NONE counts as UNKNOWN */
    double u, eta;
    int64_t lanes, split, k_step;
    double align; /* TENSOR_CORE: relative alignment error of one term, 2^-(23 + guard_bits) */
    bool fma;
    /* TREE: an output has several sums inside (attention: scores, then keys) and its declaration names the order of one; the
     * others may be chains. */
    bool or_chain;
    /* TENSOR_CORE: which terms share a step is not declared (they stand between others that are zero). */
    bool any_steps;
} ref_order;

/* ASSAY_UNSUPPORTED, naming the field: an accumulate type other than F32 or F64, lanes, split or k_step
 * below 1. */
assay_status ref_order_of(ref_order *out, const assay_arith *arith, const char *op);

/* y [columns] = sum_k a[k lda] b[k ldb + c], bound [columns] =; a NULL means 1 (a plain sum, no products). */
void ref_sum_columns(double *y, double *bound, const double *a, int64_t lda, const double *b, int64_t ldb,
                     int64_t n, int64_t columns, const ref_order *order);
/* Rows [n, width], one below the other. */
typedef struct ref_rows {
    const double *x;
    int64_t n;
} ref_rows;
/* y, bound [width] = sum_k a[k] row_k and own [width] = sum_k error[k] |row_k| over the rows of `pieces` pieces; gathered: scratch
 * for all rows where there are several pieces. */
void ref_sum_rows(double *y, double *bound, double *own, const double *a, const double *error,
                  const ref_rows *x, int64_t pieces, int64_t width, double *gathered, const ref_order *order);
/* g [columns] = sum_k |a[k] b[k ldb + c]| */
void ref_sum_magnitudes(double *g, const double *a, const double *b, int64_t ldb, int64_t n, int64_t columns);
/* The same as ref_sum_columns for m rows of a beside a panel of up to REF_PANEL columns: y, bound [m, width] =, rows ldy apart.
 * a: tiles [n, REF_PANEL] of REF_PANEL rows each, one after the other; panel [n, REF_PANEL]; both filled up with zeros. */
enum { REF_PANEL = 8 };
void ref_sum_panel(double *y, double *bound, int64_t ldy, const double *a, int64_t m, const double *panel,
                   int64_t n, int64_t width, const ref_order *order);
/* One dot product (a NULL: the sum of b). */
ref_iv ref_sum_dot(const double *a, const double *b, int64_t n, const ref_order *order);
/* Sum of n intervals in the declared order: the bounds of the terms and of their addition. */
ref_iv ref_sum_terms(const double *v, const double *b, int64_t n, const ref_order *order);
/* Sum of few intervals in any order. */
ref_iv ref_sum_few(const ref_num *num, const ref_iv *x, int64_t n);
/* Relative error of adding n terms of one sign in the declared order. */
double ref_sum_positive(const double *x, int64_t n, const ref_order *order);

#endif
