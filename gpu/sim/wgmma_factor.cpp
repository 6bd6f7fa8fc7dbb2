/* First operands of a warpgroup's products in registers: what they hold when a product is issued is what it multiplies, they must not
 * change until it is waited for, and need a fence after they did. */
#include "matrix.hpp"
#include "wgmma.hpp"

#include "assay_sim_float.h"

#include <string.h>

namespace sim
{

/* The first operand's registers of all lanes. */
constexpr size_t registers_of_a = terms / 4;
static std::vector<unsigned> read_factor(const unsigned *const *a)
{
    std::vector<unsigned> rows(lanes * registers_of_a);
    for (unsigned l = 0; l < lanes; ++l)
        memcpy(&rows[l * registers_of_a], a[l], registers_of_a * sizeof rows[0]);
    return rows;
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

std::vector<unsigned> take_factor(worker &w, const wgmma_warp &p, factor_state &f, int line)
{
    const std::vector<unsigned> rows = read_factor(f.a);
    if (!f.given.empty() && f.given != rows && p.fences == f.fences)
        misuse(w, "missing fence", line,
               "registers of a first operand were written: a wgmma_fence must lie between that and the "
               "product");
    f.given = rows;
    f.fences = p.fences;
    return rows;
}

void check_factor(worker &w, const wgmma_warp &p, const issued_product &o, int line)
{
    if (o.what.a_registers != nullptr && read_factor(p.factors[o.factor].a) != o.rows)
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
