/* Calls in device memory: the order of the stream, and who waits for it. */
#include "parity/certify/device_call.h"
#include "core/base/log.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* --- plain calls: everything is there before, everything is waited for behind ------------------------------------- */
static int run_plain(const device_call *x, int32_t *code)
{
    int error = device_copy_all(x, TO_DEVICE);
    if (error != 0)
        return error;
    (void)x->d->last_error();
    *code = device_kernel(x, true);
    error = x->d->wait();
    if (error != 0)
        return error;
    device_note_error(x, *code);
    return device_copy_all(x, TO_HOST);
}

/* --- late calls: the stream alone ------------------------------------------------------------------------------- */

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

/* Outputs are poisoned; inputs hold the same until the stream brings them. */
static int prepare_late(const device_call *x, gate *own, gate *other)
{
    const certify_device *d = x->d;
    guard_buffer *b;
    int error = 0;
    size_t at = 0;
    for (int n = 0; error == 0 && (b = device_next(x, &n)) != NULL; at += device_span(b)) {
        memcpy(d->staged + at, b->low, device_span(b));
        if (arrives_late(x, b))
            memset(b->low, x->c->form.fill, device_span(b));
        error = d->copy(b->twin, b->low, device_span(b), TO_DEVICE);
        memcpy(b->low, d->staged + at, device_span(b));
    }
    if (error == 0)
        error = d->wait();
    (void)d->last_error();
    if (error == 0)
        error = d->enqueue_host(d->stream, hold, own);
    if (error == 0)
        error = d->enqueue_host(d->other, hold, other);
    at = 0;
    for (int n = 0; error == 0 && (b = device_next(x, &n)) != NULL; at += device_span(b))
        if (arrives_late(x, b))
            error = d->copy_async(b->twin, d->staged + at, device_span(b), TO_DEVICE, d->stream);
    return error;
}

/* What the stream's end has left, into the buffers. */
static int fetch(const device_call *x)
{
    const certify_device *d = x->d;
    guard_buffer *b;
    int error = 0;
    size_t at = 0;
    for (int n = 0; error == 0 && (b = device_next(x, &n)) != NULL; at += device_span(b))
        error = d->copy_async(d->staged + at, b->twin, device_span(b), TO_HOST, d->stream);
    if (error == 0)
        error = d->stream_wait(d->stream);
    at = 0;
    for (int n = 0; error == 0 && (b = device_next(x, &n)) != NULL; at += device_span(b))
        memcpy(b->low, d->staged + at, device_span(b));
    return error;
}

/* Everything else that runs on the device may not change what the stream has left. */
static int look_again(const device_call *x, const char **late)
{
    const guard_buffer *b;
    int error = x->d->wait();
    size_t at = 0;
    for (int n = 0; error == 0 && (b = device_next(x, &n)) != NULL; at += device_span(b)) {
        error = x->d->copy(x->d->staged + at, b->twin, device_span(b), TO_HOST);
        if (error == 0 && *late == NULL && memcmp(x->d->staged + at, b->low, device_span(b)) != 0)
            *late = b->name;
    }
    return error;
}

/* One late call with gates that hold for `seconds`. */
static int run_gated(const device_call *x, double seconds, int32_t *code, bool *waited_for_other,
                     bool *waited)
{
    gate own = {.seconds = seconds},
         other = {.seconds =
                      3.0 * seconds}; /* who waits for the first alone is back before the second ends */
    const char *late = NULL;
    int error = prepare_late(x, &own, &other);
    if (error == 0) {
        *code = device_kernel(x, false);
        if (x->d->reports == NULL) /* for what was launched before the copies to have run */
            nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
    *waited_for_other = atomic_load(&other.passed);
    *waited = atomic_load(&own.passed);
    atomic_store(&own.returned, true);
    atomic_store(&other.returned, true);
    if (error == 0)
        error = x->d->stream_wait(x->d->stream);
    if (error == 0)
        error = fetch(x);
    if (error == 0)
        error = look_again(x, &late);
    else
        (void)x->d->wait(); /* the gates lie on this stack */
    if (error == 0 && late != NULL)
        certify_bad(x->board, CERTIFY_STREAM,
                    "%s changes after the call's stream was waited for: work that is not in the order of "
                    "that stream, "
                    "in %s",
                    late, x->board->now);
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

/* A gate that gave up is a finding where run() also waits for one that holds ten times as long: a slow machine does not.  One such finding
 * is enough, because each costs its time on a device. */
static int run_late(const device_call *x, int32_t *code)
{
    const bool simulated = x->d->reports != NULL,
               asynchronous = x->r->kernel->k->synchronize != NULL &&
                              (simulated || x->board->trial[CERTIFY_STREAM].bad == 0);
    const double first = simulated ? 0.0 : asynchronous ? 0.02 : 0.001;
    bool waited_for_other = false, waited = false;
    int error = run_gated(x, first, code, &waited_for_other, &waited);
    if (error != 0)
        return error;
    if (asynchronous && !simulated && (waited || waited_for_other))
        error = run_gated(x, 10.0 * first, code, &waited_for_other, &waited);
    if (error != 0)
        return error;
    x->board->trial[CERTIFY_STREAM].calls++;
    if (asynchronous && waited_for_other)
        certify_bad(x->board, CERTIFY_STREAM,
                    "run() waits for the whole device (a synchronization, or memory that is freed), in %s",
                    x->board->now);
    else if (asynchronous && waited)
        certify_bad(x->board, CERTIFY_STREAM, "run() waits for its stream instead of returning, in %s",
                    x->board->now);
    device_note_error(x, *code);
    return 0;
}

/* --- a call ------------------------------------------------------------------------------------------------------ */
int32_t device_run(const call_record *r, const call_ready *c, certify_board *board)
{
    certify_device *d = r->kernel->device;
    device_call x;
    int error = 0;
    int32_t code = ASSAY_KERNEL_DEVICE;
    size_t unused = 0, all;
    device_make(&x, r, c, board, d->stream);
    if (c->form.late)
        device_stage(&x, staged_bytes(&x));
    const int64_t reports = d->reports != NULL ? d->reports() : 0;
    (void)d->memory(&unused, &all);
    guard_inside(true);
    error = c->form.late ? run_late(&x, &code) : run_plain(&x, &code);
    guard_inside(false);
    if (error != 0)
        return device_give_up(&x, error, reports);
    device_note_reports(&x, reports);
    device_note_memory(&x, unused);
    return code;
}
