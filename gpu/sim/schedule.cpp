/* Streams and events: queues whose work runs as late as CUDA's rules allow.
 *
 * Rules: a stream runs its work in order; a wait for an event holds until the record that it captured has
 * run; work in the legacy default stream waits for all earlier work of the device's blocking streams, and
 * they wait for it.  With stream seed 0 only what a synchronization needs is run (and among equals the
 * youngest stream first); with another seed any work that may run may run, in an order drawn from the seed.
 * Work that waits for other processes (collectives) is stepped; while it is pending the rest of the process's
 * streams get their turn, as they would on a GPU.
 *
 * One lock guards everything; it is held while a kernel runs and released while collectives wait. */
#include "schedule_queue.hpp"

namespace sim
{

/* While collectives are pending, other streams wait this long before they may run ahead of need. */
constexpr double grace_s = 0.004;

scheduler &the_scheduler()
{
    static scheduler *s = new scheduler; /* outlives static destructors */
    return *s;
}

cudaError_t sticky_error()
{
    return static_cast<cudaError_t>(the_scheduler().sticky.load());
}

CUstream_st *stream_legacy(int device)
{
    scheduler &s = the_scheduler();
    while (s.legacy.size() <= static_cast<size_t>(device)) {
        CUstream_st *n = new CUstream_st{};
        n->device = static_cast<int>(s.legacy.size());
        s.legacy.push_back(n);
        s.streams.push_back(n);
    }
    return s.legacy[static_cast<size_t>(device)];
}

CUstream_st *stream_resolve(cudaStream_t stream)
{
    if (stream == nullptr || stream == cudaStreamLegacy) {
        return stream_legacy(current_device());
    }
    for (CUstream_st *s : the_scheduler().streams) {
        if (s == stream && !s->destroyed) {
            return s;
        }
    }
    return nullptr;
}

bool stream_blocking(const CUstream_st *s)
{
    return s->id != 0 && !(s->flags & cudaStreamNonBlocking);
}

void work_box_drop(work_box *box)
{
    if (--box->uses == 0) {
        if (box->work.destroy) {
            box->work.destroy(box->work.state);
        }
        delete box;
    }
}

static void op_drop(op &o)
{
    if (o.box) {
        work_box_drop(o.box);
    }
    if (o.event && --o.event->uses == 0 && o.event->destroyed) {
        delete o.event;
    }
}

void stream_collect(CUstream_st *s)
{
    if (!s->destroyed || !s->queue.empty()) {
        return;
    }
    std::vector<CUstream_st *> &all = the_scheduler().streams;
    for (size_t i = 0; i < all.size(); ++i) {
        if (all[i] == s) {
            all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
            break;
        }
    }
    delete s;
}

void schedule_forget(const graph_capture *c)
{
    for (CUstream_st *t : the_scheduler().streams) {
        if (t->capture == c) {
            t->capture = nullptr;
            t->tail.clear();
        }
    }
    for (CUevent_st *e : the_scheduler().events) {
        if (e->capture == c) {
            e->capture = nullptr;
            e->tail.clear();
        }
    }
}

static void drop_everything()
{
    scheduler &s = the_scheduler();
    const std::vector<CUstream_st *> all = s.streams;
    for (CUstream_st *t : all) {
        while (!t->queue.empty()) {
            op o = t->queue.front();
            t->queue.pop_front();
            if (o.kind == OP_RECORD) {
                o.event->completed = o.generation;
            }
            op_drop(o);
        }
        stream_collect(t);
    }
}

void set_sticky_error(cudaError_t error)
{
    scheduler &s = the_scheduler();
    std::lock_guard<std::recursive_mutex> hold(s.lock);
    int none = 0;
    s.sticky.compare_exchange_strong(none, error);
}

void streams_reset()
{
    scheduler &s = the_scheduler();
    std::lock_guard<std::recursive_mutex> hold(s.lock);
    captures_reset();
    drop_everything();
    s.sticky = 0;
}

/* The stream in which the record that a wait is for stands; nullptr when it has run.  A later record, which another stream may run
 * first, is none. */
static CUstream_st *record_of(const op &wait)
{
    if (wait.event->completed >= wait.generation && !wait.event->crossed) {
        return nullptr;
    }
    for (CUstream_st *t : the_scheduler().streams) {
        for (const op &o : t->queue) {
            if (o.kind == OP_RECORD && o.event == wait.event && o.generation == wait.generation) {
                return t;
            }
        }
    }
    return nullptr;
}

/* The stream whose head must run before this one's head may; nullptr when nothing is in the way. */
static CUstream_st *obstacle(CUstream_st *s)
{
    const op &head = s->queue.front();
    if (head.kind == OP_WAIT) {
        CUstream_st *t = record_of(head);
        if (t != nullptr) {
            return t;
        }
    }
    if (s->id == 0) {
        for (CUstream_st *t : the_scheduler().streams) {
            if (t->device == s->device && stream_blocking(t) && !t->queue.empty() &&
                t->queue.front().seq < head.seq) {
                return t;
            }
        }
    } else if (stream_blocking(s)) {
        CUstream_st *t = stream_legacy(s->device);
        if (!t->queue.empty() && t->queue.front().seq < head.seq) {
            return t;
        }
    }
    return nullptr;
}

/* What the race checker holds for done before the head of this stream. */
static void race_order_before(CUstream_st *s, const op &head)
{
    s->clock.join(head.clock);
    for (CUstream_st *t : the_scheduler().streams) {
        if (t->device == s->device &&
            ((s->id == 0 && stream_blocking(t)) || (t->id == 0 && stream_blocking(s))))
            s->clock.join(t->clock);
    }
}

/* Waits for this record that are queued already come behind what the stream has done; those that follow find the event's clock. */
static void tell_waits(const CUstream_st *s, const op &record)
{
    if (record.event->uses == 1) {
        return;
    }
    for (CUstream_st *t : the_scheduler().streams) {
        for (op &o : t->queue) {
            if (o.kind == OP_WAIT && o.event == record.event && o.generation == record.generation) {
                o.clock.join(s->clock);
            }
        }
    }
}

/* Steps the head of a stream that nothing is in the way of. */
static assay_sim_step step(CUstream_st *s)
{
    op &head = s->queue.front();
    assay_sim_step result = ASSAY_SIM_DONE;
    race_order_before(s, head);
    if (head.kind == OP_WORK) {
        race_work(s->clock, static_cast<uint64_t>(s->device) << 48 | s->id, head.box->work.name);
        memory_access(+1);
        if (!transfer_within_bounds(head.box->work.step))
            memory_touched();
        result = head.box->work.step(head.box->work.state);
        memory_access(-1);
    } else if (head.kind == OP_RECORD) {
        head.event->at = now_seconds();
        tell_waits(s, head);
        if (head.event->completed < head.generation) {
            head.event->clock = s->clock;
            head.event->completed = head.generation;
        }
    }
    if (result == ASSAY_SIM_PENDING) {
        return result;
    }
    op done = s->queue.front();
    s->queue.pop_front();
    op_drop(done);
    stream_collect(s);
    if (result == ASSAY_SIM_FAILED) {
        set_sticky_error(cudaErrorLaunchFailure);
        drop_everything();
    }
    return result;
}

/* What must run first so that the head of `s` can. */
static CUstream_st *first_needed(CUstream_st *s)
{
    for (CUstream_st *t = obstacle(s); t != nullptr; t = obstacle(s)) {
        s = t;
    }
    return s;
}

static std::vector<CUstream_st *> runnable_streams()
{
    std::vector<CUstream_st *> out;
    for (CUstream_st *s : the_scheduler().streams) {
        if (!s->queue.empty() && obstacle(s) == nullptr) {
            out.push_back(s);
        }
    }
    return out;
}

static bool is_live(const CUstream_st *s)
{
    for (const CUstream_st *t : the_scheduler().streams) {
        if (t == s) {
            return true;
        }
    }
    return false;
}

/* Lets everything that may run take one step; true when something ended. */
static bool step_all()
{
    std::vector<CUstream_st *> ready = runnable_streams();
    bool any = false;
    for (CUstream_st *s : ready) {
        if (is_live(s) && !s->queue.empty() && obstacle(s) == nullptr) {
            any |= step(s) != ASSAY_SIM_PENDING;
        }
    }
    return any;
}

/* Pending work: other streams get their turn after a moment, then the thread sleeps until the work might go
 * on. */
static void wait_pending(schedule_hold &hold, CUstream_st *s, schedule_wait &w)
{
    const double now = now_seconds();
    if (w.pending_since < 0.0) {
        w.pending_since = now;
    } else if (now - w.pending_since > grace_s) {
        if (step_all() || !is_live(s) || s->queue.empty()) {
            w.pending_since = -1.0;
            return;
        }
    }
    const op &head = s->queue.front();
    if (head.kind != OP_WORK || head.box->work.wait == nullptr) {
        return;
    }
    work_box *box = head.box;
    ++box->uses;
    const int held = memory_pause(); /* host code of other threads runs meanwhile */
    hold.unlock();
    box->work.wait(box->work.state);
    hold.lock();
    memory_access(held);
    work_box_drop(box);
}

void schedule_advance(schedule_hold &hold, CUstream_st *target, int device, schedule_wait &w)
{
    scheduler &s = the_scheduler();
    CUstream_st *pick = nullptr;
    if (!s.seeded) {
        s.seeded = true;
        s.random.state = config().stream_seed;
    }
    if (config().stream_seed != 0) {
        std::vector<CUstream_st *> ready = runnable_streams();
        if (!ready.empty()) {
            pick = ready[s.random.below(ready.size())];
        }
    } else if (target != nullptr) {
        pick = first_needed(target);
    } else {
        for (CUstream_st *t : s.streams) {
            if (t->device == device && !t->queue.empty()) {
                pick = t; /* the youngest, so that "created first runs first" is not relied upon */
            }
        }
        pick = pick ? first_needed(pick) : nullptr;
    }
    if (pick == nullptr) {
        return;
    }
    if (step(pick) == ASSAY_SIM_PENDING) {
        wait_pending(hold, pick, w);
    } else {
        w.pending_since = -1.0;
    }
}

schedule_wait &schedule_polled()
{
    static schedule_wait *w = new schedule_wait;
    return *w;
}

static bool has_work_before(const CUstream_st *s, uint64_t seq)
{
    return is_live(s) && !s->queue.empty() && s->queue.front().seq < seq;
}

cudaError_t schedule_settle()
{
    if (sticky_error() == cudaSuccess && !memory_guards_intact("found at a synchronization")) {
        set_sticky_error(cudaErrorLaunchFailure);
    }
    return sticky_error();
}

cudaError_t schedule_drain(schedule_hold &hold, CUstream_st *target, int device)
{
    const uint64_t until = the_scheduler().seq;
    schedule_wait w;
    const opened_memory memory;
    for (;;) {
        bool left = false;
        if (sticky_error() != cudaSuccess) {
            return sticky_error();
        }
        if (target != nullptr) {
            left = has_work_before(target, until);
        } else {
            for (const CUstream_st *s : the_scheduler().streams) {
                left = left || (s->device == device && has_work_before(s, until));
            }
        }
        if (!left) {
            break;
        }
        schedule_advance(hold, target, device, w);
    }
    for (const CUstream_st *s : the_scheduler().streams) {
        if (target != nullptr ? s == target : s->device == device)
            race_host().join(s->clock);
    }
    return schedule_settle();
}

cudaError_t schedule_push(cudaStream_t stream, op o)
{
    scheduler &s = the_scheduler();
    schedule_hold hold(s.lock);
    CUstream_st *t = stream == cudaStreamPerThread ? nullptr : stream_resolve(stream);
    cudaError_t error = sticky_error();
    if (error == cudaSuccess && t == nullptr) {
        error = cudaErrorInvalidResourceHandle;
    }
    if (error != cudaSuccess) {
        if (o.box) {
            work_box_drop(o.box);
        }
        return error;
    }
    if (t->capture || (o.kind == OP_WAIT && o.event->capture)) {
        error = capture_take(t, o);
    } else if (t->id == 0) {
        error = capture_forbids_legacy(t);
    }
    if (error != cudaSuccess && o.box) {
        work_box_drop(o.box);
    }
    if (error != cudaSuccess || t->capture) {
        return error;
    }
    o.clock = race_host();
    o.seq = s.seq++;
    if (o.event) {
        ++o.event->uses;
        if (o.kind == OP_WAIT && o.event->completed >= o.generation) {
            o.clock.join(o.event->clock);
        }
        if (o.kind == OP_RECORD) {
            o.event->crossed =
                o.event->crossed || (o.event->completed < o.event->recorded && o.event->stream != t);
            o.generation = ++o.event->recorded;
            o.event->stream = t;
            o.event->capture = nullptr;
            o.event->tail.clear();
        }
    }
    t->queue.push_back(o);
    return config().eager ? schedule_drain(hold, t, t->device) : cudaSuccess;
}

} /* namespace sim */

extern "C" cudaError_t assay_sim_enqueue(cudaStream_t stream, const assay_sim_work *work)
{
    op o = {};
    o.kind = OP_WORK;
    o.box = new work_box{*work, 1};
    return sim::record_error(sim::schedule_push(stream, o));
}

extern "C" void assay_sim_poll(void)
{
    std::lock_guard<std::recursive_mutex> hold(sim::the_scheduler().lock);
    if (sim::sticky_error() == cudaSuccess) {
        sim::step_all();
    }
}
