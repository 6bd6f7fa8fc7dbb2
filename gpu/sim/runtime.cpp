/* The CUDA runtime's streams, events and host functions. */
#include "schedule.hpp"

#include "cuda_runtime_api.h"

using namespace sim;

static cudaError_t unsupported(const char *what)
{
    return refuse(cudaErrorNotSupported, "unsupported", "%s", what);
}

struct host_work {
    cudaHostFn_t fn;
    cudaStreamCallback_t callback;
    cudaStream_t stream;
    void *data;
};

static assay_sim_step host_step(void *state)
{
    const host_work *h = static_cast<const host_work *>(state);
    const int held = memory_pause(); /* work of a stream, but the host's */
    if (h->fn) {
        h->fn(h->data);
    } else {
        h->callback(h->stream, cudaSuccess, h->data);
    }
    memory_access(held);
    return ASSAY_SIM_DONE;
}

static void host_destroy(void *state)
{
    delete static_cast<host_work *>(state);
}

extern "C" {

/* --- streams and events ------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreate(cudaStream_t *pStream)
{
    return cudaStreamCreateWithPriority(pStream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags)
{
    return cudaStreamCreateWithPriority(pStream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream, unsigned int flags, int priority)
{
    if (pStream == nullptr || (flags & ~1u)) {
        return record_error(cudaErrorInvalidValue);
    }
    if (sticky_error() != cudaSuccess) {
        return record_error(sticky_error());
    }
    return record_error(stream_create(pStream, flags, priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return record_error(stream_destroy(stream));
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int *flags)
{
    int priority;
    return record_error(stream_info(stream, flags, &priority));
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    unsigned flags;
    return record_error(stream_info(stream, &flags, priority));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return record_error(stream_query(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return record_error(stream_sync(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    if (flags != 0) {
        return unsupported("cudaStreamWaitEvent: flags other than cudaEventWaitDefault");
    }
    return record_error(event_wait(stream, event));
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *userData,
                                  unsigned int flags)
{
    if (callback == nullptr || flags != 0) {
        return record_error(cudaErrorInvalidValue);
    }
    const assay_sim_work work = {"cudaStreamAddCallback", host_step, nullptr, host_destroy,
                                 new host_work{nullptr, callback, stream, userData}};
    return assay_sim_enqueue(stream, &work);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData)
{
    if (fn == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    const assay_sim_work work = {"cudaLaunchHostFunc", host_step, nullptr, host_destroy,
                                 new host_work{fn, nullptr, stream, userData}};
    return assay_sim_enqueue(stream, &work);
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    if (event == nullptr || (flags & ~7u)) {
        return record_error(cudaErrorInvalidValue);
    }
    if (flags & cudaEventInterprocess) {
        return unsupported("cudaEventCreateWithFlags: cudaEventInterprocess");
    }
    if (sticky_error() != cudaSuccess) {
        return record_error(sticky_error());
    }
    return record_error(event_create(event, flags));
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return record_error(event_destroy(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return record_error(event_record(event, stream));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
    if (flags != 0) {
        return unsupported("cudaEventRecordWithFlags: flags other than cudaEventRecordDefault");
    }
    return record_error(event_record(event, stream));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return record_error(event_query(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return record_error(event_sync(event));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    if (ms == nullptr) {
        return record_error(cudaErrorInvalidValue);
    }
    return record_error(event_elapsed(ms, start, end));
}

} /* extern "C" */
