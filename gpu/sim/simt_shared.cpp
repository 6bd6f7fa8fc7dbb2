/* A block's shared memory: poisoned, guarded, counted against the device's limits. */
#include "simt.hpp"

#include <string.h>

namespace sim
{

void shared_begin(worker &w)
{
    const size_t dynamic = (w.call->shared_bytes + 15) / 16 * 16;
    memory_asan_unpoison(w.arena, w.arena_used ? w.arena_used : arena_bytes);
    memset(w.arena + shared_guard, 0xff, dynamic);
    memory_fill_guard(w.arena, shared_guard);
    memory_fill_guard(w.arena + shared_guard + w.call->shared_bytes,
                      dynamic - w.call->shared_bytes + shared_guard);
    memory_asan_poison(w.arena, shared_guard);
    memory_asan_poison(w.arena + shared_guard + w.call->shared_bytes,
                       dynamic - w.call->shared_bytes + shared_guard);
    w.arena_used = dynamic + 2 * shared_guard;
    w.static_used = 0;
    w.arrays.clear();
}

static bool shared_guard_intact(worker &w, const unsigned char *array, size_t bytes, const char *name)
{
    size_t at;
    if (memory_guard_intact(array + bytes, (bytes + 15) / 16 * 16 - bytes + shared_guard, &at))
        return true;
    assay_sim_report(
        "out of bounds",
        "kernel %s block (%u,%u,%u) thread (?,?,?) line 0: a write past the end of shared array %s, %zu "
        "bytes behind it",
        w.call->name, blockIdx.x, blockIdx.y, blockIdx.z, name, at);
    return false;
}

bool shared_end(worker &w)
{
#if SIM_ASAN
    (void)w;
    (void)shared_guard_intact; /* the address sanitizer has caught the write itself */
    return true;
#else
    if (!shared_guard_intact(w, w.arena + shared_guard, w.call->shared_bytes, "(dynamic)"))
        return false;
    for (const shared_array &a : w.arrays) {
        if (!shared_guard_intact(w, a.at, a.bytes, a.name))
            return false;
    }
    return true;
#endif
}

void *shared_array_at(worker &w, const void *site, const char *name, size_t bytes, size_t align, int line)
{
    for (const shared_array &a : w.arrays) {
        if (a.site == site)
            return a.at;
    }
    if (w.looping)
        report_promise(w, "shared memory", line);
    const size_t unit = align < 16 ? 16 : align;
    const size_t start = (w.arena_used + unit - 1) / unit * unit, padded = (bytes + 15) / 16 * 16;
    w.static_used += padded;
    if (w.static_used > max_shared_default || w.static_used + w.call->shared_bytes > max_shared_optin) {
        assay_sim_report("shared memory",
                         WHERE
                         "array %s brings the block to %zu static and %zu dynamic bytes of shared memory; at "
                         "most %zu and %zu together are possible",
                         WHERE_ARGS(w, threadIdx, line), name, w.static_used, w.call->shared_bytes,
                         max_shared_default, max_shared_optin);
        abandon(w);
    }
    unsigned char *at = w.arena + start;
    memory_asan_unpoison(at, padded + shared_guard);
    memset(at, 0xff, padded);
    memory_fill_guard(at + bytes, padded - bytes + shared_guard);
    memory_asan_poison(at + bytes, padded - bytes + shared_guard);
    w.arena_used = start + padded + shared_guard;
    w.arrays.push_back(shared_array{site, name, at, bytes});
    return at;
}

} /* namespace sim */
