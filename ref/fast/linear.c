/* Products of ref/ops/linear.c through OpenBLAS, in parallel.
 *
 * Every product is cut in tiles of fixed size, one dgemm call for each, whatever the number of threads: the
 * bits of a result depend on the shapes alone as long as OpenBLAS itself runs on one thread
 * (OPENBLAS_NUM_THREADS=1 or openblas_set_num_threads(1), the caller's job). */
#include "ref/fast.h"
#include "ref/fast/vector.h"

#include <cblas.h>
#include <limits.h>

enum { TILE_ROWS = 64, TILE_COLUMNS = 512 };

/* One product C [m,n] (ldc n) = op(A) op(B) + beta C, inner length k. */
typedef struct product {
    double *c;
    const double *a, *b;
    int64_t m, n, k;
    CBLAS_TRANSPOSE trans_a, trans_b;
    double beta;
} product;

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void product_tile(const product *p, int64_t i0, int64_t j0)
{
    const int64_t m = min64(TILE_ROWS, p->m - i0), n = min64(TILE_COLUMNS, p->n - j0);
    const bool ta = p->trans_a == CblasTrans, tb = p->trans_b == CblasTrans;
    const int64_t lda = ta ? p->m : p->k, ldb = tb ? p->k : p->n;
    const double *a = ta ? p->a + i0 : p->a + i0 * p->k;
    const double *b = tb ? p->b + j0 * p->k : p->b + j0;
    cblas_dgemm(CblasRowMajor, p->trans_a, p->trans_b, (int)m, (int)n, (int)p->k, 1.0, a, (int)lda, b,
                (int)ldb, p->beta, p->c + i0 * p->n + j0, (int)p->n);
}

/* Hands every tile to the surrounding team as a task (a plain loop outside a parallel region). */
static void product_spawn(const product *p)
{
    assert(p->m >= 0 && p->n >= 0 && p->k >= 0);
    assert(p->m <= INT_MAX && p->n <= INT_MAX && p->k <= INT_MAX);
    if (p->m == 0 || p->n == 0)
        return;
    if (p->k == 0) {
        for (int64_t i = 0; i < p->m * p->n && p->beta == 0.0; i++)
            p->c[i] = 0.0;
        return;
    }
    const product q = *p;
    for (int64_t i0 = 0; i0 < q.m; i0 += TILE_ROWS)
        for (int64_t j0 = 0; j0 < q.n; j0 += TILE_COLUMNS) {
#pragma omp task firstprivate(q, i0, j0)
            product_tile(&q, i0, j0);
        }
}

static void product_run(const product *p)
{
    const bool parallel = ref_vec_parallel(p->m * p->n * p->k) && (p->m > TILE_ROWS || p->n > TILE_COLUMNS);
#pragma omp parallel if (parallel)
#pragma omp single
    product_spawn(p);
}

void ref_fast_linear_fwd(double *y, const double *x, const double *w, const double *bias, int64_t t,
                         int64_t n, int64_t k)
{
    const product p = {y, x, w, t, n, k, CblasNoTrans, CblasTrans, 0.0};
    product_run(&p);
    for (int64_t i = 0; bias && i < t; i++)
        for (int64_t j = 0; j < n; j++)
            y[i * n + j] += bias[j];
}

void ref_fast_linear_bwd_input(double *dx, const double *dy, const double *w, int64_t t, int64_t n, int64_t k)
{
    const product p = {dx, dy, w, t, k, n, CblasNoTrans, CblasNoTrans, 0.0};
    product_run(&p);
}

void ref_fast_linear_bwd_weight(double *dweight, const double *dy, const double *x, int64_t t, int64_t n,
                                int64_t k)
{
    const product p = {dweight, dy, x, n, k, t, CblasTrans, CblasNoTrans, 1.0};
    product_run(&p);
}

typedef enum { GROUPED_FWD, GROUPED_BWD_INPUT, GROUPED_BWD_WEIGHT } grouped_kind;

/* One product for each expert over its rows; all tiles of all experts are one pool of tasks. */
static void grouped_run(grouped_kind kind, double *out, const double *rows, const double *other,
                        const int64_t *tokens_per_expert, int64_t e, int64_t n, int64_t k)
{
    int64_t total = 0;
    for (int64_t i = 0; i < e; i++) {
        assert(tokens_per_expert[i] >= 0);
        total += tokens_per_expert[i];
    }
#pragma omp parallel if (ref_vec_parallel(total * n * k))
#pragma omp single
    {
        int64_t r = 0; /* first row of expert i */
        for (int64_t i = 0; i < e; i++) {
            const int64_t t = tokens_per_expert[i];
            product p = {out + r * n, rows + r * k, other + i * n * k, t,  n,
                         k,           CblasNoTrans, CblasTrans,        0.0};
            if (kind == GROUPED_BWD_INPUT)
                p = (product){out + r * k, rows + r * n, other + i * n * k, t,  k,
                              n,           CblasNoTrans, CblasNoTrans,      0.0};
            else if (kind == GROUPED_BWD_WEIGHT)
                p = (product){out + i * n * k, rows + r * n, other + r * k, n, k, t, CblasTrans,
                              CblasNoTrans,    1.0};
            product_spawn(&p);
            r += t;
        }
    }
}

void ref_fast_grouped_linear_fwd(double *y, const double *x, const double *w,
                                 const int64_t *tokens_per_expert, int64_t e, int64_t n, int64_t k)
{
    grouped_run(GROUPED_FWD, y, x, w, tokens_per_expert, e, n, k);
}

void ref_fast_grouped_linear_bwd_input(double *dx, const double *dy, const double *w,
                                       const int64_t *tokens_per_expert, int64_t e, int64_t n, int64_t k)
{
    grouped_run(GROUPED_BWD_INPUT, dx, dy, w, tokens_per_expert, e, n, k);
}

void ref_fast_grouped_linear_bwd_weight(double *dweight, const double *dy, const double *x,
                                        const int64_t *tokens_per_expert, int64_t e, int64_t n, int64_t k)
{
    grouped_run(GROUPED_BWD_WEIGHT, dweight, dy, x, tokens_per_expert, e, n, k);
}
