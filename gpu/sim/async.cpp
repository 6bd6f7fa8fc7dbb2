/* Asynchronous copies from global to shared memory (cp.async): a thread's copies end when it waits for their group.
 *
 * Until then the destination is poisoned, or, in random orders, drawn by the seed, holds the new bytes already; both are legal on
 * a device.  The source is read when the copy is issued.  A tile that is read before the wait is reported by matrix.cpp; what
 * a kernel reads by itself there is NaN in a late copy. */
#include "assay_sim_matrix.h"
#include "simt.hpp"

#include <stdio.h>
#include <string.h>

namespace sim
{

struct async_copy {
    unsigned char *to;
    unsigned char bytes[16];
    unsigned group;
};

struct async_thread {
    std::vector<async_copy> copies; /* in the order of issue */
    unsigned groups;                /* committed so far: the open one's number */
};

struct async_block {
    async_thread thread[max_block_threads];
    /* of each 16 bytes of dynamic shared memory: 1 + the thread whose copy is under way */
    unsigned short owner[max_shared_optin / 16];
    size_t pending;
};

static async_block &state_of(worker &w)
{
    if (w.async == nullptr)
        w.async = new async_block{};
    return *w.async;
}

void async_begin(worker &w)
{
    if (w.async == nullptr)
        return;
    for (async_thread &t : w.async->thread) {
        t.copies.clear();
        t.groups = 0;
    }
    memset(w.async->owner, 0, sizeof w.async->owner);
    w.async->pending = 0;
}

/* Place of 16 bytes in the dynamic shared memory; false: elsewhere. */
static bool place_of(const worker &w, const void *p, size_t *at)
{
    const shared_array &a = w.arrays[0];
    const uintptr_t from = reinterpret_cast<uintptr_t>(a.at), here = reinterpret_cast<uintptr_t>(p);
    *at = (here - from) / 16;
    return here >= from && here - from + 16 <= a.bytes;
}

void async_check(worker &w, const void *p, int line)
{
    size_t at;
    if (w.async == nullptr || w.async->pending == 0 || !place_of(w, p, &at) || w.async->owner[at] == 0)
        return;
    const uint3 id = w.fibers[w.async->owner[at] - 1].id;
    char text[160];
    snprintf(text, sizeof text,
             "a tile is read while thread (%u,%u,%u) copies to byte %zu of shared memory: it has not waited "
             "for that group",
             id.x, id.y, id.z, 16 * at);
    report_matrix(w, "late read", line, text);
}

void async_end(worker &w)
{
    if (w.async == nullptr || w.async->pending == 0 || w.failed || w.hurt_block)
        return;
    for (unsigned t = 0; t < w.n; ++t) {
        if (w.async->thread[t].copies.empty())
            continue;
        const uint3 id = w.fibers[t].id;
        assay_sim_report("late read",
                         WHERE "the block is over before thread (%u,%u,%u) has waited for its copies",
                         WHERE_ARGS(w, id, w.fibers[t].line), id.x, id.y, id.z);
        w.failed = true;
        w.error = cudaErrorLaunchFailure;
        return;
    }
}

} /* namespace sim */

using namespace sim;

void assay_sim_async_copy16(void *to, const void *from, int valid, int line)
{
    worker &w = running_worker("an asynchronous copy");
    size_t at;
    if (w.looping)
        report_promise(w, "asynchronous copy", line);
    w.fibers[w.current].line = line;
    if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || (valid && reinterpret_cast<uintptr_t>(from) % 16 != 0))
        report_matrix(w, "misaligned", line,
                      "an asynchronous copy of 16 bytes from or to another address than a multiple of 16");
    if (!place_of(w, to, &at))
        report_matrix(w, "out of bounds", line,
                      "an asynchronous copy to something else than the block's dynamic shared memory");
    async_block &b = state_of(w);
    if (b.owner[at] != 0)
        report_matrix(w, "late read", line, "an asynchronous copy to where another one is under way");
    async_copy c = {static_cast<unsigned char *>(to), {0}, b.thread[w.current].groups};
    if (valid)
        race_touch(w, from, sizeof c.bytes, false, __builtin_return_address(0));
    race_touch(w, to, sizeof c.bytes, true, __builtin_return_address(0));
    if (valid)
        memcpy(c.bytes, from, sizeof c.bytes);
    if (config().order == ASSAY_SIM_ORDER_RANDOM && w.random.below(2) != 0)
        memcpy(to, c.bytes, sizeof c.bytes);
    else
        memset(to, 0xff, sizeof c.bytes);
    b.owner[at] = static_cast<unsigned short>(w.current + 1);
    ++b.pending;
    b.thread[w.current].copies.push_back(c);
}

void assay_sim_async_commit(int line)
{
    worker &w = running_worker("an asynchronous copy");
    if (w.looping)
        report_promise(w, "asynchronous copy", line);
    ++state_of(w).thread[w.current].groups;
}

void assay_sim_async_wait(int n, int line)
{
    worker &w = running_worker("an asynchronous copy");
    if (w.looping)
        report_promise(w, "asynchronous copy", line);
    async_block &b = state_of(w);
    async_thread &t = b.thread[w.current];
    size_t done = 0, at;
    while (done < t.copies.size() && t.copies[done].group + static_cast<unsigned>(n) < t.groups) {
        const async_copy &c = t.copies[done++];
        memcpy(c.to, c.bytes, sizeof c.bytes);
        /* whoever reads it has to come behind this wait, not behind the call that began the copy */
        race_touch(w, c.to, sizeof c.bytes, true, __builtin_return_address(0));
        if (place_of(w, c.to, &at))
            b.owner[at] = 0;
    }
    b.pending -= done;
    t.copies.erase(t.copies.begin(), t.copies.begin() + static_cast<std::ptrdiff_t>(done));
}
