/* What sm_90a adds to a block: the state of mbarrier.cpp, tma.cpp, wgmma.cpp and roles.cpp. */
#ifndef ASSAY_SIM_WGMMA_HPP
#define ASSAY_SIM_WGMMA_HPP

#include "assay_sim_wgmma.h"
#include "matrix.hpp"
#include "simt.hpp"

#include <memory>

namespace sim
{

constexpr unsigned group_warps = 4;
constexpr int terms = 64, rows_of_warp = 16; /* of a product */
constexpr size_t picture_piece = 1024; /* bytes, at multiples of them: what tiles of products are made of */

struct barrier_state { /* of an mbarrier */
    unsigned expected, pending;
    int64_t phase;             /* the one that is open */
    int64_t bytes;             /* announced and not arrived */
    bool shown;                /* its initialization, to copies */
    unsigned by;               /* the thread that has initialized it */
    int line;                  /* where */
    std::vector<int64_t> seen; /* of each thread: the phase whose end it has waited for; never: -2 */
};

struct tensor_copy {
    const assay_sim_tensor_map *map;
    int at[ASSAY_SIM_TENSOR_RANK];
    unsigned char *shared;
    size_t bytes;
    assay_sim_mbarrier *bar; /* of a load */
    unsigned thread, group;
    int line;
    bool has_read;                   /* a store's: nothing is left to do but to write */
    std::vector<unsigned char> held; /* a store's source when it was issued */
};

struct issued_product {
    assay_sim_wgmma what;
    unsigned group;
    int line;
    bool done;
    size_t sum;                 /* of wgmma_warp.sums */
    uint64_t issued;            /* changes of the picture by then */
    size_t factor;              /* of wgmma_warp.factors, where A is in registers */
    std::vector<unsigned> rows; /* what they held when it was issued: [lanes][16] */
};

struct factor_state { /* a first operand in the registers of a warp */
    const unsigned *a[lanes];
    std::vector<unsigned> given; /* what the last product found */
    uint64_t fences;             /* how many there had been by then */
};

struct sum_state { /* a result in the registers of a warp */
    float *c[lanes];
    int n, open;                     /* products that are under way */
    std::vector<float> value, given; /* [16][n]; what the registers were given last */
    uint64_t fences;                 /* how many there had been when they were given it */
};

struct wgmma_warp {
    std::vector<issued_product> open;
    std::vector<sum_state> sums;
    std::vector<factor_state> factors;
    unsigned groups; /* committed: the open one's number */
    uint64_t fences;
    size_t products, registers; /* how many calls of each kind */
};

struct group_call { /* of a warpgroup: the first of its warps to come has made it */
    int line;
    unsigned warp;
    assay_sim_wgmma what;
    int registers, more;
};

constexpr unsigned kept_operands = 4;

struct kept_operand { /* a second operand, as numbers */
    const void *of;   /* nullptr: none */
    int n, columns;
    uint64_t changes; /* of the picture by then */
    std::unique_ptr<matrix_row[]> number;
};

struct named_state {
    int threads, arrived, line;
    uint64_t turn;
};

struct tile_block {
    bool used;
    std::vector<unsigned char>
        seen; /* the picture: the dynamic shared memory, as copies and matrix units see it */
    std::vector<uint64_t> changed; /* when each piece of it changed last, by number */
    uint64_t changes;              /* of the picture so far */
    kept_operand operands[kept_operands];
    unsigned next_operand;
    std::unordered_map<const void *, barrier_state> barriers;
    std::vector<tensor_copy> loads, stores; /* under way */
    unsigned stores_committed[max_block_threads];
    wgmma_warp warp[max_block_threads / lanes];
    std::vector<group_call> products[max_block_threads / lanes / group_warps],
        registers[max_block_threads / lanes / group_warps];
    named_state named[16];
};

tile_block &tiles_of(worker &w, const char *what, int line);
/* Whether [p, p + bytes) lies in the dynamic shared memory; *at: where. */
bool in_dynamic(const worker &w, const void *p, size_t bytes, size_t *at);
/* A report of the running thread, which ends the block. */
[[noreturn]] void misuse(worker &w, const char *kind, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
bool late_now(worker &w); /* by the order and its seed: as late as may be */

/* Reports bytes that a thread has written without proxy_fence; copies under way to them. */
void proxy_check(worker &w, tile_block &b, const void *p, size_t bytes, int line, const char *what);
void loads_check(worker &w, tile_block &b, const void *p, size_t bytes, int line, const char *what);
/* The picture becomes what lies in shared memory at p, or 0xff. */
void picture_take(tile_block &b, const void *p, size_t bytes, size_t at);
void picture_poison(tile_block &b, const void *p, size_t bytes, size_t at);
/* When any of the pieces of [p, p + bytes) changed last. */
uint64_t picture_changed(const worker &w, const tile_block &b, const void *p, size_t bytes);
/* Reports products that read there. */
void products_check(worker &w, tile_block &b, const void *p, size_t bytes, int line);
/* Lets one copy of the barrier arrive, the eldest; false: none is under way. */
bool load_arrives(worker &w, tile_block &b, const assay_sim_mbarrier *bar, int line);
/* Bytes of a copy have come. */
void barrier_bytes(worker &w, tile_block &b, assay_sim_mbarrier *bar, size_t bytes, int line);
barrier_state &barrier_find(worker &w, tile_block &b, const assay_sim_mbarrier *bar, int line);

/* Of a first operand in registers (wgmma_factor.cpp).  Which of the warp's it is; what it holds, with a report where it was written since
 * the last product that read it and no fence followed; a report where it was written under the product; a [16][64] of it. */
struct tiles;
size_t factor_of(wgmma_warp &p, const unsigned *const *of_lane);
const std::vector<unsigned> &take_factor(worker &w, const wgmma_warp &p, factor_state &f, int line);
void check_factor(worker &w, const wgmma_warp &p, issued_product &o, int line);
void unpack_factor(tiles &t, const std::vector<unsigned> &rows);

/* The end of a block: false after a report. */
bool copies_end(worker &w, tile_block &b);
bool products_end(worker &w, tile_block &b);
bool roles_end(worker &w, tile_block &b);
void stores_write(tile_block &b);

/* Of a warp that is called as a whole: the warpgroup it belongs to has four. */
void check_warpgroup(worker &w, const char *what, int line);
/* The warp's call number n of a list must be the other warps' n. */
void same_call(worker &w, std::vector<group_call> &calls, size_t n, const group_call &mine, const char *what);
bool same_count(worker &w, const std::vector<group_call> &calls, unsigned group, size_t wgmma_warp::*count,
                const char *what);

} /* namespace sim */

#endif
