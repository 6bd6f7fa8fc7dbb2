/* Simulated device memory and pinned host memory: who owns which bytes, poison, guards.
 *
 * A block is [guard | user bytes | guard]; fresh user bytes are 0xFF.  Blocks of at least lazy_bytes are
 * mapped from one file of 0xFF bytes, copy on write, so that a large arena costs what is written to it. Under
 * the address sanitizer the guards are poisoned as well, and an access to them stops the program at the
 * instruction. */
#include "sim.hpp"

#include <map>
#include <mutex>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if SIM_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace sim
{

constexpr size_t guard_bytes = 256;
constexpr size_t lazy_bytes = 4u << 20;
constexpr size_t pattern_bytes = 4u << 20;

struct block {
    size_t bytes;
    memory_kind kind;
    int device;
    uint64_t serial;
    void *raw;        /* what malloc or mmap gave */
    size_t raw_bytes; /* of the mapping; 0: from malloc */
};

struct heap {
    std::mutex lock;
    std::map<uintptr_t, block> blocks;
    uint64_t serial = 0;
    size_t used[64] = {};
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

/* 0xFFFB at every even address: a NaN in bf16, fp16, fp32 and fp64, and not the poison itself. */
void memory_fill_guard(unsigned char *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; ++i) {
        p[i] = (reinterpret_cast<uintptr_t>(p) + i) % 2 ? 0xff : 0xfb;
    }
}

bool memory_guard_intact(const unsigned char *p, size_t bytes, size_t *at)
{
    const uint64_t word = 0xfffbfffbfffbfffbull;
    size_t i = 0;
    while (i < bytes) {
        if ((reinterpret_cast<uintptr_t>(p) + i) % 8 == 0 && i + 8 <= bytes) {
            uint64_t v;
            memcpy(&v, p + i, 8);
            if (v == word) {
                i += 8;
                continue;
            }
        }
        if (p[i] != ((reinterpret_cast<uintptr_t>(p) + i) % 2 ? 0xff : 0xfb)) {
            *at = i;
            return false;
        }
        ++i;
    }
    return true;
}

/* Maps `bytes` that read as 0xFF without storing them. */
static void *map_poisoned(size_t bytes)
{
    static int file = -1;
    if (file < 0) {
        file = memfd_create("assay-sim-poison", MFD_CLOEXEC);
        if (file < 0) {
            return nullptr;
        }
        if (ftruncate(file, static_cast<off_t>(pattern_bytes)) != 0) {
            return nullptr;
        }
        void *p = mmap(nullptr, pattern_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (p == MAP_FAILED) {
            return nullptr;
        }
        memset(p, 0xff, pattern_bytes);
        munmap(p, pattern_bytes);
    }
    void *whole = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (whole == MAP_FAILED) {
        return nullptr;
    }
    for (size_t at = 0; at < bytes; at += pattern_bytes) {
        const size_t part = bytes - at < pattern_bytes ? bytes - at : pattern_bytes;
        if (mmap(static_cast<char *>(whole) + at, part, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED) {
            munmap(whole, bytes);
            return nullptr;
        }
    }
    return whole;
}

cudaError_t memory_allocate(void **out, size_t bytes, memory_kind kind, int device, bool poison)
{
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    *out = nullptr;
    if (bytes > config().memory_bytes ||
        (kind == MEMORY_DEVICE && h.used[device] > config().memory_bytes - bytes)) {
        return cudaErrorMemoryAllocation;
    }
    const size_t padded = (bytes + 255) / 256 * 256;
    const size_t total = padded + 2 * guard_bytes;
    block b = {bytes, kind, device, ++h.serial, nullptr, 0};
    if (poison && bytes >= lazy_bytes) {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        b.raw_bytes = (total + page - 1) / page * page;
        b.raw = map_poisoned(b.raw_bytes);
    } else if (posix_memalign(&b.raw, 256, total) != 0) {
        b.raw = nullptr;
    }
    if (b.raw == nullptr) {
        return cudaErrorMemoryAllocation;
    }
    unsigned char *user = static_cast<unsigned char *>(b.raw) + guard_bytes;
    if (poison && b.raw_bytes == 0) {
        memset(user, 0xff, padded);
    }
    memory_fill_guard(user - guard_bytes, guard_bytes);
    memory_fill_guard(user + bytes, padded - bytes + guard_bytes);
    memory_asan_poison(user - guard_bytes, guard_bytes);
    memory_asan_poison(user + bytes, padded - bytes + guard_bytes);
    h.blocks[reinterpret_cast<uintptr_t>(user)] = b;
    if (kind == MEMORY_DEVICE) {
        h.used[device] += bytes;
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
    const size_t padded = (b.bytes + 255) / 256 * 256;
    size_t where;
    if (!memory_guard_intact(user - guard_bytes, guard_bytes, &where)) {
        assay_sim_report(
            "out of bounds",
            "%s: a write %zu bytes before the start of %s block %llu at %p (%zu bytes, device %d)", after,
            guard_bytes - where, b.kind == MEMORY_DEVICE ? "device" : "pinned host",
            static_cast<unsigned long long>(b.serial), static_cast<const void *>(user), b.bytes, b.device);
        return false;
    }
    if (!memory_guard_intact(user + b.bytes, padded - b.bytes + guard_bytes, &where)) {
        assay_sim_report(
            "out of bounds", "%s: a write at byte %zu of %s block %llu at %p (%zu bytes, device %d)", after,
            b.bytes + where, b.kind == MEMORY_DEVICE ? "device" : "pinned host",
            static_cast<unsigned long long>(b.serial), static_cast<const void *>(user), b.bytes, b.device);
        return false;
    }
    return true;
#endif
}

cudaError_t memory_release(void *ptr, memory_kind kind)
{
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    const auto it = h.blocks.find(reinterpret_cast<uintptr_t>(ptr));
    if (it == h.blocks.end() || it->second.kind != kind) {
        return cudaErrorInvalidValue;
    }
    const block b = it->second;
    const bool intact = guards_intact(it->first, b, "found when it was freed");
    h.blocks.erase(it);
    if (kind == MEMORY_DEVICE) {
        h.used[b.device] -= b.bytes;
    }
    unsigned char *raw = static_cast<unsigned char *>(b.raw);
    memory_asan_unpoison(raw, (b.bytes + 255) / 256 * 256 + 2 * guard_bytes);
    if (b.raw_bytes) {
        munmap(b.raw, b.raw_bytes);
    } else {
        free(b.raw);
    }
    return intact ? cudaSuccess : cudaErrorLaunchFailure;
}

cudaError_t memory_register(void *ptr, size_t bytes)
{
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    if (h.blocks.count(reinterpret_cast<uintptr_t>(ptr))) {
        return cudaErrorHostMemoryAlreadyRegistered;
    }
    h.blocks[reinterpret_cast<uintptr_t>(ptr)] = block{bytes, MEMORY_REGISTERED, 0, ++h.serial, nullptr, 0};
    return cudaSuccess;
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

bool memory_guards_intact(const char *after)
{
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    for (const auto &entry : h.blocks) {
        if (entry.second.raw != nullptr && !guards_intact(entry.first, entry.second, after)) {
            /* Repaired, so that one stray write is reported once. */
            unsigned char *user = reinterpret_cast<unsigned char *>(entry.first);
            const size_t bytes = entry.second.bytes, padded = (bytes + 255) / 256 * 256;
            memory_fill_guard(user - guard_bytes, guard_bytes);
            memory_fill_guard(user + bytes, padded - bytes + guard_bytes);
            return false;
        }
    }
    return true;
}

size_t memory_blocks()
{
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    return h.blocks.size();
}

size_t memory_used(int device)
{
    heap &h = the_heap();
    std::lock_guard<std::mutex> hold(h.lock);
    return h.used[device];
}

} /* namespace sim */

extern "C" int assay_sim_memory_kind(const void *ptr, size_t bytes)
{
    sim::memory_kind kind;
    if (!sim::memory_contains(ptr, bytes, &kind)) {
        return 0;
    }
    return kind == sim::MEMORY_DEVICE ? 1 : 2;
}
