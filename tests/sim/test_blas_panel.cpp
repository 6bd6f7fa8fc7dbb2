/* The vector paths of the matrix product give the bits of the portable one. */
#include "gpu/sim/blas.hpp"

#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>
#include <vector>

static double next(uint32_t *seed, double scale)
{
    *seed = *seed * 1664525u + 1013904223u;
    return static_cast<double>(static_cast<int32_t>(*seed)) * scale;
}

/* What the CPU says; blas_kernel.cpp asks for itself. */
static bool has_path(int path)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           (path < 2 || __builtin_cpu_supports("avx512f"));
#else
    return path < 1;
#endif
}

/* Whether the path was there. */
template <class T> static bool compare(int path)
{
    uint32_t seed = 7;
    for (int64_t k = 0; k < 70; k += 3) {
        for (int64_t rows = 1; rows <= sim::panel_rows; ++rows) {
            std::vector<T> a(static_cast<size_t>(k * sim::panel_rows) + 1),
                b(static_cast<size_t>(k * sim::panel_cols) + 1);
            T fast[sim::panel_rows * sim::panel_cols], plain[sim::panel_rows * sim::panel_cols];
            for (T &v : a)
                v = static_cast<T>(next(&seed, 1e-9));
            for (T &v : b)
                v = static_cast<T>(next(&seed, 1e-7));
            if (!sim::blas_panel_by(path, fast, a.data(), b.data(), k, rows))
                return false;
            sim::blas_panel_by(0, plain, a.data(), b.data(), k, rows);
            cr_assert(memcmp(fast, plain, static_cast<size_t>(rows * sim::panel_cols) * sizeof(T)) == 0,
                      "path %d, k %d, %d rows", path, static_cast<int>(k), static_cast<int>(rows));
        }
    }
    return true;
}

Test(sim_blas_panel, vector_and_portable_paths_agree_bitwise)
{
    for (int path = 1; path <= 2; ++path) {
        cr_expect_eq(compare<float>(path), has_path(path), "path %d", path);
        cr_expect_eq(compare<double>(path), has_path(path), "path %d", path);
    }
}
