/* The arithmetic of the simulated cuBLASLt, apart from its interface. */
#ifndef ASSAY_SIM_BLAS_HPP
#define ASSAY_SIM_BLAS_HPP

#include <stddef.h>
#include <stdint.h>

namespace sim
{

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
