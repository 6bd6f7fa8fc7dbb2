/* CUDA graphs that are captured from streams, and their launches.
 *
 * What is enqueued while a stream is captured becomes a node behind the last ones of its stream and of the events that it waited for.
 * A launched graph is one piece of work of its stream; its nodes run in any order that these edges allow: with stream seed 0 the
 * youngest that may run first, so that nobody relies on the order of capture, with another seed in a drawn one.  Pointers are kept and
 * memory is read when the graph runs, pageable host memory, too.
 *
 * What CUDA forbids during a capture is refused with its error, and invalidates the capture.  Refused by name: graphs made node by node,
 * their updates, nodes for memory, graphs inside graphs, collectives. */
#include "schedule_queue.hpp"

#include "cuda_runtime_api.h"

#include <algorithm>
#include <map>
#include <memory>
#include <thread>

namespace
{

struct node {
    std::shared_ptr<work_box> box;
    std::vector<size_t> after;
    size_t lane; /* nodes of one are in order: for the race checker */
};

typedef std::vector<node> node_list;

} /* namespace */

struct CUgraph_st {
    std::shared_ptr<node_list> nodes;
};

struct CUgraphExec_st {
    std::shared_ptr<const node_list> nodes;
    uint64_t serial;
};

namespace sim
{

struct graph_capture {
    CUstream_st *origin;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    cudaError_t invalid; /* what invalidated it, else cudaSuccess */
    std::shared_ptr<node_list> nodes;
    size_t lanes;
};

} /* namespace sim */

using namespace sim;

namespace
{

std::vector<graph_capture *> &captures()
{
    static std::vector<graph_capture *> *all = new std::vector<graph_capture *>;
    return *all;
}

cudaError_t invalidate(graph_capture *c, cudaError_t error, const char *call, const char *why)
{
    c->invalid = error;
    return refuse(error, "capture", "%s: %s; the capture is invalid now", call, why);
}

/* --- capture ------------------------------------------------------------------------------------------------ */

/* A node behind the last one of a lane goes on in it; another begins a lane. */
size_t lane_of(graph_capture *c, const std::vector<size_t> &after)
{
    const node_list &nodes = *c->nodes;
    if (!after.empty()) {
        const size_t before = after.front(), lane = nodes[before].lane;
        const bool last = std::none_of(nodes.begin() + static_cast<std::ptrdiff_t>(before) + 1, nodes.end(),
                                       [&](const node &n) { return n.lane == lane; });
        if (last) {
            return lane;
        }
    }
    return c->lanes++;
}

void add_node(CUstream_st *s, work_box *box)
{
    graph_capture *c = s->capture;
    const size_t lane = lane_of(c, s->tail);
    c->nodes->push_back(node{std::shared_ptr<work_box>(box, work_box_drop), s->tail, lane});
    s->tail = {c->nodes->size() - 1};
}

void join_tails(std::vector<size_t> &into, const std::vector<size_t> &other)
{
    into.insert(into.end(), other.begin(), other.end());
    std::sort(into.begin(), into.end());
    into.erase(std::unique(into.begin(), into.end()), into.end());
}

cudaError_t take_wait(CUstream_st *s, const CUevent_st *e)
{
    if (s->capture && e->capture == nullptr) {
        return e->recorded == 0 ? cudaSuccess
                                : invalidate(s->capture, cudaErrorStreamCaptureIsolation,
                                             "cudaStreamWaitEvent", "the event was recorded outside");
    }
    if (s->capture && e->capture != s->capture) {
        e->capture->invalid = cudaErrorStreamCaptureMerge;
        return invalidate(s->capture, cudaErrorStreamCaptureMerge, "cudaStreamWaitEvent",
                          "the event belongs to another capture");
    }
    if (e->capture->invalid != cudaSuccess) {
        return cudaErrorStreamCaptureInvalidated;
    }
    if (s->capture == nullptr) {
        if (s->id == 0) {
            return invalidate(e->capture, cudaErrorStreamCaptureImplicit, "cudaStreamWaitEvent",
                              "a legacy default stream cannot be captured");
        }
        s->capture = e->capture;
        s->tail.clear();
    }
    join_tails(s->tail, e->tail);
    return cudaSuccess;
}

} /* namespace */

namespace sim
{

cudaError_t capture_take(CUstream_st *s, const op &o)
{
    if (s->capture && s->capture->invalid != cudaSuccess) {
        return cudaErrorStreamCaptureInvalidated;
    }
    if (o.kind == OP_WAIT) {
        return take_wait(s, o.event);
    }
    if (o.kind == OP_RECORD) {
        o.event->capture = s->capture;
        o.event->tail = s->tail;
        return cudaSuccess;
    }
    if (o.box->work.wait != nullptr) {
        return invalidate(s->capture, cudaErrorNotSupported, o.box->work.name,
                          "a collective in a captured stream is not modelled");
    }
    add_node(s, o.box);
    return cudaSuccess;
}

cudaError_t capture_forbids_sync(const CUstream_st *s, const char *call)
{
    for (graph_capture *c : captures()) {
        const bool ours =
            s ? s->capture == c || (s->id == 0 && stream_blocking(c->origin))
              : c->mode == cudaStreamCaptureModeGlobal ||
                    (c->mode == cudaStreamCaptureModeThreadLocal && c->thread == std::this_thread::get_id());
        if (ours) {
            return invalidate(c, cudaErrorStreamCaptureUnsupported, call,
                              "not permitted while a stream is captured");
        }
    }
    return cudaSuccess;
}

cudaError_t capture_forbids_event(const CUevent_st *e, const char *call)
{
    return invalidate(e->capture, cudaErrorCapturedEvent, call,
                      "the event was recorded in a captured stream");
}

cudaError_t capture_forbids_legacy(const CUstream_st *legacy)
{
    for (graph_capture *c : captures()) {
        if (c->origin->device == legacy->device && stream_blocking(c->origin)) {
            return invalidate(c, cudaErrorStreamCaptureImplicit, "work in the legacy default stream",
                              "it would wait for the captured stream");
        }
    }
    return cudaSuccess;
}

void captures_reset()
{
    for (graph_capture *c : captures()) {
        schedule_forget(c);
        delete c;
    }
    captures().clear();
}

bool stream_captures(cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(schedule_lock());
    const CUstream_st *s = captures().empty() ? nullptr : stream_resolve(stream);
    return s != nullptr && s->capture != nullptr;
}

cudaError_t capture_forbids_memory(const char *call)
{
    std::lock_guard<std::recursive_mutex> hold(schedule_lock());
    return capture_forbids_sync(nullptr, call);
}

} /* namespace sim */

/* --- launches ----------------------------------------------------------------------------------------------- */

namespace
{

struct graph_run {
    std::shared_ptr<const node_list> nodes;
    CUstream_st *stream; /* lives while work of it is queued */
    uint64_t serial;
    random_stream random;
};

/* The next of the nodes whose predecessors have run. */
size_t choose(random_stream &random, const std::vector<size_t> &ready)
{
    return config().stream_seed == 0
               ? static_cast<size_t>(std::max_element(ready.begin(), ready.end()) - ready.begin())
               : static_cast<size_t>(random.below(ready.size()));
}

assay_sim_step graph_step(void *state)
{
    graph_run *g = static_cast<graph_run *>(state);
    const node_list &nodes = *g->nodes;
    const race_clock before = g->stream->clock;
    const uint64_t first_lane = uint64_t{1} << 63 | g->serial << 24;
    std::vector<race_clock> clock(nodes.size());
    std::vector<size_t> missing(nodes.size()), ready;
    std::vector<std::vector<size_t>> behind(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
        missing[i] = nodes[i].after.size();
        for (const size_t a : nodes[i].after) {
            behind[a].push_back(i);
        }
        if (missing[i] == 0) {
            ready.push_back(i);
        }
    }
    while (!ready.empty()) {
        const size_t at = choose(g->random, ready), i = ready[at];
        ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(at));
        const assay_sim_work &work = nodes[i].box->work;
        clock[i] = before;
        for (const size_t a : nodes[i].after) {
            clock[i].join(clock[a]);
        }
        race_work(clock[i], first_lane | nodes[i].lane, work.name);
        const assay_sim_step result = work.step(work.state);
        if (result != ASSAY_SIM_DONE) {
            return ASSAY_SIM_FAILED;
        }
        g->stream->clock.join(clock[i]);
        for (const size_t b : behind[i]) {
            if (--missing[b] == 0) {
                ready.push_back(b);
            }
        }
    }
    return ASSAY_SIM_DONE;
}

void graph_destroy(void *state)
{
    delete static_cast<graph_run *>(state);
}

cudaError_t end_capture(CUstream_st *s, cudaGraph_t *graph)
{
    graph_capture *c = s->capture;
    if (c == nullptr) {
        return cudaErrorIllegalState;
    }
    if (c->origin != s) {
        return invalidate(c, cudaErrorStreamCaptureUnmatched, "cudaStreamEndCapture",
                          "the capture was begun in another stream");
    }
    cudaError_t error = c->invalid != cudaSuccess ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    if (error == cudaSuccess && c->mode != cudaStreamCaptureModeRelaxed &&
        c->thread != std::this_thread::get_id()) {
        error = invalidate(c, cudaErrorStreamCaptureWrongThread, "cudaStreamEndCapture",
                           "another thread began the capture");
    }
    /* Every node has to be one that the origin's last ones come after. */
    std::vector<bool> joined(c->nodes->size());
    std::vector<size_t> left = s->tail;
    while (!left.empty()) {
        const size_t i = left.back();
        left.pop_back();
        if (!joined[i]) {
            joined[i] = true;
            left.insert(left.end(), (*c->nodes)[i].after.begin(), (*c->nodes)[i].after.end());
        }
    }
    if (error == cudaSuccess && std::find(joined.begin(), joined.end(), false) != joined.end()) {
        error = invalidate(c, cudaErrorStreamCaptureUnjoined, "cudaStreamEndCapture",
                           "work of another captured stream was not joined to this one");
    }
    if (error == cudaSuccess) {
        *graph = new CUgraph_st{c->nodes};
    }
    schedule_forget(c);
    captures().erase(std::find(captures().begin(), captures().end(), c));
    delete c;
    return error;
}

} /* namespace */

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    std::lock_guard<std::recursive_mutex> hold(schedule_lock());
    CUstream_st *s = stream == cudaStreamPerThread ? nullptr : stream_resolve(stream);
    if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed) {
        return record_error(cudaErrorInvalidValue);
    }
    if (s == nullptr) {
        return record_error(cudaErrorInvalidResourceHandle);
    }
    if (s->id == 0) {
        return refuse(cudaErrorStreamCaptureUnsupported, "capture",
                      "cudaStreamBeginCapture: a legacy default stream cannot be captured");
    }
    if (s->capture) {
        return record_error(cudaErrorIllegalState);
    }
    s->capture =
        new graph_capture{s, mode, std::this_thread::get_id(), cudaSuccess, std::make_shared<node_list>(), 0};
    s->tail.clear();
    captures().push_back(s->capture);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph)
{
    std::lock_guard<std::recursive_mutex> hold(schedule_lock());
    CUstream_st *s = stream_resolve(stream);
    if (pGraph == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    *pGraph = nullptr;
    return record_error(s ? end_capture(s, pGraph) : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *pCaptureStatus)
{
    std::lock_guard<std::recursive_mutex> hold(schedule_lock());
    const CUstream_st *s = stream_resolve(stream);
    if (s == nullptr || pCaptureStatus == nullptr) {
        return record_error(s ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle);
    }
    *pCaptureStatus = s->capture == nullptr                ? cudaStreamCaptureStatusNone
                      : s->capture->invalid == cudaSuccess ? cudaStreamCaptureStatusActive
                                                           : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *numNodes)
{
    if (graph == nullptr || numNodes == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    const node_list &all = *graph->nodes;
    for (size_t i = 0; nodes != nullptr && i < *numNodes; ++i) {
        nodes[i] = i < all.size() ? reinterpret_cast<cudaGraphNode_t>(const_cast<node *>(&all[i])) : nullptr;
    }
    *numNodes = all.size();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph, unsigned long long flags)
{
    static std::atomic<uint64_t> serials{0};
    if (pGraphExec == nullptr || graph == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    if (flags != 0) {
        return refuse(cudaErrorNotSupported, "unsupported", "cudaGraphInstantiate: flags %llu", flags);
    }
    *pGraphExec = new CUgraphExec_st{graph->nodes, ++serials};
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graphExec, cudaStream_t stream)
{
    (void)stream;
    return record_error(graphExec ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(schedule_lock());
    CUstream_st *s = stream_resolve(stream);
    if (graphExec == nullptr || s == nullptr) {
        return record_error(s ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle);
    }
    if (s->capture) {
        return invalidate(s->capture, cudaErrorNotSupported, "cudaGraphLaunch",
                          "a graph inside a graph is not modelled");
    }
    const assay_sim_work work = {"cudaGraphLaunch", graph_step, nullptr, graph_destroy,
                                 new graph_run{graphExec->nodes, s, graphExec->serial,
                                               random_stream{mix(config().stream_seed, graphExec->serial)}}};
    return assay_sim_enqueue(stream, &work);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (graph == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    std::lock_guard<std::recursive_mutex> hold(schedule_lock());
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec)
{
    if (graphExec == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    std::lock_guard<std::recursive_mutex> hold(schedule_lock());
    delete graphExec;
    return cudaSuccess;
}

} /* extern "C" */
