/* Captured graphs: what they hold, when they read, in which orders they run, and what must not be done meanwhile. */
#include "tests/support/sim.h"

#include <cuda_runtime.h>

static unsigned char *device(size_t bytes)
{
    void *p = NULL;
    cr_assert(cudaMalloc(&p, bytes) == cudaSuccess && cudaMemset(p, 0, bytes) == cudaSuccess &&
              cudaDeviceSynchronize() == cudaSuccess);
    return p;
}

static unsigned char byte_of(const unsigned char *p)
{
    unsigned char c = 0;
    cr_assert(cudaMemcpy(&c, p, 1, cudaMemcpyDeviceToHost) == cudaSuccess);
    return c;
}

static cudaStream_t new_stream(void)
{
    cudaStream_t s = NULL;
    cr_assert(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
    return s;
}

static cudaEvent_t new_event(void)
{
    cudaEvent_t e = NULL;
    cr_assert(cudaEventCreateWithFlags(&e, cudaEventDisableTiming) == cudaSuccess);
    return e;
}

static void copy(unsigned char *to, const unsigned char *from, cudaStream_t s)
{
    cr_expect(cudaMemcpyAsync(to, from, 1, cudaMemcpyDeviceToDevice, s) == cudaSuccess);
}

static void begin(cudaStream_t s)
{
    cr_assert(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
}

static cudaGraphExec_t end(cudaStream_t s, size_t nodes)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    size_t n = 0;
    cr_assert(cudaStreamEndCapture(s, &graph) == cudaSuccess);
    cr_expect(cudaGraphGetNodes(graph, NULL, &n) == cudaSuccess && n == nodes, "%zu nodes", n);
    cr_assert(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    cr_expect(cudaGraphDestroy(graph) == cudaSuccess);
    return exec;
}

Test(sim_graphs, a_captured_stream_runs_nothing_and_a_launch_runs_it_each_time)
{
    unsigned char *d = device(2);
    cudaStream_t s = new_stream();
    begin(s);
    copy(d + 1, d, s);
    cr_expect(cudaMemsetAsync(d, 7, 1, s) == cudaSuccess);
    cudaGraphExec_t exec = end(s, 2);
    cr_expect(cudaStreamSynchronize(s) == cudaSuccess);
    cr_expect(byte_of(d) == 0, "a capture runs nothing");
    cr_expect(cudaGraphLaunch(exec, s) == cudaSuccess && cudaStreamSynchronize(s) == cudaSuccess);
    cr_expect(byte_of(d) == 7 && byte_of(d + 1) == 0);
    cr_expect(cudaGraphLaunch(exec, s) == cudaSuccess);
    cr_expect(cudaGraphExecDestroy(exec) == cudaSuccess, "a launch outlives its graph");
    cr_expect(cudaStreamSynchronize(s) == cudaSuccess);
    cr_expect(byte_of(d + 1) == 7, "the second launch reads what the first left");
}

Test(sim_graphs, memory_is_read_when_the_graph_runs)
{
    unsigned char *d = device(1), pageable = 1;
    cudaStream_t s = new_stream();
    begin(s);
    cr_expect(cudaMemcpyAsync(d, &pageable, 1, cudaMemcpyHostToDevice, s) == cudaSuccess);
    cudaGraphExec_t exec = end(s, 1);
    pageable = 2;
    cr_expect(cudaGraphLaunch(exec, s) == cudaSuccess && cudaStreamSynchronize(s) == cudaSuccess);
    cr_expect(byte_of(d) == 2, "found %d", byte_of(d));
    cr_expect(cudaGraphExecDestroy(exec) == cudaSuccess);
}

/* Two lanes, of which the second copies what the first writes; returns what arrived. */
static unsigned char two_lanes(bool ordered, uint64_t seed)
{
    unsigned char *d = device(2);
    cudaStream_t s = new_stream(), other = new_stream();
    cudaEvent_t fork = new_event(), made = new_event(), join = new_event();
    assay_sim_set_stream_seed(seed);
    begin(s);
    cr_expect(cudaEventRecord(fork, s) == cudaSuccess && cudaStreamWaitEvent(other, fork, 0) == cudaSuccess);
    cr_expect(cudaMemsetAsync(d, 5, 1, s) == cudaSuccess);
    cr_expect(cudaEventRecord(made, s) == cudaSuccess);
    if (ordered)
        cr_expect(cudaStreamWaitEvent(other, made, 0) == cudaSuccess);
    copy(d + 1, d, other);
    cr_expect(cudaEventRecord(join, other) == cudaSuccess && cudaStreamWaitEvent(s, join, 0) == cudaSuccess);
    cudaGraphExec_t exec = end(s, 2);
    cr_expect(cudaGraphLaunch(exec, s) == cudaSuccess && cudaStreamSynchronize(s) == cudaSuccess);
    cr_expect(cudaGraphExecDestroy(exec) == cudaSuccess);
    cr_expect(cudaEventQuery(made) == cudaSuccess, "the capture is over");
    return byte_of(d + 1);
}

Test(sim_graphs, an_edge_orders_two_lanes_under_every_seed_and_a_missing_one_shows)
{
    int wrong = 0;
    for (uint64_t seed = 0; seed <= 16; seed++) {
        cr_expect(two_lanes(true, seed) == 5, "seed %d", (int)seed);
        wrong += two_lanes(false, seed) != 5;
    }
    cr_expect(two_lanes(false, 0) == 0, "without a seed the youngest runs first");
    cr_expect(wrong > 0 && wrong < 17, "%d of 17 drawn orders show it", wrong);
}

Test(sim_graphs, a_stream_goes_on_after_its_capture)
{
    unsigned char *d = device(1);
    cudaStream_t s = new_stream();
    cudaStreamCaptureStatus status;
    begin(s);
    cr_expect(cudaStreamIsCapturing(s, &status) == cudaSuccess && status == cudaStreamCaptureStatusActive);
    cr_expect(cudaMemsetAsync(d, 9, 1, s) == cudaSuccess);
    cudaGraphExec_t exec = end(s, 1);
    cr_expect(cudaStreamIsCapturing(s, &status) == cudaSuccess && status == cudaStreamCaptureStatusNone);
    cr_expect(cudaMemsetAsync(d, 3, 1, s) == cudaSuccess && cudaStreamSynchronize(s) == cudaSuccess);
    cr_expect(byte_of(d) == 3);
    cr_expect(cudaGraphLaunch(exec, s) == cudaSuccess && cudaMemsetAsync(d, 4, 1, s) == cudaSuccess &&
              cudaStreamSynchronize(s) == cudaSuccess);
    cr_expect(byte_of(d) == 4, "a launch keeps the order of its stream");
    cr_expect(cudaGraphExecDestroy(exec) == cudaSuccess);
}

/* --- what must not be done ---------------------------------------------------------------------------------- */
typedef struct forbidden {
    const char *what;
    cudaError_t (*call)(cudaStream_t s);
    cudaError_t error;
} forbidden;

static cudaError_t synchronize(cudaStream_t s)
{
    return cudaStreamSynchronize(s);
}
static cudaError_t query(cudaStream_t s)
{
    return cudaStreamQuery(s);
}
static cudaError_t synchronize_device(cudaStream_t s)
{
    (void)s;
    return cudaDeviceSynchronize();
}
static cudaError_t allocate(cudaStream_t s)
{
    void *p = NULL;
    (void)s;
    return cudaMalloc(&p, 16);
}
static cudaError_t wait_for_outside(cudaStream_t s)
{
    cudaEvent_t e = new_event();
    cudaStream_t other = new_stream();
    cr_assert(cudaEventRecord(e, other) == cudaSuccess);
    return cudaStreamWaitEvent(s, e, 0);
}
static cudaError_t synchronize_captured_event(cudaStream_t s)
{
    cudaEvent_t e = new_event();
    cr_assert(cudaEventRecord(e, s) == cudaSuccess);
    return cudaEventSynchronize(e);
}
static cudaError_t query_captured_event(cudaStream_t s)
{
    cudaEvent_t e = new_event();
    cr_assert(cudaEventRecord(e, s) == cudaSuccess);
    return cudaEventQuery(e);
}
static cudaError_t destroy(cudaStream_t s)
{
    return cudaStreamDestroy(s);
}
static cudaError_t merge(cudaStream_t s)
{
    cudaStream_t other = new_stream();
    cudaEvent_t e = new_event();
    begin(other);
    cr_assert(cudaEventRecord(e, other) == cudaSuccess);
    return cudaStreamWaitEvent(s, e, 0);
}
static cudaError_t end_elsewhere(cudaStream_t s)
{
    cudaGraph_t graph;
    cudaStream_t other = new_stream();
    cudaEvent_t e = new_event();
    cr_assert(cudaEventRecord(e, s) == cudaSuccess && cudaStreamWaitEvent(other, e, 0) == cudaSuccess);
    return cudaStreamEndCapture(other, &graph);
}
static cudaError_t free_async(cudaStream_t s)
{
    static int anything;
    return cudaFreeAsync(&anything, s);
}

static const forbidden calls[] = {
    {"cudaStreamSynchronize", synchronize, cudaErrorStreamCaptureUnsupported},
    {"cudaStreamQuery", query, cudaErrorStreamCaptureUnsupported},
    {"cudaDeviceSynchronize", synchronize_device, cudaErrorStreamCaptureUnsupported},
    {"cudaMalloc", allocate, cudaErrorStreamCaptureUnsupported},
    {"cudaStreamDestroy", destroy, cudaErrorStreamCaptureUnsupported},
    {"a wait for work outside", wait_for_outside, cudaErrorStreamCaptureIsolation},
    {"cudaEventSynchronize", synchronize_captured_event, cudaErrorCapturedEvent},
    {"cudaEventQuery", query_captured_event, cudaErrorCapturedEvent},
    {"two captures", merge, cudaErrorStreamCaptureMerge},
    {"cudaStreamEndCapture elsewhere", end_elsewhere, cudaErrorStreamCaptureUnmatched},
};

Test(sim_graphs, what_cuda_forbids_is_refused_and_invalidates_the_capture)
{
    assay_sim_print_reports(0);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        cudaStream_t s = new_stream();
        static char something;
        cudaGraph_t graph = (cudaGraph_t)&something; /* what a failed end must not leave */
        begin(s);
        const cudaError_t found = calls[i].call(s);
        cr_expect(found == calls[i].error, "%s: %s", calls[i].what, cudaGetErrorName(found));
        const cudaError_t ended = cudaStreamEndCapture(s, &graph);
        cr_expect(ended == cudaErrorStreamCaptureInvalidated && graph == NULL, "%s: the end: %s",
                  calls[i].what, cudaGetErrorName(ended));
        (void)cudaGetLastError();
        cr_expect(cudaStreamSynchronize(s) == cudaSuccess, "%s: the stream goes on", calls[i].what);
        cr_expect(cudaDeviceReset() == cudaSuccess);
    }
}

Test(sim_graphs, work_that_is_not_joined_is_named_at_the_end)
{
    unsigned char *d = device(1);
    cudaStream_t s = new_stream(), other = new_stream();
    cudaEvent_t fork = new_event();
    cudaGraph_t graph;
    assay_sim_print_reports(0);
    begin(s);
    cr_expect(cudaEventRecord(fork, s) == cudaSuccess && cudaStreamWaitEvent(other, fork, 0) == cudaSuccess);
    cr_expect(cudaMemsetAsync(d, 1, 1, other) == cudaSuccess);
    cr_expect(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureUnjoined);
}

Test(sim_graphs, a_legacy_default_stream_cannot_be_captured_nor_wait_for_one_that_is)
{
    unsigned char *d = device(1);
    cudaStream_t blocking = NULL;
    cudaGraph_t graph;
    assay_sim_print_reports(0);
    cr_expect(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeGlobal) == cudaErrorStreamCaptureUnsupported);
    cr_assert(cudaStreamCreate(&blocking) == cudaSuccess);
    begin(blocking);
    cr_expect(cudaMemsetAsync(d, 1, 1, NULL) == cudaErrorStreamCaptureImplicit);
    cr_expect(cudaStreamEndCapture(blocking, &graph) == cudaErrorStreamCaptureInvalidated);
}

Test(sim_graphs, what_is_not_modelled_is_refused_by_name)
{
    cudaStream_t s = new_stream();
    cudaGraph_t graph;
    assay_sim_print_reports(0);
    begin(s);
    cr_expect(free_async(s) == cudaErrorNotSupported);
    expect_report("unsupported", "cudaFreeAsync", "captured");
    cr_expect(cudaStreamEndCapture(s, &graph) == cudaSuccess && cudaGraphDestroy(graph) == cudaSuccess);
}
