/* Copies by tensor maps.
 *
 * A load's destination is poison from its issue on; its bytes come when a thread waits for the barrier and nothing else is missing (in
 * random orders, drawn by the seed, at once), and are read from global memory then.  A store reads its tile when it is issued, must find
 * it unchanged when it is waited for, and writes as late as the block's end.
 *
 * Writes of threads reach copies and matrix units behind a proxy_fence alone: the block has a second picture of its dynamic shared
 * memory, which loads and fences change.  Where the two differ, a fence is missing. */
#include "wgmma.hpp"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

namespace sim
{

constexpr unsigned map_magic = 0x744d4150u;

static bool overlap(const void *a, size_t na, const void *b, size_t nb)
{
    const uintptr_t x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
    return x < y + nb && y < x + na;
}

static size_t box_bytes(const assay_sim_tensor_map &m)
{
    size_t bytes = static_cast<size_t>(m.element_bytes);
    for (int d = 0; d < m.rank; ++d)
        bytes *= m.box[d];
    return bytes;
}

void proxy_check(worker &w, tile_block &b, const void *p, size_t bytes, int line, const char *what)
{
    size_t at, i = 0;
    if (!in_dynamic(w, p, bytes, &at))
        misuse(w, "out of bounds", line, "%s leaves the block's dynamic shared memory", what);
    const unsigned char *now = static_cast<const unsigned char *>(p), *seen = b.seen.data() + at;
    if (memcmp(now, seen, bytes) == 0)
        return;
    while (now[i] == seen[i])
        ++i;
    misuse(w, "missing fence", line,
           "%s reads byte %zu of shared memory, which a thread has written: no proxy_fence followed", what,
           at + i);
}

static size_t piece_of(uintptr_t base, uintptr_t at)
{
    return at / picture_piece - base / picture_piece;
}

/* Tells f(offset, bytes) the pieces of [p, p + bytes), which begins `at` bytes behind the first byte of the picture, and counts those
 * that f says have changed. */
template <class CHANGE>
static void each_piece(tile_block &b, const void *p, size_t bytes, size_t at, CHANGE change)
{
    const uintptr_t from = reinterpret_cast<uintptr_t>(p), base = from - at;
    for (size_t i = 0; i < bytes;) {
        const size_t rest = picture_piece - (from + i) % picture_piece,
                     n = rest < bytes - i ? rest : bytes - i;
        if (change(i, n))
            b.changed[piece_of(base, from + i)] = ++b.changes;
        i += n;
    }
}

void picture_take(tile_block &b, const void *p, size_t bytes, size_t at)
{
    const unsigned char *now = static_cast<const unsigned char *>(p);
    unsigned char *seen = b.seen.data() + at;
    each_piece(b, p, bytes, at, [&](size_t i, size_t n) {
        if (memcmp(seen + i, now + i, n) == 0)
            return false;
        memcpy(seen + i, now + i, n);
        return true;
    });
}

void picture_poison(tile_block &b, const void *p, size_t bytes, size_t at)
{
    memset(b.seen.data() + at, 0xff, bytes);
    each_piece(b, p, bytes, at, [](size_t, size_t) { return true; });
}

uint64_t picture_changed(const worker &w, const tile_block &b, const void *p, size_t bytes)
{
    const uintptr_t from = reinterpret_cast<uintptr_t>(p), base = reinterpret_cast<uintptr_t>(w.arrays[0].at);
    uint64_t last = 0;
    for (size_t k = piece_of(base, from); bytes != 0 && k <= piece_of(base, from + bytes - 1); ++k)
        last = b.changed[k] > last ? b.changed[k] : last;
    return last;
}

void loads_check(worker &w, tile_block &b, const void *p, size_t bytes, int line, const char *what)
{
    for (const tensor_copy &c : b.loads) {
        if (overlap(p, bytes, c.shared, c.bytes))
            misuse(w, "late read", line,
                   "%s where the load of line %d is under way: its mbarrier's phase is not over", what,
                   line_of(c.line));
    }
}

/* Calls row(global or nullptr, shared, bytes in the map) for every row of the box, 16 bytes at a time. */
template <class EACH> static void each_chunk(const tensor_copy &c, EACH each)
{
    const assay_sim_tensor_map &m = *c.map;
    const size_t row_bytes = m.box[0] * static_cast<size_t>(m.element_bytes), rows = c.bytes / row_bytes;
    const int64_t width = static_cast<int64_t>(m.size[0]) * m.element_bytes;
    for (size_t r = 0; r < rows; ++r) {
        unsigned char *from = m.data;
        bool in = true;
        size_t rest = r;
        for (int d = 1; d < m.rank; ++d) {
            const int64_t at = c.at[d] + static_cast<int64_t>(rest % m.box[d]);
            rest /= m.box[d];
            in = in && at >= 0 && at < static_cast<int64_t>(m.size[d]);
            from += in ? at * static_cast<int64_t>(m.stride[d]) : 0;
        }
        for (size_t k = 0; k < row_bytes; k += 16) {
            const int64_t column = static_cast<int64_t>(c.at[0]) * m.element_bytes + static_cast<int64_t>(k);
            uintptr_t to = reinterpret_cast<uintptr_t>(c.shared) + r * row_bytes + k;
            if (m.swizzle == 128)
                to ^= (to >> 7 & 7u) << 4;
            const bool whole = in && column >= 0 && column + 16 <= width;
            if (whole)
                each(from + column, reinterpret_cast<unsigned char *>(to), size_t{16});
            for (int64_t e = 0; e < 16 && !whole; e += m.element_bytes) { /* an edge may cut it */
                const bool there = in && column + e >= 0 && column + e < width;
                each(there ? from + column + e : nullptr, reinterpret_cast<unsigned char *>(to) + e,
                     static_cast<size_t>(m.element_bytes));
            }
        }
    }
}

/* The global side of a copy, by pieces that lie side by side: the running thread's accesses where it issues the copy. */
static void touch_global(worker &w, const tensor_copy &c, bool write, const void *pc)
{
    if (!ASSAY_SIM_RACES) /* nobody asks */
        return;
    const unsigned char *from = nullptr;
    size_t bytes = 0;
    each_chunk(c, [&](const unsigned char *at, const unsigned char *, size_t n) {
        if (at == nullptr)
            return;
        if (at != from + bytes) {
            race_touch(w, from, bytes, write, pc);
            from = at;
            bytes = 0;
        }
        bytes += n;
    });
    race_touch(w, from, bytes, write, pc);
}

static void arrive(worker &w, tile_block &b, tensor_copy c, int line)
{
    size_t at;
    if (c.bytes != 0 && (c.shared[0] != 0xff || memcmp(c.shared, c.shared + 1, c.bytes - 1) != 0))
        misuse(w, "late read", line,
               "the destination of the load of line %d was written while it was under way", line_of(c.line));
    each_chunk(c, [&](const unsigned char *from, unsigned char *to, size_t bytes) {
        if (from == nullptr)
            memset(to, 0, bytes);
        else
            memcpy(to, from, bytes);
    });
    race_initialized(c.shared, c.bytes);
    if (in_dynamic(w, c.shared, c.bytes, &at))
        picture_take(b, c.shared, c.bytes, at);
    barrier_bytes(w, b, c.bar, c.bytes, line);
}

bool load_arrives(worker &w, tile_block &b, const assay_sim_mbarrier *bar, int line)
{
    for (size_t i = 0; i < b.loads.size(); ++i) {
        if (b.loads[i].bar != bar)
            continue;
        const tensor_copy c = b.loads[i];
        b.loads.erase(b.loads.begin() + static_cast<std::ptrdiff_t>(i));
        arrive(w, b, c, line);
        return true;
    }
    return false;
}

void stores_write(tile_block &b)
{
    for (const tensor_copy &c : b.stores)
        each_chunk(c, [&](unsigned char *to, const unsigned char *from, size_t bytes) {
            if (to != nullptr)
                memcpy(to, c.held.data() + (from - c.shared), bytes);
        });
    b.stores.clear();
}

bool copies_end(worker &w, tile_block &b)
{
    const tensor_copy *left = b.loads.empty() ? nullptr : &b.loads.front();
    for (const tensor_copy &c : b.stores)
        left = left == nullptr && !c.has_read ? &c : left;
    if (left == nullptr)
        return true;
    assay_sim_report("late read", WHERE "the block is over before anybody has waited for this %s",
                     WHERE_ARGS(w, w.fibers[left->thread].id, left->line), left->bar ? "load" : "store");
    return false;
}

/* What a load and a store have in common. */
static tensor_copy copy_of(worker &w, tile_block &b, const assay_sim_tensor_map *map, const void *shared,
                           const int *at, int rank, int line)
{
    size_t place;
    if (map->magic != map_magic)
        misuse(w, "wrong map", line, "a tensor map that nobody has made");
    if (map->rank != rank)
        misuse(w, "wrong map", line, "a tensor map of rank %d with %d coordinates", map->rank, rank);
    if (reinterpret_cast<uintptr_t>(shared) % 128 != 0)
        misuse(w, "misaligned", line,
               "a tile of a tensor map that does not begin at a multiple of 128 bytes");
    tensor_copy c = {};
    c.map = map;
    memcpy(c.at, at, sizeof(int) * static_cast<size_t>(rank));
    c.shared = static_cast<unsigned char *>(const_cast<void *>(shared));
    c.bytes = box_bytes(*map);
    c.thread = w.current;
    c.line = line;
    if (!in_dynamic(w, shared, c.bytes, &place))
        misuse(w, "out of bounds", line, "a box of %zu bytes leaves the block's dynamic shared memory",
               c.bytes);
    loads_check(w, b, shared, c.bytes, line, "a copy");
    return c;
}

/* The driver's answer, and why. */
__attribute__((format(printf, 2, 3))) static cudaError_t no_map(cudaError_t error, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    assay_sim_report("wrong map", "cuTensorMapEncodeTiled: %s", text);
    return error;
}

} /* namespace sim */

using namespace sim;

cudaError_t assay_sim_tensor_map_make(assay_sim_tensor_map *map, const void *data, int element_bytes,
                                      int rank, const uint64_t *sizes, const uint64_t *strides,
                                      const uint32_t *box, int swizzle)
{
    if (rank < 1 || rank > ASSAY_SIM_TENSOR_RANK)
        return no_map(cudaErrorInvalidValue, "rank %d: expected 1 to %d", rank, ASSAY_SIM_TENSOR_RANK);
    if (reinterpret_cast<uintptr_t>(data) % 16 != 0)
        return no_map(cudaErrorInvalidValue, "an address that is no multiple of 16 bytes");
    if (swizzle != 0 && swizzle != 128)
        return no_map(cudaErrorNotSupported, "a swizzle of %d bytes is not modelled", swizzle);
    assay_sim_tensor_map m = {};
    m.magic = map_magic;
    m.rank = rank;
    m.element_bytes = element_bytes;
    m.swizzle = swizzle;
    m.data = static_cast<unsigned char *>(const_cast<void *>(data));
    uint64_t last = static_cast<uint64_t>(element_bytes);
    for (int d = 0; d < rank; ++d) {
        m.size[d] = sizes[d];
        m.box[d] = box[d];
        m.stride[d] = d == 0 ? static_cast<uint64_t>(element_bytes) : strides[d - 1];
        if (sizes[d] < 1 || sizes[d] > uint64_t{1} << 32)
            return no_map(cudaErrorInvalidValue, "size %llu of dimension %d: expected 1 to 2^32",
                          static_cast<unsigned long long>(sizes[d]), d);
        if (box[d] < 1 || box[d] > 256)
            return no_map(cudaErrorInvalidValue, "a box of %u in dimension %d: expected 1 to 256", box[d], d);
        if (d > 0 && (m.stride[d] % 16 != 0 || m.stride[d] >= uint64_t{1} << 40))
            return no_map(cudaErrorInvalidValue,
                          "a stride of %llu bytes in dimension %d: expected a multiple of 16 below 2^40",
                          static_cast<unsigned long long>(m.stride[d]), d);
        last += (sizes[d] - 1) * m.stride[d];
    }
    const uint64_t inner = box[0] * static_cast<uint64_t>(element_bytes);
    if (inner % 16 != 0 || (swizzle != 0 && inner > static_cast<uint64_t>(swizzle)))
        return no_map(cudaErrorInvalidValue, "rows of a box of %llu bytes: expected a multiple of 16%s",
                      static_cast<unsigned long long>(inner),
                      swizzle ? ", at most those of the swizzle" : "");
    if (assay_sim_memory_kind(data, last) == 0)
        return no_map(cudaErrorInvalidValue, "%llu bytes that are no allocation of this device",
                      static_cast<unsigned long long>(last));
    *map = m;
    return cudaSuccess;
}

void assay_sim_tensor_load(void *to, const assay_sim_tensor_map *map, assay_sim_mbarrier *bar, const int *at,
                           int rank, int line)
{
    worker &w = running_worker("a tensor copy");
    tile_block &b = tiles_of(w, "tensor copy", line);
    size_t place;
    tensor_copy c = copy_of(w, b, map, to, at, rank, line);
    c.bar = bar;
    if (!barrier_find(w, b, bar, line).shown)
        misuse(w, "missing fence", line,
               "a load with an mbarrier whose initialization no fence has shown to copies "
               "(mbarrier_fence_init)");
    products_check(w, b, to, c.bytes, line);
    for (const tensor_copy &s : b.stores) {
        if (!s.has_read && overlap(to, c.bytes, s.shared, s.bytes))
            misuse(w, "late read", line, "a load to a tile that the store of line %d still reads",
                   line_of(s.line));
    }
    touch_global(w, c, false, __builtin_return_address(0));
    race_touch(w, to, c.bytes, true, __builtin_return_address(0));
    race_arrive(
        w, bar); /* whoever passes the barrier comes behind the copy: it does not end without its bytes */
    memset(to, 0xff, c.bytes);
    if (in_dynamic(w, to, c.bytes, &place))
        picture_poison(b, to, c.bytes, place);
    race_coming(to, c.bytes);
    if (late_now(w))
        b.loads.push_back(c);
    else
        arrive(w, b, c, line);
}

void assay_sim_tensor_store(const assay_sim_tensor_map *map, const void *from, const int *at, int rank,
                            int line)
{
    worker &w = running_worker("a tensor copy");
    tile_block &b = tiles_of(w, "tensor copy", line);
    tensor_copy c = copy_of(w, b, map, from, at, rank, line);
    c.group = b.stores_committed[w.current];
    proxy_check(w, b, from, c.bytes, line, "a store");
    c.held.assign(c.shared, c.shared + c.bytes);
    touch_global(w, c, true, __builtin_return_address(0));
    race_touch(w, from, c.bytes, false, __builtin_return_address(0));
    b.stores.push_back(c);
}

void assay_sim_tensor_store_commit(int line)
{
    worker &w = running_worker("a tensor copy");
    ++tiles_of(w, "tensor copy", line).stores_committed[w.current];
}

void assay_sim_tensor_store_wait(int n, int read, int line)
{
    worker &w = running_worker("a tensor copy");
    tile_block &b = tiles_of(w, "tensor copy", line);
    std::vector<tensor_copy> kept, over;
    for (tensor_copy &c : b.stores) {
        const bool mine =
            c.thread == w.current && c.group + static_cast<unsigned>(n) < b.stores_committed[w.current];
        if (mine && !c.has_read && memcmp(c.held.data(), c.shared, c.bytes) != 0)
            misuse(w, "late read", line,
                   "the tile of the store of line %d was written before it was waited for", line_of(c.line));
        if (mine && !c.has_read) /* until now: who writes there next has to come behind this wait */
            race_touch(w, c.shared, c.bytes, false, __builtin_return_address(0));
        c.has_read |= mine;
        (mine && !read ? over : kept).push_back(c);
    }
    b.stores.swap(over);
    stores_write(b);
    b.stores.swap(kept);
}
