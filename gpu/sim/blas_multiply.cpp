/* The product itself: packs the operands into strips, runs the panels, applies alpha, beta and bias, rounds
 * once. */
#include "blas.hpp"

#include "assay_sim_float.h"

#include <math.h>
#include <string.h>
#include <vector>

namespace sim
{

size_t blas_size_of(int type)
{
    switch (type) {
    case CUDA_R_64F:
        return 8;
    case CUDA_R_32F:
        return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF:
        return 2;
    default:
        return 0;
    }
}

double blas_load(const unsigned char *p, int type)
{
    float f;
    double d;
    uint16_t h;
    switch (type) {
    case CUDA_R_64F:
        memcpy(&d, p, 8);
        return d;
    case CUDA_R_32F:
        memcpy(&f, p, 4);
        return static_cast<double>(f);
    default:
        memcpy(&h, p, 2);
        return static_cast<double>(type == CUDA_R_16F ? assay_sim_f16_to_f32(h) : assay_sim_bf16_to_f32(h));
    }
}

static inline void store(unsigned char *p, int type, double v)
{
    if (type == CUDA_R_64F) {
        memcpy(p, &v, 8);
        return;
    }
    const float f = static_cast<float>(v);
    if (type == CUDA_R_32F) {
        memcpy(p, &f, 4);
        return;
    }
    const uint16_t h = type == CUDA_R_16F ? assay_sim_f32_to_f16(f) : assay_sim_f32_to_bf16(f);
    memcpy(p, &h, 2);
}

/* To TF32: 10 mantissa bits, nearest even; infinities and NaNs pass. */
static float to_tf32(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7f800000u) == 0x7f800000u) {
        return f;
    }
    u = (u + 0xfffu + (u >> 13 & 1u)) & ~0x1fffu;
    memcpy(&f, &u, 4);
    return f;
}

/* Element (i, j) of a stored matrix lies at i * row_step + j * col_step elements. */
static void steps(const blas_layout &l, int64_t *row_step, int64_t *col_step)
{
    *row_step = l.order == CUBLASLT_ORDER_COL ? 1 : l.ld;
    *col_step = l.order == CUBLASLT_ORDER_COL ? l.ld : 1;
}

/* Reads of each stored type, widened exactly; a type of its own each, so that the packing loop has no branch.
 */
struct from_f32 {
    typedef float element;
    static float widen(float v)
    {
        return v;
    }
};
struct from_tf32 {
    typedef float element;
    static float widen(float v)
    {
        return to_tf32(v);
    }
};
struct from_f64 {
    typedef double element;
    static double widen(double v)
    {
        return v;
    }
};
struct from_f16 {
    typedef uint16_t element;
    static float widen(uint16_t v)
    {
        return assay_sim_f16_to_f32(v);
    }
};
struct from_bf16 {
    typedef uint16_t element;
    static float widen(uint16_t v)
    {
        return assay_sim_bf16_to_f32(v);
    }
};

/* Packs one strip of op(X): `live` of `width` rows of A or columns of B, the rest zeros. */
template <class T, int64_t width, class From>
static void pack_from(T *to, const unsigned char *base, int64_t kept_step, int64_t k_step, int64_t live,
                      int64_t k)
{
    const size_t step = static_cast<size_t>(k_step) * sizeof(typename From::element);
    for (int64_t r = 0; r < width; ++r) {
        const unsigned char *from =
            base + (r < live ? static_cast<size_t>(r * kept_step) * sizeof(typename From::element) : 0);
        for (int64_t i = 0; i < k; ++i) {
            typename From::element v;
            memcpy(&v, from + static_cast<size_t>(i) * step, sizeof v);
            to[i * width + r] = r < live ? static_cast<T>(From::widen(v)) : T(0);
        }
    }
}

template <class T, int64_t width>
static void pack(T *to, const blas_product &p, const blas_layout &l, const unsigned char *base,
                 int64_t kept_step, int64_t k_step, int64_t first, int64_t kept)
{
    const int64_t live = kept - first < width ? kept - first : width;
    base += static_cast<size_t>(first * kept_step) * blas_size_of(l.type);
    if (l.type == CUDA_R_64F) {
        pack_from<T, width, from_f64>(to, base, kept_step, k_step, live, p.k);
    } else if (l.type == CUDA_R_16F) {
        pack_from<T, width, from_f16>(to, base, kept_step, k_step, live, p.k);
    } else if (l.type == CUDA_R_16BF) {
        pack_from<T, width, from_bf16>(to, base, kept_step, k_step, live, p.k);
    } else if (p.tf32) {
        pack_from<T, width, from_tf32>(to, base, kept_step, k_step, live, p.k);
    } else {
        pack_from<T, width, from_f32>(to, base, kept_step, k_step, live, p.k);
    }
}

static float combine(const blas_product &p, float acc, float c, float bias)
{
    float r = p.alpha != 1.0 ? static_cast<float>(p.alpha) * acc : acc;
    if (p.beta != 0.0) {
        r = fmaf(static_cast<float>(p.beta), c, r);
    }
    return p.how.bias ? r + bias : r;
}

static double combine(const blas_product &p, double acc, double c, double bias)
{
    double r = p.alpha != 1.0 ? p.alpha * acc : acc;
    if (p.beta != 0.0) {
        r = fma(p.beta, c, r);
    }
    return p.how.bias ? r + bias : r;
}

static void panel(float *c, const float *a, const float *b, int64_t k)
{
    blas_panel_f32(c, a, b, k);
}

static void panel(double *c, const double *a, const double *b, int64_t k)
{
    blas_panel_f64(c, a, b, k);
}

template <class T> static void multiply(const blas_product &p, int64_t batch)
{
    int64_t a_row, a_col, b_row, b_col, c_row, c_col, d_row, d_col;
    static thread_local std::vector<T> a, b; /* kept: fresh pages cost more than the packing */
    T tile[panel_rows * panel_cols];
    steps(p.a, &a_row, &a_col);
    steps(p.b, &b_row, &b_col);
    steps(p.c, &c_row, &c_col);
    steps(p.d, &d_row, &d_col);
    const bool ta = p.how.op_a != CUBLAS_OP_N, tb = p.how.op_b != CUBLAS_OP_N;
    const unsigned char *pa = p.pa + static_cast<size_t>(batch * p.a.stride) * blas_size_of(p.a.type);
    const unsigned char *pb = p.pb + static_cast<size_t>(batch * p.b.stride) * blas_size_of(p.b.type);
    const unsigned char *pc =
        p.pc ? p.pc + static_cast<size_t>(batch * p.c.stride) * blas_size_of(p.c.type) : nullptr;
    unsigned char *pd = p.pd + static_cast<size_t>(batch * p.d.stride) * blas_size_of(p.d.type);
    const unsigned char *bias =
        p.how.bias ? static_cast<const unsigned char *>(p.how.bias) +
                         static_cast<size_t>(batch * p.how.bias_stride) * blas_size_of(p.how.bias_type)
                   : nullptr;
    a.resize(static_cast<size_t>((p.m + panel_rows - 1) / panel_rows * panel_rows * p.k) + 1);
    b.resize(static_cast<size_t>(panel_cols * p.k) + 1);
    for (int64_t i0 = 0; i0 < p.m; i0 += panel_rows) {
        pack<T, panel_rows>(a.data() + i0 * p.k, p, p.a, pa, ta ? a_col : a_row, ta ? a_row : a_col, i0, p.m);
    }
    for (int64_t j0 = 0; j0 < p.n; j0 += panel_cols) {
        pack<T, panel_cols>(b.data(), p, p.b, pb, tb ? b_row : b_col, tb ? b_col : b_row, j0, p.n);
        for (int64_t i0 = 0; i0 < p.m; i0 += panel_rows) {
            panel(tile, a.data() + i0 * p.k, b.data(), p.k);
            for (int64_t i = i0; i < p.m && i < i0 + panel_rows; ++i) {
                const T add =
                    bias
                        ? static_cast<T>(blas_load(
                              bias + static_cast<size_t>(i) * blas_size_of(p.how.bias_type), p.how.bias_type))
                        : T(0);
                for (int64_t j = j0; j < p.n && j < j0 + panel_cols; ++j) {
                    const T old =
                        p.beta != 0.0
                            ? static_cast<T>(blas_load(pc + static_cast<size_t>(i * c_row + j * c_col) *
                                                                blas_size_of(p.c.type),
                                                       p.c.type))
                            : T(0);
                    const T r = combine(p, tile[(i - i0) * panel_cols + j - j0], old, add);
                    store(pd + static_cast<size_t>(i * d_row + j * d_col) * blas_size_of(p.d.type), p.d.type,
                          static_cast<double>(r));
                }
            }
        }
    }
}

void blas_multiply(const blas_product &p, int64_t batch)
{
    if (p.d.type == CUDA_R_64F) {
        multiply<double>(p, batch);
    } else {
        multiply<float>(p, batch);
    }
}

} /* namespace sim */
