/* What streams and events are made of: schedule.cpp runs their queues, streams.cpp and events.cpp are the runtime's calls, capture.cpp takes what would go into them. */
#ifndef ASSAY_SIM_SCHEDULE_QUEUE_HPP
#define ASSAY_SIM_SCHEDULE_QUEUE_HPP

#include "schedule.hpp"

#include <atomic>
#include <deque>
#include <mutex>
#include <set>
#include <vector>

namespace sim
{
struct graph_capture;
}

enum op_kind { OP_WORK, OP_RECORD, OP_WAIT };

/* Shared by the queue, by a thread that sleeps in work.wait without the lock, and by graphs. */
struct work_box {
    assay_sim_work work;
    int uses;
};

struct op {
    op_kind kind;
    uint64_t seq;
    work_box *box;
    CUevent_st *event;
    uint64_t generation;   /* of the record that is made, or waited for */
    sim::race_clock clock; /* of the host when it was enqueued */
};

struct CUstream_st {
    int device;
    unsigned flags;
    int priority;
    uint64_t id; /* 0: a device's legacy default stream */
    bool destroyed;
    std::deque<op> queue;
    sim::race_clock clock;
    sim::graph_capture *capture; /* what is enqueued becomes a part of it; else nullptr */
    std::vector<size_t> tail;    /* of the capture: the nodes that the next one comes after */
};

struct CUevent_st {
    int device; /* current when it was made; records elsewhere are refused, waits are not */
    unsigned flags;
    std::atomic<uint64_t> recorded, completed;
    double at;           /* host time at completion */
    CUstream_st *stream; /* of the last record */
    bool crossed;        /* records on several streams were under way at a time: a later one may run first */
    int uses;            /* queued ops that name it */
    bool destroyed;
    sim::race_clock clock;       /* of the stream at the last record that has run */
    sim::graph_capture *capture; /* that the last record is a part of */
    std::vector<size_t> tail;    /* then: the nodes that it comes after */
};

namespace sim
{

struct scheduler {
    std::recursive_mutex lock;          /* guards streams, events and captures */
    std::vector<CUstream_st *> streams; /* live, and destroyed ones that still have work */
    std::set<CUevent_st *> events;
    std::vector<CUstream_st *> legacy; /* per device */
    uint64_t seq = 0, ids = 0;
    std::atomic<int> sticky{0};
    random_stream random = {0};
    bool seeded = false;
};

scheduler &the_scheduler();
using schedule_hold = std::unique_lock<std::recursive_mutex>;

/* State of one loop that waits. */
struct schedule_wait {
    double pending_since = -1.0;
};

/* Each opening of device memory is a system call for every block: a loop opens it once, and closes it only for what is the host's. */
struct opened_memory {
    opened_memory()
    {
        memory_access(+1);
    }
    ~opened_memory()
    {
        memory_access(-1);
    }
    opened_memory(const opened_memory &) = delete;
    opened_memory &operator=(const opened_memory &) = delete;
};

/* Enqueues; the box is dropped where an error is returned. */
cudaError_t schedule_push(cudaStream_t stream, op o);
/* One step toward an empty queue of `target` (nullptr: of every stream of the device). */
void schedule_advance(schedule_hold &hold, CUstream_st *target, int device, schedule_wait &w);
/* Runs what is in the queue of `target` now (nullptr: of every stream of the device). */
cudaError_t schedule_drain(schedule_hold &hold, CUstream_st *target, int device);
/* The end of a synchronization: guards of memory are looked at, and the error that stays is returned. */
cudaError_t schedule_settle();
/* What the polls of this process have been waiting for: other streams get their turn behind a loop of polls as behind one wait, or work
 * that a pending collective needs on another stream would never run. */
schedule_wait &schedule_polled();
/* Counts for assay_sim_host_waits. */
void schedule_host_wait();
CUstream_st *stream_legacy(int device);
/* Deletes a destroyed stream whose work is done. */
void stream_collect(CUstream_st *s);
/* nullptr: no stream.  The current device's legacy default stream for 0 and cudaStreamLegacy. */
CUstream_st *stream_resolve(cudaStream_t stream);
bool stream_blocking(const CUstream_st *s);
/* Every stream and event stops being a part of the capture. */
void schedule_forget(const graph_capture *c);
void work_box_drop(work_box *box);

/* --- capture.cpp; all with the lock held ---------------------------------------------------------------------- */
/* Takes an operation of a capturing stream into its graph, or lets a stream join by the wait for a captured event; the box stays the
 * caller's where an error is returned. */
cudaError_t capture_take(CUstream_st *s, const op &o);
/* The captures that a call of the host must not come between: a synchronization or a query of this stream (nullptr: of a device, or a
 * call that allocates) or event. */
cudaError_t capture_forbids_sync(const CUstream_st *s, const char *call);
cudaError_t capture_forbids_event(const CUevent_st *e, const char *call);
/* Work in a legacy default stream would wait for capturing blocking streams of its device. */
cudaError_t capture_forbids_legacy(const CUstream_st *legacy);
void captures_reset();

} /* namespace sim */

#endif
