/* The vector path of the matrix product gives the bits of the portable one. */
#include "gpu/sim/blas.hpp"

#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>
#include <vector>

Test(sim_blas_panel, vector_and_portable_paths_agree_bitwise)
{
    uint32_t seed = 7;
    for (int64_t k = 0; k < 70; k += 3) {
        std::vector<float> a(static_cast<size_t>(k * sim::panel_rows) + 1),
            b(static_cast<size_t>(k * sim::panel_cols) + 1);
        float fast[sim::panel_rows * sim::panel_cols], plain[sim::panel_rows * sim::panel_cols];
        for (float &v : a) {
            seed = seed * 1664525u + 1013904223u;
            v = static_cast<float>(static_cast<int32_t>(seed)) * 1e-9f;
        }
        for (float &v : b) {
            seed = seed * 1664525u + 1013904223u;
            v = static_cast<float>(static_cast<int32_t>(seed)) * 1e-7f;
        }
        sim::blas_panel_f32(fast, a.data(), b.data(), k);
        sim::blas_panel_f32_portable(plain, a.data(), b.data(), k);
        cr_assert(memcmp(fast, plain, sizeof fast) == 0, "k %d", static_cast<int>(k));
    }
}
