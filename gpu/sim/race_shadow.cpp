/* The shadow of memory: for every word the last plain write, the last atomic one and two reads, for every byte whether it was ever written and whether
 * it is a guard.  Words that are accessed in parts have a shadow for each byte. */
#include "race_order.hpp"

#include <atomic>
#include <mutex>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace sim
{

namespace
{

struct cell {
    race_access write, atomic, read[2]; /* the last plain write, the last atomic one */
    cell *bytes;                        /* of the word's four bytes */
};

constexpr size_t page_bytes = 4096, page_words = page_bytes / 4;

struct page {
    bool device;
    bool
        apart; /* its words have cells of their own; else `all` is every word's, and theirs are not touched, and so not there */
    cell all;
    uint8_t byte[page_bytes];
    cell word[page_words];
};

/* Two levels over 47 bits of address; entries appear, and never go. */
constexpr unsigned low_bits = 18, high_bits = 17;
typedef std::atomic<page *> leaf[1u << low_bits];
std::atomic<leaf *> table[1u << high_bits];

/* Zeros, in large pieces: a page's shadow is some 140 KB of which most is never touched. */
void *zeros(size_t bytes)
{
    constexpr size_t piece = (size_t)64 << 20;
    static std::mutex lock;
    static char *next, *end;
    std::lock_guard<std::mutex> hold(lock);
    bytes = (bytes + 63) / 64 * 64;
    if (static_cast<size_t>(end - next) < bytes) {
        void *fresh =
            mmap(nullptr, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (fresh == MAP_FAILED)
            return nullptr;
        next = static_cast<char *>(fresh);
        end = next + piece;
    }
    void *p = next;
    next += bytes;
    return p;
}

template <class T> T *slot_of(std::atomic<T *> &slot, bool make)
{
    T *there = slot.load(std::memory_order_acquire);
    if (there != nullptr || !make)
        return there;
    void *fresh = zeros(sizeof(T));
    if (fresh == nullptr) {
        assay_sim_report("fatal", "no memory for the race checker");
        abort();
    }
    T *mine = static_cast<T *>(fresh);
    return slot.compare_exchange_strong(there, mine) ? mine : there;
}

page *page_of(uintptr_t at, bool make)
{
    const uintptr_t n = at / page_bytes;
    if (n >> (low_bits + high_bits) != 0)
        return nullptr;
    leaf *l = slot_of(table[n >> low_bits], make);
    return l == nullptr ? nullptr : slot_of((*l)[n & ((1u << low_bits) - 1)], make);
}

template <class F> void each_page(uintptr_t from, size_t bytes, bool make, F f)
{
    const uintptr_t end = from + bytes;
    while (from < end) {
        const uintptr_t next = (from / page_bytes + 1) * page_bytes, stop = next < end ? next : end;
        page *p = page_of(from, make);
        if (p != nullptr)
            f(*p, from % page_bytes, stop - from);
        from = stop;
    }
}

bool empty(const cell &c)
{
    return (c.write.launch | c.atomic.launch | c.read[0].launch | c.read[1].launch) == 0;
}

/* From now on its words are looked at one by one. */
void take_apart(page &p)
{
    if (p.apart)
        return;
    p.apart = true;
    if (empty(p.all)) /* as fresh or forgotten words are */
        return;
    for (cell &c : p.word)
        c = p.all;
    p.all = cell{};
}

void forget(page &p, size_t from, size_t bytes)
{
    if (bytes == page_bytes) {
        p.all = cell{};
    } else if (!p.apart && empty(p.all)) {
        return;
    } else {
        take_apart(p);
    }
    if (!p.apart)
        return;
    p.apart = bytes != page_bytes;
    for (size_t i = from / 4; i < (from + bytes + 3) / 4; ++i) {
        free(p.word[i].bytes);
        p.word[i] = cell{};
    }
}

void mark(const void *at, size_t bytes, race_byte as)
{
    each_page(reinterpret_cast<uintptr_t>(at), bytes, true,
              [as](page &p, size_t from, size_t n) { memset(p.byte + from, as, n); });
}

/* --- reports ------------------------------------------------------------------------------------------------------ */

std::string who(const race_access &a, const char *verb)
{
    const race_launch &l = race_launch_of(a.launch);
    char text[512], place[320];
    if (!l.kernel) {
        snprintf(text, sizeof text, "%s %s it", l.name.c_str(), verb);
        return text;
    }
    source_place(static_cast<const char *>(a.pc) - 1, place, sizeof place);
    const unsigned b = a.block, t = a.thread;
    snprintf(text, sizeof text, "kernel %s block (%u,%u,%u) thread (%u,%u,%u) %s%s it at %s", l.name.c_str(),
             b % l.grid.x, b / l.grid.x % l.grid.y, b / l.grid.x / l.grid.y, t % l.dim.x,
             t / l.dim.x % l.dim.y, t / l.dim.x / l.dim.y, a.atomic ? "atomically " : "", verb, place);
    return text;
}

std::string where(const void *p, bool shared)
{
    char text[256] = "";
    size_t offset, bytes;
    if (shared && self != nullptr && shared_describe(*self, p, text, sizeof text))
        return std::string("shared memory, ") + text;
    if (shared)
        return "shared memory";
    const memory_kind kind = memory_find(p, &offset, &bytes, nullptr);
    if (kind == MEMORY_NONE && memory_describe(p, text, sizeof text)) /* beside a block */
        return std::string("global memory, ") + text;
    if (kind == MEMORY_NONE)
        return "global memory, a variable";
    snprintf(text, sizeof text, "global memory, byte %zu of a block of %zu bytes", offset, bytes);
    return text;
}

/* Once for each pair of instructions. */
bool first_time(const void *a, const void *b)
{
    static std::mutex lock;
    static std::set<std::pair<const void *, const void *>> *seen =
        new std::set<std::pair<const void *, const void *>>;
    std::lock_guard<std::mutex> hold(lock);
    return seen->insert(a < b ? std::make_pair(a, b) : std::make_pair(b, a)).second;
}

void report_race(const void *p, const race_access &now, const race_access &past, bool shared)
{
    const void *kernels[2] = {now.pc, past.pc};
    if (!first_time(kernels[0], kernels[1]))
        return;
    const char *between = past.launch != now.launch                   ? "of two streams"
                          : past.block != now.block                   ? "of two blocks of a grid"
                          : past.thread / lanes != now.thread / lanes ? "of two threads of a block"
                                                                      : "of two lanes of a warp";
    const bool narrow = past.atomic && now.atomic;
    assay_sim_report("race", "%s: %s; %s; accesses %s that nothing orders%s", where(p, shared).c_str(),
                     who(now, now.write ? "writes" : "reads").c_str(),
                     who(past, past.write ? "wrote" : "read").c_str(), between,
                     narrow ? ", and an atomic of block scope does not reach the other block" : "");
}

/* --- checks ------------------------------------------------------------------------------------------------------- */

bool same_step(const race_access &a, const race_access &b)
{
    return a.launch == b.launch && a.block == b.block && a.thread == b.thread && a.when == b.when;
}

/* What a word of shared memory held for another block is nothing to this one. */
bool counts(const race_access &past, const race_access &now, bool shared)
{
    return past.launch != 0 && !(shared && (past.launch != now.launch || past.block != now.block));
}

bool conflicts(const race_access &past, const race_access &now, bool shared)
{
    if (!counts(past, now, shared) || !(past.write || now.write))
        return false;
    if (past.atomic && now.atomic &&
        ((past.scope == SCOPE_DEVICE && now.scope == SCOPE_DEVICE) ||
         (past.launch == now.launch && past.block == now.block)))
        return false;
    return !race_before(past);
}

/* The access with which this one races; nullptr: none. */
const race_access *visit(cell &c, const race_access &now, bool shared, race_access &found)
{
    const race_access *bad = nullptr;
    if (now.write) {
        race_access &mine = now.atomic ? c.atomic : c.write;
        if (same_step(mine, now) && c.read[0].launch == 0)
            return nullptr;
        for (race_access *past : {&c.write, &c.atomic, &c.read[0], &c.read[1]}) {
            if (bad == nullptr && conflicts(*past, now, shared)) {
                found = *past;
                bad = &found;
            }
        }
        mine = now;
        if (!now.atomic) /* whoever races with what is forgotten here races with this write as well */
            c.atomic = race_access{};
        c.read[0] = c.read[1] = race_access{};
        return bad;
    }
    if (same_step(c.read[0], now) && c.read[0].atomic == now.atomic)
        return nullptr;
    for (const race_access *past : {&c.write, &c.atomic}) {
        if (bad == nullptr && conflicts(*past, now, shared)) {
            found = *past;
            bad = &found;
        }
    }
    for (race_access &r : c.read) {
        if (!counts(r, now, shared) || ((r.atomic || !now.atomic) && race_before(r))) {
            r = now;
            return bad;
        }
    }
    /* Of many readers two are kept, of two warps or blocks where there are such. */
    race_access &victim =
        c.read[0].thread / lanes == c.read[1].thread / lanes && c.read[0].block == c.read[1].block
            ? c.read[1]
            : c.read[now.thread & 1u];
    if (!(c.read[0].thread / lanes == now.thread / lanes && c.read[0].block == now.block) &&
        !(c.read[1].thread / lanes == now.thread / lanes && c.read[1].block == now.block))
        victim = now;
    return bad;
}

void check_races(uintptr_t at, size_t bytes, const race_access &now, bool shared)
{
    race_access found;
    const uintptr_t end = at + bytes;
    page *p = nullptr;
    for (uintptr_t word = at / 4 * 4; word < end; word += 4) {
        if (p == nullptr || word % page_bytes == 0) {
            p = page_of(word, true);
            if (p == nullptr)
                return;
            if (!p->apart && word % page_bytes == 0 && word >= at && end - word >= page_bytes) {
                const race_access *bad = visit(p->all, now, shared, found); /* copies of whole pages */
                if (bad != nullptr)
                    report_race(reinterpret_cast<const void *>(word), now, *bad, shared);
                word += page_bytes - 4;
                continue;
            }
            take_apart(*p);
        }
        cell &c = p->word[word % page_bytes / 4];
        const bool whole = word >= at && word + 4 <= end;
        if (!whole && c.bytes == nullptr) {
            cell *parts = static_cast<cell *>(calloc(4, sizeof(cell)));
            if (parts == nullptr)
                return;
            for (int i = 0; i < 4; ++i) {
                parts[i] = c;
                parts[i].bytes = nullptr;
            }
            c.bytes = parts;
        }
        const race_access *bad = nullptr;
        if (c.bytes == nullptr) {
            bad = visit(c, now, shared, found);
        } else {
            for (uintptr_t i = 0; i < 4; ++i) {
                if (word + i >= at && word + i < end) {
                    const race_access *b = visit(c.bytes[i], now, shared, found);
                    bad = b ? b : bad;
                }
            }
        }
        if (bad != nullptr)
            report_race(reinterpret_cast<const void *>(word), now, *bad, shared);
    }
}

void report_access(worker &w, const char *kind, const char *what, const void *p, size_t bytes,
                   const race_access &now, bool shared)
{
    if (!bad_place(w, now.pc))
        return;
    char place[320];
    source_place(static_cast<const char *>(now.pc) - 1, place, sizeof place);
    std::string target = where(p, shared);
    assay_sim_report(kind, "kernel %s block (%u,%u,%u) thread (%u,%u,%u) at %s: a %s of %zu bytes %s: %s",
                     w.call->name, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z,
                     place, now.write ? "write" : "read", bytes, what, target.c_str());
}

} /* namespace */

void race_check(worker &w, const void *ptr, size_t bytes, const race_access &now, bool shared)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(ptr);
    bool guard = false, unwritten = true, coming = false;
    each_page(at, bytes, false, [&](page &p, size_t from, size_t n) {
        uint8_t any = BYTE_PLAIN;
        for (size_t i = from; i < from + n; ++i)
            any |= p.byte[i];
        unwritten = unwritten && any != BYTE_PLAIN;
        for (size_t i = from; i < from + n && any != BYTE_PLAIN; ++i) {
            guard = guard || p.byte[i] == BYTE_GUARD;
            unwritten = unwritten && p.byte[i] == BYTE_UNWRITTEN;
            coming = coming || p.byte[i] == BYTE_COMING;
        }
    });
    const page *first = page_of(at, false);
    unwritten = unwritten && first != nullptr;
    if (guard) {
        report_access(w, "out of bounds", "that leaves its block or array", ptr, bytes, now, shared);
        bad_access(w, now.pc, cudaErrorIllegalAddress);
    }
    if (coming) {
        report_access(w, "late read", "where an asynchronous copy is under way that nobody has waited for",
                      ptr, bytes, now, shared);
        abandon(w, cudaErrorIllegalAddress);
    }
    if (unwritten && !now.write) {
        const unsigned char *b = static_cast<const unsigned char *>(ptr);
        size_t i = 0;
        while (i < bytes && b[i] == 0xff)
            ++i; /* else a library has written it */
        if (i == bytes && first_time(now.pc, nullptr)) {
            char place[320];
            source_place(static_cast<const char *>(now.pc) - 1, place, sizeof place);
            assay_sim_report(
                "uninitialized",
                "kernel %s block (%u,%u,%u) thread (%u,%u,%u) at %s: reads %zu bytes that nobody "
                "has written: %s",
                w.call->name, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z,
                place, bytes, where(ptr, shared).c_str());
        }
    }
    if (now.write)
        race_initialized(ptr, bytes);
    check_races(at, bytes, now, shared);
}

bool race_device(uintptr_t at)
{
    const page *p = page_of(at, false);
    return p != nullptr && p->device;
}

void race_misaligned(worker &w, const void *p, size_t align, bool write, const void *pc)
{
    char what[64];
    snprintf(what, sizeof what, "at an address that is no multiple of %zu", align);
    report_access(w, "misaligned", what, p, align, race_now(w, write, pc), false);
    bad_access(w, pc, cudaErrorIllegalAddress);
}

void race_host_check(const void *ptr, size_t bytes, bool write, const void *pc)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(ptr);
    const page *p = page_of(at, false);
    if (p != nullptr && !p->device && write)
        race_initialized(ptr, bytes); /* managed memory */
    if (p == nullptr || !p->device || !first_time(pc, nullptr))
        return;
    char place[320];
    source_place(static_cast<const char *>(pc) - 1, place, sizeof place);
    assay_sim_report("illegal address", "host code at %s: a %s of %zu bytes of device memory: %s", place,
                     write ? "write" : "read", bytes, where(ptr, false).c_str());
}

void race_range(const void *ptr, size_t bytes, bool write)
{
    if (memory_find(ptr, nullptr, nullptr, nullptr) == MEMORY_NONE)
        return;
    const uint32_t launch = race_current();
    if (launch == 0)
        return;
    check_races(reinterpret_cast<uintptr_t>(ptr), bytes,
                race_access{launch, 0, 1, 0, write, false, SCOPE_BLOCK, race_launch_of(launch).name.c_str()},
                false);
    if (write)
        race_initialized(ptr, bytes);
}

void race_initialized(const void *p, size_t bytes)
{
    each_page(reinterpret_cast<uintptr_t>(p), bytes, false,
              [](page &q, size_t from, size_t n) { memset(q.byte + from, BYTE_PLAIN, n); });
}

void race_coming(const void *p, size_t bytes)
{
    mark(p, bytes, BYTE_COMING);
}

void race_memory(const void *user, size_t bytes, size_t before, size_t behind, bool device, bool poisoned)
{
    const unsigned char *u = static_cast<const unsigned char *>(user);
    each_page(reinterpret_cast<uintptr_t>(u - before), before + bytes + behind, true,
              [device](page &p, size_t from, size_t n) {
                  forget(p, from, n);
                  p.device = device;
              });
    mark(u - before, before, BYTE_GUARD);
    mark(u, bytes, poisoned ? BYTE_UNWRITTEN : BYTE_PLAIN);
    mark(u + bytes, behind, BYTE_GUARD);
}

void race_memory_gone(const void *from, size_t bytes)
{
    each_page(reinterpret_cast<uintptr_t>(from), bytes, false, [](page &p, size_t at, size_t n) {
        forget(p, at, n);
        memset(p.byte + at, BYTE_PLAIN, n);
        p.device = false;
    });
}

void race_shared(const void *array, size_t bytes, size_t before, size_t behind)
{
    const unsigned char *a = static_cast<const unsigned char *>(array);
    mark(a - before, before, BYTE_GUARD);
    mark(a, bytes, BYTE_UNWRITTEN);
    mark(a + bytes, behind, BYTE_GUARD);
}

} /* namespace sim */
