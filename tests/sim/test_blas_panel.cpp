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

template <class T> static void compare(int path)
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
                return; /* not on this CPU */
            sim::blas_panel_by(0, plain, a.data(), b.data(), k, rows);
            cr_assert(memcmp(fast, plain, static_cast<size_t>(rows * sim::panel_cols) * sizeof(T)) == 0,
                      "path %d, k %d, %d rows", path, static_cast<int>(k), static_cast<int>(rows));
        }
    }
}

Test(sim_blas_panel, vector_and_portable_paths_agree_bitwise)
{
    for (int path = 1; path <= 2; ++path) {
        compare<float>(path);
        compare<double>(path);
    }
}
