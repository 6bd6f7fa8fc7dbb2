/* Simulated device memory and pinned host memory: who owns which bytes, poison, quarantine.
 *
 *   | no access | guard | user bytes | guard | no access |
 *             page    user        user+bytes  page
 *
 * Every block is a mapping of its own.  Its user bytes, rounded up to 256, end at a page's end, and on both sides lie
 * pages without access, at least 1 MiB and as many bytes as the block has (up to 1 GiB): an access beyond the rounding
 * is a fault at the instruction (simt_fault.cpp names kernel, block and thread), whether it reads or writes, near or
 * far.  What the page and the rounding leave over is filled with a pattern that only this block has, and checked after
 * kernels.  A freed block stays mapped without access for a while (quarantine), so that its use after cudaFree faults
 * as well.  Fresh user bytes are 0xFF; those of blocks of at least lazy_bytes are mapped from one file of 0xFF bytes,
 * copy on write, so that a large arena costs what is written to it. */
#include "sim.hpp"

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if SIM_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace sim
{

constexpr size_t user_align = 256;
constexpr size_t lazy_bytes = 4u << 20;
constexpr size_t pattern_bytes = 4u << 20;
constexpr size_t least_zone = 1u << 20, most_zone = 1u << 30;
constexpr size_t quarantine_blocks = 4096;
constexpr size_t quarantine_bytes = size_t{1} << 40; /* of address space; the pages are given back */

struct block {
    size_t bytes;
    memory_kind kind;
    int device;
    uint64_t serial;
    unsigned char
        *raw; /* the mapping with its zones; nullptr: registered host memory, which is the caller's */
    size_t raw_bytes, zone;
    const void *caller; /* who allocated it */
};

typedef std::map<uintptr_t, block> block_map; /* by the address of the user bytes */

struct heap {
    std::mutex lock;
    block_map blocks, freed;
    std::deque<uintptr_t> quarantine; /* of `freed`, the oldest first */
    size_t quarantined = 0;
    uint64_t serial = 0;
    size_t used[64] = {};
    std::atomic<int> devices{0}; /* that have ever had memory, 2 for two or more */
    std::atomic<int> open{0};    /* memory_access */
    std::atomic<bool> touched{
        true}; /* work has run that might have left its blocks, since all guards were last seen */
    int only = -1;
};

static heap &the_heap()
{
    static heap *h = new heap; /* outlives static destructors, which may still free */
    return *h;
}

void memory_asan_poison(void *p, size_t bytes)
{
#if SIM_ASAN
    __asan_poison_memory_region(p, bytes);
#else
    (void)p;
    (void)bytes;
#endif
}

void memory_asan_unpoison(void *p, size_t bytes)
{
#if SIM_ASAN
    __asan_unpoison_memory_region(p, bytes);
#else
    (void)p;
    (void)bytes;
#endif
}

/* --- mappings ---------------------------------------------------------------------------------------------------------- */

static size_t page_size()
{
    static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return page;
}

static size_t round_up(size_t v, size_t unit)
{
    return (v + unit - 1) / unit * unit;
}

/* Maps `bytes` at p that read as 0xFF without storing them. */
static bool map_poisoned(unsigned char *p, size_t bytes)
{
    static int file = -1;
    if (file < 0) {
        file = memfd_create("assay-sim-poison", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, static_cast<off_t>(pattern_bytes)) != 0) {
            return false;
        }
        void *pattern = mmap(nullptr, pattern_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (pattern == MAP_FAILED) {
            return false;
        }
        memset(pattern, 0xff, pattern_bytes);
        munmap(pattern, pattern_bytes);
    }
    for (size_t at = 0; at < bytes; at += pattern_bytes) {
        const size_t part = bytes - at < pattern_bytes ? bytes - at : pattern_bytes;
        if (mmap(p + at, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0) ==
            MAP_FAILED) {
            return false;
        }
    }
    return true;
}

/* Has the pages of [p, p + bytes) in memory before something writes all of them: one call instead of a fault for each, which takes half
 * as long again as the page itself.  A system that cannot (before Linux 5.14) faults. */
static void populate(unsigned char *p, size_t bytes)
{
    enum { populate_write = 23 }; /* MADV_POPULATE_WRITE; older headers do not have it */
    if (bytes > page_size()) {
        (void)madvise(p, bytes, populate_write);
    }
}

/* The bytes with access: whole pages, the last one ending where the rounded user bytes end. */
static size_t body_bytes(const block &b)
{
    return round_up(round_up(b.bytes, user_align), page_size());
}

static unsigned char *user_of(const block &b)
{
    return b.raw + b.zone + body_bytes(b) - round_up(b.bytes, user_align);
}

static bool block_map_pages(block &b, bool poison)
{
    const size_t body = body_bytes(b);
    const size_t wanted = body < least_zone  ? least_zone
                          : body < most_zone ? round_up(body, page_size())
                                             : most_zone;
    void *p;
    for (b.zone = wanted;; b.zone = page_size()) { /* narrow zones where address space is limited */
        b.raw_bytes = body + 2 * b.zone;
        p = mmap(nullptr, b.raw_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p != MAP_FAILED || b.zone == page_size()) {
            break;
        }
    }
    if (p == MAP_FAILED) {
        return false;
    }
    b.raw = static_cast<unsigned char *>(p);
    const bool mapped = poison && b.bytes >= lazy_bytes
                            ? map_poisoned(b.raw + b.zone, body)
                            : mprotect(b.raw + b.zone, body, PROT_READ | PROT_WRITE) == 0;
    if (!mapped) {
        munmap(b.raw, b.raw_bytes);
    }
    return mapped;
}

/* device_private: gives the host's access to a device block, or takes it. */
static void set_access(const block &b, bool on)
{
    if (b.kind == MEMORY_DEVICE && b.raw != nullptr)
        mprotect(b.raw + b.zone, body_bytes(b), on ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void memory_set_private(bool on)
{
    heap &h = the_heap();
    if (on) {
        faults_watch();
    }
    std::lock_guard<std::mutex> hold(h.lock);
    config().device_private = on;
    for (const auto &entry : h.blocks)
        set_access(entry.second, !on || h.open > 0);
}

void memory_access(int step)
{
    if (!config().device_private)
        return;
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    const bool before = h.open > 0;
    h.open += step;
    if (before == (h.open > 0))
        return;
    for (const auto &entry : h.blocks)
        set_access(entry.second, h.open > 0);
}

int memory_pause()
{
    const int held = config().device_private ? the_heap().open.load() : 0;
    memory_access(-held);
    return held;
}

static void fill_guards(const block &b)
{
    unsigned char *user = user_of(b);
    const size_t before = static_cast<size_t>(user - (b.raw + b.zone));
    const size_t behind = round_up(b.bytes, user_align) - b.bytes;
    memory_asan_unpoison(b.raw + b.zone, body_bytes(b));
    memory_fill_guard_before(user, before, b.serial);
    memory_fill_guard(user + b.bytes, behind, b.serial);
    memory_asan_poison(user - before, before);
    memory_asan_poison(user + b.bytes, behind);
}

static const char *kind_name(memory_kind kind)
{
    return kind == MEMORY_DEVICE ? "device" : kind == MEMORY_MANAGED ? "managed" : "pinned host";
}

/* At the program's end, where ASSAY_SIM_LEAKS asks for it: blocks that nobody freed. */
static void report_leaks()
{
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    for (const auto &entry : h.blocks) {
        const block &b = entry.second;
        char place[320];
        if (b.raw == nullptr) /* a variable, or registered host memory */
            continue;
        source_place(static_cast<const char *>(b.caller) - 1, place, sizeof place);
        assay_sim_report("leak", "%s block %llu (%zu bytes, device %d), allocated at %s, was never freed",
                         kind_name(b.kind), static_cast<unsigned long long>(b.serial), b.bytes, b.device,
                         place);
    }
}

cudaError_t memory_allocate(void **out, size_t bytes, memory_kind kind, int device, bool poison,
                            const void *caller)
{
    static const bool asked = config().leaks && atexit(report_leaks) == 0;
    (void)asked;
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    *out = nullptr;
    if (bytes > config().memory_bytes ||
        (kind == MEMORY_DEVICE && h.used[device] > config().memory_bytes - bytes)) {
        return cudaErrorMemoryAllocation;
    }
    block b = {bytes, kind, device, ++h.serial, nullptr, 0, 0, caller};
    if (!block_map_pages(b, poison)) {
        return cudaErrorMemoryAllocation;
    }
    unsigned char *user = user_of(b);
    if (poison && bytes < lazy_bytes) {
        populate(b.raw + b.zone, body_bytes(b));
        memset(user, 0xff, bytes);
    }
    fill_guards(b);
    if (config().device_private) {
        faults_watch();
        set_access(b, h.open > 0);
    }
    race_memory(user, bytes, static_cast<size_t>(user - (b.raw + b.zone)),
                round_up(bytes, user_align) - bytes, kind == MEMORY_DEVICE, poison);
    h.blocks[reinterpret_cast<uintptr_t>(user)] = b;
    if (kind == MEMORY_DEVICE) {
        h.used[device] += bytes;
        if (h.devices != 2) {
            h.devices = h.only < 0 || h.only == device ? 1 : 2;
        }
        h.only = h.only < 0 ? device : h.only;
    }
    *out = user;
    return cudaSuccess;
}

static bool guards_intact(uintptr_t at, const block &b, const char *after)
{
#if SIM_ASAN
    (void)at;
    (void)b;
    (void)after; /* the guards are poisoned: a write to them has ended the program */
    return true;
#else
    const unsigned char *user = reinterpret_cast<const unsigned char *>(at);
    const size_t before = static_cast<size_t>(user - (b.raw + b.zone));
    size_t where;
    if (!memory_guard_before_intact(user, before, b.serial, &where)) {
        assay_sim_report(
            "out of bounds",
            "%s: a write %zu bytes before the start of %s block %llu at %p (%zu bytes, device %d)", after,
            where, kind_name(b.kind), static_cast<unsigned long long>(b.serial),
            static_cast<const void *>(user), b.bytes, b.device);
        return false;
    }
    if (!memory_guard_intact(user + b.bytes, round_up(b.bytes, user_align) - b.bytes, b.serial, &where)) {
        assay_sim_report("out of bounds",
                         "%s: a write at byte %zu of %s block %llu at %p (%zu bytes, device %d)", after,
                         b.bytes + where, kind_name(b.kind), static_cast<unsigned long long>(b.serial),
                         static_cast<const void *>(user), b.bytes, b.device);
        return false;
    }
    return true;
#endif
}

/* Takes the pages away and keeps the addresses, until enough other blocks have been freed. */
static void quarantine(heap &h, uintptr_t at, const block &b)
{
    if (mmap(b.raw, b.raw_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
        MAP_FAILED) {
        munmap(b.raw, b.raw_bytes);
        return;
    }
    h.freed[at] = b;
    h.quarantine.push_back(at);
    h.quarantined += b.raw_bytes;
    while (h.quarantine.size() > quarantine_blocks || h.quarantined > quarantine_bytes) {
        const auto oldest = h.freed.find(h.quarantine.front());
        h.quarantine.pop_front();
        h.quarantined -= oldest->second.raw_bytes;
        munmap(oldest->second.raw, oldest->second.raw_bytes);
        h.freed.erase(oldest);
    }
}

cudaError_t memory_release(void *ptr, memory_kind kind)
{
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    const auto it = h.blocks.find(reinterpret_cast<uintptr_t>(ptr));
    if (it == h.blocks.end() || it->second.kind != kind || it->second.raw == nullptr) {
        return cudaErrorInvalidValue;
    }
    const block b = it->second;
    if (config().device_private)
        set_access(b, true);
    const bool intact = guards_intact(it->first, b, "found when it was freed");
    h.blocks.erase(it);
    if (kind == MEMORY_DEVICE) {
        h.used[b.device] -= b.bytes;
    }
    memory_asan_unpoison(b.raw + b.zone, body_bytes(b));
    race_memory_gone(b.raw + b.zone, body_bytes(b));
    quarantine(h, reinterpret_cast<uintptr_t>(ptr), b);
    return intact ? cudaSuccess : cudaErrorLaunchFailure;
}

/* The block whose mapping, zones included, holds the address. */
static block_map::const_iterator mapping_of(const block_map &blocks, uintptr_t at)
{
    auto it = blocks.upper_bound(at);
    for (int tries = 0; tries < 2;
         ++tries) { /* the next block's zone before it, or the last one's behind it */
        if (it != blocks.end() && it->second.raw != nullptr) {
            const uintptr_t raw = reinterpret_cast<uintptr_t>(it->second.raw);
            if (at >= raw && at - raw < it->second.raw_bytes) {
                return it;
            }
        }
        if (it == blocks.begin()) {
            break;
        }
        --it;
    }
    return blocks.end();
}

/* For a signal handler, whose own thread may have the lock: another one that has it is waited for, but not for ever. */
static std::unique_lock<std::mutex> lock_for_report(heap &h)
{
    std::unique_lock<std::mutex> hold(h.lock, std::try_to_lock);
    for (int i = 0; i < 1000 && !hold.owns_lock(); ++i) {
        usleep(1000);
        hold.try_lock();
    }
    return hold;
}

bool memory_describe(const void *ptr, char *text, size_t bytes)
{
    heap &h = the_heap();
    const std::unique_lock<std::mutex> hold = lock_for_report(h);
    if (!hold.owns_lock()) {
        return false;
    }
    const uintptr_t at = reinterpret_cast<uintptr_t>(ptr);
    bool gone = false;
    auto it = mapping_of(h.blocks, at);
    if (it == h.blocks.end()) {
        it = mapping_of(h.freed, at);
        gone = true;
        if (it == h.freed.end()) {
            return false;
        }
    }
    const block &b = it->second;
    char where[64];
    if (at < it->first) {
        snprintf(where, sizeof where, "%zu bytes before the start", static_cast<size_t>(it->first - at));
    } else {
        snprintf(where, sizeof where, "byte %zu", static_cast<size_t>(at - it->first));
    }
    snprintf(text, bytes, "%s of %s block %llu at %p (%zu bytes, device %d)%s", where, kind_name(b.kind),
             static_cast<unsigned long long>(b.serial), reinterpret_cast<void *>(it->first), b.bytes,
             b.device, gone ? ", which has been freed" : "");
    return true;
}

bool memory_is_private(const void *ptr)
{
    heap &h = the_heap();
    const std::unique_lock<std::mutex> hold = lock_for_report(h);
    if (!config().device_private || !hold.owns_lock())
        return false;
    const auto it = mapping_of(h.blocks, reinterpret_cast<uintptr_t>(ptr));
    const unsigned char *p = static_cast<const unsigned char *>(ptr);
    return it != h.blocks.end() && it->second.kind == MEMORY_DEVICE && p >= user_of(it->second) &&
           p < user_of(it->second) + it->second.bytes;
}

cudaError_t memory_register(void *ptr, size_t bytes)
{
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    if (h.blocks.count(reinterpret_cast<uintptr_t>(ptr))) {
        return cudaErrorHostMemoryAlreadyRegistered;
    }
    h.blocks[reinterpret_cast<uintptr_t>(ptr)] =
        block{bytes, MEMORY_REGISTERED, 0, ++h.serial, nullptr, 0, 0, nullptr};
    return cudaSuccess;
}

void memory_symbol(const void *ptr, size_t bytes, int device)
{
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    h.blocks.insert(
        {reinterpret_cast<uintptr_t>(ptr), block{bytes, MEMORY_DEVICE, device, 0, nullptr, 0, 0, nullptr}});
}

cudaError_t memory_unregister(void *ptr)
{
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    const auto it = h.blocks.find(reinterpret_cast<uintptr_t>(ptr));
    if (it == h.blocks.end() || it->second.kind != MEMORY_REGISTERED) {
        return cudaErrorHostMemoryNotRegistered;
    }
    h.blocks.erase(it);
    return cudaSuccess;
}

memory_kind memory_find(const void *ptr, size_t *offset, size_t *bytes, int *device)
{
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    const uintptr_t at = reinterpret_cast<uintptr_t>(ptr);
    auto it = h.blocks.upper_bound(at);
    if (it == h.blocks.begin()) {
        return MEMORY_NONE;
    }
    --it;
    const size_t off = at - it->first;
    if (off >= it->second.bytes && !(off == 0)) {
        return MEMORY_NONE;
    }
    if (offset) {
        *offset = off;
    }
    if (bytes) {
        *bytes = it->second.bytes;
    }
    if (device) {
        *device = it->second.device;
    }
    return it->second.kind;
}

bool memory_contains(const void *ptr, size_t bytes, memory_kind *kind)
{
    size_t offset = 0, size = 0;
    *kind = memory_find(ptr, &offset, &size, nullptr);
    return *kind != MEMORY_NONE && bytes <= size - offset;
}

int memory_reachable(const void *ptr, size_t bytes, int device)
{
    memory_kind kind;
    int owner = device;
    if (!memory_contains(ptr, bytes, &kind)) {
        return 0;
    }
    memory_find(ptr, nullptr, nullptr, &owner);
    return kind != MEMORY_DEVICE ? 2 : owner == device ? 1 : 0;
}

void memory_touched()
{
    the_heap().touched = true;
}

bool memory_guards_intact(const char *after)
{
    heap &h = the_heap();
    bool intact = true;
    memory_access(+1);
    {
        std::lock_guard<std::mutex> hold(h.lock);
        const bool all = h.touched.exchange(false);
        for (auto it = h.blocks.begin(); it != h.blocks.end() && intact; ++it) {
            const bool asked = it->second.raw != nullptr && (all || it->second.kind != MEMORY_DEVICE);
            intact = !asked || guards_intact(it->first, it->second, after);
            if (!intact)
                fill_guards(it->second); /* repaired, so that one stray write is reported once */
        }
        if (!intact)
            h.touched = true;
    }
    memory_access(-1);
    return intact;
}

size_t memory_blocks()
{
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    return h.blocks.size();
}

bool memory_on_several_devices()
{
    return the_heap().devices == 2;
}

size_t memory_used(int device)
{
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    return h.used[device];
}

} /* namespace sim */

extern "C" void assay_sim_set_device_private(int on)
{
    sim::memory_set_private(on != 0);
}

extern "C" int assay_sim_memory_kind(const void *ptr, size_t bytes)
{
    return sim::memory_reachable(ptr, bytes, sim::current_device());
}
