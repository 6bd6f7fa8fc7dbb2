/* The inner product panels: one correctly rounded fused multiply-add per k, in order, for every element by
 * itself. */
#include "blas.hpp"
#include "sim.hpp"

#include <math.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sim
{

bool blas_has_fma()
{
    static const bool yes = config().fma;
    return yes;
}

void blas_panel_f32_portable(float *c, const float *a, const float *b, int64_t k)
{
    for (int64_t r = 0; r < panel_rows; ++r) {
        float acc[panel_cols] = {};
        for (int64_t i = 0; i < k; ++i) {
            for (int64_t j = 0; j < panel_cols; ++j) {
                acc[j] = fmaf(a[i * panel_rows + r], b[i * panel_cols + j], acc[j]);
            }
        }
        for (int64_t j = 0; j < panel_cols; ++j) {
            c[r * panel_cols + j] = acc[j];
        }
    }
}

static void panel_f64_portable(double *c, const double *a, const double *b, int64_t k)
{
    for (int64_t r = 0; r < panel_rows; ++r) {
        double acc[panel_cols] = {};
        for (int64_t i = 0; i < k; ++i) {
            for (int64_t j = 0; j < panel_cols; ++j) {
                acc[j] = fma(a[i * panel_rows + r], b[i * panel_cols + j], acc[j]);
            }
        }
        for (int64_t j = 0; j < panel_cols; ++j) {
            c[r * panel_cols + j] = acc[j];
        }
    }
}

#if defined(__x86_64__)

/* 6 x 16 keeps 12 accumulators, two columns of b and one broadcast in the 16 vector registers. */
__attribute__((target("avx2,fma"))) static void panel_f32_fma(float *c, const float *a, const float *b,
                                                              int64_t k)
{
    __m256 acc[panel_rows][2];
    for (int r = 0; r < panel_rows; ++r) {
        acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    }
    for (int64_t i = 0; i < k; ++i) {
        const __m256 b0 = _mm256_loadu_ps(b + i * panel_cols);
        const __m256 b1 = _mm256_loadu_ps(b + i * panel_cols + 8);
#pragma GCC unroll 6
        for (int r = 0; r < panel_rows; ++r) {
            const __m256 x = _mm256_broadcast_ss(a + i * panel_rows + r);
            acc[r][0] = _mm256_fmadd_ps(x, b0, acc[r][0]);
            acc[r][1] = _mm256_fmadd_ps(x, b1, acc[r][1]);
        }
    }
    for (int r = 0; r < panel_rows; ++r) {
        _mm256_storeu_ps(c + r * panel_cols, acc[r][0]);
        _mm256_storeu_ps(c + r * panel_cols + 8, acc[r][1]);
    }
}

__attribute__((target("avx2,fma"))) static void panel_f64_fma(double *c, const double *a, const double *b,
                                                              int64_t k)
{
    for (int64_t j = 0; j < panel_cols; j += 8) {
        __m256d acc[panel_rows][2];
        for (int r = 0; r < panel_rows; ++r) {
            acc[r][0] = acc[r][1] = _mm256_setzero_pd();
        }
        for (int64_t i = 0; i < k; ++i) {
            const __m256d b0 = _mm256_loadu_pd(b + i * panel_cols + j);
            const __m256d b1 = _mm256_loadu_pd(b + i * panel_cols + j + 4);
#pragma GCC unroll 6
            for (int r = 0; r < panel_rows; ++r) {
                const __m256d x = _mm256_broadcast_sd(a + i * panel_rows + r);
                acc[r][0] = _mm256_fmadd_pd(x, b0, acc[r][0]);
                acc[r][1] = _mm256_fmadd_pd(x, b1, acc[r][1]);
            }
        }
        for (int r = 0; r < panel_rows; ++r) {
            _mm256_storeu_pd(c + r * panel_cols + j, acc[r][0]);
            _mm256_storeu_pd(c + r * panel_cols + j + 4, acc[r][1]);
        }
    }
}

#endif

void blas_panel_f32(float *c, const float *a, const float *b, int64_t k)
{
#if defined(__x86_64__)
    if (blas_has_fma()) {
        panel_f32_fma(c, a, b, k);
        return;
    }
#endif
    blas_panel_f32_portable(c, a, b, k);
}

void blas_panel_f64(double *c, const double *a, const double *b, int64_t k)
{
#if defined(__x86_64__)
    if (blas_has_fma()) {
        panel_f64_fma(c, a, b, k);
        return;
    }
#endif
    panel_f64_portable(c, a, b, k);
}

} /* namespace sim */
