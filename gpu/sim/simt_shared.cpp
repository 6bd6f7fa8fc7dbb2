/* A block's shared memory: poisoned, guarded, counted against the device's limits.
 *
 * Every array that a kernel declares has pages of its own, for the life of the process: it ends, rounded up to 16
 * bytes, where a page without access begins, and the page before its first one has none either.  An access beyond
 * these is a fault at the instruction.  What the pages and the rounding leave over next to the array is filled with a
 * guard and checked when the block is over; a block whose guard is damaged runs once more, checked at every switch of
 * threads, so that the report can name the thread. */
#include "simt.hpp"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace sim
{

constexpr size_t shared_guard = 64;

static size_t up(size_t v, size_t unit)
{
    return (v + unit - 1) / unit * unit;
}

static shared_region region_make(size_t bytes)
{
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), body = up(bytes, page);
    shared_region r = {nullptr, body + 2 * page, nullptr, nullptr};
    void *p = mmap(nullptr, r.raw_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(static_cast<char *>(p) + page, body, PROT_READ | PROT_WRITE) != 0) {
        assay_sim_report("fatal", "no memory for a block's shared memory (%zu bytes)", bytes);
        abort();
    }
    r.raw = static_cast<unsigned char *>(p);
    r.begin = r.raw + page;
    r.end = r.begin + body;
    return r;
}

/* Poison and guards of an array that ends at the end of its region, for the block that begins to use it. */
static void array_open(worker &w, const shared_region &r, const void *site, const char *name, size_t bytes,
                       size_t align, int line)
{
    const size_t padded = up(bytes, align);
    unsigned char *at = r.end - padded;
    const size_t room = static_cast<size_t>(at - r.begin),
                 before = room < shared_guard ? room / 8 * 8 : shared_guard;
    const uint64_t serial = guard_of_shared | w.arrays.size();
    memory_asan_unpoison(r.begin, static_cast<size_t>(r.end - r.begin));
    memset(at, 0xff, bytes);
    memory_fill_guard_before(at, before, serial);
    memory_fill_guard(at + bytes, padded - bytes, serial);
    memory_asan_poison(at - before, before);
    memory_asan_poison(at + bytes, padded - bytes);
    race_shared(at, bytes, before, padded - bytes);
    w.arrays.push_back(shared_array{site, name, at, bytes, before, padded - bytes, serial, line, r});
    assay_sim_has_shared = assay_sim_has_shared || bytes > 0;
}

void shared_begin(worker &w)
{
    if (w.dynamic_region.raw == nullptr)
        w.dynamic_region = region_make(max_shared_optin);
    w.static_used = 0;
    w.arrays.clear();
    assay_sim_has_shared = 0;
    array_open(w, w.dynamic_region, nullptr, "(dynamic)", w.call->shared_bytes, 16, 0);
}

void *shared_dynamic(worker &w)
{
    return w.arrays[0].at;
}

bool shared_damage(const worker &w, char *text, size_t bytes)
{
    for (const shared_array &a : w.arrays) {
        size_t at;
        char declared[32] = "";
        if (a.line != 0)
            snprintf(declared, sizeof declared, ", declared in line %d", a.line);
        if (!memory_guard_intact(a.at + a.bytes, a.behind, a.serial, &at)) {
            snprintf(text, bytes,
                     "a write past the end of shared array %s, %zu bytes behind it (%zu bytes%s)", a.name, at,
                     a.bytes, declared);
            return true;
        }
        if (!memory_guard_before_intact(a.at, a.before, a.serial, &at)) {
            snprintf(text, bytes, "a write %zu bytes before the start of shared array %s (%zu bytes%s)", at,
                     a.name, a.bytes, declared);
            return true;
        }
    }
    return false;
}

bool shared_describe(const worker &w, const void *ptr, char *text, size_t bytes)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(ptr);
    for (const shared_array &a : w.arrays) {
        const uintptr_t raw = reinterpret_cast<uintptr_t>(a.region.raw),
                        array = reinterpret_cast<uintptr_t>(a.at);
        if (at < raw || at - raw >= a.region.raw_bytes)
            continue;
        if (at < array)
            snprintf(text, bytes, "%zu bytes before the start of shared array %s (%zu bytes)",
                     static_cast<size_t>(array - at), a.name, a.bytes);
        else
            snprintf(text, bytes, "byte %zu of shared array %s (%zu bytes)", static_cast<size_t>(at - array),
                     a.name, a.bytes);
        return true;
    }
    return false;
}

void shared_trace(worker &w, const char *when, int line)
{
    char text[256];
    if (!shared_damage(w, text, sizeof text))
        return;
    assay_sim_report("out of bounds", WHERE "%s, found %s", WHERE_ARGS(w, threadIdx, line), text, when);
    abandon(w);
}

void *shared_array_at(worker &w, const void *site, const char *name, size_t bytes, size_t align, int line)
{
    if (w.looping)
        report_promise(w, "shared memory", line);
    w.fibers[w.current].line = line;
    for (const shared_array &a : w.arrays) {
        if (a.site == site)
            return a.at;
    }
    w.static_used += up(bytes, 16);
    if (w.static_used > max_shared_default || w.static_used + w.call->shared_bytes > w.call->shared_most) {
        assay_sim_report(
            "shared memory",
            WHERE "array %s brings the block to %zu static and %zu dynamic bytes of shared memory; at "
                  "most %zu and %zu together are possible%s",
            WHERE_ARGS(w, threadIdx, line), name, w.static_used, w.call->shared_bytes, max_shared_default,
            w.call->shared_most,
            w.call->shared_most < max_shared_optin
                ? " (more needs cudaFuncSetAttribute with cudaFuncAttributeMaxDynamicSharedMemorySize)"
                : "");
        abandon(w);
    }
    shared_region &r = w.regions[site];
    if (r.raw == nullptr)
        r = region_make(up(bytes, align < 16 ? 16 : align));
    array_open(w, r, site, name, bytes, align < 16 ? 16 : align, line);
    return w.arrays.back().at;
}

} /* namespace sim */

using namespace sim;

__thread int assay_sim_has_shared;

void assay_sim_global_only(const void *p, const char *what, int line)
{
    char text[256];
    worker &w = running_worker(what);
    if (!shared_describe(w, p, text, sizeof text))
        return;
    assay_sim_report("wrong state space",
                     WHERE "%s of %s: the instruction is one of global memory, a device refuses it",
                     WHERE_ARGS(w, threadIdx, line), what, text);
    abandon(w);
}
