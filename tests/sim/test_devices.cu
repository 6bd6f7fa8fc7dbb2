/* What belongs to one device is refused on another. */
#include "tests/support/sim.h"

#include "gpu/launch.cuh"

#include <cublasLt.h>
#include <nccl.h>

__global__ void fill(float *x, const float *y, float v)
{
    x[threadIdx.x] = v + (y ? y[threadIdx.x] : 0.0f);
}

static float *memory_of(int device)
{
    float *p = nullptr;
    cr_assert(cudaSetDevice(device) == cudaSuccess && cudaMalloc(&p, 128) == cudaSuccess);
    return p;
}

Test(sim_devices, a_stream_of_another_device)
{
    quiet();
    cudaStream_t s;
    float *x = memory_of(0);
    cr_assert(cudaSetDevice(1) == cudaSuccess && cudaStreamCreate(&s) == cudaSuccess);
    cr_assert(cudaSetDevice(0) == cudaSuccess);
    cr_expect(GPU_LAUNCH(fill, 1, 32, 0, s, x, x, 1.0f) == cudaErrorInvalidResourceHandle);
    expect_report("wrong device: kernel fill", "the stream belongs to device 1, the current device is 0", "");
    cr_expect(GPU_LAUNCH(fill, 1, 32, 0, nullptr, x, x, 1.0f) == cudaSuccess);
    cr_expect(cudaMemsetAsync(x, 0, 128, s) == cudaSuccess, "copies and fills may use any device's stream");
    cr_expect(cudaDeviceSynchronize() == cudaSuccess);
}

Test(sim_devices, memory_of_another_device_as_a_kernels_argument)
{
    quiet();
    float *x = memory_of(0), *y = memory_of(1);
    cr_expect(GPU_LAUNCH(fill, 1, 32, 0, nullptr, y, x, 1.0f) == cudaErrorIllegalAddress);
    expect_report("wrong device: kernel fill on device 1", "pointer argument 2 of 2 is memory of device 0",
                  "");
    cr_expect(GPU_LAUNCH(fill, 1, 32, 0, nullptr, y, nullptr, 1.0f) == cudaSuccess);
    cr_expect(cudaMemcpy(x, y, 128, cudaMemcpyDeviceToDevice) == cudaSuccess, "addresses are unified");
}

Test(sim_devices, an_event_of_another_device_may_be_waited_for_and_not_recorded)
{
    quiet();
    cudaEvent_t e;
    cudaStream_t s;
    float ms;
    cr_assert(cudaSetDevice(0) == cudaSuccess && cudaEventCreate(&e) == cudaSuccess);
    cr_assert(cudaSetDevice(1) == cudaSuccess && cudaStreamCreate(&s) == cudaSuccess);
    cr_expect(cudaEventRecord(e, s) == cudaErrorInvalidResourceHandle);
    expect_report("wrong device: cudaEventRecord", "the event belongs to device 0, the stream to device 1",
                  "");
    cr_expect(cudaStreamWaitEvent(s, e, 0) == cudaSuccess);
    cudaEvent_t f;
    cr_assert(cudaEventCreate(&f) == cudaSuccess && cudaEventRecord(f, s) == cudaSuccess);
    cr_assert(cudaSetDevice(0) == cudaSuccess && cudaEventRecord(e, nullptr) == cudaSuccess);
    cr_assert(cudaEventSynchronize(e) == cudaSuccess && cudaEventSynchronize(f) == cudaSuccess);
    cr_expect(cudaEventElapsedTime(&ms, e, f) == cudaErrorInvalidResourceHandle);
}

Test(sim_devices, a_communicator_takes_its_own_devices_memory_and_streams)
{
    quiet();
    ncclComm_t comm;
    ncclUniqueId id;
    cudaStream_t s;
    float *x = memory_of(0), *y = memory_of(1);
    cr_assert(ncclGetUniqueId(&id) == ncclSuccess &&
              ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess); /* device 1 */
    cr_assert(cudaSetDevice(0) == cudaSuccess && cudaStreamCreate(&s) == cudaSuccess);
    cr_expect(ncclAllReduce(x, x, 4, ncclFloat, ncclSum, comm, nullptr) == ncclInvalidArgument);
    expect_report("ncclAllReduce: sendbuff", "not inside one block of memory of device 1", "");
    cr_expect(ncclAllReduce(y, y, 4, ncclFloat, ncclSum, comm, s) == ncclInvalidArgument);
    expect_report("ncclAllReduce", "the stream belongs to device 0, the communicator to device 1", "");
    cr_assert(cudaSetDevice(1) == cudaSuccess);
    cr_expect(ncclAllReduce(y, y, 4, ncclFloat, ncclSum, comm, nullptr) == ncclSuccess);
    cr_expect(cudaDeviceSynchronize() == cudaSuccess && ncclCommDestroy(comm) == ncclSuccess);
}
