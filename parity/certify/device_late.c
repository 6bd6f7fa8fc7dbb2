/* Calls whose inputs arrive in the order of their streams, which alone are waited for. */
#include "core/base/log.h"
#include "parity/certify/device_call.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* Work of the host on a stream, which may not run before run() has returned: the copies behind it are as late as a stream allows.
 * On a real device it holds the stream; where it had to give up, somebody waited for it. */
typedef struct gate {
    atomic_bool returned, passed;
    double seconds; /* how long it holds; 0: the simulator runs it only when somebody waits */
} gate;

static void hold(void *user)
{
    gate *g = user;
    const double end = assay_monotonic_s() + g->seconds;
    while (!atomic_load(&g->returned) && assay_monotonic_s() < end)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    if (!atomic_load(&g->returned))
        atomic_store(&g->passed, true);
}

static bool arrives_late(const device_call *x, const guard_buffer *b)
{
    for (int i = 0; i < ASSAY_OP_SLOTS; i++)
        if (b == &x->c->arena->buffer[i] && x->r->slot[i].before != NULL)
            return true;
    return false;
}

/* Outputs are poisoned; inputs hold the same until the stream brings them.  The call's buffers lie in d->staged from `at` on. */
static int poison(const device_call *x, size_t at)
{
    const certify_device *d = x->d;
    guard_buffer *b;
    int error = 0;
    for (int n = 0; error == 0 && (b = device_next(x, &n)) != NULL; at += device_span(b)) {
        memcpy(d->staged + at, b->low, device_span(b));
        if (arrives_late(x, b))
            memset(b->low, x->c->form.fill, device_span(b));
        error = d->copy(b->twin, b->low, device_span(b), TO_DEVICE);
        memcpy(b->low, d->staged + at, device_span(b));
    }
    return error;
}

static int bring(const device_call *x, size_t at)
{
    guard_buffer *b;
    int error = 0;
    for (int n = 0; error == 0 && (b = device_next(x, &n)) != NULL; at += device_span(b))
        if (arrives_late(x, b))
            error = x->d->copy_async(b->twin, x->d->staged + at, device_span(b), TO_DEVICE, x->call.stream);
    return error;
}

static size_t staged_bytes(const device_call *x)
{
    const guard_buffer *b;
    size_t bytes = 0;
    for (int n = 0; (b = device_next(x, &n)) != NULL;)
        bytes += device_span(b);
    return bytes;
}

static int prepare(const device_set *s, gate *own, gate *other)
{
    const certify_device *d = s->d;
    size_t at = 0;
    int error = 0;
    for (int i = 0; i < s->n && error == 0; at += staged_bytes(s->call[i++]))
        error = poison(s->call[i], at);
    if (error == 0)
        error = d->wait();
    for (int i = 0; i < s->n && error == 0; i++)
        error = d->enqueue_host(s->call[i]->call.stream, hold, own);
    if (error == 0)
        error = d->enqueue_host(d->other, hold, other);
    at = 0;
    for (int i = 0; i < s->n && error == 0; at += staged_bytes(s->call[i++]))
        error = bring(s->call[i], at);
    return error;
}

/* What the stream's end has left, into the buffers. */
static int fetch(const device_call *x, size_t at)
{
    const certify_device *d = x->d;
    const size_t first = at;
    guard_buffer *b;
    int error = 0;
    for (int n = 0; error == 0 && (b = device_next(x, &n)) != NULL; at += device_span(b))
        error = d->copy_async(d->staged + at, b->twin, device_span(b), TO_HOST, x->call.stream);
    if (error == 0)
        error = d->stream_wait(x->call.stream);
    at = first;
    for (int n = 0; error == 0 && (b = device_next(x, &n)) != NULL; at += device_span(b))
        memcpy(b->low, d->staged + at, device_span(b));
    return error;
}

/* Everything else that runs on the device may not change what the stream has left. */
static int look_again(const device_call *x, const guard_buffer **late)
{
    const guard_buffer *b;
    int error = 0;
    for (int n = 0; error == 0 && (b = device_next(x, &n)) != NULL;) {
        error = x->d->copy(x->d->staged, b->twin, device_span(b), TO_HOST);
        if (error == 0 && *late == NULL && memcmp(x->d->staged, b->low, device_span(b)) != 0)
            *late = b;
    }
    return error;
}

/* All streams are waited for, then all is fetched, then the device is waited for and all is looked at again. */
static int collect(const device_set *s)
{
    int error = 0;
    size_t at = 0;
    for (int i = 0; i < s->n && error == 0; i++)
        error = s->d->stream_wait(s->call[i]->call.stream);
    for (int i = 0; i < s->n && error == 0; at += staged_bytes(s->call[i++]))
        error = fetch(s->call[i], at);
    if (error == 0)
        error = s->d->wait();
    for (int i = 0; i < s->n && error == 0; i++) {
        const guard_buffer *late = NULL;
        error = look_again(s->call[i], &late);
        if (error != 0 || late == NULL)
            continue;
        device_name(s, i);
        certify_bad(s->board, CERTIFY_STREAM,
                    "%s changes after the call's stream was waited for: work that is not in the order of "
                    "that stream, in %s",
                    late->name, s->board->now);
    }
    return error;
}

/* One late call with gates that hold for `seconds`. */
static int run_gated(const device_set *s, double seconds, bool *waited_for_other, bool *waited)
{
    gate own = {.seconds = seconds},
         other = {.seconds =
                      3.0 * seconds}; /* who waits for the first alone is back before the second ends */
    int error = prepare(s, &own, &other);
    if (error == 0) {
        s->run(s->user, false);
        if (s->d->reports == NULL) /* for what was launched before the copies to have run */
            nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
    *waited_for_other = atomic_load(&other.passed);
    *waited = atomic_load(&own.passed);
    atomic_store(&own.returned, true);
    atomic_store(&other.returned, true);
    if (error == 0)
        error = collect(s);
    if (error != 0)
        (void)s->d->wait(); /* the gates lie on this stack */
    return error;
}

/* A gate that gave up is a finding where run() also waits for one that holds ten times as long: a slow machine does not.  One such finding
 * is enough, because each costs its time on a device. */
int device_run_late(const device_set *s)
{
    const bool simulated = s->d->reports != NULL,
               asynchronous = s->call[0]->r->kernel->k->synchronize != NULL &&
                              (simulated || s->board->trial[CERTIFY_STREAM].bad == 0);
    const double first = simulated ? 0.0 : asynchronous ? 0.02 : 0.001;
    bool waited_for_other = false, waited = false;
    size_t bytes = 0;
    for (int i = 0; i < s->n; i++)
        bytes += staged_bytes(s->call[i]);
    device_stage(s->call[0], bytes);
    int error = run_gated(s, first, &waited_for_other, &waited);
    if (error != 0)
        return error;
    if (asynchronous && !simulated && (waited || waited_for_other))
        error = run_gated(s, 10.0 * first, &waited_for_other, &waited);
    if (error != 0)
        return error;
    s->board->trial[CERTIFY_STREAM].calls++;
    if (asynchronous && waited_for_other)
        certify_bad(s->board, CERTIFY_STREAM,
                    "run() waits for the whole device (a synchronization, or memory that is freed), in %s",
                    s->board->now);
    else if (asynchronous && waited)
        certify_bad(s->board, CERTIFY_STREAM, "run() waits for its stream instead of returning, in %s",
                    s->board->now);
    return 0;
}
