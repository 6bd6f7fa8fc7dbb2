/* nvcuda::wmma: products of small matrices by a warp.  A fragment is a lane's part of a matrix; which part, CUDA does not say
 * (assay_sim_wmma.h).
 *
 *   shapes m x n x k       factors                      accumulators
 *   16x16x16 32x8x16 8x32x16  half                      half, float (of c and d separately)
 *                          __nv_bfloat16                float
 *                          signed char, unsigned char   int
 *   16x16x8                precision::tf32              float
 *   8x8x4                  double                       double
 *
 * Arithmetic of float: the terms of a product and c are added exactly and rounded once, or by the truncating model, as in
 * assay_sim_matrix.h; half: the same, and rounded to half at the end; int: exact, modulo 2^32 or saturated; double: fused
 * multiply-adds in the order of k.  Other shapes and types (those of namespace experimental) are not modelled and do not compile.
 *
 * All lanes of a warp must come with the same arguments.  Memory begins at a multiple of 32 bytes (16 for factors of 8 bits), and its
 * leading dimension is a multiple of 16 bytes. */
#ifndef ASSAY_SIM_MMA_H
#define ASSAY_SIM_MMA_H

#include "assay_sim_wmma.h"
#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace nvcuda
{
namespace wmma
{

struct matrix_a {
};
struct matrix_b {
};
struct accumulator {
};
struct row_major {
};
struct col_major {
};
enum layout_t { mem_row_major, mem_col_major };
namespace precision
{
struct tf32 {
};
} /* namespace precision */

namespace details
{

template <class T> struct number {
    static constexpr bool known = false;
};
#define ASSAY_SIM_WMMA_NUMBER(T, S, code)                                                                    \
    template <> struct number<T> {                                                                           \
        typedef S storage;                                                                                   \
        static constexpr bool known = true;                                                                  \
        static constexpr assay_sim_wmma_type type = code;                                                    \
    };
ASSAY_SIM_WMMA_NUMBER(__half, __half, ASSAY_SIM_WMMA_F16)
ASSAY_SIM_WMMA_NUMBER(__nv_bfloat16, __nv_bfloat16, ASSAY_SIM_WMMA_BF16)
ASSAY_SIM_WMMA_NUMBER(precision::tf32, float, ASSAY_SIM_WMMA_TF32)
ASSAY_SIM_WMMA_NUMBER(float, float, ASSAY_SIM_WMMA_F32)
ASSAY_SIM_WMMA_NUMBER(double, double, ASSAY_SIM_WMMA_F64)
ASSAY_SIM_WMMA_NUMBER(signed char, signed char, ASSAY_SIM_WMMA_S8)
ASSAY_SIM_WMMA_NUMBER(unsigned char, unsigned char, ASSAY_SIM_WMMA_U8)
ASSAY_SIM_WMMA_NUMBER(int, int, ASSAY_SIM_WMMA_S32)
#undef ASSAY_SIM_WMMA_NUMBER

template <class T> constexpr bool factor_of(int m, int n, int k)
{
    const bool wide = k == 16 && ((m == 16 && n == 16) || (m == 32 && n == 8) || (m == 8 && n == 32));
    return std::is_same<T, precision::tf32>::value                        ? m == 16 && n == 16 && k == 8
           : std::is_same<T, double>::value                               ? m == 8 && n == 8 && k == 4
           : std::is_same<T, float>::value || std::is_same<T, int>::value ? false
                                                                          : number<T>::known && wide;
}
template <class T> constexpr bool sum_of(int m, int n, int k)
{
    return std::is_same<T, double>::value  ? factor_of<double>(m, n, k)
           : std::is_same<T, float>::value ? factor_of<__half>(m, n, k) || factor_of<precision::tf32>(m, n, k)
           : std::is_same<T, __half>::value || std::is_same<T, int>::value ? factor_of<__half>(m, n, k)
                                                                           : false;
}

template <class Use, int m, int n, int k, class T, class Layout> struct shape {
    static constexpr bool sum = std::is_same<Use, accumulator>::value;
    static constexpr int rows = std::is_same<Use, matrix_b>::value ? k : m;
    static constexpr int columns = std::is_same<Use, matrix_a>::value ? k : n;
    /* Factors of half have 16 elements in every shape. */
    static constexpr int count = std::is_same<T, __half>::value && !sum ? 16 : rows * columns / 32;
    static constexpr bool column_major = std::is_same<Layout, col_major>::value;
    static constexpr bool laid_out = column_major || std::is_same<Layout, row_major>::value;
    static constexpr bool modelled =
        sum ? sum_of<T>(m, n, k) && std::is_same<Layout, void>::value : factor_of<T>(m, n, k) && laid_out;
};

} /* namespace details */

template <class Use, int m, int n, int k, class T, class Layout = void> class fragment
{
    typedef details::shape<Use, m, n, k, T, Layout> form;
    static_assert(form::modelled,
                  "gpu/sim: nvcuda::wmma: a fragment of this use, shape, type and layout is not modelled");

  public:
    typedef typename details::number<T>::storage element_type;
    typedef element_type storage_element_type;
    static constexpr int num_elements = form::count;
    static constexpr int num_storage_elements = form::count;
    element_type x[form::count];

    fragment() : written_(0)
    {
        memset(static_cast<void *>(x), 0xff, sizeof x);
    }

    /* Not CUDA's: for the functions below. */
    assay_sim_wmma_part part_() const
    {
        return assay_sim_wmma_part{const_cast<element_type *>(x), form::count, form::rows, form::columns,
                                   details::number<T>::type,      written_};
    }
    static constexpr bool of_half_sums_ = form::sum && std::is_same<T, __half>::value;
    static constexpr int rows_ = form::rows, columns_ = form::columns;
    static constexpr bool column_major_ = form::column_major;
    int written_;
};

#define ASSAY_SIM_WMMA_INLINE                                                                                \
    static inline __attribute__((always_inline)) /* so that a bad access is reported at its caller */

namespace details
{

ASSAY_SIM_WMMA_INLINE unsigned lane()
{
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}

/* Where the e-th element of this lane lies. */
template <class F> ASSAY_SIM_WMMA_INLINE size_t offset(int e, unsigned ldm, bool column_major)
{
    const int at = assay_sim_wmma_index(F::of_half_sums_, F::num_elements, F::rows_ * F::columns_,
                                        static_cast<int>(lane()), e);
    const size_t row = static_cast<size_t>(at / F::columns_), column = static_cast<size_t>(at % F::columns_);
    return column_major ? column * ldm + row : row * ldm + column;
}

template <class F, class T>
ASSAY_SIM_WMMA_INLINE void load(F &f, const T *p, unsigned ldm, bool column_major, int line)
{
    const assay_sim_wmma_access a = {f.part_(), p, ldm, column_major, 0};
    assay_sim_wmma_meet(&a, line);
    for (int e = 0; e < F::num_elements; ++e)
        f.x[e] = p[offset<F>(e, ldm, column_major)];
    f.written_ = 1;
}

} /* namespace details */

/* The value that a factor of precision::tf32 must have: 10 bits behind the leading one, ties away from zero. */
static inline float __float_to_tf32(float v)
{
    unsigned bits;
    memcpy(&bits, &v, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u) /* infinities and NaN stay */
        bits = (bits + 0x1000u) & 0xffffe000u;
    else if ((bits & 0x7fffffu) != 0)
        bits = (bits | 0x400000u) & 0xffffe000u;
    memcpy(&v, &bits, sizeof v);
    return v;
}

template <class Use, int m, int n, int k, class T, class Layout, class V>
ASSAY_SIM_WMMA_INLINE void fill_fragment(fragment<Use, m, n, k, T, Layout> &f, const V &value)
{
    typedef typename fragment<Use, m, n, k, T, Layout>::element_type element;
    for (element &x : f.x)
        x = static_cast<element>(value);
    f.written_ = 1;
}

template <class Use, int m, int n, int k, class T, class Layout>
ASSAY_SIM_WMMA_INLINE void load_matrix_sync(fragment<Use, m, n, k, T, Layout> &f,
                                            const typename fragment<Use, m, n, k, T, Layout>::element_type *p,
                                            unsigned ldm, int line = ASSAY_SIM_HERE)
{
    static_assert(!std::is_same<Use, accumulator>::value,
                  "nvcuda::wmma: an accumulator is loaded with a layout");
    details::load(f, p, ldm, fragment<Use, m, n, k, T, Layout>::column_major_, line);
}

template <int m, int n, int k, class T>
ASSAY_SIM_WMMA_INLINE void load_matrix_sync(fragment<accumulator, m, n, k, T> &f,
                                            const typename fragment<accumulator, m, n, k, T>::element_type *p,
                                            unsigned ldm, layout_t layout, int line = ASSAY_SIM_HERE)
{
    details::load(f, p, ldm, layout == mem_col_major, line);
}

template <int m, int n, int k, class T>
ASSAY_SIM_WMMA_INLINE void store_matrix_sync(T *p, const fragment<accumulator, m, n, k, T> &f, unsigned ldm,
                                             layout_t layout, int line = ASSAY_SIM_HERE)
{
    typedef fragment<accumulator, m, n, k, T> F;
    const assay_sim_wmma_access a = {f.part_(), p, ldm, layout == mem_col_major, 1};
    assay_sim_wmma_meet(&a, line);
    for (int e = 0; e < F::num_elements; ++e)
        p[details::offset<F>(e, ldm, layout == mem_col_major)] = f.x[e];
}

/* d = a b + c.  saturate: infinities become the largest finite number, NaN 0; sums of int stay at their limits. */
template <int m, int n, int k, class T, class LayoutA, class LayoutB, class D, class C>
static inline void
mma_sync(fragment<accumulator, m, n, k, D> &d, const fragment<matrix_a, m, n, k, T, LayoutA> &a,
         const fragment<matrix_b, m, n, k, T, LayoutB> &b, const fragment<accumulator, m, n, k, C> &c,
         bool saturate = false, int line = ASSAY_SIM_HERE)
{
    constexpr bool of_half = std::is_same<T, __half>::value,
                   of_bytes = std::is_same<T, signed char>::value || std::is_same<T, unsigned char>::value;
    typedef typename std::conditional<
        of_bytes, int, typename std::conditional<std::is_same<T, double>::value, double, float>::type>::type
        sum;
    static_assert((of_half && !std::is_same<D, int>::value && !std::is_same<C, int>::value) ||
                      (std::is_same<D, sum>::value && std::is_same<C, sum>::value),
                  "nvcuda::wmma: accumulators of this type do not go with these factors");
    const assay_sim_wmma_product p = {d.part_(), a.part_(), b.part_(), c.part_(), saturate};
    assay_sim_wmma_multiply(&p, line);
    d.written_ = 1;
}

#undef ASSAY_SIM_WMMA_INLINE

} /* namespace wmma */
} /* namespace nvcuda */

#endif
