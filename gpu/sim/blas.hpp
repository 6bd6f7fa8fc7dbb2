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

/* Everything that the product needs, copied at the call. */
struct blas_product {
    blas_layout a, b, c, d;
    blas_desc how;
    double alpha, beta;
    const unsigned char *pa, *pb, *pc;
    unsigned char *pd;
    int64_t m, n, k;
    bool tf32;
};

size_t blas_size_of(int type); /* of an element; 0: not supported */
double blas_load(const unsigned char *p, int type);
/* One batch of the product: D = alpha op(A) op(B) + beta C + bias. */
void blas_multiply(const blas_product &p, int64_t batch);

/* Panels: A is cut into strips of panel_rows rows, B into strips of panel_cols columns; within a strip k is
 * the slow index. Strips are padded with zeros to full width. */
constexpr int64_t panel_rows = 6;
constexpr int64_t panel_cols = 16;

/* c[r * panel_cols + j] = the chain fma(a[k][r], b[k][j], .) over k ascending, starting from 0.
 * a [k][panel_rows], b [k][panel_cols], c [panel_rows][panel_cols].  The vector and the scalar path give
 * equal bits, because both perform the same chain of correctly rounded operations per element. */
void blas_panel_f32(float *c, const float *a, const float *b, int64_t k);
void blas_panel_f32_portable(float *c, const float *a, const float *b, int64_t k);
void blas_panel_f64(double *c, const double *a, const double *b, int64_t k);
bool blas_has_fma();

} /* namespace sim */

#endif
