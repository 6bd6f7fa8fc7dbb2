/* Capture of streams into graphs.
 *
 * What is enqueued while a stream is captured becomes a node behind the last ones of its stream and of the events that it waited for.  What CUDA
 * forbids meanwhile is refused with its error, and invalidates the capture.  Refused by name: collectives. */
#include "graph.hpp"

#include <algorithm>

using namespace sim;

namespace
{

std::vector<graph_capture *> &captures()
{
    static std::vector<graph_capture *> *all = new std::vector<graph_capture *>;
    return *all;
}

/* --- capture ------------------------------------------------------------------------------------------------ */

/* A node behind the last one of a lane goes on in it; another begins a lane. */
size_t lane_of(graph_capture *c, const std::vector<size_t> &after)
{
    if (!after.empty()) {
        const size_t lane = (*c->nodes)[after.front()].lane;
        if (c->lane_end[lane] == after.front()) {
            return lane;
        }
    }
    c->lane_end.push_back(0);
    return c->lane_end.size() - 1;
}

void add_node(CUstream_st *s, work_box *box)
{
    graph_capture *c = s->capture;
    const size_t lane = lane_of(c, s->tail), at = c->nodes->size();
    c->nodes->push_back(graph_node{std::shared_ptr<work_box>(box, work_box_drop), s->tail, lane});
    c->lane_end[lane] = at;
    s->tail = {at};
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
                                : capture_invalidate(s->capture, cudaErrorStreamCaptureIsolation,
                                                     "cudaStreamWaitEvent", "the event was recorded outside");
    }
    if (s->capture && e->capture != s->capture) {
        e->capture->invalid = cudaErrorStreamCaptureMerge;
        return capture_invalidate(s->capture, cudaErrorStreamCaptureMerge, "cudaStreamWaitEvent",
                                  "the event belongs to another capture");
    }
    if (e->capture->invalid != cudaSuccess) {
        return cudaErrorStreamCaptureInvalidated;
    }
    if (s->capture == nullptr) {
        if (s->id == 0) {
            return capture_invalidate(e->capture, cudaErrorStreamCaptureImplicit, "cudaStreamWaitEvent",
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

cudaError_t capture_invalidate(graph_capture *c, cudaError_t error, const char *call, const char *why)
{
    c->invalid = error;
    return refuse(error, "capture", "%s: %s; the capture is invalid now", call, why);
}

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
        return capture_invalidate(s->capture, cudaErrorNotSupported, o.box->work.name,
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
            return capture_invalidate(c, cudaErrorStreamCaptureUnsupported, call,
                                      "not permitted while a stream is captured");
        }
    }
    return cudaSuccess;
}

cudaError_t capture_forbids_event(const CUevent_st *e, const char *call)
{
    return capture_invalidate(e->capture, cudaErrorCapturedEvent, call,
                              "the event was recorded in a captured stream");
}

cudaError_t capture_forbids_legacy(const CUstream_st *legacy)
{
    for (graph_capture *c : captures()) {
        if (c->origin->device == legacy->device && stream_blocking(c->origin)) {
            return capture_invalidate(c, cudaErrorStreamCaptureImplicit, "work in the legacy default stream",
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
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
    const CUstream_st *s = captures().empty() ? nullptr : stream_resolve(stream);
    return s != nullptr && s->capture != nullptr;
}

cudaError_t capture_forbids_memory(const char *call)
{
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
    return capture_forbids_sync(nullptr, call);
}

} /* namespace sim */

namespace
{

cudaError_t end_capture(CUstream_st *s, cudaGraph_t *graph)
{
    graph_capture *c = s->capture;
    if (c == nullptr) {
        return cudaErrorIllegalState;
    }
    if (c->origin != s) {
        return capture_invalidate(c, cudaErrorStreamCaptureUnmatched, "cudaStreamEndCapture",
                                  "the capture was begun in another stream");
    }
    cudaError_t error = c->invalid != cudaSuccess ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    if (error == cudaSuccess && c->mode != cudaStreamCaptureModeRelaxed &&
        c->thread != std::this_thread::get_id()) {
        error = capture_invalidate(c, cudaErrorStreamCaptureWrongThread, "cudaStreamEndCapture",
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
        error = capture_invalidate(c, cudaErrorStreamCaptureUnjoined, "cudaStreamEndCapture",
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
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
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
    s->capture = new graph_capture{
        s, mode, std::this_thread::get_id(), cudaSuccess, std::make_shared<graph_nodes>(), {}};
    s->tail.clear();
    captures().push_back(s->capture);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph)
{
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
    CUstream_st *s = stream_resolve(stream);
    if (pGraph == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    *pGraph = nullptr;
    return record_error(s ? end_capture(s, pGraph) : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *pCaptureStatus)
{
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
    const CUstream_st *s = stream_resolve(stream);
    if (s == nullptr || pCaptureStatus == nullptr) {
        return record_error(s ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle);
    }
    *pCaptureStatus = s->capture == nullptr                ? cudaStreamCaptureStatusNone
                      : s->capture->invalid == cudaSuccess ? cudaStreamCaptureStatusActive
                                                           : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
}

} /* extern "C" */
