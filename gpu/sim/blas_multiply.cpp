/* The product itself: packs the operands into strips, runs the panels, applies alpha, beta and bias, rounds
 * once. */
#include "blas.hpp"

#include "assay_sim_float.h"

#include <string.h>
#include <utility>
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

/* n elements of one type, `step` elements apart, widened exactly or rounded once. */
template <class T> static void load_row(T *to, const unsigned char *from, int type, int64_t step, int64_t n)
{
    const size_t bytes = static_cast<size_t>(step) * blas_size_of(type);
    for (int64_t j = 0; j < n; ++j)
        to[j] = static_cast<T>(blas_load(from + static_cast<size_t>(j) * bytes, type));
}

template <class T> static void store_row(unsigned char *to, int type, int64_t step, const T *from, int64_t n)
{
    const size_t bytes = static_cast<size_t>(step) * blas_size_of(type);
    if (type == CUDA_R_64F) {
        for (int64_t j = 0; j < n; ++j) {
            const double v = static_cast<double>(from[j]);
            memcpy(to + static_cast<size_t>(j) * bytes, &v, 8);
        }
    } else if (type == CUDA_R_32F) {
        for (int64_t j = 0; j < n; ++j) {
            const float v = static_cast<float>(from[j]);
            memcpy(to + static_cast<size_t>(j) * bytes, &v, 4);
        }
    } else {
        for (int64_t j = 0; j < n; ++j) {
            const float v = static_cast<float>(from[j]);
            const uint16_t h = type == CUDA_R_16F ? assay_sim_f32_to_f16(v) : assay_sim_f32_to_bf16(v);
            memcpy(to + static_cast<size_t>(j) * bytes, &h, 2);
        }
    }
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

/* The i-th index over k. */
static int64_t index_of(blas_order order, int64_t i, int64_t k)
{
    if (order == BLAS_ASCENDING)
        return i;
    return order == BLAS_DESCENDING ? k - 1 - i : (i + k / 2) % k;
}

/* Packs one strip of op(X): `live` of `width` rows of A or columns of B, the rest zeros. */
template <class T, int64_t width, class From>
static void pack_from(T *to, const unsigned char *base, int64_t kept_step, int64_t k_step, int64_t live,
                      int64_t k, blas_order order)
{
    typename From::element v;
    for (int64_t i = 0; i < k; ++i) {
        const unsigned char *from = base + static_cast<size_t>(index_of(order, i, k) * k_step) * sizeof v;
        if (live == width) {
            for (int64_t r = 0; r < width; ++r) {
                memcpy(&v, from + static_cast<size_t>(r * kept_step) * sizeof v, sizeof v);
                to[i * width + r] = static_cast<T>(From::widen(v));
            }
            continue;
        }
        for (int64_t r = 0; r < live; ++r) {
            memcpy(&v, from + static_cast<size_t>(r * kept_step) * sizeof v, sizeof v);
            to[i * width + r] = static_cast<T>(From::widen(v));
        }
        for (int64_t r = live; r < width; ++r)
            to[i * width + r] = T(0);
    }
}

/* What becomes of n sums of one row: alpha, beta and the old values, the bias of the row or of each column. */
template <class T>
static void combine(const blas_product &p, T *sum, const T *old, const T *bias, bool bias_of_row, int64_t n)
{
    if (p.alpha != 1.0) {
        for (int64_t j = 0; j < n; ++j)
            sum[j] = static_cast<T>(p.alpha) * sum[j];
    }
    if (p.beta != 0.0)
        blas_add_scaled(sum, static_cast<T>(p.beta), old, n);
    if (p.how.bias) {
        for (int64_t j = 0; j < n; ++j)
            sum[j] = sum[j] + bias[bias_of_row ? 0 : j];
    }
}

/* A matrix as the product walks it: `kept` is the row of the result, or its column, that an element belongs to. */
struct operand {
    const blas_layout *layout;
    const unsigned char *data;
    int64_t kept, kept_step, k_step;
};

static operand operand_of(const blas_layout &l, const unsigned char *data, int64_t batch, int64_t kept,
                          bool transposed, bool is_b)
{
    int64_t row, col;
    steps(l, &row, &col);
    return operand{&l, data + static_cast<size_t>(batch * l.stride) * blas_size_of(l.type), kept,
                   transposed != is_b ? col : row, transposed != is_b ? row : col};
}

template <class T, int64_t width>
static void pack(T *to, const blas_product &p, const operand &o, int64_t first)
{
    const int64_t live = o.kept - first < width ? o.kept - first : width;
    const int type = o.layout->type;
    const unsigned char *base = o.data + static_cast<size_t>(first * o.kept_step) * blas_size_of(type);
    if (type == CUDA_R_64F) {
        pack_from<T, width, from_f64>(to, base, o.kept_step, o.k_step, live, p.k, p.order);
    } else if (type == CUDA_R_16F) {
        pack_from<T, width, from_f16>(to, base, o.kept_step, o.k_step, live, p.k, p.order);
    } else if (type == CUDA_R_16BF) {
        pack_from<T, width, from_bf16>(to, base, o.kept_step, o.k_step, live, p.k, p.order);
    } else if (p.tf32) {
        pack_from<T, width, from_tf32>(to, base, o.kept_step, o.k_step, live, p.k, p.order);
    } else {
        pack_from<T, width, from_f32>(to, base, o.kept_step, o.k_step, live, p.k, p.order);
    }
}

template <class T> static void multiply(const blas_product &p, int64_t batch)
{
    int64_t c_row, c_col, d_row, d_col;
    static thread_local std::vector<T> a, b; /* kept: fresh pages cost more than the packing */
    alignas(64) T tile[panel_rows * panel_cols];
    T old[panel_cols] = {}, add[panel_cols] = {};
    steps(p.c, &c_row, &c_col);
    steps(p.d, &d_row, &d_col);
    operand x = operand_of(p.a, p.pa, batch, p.m, p.how.op_a != CUBLAS_OP_N, false);
    operand y = operand_of(p.b, p.pb, batch, p.n, p.how.op_b != CUBLAS_OP_N, true);
    /* The result's contiguous index is the one that panels have side by side: a product commutes. */
    const bool swapped = d_row == 1 && d_col != 1;
    if (swapped) {
        std::swap(x, y);
        std::swap(c_row, c_col);
        std::swap(d_row, d_col);
    }
    const unsigned char *pc =
        p.pc ? p.pc + static_cast<size_t>(batch * p.c.stride) * blas_size_of(p.c.type) : nullptr;
    unsigned char *pd = p.pd + static_cast<size_t>(batch * p.d.stride) * blas_size_of(p.d.type);
    const unsigned char *bias =
        p.how.bias ? static_cast<const unsigned char *>(p.how.bias) +
                         static_cast<size_t>(batch * p.how.bias_stride) * blas_size_of(p.how.bias_type)
                   : nullptr;
    a.resize(static_cast<size_t>((x.kept + panel_rows - 1) / panel_rows * panel_rows * p.k) + 1);
    b.resize(static_cast<size_t>(panel_cols * p.k) + 1);
    for (int64_t i0 = 0; i0 < x.kept; i0 += panel_rows)
        pack<T, panel_rows>(a.data() + i0 * p.k, p, x, i0);
    for (int64_t j0 = 0; j0 < y.kept; j0 += panel_cols) {
        const int64_t columns = y.kept - j0 < panel_cols ? y.kept - j0 : panel_cols;
        pack<T, panel_cols>(b.data(), p, y, j0);
        if (bias && swapped)
            load_row(add, bias + static_cast<size_t>(j0) * blas_size_of(p.how.bias_type), p.how.bias_type, 1,
                     columns);
        for (int64_t i0 = 0; i0 < x.kept; i0 += panel_rows) {
            const int64_t rows = x.kept - i0 < panel_rows ? x.kept - i0 : panel_rows;
            blas_panel(tile, a.data() + i0 * p.k, b.data(), p.k, rows);
            for (int64_t i = i0; i < i0 + rows; ++i) {
                T *sums = tile + (i - i0) * panel_cols;
                if (bias && !swapped)
                    load_row(add, bias + static_cast<size_t>(i) * blas_size_of(p.how.bias_type),
                             p.how.bias_type, 1, 1);
                if (p.beta != 0.0)
                    load_row(old, pc + static_cast<size_t>(i * c_row + j0 * c_col) * blas_size_of(p.c.type),
                             p.c.type, c_col, columns);
                combine(p, sums, old, add, !swapped, columns);
                store_row(pd + static_cast<size_t>(i * d_row + j0 * d_col) * blas_size_of(p.d.type), p.d.type,
                          d_col, sums, columns);
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
