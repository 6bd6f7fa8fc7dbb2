/* nvcuda::wmma (include/mma.h): what the lanes of a warp must have in common, and the product, which the last lane to arrive computes
 * for all 32. */
#include "assay_sim_wmma.h"
#include "matrix.hpp"
#include "simt.hpp"

#include "assay_sim_float.h"

#include <limits.h>
#include <math.h>
#include <memory>
#include <stdio.h>
#include <string.h>

namespace sim
{

namespace
{

constexpr int most = 512, most_k = 16;

template <class T> struct request {
    const T *what;
    int line;
};

template <class T> const T &of_lane(void *const *lane, unsigned l)
{
    return *static_cast<const request<T> *>(lane[l])->what;
}

size_t bytes_of(assay_sim_wmma_type type)
{
    switch (type) {
    case ASSAY_SIM_WMMA_S8:
    case ASSAY_SIM_WMMA_U8:
        return 1;
    case ASSAY_SIM_WMMA_F16:
    case ASSAY_SIM_WMMA_BF16:
        return 2;
    case ASSAY_SIM_WMMA_F64:
        return 8;
    default:
        return 4;
    }
}

[[noreturn]] void misuse(worker &w, unsigned l, const char *kind, int line, const char *what)
{
    w.current = w.current / lanes * lanes + l; /* whose mistake it is */
    report_matrix(w, kind, line, what);
}

/* A lane whose elements are the poison of a fragment that was only declared. */
bool untouched(const assay_sim_wmma_part &p)
{
    const unsigned char *x = static_cast<const unsigned char *>(p.x);
    size_t i = 0;
    while (!p.written && i < static_cast<size_t>(p.count) * bytes_of(p.type) && x[i] == 0xff)
        ++i;
    return i == static_cast<size_t>(p.count) * bytes_of(p.type);
}

void meet_of_warp(void *const *lane)
{
    worker &w = *self;
    const int line = static_cast<const request<assay_sim_wmma_access> *>(lane[0])->line;
    const assay_sim_wmma_access &f = of_lane<assay_sim_wmma_access>(lane, 0);
    const size_t bytes = bytes_of(f.part.type), align = bytes == 1 ? 16 : 32;
    char text[200];
    for (unsigned l = 0; l < lanes; ++l) {
        const assay_sim_wmma_access &a = of_lane<assay_sim_wmma_access>(lane, l);
        if (a.memory != f.memory || a.ldm != f.ldm || a.column_major != f.column_major) {
            snprintf(text, sizeof text,
                     "lane %u %s a matrix at %p with leading dimension %u%s, lane 0 one at %p with %u%s", l,
                     f.store ? "stores" : "loads", a.memory, a.ldm, a.column_major ? " by columns" : "",
                     f.memory, f.ldm, f.column_major ? " by columns" : "");
            misuse(w, l, "wrong fragment", line, text);
        }
        if (f.store && untouched(a.part))
            misuse(w, l, "wrong fragment", line, "a fragment is stored that nobody has filled or computed");
    }
    if (reinterpret_cast<uintptr_t>(f.memory) % align != 0) {
        snprintf(text, sizeof text, "the matrix of a fragment begins at %p, no multiple of %zu bytes",
                 f.memory, align);
        misuse(w, 0, "misaligned", line, text);
    }
    if (f.ldm * bytes % 16 != 0) {
        snprintf(text, sizeof text,
                 "leading dimension %u of a fragment's matrix: no multiple of 16 bytes (%zu elements)", f.ldm,
                 16 / bytes);
        misuse(w, 0, "misaligned", line, text);
    }
    const unsigned across = static_cast<unsigned>(f.column_major ? f.part.rows : f.part.columns);
    if (f.store && f.ldm < across) {
        snprintf(text, sizeof text, "leading dimension %u of a matrix with %s of %u elements: they overlap",
                 f.ldm, f.column_major ? "columns" : "rows", across);
        misuse(w, 0, "wrong fragment", line, text);
    }
}

struct factors {
    double a[most], b[most], c[most], d[most];
};

/* d = a b + c in the order of k, in double. */
void multiply(factors &f, int m, int n, int k, bool fused)
{
    memcpy(f.d, f.c, sizeof(double) * static_cast<size_t>(m * n));
    for (int i = 0; i < m; ++i) {
        double *d = f.d + i * n;
        for (int x = 0; x < k; ++x) {
            const double a = f.a[i * k + x], *b = f.b + x * n;
            if (fused) {
                for (int j = 0; j < n; ++j)
                    d[j] = fma(a, b[j], d[j]);
                continue;
            }
            for (int j = 0; j < n; ++j)
                d[j] += a * b[j];
        }
    }
}

/* Calls to(index in the matrix, e) for every element of a lane: assay_sim_wmma_index without its divisions. */
template <class F>
inline __attribute__((always_inline)) void each_index(const assay_sim_wmma_part &p, bool sum, unsigned l,
                                                      F to)
{
    const int elements = p.rows * p.columns, lane = static_cast<int>(l);
    const bool half_sum = sum && p.type == ASSAY_SIM_WMMA_F16;
    for (int e = 0, row = 0, turn = lane; e < p.count; ++e) {
        to(half_sum ? lane * p.count + e : row + turn % static_cast<int>(lanes), e);
        row += static_cast<int>(lanes);
        if (row == elements) {
            row = 0;
            turn += 7;
        }
    }
}

bool same(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* The matrix of which the lanes hold the parts; value: of an element's bits. */
template <class T, class F>
inline __attribute__((always_inline)) void gather_as(worker &w, double *to, const assay_sim_wmma_part &p,
                                                     unsigned l, bool sum, bool *set, int line, F value)
{
    const bool copies = p.count * static_cast<int>(lanes) != p.rows * p.columns;
    each_index(p, sum, l, [&](int at, int e) {
        T bits;
        memcpy(&bits, static_cast<const unsigned char *>(p.x) + sizeof(T) * static_cast<size_t>(e),
               sizeof bits);
        const double v = value(bits);
        if (copies && set[at] && !same(to[at], v))
            misuse(w, l, "wrong fragment", line,
                   "lanes have changed their copies of one element of a factor differently");
        to[at] = v;
        set[at] = true;
    });
}

void gather(worker &w, double *to, const assay_sim_wmma_part &p, unsigned l, bool sum, bool *set, int line)
{
    if (untouched(p))
        misuse(w, l, "wrong fragment", line, "an operand of mma_sync that nobody has loaded or filled");
    switch (p.type) {
    case ASSAY_SIM_WMMA_F16:
        gather_as<uint16_t>(w, to, p, l, sum, set, line,
                            [](uint16_t v) { return static_cast<double>(assay_sim_f16_to_f32(v)); });
        break;
    case ASSAY_SIM_WMMA_BF16:
        gather_as<uint16_t>(w, to, p, l, sum, set, line,
                            [](uint16_t v) { return static_cast<double>(assay_sim_bf16_to_f32(v)); });
        break;
    case ASSAY_SIM_WMMA_TF32:
        gather_as<uint32_t>(w, to, p, l, sum, set, line, [&](uint32_t v) {
            float single;
            if ((v & 0x1fffu) != 0)
                misuse(w, l, "wrong fragment", line,
                       "a factor of precision::tf32 that __float_to_tf32 has not rounded");
            memcpy(&single, &v, sizeof single);
            return static_cast<double>(single);
        });
        break;
    case ASSAY_SIM_WMMA_F32:
        gather_as<float>(w, to, p, l, sum, set, line, [](float v) { return static_cast<double>(v); });
        break;
    case ASSAY_SIM_WMMA_F64:
        gather_as<double>(w, to, p, l, sum, set, line, [](double v) { return v; });
        break;
    case ASSAY_SIM_WMMA_S8:
        gather_as<signed char>(w, to, p, l, sum, set, line,
                               [](signed char v) { return static_cast<double>(v); });
        break;
    case ASSAY_SIM_WMMA_U8:
        gather_as<unsigned char>(w, to, p, l, sum, set, line,
                                 [](unsigned char v) { return static_cast<double>(v); });
        break;
    case ASSAY_SIM_WMMA_S32:
        gather_as<int32_t>(w, to, p, l, sum, set, line, [](int32_t v) { return static_cast<double>(v); });
        break;
    }
}

double finite(double v, double largest)
{
    return v != v ? 0.0 : v > largest ? largest : v < -largest ? -largest : v;
}

/* One element of the result, as its type's bits hold it. */
void put(const assay_sim_wmma_part &d, int e, double exact, float single, bool saturate)
{
    unsigned char *to = static_cast<unsigned char *>(d.x) + bytes_of(d.type) * static_cast<size_t>(e);
    if (d.type == ASSAY_SIM_WMMA_F64) {
        memcpy(to, &exact, sizeof exact);
    } else if (d.type == ASSAY_SIM_WMMA_S32) {
        const double limited = exact > INT_MAX ? INT_MAX : exact < INT_MIN ? INT_MIN : exact;
        const uint32_t v = static_cast<uint32_t>(static_cast<int64_t>(saturate ? limited : exact));
        memcpy(to, &v, sizeof v);
    } else if (d.type == ASSAY_SIM_WMMA_F16) {
        const double v = config().matrix_truncates ? static_cast<double>(single) : exact;
        const uint16_t h = assay_sim_f64_to_f16(v), limited = assay_sim_f64_to_f16(finite(v, 65504.0));
        const bool is_finite = (h & 0x7c00u) != 0x7c00u;
        memcpy(to, saturate && !is_finite ? &limited : &h, sizeof h);
    } else {
        const float v = saturate
                            ? static_cast<float>(finite(static_cast<double>(single), 3.4028234663852886e38))
                            : single;
        memcpy(to, &v, sizeof v);
    }
}

void product_of_warp(void *const *lane)
{
    static thread_local std::unique_ptr<factors> kept; /* as in matrix.cpp */
    if (!kept)
        kept.reset(new factors{});
    factors &f = *kept;
    worker &w = *self;
    const int line = static_cast<const request<assay_sim_wmma_product> *>(lane[0])->line;
    bool set_a[most] = {}, set_b[most] = {}, set_c[most] = {};
    const assay_sim_wmma_product &first = of_lane<assay_sim_wmma_product>(lane, 0);
    const int n = first.d.columns, k = first.a.columns;
    for (unsigned l = 0; l < lanes; ++l) {
        const assay_sim_wmma_product &o = of_lane<assay_sim_wmma_product>(lane, l);
        gather(w, f.a, o.a, l, false, set_a, line);
        gather(w, f.b, o.b, l, false, set_b, line);
        gather(w, f.c, o.c, l, true, set_c, line);
        if (o.saturate != first.saturate)
            misuse(w, l, "wrong fragment", line, "the lanes of a warp differ in whether mma_sync saturates");
    }
    const bool fused = first.d.type == ASSAY_SIM_WMMA_F64,
               whole = first.d.type == ASSAY_SIM_WMMA_S32; /* of which every sum is exact in double */
    const bool truncates = config().matrix_truncates;
    multiply(f, first.d.rows, n, k, fused);
    for (unsigned l = 0; l < lanes; ++l) {
        const assay_sim_wmma_product &o = of_lane<assay_sim_wmma_product>(lane, l);
        each_index(o.d, true, l, [&](int at, int e) {
            double product[most_k], size[most_k];
            for (int x = 0; truncates && x < k; ++x) {
                const double a = f.a[at / n * k + x], b = f.b[x * n + at % n];
                product[x] = a * b;
                size[x] = power_below(a) * power_below(b);
            }
            const float single =
                fused || whole ? 0.0f : matrix_step(static_cast<float>(f.c[at]), product, size, k, f.d[at]);
            put(o.d, e, f.d[at], single, o.saturate != 0);
        });
    }
}

} /* namespace */

} /* namespace sim */

using namespace sim;

void assay_sim_wmma_meet(const assay_sim_wmma_access *access, int line)
{
    request<assay_sim_wmma_access> r = {access, line};
    assay_sim_warp_call(meet_of_warp, &r, line);
}

void assay_sim_wmma_multiply(const assay_sim_wmma_product *product, int line)
{
    request<assay_sim_wmma_product> r = {product, line};
    assay_sim_warp_call(product_of_warp, &r, line);
}
