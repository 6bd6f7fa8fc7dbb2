/* Streams run as late as they may: what a program forgot to order comes out in the wrong order here, and what
 * it ordered comes out right under every seed. */
#include "tests/support/sim.h"

#include <cuda_runtime.h>
#include <math.h>
#include <stdlib.h>

static void *device(size_t bytes)
{
    void *p = NULL;
    cr_assert(cudaMalloc(&p, bytes) == cudaSuccess);
    return p;
}

static unsigned char first_byte(const void *p)
{
    unsigned char c = 0;
    cr_assert(cudaMemcpy(&c, p, 1, cudaMemcpyDeviceToHost) == cudaSuccess);
    return c;
}

static cudaStream_t new_stream(unsigned flags)
{
    cudaStream_t s = NULL;
    cr_assert(cudaStreamCreateWithFlags(&s, flags) == cudaSuccess);
    return s;
}

static cudaEvent_t new_event(void)
{
    cudaEvent_t e = NULL;
    cr_assert(cudaEventCreateWithFlags(&e, cudaEventDisableTiming) == cudaSuccess);
    return e;
}

Test(sim_streams, work_waits_until_someone_synchronizes)
{
    unsigned char *pinned = NULL, *d = device(1);
    cudaStream_t s = new_stream(cudaStreamNonBlocking);
    cr_assert(cudaMallocHost((void **)&pinned, 1) == cudaSuccess);
    *pinned = 1;
    cudaMemsetAsync(d, 9, 1, s);
    cudaMemcpyAsync(pinned, d, 1, cudaMemcpyDeviceToHost, s);
    cr_expect(*pinned == 1, "nobody synchronized");
    cr_expect(cudaStreamSynchronize(s) == cudaSuccess);
    cr_expect(*pinned == 9);
    cr_expect(cudaFreeHost(pinned) == cudaSuccess && cudaFree(d) == cudaSuccess);
}

Test(sim_streams, a_pinned_source_is_read_late_and_a_pageable_one_at_the_call)
{
    unsigned char *pinned = NULL, *d = device(2), pageable = 1;
    cudaStream_t s = new_stream(cudaStreamNonBlocking);
    cudaMallocHost((void **)&pinned, 1);
    *pinned = 1;
    cudaMemcpyAsync(d, pinned, 1, cudaMemcpyHostToDevice, s);
    cudaMemcpyAsync(d + 1, &pageable, 1, cudaMemcpyHostToDevice, s);
    *pinned = 2; /* the race of a program that reuses its staging buffer too early */
    pageable = 2;
    cudaStreamSynchronize(s);
    cr_expect(first_byte(d) == 2);
    cr_expect(first_byte(d + 1) == 1);
}

Test(sim_streams, a_copy_to_pageable_memory_returns_when_it_is_done)
{
    unsigned char *d = device(1), h = 0;
    cudaStream_t s = new_stream(cudaStreamNonBlocking);
    cudaMemsetAsync(d, 7, 1, s);
    cudaMemcpyAsync(&h, d, 1, cudaMemcpyDeviceToHost, s);
    cr_expect(h == 7);
}

/* Producer on one stream, consumer on another; returns what the consumer saw. */
static unsigned char produce_and_consume(bool ordered, uint64_t seed)
{
    unsigned char *d = device(2);
    cudaStream_t a = new_stream(cudaStreamNonBlocking), b = new_stream(cudaStreamNonBlocking);
    cudaEvent_t e = new_event();
    assay_sim_set_stream_seed(seed);
    cudaMemset(d, 0, 2);
    cudaDeviceSynchronize();
    cudaMemsetAsync(d, 5, 1, a);
    cudaEventRecord(e, a);
    if (ordered) {
        cudaStreamWaitEvent(b, e, 0);
    }
    cudaMemcpyAsync(d + 1, d, 1, cudaMemcpyDeviceToDevice, b);
    cr_assert(cudaStreamSynchronize(b) == cudaSuccess);
    const unsigned char seen = first_byte(d + 1);
    cr_expect(cudaEventDestroy(e) == cudaSuccess && cudaStreamDestroy(a) == cudaSuccess &&
              cudaStreamDestroy(b) == cudaSuccess);
    cr_expect(cudaDeviceSynchronize() == cudaSuccess);
    cr_expect(first_byte(d) == 5, "work of a destroyed stream is not lost");
    return seen;
}

Test(sim_streams, a_missing_event_changes_the_result)
{
    int wrong = 0;
    cr_expect(produce_and_consume(false, 0) == 0, "the lazy order runs only what is needed");
    for (uint64_t seed = 1; seed <= 16; ++seed) {
        wrong += produce_and_consume(false, seed) == 0;
    }
    cr_expect(wrong > 0 && wrong < 16, "%d of 16 drawn orders show it", wrong);
}

Test(sim_streams, an_event_orders_two_streams_under_every_seed)
{
    for (uint64_t seed = 0; seed <= 16; ++seed) {
        cr_expect(produce_and_consume(true, seed) == 5, "seed %d", (int)seed);
    }
}

Test(sim_streams, the_legacy_default_stream_orders_blocking_streams)
{
    for (uint64_t seed = 0; seed <= 8; ++seed) {
        unsigned char *d = device(4);
        cudaStream_t a = new_stream(cudaStreamDefault), b = new_stream(cudaStreamDefault);
        cudaStream_t free_stream = new_stream(cudaStreamNonBlocking);
        assay_sim_set_stream_seed(seed);
        cudaMemset(d, 0, 4);
        cudaDeviceSynchronize();
        cudaMemsetAsync(d, 1, 1, a);
        cudaMemcpyAsync(d + 1, d, 1, cudaMemcpyDeviceToDevice, NULL);  /* after a */
        cudaMemcpyAsync(d + 2, d + 1, 1, cudaMemcpyDeviceToDevice, b); /* after the default stream */
        cudaMemcpyAsync(d + 3, d + 2, 1, cudaMemcpyDeviceToDevice, free_stream);
        cr_assert(cudaStreamSynchronize(b) == cudaSuccess);
        cr_expect(first_byte(d + 2) == 1, "seed %d", (int)seed);
        if (seed == 0) {
            cr_expect(first_byte(d + 3) == 0, "a non-blocking stream waits for nobody and runs late");
        }
        cudaFree(d);
    }
}

Test(sim_streams, queries_make_progress_and_end)
{
    unsigned char *d = device(1);
    cudaStream_t s = new_stream(cudaStreamNonBlocking);
    cudaEvent_t e = new_event();
    cr_expect(cudaEventQuery(e) == cudaSuccess, "an event that was never recorded is complete");
    cudaMemsetAsync(d, 1, 1, s);
    cudaMemsetAsync(d, 2, 1, s);
    cudaEventRecord(e, s);
    cr_expect(cudaEventQuery(e) == cudaErrorNotReady);
    int polls = 0;
    while (cudaEventQuery(e) == cudaErrorNotReady && polls < 10) {
        ++polls;
    }
    cr_expect(polls < 10 && cudaStreamQuery(s) == cudaSuccess);
    cr_expect(cudaGetLastError() == cudaSuccess, "not ready is no error");
}

Test(sim_streams, an_event_counts_as_of_its_last_record_before_the_wait)
{
    unsigned char *d = device(2);
    cudaStream_t a = new_stream(cudaStreamNonBlocking), b = new_stream(cudaStreamNonBlocking);
    cudaEvent_t e = new_event();
    cudaMemset(d, 0, 2);
    cudaDeviceSynchronize();
    cudaMemsetAsync(d, 1, 1, a);
    cudaEventRecord(e, a);
    cudaStreamWaitEvent(b, e, 0);
    cudaMemcpyAsync(d + 1, d, 1, cudaMemcpyDeviceToDevice, b);
    cudaMemsetAsync(d, 2, 1, a);
    cudaEventRecord(e, a); /* moves the event; b keeps waiting for the first record only */
    cr_assert(cudaStreamSynchronize(b) == cudaSuccess);
    cr_expect(first_byte(d + 1) == 1);
    cr_expect(cudaEventSynchronize(e) == cudaSuccess);
    cr_expect(first_byte(d) == 2);
}

/* The wait is for the record on `a`, which the one on `c` overtakes. */
Test(sim_streams, a_later_record_on_another_stream_ends_no_wait_for_an_earlier_one)
{
    unsigned char *d = device(2);
    cudaStream_t a = new_stream(cudaStreamNonBlocking), b = new_stream(cudaStreamNonBlocking),
                 c = new_stream(cudaStreamNonBlocking);
    cudaEvent_t e = new_event();
    cudaMemset(d, 0, 2);
    cudaDeviceSynchronize();
    cudaMemsetAsync(d, 1, 1, a);
    cudaEventRecord(e, a);
    cudaStreamWaitEvent(b, e, 0);
    cudaMemcpyAsync(d + 1, d, 1, cudaMemcpyDeviceToDevice, b);
    cudaEventRecord(e, c);
    cr_assert(cudaStreamSynchronize(c) == cudaSuccess && cudaEventSynchronize(e) == cudaSuccess);
    cr_assert(cudaStreamSynchronize(b) == cudaSuccess);
    cr_expect_eq(first_byte(d + 1), 1, "b did not wait for what a had");
}

/* What `c` records comes behind what `b` does, which comes behind a's record of the same event: no wait goes round. */
Test(sim_streams, an_event_recorded_again_behind_its_own_wait_is_no_deadlock, .timeout = 20)
{
    unsigned char *d = device(2);
    cudaStream_t c = new_stream(cudaStreamNonBlocking), a = new_stream(cudaStreamNonBlocking),
                 b = new_stream(cudaStreamNonBlocking);
    cudaEvent_t begun = new_event(), done = new_event();
    cudaMemset(d, 0, 2);
    cudaDeviceSynchronize();
    cudaMemsetAsync(d, 1, 1, a);
    cudaEventRecord(begun, a);
    cudaStreamWaitEvent(b, begun, 0);
    cudaMemcpyAsync(d + 1, d, 1, cudaMemcpyDeviceToDevice, b);
    cudaEventRecord(done, b);
    cudaStreamWaitEvent(c, done, 0);
    cudaEventRecord(begun, c);
    cr_assert(cudaStreamSynchronize(c) == cudaSuccess);
    cr_expect_eq(first_byte(d + 1), 1);
}

static void append(void *data)
{
    int *log = data;
    log[++log[0]] = 1;
}

Test(sim_streams, host_functions_run_in_stream_order)
{
    int log[4] = {0, 0, 0, 0};
    unsigned char *d = device(1);
    cudaStream_t s = new_stream(cudaStreamNonBlocking);
    cudaLaunchHostFunc(s, append, log);
    cudaMemsetAsync(d, 1, 1, s);
    cudaLaunchHostFunc(s, append, log);
    cr_expect(log[0] == 0);
    cudaStreamSynchronize(s);
    cr_expect(log[0] == 2);
}

Test(sim_streams, timing_events_measure_forward)
{
    cudaEvent_t a, b;
    float ms = -1.0f;
    cudaEventCreate(&a);
    cudaEventCreate(&b);
    cudaEventRecord(a, NULL);
    cudaEventRecord(b, NULL);
    cr_expect(cudaEventElapsedTime(&ms, a, b) == cudaErrorNotReady);
    cudaEventSynchronize(b);
    cr_expect(cudaEventElapsedTime(&ms, a, b) == cudaSuccess && ms >= 0.0f);
}

Test(sim_streams, two_dimensional_copies_and_fills)
{
    unsigned char h[4 * 7], back[4 * 5];
    unsigned char *d = NULL;
    size_t pitch = 0;
    for (size_t i = 0; i < sizeof h; ++i) {
        h[i] = (unsigned char)i;
    }
    cr_assert(cudaMallocPitch((void **)&d, &pitch, 5, 4) == cudaSuccess && pitch >= 5);
    cr_expect(cudaMemcpy2D(d, pitch, h, 7, 5, 4, cudaMemcpyHostToDevice) == cudaSuccess);
    cr_expect(cudaMemset2DAsync(d + pitch, pitch, 99, 2, 1, NULL) == cudaSuccess);
    cr_expect(cudaMemcpy2D(back, 5, d, pitch, 5, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (size_t r = 0; r < 4; ++r) {
        for (size_t c = 0; c < 5; ++c) {
            cr_expect(back[5 * r + c] == (r == 1 && c < 2 ? 99 : h[7 * r + c]));
        }
    }
}

/* --- errors ------------------------------------------------------------------------------------------------- */

Test(sim_streams, wrong_pointers_and_ranges_are_refused)
{
    char h[64];
    quiet();
    char *d = device(32);
    cr_expect(cudaMemcpy(d, h, 33, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    expect_report("out of bounds: cudaMemcpy", "33 bytes from byte 0", "block of 32 bytes");
    cr_expect(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess);
    cr_expect(cudaMemcpy(d + 30, h, 3, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    cr_expect(cudaMemcpy(h, h + 32, 8, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    cr_expect(cudaMemcpy(h, d, 8, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    cr_expect(cudaMemset(h, 0, 8) == cudaErrorInvalidValue);
    cr_expect(cudaMemcpy(d, h, 8, (cudaMemcpyKind)17) == cudaErrorInvalidMemcpyDirection);
    cr_expect(cudaMemcpy2D(d, 4, h, 8, 5, 2, cudaMemcpyHostToDevice) == cudaErrorInvalidPitchValue);
    cr_expect(cudaFree(d + 1) == cudaErrorInvalidValue && cudaFree(h) == cudaErrorInvalidValue);
    cr_expect(cudaFree(NULL) == cudaSuccess && cudaFree(d) == cudaSuccess);
    cr_expect(cudaFree(d) == cudaErrorInvalidValue, "freed twice");
}

Test(sim_streams, handles_are_checked)
{
    cudaStream_t s = new_stream(0);
    cudaEvent_t e = new_event();
    quiet();
    cudaStreamDestroy(s);
    cudaEventDestroy(e);
    cr_expect(cudaStreamSynchronize(s) == cudaErrorInvalidResourceHandle);
    cr_expect(cudaStreamDestroy(s) == cudaErrorInvalidResourceHandle);
    cr_expect(cudaEventRecord(e, NULL) == cudaErrorInvalidResourceHandle);
    cr_expect(cudaEventSynchronize(e) == cudaErrorInvalidResourceHandle);
    cr_expect(cudaSetDevice(-1) == cudaErrorInvalidDevice && cudaSetDevice(1000) == cudaErrorInvalidDevice);
}

/* The host sees what was written once it has waited, and not before: a missing synchronization shows. */
Test(sim_streams, managed_memory_belongs_to_the_device_until_the_host_waits)
{
    unsigned char *p = NULL, before;
    quiet();
    cr_assert(cudaMallocManaged((void **)&p, 8, cudaMemAttachGlobal) == cudaSuccess);
    p[7] = 3;
    cr_expect(cudaMemsetAsync(p, 5, 8, NULL) == cudaSuccess);
    before = p[7];
    cr_expect(cudaDeviceSynchronize() == cudaSuccess);
    cr_expect(before == 3 && p[7] == 5);
    struct cudaPointerAttributes a;
    cr_expect(cudaPointerGetAttributes(&a, p) == cudaSuccess && a.type == cudaMemoryTypeManaged);
    cr_expect(a.devicePointer == p && a.hostPointer == p);
    cr_expect(cudaMemPrefetchAsync(p, 8, cudaCpuDeviceId, NULL) == cudaSuccess);
    cr_expect(cudaMemAdvise(p, 8, cudaMemAdviseSetReadMostly, 0) == cudaSuccess);
    cr_expect(cudaMemPrefetchAsync(p, 9, 0, NULL) == cudaErrorInvalidValue);
    cr_expect(cudaMemAdvise(&before, 1, cudaMemAdviseSetReadMostly, 0) == cudaErrorInvalidValue);
    cr_expect(cudaMallocManaged((void **)&p, 0, cudaMemAttachGlobal) == cudaErrorInvalidValue);
    cr_expect(cudaMallocManaged((void **)&p, 8, 77) == cudaErrorInvalidValue);
    cr_expect(cudaFree(p) == cudaSuccess && cudaFree(p) == cudaErrorInvalidValue);
}

Test(sim_streams, what_is_not_modelled_is_refused_by_name)
{
    void *p = NULL;
    quiet();
    cr_expect(cudaMemsetAsync(device(1), 0, 1, cudaStreamPerThread) == cudaErrorInvalidResourceHandle);
    const dim3 one = {1, 1, 1};
    cr_expect(cudaLaunchKernel((const void *)&p, one, one, NULL, 0, NULL) == cudaErrorNotSupported);
    expect_report("unsupported: cudaLaunchKernel", "", "");
}

Test(sim_streams, memory_is_accounted_and_finite)
{
    size_t before = 0, after = 0, total = 0;
    void *p = NULL;
    cudaMemGetInfo(&before, &total);
    p = device(1000);
    cudaMemGetInfo(&after, &total);
    cr_expect(before - after == 1000 && before <= total);
    cudaPointerAttributes a;
    cr_expect(cudaPointerGetAttributes(&a, (char *)p + 5) == cudaSuccess && a.type == cudaMemoryTypeDevice);
    cr_expect(cudaMalloc(&p, total + 1) == cudaErrorMemoryAllocation && p == NULL);
    cr_expect(cudaMalloc(&p, SIZE_MAX) == cudaErrorMemoryAllocation);
    cr_expect(cudaMalloc(&p, 0) == cudaSuccess && p == NULL);
    cr_expect(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
    cr_expect(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
}

Test(sim_streams, stream_ordered_allocation)
{
    void *p = NULL;
    cudaStream_t s = new_stream(cudaStreamNonBlocking);
    cr_expect(cudaMallocAsync(&p, 16, s) == cudaSuccess);
    cr_expect(cudaMemsetAsync(p, 3, 16, s) == cudaSuccess && first_byte(p) == 0xff,
              "the fill has not run yet");
    cr_expect(cudaFreeAsync(p, s) == cudaSuccess);
    cr_expect(cudaStreamSynchronize(s) == cudaSuccess);
    cr_expect(cudaFree(p) == cudaErrorInvalidValue, "already given back");
}
