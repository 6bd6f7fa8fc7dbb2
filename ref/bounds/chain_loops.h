/* The loops of ref/bounds/chain.c for one width of vectors.  No include guard: included once for each width, with
 *   LOOPS(name)  the name with the width's suffix
 *   TARGET       the instructions that these functions may use
 *   LANES        doubles of a vector
 *   FMA(a, b, c) vectors a b + c in one rounding, FMA1 the same of numbers; where the machine has none, in two
 *   ALL(x)       a vector of the number x
 *   LARGER(p, m) vector of max(|p|, m), m where p is not a number
 *   TALL, FLAT   how many cells fit into the registers one below the other, and side by side */

typedef double LOOPS(lanes) __attribute__((vector_size(8 * LANES)));
/* at any address of a double */
typedef double LOOPS(lanes_at) __attribute__((vector_size(8 * LANES), aligned(8), may_alias));
typedef int64_t LOOPS(bits) __attribute__((vector_size(8 * LANES)));

#define HALF_FLAT ((FLAT + 1) / 2)
#define INLINE TARGET static inline __attribute__((always_inline))
#define ABS(x) ((LOOPS(lanes))((LOOPS(bits))(x)&not_sign))
/* Vector i of `cells` cells: which row of a, and how far from the first column of b. */
#define ROW_OF(i) (BLOCKS == 1 ? (i) / (COLUMNS / LANES) : 0)
#define COLUMN_OF(i) (BLOCKS == 1 ? (i) % (COLUMNS / LANES) * LANES : (i)*LANES)

/* ROWS x BLOCKS cells from `cell` on, one of the two numbers is 1; the numbers and WANTS are constants wherever
 * this is compiled, so that s, r and g stay in registers. */
INLINE void LOOPS(chain_body)(ref_cells *z, int64_t cell, const ref_terms *x, int64_t first_row,
                              const double *b, int64_t k0, int64_t k1, const int ROWS, const int BLOCKS,
                              const ref_chain_wants WANTS, const bool PRODUCTS, const bool ERRORS)
{
    const LOOPS(bits) not_sign = (LOOPS(bits)){0} + INT64_MAX;
    const int VECTORS = ROWS * BLOCKS * (COLUMNS / LANES);
    const bool S = WANTS != REF_CHAIN_G, R = WANTS & REF_CHAIN_PREFIXES, G = !R || WANTS == REF_CHAIN_BOTH;
    LOOPS(lanes) s[MAX_VECTORS], r[MAX_VECTORS], g[MAX_VECTORS], own[MAX_VECTORS];
    const double *row[REF_CHAIN_CELLS];
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; i++)
        s[i] = r[i] = g[i] = own[i] = (LOOPS(lanes)){0};
    if (x->go_on) {
#pragma GCC unroll 8
        for (int i = 0; i < VECTORS; i++) {
            const int64_t at = cell * COLUMNS + i * LANES;
            if (S)
                s[i] = *(const LOOPS(lanes_at) *)(z->s + at);
            if (R)
                r[i] = *(const LOOPS(lanes_at) *)(z->r + at);
            if (G)
                g[i] = *(const LOOPS(lanes_at) *)(z->g + at);
            if (ERRORS)
                own[i] = *(const LOOPS(lanes_at) *)(z->own + at);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
        row[i] = PRODUCTS ? x->a + (first_row + i) * x->row_stride : NULL;
    for (int64_t k = k0; k < k1; k++) {
#pragma GCC unroll 8
        for (int i = 0; i < VECTORS; i++) {
            const LOOPS(lanes) p = *(const LOOPS(lanes_at) *)(b + k * x->ldb + COLUMN_OF(i));
            const LOOPS(lanes) q = PRODUCTS ? ALL(row[ROW_OF(i)][k * x->lda]) : p;
            if (S)
                s[i] = PRODUCTS ? FMA(q, p, s[i]) : s[i] + p;
            if (R)
                r[i] = r[i] + ABS(s[i]);
            if (G)
                g[i] = PRODUCTS ? FMA(ABS(q), ABS(p), g[i]) : g[i] + ABS(p);
            if (ERRORS)
                own[i] = FMA(ALL(x->error[k]), ABS(p), own[i]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; i++) {
        if (S)
            *(LOOPS(lanes_at) *)(z->s + cell * COLUMNS + i * LANES) = s[i];
        if (R)
            *(LOOPS(lanes_at) *)(z->r + cell * COLUMNS + i * LANES) = r[i];
        if (G)
            *(LOOPS(lanes_at) *)(z->g + cell * COLUMNS + i * LANES) = g[i];
        if (ERRORS)
            *(LOOPS(lanes_at) *)(z->own + cell * COLUMNS + i * LANES) = own[i];
    }
}

INLINE void LOOPS(tensor_body)(ref_cells *z, int64_t cell, const ref_terms *x, int64_t first_row,
                               const double *b, int64_t k0, int64_t k1, const int ROWS, const int BLOCKS,
                               const ref_steps *t, const bool PRODUCTS)
{
    const LOOPS(bits) not_sign = (LOOPS(bits)){0} + INT64_MAX;
    const int VECTORS = ROWS * BLOCKS * (COLUMNS / LANES);
    const double first = (double)(t->k_step + 1) * t->align, own = 0x1p-53 * (double)(t->k_step + 1);
    const double own_largest = own * (double)t->k_step;
    LOOPS(lanes) s[MAX_VECTORS], bound[MAX_VECTORS], largest[MAX_VECTORS], step[MAX_VECTORS];
    const double *row[REF_CHAIN_CELLS];
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; i++)
        s[i] = bound[i] = (LOOPS(lanes)){0};
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
        row[i] = PRODUCTS ? x->a + (first_row + i) * x->row_stride : NULL;
    for (int64_t k = k0; k < k1; k += t->k_step) {
        const int64_t end = k1 - k < t->k_step ? k1 : k + t->k_step;
#pragma GCC unroll 8
        for (int i = 0; i < VECTORS; i++)
            largest[i] = step[i] = (LOOPS(lanes)){0};
        for (int64_t j = k; j < end; j++) {
#pragma GCC unroll 8
            for (int i = 0; i < VECTORS; i++) {
                const LOOPS(lanes) term = *(const LOOPS(lanes_at) *)(b + j * x->ldb + COLUMN_OF(i));
                const LOOPS(lanes) p = PRODUCTS ? ALL(row[ROW_OF(i)][j * x->lda]) * term : term;
                step[i] = step[i] + p;
                largest[i] = LARGER(p, largest[i]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < VECTORS; i++) {
            const LOOPS(lanes) aligned = LARGER(largest[i], ABS(s[i]) + bound[i]);
            s[i] = s[i] + step[i];
            bound[i] = bound[i] + first * aligned;
            bound[i] = bound[i] + (2.0 * t->u * (ABS(s[i]) + bound[i]) + t->eta);
            /* the reference's own additions, which the step above does not see */
            bound[i] = bound[i] + (own_largest * largest[i] + own * aligned);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; i++) {
        *(LOOPS(lanes_at) *)(z->s + cell * COLUMNS + i * LANES) = s[i];
        *(LOOPS(lanes_at) *)(z->r + cell * COLUMNS + i * LANES) = bound[i];
    }
}

/* With ERRORS a cell has one vector more. */
INLINE void LOOPS(chain_cells)(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows,
                               int64_t blocks, const ref_chain_wants WANTS, const bool PRODUCTS,
                               const bool ERRORS)
{
    int64_t i = 0, j = 0;
    for (; rows > 1 && i + TALL <= rows; i += TALL)
        LOOPS(chain_body)(z, i, x, i, x->b, k0, k1, TALL, 1, WANTS, PRODUCTS, false);
    for (; !ERRORS && blocks > 1 && j + FLAT <= blocks; j += FLAT)
        LOOPS(chain_body)(z, j, x, 0, x->b + j * COLUMNS, k0, k1, 1, FLAT, WANTS, PRODUCTS, false);
    for (; (FLAT > HALF_FLAT || ERRORS) && blocks > 1 && j + HALF_FLAT <= blocks; j += HALF_FLAT)
        LOOPS(chain_body)(z, j, x, 0, x->b + j * COLUMNS, k0, k1, 1, HALF_FLAT, WANTS, PRODUCTS, ERRORS);
    for (; i < rows && rows > 1; i++)
        LOOPS(chain_body)(z, i, x, i, x->b, k0, k1, 1, 1, WANTS, PRODUCTS, false);
    for (; j < blocks && rows == 1; j++)
        LOOPS(chain_body)(z, j, x, 0, x->b + j * COLUMNS, k0, k1, 1, 1, WANTS, PRODUCTS, ERRORS);
}

INLINE void LOOPS(chain_terms)(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows,
                               int64_t blocks, ref_chain_wants wants, const bool PRODUCTS, const bool ERRORS)
{
    if (wants == REF_CHAIN_G)
        LOOPS(chain_cells)(z, x, k0, k1, rows, blocks, REF_CHAIN_G, PRODUCTS, ERRORS);
    else if (wants == REF_CHAIN_PREFIXES)
        LOOPS(chain_cells)(z, x, k0, k1, rows, blocks, REF_CHAIN_PREFIXES, PRODUCTS, ERRORS);
    else if (wants == REF_CHAIN_MAGNITUDES)
        LOOPS(chain_cells)(z, x, k0, k1, rows, blocks, REF_CHAIN_MAGNITUDES, PRODUCTS, ERRORS);
    else
        LOOPS(chain_cells)(z, x, k0, k1, rows, blocks, REF_CHAIN_BOTH, PRODUCTS, ERRORS);
}

TARGET static void LOOPS(chain)(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows,
                                int64_t blocks, ref_chain_wants wants)
{
    if (x->a && x->error)
        LOOPS(chain_terms)(z, x, k0, k1, rows, blocks, wants, true, true);
    else if (x->a)
        LOOPS(chain_terms)(z, x, k0, k1, rows, blocks, wants, true, false);
    else
        LOOPS(chain_terms)(z, x, k0, k1, rows, blocks, wants, false, false);
}

/* Twice as many vectors for each cell as a chain: half as many cells. */
INLINE void LOOPS(tensor_cells)(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows,
                                int64_t blocks, const ref_steps *t, const bool PRODUCTS)
{
    enum { HALF_TALL = (TALL + 1) / 2 };
    int64_t i = 0, j = 0;
    for (; rows > 1 && i + HALF_TALL <= rows; i += HALF_TALL)
        LOOPS(tensor_body)(z, i, x, i, x->b, k0, k1, HALF_TALL, 1, t, PRODUCTS);
    for (; blocks > 1 && j + HALF_FLAT <= blocks; j += HALF_FLAT)
        LOOPS(tensor_body)(z, j, x, 0, x->b + j * COLUMNS, k0, k1, 1, HALF_FLAT, t, PRODUCTS);
    for (; i < rows && rows > 1; i++)
        LOOPS(tensor_body)(z, i, x, i, x->b, k0, k1, 1, 1, t, PRODUCTS);
    for (; j < blocks && rows == 1; j++)
        LOOPS(tensor_body)(z, j, x, 0, x->b + j * COLUMNS, k0, k1, 1, 1, t, PRODUCTS);
}

TARGET static void LOOPS(tensor)(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows,
                                 int64_t blocks, const ref_steps *t)
{
    if (x->a)
        LOOPS(tensor_cells)(z, x, k0, k1, rows, blocks, t, true);
    else
        LOOPS(tensor_cells)(z, x, k0, k1, rows, blocks, t, false);
}

/* Fewer columns than a block: one after the other. */
TARGET static void LOOPS(narrow)(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1)
{
    for (int64_t c = 0; c < x->columns; c++) {
        double s = x->go_on ? z->s[c] : 0.0, r = x->go_on ? z->r[c] : 0.0, g = x->go_on ? z->g[c] : 0.0;
        double own = x->go_on && x->error ? z->own[c] : 0.0;
        for (int64_t k = k0; k < k1; k++) {
            const double p = x->b[k * x->ldb + c], q = x->a ? x->a[k * x->lda] : 0.0;
            s = x->a ? FMA1(q, p, s) : s + p;
            r += fabs(s);
            g = x->a ? FMA1(fabs(q), fabs(p), g) : g + fabs(p);
            own = x->error ? FMA1(x->error[k], fabs(p), own) : own;
        }
        z->s[c] = s;
        z->r[c] = r;
        z->g[c] = g;
        z->own[c] = own;
    }
}

#undef COLUMN_OF
#undef ROW_OF
#undef ABS
#undef INLINE
#undef HALF_FLAT
#undef FLAT
#undef TALL
#undef LARGER
#undef ALL
#undef FMA1
#undef FMA
#undef LANES
#undef TARGET
#undef LOOPS
