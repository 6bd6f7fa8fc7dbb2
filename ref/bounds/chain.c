#include "ref/bounds/chain.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

enum { COLUMNS = REF_CHAIN_COLUMNS };

typedef double lanes __attribute__((vector_size(64)));
/* at any address of a double */
typedef double lanes_at __attribute__((vector_size(64), aligned(8), may_alias));
typedef int64_t lane_bits __attribute__((vector_size(64)));

#define ABS(x) ((lanes)((lane_bits)(x)&not_sign))
#define INLINE static inline __attribute__((always_inline))

/* ROWS x BLOCKS cells from `cell` on, one of the two numbers is 1; the numbers and WANTS are constants wherever
 * this is compiled, so that s, r and g stay in registers. */
INLINE void chain_body(ref_cells *z, int64_t cell, const ref_terms *x, const double *a, const double *b,
                       int64_t k0, int64_t k1, const int ROWS, const int BLOCKS, const ref_chain_wants WANTS)
{
    const lane_bits not_sign = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX,
                                INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    const int CELLS = ROWS * BLOCKS;
    const bool S = WANTS != REF_CHAIN_G, R = WANTS & REF_CHAIN_PREFIXES, G = !R || WANTS == REF_CHAIN_BOTH;
    lanes s[REF_CHAIN_CELLS], r[REF_CHAIN_CELLS], g[REF_CHAIN_CELLS];
    const double *row[REF_CHAIN_CELLS];
#pragma GCC unroll 8
    for (int i = 0; i < CELLS; i++)
        s[i] = r[i] = g[i] = (lanes){0};
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
        row[i] = a ? a + i * x->row_stride : NULL;
    for (int64_t k = k0; k < k1; k++) {
#pragma GCC unroll 8
        for (int i = 0; i < CELLS; i++) {
            const lanes p = *(const lanes_at *)(b + k * x->ldb + (ROWS == 1 ? i * COLUMNS : 0)) *
                            (a ? row[ROWS == 1 ? 0 : i][k * x->lda] : 1.0);
            if (S)
                s[i] = s[i] + p;
            if (R)
                r[i] = r[i] + ABS(s[i]);
            if (G)
                g[i] = g[i] + ABS(p);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < CELLS; i++) {
        if (S)
            *(lanes_at *)(z->s + (cell + i) * COLUMNS) = s[i];
        if (R)
            *(lanes_at *)(z->r + (cell + i) * COLUMNS) = r[i];
        if (G)
            *(lanes_at *)(z->g + (cell + i) * COLUMNS) = g[i];
    }
}

INLINE void tensor_body(ref_cells *z, int64_t cell, const ref_terms *x, const double *a, const double *b,
                        int64_t k0, int64_t k1, const int ROWS, const int BLOCKS, const ref_steps *t)
{
    const lane_bits not_sign = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX,
                                INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    const int CELLS = ROWS * BLOCKS;
    const double first = (double)(t->k_step + 1) * t->align, own = 0x1p-53 * (double)(t->k_step + 1);
    const double own_largest = own * (double)t->k_step;
    lanes s[REF_CHAIN_CELLS], bound[REF_CHAIN_CELLS], largest[REF_CHAIN_CELLS], step[REF_CHAIN_CELLS];
    const double *row[REF_CHAIN_CELLS];
#pragma GCC unroll 8
    for (int i = 0; i < CELLS; i++)
        s[i] = bound[i] = (lanes){0};
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
        row[i] = a ? a + i * x->row_stride : NULL;
    for (int64_t k = k0; k < k1; k += t->k_step) {
        const int64_t end = k1 - k < t->k_step ? k1 : k + t->k_step;
#pragma GCC unroll 8
        for (int i = 0; i < CELLS; i++)
            largest[i] = step[i] = (lanes){0};
        for (int64_t j = k; j < end; j++) {
#pragma GCC unroll 8
            for (int i = 0; i < CELLS; i++) {
                const lanes p = *(const lanes_at *)(b + j * x->ldb + (ROWS == 1 ? i * COLUMNS : 0)) *
                                (a ? row[ROWS == 1 ? 0 : i][j * x->lda] : 1.0);
                const lanes size = ABS(p);
                const lane_bits more = size > largest[i];
                step[i] = step[i] + p;
                largest[i] = (lanes)(((lane_bits)size & more) | ((lane_bits)largest[i] & ~more));
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < CELLS; i++) {
            lanes aligned = ABS(s[i]) + bound[i];
            const lane_bits more = largest[i] > aligned;
            aligned = (lanes)(((lane_bits)largest[i] & more) | ((lane_bits)aligned & ~more));
            s[i] = s[i] + step[i];
            bound[i] = bound[i] + first * aligned;
            bound[i] = bound[i] + (2.0 * t->u * (ABS(s[i]) + bound[i]) + t->eta);
            /* the reference's own additions, which the step above does not see */
            bound[i] = bound[i] + (own_largest * largest[i] + own * aligned);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < CELLS; i++) {
        *(lanes_at *)(z->s + (cell + i) * COLUMNS) = s[i];
        *(lanes_at *)(z->r + (cell + i) * COLUMNS) = bound[i];
    }
}

/* --- one set of loops for each width of vectors --------------------------------------------------------------- */

/* How many cells fit into the registers: TALL one below the other, FLAT side by side. */
INLINE void chain_cells(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows,
                        int64_t blocks, const ref_chain_wants WANTS, const int TALL, const int FLAT)
{
    int64_t i = 0, j = 0;
    for (; rows > 1 && i + TALL <= rows; i += TALL)
        chain_body(z, i, x, x->a ? x->a + i * x->row_stride : NULL, x->b, k0, k1, TALL, 1, WANTS);
    for (; blocks > 1 && j + FLAT <= blocks; j += FLAT)
        chain_body(z, j, x, x->a, x->b + j * COLUMNS, k0, k1, 1, FLAT, WANTS);
    for (; i < rows && rows > 1; i++)
        chain_body(z, i, x, x->a ? x->a + i * x->row_stride : NULL, x->b, k0, k1, 1, 1, WANTS);
    for (; j < blocks && rows == 1; j++)
        chain_body(z, j, x, x->a, x->b + j * COLUMNS, k0, k1, 1, 1, WANTS);
}

INLINE void chain_all(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows, int64_t blocks,
                      ref_chain_wants wants, const int TALL, const int FLAT)
{
    if (wants == REF_CHAIN_G)
        chain_cells(z, x, k0, k1, rows, blocks, REF_CHAIN_G, TALL, FLAT);
    else if (wants == REF_CHAIN_PREFIXES)
        chain_cells(z, x, k0, k1, rows, blocks, REF_CHAIN_PREFIXES, TALL, FLAT);
    else if (wants == REF_CHAIN_MAGNITUDES)
        chain_cells(z, x, k0, k1, rows, blocks, REF_CHAIN_MAGNITUDES, TALL, FLAT);
    else
        chain_cells(z, x, k0, k1, rows, blocks, REF_CHAIN_BOTH, TALL, FLAT);
}

INLINE void tensor_all(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows, int64_t blocks,
                       const ref_steps *t, const int TALL, const int FLAT)
{
    int64_t i = 0, j = 0;
    for (; rows > 1 && i + TALL <= rows; i += TALL)
        tensor_body(z, i, x, x->a ? x->a + i * x->row_stride : NULL, x->b, k0, k1, TALL, 1, t);
    for (; blocks > 1 && j + FLAT <= blocks; j += FLAT)
        tensor_body(z, j, x, x->a, x->b + j * COLUMNS, k0, k1, 1, FLAT, t);
    for (; i < rows && rows > 1; i++)
        tensor_body(z, i, x, x->a ? x->a + i * x->row_stride : NULL, x->b, k0, k1, 1, 1, t);
    for (; j < blocks && rows == 1; j++)
        tensor_body(z, j, x, x->a, x->b + j * COLUMNS, k0, k1, 1, 1, t);
}

typedef struct loops {
    void (*chain)(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows, int64_t blocks,
                  ref_chain_wants wants);
    void (*tensor)(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows, int64_t blocks,
                   const ref_steps *t);
} loops;

#define LOOPS(name, attribute, TALL, FLAT)                                                                   \
    attribute static void chain_##name(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1,             \
                                       int64_t rows, int64_t blocks, ref_chain_wants wants)                  \
    {                                                                                                        \
        chain_all(z, x, k0, k1, rows, blocks, wants, TALL, FLAT);                                            \
    }                                                                                                        \
    attribute static void tensor_##name(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1,            \
                                        int64_t rows, int64_t blocks, const ref_steps *t)                    \
    {                                                                                                        \
        tensor_all(z, x, k0, k1, rows, blocks, t, TALL / 2 > 0 ? TALL / 2 : 1, FLAT / 2 > 0 ? FLAT / 2 : 1); \
    }                                                                                                        \
    static const loops loops_##name = {chain_##name, tensor_##name};

LOOPS(any, , 1, 1)
#if defined(__x86_64__)
LOOPS(avx2, __attribute__((target("avx2"))), 2, 2)
LOOPS(avx512, __attribute__((target("avx512f"))), 8, 4)

static const loops *best(void)
{
    if (__builtin_cpu_supports("avx512f"))
        return &loops_avx512;
    return __builtin_cpu_supports("avx2") ? &loops_avx2 : &loops_any;
}
#else
static const loops *best(void)
{
    return &loops_any;
}
#endif

/* --- fewer columns than a block ------------------------------------------------------------------------------- */

INLINE double term(const ref_terms *x, int64_t row, int64_t k, int64_t c)
{
    return (x->a ? x->a[row * x->row_stride + k * x->lda] : 1.0) * x->b[k * x->ldb + c];
}

static void chain_narrow(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1)
{
    for (int64_t c = 0; c < x->columns; c++) {
        double s = 0.0, r = 0.0, g = 0.0;
        for (int64_t k = k0; k < k1; k++) {
            const double p = term(x, 0, k, c);
            s += p;
            r += fabs(s);
            g += fabs(p);
        }
        z->s[c] = s;
        z->r[c] = r;
        z->g[c] = g;
    }
}

static void tensor_narrow(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, const ref_steps *t)
{
    const double own = 0x1p-53 * (double)(t->k_step + 1);
    for (int64_t c = 0; c < x->columns; c++) {
        double s = 0.0, b = 0.0;
        for (int64_t k = k0; k < k1; k += t->k_step) {
            const int64_t end = k1 - k < t->k_step ? k1 : k + t->k_step;
            double largest = 0.0, step = 0.0;
            for (int64_t j = k; j < end; j++) {
                const double p = term(x, 0, j, c);
                largest = fabs(p) > largest ? fabs(p) : largest;
                step += p;
            }
            const double aligned = largest > fabs(s) + b ? largest : fabs(s) + b;
            s += step;
            b += (double)(t->k_step + 1) * t->align * aligned;
            b += 2.0 * t->u * (fabs(s) + b) + t->eta;
            b += own * (double)t->k_step * largest + own * aligned;
        }
        z->s[c] = s;
        z->r[c] = b;
    }
}

/* --- */

void ref_chain(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows, int64_t blocks,
               ref_chain_wants wants)
{
    if (x->columns == COLUMNS)
        best()->chain(z, x, k0, k1, rows, blocks, wants);
    else
        chain_narrow(z, x, k0, k1);
    for (int64_t i = 0; (wants & REF_CHAIN_MAGNITUDES) && i < rows; i++)
        for (int64_t c = 0; c < blocks * x->columns; c++)
            z->first[i * COLUMNS + c] = k0 < k1 ? fabs(term(x, i, k0, c)) : 0.0;
}

void ref_tensor_chain(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows, int64_t blocks,
                      const ref_steps *steps)
{
    if (x->columns == COLUMNS)
        best()->tensor(z, x, k0, k1, rows, blocks, steps);
    else
        tensor_narrow(z, x, k0, k1, steps);
}
