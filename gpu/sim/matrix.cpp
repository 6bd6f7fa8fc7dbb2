/* Tile products of a warp, and what they must not be given.
 *
 * The last lane of a warp to arrive computes the product for all 32: registers of the first operand and of the result are
 * taken apart by the layouts of mma.m16n8k16, the second operand is read from shared memory as ldmatrix does. */
#include "matrix.hpp"
#include "assay_sim_matrix.h"
#include "simt.hpp"

#include "assay_sim_float.h"

#include <memory>
#include <string.h>

namespace sim
{

constexpr unsigned fragment_magic = 0x4d4d4131u;

[[noreturn]] void report_matrix(worker &w, const char *kind, int line, const char *what)
{
    assay_sim_report(kind, WHERE "%s", WHERE_ARGS(w, w.fibers[w.current].id, line), what);
    abandon(w);
}

/* 8 numbers at the address that the tile's layout gives. */
static const uint16_t *chunk_at(worker &w, assay_sim_chunk *chunk, const void *tile, int row, int c, int line,
                                const void *pc)
{
    const void *p = chunk(tile, row, c);
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0)
        report_matrix(w, "misaligned", line, "a row of a tile does not begin at a multiple of 16 bytes");
    async_check(w, p, line);
    race_touch(w, p, 16, false, pc);
    return static_cast<const uint16_t *>(p);
}

struct call_of_warp {
    const void *what;
    int line;
    const void *pc; /* behind the call in the kernel */
};

/* The row and column that register r of a lane holds; half: the lower or upper 16 bits of an operand. */
static int row_of(int lane, int r)
{
    return (lane >> 2) + (r & 1) * 8;
}
static int k_of(int lane, int r, int half)
{
    return 2 * (lane & 3) + half + (r >> 1) * 8;
}

struct fragments {
    uint16_t a[most_rows][most_k];
};

/* The rows of A that a load names, from the rows or the columns of its tile. */
static void read_fragments(worker &w, fragments &t, const assay_sim_tile_load *f, int line, const void *pc)
{
    const int rows = f->mt * 16;
    for (int r = 0; r < (f->columns ? f->k : rows); ++r) {
        for (int c = 0; c < (f->columns ? rows : f->k) / 8; ++c) {
            const uint16_t *p = f->columns ? chunk_at(w, f->chunk, f->tile, r, f->first / 8 + c, line, pc)
                                           : chunk_at(w, f->chunk, f->tile, f->first + r, c, line, pc);
            for (int e = 0; e < 8; ++e)
                (f->columns ? t.a[c * 8 + e][r] : t.a[r][c * 8 + e]) = p[e];
        }
    }
}

static void load_of_warp(void *const *lane)
{
    static thread_local std::unique_ptr<fragments>
        kept; /* 32 KB: a library that brings the simulator has little room for variables of threads */
    if (!kept)
        kept.reset(new fragments{});
    fragments &t = *kept;
    worker &w = *self;
    const call_of_warp *first = static_cast<const call_of_warp *>(lane[0]);
    const assay_sim_tile_load *f = static_cast<const assay_sim_tile_load *>(first->what);
    if (f->mt * 16 > most_rows || f->k > most_k || f->k % step_k != 0 || (f->columns && f->first % 8 != 0))
        report_matrix(w, "unsupported", first->line,
                      "a load of more than 64 rows or 256 terms, or of columns that begin within a chunk");
    for (unsigned l = 0; l < lanes; ++l) {
        const assay_sim_tile_load *o =
            static_cast<const assay_sim_tile_load *>(static_cast<const call_of_warp *>(lane[l])->what);
        if (o->tile != f->tile || o->first != f->first)
            report_matrix(w, "wrong fragment", first->line,
                          "the lanes of a warp load different rows of tiles");
    }
    read_fragments(w, t, f, first->line, first->pc);
    for (unsigned l = 0; l < lanes; ++l) {
        const assay_sim_tile_load *o =
            static_cast<const assay_sim_tile_load *>(static_cast<const call_of_warp *>(lane[l])->what);
        for (int m = 0; m < f->mt; ++m) {
            for (int s = 0; s < f->k / step_k; ++s) {
                for (int r = 0; r < 4; ++r)
                    memcpy(&o->a[(m * (f->k / step_k) + s) * 4 + r],
                           &t.a[m * 16 + row_of(static_cast<int>(l), r)]
                               [s * step_k + k_of(static_cast<int>(l), r, 0)],
                           sizeof(unsigned));
            }
        }
        *o->owner = assay_sim_fragment_owner{fragment_magic, blockIdx.x, w.current / lanes * lanes + l};
    }
}

float matrix_step(float c, const double *product, const double *size, int k, double exact)
{
    if (!config().matrix_truncates)
        return static_cast<float>(exact);
    return truncated_sum(c, product, size, k);
}

static double widened(uint16_t bits)
{
    return static_cast<double>(assay_sim_bf16_to_f32(bits));
}

/* The first operand of a lane: fragments that it has loaded, or a result that is rounded. */
static void take_rows(worker &w, tiles &t, const assay_sim_tile_product *o, int l, int line)
{
    const int steps = o->k / step_k;
    const bool rounded = o->p != nullptr;
    if (!rounded) {
        const unsigned me = w.current / lanes * lanes + static_cast<unsigned>(l);
        if (o->owner->magic != fragment_magic)
            report_matrix(w, "wrong fragment", line, "an operand of a tile product that no lane has loaded");
        if (o->owner->thread != me || o->owner->block != blockIdx.x)
            report_matrix(w, "wrong fragment", line,
                          "an operand of a tile product that another lane has loaded");
    }
    for (int m = 0; m < o->mt; ++m) {
        for (int s = 0; s < steps && !rounded; ++s) {
            for (int r = 0; r < 4; ++r) {
                const unsigned both = o->a[(m * steps + s) * 4 + r];
                double *to = &t.a[m * 16 + row_of(l, r)][s * step_k + k_of(l, r, 0)];
                to[0] = widened(static_cast<uint16_t>(both));
                to[1] = widened(static_cast<uint16_t>(both >> 16));
            }
        }
        for (int j = 0; j < o->k / 8 && rounded; ++j) {
            for (int r = 0; r < 4; ++r)
                t.a[m * 16 + result_row(l, r)][j * 8 + result_column(l, r)] =
                    widened(assay_sim_f32_to_bf16(o->p[(m * (o->k / 8) + j) * 4 + r]));
        }
        for (int j = 0; j < o->nt; ++j) {
            for (int r = 0; r < 4; ++r)
                t.c[m * 16 + result_row(l, r)][j * 8 + result_column(l, r)] = o->c[(m * o->nt + j) * 4 + r];
        }
    }
}

/* B from shared memory, as [k][columns]. */
static void take_tile(worker &w, tiles &t, const assay_sim_tile_product *o, int line, const void *pc)
{
    const int rows = o->transposed ? o->k : o->nt * 8, chunks = (o->transposed ? o->nt * 8 : o->k) / 8;
    for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < chunks; ++c) {
            const uint16_t *p = chunk_at(w, o->chunk, o->b, r, o->first_column / 8 + c, line, pc);
            for (int e = 0; e < 8; ++e) {
                const double v = widened(p[e]);
                if (o->transposed)
                    t.b[r][c * 8 + e] = v;
                else
                    t.b[c * 8 + e][r] = v;
            }
        }
    }
}

tiles &matrix_tiles()
{
    static thread_local std::unique_ptr<tiles>
        kept; /* 720 KB, which a thread without such a product need not have */
    if (!kept)
        kept.reset(new tiles{});
    return *kept;
}

static void product_of_warp(void *const *lane)
{
    tiles &t = matrix_tiles();
    worker &w = *self;
    const call_of_warp *first = static_cast<const call_of_warp *>(lane[0]);
    const assay_sim_tile_product *f = static_cast<const assay_sim_tile_product *>(first->what);
    if (f->mt * 16 > most_rows || f->nt * 8 > most_columns || f->k > most_k || f->k % step_k != 0 ||
        f->first_column % 8 != 0)
        report_matrix(w, "unsupported", first->line,
                      "a tile product of more than 64 rows, 256 columns or 256 terms, or of columns that "
                      "begin within a chunk");
    for (unsigned l = 0; l < lanes; ++l) {
        const assay_sim_tile_product *o =
            static_cast<const assay_sim_tile_product *>(static_cast<const call_of_warp *>(lane[l])->what);
        if (o->b != f->b || o->first_column != f->first_column)
            report_matrix(w, "wrong fragment", first->line, "the lanes of a warp name different tiles");
        take_rows(w, t, o, static_cast<int>(l), first->line);
    }
    take_tile(w, t, f, first->line, first->pc);
    matrix_multiply(t, t.b, f->mt * 16, f->nt * 8, f->k);
    for (unsigned l = 0; l < lanes; ++l) {
        const assay_sim_tile_product *o =
            static_cast<const assay_sim_tile_product *>(static_cast<const call_of_warp *>(lane[l])->what);
        for (int m = 0; m < o->mt; ++m) {
            for (int j = 0; j < o->nt; ++j) {
                for (int r = 0; r < 4; ++r)
                    o->c[(m * o->nt + j) * 4 + r] = t.c[m * 16 + result_row(static_cast<int>(l), r)]
                                                       [j * 8 + result_column(static_cast<int>(l), r)];
            }
        }
    }
}

} /* namespace sim */

using namespace sim;

void assay_sim_matrix_load(const assay_sim_tile_load *load, int line)
{
    call_of_warp c = {load, line, __builtin_return_address(0)};
    assay_sim_warp_call(load_of_warp, &c, line);
}

void assay_sim_matrix_product(const assay_sim_tile_product *product, int line)
{
    call_of_warp c = {product, line, __builtin_return_address(0)};
    assay_sim_warp_call(product_of_warp, &c, line);
}

void assay_sim_set_matrix_truncates(int on)
{
    config().matrix_truncates = on != 0;
}
