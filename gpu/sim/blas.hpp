/* The arithmetic of the simulated cuBLASLt, apart from its interface. */
#ifndef ASSAY_SIM_BLAS_HPP
#define ASSAY_SIM_BLAS_HPP

#include "cublasLt.h"

#include <stddef.h>
#include <stdint.h>

namespace sim
{

/* What the opaque descriptors hold. */
struct blas_layout {
    int32_t type, order;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batch, set;
    int64_t stride;
};

struct blas_desc {
    int32_t compute, scale, pointer_mode, op_a, op_b, epilogue, bias_type, set;
    const void *bias;
    int64_t bias_stride;
};

/* Where the chain over k begins, and which way it goes. */
enum blas_order { BLAS_ASCENDING, BLAS_DESCENDING, BLAS_FROM_MIDDLE };

/* Everything that the product needs, copied at the call. */
struct blas_product {
    blas_layout a, b, c, d;
    blas_desc how;
    double alpha, beta;
    const unsigned char *pa, *pb, *pc;
    unsigned char *pd;
    int64_t m, n, k;
    bool tf32;
    blas_order order;
    void *workspace; /* written with 0xff: it is the library's while a product runs */
    size_t workspace_bytes;
};

/* What an initialized descriptor, layout, preference or algorithm begins or ends with. */
constexpr int32_t blas_is_set = 0x5e7;

struct blas_preference {
    uint64_t workspace;
    uint32_t align[4]; /* of A, B, C, D, in bytes */
    int32_t set;
};

/* Writes at most `most` of the algorithms that take the product; returns how many. */
int blas_offer(const blas_desc &how, const blas_preference &wish, int most,
               cublasLtMatmulHeuristicResult_t *offered);
/* Gives the product the order and workspace of its algorithm (NULL: the library's choice, as in cuBLASLt), or refuses the call. */
cublasStatus_t blas_take(const cublasLtMatmulAlgo_t *given, void *workspace, size_t workspace_bytes,
                         blas_product &p);

size_t blas_size_of(int type); /* of an element; 0: not supported */
double blas_load(const unsigned char *p, int type);
/* One batch of the product: D = alpha op(A) op(B) + beta C + bias. */
void blas_multiply(const blas_product &p, int64_t batch);

/* Panels: one operand is cut into strips of panel_rows rows of the result, the other into strips of panel_cols columns; within
 * a strip k is the slow index. Strips are padded with zeros to full width. */
constexpr int64_t panel_rows = 12;
constexpr int64_t panel_cols = 16;

/* c[r * panel_cols + j] = the chain fma(a[k][r], b[k][j], .) over k in the order in which it is packed, starting from 0, for r < rows at least.
 * a [k][panel_rows], b [k][panel_cols], c [panel_rows][panel_cols].  The vector and the scalar paths give
 * equal bits, because all perform the same chain of correctly rounded operations per element. */
void blas_panel(float *c, const float *a, const float *b, int64_t k, int64_t rows);
void blas_panel(double *c, const double *a, const double *b, int64_t k, int64_t rows);
/* The same by one path: 0 portable, 1 AVX2 and FMA, 2 AVX-512; false: the CPU does not have it. */
bool blas_panel_by(int path, float *c, const float *a, const float *b, int64_t k, int64_t rows);
bool blas_panel_by(int path, double *c, const double *a, const double *b, int64_t k, int64_t rows);
/* sum[j] = fma(factor, old[j], sum[j]) */
void blas_add_scaled(float *sum, float factor, const float *old, int64_t n);
void blas_add_scaled(double *sum, double factor, const double *old, int64_t n);
bool blas_has_fma();

} /* namespace sim */

#endif
