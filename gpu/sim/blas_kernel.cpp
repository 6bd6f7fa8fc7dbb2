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

template <class T> static void panel_portable(T *c, const T *a, const T *b, int64_t k, int64_t rows)
{
    for (int64_t r = 0; r < rows; ++r) {
        T acc[panel_cols] = {};
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

template <class T> static void add_scaled_portable(T *sum, T factor, const T *old, int64_t n)
{
    for (int64_t j = 0; j < n; ++j)
        sum[j] = fma(factor, old[j], sum[j]);
}

#if defined(__x86_64__)

/* 6 x 16 keeps 12 accumulators, two columns of b and one broadcast in the 16 vector registers of AVX2. */
constexpr int half_rows = 6;
static_assert(2 * half_rows == panel_rows, "a panel is two halves");

__attribute__((target("avx2,fma"))) static void half_f32_fma(float *c, const float *a, const float *b,
                                                             int64_t k)
{
    __m256 acc[half_rows][2];
    for (int r = 0; r < half_rows; ++r) {
        acc[r][0] = acc[r][1] = _mm256_setzero_ps();
    }
    for (int64_t i = 0; i < k; ++i) {
        const __m256 b0 = _mm256_loadu_ps(b + i * panel_cols);
        const __m256 b1 = _mm256_loadu_ps(b + i * panel_cols + 8);
#pragma GCC unroll 6
        for (int r = 0; r < half_rows; ++r) {
            const __m256 x = _mm256_broadcast_ss(a + i * panel_rows + r);
            acc[r][0] = _mm256_fmadd_ps(x, b0, acc[r][0]);
            acc[r][1] = _mm256_fmadd_ps(x, b1, acc[r][1]);
        }
    }
    for (int r = 0; r < half_rows; ++r) {
        _mm256_storeu_ps(c + r * panel_cols, acc[r][0]);
        _mm256_storeu_ps(c + r * panel_cols + 8, acc[r][1]);
    }
}

__attribute__((target("avx2,fma"))) static void half_f64_fma(double *c, const double *a, const double *b,
                                                             int64_t k)
{
    for (int64_t j = 0; j < panel_cols; j += 8) {
        __m256d acc[half_rows][2];
        for (int r = 0; r < half_rows; ++r) {
            acc[r][0] = acc[r][1] = _mm256_setzero_pd();
        }
        for (int64_t i = 0; i < k; ++i) {
            const __m256d b0 = _mm256_loadu_pd(b + i * panel_cols + j);
            const __m256d b1 = _mm256_loadu_pd(b + i * panel_cols + j + 4);
#pragma GCC unroll 6
            for (int r = 0; r < half_rows; ++r) {
                const __m256d x = _mm256_broadcast_sd(a + i * panel_rows + r);
                acc[r][0] = _mm256_fmadd_pd(x, b0, acc[r][0]);
                acc[r][1] = _mm256_fmadd_pd(x, b1, acc[r][1]);
            }
        }
        for (int r = 0; r < half_rows; ++r) {
            _mm256_storeu_pd(c + r * panel_cols + j, acc[r][0]);
            _mm256_storeu_pd(c + r * panel_cols + j + 4, acc[r][1]);
        }
    }
}

static void panel_fma(float *c, const float *a, const float *b, int64_t k, int64_t rows)
{
    half_f32_fma(c, a, b, k);
    if (rows > half_rows)
        half_f32_fma(c + half_rows * panel_cols, a + half_rows, b, k);
}

static void panel_fma(double *c, const double *a, const double *b, int64_t k, int64_t rows)
{
    half_f64_fma(c, a, b, k);
    if (rows > half_rows)
        half_f64_fma(c + half_rows * panel_cols, a + half_rows, b, k);
}

/* 12 x 16: 12 accumulators of 16 floats, or of 8 doubles for each half of the columns. */
template <int rows>
__attribute__((target("avx512f"))) static void rows_avx512(float *c, const float *a, const float *b,
                                                           int64_t k)
{
    __m512 acc[rows];
    for (int r = 0; r < rows; ++r)
        acc[r] = _mm512_setzero_ps();
    for (int64_t i = 0; i < k; ++i) {
        const __m512 y = _mm512_loadu_ps(b + i * panel_cols);
#pragma GCC unroll 12
        for (int r = 0; r < rows; ++r)
            acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[i * panel_rows + r]), y, acc[r]);
    }
    for (int r = 0; r < rows; ++r)
        _mm512_storeu_ps(c + r * panel_cols, acc[r]);
}

template <int rows>
__attribute__((target("avx512f"))) static void rows_avx512(double *c, const double *a, const double *b,
                                                           int64_t k)
{
    for (int64_t j = 0; j < panel_cols; j += 8) {
        __m512d acc[rows];
        for (int r = 0; r < rows; ++r)
            acc[r] = _mm512_setzero_pd();
        for (int64_t i = 0; i < k; ++i) {
            const __m512d y = _mm512_loadu_pd(b + i * panel_cols + j);
#pragma GCC unroll 12
            for (int r = 0; r < rows; ++r)
                acc[r] = _mm512_fmadd_pd(_mm512_set1_pd(a[i * panel_rows + r]), y, acc[r]);
        }
        for (int r = 0; r < rows; ++r)
            _mm512_storeu_pd(c + r * panel_cols + j, acc[r]);
    }
}

template <class T> static void panel_avx512(T *c, const T *a, const T *b, int64_t k, int64_t rows)
{
    if (rows > half_rows)
        rows_avx512<panel_rows>(c, a, b, k);
    else
        rows_avx512<half_rows>(c, a, b, k);
}

__attribute__((target("avx2,fma"))) static void add_scaled_fma(float *sum, float factor, const float *old,
                                                               int64_t n)
{
    for (int64_t j = 0; j < n; ++j)
        sum[j] = __builtin_fmaf(factor, old[j], sum[j]);
}

__attribute__((target("avx2,fma"))) static void add_scaled_fma(double *sum, double factor, const double *old,
                                                               int64_t n)
{
    for (int64_t j = 0; j < n; ++j)
        sum[j] = __builtin_fma(factor, old[j], sum[j]);
}

static int best_path()
{
    static const int best = !blas_has_fma() ? 0 : __builtin_cpu_supports("avx512f") ? 2 : 1;
    return best;
}

template <class T> static bool panel_by(int path, T *c, const T *a, const T *b, int64_t k, int64_t rows)
{
    if (path > best_path())
        return false;
    if (path == 2)
        panel_avx512(c, a, b, k, rows);
    else if (path == 1)
        panel_fma(c, a, b, k, rows);
    else
        panel_portable(c, a, b, k, rows);
    return true;
}

#else

static int best_path()
{
    return 0;
}

template <class T> static bool panel_by(int path, T *c, const T *a, const T *b, int64_t k, int64_t rows)
{
    if (path != 0)
        return false;
    panel_portable(c, a, b, k, rows);
    return true;
}

#endif

template <class T> static void add_scaled(T *sum, T factor, const T *old, int64_t n)
{
#if defined(__x86_64__)
    if (blas_has_fma()) {
        add_scaled_fma(sum, factor, old, n);
        return;
    }
#endif
    add_scaled_portable(sum, factor, old, n);
}

void blas_panel(float *c, const float *a, const float *b, int64_t k, int64_t rows)
{
    panel_by(best_path(), c, a, b, k, rows);
}

void blas_panel(double *c, const double *a, const double *b, int64_t k, int64_t rows)
{
    panel_by(best_path(), c, a, b, k, rows);
}

bool blas_panel_by(int path, float *c, const float *a, const float *b, int64_t k, int64_t rows)
{
    return panel_by(path, c, a, b, k, rows);
}

bool blas_panel_by(int path, double *c, const double *a, const double *b, int64_t k, int64_t rows)
{
    return panel_by(path, c, a, b, k, rows);
}

void blas_add_scaled(float *sum, float factor, const float *old, int64_t n)
{
    add_scaled(sum, factor, old, n);
}

void blas_add_scaled(double *sum, double factor, const double *old, int64_t n)
{
    add_scaled(sum, factor, old, n);
}

} /* namespace sim */
