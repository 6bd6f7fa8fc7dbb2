/* Reductions in rank order.  nccl.h declares the arithmetic: fp32 and fp64 step by step, short floats
 * accumulated in fp32 and rounded once, integers wrapping, avg as sum divided at the end, max and min keeping
 * NaN. */
#include "nccl_shm.hpp"

#include "assay_sim_float.h"

#include <math.h>
#include <string.h>
#include <type_traits>

namespace sim
{

/* How elements of a type are widened and rounded.  `acc` is the type that is accumulated in. */
struct as_f32 {
    typedef float element;
    typedef float acc;
    static acc widen(element v)
    {
        return v;
    }
    static element round(acc v)
    {
        return v;
    }
};
struct as_f64 {
    typedef double element;
    typedef double acc;
    static acc widen(element v)
    {
        return v;
    }
    static element round(acc v)
    {
        return v;
    }
};
struct as_f16 {
    typedef uint16_t element;
    typedef float acc;
    static acc widen(element v)
    {
        return assay_sim_f16_to_f32(v);
    }
    static element round(acc v)
    {
        return assay_sim_f32_to_f16(v);
    }
};
struct as_bf16 {
    typedef uint16_t element;
    typedef float acc;
    static acc widen(element v)
    {
        return assay_sim_bf16_to_f32(v);
    }
    static element round(acc v)
    {
        return assay_sim_f32_to_bf16(v);
    }
};
template <int e5m2> struct as_fp8 {
    typedef uint8_t element;
    typedef float acc;
    static acc widen(element v)
    {
        return assay_sim_fp8_to_f32(v, e5m2);
    }
    static element round(acc v)
    {
        return assay_sim_f64_to_fp8(static_cast<double>(v), e5m2, 1);
    }
};
template <class T> struct as_int {
    typedef T element;
    typedef T acc;
    static acc widen(element v)
    {
        return v;
    }
    static element round(acc v)
    {
        return v;
    }
};

template <class A>
static typename std::enable_if<std::is_floating_point<A>::value, A>::type apply(A a, A b, int op)
{
    switch (op) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return a != a || b != b ? A(NAN) : a < b ? b : a;
    case ncclMin:
        return a != a || b != b ? A(NAN) : b < a ? b : a;
    default:
        return a + b;
    }
}

/* Wrapping around is defined for unsigned types only, so the work is done there. */
template <class A> static typename std::enable_if<std::is_integral<A>::value, A>::type apply(A a, A b, int op)
{
    const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    switch (op) {
    case ncclProd:
        return static_cast<A>(x * y);
    case ncclMax:
        return a < b ? b : a;
    case ncclMin:
        return b < a ? b : a;
    default:
        return static_cast<A>(x + y);
    }
}

template <class A>
static typename std::enable_if<std::is_floating_point<A>::value, A>::type divide(A a, int n)
{
    return a / static_cast<A>(n);
}

template <class A> static typename std::enable_if<std::is_integral<A>::value, A>::type divide(A a, int n)
{
    return std::is_signed<A>::value ? static_cast<A>(static_cast<int64_t>(a) / n)
                                    : static_cast<A>(static_cast<uint64_t>(a) / static_cast<uint64_t>(n));
}

template <class K> static void reduce(void *out, const void *const *in, int ranks, size_t count, int op)
{
    typedef typename K::element element;
    typedef typename K::acc acc;
    constexpr size_t strip = 256;
    element *to = static_cast<element *>(out);
    for (size_t from = 0; from < count; from += strip) {
        const size_t n = count - from < strip ? count - from : strip;
        acc sum[strip];
        const element *x = static_cast<const element *>(in[0]) + from;
        for (size_t i = 0; i < n; ++i) {
            sum[i] = K::widen(x[i]);
        }
        for (int r = 1; r < ranks; ++r) {
            x = static_cast<const element *>(in[r]) + from;
            if (op == ncclSum || op == ncclAvg) {
                for (size_t i = 0; i < n; ++i) {
                    sum[i] = apply(sum[i], K::widen(x[i]), ncclSum);
                }
            } else {
                for (size_t i = 0; i < n; ++i) {
                    sum[i] = apply(sum[i], K::widen(x[i]), op);
                }
            }
        }
        for (size_t i = 0; i < n; ++i) {
            to[from + i] = K::round(op == ncclAvg ? divide(sum[i], ranks) : sum[i]);
        }
    }
}

template <class K> static void scale(void *x, size_t count, const void *factor)
{
    typename K::element *to = static_cast<typename K::element *>(x), f;
    memcpy(&f, factor, sizeof f);
    const typename K::acc by = K::widen(f);
    for (size_t i = 0; i < count; ++i) {
        to[i] = K::round(apply(K::widen(to[i]), by, ncclProd));
    }
}

/* Calls `visit` with the type's way to widen and to round. */
template <class V> static void with_type(int type, const V &visit)
{
    switch (type) {
    case ncclInt8:
        return visit(as_int<int8_t>());
    case ncclUint8:
        return visit(as_int<uint8_t>());
    case ncclInt32:
        return visit(as_int<int32_t>());
    case ncclUint32:
        return visit(as_int<uint32_t>());
    case ncclInt64:
        return visit(as_int<int64_t>());
    case ncclUint64:
        return visit(as_int<uint64_t>());
    case ncclFloat16:
        return visit(as_f16());
    case ncclFloat32:
        return visit(as_f32());
    case ncclFloat64:
        return visit(as_f64());
    case ncclBfloat16:
        return visit(as_bf16());
    case ncclFloat8e4m3:
        return visit(as_fp8<0>());
    default:
        return visit(as_fp8<1>());
    }
}

void nccl_reduce_elements(void *out, const void *const *in, int ranks, size_t count, int type, int op)
{
    with_type(type, [=](auto kind) { reduce<decltype(kind)>(out, in, ranks, count, op); });
}

void nccl_scale_elements(void *x, size_t count, int type, const void *factor)
{
    with_type(type, [=](auto kind) { scale<decltype(kind)>(x, count, factor); });
}

} /* namespace sim */
