/* A runtime that is not the simulator's, with kernels: what assay certify takes for a real device.  Streams are threads, so that work really
 * runs beside the host; memory is the host's.  Kernels are functions of the host that the call's stream runs. */
#include "kernels.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { QUEUE = 64, STREAMS = 16, INVALID_VALUE = 1, LAUNCH_FAILURE = 719 };

typedef struct stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct {
        void (*body)(void *user);
        void *user;
    } work[QUEUE];
    unsigned long queued, done;
} stream;

static stream streams[STREAMS]; /* 0: the default stream */
static int n_streams;
static _Thread_local int last_error;
static int failed; /* the device */

/* --- streams -------------------------------------------------------------------------------------------------- */
static void *serve(void *user)
{
    stream *s = user;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->done == s->queued)
            pthread_cond_wait(&s->changed, &s->lock);
        void (*body)(void *) = s->work[s->done % QUEUE].body;
        void *argument = s->work[s->done % QUEUE].user;
        pthread_mutex_unlock(&s->lock);
        body(argument);
        pthread_mutex_lock(&s->lock);
        s->done++;
        pthread_cond_broadcast(&s->changed);
    }
    return NULL;
}

static stream *stream_of(void *handle)
{
    while (n_streams < 1 || handle == &streams[n_streams]) {
        stream *s = &streams[n_streams++];
        pthread_mutex_init(&s->lock, NULL);
        pthread_cond_init(&s->changed, NULL);
        if (pthread_create(&s->thread, NULL, serve, s) != 0)
            abort();
    }
    return handle != NULL ? handle : &streams[0];
}

static int enqueue(void *handle, void (*body)(void *user), void *user)
{
    stream *s = stream_of(handle);
    pthread_mutex_lock(&s->lock);
    while (s->queued - s->done == QUEUE)
        pthread_cond_wait(&s->changed, &s->lock);
    s->work[s->queued % QUEUE].body = body;
    s->work[s->queued++ % QUEUE].user = user;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return failed;
}

static int drain(void *handle)
{
    stream *s = stream_of(handle);
    pthread_mutex_lock(&s->lock);
    const unsigned long until = s->queued;
    while (s->done < until)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return failed;
}

typedef struct copy {
    void *to;
    const void *from;
    size_t bytes;
} copy;

static void copy_body(void *user)
{
    copy *c = user;
    memcpy(c->to, c->from, c->bytes);
    free(c);
}

/* --- the functions that are looked up --------------------------------------------------------------------------- */
#define API(name, parameters)                                                                                \
    int name parameters;                                                                                     \
    int name parameters

API(cudaStreamCreateWithFlags, (void **out, unsigned flags))
{
    (void)flags;
    (void)stream_of(NULL);
    *out = &streams[n_streams];
    (void)stream_of(*out);
    return 0;
}
API(cudaStreamSynchronize, (void *handle))
{
    return drain(handle);
}
API(cudaDeviceSynchronize, (void))
{
    for (int i = 0; i < n_streams; i++)
        (void)drain(&streams[i]);
    return failed;
}
API(cudaLaunchHostFunc, (void *handle, void (*body)(void *user), void *user))
{
    return enqueue(handle, body, user);
}
API(cudaMemcpyAsync, (void *to, const void *from, size_t bytes, int kind, void *handle))
{
    copy *c = malloc(sizeof *c);
    (void)kind;
    if (c == NULL)
        return INVALID_VALUE;
    *c = (copy){to, from, bytes};
    return enqueue(handle, copy_body, c);
}
API(cudaMemcpy, (void *to, const void *from, size_t bytes, int kind))
{
    const int error = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    return error != 0 ? error : drain(NULL);
}
API(cudaMalloc, (void **out, size_t bytes))
{
    return posix_memalign(out, 256, bytes + 256) == 0 ? 0 : INVALID_VALUE;
}
API(cudaHostAlloc, (void **out, size_t bytes, unsigned flags))
{
    (void)flags;
    return cudaMalloc(out, bytes);
}
API(cudaFreeHost, (void *p))
{
    free(p);
    return 0;
}
API(cudaFree, (void *p))
{
    const int error = cudaDeviceSynchronize();
    free(p);
    return error;
}
API(cudaGetLastError, (void))
{
    const int error = last_error;
    last_error = 0;
    return error;
}
/* --- events ------------------------------------------------------------------------------------------------------- */
typedef struct event {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned long recorded, done;
    struct timespec at;
} event;

static void mark_body(void *user)
{
    event *e = user;
    pthread_mutex_lock(&e->lock);
    clock_gettime(CLOCK_MONOTONIC, &e->at);
    e->done++;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static void await_body(void *user)
{
    event *e = user;
    pthread_mutex_lock(&e->lock);
    while (e->done < e->recorded)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

API(cudaEventCreateWithFlags, (void **out, unsigned flags))
{
    event *e = calloc(1, sizeof *e);
    (void)flags;
    if (e == NULL)
        return INVALID_VALUE;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    *out = e;
    return 0;
}
API(cudaEventDestroy, (void *handle))
{
    await_body(handle);
    free(handle);
    return 0;
}
API(cudaEventRecord, (void *handle, void *on))
{
    event *e = handle;
    pthread_mutex_lock(&e->lock);
    e->recorded++;
    pthread_mutex_unlock(&e->lock);
    return enqueue(on, mark_body, e);
}
API(cudaEventSynchronize, (void *handle))
{
    await_body(handle);
    return failed;
}
API(cudaStreamWaitEvent, (void *on, void *handle, unsigned flags))
{
    (void)flags;
    return enqueue(on, await_body, handle);
}
API(cudaEventElapsedTime, (float *out, void *from, void *to))
{
    const event *a = from, *b = to;
    *out = (float)(b->at.tv_sec - a->at.tv_sec) * 1e3f + (float)(b->at.tv_nsec - a->at.tv_nsec) * 1e-6f;
    return 0;
}
API(cudaMemGetInfo, (size_t * unused, size_t *all))
{
    *unused = *all = (size_t)1 << 30;
    return 0;
}
API(cudaGetDeviceProperties, (void *out, int device))
{
    (void)device;
    memcpy(out, "a device of the tests", 22);
    return 0;
}
API(cudaDeviceGetAttribute, (int *out, int attribute, int device))
{
    (void)device;
    *out = attribute == 75 ? 9 : 0;
    return 0;
}
API(cudaDriverGetVersion, (int *out))
{
    *out = 12080;
    return 0;
}
API(cudaRuntimeGetVersion, (int *out))
{
    *out = 12060;
    return 0;
}
API(cudaDeviceReset, (void))
{
    return 0;
}
const char *cudaGetErrorName(int error);
const char *cudaGetErrorName(int error)
{
    return error == LAUNCH_FAILURE ? "cudaErrorLaunchFailure" : "cudaErrorInvalidValue";
}

/* --- kernels: add (docs/OPS.md), y = a + b ------------------------------------------------------------------------- */
typedef struct grid {
    const void *a, *b;
    void *y;
    int64_t n;
    int32_t act;
    int behind; /* elements that are written behind y */
} grid;

static void add_body(void *user)
{
    grid *g = user;
    for (int64_t i = 0; i < g->n + g->behind; i++)
        store(g->y, i, g->act, load(g->a, i < g->n ? i : 0, g->act) + load(g->b, i < g->n ? i : 0, g->act));
    free(g);
}

static void fail_body(void *user)
{
    failed = LAUNCH_FAILURE;
    free(user);
}

static int32_t launch(const assay_kernel_call *c, void *handle, void (*body)(void *user), int behind)
{
    int32_t code = ASSAY_KERNEL_INVALID;
    if (!check_call(c) || c->slot[0] == NULL)
        return ASSAY_KERNEL_INVALID;
    const int32_t ndim = c->slot[0]->ndim;
    int64_t n = 1;
    for (int i = 0; i < 3; i++)
        if ((code = check_tensor(c->slot[i], c->act, ndim)) != 0)
            return code;
    for (int d = 0; d < ndim; d++) {
        if (c->slot[1]->shape[d] != c->slot[0]->shape[d] || c->slot[2]->shape[d] != c->slot[0]->shape[d])
            return ASSAY_KERNEL_INVALID;
        n *= c->slot[0]->shape[d];
    }
    grid *g = malloc(sizeof *g);
    if (g == NULL)
        return ASSAY_KERNEL_INTERNAL;
    *g = (grid){c->slot[0]->data, c->slot[1]->data, c->slot[2]->data, n, c->act, n > 0 ? behind : 0};
    return enqueue(handle, body, g) == 0 ? ASSAY_KERNEL_OK : ASSAY_KERNEL_DEVICE;
}

#define RUN(symbol, handle, body, behind, then)                                                              \
    static int32_t run_##symbol(const assay_kernel_call *c)                                                  \
    {                                                                                                        \
        const int32_t code = launch(c, handle, body, behind);                                                \
        if (code == ASSAY_KERNEL_OK) {                                                                       \
            then;                                                                                            \
        }                                                                                                    \
        return code;                                                                                         \
    }                                                                                                        \
    DESCRIBE(symbol, "add", PLAIN, run_##symbol, add_y, 1, .memory = ASSAY_KERNEL_MEMORY_DEVICE,             \
             .synchronize = cudaStreamSynchronize)

static const assay_kernel_output add_y[] = {
    {.size = sizeof(assay_kernel_output), .slot = 2, .arith = ELEMENTWISE(0)}};

RUN(on_the_stream, c->stream, add_body, 0, (void)0)
RUN(on_the_default_stream, NULL, add_body, 0, (void)0)
RUN(waits_for_the_device, c->stream, add_body, 0, (void)cudaDeviceSynchronize())
RUN(waits_for_the_stream, c->stream, add_body, 0, (void)drain(c->stream))
RUN(writes_behind, c->stream, add_body, 1, (void)0)
RUN(leaves_an_error, c->stream, add_body, 0, last_error = INVALID_VALUE)
RUN(fails, c->stream, fail_body, 0, (void)0)
/* what stands for a library that a compiler made of a file and its launch (tests/parity/test_certify_cu.c) */
RUN(assay_launch_entry, c->stream, add_body, 0, (void)0)

/* --- timed --------------------------------------------------------------------------------------------------------- */
static void slow_body(void *user)
{
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    add_body(user);
}

static int32_t run_slowly(const assay_kernel_call *c)
{
    return launch(c, c->stream, c->slot[0] != NULL && c->slot[0]->shape[0] > 4096 ? slow_body : add_body, 0);
}

/* Crashes at the sizes that are timed alone. */
static int32_t run_crashing(const assay_kernel_call *c)
{
    if (c->slot[0] != NULL && c->slot[0]->shape[0] > 100000)
        abort();
    return launch(c, c->stream, add_body, 0);
}

#define TIMED(symbol, run, shapes_)                                                                          \
    DESCRIBE(symbol, "add", PLAIN, run, add_y, 1, .memory = ASSAY_KERNEL_MEMORY_DEVICE,                      \
             .synchronize = cudaStreamSynchronize, .shapes = (shapes_))
TIMED(takes_3_ms, run_slowly, "n<=1048576")
TIMED(takes_no_large_size, run_slowly, "n<=1000000")
TIMED(crashes_at_large_sizes, run_crashing, "n<=1048576")
