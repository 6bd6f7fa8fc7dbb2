/* Streams and events, as the runtime's functions use them; all return the CUDA error and record nothing. */
#ifndef ASSAY_SIM_SCHEDULE_HPP
#define ASSAY_SIM_SCHEDULE_HPP

#include "sim.hpp"

namespace sim
{

cudaError_t stream_create(cudaStream_t *out, unsigned flags, int priority);
cudaError_t stream_destroy(cudaStream_t stream);
cudaError_t stream_info(cudaStream_t stream, unsigned *flags, int *priority);
cudaError_t stream_device(cudaStream_t stream, int *device);
cudaError_t stream_query(cudaStream_t stream);
cudaError_t event_create(cudaEvent_t *out, unsigned flags);
cudaError_t event_destroy(cudaEvent_t event);
cudaError_t event_record(cudaEvent_t event, cudaStream_t stream);
cudaError_t event_wait(cudaStream_t stream, cudaEvent_t event);
cudaError_t event_sync(cudaEvent_t event);
cudaError_t event_query(cudaEvent_t event);
/* Whether what is enqueued there is captured (capture.cpp). */
bool stream_captures(cudaStream_t stream);
/* Memory must not be allocated or freed while a stream is captured. */
cudaError_t capture_forbids_memory(const char *call);
cudaError_t event_elapsed(float *ms, cudaEvent_t start, cudaEvent_t end);

} /* namespace sim */

#endif
