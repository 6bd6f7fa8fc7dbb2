/* Events, as the runtime's functions use them. */
#include "schedule_queue.hpp"

namespace sim
{

cudaError_t event_create(cudaEvent_t *out, unsigned flags)
{
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
    CUevent_st *e = new CUevent_st{};
    e->device = current_device();
    e->flags = flags;
    the_scheduler().events.insert(e);
    *out = e;
    return cudaSuccess;
}

static bool event_live(cudaEvent_t event)
{
    return event != nullptr && the_scheduler().events.count(event) != 0;
}

cudaError_t event_destroy(cudaEvent_t event)
{
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
    if (!event_live(event)) {
        return cudaErrorInvalidResourceHandle;
    }
    the_scheduler().events.erase(event);
    event->destroyed = true;
    if (event->uses == 0) {
        delete event;
    }
    return cudaSuccess;
}

cudaError_t event_record(cudaEvent_t event, cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
    if (!event_live(event)) {
        return cudaErrorInvalidResourceHandle;
    }
    int device = event->device;
    if (stream_device(stream, &device) == cudaSuccess && device != event->device) {
        return refuse(cudaErrorInvalidResourceHandle, "wrong device",
                      "cudaEventRecord: the event belongs to device %d, the stream to device %d",
                      event->device, device);
    }
    op o = {};
    o.kind = OP_RECORD;
    o.event = event;
    return schedule_push(stream, o);
}

cudaError_t event_wait(cudaStream_t stream, cudaEvent_t event)
{
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
    if (!event_live(event)) {
        return cudaErrorInvalidResourceHandle;
    }
    op o = {};
    o.kind = OP_WAIT;
    o.event = event;
    o.generation = event->recorded; /* never recorded: nothing to wait for */
    return schedule_push(stream, o);
}

cudaError_t event_sync(cudaEvent_t event)
{
    schedule_host_wait();
    schedule_hold hold(the_scheduler().lock);
    if (!event_live(event)) {
        return cudaErrorInvalidResourceHandle;
    }
    if (event->capture) {
        return capture_forbids_event(event, "cudaEventSynchronize");
    }
    const uint64_t generation = event->recorded;
    schedule_wait w;
    const opened_memory memory;
    while (sticky_error() == cudaSuccess && event->completed < generation) {
        schedule_advance(hold, event->stream, event->stream->device, w);
    }
    race_host().join(event->clock);
    return schedule_settle();
}

/* A poll lets the queues take one step, so that a loop of polls ends. */
cudaError_t event_query(cudaEvent_t event)
{
    schedule_host_wait();
    schedule_hold hold(the_scheduler().lock, std::try_to_lock);
    if (!hold.owns_lock()) {
        return cudaErrorNotReady; /* another thread is running work right now */
    }
    if (!event_live(event)) {
        return cudaErrorInvalidResourceHandle;
    }
    if (event->capture) {
        return capture_forbids_event(event, "cudaEventQuery");
    }
    if (event->completed < event->recorded && sticky_error() == cudaSuccess) {
        schedule_advance(hold, event->stream, event->stream->device, schedule_polled());
    }
    if (sticky_error() != cudaSuccess) {
        return sticky_error();
    }
    if (event->completed < event->recorded)
        return cudaErrorNotReady;
    race_host().join(event->clock);
    return cudaSuccess;
}

cudaError_t event_elapsed(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
    if (!event_live(start) || !event_live(end) || start->device != end->device || start->recorded == 0 ||
        end->recorded == 0 || ((start->flags | end->flags) & cudaEventDisableTiming)) {
        return cudaErrorInvalidResourceHandle;
    }
    if (start->completed < start->recorded || end->completed < end->recorded) {
        return cudaErrorNotReady;
    }
    *ms = static_cast<float>((end->at - start->at) * 1e3);
    return cudaSuccess;
}

} /* namespace sim */
