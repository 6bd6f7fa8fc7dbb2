/* First operands of a warpgroup's products in registers: what they hold when a product is issued is what it multiplies, they must not
 * change until it is waited for, and need a fence after they did. */
#include "matrix.hpp"
#include "wgmma.hpp"

#include "assay_sim_float.h"

#include <string.h>

namespace sim
{

constexpr size_t registers_of_a = terms / 4;

/* Makes rows [lanes][16] what the registers of all lanes hold; whether it was something else.  A report leaves the function that makes it
 * without its end, so nothing here holds memory meanwhile. */
static bool differ(std::vector<unsigned> &rows, const unsigned *const *a)
{
    bool changed = false;
    rows.resize(lanes * registers_of_a);
    for (unsigned l = 0; l < lanes; ++l) {
        unsigned *of_lane = &rows[l * registers_of_a];
        changed |= memcmp(of_lane, a[l], registers_of_a * sizeof *of_lane) != 0;
        memcpy(of_lane, a[l], registers_of_a * sizeof *of_lane);
    }
    return changed;
}

size_t factor_of(wgmma_warp &p, const unsigned *const *of_lane)
{
    size_t i = 0;
    while (i < p.factors.size() && p.factors[i].a[0] != of_lane[0])
        ++i;
    if (i == p.factors.size()) {
        p.factors.push_back(factor_state{});
        for (unsigned l = 0; l < lanes; ++l)
            p.factors[i].a[l] = of_lane[l];
    }
    return i;
}

const std::vector<unsigned> &take_factor(worker &w, const wgmma_warp &p, factor_state &f, int line)
{
    const bool first = f.given.empty();
    if (differ(f.given, f.a) && !first && p.fences == f.fences)
        misuse(w, "missing fence", line,
               "registers of a first operand were written: a wgmma_fence must lie between that and the "
               "product");
    f.fences = p.fences;
    return f.given;
}

void check_factor(worker &w, const wgmma_warp &p, issued_product &o, int line)
{
    if (o.what.a_registers != nullptr && differ(o.rows, p.factors[o.factor].a))
        misuse(w, "late read", line,
               "registers of the first operand of the product of line %d were written before it was waited "
               "for",
               line_of(o.line));
}

void unpack_factor(tiles &t, const std::vector<unsigned> &rows)
{
    for (size_t l = 0; l < lanes; ++l) {
        for (size_t i = 0; i < registers_of_a; ++i) {
            const unsigned pair = rows[l * registers_of_a + i];
            const int step = static_cast<int>(i / 4), r = static_cast<int>(i % 4), lane = static_cast<int>(l);
            double *to =
                &t.a[result_row(lane, (r & 1) * 2)][step * 16 + (r >> 1) * 8 + result_column(lane, 0)];
            to[0] = static_cast<double>(assay_sim_bf16_to_f32(static_cast<uint16_t>(pair)));
            to[1] = static_cast<double>(assay_sim_bf16_to_f32(static_cast<uint16_t>(pair >> 16)));
        }
    }
}

} /* namespace sim */
