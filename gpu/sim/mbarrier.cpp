/* mbarriers: arrivals and announced bytes of a phase, and waiting for its end by parity.  And the block's state of sm_90a.
 *
 * A device answers "is the phase of this parity over" alone: it takes a phase for the one two before it.  Here every thread's waits are
 * counted, so that a phase that was waited for twice or left out is told. */
#include "wgmma.hpp"

#include "assay_sim_late.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

namespace sim
{

constexpr uint64_t barrier_word = 0x6d62617272696572u; /* in memory: who writes there is noticed */
constexpr int most_arrivals = (1 << 20) - 1;

[[noreturn]] void misuse(worker &w, const char *kind, int line, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    report_matrix(w, kind, line, text);
}

bool late_now(worker &w)
{
    return config().order != ASSAY_SIM_ORDER_RANDOM || w.random.below(2) == 0;
}

tile_block &tiles_of(worker &w, const char *what, int line)
{
    if (w.looping)
        report_promise(w, what, line);
    w.fibers[w.current].line = line;
    if (w.tiles == nullptr)
        w.tiles = new tile_block{};
    tile_block &b = *w.tiles;
    if (!b.used) {
        b.used = true;
        b.seen.assign(w.arrays[0].bytes, 0xff); /* as shared memory is before a block */
        b.changed.assign(b.seen.size() / picture_piece + 2, 0);
        b.changes = 0;
        for (kept_operand &k : b.operands)
            k.of = nullptr;
    }
    return b;
}

void tiles_begin(worker &w)
{
    if (w.tiles == nullptr || !w.tiles->used)
        return;
    tile_block &b = *w.tiles;
    b.used = false;
    b.barriers.clear();
    b.loads.clear();
    b.stores.clear();
    memset(b.stores_committed, 0, sizeof b.stores_committed);
    for (wgmma_warp &p : b.warp)
        p = wgmma_warp{};
    for (unsigned g = 0; g < max_block_threads / lanes / group_warps; ++g) {
        b.products[g].clear();
        b.registers[g].clear();
    }
    memset(b.named, 0, sizeof b.named);
}

void tiles_end(worker &w)
{
    if (w.tiles == nullptr || !w.tiles->used || w.failed)
        return;
    tile_block &b = *w.tiles;
    if (copies_end(w, b) && products_end(w, b) && roles_end(w, b)) {
        stores_write(b);
        return;
    }
    w.failed = true;
    w.error = cudaErrorLaunchFailure;
}

bool in_dynamic(const worker &w, const void *p, size_t bytes, size_t *at)
{
    const shared_array &a = w.arrays[0];
    const uintptr_t from = reinterpret_cast<uintptr_t>(a.at), here = reinterpret_cast<uintptr_t>(p);
    *at = here - from;
    return here >= from && *at <= a.bytes && bytes <= a.bytes - *at;
}

static void barrier_name(const worker &w, const assay_sim_mbarrier *bar, char *text, size_t bytes)
{
    if (!shared_describe(w, bar, text, bytes))
        snprintf(text, bytes, "%p, which is no shared memory", static_cast<const void *>(bar));
}

barrier_state &barrier_find(worker &w, tile_block &b, const assay_sim_mbarrier *bar, int line)
{
    char name[256];
    const auto found = b.barriers.find(bar);
    if (found == b.barriers.end()) {
        barrier_name(w, bar, name, sizeof name);
        misuse(w, "wrong barrier", line, "the mbarrier at %s was not initialized", name);
    }
    if (bar->word != barrier_word) {
        barrier_name(w, bar, name, sizeof name);
        misuse(w, "wrong barrier", line, "the mbarrier at %s was overwritten", name);
    }
    return found->second;
}

/* The phase ends when nothing is missing; whose copies it was meant for must have arrived. */
static void barrier_ends(worker &w, const tile_block &b, barrier_state &m, const assay_sim_mbarrier *bar,
                         int line)
{
    char name[256];
    if (m.pending != 0 || m.bytes > 0)
        return;
    int64_t more = -m.bytes;
    for (const tensor_copy &c : b.loads)
        more += c.bar == bar ? static_cast<int64_t>(c.bytes) : 0;
    if (more != 0) {
        barrier_name(w, bar, name, sizeof name);
        misuse(w, "wrong barrier", line,
               "ends phase %lld of the mbarrier at %s: %lld bytes fewer were announced than its copies bring",
               static_cast<long long>(m.phase), name, static_cast<long long>(more));
    }
    ++m.phase;
    m.pending = m.expected;
}

void barrier_bytes(worker &w, tile_block &b, assay_sim_mbarrier *bar, size_t bytes, int line)
{
    barrier_state &m = barrier_find(w, b, bar, line);
    m.bytes -= static_cast<int64_t>(bytes);
    barrier_ends(w, b, m, bar, line);
}

/* Whether the phase of this parity is over; else which one the thread waits for. */
static bool phase_is_over(worker &w, barrier_state &m, const assay_sim_mbarrier *bar, int parity, int line)
{
    char name[256];
    int64_t &seen = m.seen[w.current];
    const int64_t ended = m.phase - 1;
    const bool over = (ended & 1) == (parity & 1);
    const int64_t wanted = over ? ended : m.phase;
    if (seen == -2 || wanted == seen + 1) {
        if (over)
            seen = ended;
        return over;
    }
    barrier_name(w, bar, name, sizeof name);
    if (wanted == seen)
        misuse(w, "wrong barrier", line,
               "waits for phase %lld of the mbarrier at %s a second time: with parity %d it does not wait "
               "for the "
               "next one",
               static_cast<long long>(wanted), name, parity);
    misuse(w, "wrong barrier", line,
           "waits with parity %d for phase %lld of the mbarrier at %s, and has not waited for phase %lld, "
           "which is over",
           parity, static_cast<long long>(wanted), name, static_cast<long long>(seen + 1));
}

[[noreturn]] static void report_waits(worker &w, tile_block &b, const assay_sim_mbarrier *bar, int line)
{
    char name[256];
    const barrier_state &m = barrier_find(w, b, bar, line);
    barrier_name(w, bar, name, sizeof name);
    misuse(
        w, "divergent barrier", line,
        "waits for ever for phase %lld of the mbarrier at %s (initialized in line %d): %u of %u arrivals are "
        "missing, and %lld announced bytes that no copy brings",
        static_cast<long long>(m.phase), name, line_of(m.line), m.pending, m.expected,
        static_cast<long long>(m.bytes));
}

} /* namespace sim */

using namespace sim;

void assay_sim_mbarrier_init(assay_sim_mbarrier *bar, int arrivals, int line)
{
    worker &w = running_worker("an mbarrier");
    tile_block &b = tiles_of(w, "mbarrier", line);
    char name[256];
    if (!shared_describe(w, bar, name, sizeof name))
        misuse(w, "wrong barrier", line, "an mbarrier that does not lie in shared memory");
    if (reinterpret_cast<uintptr_t>(bar) % 8 != 0)
        misuse(w, "misaligned", line, "an mbarrier that does not begin at a multiple of 8 bytes");
    if (arrivals < 1 || arrivals > most_arrivals)
        misuse(w, "wrong barrier", line, "an mbarrier of %d arrivals: expected 1 to %d", arrivals,
               most_arrivals);
    if (b.barriers.count(bar) != 0)
        misuse(w, "wrong barrier", line, "the mbarrier at %s is initialized a second time", name);
    bar->word = barrier_word;
    b.barriers[bar] = barrier_state{
        static_cast<unsigned>(arrivals), static_cast<unsigned>(arrivals), 0, 0, false, w.current, line,
        std::vector<int64_t>(w.n, -2)};
}

void assay_sim_mbarrier_fence_init(int line)
{
    worker &w = running_worker("an mbarrier");
    for (auto &m : tiles_of(w, "mbarrier", line).barriers)
        m.second.shown |= m.second.by == w.current;
}

void assay_sim_mbarrier_arrive(assay_sim_mbarrier *bar, int bytes, int line)
{
    worker &w = running_worker("an mbarrier");
    tile_block &b = tiles_of(w, "mbarrier", line);
    barrier_state &m = barrier_find(w, b, bar, line);
    if (bytes < 0 || m.bytes + bytes > most_arrivals)
        misuse(w, "wrong barrier", line,
               "%d bytes are announced to an mbarrier that awaits %lld: at most %d are possible", bytes,
               static_cast<long long>(m.bytes), most_arrivals);
    if (m.pending == 0)
        misuse(w, "wrong barrier", line,
               "phase %lld of an mbarrier of %u arrivals has them all, and awaits bytes alone",
               static_cast<long long>(m.phase), m.expected);
    race_arrive(w, bar);
    m.bytes += bytes;
    --m.pending;
    barrier_ends(w, b, m, bar, line);
}

void assay_sim_mbarrier_wait(assay_sim_mbarrier *bar, int parity, int line)
{
    worker &w = running_worker("an mbarrier");
    tile_block &b = tiles_of(w, "mbarrier", line);
    for (;;) {
        barrier_state &m = barrier_find(w, b, bar, line);
        if (phase_is_over(w, m, bar, parity, line))
            break;
        if (m.pending == 0 && load_arrives(w, b, bar, line))
            continue;
        if (look_in_vain(w, line))
            report_waits(w, b, bar, line);
        assay_sim_yield();
    }
    race_pass(w, bar);
    assay_sim_seen();
}

void assay_sim_proxy_fence(const void *p, size_t bytes, int line)
{
    worker &w = running_worker("a proxy fence");
    tile_block &b = tiles_of(w, "proxy fence", line);
    size_t at;
    if (p == nullptr) {
        p = w.arrays[0].at;
        bytes = b.seen.size();
    }
    if (!in_dynamic(w, p, bytes, &at))
        misuse(w, "out of bounds", line,
               "a proxy_fence of %zu bytes leaves the block's dynamic shared memory", bytes);
    picture_take(b, p, bytes, at);
    assay_sim_mbarrier_fence_init(line);
}
