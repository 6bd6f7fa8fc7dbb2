/* Happens-before among the threads of a grid, by the scopes of CUDA's memory model, and among the pieces of stream work.
 *
 * A thread counts its own steps; a step ends where something it did may be handed on.  It knows of another thread's steps
 * up to a number: by the block's last barrier (`base`), by exchanges of its warp (`row`), and through atomics and fences
 * (`wide` in its block, `far` of others).  A fence keeps what the thread knows, for the scope of the fence; an atomic
 * behind it hands that on, to the block or to the device as far as both the fence and the atomic reach; an atomic of
 * another thread takes it up, and counts from that thread's next fence on.  Barriers and warp exchanges hand on what their
 * threads' fences kept and atomics took up as well.  Behind the grid's barrier every thread knows what was before it. */
#include "race_order.hpp"

#include <memory>

namespace sim
{

namespace
{

struct knowledge { /* by block: the steps of its threads that are known */
    std::map<uint32_t, std::vector<uint32_t>> at;

    void join(uint32_t block, const std::vector<uint32_t> &steps)
    {
        std::vector<uint32_t> &mine = at[block];
        if (mine.size() < steps.size())
            mine.resize(steps.size());
        for (size_t i = 0; i < steps.size(); ++i)
            mine[i] = mine[i] < steps[i] ? steps[i] : mine[i];
    }
    void join(const knowledge &other)
    {
        for (const auto &entry : other.at)
            join(entry.first, entry.second);
    }
};
typedef std::shared_ptr<knowledge> known; /* never changed once it is shared */

void add(known &to, const known &more)
{
    if (!more || to == more)
        return;
    if (!to) {
        to = more;
        return;
    }
    known sum = std::make_shared<knowledge>(*to);
    sum->join(*more);
    to = sum;
}

struct actor {
    uint32_t step;
    uint32_t row[lanes];
    std::vector<uint32_t> wide; /* empty: nothing */
    known far;
    known kept[2];  /* by fences of at least this scope */
    known taken[2]; /* by atomics, from releases of this scope; not yet fenced */
};

} /* namespace */

struct race_block_state { /* of the block that a worker runs; those of a cooperative launch take turns */
    uint32_t block = 0;
    unsigned n = 0;
    bool loop = false;
    std::vector<uint32_t> base;
    std::vector<actor> actors;
    bool apart = false; /* some actor has more than base and row */
};

namespace
{

struct location { /* what releases have left at an atomic */
    std::map<uint32_t, known> in_block;
    known in_device;
};

struct state {
    uint32_t launch = 0;
    std::vector<race_launch> launches{race_launch{}};
    race_clock clock; /* of the stream whose work runs */
    /* The launch that was last asked for, and whether it was over before this one: thousands of accesses ask in a row. */
    uint32_t asked = 0;
    bool over = false;
    std::map<uintptr_t, location> locations;
    /* By block, the steps of its threads that were over at the grid's barrier: those of the last one, which every block knows,
     * and of the one that blocks have begun to wait at. */
    std::vector<std::vector<uint32_t>> met, meeting;
};

state &the()
{
    static state *s = new state;
    return *s;
}

unsigned thread_of(const worker &w)
{
    return w.race->loop ? threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z) : w.current;
}

bool knows(const race_block_state &s, unsigned me, unsigned other, uint32_t step)
{
    const actor &a = s.actors[me];
    return step <= s.base[other] || (me / lanes == other / lanes && step <= a.row[other % lanes]) ||
           (other < a.wide.size() && step <= a.wide[other]);
}

/* All that a thread knows, itself included. */
known all_of(const race_block_state &s, unsigned me)
{
    const actor &a = s.actors[me];
    known k = std::make_shared<knowledge>();
    if (a.far)
        k->join(*a.far);
    std::vector<uint32_t> own = s.base;
    for (unsigned l = 0; l < lanes && me / lanes * lanes + l < s.n; ++l) {
        uint32_t &v = own[me / lanes * lanes + l];
        v = v < a.row[l] ? a.row[l] : v;
    }
    for (size_t i = 0; i < a.wide.size(); ++i)
        own[i] = own[i] < a.wide[i] ? a.wide[i] : own[i];
    own[me] = a.step;
    k->join(s.block, own);
    return k;
}

void learn(race_block_state &s, unsigned me, const known &k)
{
    if (!k)
        return;
    actor &a = s.actors[me];
    s.apart = true;
    add(a.far, k);
    const auto own = k->at.find(s.block);
    if (own == k->at.end())
        return;
    a.wide.resize(s.n);
    for (size_t i = 0; i < own->second.size() && i < s.n; ++i)
        a.wide[i] = a.wide[i] < own->second[i] ? own->second[i] : a.wide[i];
}

/* Threads [from, to) of the mask have met: each knows and holds what all do.  Steps are handled by the callers. */
void share(race_block_state &s, unsigned from, unsigned to, uint64_t members, bool wide)
{
    actor sum = {};
    for (unsigned t = from; t < to; ++t) {
        const actor &a = s.actors[t];
        if ((members >> (t - from) % 64 & 1u) == 0)
            continue;
        add(sum.far, a.far);
        for (int i = 0; i < 2; ++i) {
            add(sum.kept[i], a.kept[i]);
            add(sum.taken[i], a.taken[i]);
        }
        if (wide && !a.wide.empty()) {
            sum.wide.resize(s.n);
            for (size_t i = 0; i < a.wide.size(); ++i)
                sum.wide[i] = sum.wide[i] < a.wide[i] ? a.wide[i] : sum.wide[i];
        }
    }
    for (unsigned t = from; t < to; ++t) {
        if ((members >> (t - from) % 64 & 1u) == 0)
            continue;
        actor &a = s.actors[t];
        a.far = sum.far;
        a.wide = sum.wide;
        for (int i = 0; i < 2; ++i) {
            a.kept[i] = sum.kept[i];
            a.taken[i] = sum.taken[i];
        }
    }
}

} /* namespace */

void race_clock::join(const race_clock &other)
{
    for (const auto &entry : other.at) {
        uint64_t &mine = at[entry.first];
        mine = mine < entry.second ? entry.second : mine;
    }
}

race_clock &race_host()
{
    static race_clock *host = new race_clock;
    return *host;
}

void race_work(race_clock &stream, uint64_t id, const char *name)
{
    state &s = the();
    const uint64_t piece = ++stream.at[id];
    s.clock = stream;
    s.launch = static_cast<uint32_t>(s.launches.size());
    s.asked = 0;
    s.launches.push_back(race_launch{name, id, piece, {1, 1, 1}, {1, 1, 1}, false});
    s.locations.clear();
    s.met.clear();
    s.meeting.clear();
}

void race_kernel(const kernel_call &call)
{
    race_launch &l = the().launches.back();
    l.kernel = true;
    l.grid = call.grid;
    l.dim = call.block;
}

uint32_t race_current()
{
    return the().launch;
}

const race_launch &race_launch_of(uint32_t launch)
{
    return the().launches[launch];
}

void race_block(worker &w, uint64_t linear, bool loop)
{
    if (w.race == nullptr)
        w.race = new race_block_state;
    race_block_state &s = *w.race;
    race_traffic_block(w);
    s.block = static_cast<uint32_t>(linear);
    s.n = w.n;
    s.loop = loop;
    s.apart = false;
    s.base.assign(s.n, 0);
    s.actors.resize(s.n);
    for (actor &a : s.actors) {
        a.step = 1;
        for (uint32_t &v : a.row)
            v = 0;
        a.wide.clear();
        a.far.reset();
        for (int i = 0; i < 2; ++i) {
            a.kept[i].reset();
            a.taken[i].reset();
        }
    }
}

void race_barrier(const worker &w)
{
    race_block_state &s = *w.race;
    if (s.apart) {
        share(s, 0, s.n, ~uint64_t{0}, false); /* base knows all of this block */
    }
    for (unsigned t = 0; t < s.n; ++t)
        s.base[t] = s.actors[t].step++;
}

void race_grid(const worker &w, bool all)
{
    state &s = the();
    if (s.meeting.size() <= w.race->block)
        s.meeting.resize(w.race->block + 1);
    s.meeting[w.race->block] = w.race->base; /* a barrier of the block has just been passed */
    if (all)
        s.met = s.meeting;
}

void race_warp(const worker &w, unsigned k, unsigned members)
{
    race_block_state &s = *w.race;
    uint32_t row[lanes] = {};
    const unsigned from = k * lanes, to = from + lanes < s.n ? from + lanes : s.n;
    for (unsigned m = members; m != 0; m &= m - 1) {
        const unsigned i = static_cast<unsigned>(__builtin_ctz(m));
        const actor &a = s.actors[from + i];
        for (unsigned l = 0; l < lanes; ++l)
            row[l] = row[l] < a.row[l] ? a.row[l] : row[l];
        row[i] = row[i] < a.step ? a.step : row[i];
    }
    if (s.apart)
        share(s, from, to, members, true);
    for (unsigned m = members; m != 0; m &= m - 1) {
        actor &a = s.actors[from + static_cast<unsigned>(__builtin_ctz(m))];
        ++a.step;
        for (unsigned l = 0; l < lanes; ++l)
            a.row[l] = row[l];
    }
}

void race_fence(const worker &w, race_scope scope)
{
    race_block_state &s = *w.race;
    const unsigned me = thread_of(w);
    actor &a = s.actors[me];
    s.apart = true;
    learn(s, me, a.taken[SCOPE_BLOCK]);
    if (scope == SCOPE_DEVICE)
        learn(s, me, a.taken[SCOPE_DEVICE]);
    const known now = all_of(s, me);
    a.kept[SCOPE_BLOCK] = now;
    if (scope == SCOPE_DEVICE)
        a.kept[SCOPE_DEVICE] = now;
    ++a.step;
}

void race_atomic(const worker &w, uintptr_t p, bool read, bool write, race_scope scope)
{
    race_block_state &s = *w.race;
    actor &a = s.actors[thread_of(w)];
    location &l = the().locations[p];
    if (read) {
        const auto in_block = l.in_block.find(s.block);
        if (in_block != l.in_block.end()) {
            s.apart = true;
            add(a.taken[SCOPE_BLOCK], in_block->second);
        }
        if (scope == SCOPE_DEVICE && l.in_device) {
            s.apart = true;
            add(a.taken[SCOPE_DEVICE], l.in_device);
        }
    }
    if (write) {
        if (a.kept[SCOPE_BLOCK])
            add(l.in_block[s.block], a.kept[SCOPE_BLOCK]);
        if (scope == SCOPE_DEVICE)
            add(l.in_device, a.kept[SCOPE_DEVICE]);
    }
}

void race_arrive(const worker &w, const void *barrier)
{
    race_fence(w, SCOPE_BLOCK);
    race_atomic(w, reinterpret_cast<uintptr_t>(barrier), false, true, SCOPE_BLOCK);
}

void race_pass(const worker &w, const void *barrier)
{
    race_atomic(w, reinterpret_cast<uintptr_t>(barrier), true, false, SCOPE_BLOCK);
    race_fence(w, SCOPE_BLOCK);
}

race_access race_now(const worker &w, bool write, const void *pc)
{
    const race_block_state &s = *w.race;
    const unsigned me = thread_of(w);
    return race_access{the().launch, s.block, s.actors[me].step, static_cast<uint16_t>(me),
                       write,        false,   SCOPE_BLOCK,       pc};
}

bool race_before(const race_access &past)
{
    state &s = the();
    if (past.launch != s.launch) {
        if (past.launch != s.asked) {
            const race_launch &l = s.launches[past.launch];
            const auto it = s.clock.at.find(l.stream);
            s.asked = past.launch;
            s.over = it != s.clock.at.end() && it->second >= l.piece;
        }
        return s.over;
    }
    if (!s.launches[s.launch].kernel) /* a copy's own source and destination */
        return true;
    const race_block_state &b = *self->race;
    const unsigned me = thread_of(*self);
    if (past.block == b.block)
        return past.thread == me || knows(b, me, past.thread, past.when);
    if (past.block < s.met.size() && past.thread < s.met[past.block].size() &&
        past.when <= s.met[past.block][past.thread])
        return true;
    const known &far = b.actors[me].far;
    if (!far)
        return false;
    const auto it = far->at.find(past.block);
    return it != far->at.end() && past.thread < it->second.size() && past.when <= it->second[past.thread];
}

} /* namespace sim */
