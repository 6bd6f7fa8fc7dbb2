/* The CUDA runtime of a library whose tensors lie in device memory, and calls there.  Private to parity/certify/.
 *
 * parity includes and links no CUDA.  What is needed of the runtime is looked up by name in the library under trial and in what it was
 * linked with: one that brings the simulator has the simulator's functions, one that links libcudart dynamically has the real ones, and
 * for one that holds the runtime statically `--cuda-runtime FILE` names a libcudart (streams and memory are the process's, whichever copy
 * of the runtime made them; the last error is not).  One code tries all three.
 *
 * A call is prepared in host memory as any other (guard.h); every buffer with its surroundings has a twin on the device.  Before a call
 * the twins are filled, behind it they are copied back, and guards, gaps, inputs and outputs are looked at on the host. */
#ifndef PARITY_CERTIFY_DEVICE_H
#define PARITY_CERTIFY_DEVICE_H

#include "parity/certify/call.h"

/* X(member, function, parameters): the C interface of the runtime in plain types.  A cudaError_t, a cudaMemcpyKind and a cudaDeviceAttr are
 * int, a cudaStream_t is a pointer.  cudaGetDeviceProperties fills a struct that begins with the device's name in every version. */
#define DEVICE_FUNCTION_MAP(X)                                                                               \
    X(allocate, "cudaMalloc", (void **out, size_t bytes))                                                    \
    X(release, "cudaFree", (void *p))                                                                        \
    X(allocate_host, "cudaHostAlloc", (void **out, size_t bytes, unsigned flags))                            \
    X(release_host, "cudaFreeHost", (void *p))                                                               \
    X(copy, "cudaMemcpy", (void *to, const void *from, size_t bytes, int kind))                              \
    X(copy_async, "cudaMemcpyAsync", (void *to, const void *from, size_t bytes, int kind, void *stream))     \
    X(stream_create, "cudaStreamCreateWithFlags", (void **out, unsigned flags))                              \
    X(stream_wait, "cudaStreamSynchronize", (void *stream))                                                  \
    X(stream_wait_event, "cudaStreamWaitEvent", (void *stream, void *event, unsigned flags))                 \
    X(event_create, "cudaEventCreateWithFlags", (void **out, unsigned flags))                                \
    X(event_destroy, "cudaEventDestroy", (void *event))                                                      \
    X(event_record, "cudaEventRecord", (void *event, void *stream))                                          \
    X(event_wait, "cudaEventSynchronize", (void *event))                                                     \
    X(event_ms, "cudaEventElapsedTime", (float *out, void *from, void *to))                                  \
    X(wait, "cudaDeviceSynchronize", (void))                                                                 \
    X(enqueue_host, "cudaLaunchHostFunc", (void *stream, void (*body)(void *user), void *user))              \
    X(last_error, "cudaGetLastError", (void))                                                                \
    X(memory, "cudaMemGetInfo", (size_t * unused, size_t * all))                                             \
    X(properties, "cudaGetDeviceProperties", (void *out, int device))                                        \
    X(attribute, "cudaDeviceGetAttribute", (int *out, int attribute, int device))                            \
    X(driver_version, "cudaDriverGetVersion", (int *out))                                                    \
    X(runtime_version, "cudaRuntimeGetVersion", (int *out))                                                  \
    X(reset, "cudaDeviceReset", (void))

typedef struct certify_device {
#define DEVICE_MEMBER(member, function, parameters) int(*member) parameters;
    DEVICE_FUNCTION_MAP(DEVICE_MEMBER)
#undef DEVICE_MEMBER
    const char *(*error_name)(int error);
    int64_t (*reports)(void); /* the simulator's; NULL: a real device */
    void (*last_report)(char *text, size_t bytes);
    void (*set_private)(
        int on);           /* the simulator's, or NULL: whether the host's code may not touch device memory */
    bool checks_races;     /* the simulator's with the race checker */
    int inside;            /* ranks in run(), one of which runs */
    size_t kept;           /* bytes of device memory that the judge itself took during a call */
    void *stream;          /* of calls: one that the default stream does not wait for */
    void *other;           /* has work that no call may wait for */
    unsigned char *staged; /* pinned: copies to and from it are asynchronous */
    size_t staged_bytes;
} certify_device;

/* The simulator's reports alone, of a library that brings it. */
void device_watch(certify_device *d, void *library);
/* runtime: "" or the file of --cuda-runtime.  ASSAY_UNSUPPORTED: a function is missing, no device answers. */
assay_status device_open(certify_device *d, void *library, const char *runtime);
/* {"device", "capability", "driver", "runtime"} */
assay_status device_json(const certify_device *d, json_t **out);
/* Whether the simulator has reported anything since `before`; then `text` has the last report. */
bool device_reported(const certify_device *d, int64_t before, char *text, size_t capacity);

/* A prepared call on the device: call_run() of a kernel with a device. */
int32_t device_run(const call_record *r, const call_ready *c, certify_board *board);

#endif
