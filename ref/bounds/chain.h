/* The inner loops of ref/bounds/sum.c: chains of products of a [rows, n] and b [n, columns], several side by
 * side because one chain alone waits for its own additions.
 *
 * A cell is one row of a beside REF_CHAIN_COLUMNS columns of b.  Each of its columns is added in the order k0,
 * k0+1, ... k1-1 with the same roundings whatever the width of the machine's vectors and whatever stands
 * beside it: the bits are the same everywhere. */
#ifndef REF_BOUNDS_CHAIN_H
#define REF_BOUNDS_CHAIN_H

#include <stdbool.h>
#include <stdint.h>

enum { REF_CHAIN_COLUMNS = 8, REF_CHAIN_CELLS = 8 };

typedef struct ref_terms {
    const double *a, *b; /* a NULL: ones */
    int64_t row_stride, lda, ldb;
    int64_t columns;     /* REF_CHAIN_COLUMNS, or fewer with one row and one block */
    const double *error; /* NULL, or [n]: with one row of a, also the sum of error_k |b_k| */
    bool go_on;          /* after the terms that the cells have already */
} ref_terms;

enum { REF_CHAIN_TILE = REF_CHAIN_CELLS * REF_CHAIN_COLUMNS };

/* Of each column of each cell (cell i begins at i REF_CHAIN_COLUMNS): the sum s, r = sum |s_k|,
 * g = sum |p_k|, first = |p_k0|, own = sum error_k |b_k|. */
typedef struct ref_cells {
    double s[REF_CHAIN_TILE], r[REF_CHAIN_TILE], g[REF_CHAIN_TILE], first[REF_CHAIN_TILE],
        own[REF_CHAIN_TILE];
} ref_cells;

/* What a caller needs: with PREFIXES s and r, with MAGNITUDES s, g and first, with both all of them; with
 * neither, g alone. */
typedef enum {
    REF_CHAIN_G = 0,
    REF_CHAIN_PREFIXES = 1,
    REF_CHAIN_MAGNITUDES = 2,
    REF_CHAIN_BOTH = 3,
} ref_chain_wants;

/* `rows` cells one below the other or `blocks` side by side (the other is 1). */
void ref_chain(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows, int64_t blocks,
               ref_chain_wants wants);

/* A tensor core's chain: align is the relative error of aligning one term. */
typedef struct ref_steps {
    int64_t k_step;
    double align, u, eta;
} ref_steps;
/* s the sum, r its bound, fed back step by step. */
void ref_tensor_chain(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows, int64_t blocks,
                      const ref_steps *steps);

#endif
