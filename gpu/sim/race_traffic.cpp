/* What kernels move: ASSAY_SIM_TRAFFIC names a file to which a process appends a line of JSON for each kernel that it has run.
 *
 * moved: 32 bytes for each sector of global memory that the lanes of a warp touch in one execution of an instruction, however many of
 * them do and however little of it: what leaves the first-level cache when nothing is found there.  least: every byte that a launch
 * has touched, once.  Lanes run one after the other, so the k-th time that a lane comes to an instruction counts as the warp's k-th. */
#include "race_order.hpp"

#include <fcntl.h>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <unordered_map>

namespace sim
{

namespace
{

constexpr size_t sector = 32, page_bytes = 4096;

struct traffic {
    uint64_t moved[2], least[2]; /* read, written */
};

struct totals : traffic {
    uint64_t launches;
};

struct touched { /* a bit for each byte of a page */
    uint64_t bits[2][page_bytes / 64];
};

struct execution {
    const void *pc;
    uint32_t warp, count;
    bool operator==(const execution &o) const
    {
        return pc == o.pc && warp == o.warp && count == o.count;
    }
};
struct hash_of {
    size_t operator()(const execution &e) const
    {
        return (reinterpret_cast<uintptr_t>(e.pc) * 0x9e3779b97f4a7c15u) ^ (uint64_t{e.warp} << 40 ^ e.count);
    }
    size_t operator()(const std::pair<const void *, uint32_t> &e) const
    {
        return (reinterpret_cast<uintptr_t>(e.first) * 0x9e3779b97f4a7c15u) ^ e.second;
    }
};

struct sectors {
    unsigned n;
    uintptr_t at[2 * lanes]; /* of one instruction of a warp: 16 bytes a lane that may begin anywhere */
};

struct counters {
    std::mutex lock;
    std::map<std::string, totals> kernels;
    uint32_t launch = 0;
    totals *kernel = nullptr;
    std::unordered_map<uintptr_t, touched> pages;                                    /* of the launch */
    std::unordered_map<std::pair<const void *, uint32_t>, uint32_t, hash_of> counts; /* of the block */
    std::unordered_map<execution, sectors, hash_of> warps;
};

const char *file_name()
{
    static const char *const path = getenv("ASSAY_SIM_TRAFFIC");
    return path;
}

void write_all();

counters &the()
{
    static counters *c = [] {
        atexit(write_all);
        return new counters;
    }();
    return *c;
}

void end_of_launch(counters &c)
{
    for (const auto &page : c.pages) {
        for (int w = 0; w < 2; ++w) {
            for (const uint64_t bits : page.second.bits[w])
                c.kernel->least[w] += static_cast<unsigned>(__builtin_popcountll(bits));
        }
    }
    c.pages.clear();
}

void write_all()
{
    counters &c = the();
    std::lock_guard<std::mutex> hold(c.lock);
    std::string text;
    end_of_launch(c);
    for (const auto &k : c.kernels) {
        char line[512];
        snprintf(line, sizeof line,
                 "{\"kernel\": \"%s\", \"launches\": %llu, \"read\": %llu, \"least_read\": %llu, "
                 "\"written\": %llu, \"least_written\": %llu}\n",
                 k.first.c_str(), static_cast<unsigned long long>(k.second.launches),
                 static_cast<unsigned long long>(k.second.moved[0]),
                 static_cast<unsigned long long>(k.second.least[0]),
                 static_cast<unsigned long long>(k.second.moved[1]),
                 static_cast<unsigned long long>(k.second.least[1]));
        text += line;
    }
    const int file = open(file_name(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
        assay_sim_report("fatal", "ASSAY_SIM_TRAFFIC: %s cannot be written", file_name());
    if (file >= 0)
        close(file);
}

/* The launch that runs now. */
void follow(counters &c, const worker &w)
{
    const uint32_t launch = race_current();
    if (launch == c.launch && c.kernel != nullptr)
        return;
    end_of_launch(c);
    c.launch = launch;
    c.kernel = &c.kernels[w.call->name];
    ++c.kernel->launches;
}

void count_once(counters &c, uintptr_t at, size_t bytes, bool write)
{
    for (uintptr_t p = at; p < at + bytes; ++p)
        c.pages[p / page_bytes].bits[write][p % page_bytes / 64] |= uint64_t{1} << p % 64;
}

} /* namespace */

void race_traffic_block(const worker &w)
{
    if (file_name() == nullptr)
        return;
    counters &c = the();
    std::lock_guard<std::mutex> hold(c.lock);
    follow(c, w);
    c.counts.clear();
    c.warps.clear();
}

void race_traffic(const worker &w, unsigned thread, const void *p, size_t bytes, bool write, const void *pc)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(p);
    if (file_name() == nullptr || !race_device(at)) /* arguments are the host's */
        return;
    counters &c = the();
    std::lock_guard<std::mutex> hold(c.lock);
    follow(c, w);
    const uint32_t count = c.counts[std::make_pair(pc, thread * 2 + write)]++;
    sectors &s = c.warps[execution{pc, thread / lanes * 2 + write, count}];
    for (uintptr_t q = at / sector; q <= (at + bytes - 1) / sector; ++q) {
        unsigned i = 0;
        while (i < s.n && s.at[i] != q)
            ++i;
        if (i < s.n)
            continue;
        if (s.n < sizeof s.at / sizeof *s.at)
            s.at[s.n++] = q;
        c.kernel->moved[write] += sector;
    }
    count_once(c, at, bytes, write);
}

} /* namespace sim */
