/* Products of tiles by a warpgroup.
 *
 * Each warp has 16 of the 64 rows, and computes them when it waits for the product's group (in random orders, drawn by the seed, when it
 * commits): tiles are read then.  Until the wait its registers are poison.  The four warps need not meet, as they need not on a device;
 * their calls are compared one by one, and counted at the block's end. */
#include "wgmma.hpp"
#include "matrix.hpp"

#include "assay_sim_float.h"

#include <string.h>
#include <utility>

namespace sim
{

constexpr size_t tile_bytes = 64 * 128, tile_align = 1024;

struct lane_call {
    const assay_sim_wgmma *what;
    int n, line;
    const void *pc; /* behind the call in the kernel */
};
static const lane_call &call_of(void *const *lane, unsigned l)
{
    return *static_cast<const lane_call *>(lane[l]);
}

/* Bytes of the operands' tiles. */
static size_t a_bytes(const assay_sim_wgmma &o)
{
    return o.a_registers == nullptr ? tile_bytes : 0;
}
static size_t b_bytes(const assay_sim_wgmma &o)
{
    return static_cast<size_t>(o.n) / 64 * tile_bytes;
}

void check_warpgroup(worker &w, const char *what, int line)
{
    const unsigned group = w.current / lanes / group_warps;
    if ((group + 1) * group_warps * lanes > w.n)
        misuse(w, "absent warp", line,
               "%s needs the four warps of a warpgroup: the block has %u threads, and warpgroup "
               "%u would end at %u",
               what, w.n, group, (group + 1) * group_warps * lanes);
}

static bool same_product(const assay_sim_wgmma &x, const assay_sim_wgmma &y)
{
    return x.a == y.a && x.b == y.b && x.n == y.n && x.a_columns == y.a_columns &&
           x.b_columns == y.b_columns && x.add == y.add &&
           (x.a_registers == nullptr) == (y.a_registers == nullptr);
}

void same_call(worker &w, std::vector<group_call> &calls, size_t n, const group_call &mine, const char *what)
{
    if (n == calls.size()) {
        calls.push_back(mine);
        return;
    }
    const group_call &first = calls[n];
    if (line_of(first.line) != line_of(mine.line))
        misuse(w, "divergent warp", mine.line,
               "%s number %zu of this warp; warp %u of the warpgroup has it in line %d", what, n, first.warp,
               line_of(first.line));
    if (!same_product(first.what, mine.what) || first.registers != mine.registers || first.more != mine.more)
        misuse(w, "divergent warp", mine.line,
               "%s number %zu of this warp has other operands than warp %u of the warpgroup", what, n,
               first.warp);
}

bool same_count(worker &w, const std::vector<group_call> &calls, unsigned group, size_t wgmma_warp::*count,
                const char *what)
{
    for (unsigned k = 0; k < group_warps && !calls.empty(); ++k) {
        const unsigned warp = group * group_warps + k;
        const size_t n = w.tiles->warp[warp].*count;
        if (n == calls.size())
            continue;
        assay_sim_report(
            "absent warp", WHERE "%s of warpgroup %u: warp %u has not come to this one, number %zu of %zu",
            WHERE_ARGS(w, w.fibers[warp * lanes].id, calls[n].line), what, group, warp, n, calls.size());
        return false;
    }
    return true;
}

/* --- registers -------------------------------------------------------------------------------------------------- */

static float *register_of(float *const *c, unsigned lane, int i)
{
    return &c[lane][i];
}

/* each(register, its place in [16][n]) */
template <class EACH> static void each_register(float *const *c, int n, EACH each)
{
    for (unsigned l = 0; l < lanes; ++l) {
        for (int j = 0; j < n / 8; ++j) {
            for (int r = 0; r < 4; ++r)
                each(register_of(c, l, j * 4 + r),
                     static_cast<size_t>(result_row(static_cast<int>(l), r) * n + j * 8 +
                                         result_column(static_cast<int>(l), r)));
        }
    }
}

/* Takes the registers of a result, which are poison from here on. */
static void take_registers(worker &w, const wgmma_warp &p, sum_state &s, bool add, int line)
{
    bool changed = false;
    each_register(s.c, s.n, [&](float *r, size_t at) {
        changed |= !s.given.empty() && memcmp(r, &s.given[at], sizeof *r) != 0;
        s.value[at] = *r;
        memset(r, 0xff, sizeof *r);
    });
    if (p.fences == 0 || (changed && add && p.fences == s.fences))
        misuse(w, "missing fence", line, "%s: a wgmma_fence must lie between that and the product",
               p.fences == 0 ? "the first product of a warp" : "registers of a result were written");
}

static void give_registers(worker &w, const wgmma_warp &p, sum_state &s, int line)
{
    each_register(s.c, s.n, [&](float *r, size_t at) {
        unsigned bits;
        memcpy(&bits, r, sizeof bits);
        if (bits != 0xffffffffu)
            misuse(w, "late read", line,
                   "registers of a result were written before the product was waited for");
        *r = s.value[at];
    });
    s.given = s.value;
    s.fences = p.fences;
}

static size_t sum_of(wgmma_warp &p, void *const *lane, int n)
{
    size_t i = 0;
    while (i < p.sums.size() && (p.sums[i].c[0] != call_of(lane, 0).what->c || p.sums[i].n != n))
        ++i;
    if (i == p.sums.size()) {
        p.sums.push_back(sum_state{});
        p.sums[i].n = n;
        p.sums[i].value.resize(static_cast<size_t>(rows_of_warp * n));
        for (unsigned l = 0; l < lanes; ++l)
            p.sums[i].c[l] = call_of(lane, l).what->c;
    }
    return i;
}

/* --- products --------------------------------------------------------------------------------------------------- */

/* Number e of chunk c of row r of a swizzled tile. */
static double number_at(const void *tile, int row, int column)
{
    uint16_t bits;
    const int chunk = column / 8 ^ (row & 7);
    memcpy(&bits, static_cast<const char *>(tile) + row * 128 + chunk * 16 + column % 8 * 2, sizeof bits);
    return static_cast<double>(assay_sim_bf16_to_f32(bits));
}

/* 8 numbers from a column that is a multiple of 8 on. */
static void numbers_at(const void *tile, int row, int column, double *to)
{
    uint16_t bits[8];
    memcpy(bits, static_cast<const char *>(tile) + row * 128 + (column / 8 ^ (row & 7)) * 16, sizeof bits);
    for (int e = 0; e < 8; ++e)
        to[e] = static_cast<double>(assay_sim_bf16_to_f32(bits[e]));
}

/* B as [terms][n].  The warps of a group multiply by the same one: it is kept as long as its tiles have not changed. */
static const matrix_row *second_operand(const worker &w, tile_block &b, const assay_sim_wgmma &o)
{
    const uint64_t changed = picture_changed(w, b, o.b, b_bytes(o));
    for (const kept_operand &k : b.operands) {
        if (k.of == o.b && k.n == o.n && k.columns == o.b_columns && changed <= k.changes)
            return k.number.get();
    }
    kept_operand &k = b.operands[b.next_operand++ % kept_operands];
    if (!k.number)
        k.number.reset(new matrix_row[terms]);
    k.of = o.b;
    k.n = o.n;
    k.columns = o.b_columns;
    k.changes = b.changes;
    matrix_row *to = k.number.get();
    for (int j = 0; j < o.n; j += o.b_columns ? 64 : 1) {
        double row[terms];
        for (int x = 0; x < terms && o.b_columns; ++x)
            for (int c = 0; c < 64; c += 8)
                numbers_at(static_cast<const char *>(o.b) + static_cast<size_t>(j / 64) * tile_bytes, x, c,
                           &to[x][j + c]);
        for (int x = 0; x < terms && !o.b_columns; x += 8)
            numbers_at(o.b, j, x, &row[x]);
        for (int x = 0; x < terms && !o.b_columns; ++x)
            to[x][j] = row[x];
    }
    return to;
}

static void compute(worker &w, tile_block &b, wgmma_warp &p, issued_product &o, int line)
{
    tiles &t = matrix_tiles();
    const unsigned warp = w.current / lanes;
    const int first = static_cast<int>(warp % group_warps) * rows_of_warp, n = o.what.n;
    sum_state &s = p.sums[o.sum];
    const bool a_tile = o.what.a_registers == nullptr;
    if (a_tile)
        proxy_check(w, b, o.what.a, a_bytes(o.what), line, "a product that is under way");
    else
        unpack_factor(t, o.rows);
    proxy_check(w, b, o.what.b, b_bytes(o.what), line, "a product that is under way");
    if (picture_changed(w, b, o.what.a, a_bytes(o.what)) > o.issued ||
        picture_changed(w, b, o.what.b, b_bytes(o.what)) > o.issued)
        misuse(w, "late read", line, "a tile was written while the product of line %d reads it",
               line_of(o.line));
    for (int i = 0; i < rows_of_warp; ++i) {
        for (int k = 0; k < terms && a_tile && o.what.a_columns; ++k)
            t.a[i][k] = number_at(o.what.a, k, first + i);
        for (int k = 0; k < terms && a_tile && !o.what.a_columns; k += 8)
            numbers_at(o.what.a, first + i, k, &t.a[i][k]);
        for (int j = 0; j < n; ++j)
            t.c[i][j] = o.what.add ? s.value[static_cast<size_t>(i * n + j)] : 0.0f;
    }
    matrix_multiply(t, second_operand(w, b, o.what), rows_of_warp, n, terms);
    for (int i = 0; i < rows_of_warp; ++i)
        memcpy(&s.value[static_cast<size_t>(i * n)], static_cast<const float *>(t.c[i]),
               sizeof(float) * static_cast<size_t>(n));
    o.done = true;
}

/* What a product reads, for the race checker: all of both tiles, whichever warp waits for it.  Its results are 16 rows for each warp;
 * which warp reads which rows of a tile no manual says. */
static void touch_tiles(worker &w, const assay_sim_wgmma &o, const void *pc)
{
    race_touch(w, o.a, a_bytes(o), false, pc);
    race_touch(w, o.b, b_bytes(o), false, pc);
}

static void product_of_warp(void *const *lane)
{
    worker &w = *self;
    const lane_call &call = call_of(lane, 0);
    const assay_sim_wgmma &o = *call.what;
    tile_block &b = tiles_of(w, "product of a warpgroup", call.line);
    const unsigned warp = w.current / lanes;
    wgmma_warp &p = b.warp[warp];
    check_warpgroup(w, "a product", call.line);
    for (unsigned l = 1; l < lanes; ++l) {
        if (!same_product(*call_of(lane, l).what, o))
            misuse(w, "wrong fragment", call.line, "the lanes of a warp name different tiles");
    }
    const group_call mine = {call.line, warp, o, 0, 0};
    same_call(w, b.products[warp / group_warps], p.products, mine, "product");
    if (reinterpret_cast<uintptr_t>(o.a) % tile_align != 0 ||
        reinterpret_cast<uintptr_t>(o.b) % tile_align != 0)
        misuse(w, "misaligned", call.line,
               "a tile of a product that does not begin at a multiple of %zu bytes", tile_align);
    if (o.a_registers == nullptr) {
        loads_check(w, b, o.a, a_bytes(o), call.line, "a product reads");
        proxy_check(w, b, o.a, a_bytes(o), call.line, "a product");
    }
    loads_check(w, b, o.b, b_bytes(o), call.line, "a product reads");
    proxy_check(w, b, o.b, b_bytes(o), call.line, "a product");
    touch_tiles(w, o, call.pc);
    ++p.products;
    const size_t sum = sum_of(p, lane, o.n);
    if (p.sums[sum].open++ == 0)
        take_registers(w, p, p.sums[sum], o.add != 0, call.line);
    issued_product issued = {o, p.groups, call.line, false, sum, b.changes, 0, {}};
    if (o.a_registers != nullptr) {
        const unsigned *of_lane[lanes];
        for (unsigned l = 0; l < lanes; ++l)
            of_lane[l] = call_of(lane, l).what->a_registers;
        issued.factor = factor_of(p, of_lane);
        issued.rows = take_factor(w, p, p.factors[issued.factor], call.line);
    }
    p.open.push_back(std::move(issued));
}

static void fence_of_warp(void *const *lane)
{
    worker &w = *self;
    const lane_call &call = call_of(lane, 0);
    check_warpgroup(w, "wgmma_fence", call.line);
    ++tiles_of(w, "wgmma_fence", call.line).warp[w.current / lanes].fences;
}

static void commit_of_warp(void *const *lane)
{
    worker &w = *self;
    const lane_call &call = call_of(lane, 0);
    tile_block &b = tiles_of(w, "wgmma_commit", call.line);
    wgmma_warp &p = b.warp[w.current / lanes];
    check_warpgroup(w, "wgmma_commit", call.line);
    ++p.groups;
    if (late_now(w))
        return;
    for (issued_product &o : p.open) {
        if (!o.done)
            compute(w, b, p, o, o.line);
    }
}

static void wait_of_warp(void *const *lane)
{
    worker &w = *self;
    const lane_call &call = call_of(lane, 0);
    tile_block &b = tiles_of(w, "wgmma_wait", call.line);
    wgmma_warp &p = b.warp[w.current / lanes];
    check_warpgroup(w, "wgmma_wait", call.line);
    size_t over = 0;
    while (over < p.open.size() && p.open[over].group + static_cast<unsigned>(call.n) < p.groups) {
        issued_product &o = p.open[over++];
        if (!o.done)
            compute(w, b, p, o, o.line);
        check_factor(w, p, o, call.line);
        touch_tiles(w, o.what, call.pc); /* until now: who writes there next has to come behind this wait */
        if (--p.sums[o.sum].open == 0)
            give_registers(w, p, p.sums[o.sum], call.line);
    }
    p.open.erase(p.open.begin(), p.open.begin() + static_cast<std::ptrdiff_t>(over));
}

void products_check(worker &w, tile_block &b, const void *p, size_t bytes, int line)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(p);
    for (const wgmma_warp &warp : b.warp) {
        for (const issued_product &o : warp.open) {
            const uintptr_t a = reinterpret_cast<uintptr_t>(o.what.a),
                            c = reinterpret_cast<uintptr_t>(o.what.b);
            if ((at < a + a_bytes(o.what) && a < at + bytes) || (at < c + b_bytes(o.what) && c < at + bytes))
                misuse(w, "late read", line, "a load to a tile that the product of line %d still reads",
                       line_of(o.line));
        }
    }
}

bool products_end(worker &w, tile_block &b)
{
    for (unsigned k = 0; k * lanes < w.n; ++k) {
        if (b.warp[k].open.empty())
            continue;
        const issued_product &o = b.warp[k].open.front();
        assay_sim_report("late read", WHERE "the block is over before warp %u has waited for this product%s",
                         WHERE_ARGS(w, w.fibers[k * lanes].id, o.line), k,
                         o.group == b.warp[k].groups ? ", which no wgmma_commit has followed" : "");
        return false;
    }
    for (unsigned g = 0; g * group_warps * lanes < w.n; ++g) {
        if (!same_count(w, b.products[g], g, &wgmma_warp::products, "products"))
            return false;
    }
    return true;
}

} /* namespace sim */

using namespace sim;

static inline __attribute__((always_inline)) void of_warp(assay_sim_warp_function *run,
                                                          const assay_sim_wgmma *what, int n, int line)
{
    lane_call c = {what, n, line, __builtin_return_address(0)};
    assay_sim_warp_call(run, &c, line);
}

void assay_sim_wgmma_fence(int line)
{
    of_warp(fence_of_warp, nullptr, 0, line);
}

void assay_sim_wgmma_product(const assay_sim_wgmma *product, int line)
{
    of_warp(product_of_warp, product, 0, line);
}

void assay_sim_wgmma_commit(int line)
{
    of_warp(commit_of_warp, nullptr, 0, line);
}

void assay_sim_wgmma_wait(int n, int line)
{
    of_warp(wait_of_warp, nullptr, n, line);
}
