/* Inner loops of the sums: full blocks of columns in the widest vectors of the machine, few columns one by one. */
#include "ref/bounds/chain.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { COLUMNS = REF_CHAIN_COLUMNS, MAX_VECTORS = 8 };

/* max(|p|, m); m where p is not a number */
static inline double larger(double p, double m)
{
    return fabs(p) > m ? fabs(p) : m;
}

/* --- one set of loops for each width of vectors ---------------------------------------------------------------
 *
 * The bits are the same in all that fuse, and the same in all that do not.  A fused product only removes a
 * rounding of the reference's own: 2^-53 n relative, which the widening of u (2^-20 in F32, a factor 2 in F64)
 * covers both ways (ref/bounds/interval.h). */

/* Two fifths of what assay certify of attention would take under the address sanitizer.  Without it: corners() below has read the first
 * and the last address of everything that the loops read, and what they write is a ref_cells. */
#if defined(__SANITIZE_ADDRESS__)
#define UNCHECKED __attribute__((no_sanitize("address", "undefined")))
#else
#define UNCHECKED
#endif

#define LOOPS(name) name##_any
#define TARGET UNCHECKED
#define LANES 2
#if defined(__FP_FAST_FMA)
#define FMA(a, b, c) ((lanes_any){fma((a)[0], (b)[0], (c)[0]), fma((a)[1], (b)[1], (c)[1])})
#define FMA1(a, b, c) fma(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#define FMA1(a, b, c) ((a) * (b) + (c))
#endif
#define ALL(x) ((lanes_any){x, x})
#define LARGER(p, m) ((lanes_any){larger((p)[0], (m)[0]), larger((p)[1], (m)[1])})
#define TALL 1
#define FLAT 1
#include "ref/bounds/chain_loops.h"

#if defined(__x86_64__)
#define LOOPS(name) name##_avx2
#define TARGET UNCHECKED __attribute__((target("avx2,fma")))
#define LANES 4
#define FMA(a, b, c) ((lanes_avx2)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#define FMA1(a, b, c) __builtin_fma(a, b, c)
#define ALL(x) ((lanes_avx2)_mm256_set1_pd(x))
#define LARGER(p, m) ((lanes_avx2)_mm256_max_pd((__m256d)ABS(p), (__m256d)(m)))
#define TALL 2
#define FLAT 2
#include "ref/bounds/chain_loops.h"

#define LOOPS(name) name##_avx512
#define TARGET UNCHECKED __attribute__((target("avx512f,fma")))
#define LANES 8
#define FMA(a, b, c) ((lanes_avx512)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#define FMA1(a, b, c) __builtin_fma(a, b, c)
#define ALL(x) ((lanes_avx512)_mm512_set1_pd(x))
#define LARGER(p, m) ((lanes_avx512)_mm512_max_pd((__m512d)ABS(p), (__m512d)(m)))
#define TALL 8
#define FLAT 8
#include "ref/bounds/chain_loops.h"
#endif

typedef struct loops {
    void (*chain)(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows, int64_t blocks,
                  ref_chain_wants wants);
    void (*tensor)(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows, int64_t blocks,
                   const ref_steps *t);
    void (*narrow)(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1);
} loops;

static loops best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma"))
        return (loops){chain_avx512, tensor_avx512, narrow_avx512};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return (loops){chain_avx2, tensor_avx2, narrow_avx2};
#endif
    return (loops){chain_any, tensor_any, narrow_any};
}

/* --- fewer columns than a block ------------------------------------------------------------------------------- */

static double term(const ref_terms *x, int64_t row, int64_t k, int64_t c)
{
    return (x->a ? x->a[row * x->row_stride + k * x->lda] : 1.0) * x->b[k * x->ldb + c];
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
                largest = larger(p, largest);
                step += p;
            }
            const double aligned = larger(largest, fabs(s) + b);
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

/* The addresses are affine in row, k and column: these are the smallest and the largest. */
static void corners(const ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows,
                    int64_t blocks)
{
#if defined(__SANITIZE_ADDRESS__)
    assert(rows >= 1 && blocks >= 1 && (rows == 1 || blocks == 1));
    assert(rows * blocks <= REF_CHAIN_CELLS && x->columns <= COLUMNS);
    volatile double seen = z->s[0] + z->own[REF_CHAIN_TILE - 1];
    for (int last_k = 0; k0 < k1 && last_k < 2; last_k++) {
        const int64_t k = last_k ? k1 - 1 : k0;
        seen = x->b[k * x->ldb] + x->b[k * x->ldb + blocks * x->columns - 1];
        if (x->a)
            seen = x->a[k * x->lda] + x->a[(rows - 1) * x->row_stride + k * x->lda];
        if (x->error)
            seen = x->error[k];
    }
    (void)seen;
#else
    (void)z, (void)x, (void)k0, (void)k1, (void)rows, (void)blocks;
#endif
}

void ref_chain(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows, int64_t blocks,
               ref_chain_wants wants)
{
    corners(z, x, k0, k1, rows, blocks);
    if (x->columns == COLUMNS)
        best().chain(z, x, k0, k1, rows, blocks, wants);
    else
        best().narrow(z, x, k0, k1);
    for (int64_t i = 0; (wants & REF_CHAIN_MAGNITUDES) && !x->go_on && i < rows; i++)
        for (int64_t c = 0; c < blocks * x->columns; c++)
            z->first[i * COLUMNS + c] = k0 < k1 ? fabs(term(x, i, k0, c)) : 0.0;
}

void ref_tensor_chain(ref_cells *z, const ref_terms *x, int64_t k0, int64_t k1, int64_t rows, int64_t blocks,
                      const ref_steps *steps)
{
    corners(z, x, k0, k1, rows, blocks);
    if (x->columns == COLUMNS)
        best().tensor(z, x, k0, k1, rows, blocks, steps);
    else
        tensor_narrow(z, x, k0, k1, steps);
}
