/* Streams, as the runtime's functions use them. */
#include "schedule_queue.hpp"

namespace sim
{

/* A kernel would wait for itself. */
static bool asked_by_kernel()
{
    return in_kernel() && refuse(cudaErrorNotPermitted, "unsupported",
                                 "a synchronization asked for by a kernel") != cudaSuccess;
}

static std::atomic<int64_t> host_waits;

void schedule_host_wait()
{
    ++host_waits;
}

extern "C" int64_t assay_sim_host_waits(void)
{
    return host_waits;
}

cudaError_t stream_sync(cudaStream_t stream)
{
    schedule_host_wait();
    if (asked_by_kernel()) {
        return cudaErrorNotPermitted;
    }
    schedule_hold hold(the_scheduler().lock);
    CUstream_st *s = stream_resolve(stream);
    if (s == nullptr) {
        return cudaErrorInvalidResourceHandle;
    }
    const cudaError_t captured = capture_forbids_sync(s, "cudaStreamSynchronize");
    return captured != cudaSuccess ? captured : schedule_drain(hold, s, s->device);
}

cudaError_t device_sync()
{
    schedule_host_wait();
    if (asked_by_kernel()) {
        return cudaErrorNotPermitted;
    }
    schedule_hold hold(the_scheduler().lock);
    const cudaError_t captured = capture_forbids_sync(nullptr, "a synchronization of the device");
    return captured != cudaSuccess ? captured : schedule_drain(hold, nullptr, current_device());
}

cudaError_t stream_create(cudaStream_t *out, unsigned flags, int priority)
{
    scheduler &s = the_scheduler();
    std::lock_guard<std::recursive_mutex> hold(s.lock);
    CUstream_st *n = new CUstream_st{};
    n->device = current_device();
    n->flags = flags;
    n->priority = priority;
    n->id = ++s.ids;
    stream_legacy(n->device);
    s.streams.push_back(n);
    *out = n;
    return cudaSuccess;
}

cudaError_t stream_destroy(cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
    CUstream_st *s = stream_resolve(stream);
    if (s == nullptr || s->id == 0) {
        return cudaErrorInvalidResourceHandle;
    }
    const cudaError_t captured = capture_forbids_sync(s, "cudaStreamDestroy");
    if (captured != cudaSuccess) {
        return captured;
    }
    s->destroyed = true; /* queued work stays and runs when something needs it */
    stream_collect(s);
    return cudaSuccess;
}

cudaError_t stream_info(cudaStream_t stream, unsigned *flags, int *priority)
{
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
    const CUstream_st *s = stream_resolve(stream);
    if (s == nullptr) {
        return cudaErrorInvalidResourceHandle;
    }
    *flags = s->flags;
    *priority = s->priority;
    return cudaSuccess;
}

cudaError_t stream_device(cudaStream_t stream, int *device)
{
    if (stream == nullptr || stream == cudaStreamLegacy) {
        *device = current_device();
        return cudaSuccess;
    }
    std::lock_guard<std::recursive_mutex> hold(the_scheduler().lock);
    const CUstream_st *s = stream_resolve(stream);
    if (s == nullptr) {
        return cudaErrorInvalidResourceHandle;
    }
    *device = s->device;
    return cudaSuccess;
}

cudaError_t stream_query(cudaStream_t stream)
{
    schedule_host_wait();
    schedule_hold hold(the_scheduler().lock, std::try_to_lock);
    if (!hold.owns_lock()) {
        return cudaErrorNotReady;
    }
    CUstream_st *s = stream_resolve(stream);
    if (s == nullptr) {
        return cudaErrorInvalidResourceHandle;
    }
    const cudaError_t captured = capture_forbids_sync(s, "cudaStreamQuery");
    if (captured != cudaSuccess) {
        return captured;
    }
    if (!s->queue.empty() && sticky_error() == cudaSuccess) {
        schedule_advance(hold, s, s->device, schedule_polled());
    }
    if (sticky_error() != cudaSuccess) {
        return sticky_error();
    }
    if (!s->queue.empty())
        return cudaErrorNotReady;
    race_host().join(s->clock);
    return cudaSuccess;
}

} /* namespace sim */
