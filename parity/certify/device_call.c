/* Calls in device memory: twins of the prepared buffers, the order of the stream, errors of the runtime. */
#include "core/base/log.h"
#include "parity/certify/device.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TO_DEVICE = 1, TO_HOST = 2 }; /* cudaMemcpyKind */

typedef struct device_call {
    const call_record *r;
    const call_ready *c;
    const certify_device *d;
    certify_board *board;
    /* What the kernel gets: the prepared call with addresses of the device. */
    assay_kernel_call call;
    assay_kernel_tensor tensor[ASSAY_OP_SLOTS], shadow_tensor[ASSAY_OP_SLOTS];
    const assay_kernel_tensor *slot[ASSAY_OP_SLOTS], *shadow[ASSAY_OP_SLOTS];
} device_call;

/* --- twins --------------------------------------------------------------------------------------------------- */
static size_t span(const guard_buffer *b)
{
    return (size_t)(b->high - b->low);
}

/* The n-th buffer that the call has taken, of tensors and of shadows; NULL behind the last. */
static guard_buffer *next_buffer(const device_call *x, int *n)
{
    guard_arena *arenas[] = {x->c->arena, x->c->shadows};
    for (; *n < 2 * GUARD_BUFFERS; (*n)++) {
        guard_buffer *b = &arenas[*n / GUARD_BUFFERS]->buffer[*n % GUARD_BUFFERS];
        if (b->taken) {
            (*n)++;
            return b;
        }
    }
    return NULL;
}

/* Memory of exactly the buffer's size: what guards the end of an allocation guards the end of the tensor. */
static int make_twin(const certify_device *d, guard_buffer *b)
{
    if (b->twin != NULL && b->twin_bytes == span(b))
        return 0;
    int error = b->twin != NULL ? d->release(b->twin) : 0;
    b->twin = NULL;
    b->twin_bytes = span(b);
    return error != 0 ? error : d->allocate(&b->twin, span(b));
}

static int make_staged(certify_device *d, size_t bytes)
{
    if (bytes <= d->staged_bytes)
        return 0;
    void *memory = NULL;
    int error = d->staged != NULL ? d->release_host(d->staged) : 0;
    d->staged = NULL;
    d->staged_bytes = 0;
    if (error == 0)
        error = d->allocate_host(&memory, bytes, 0);
    if (error == 0) {
        d->staged = memory;
        d->staged_bytes = bytes;
    }
    return error;
}

/* The device's address for one of the host's in a buffer of the call. */
static void *on_device(const device_call *x, const void *host)
{
    const guard_buffer *b;
    const unsigned char *p = host;
    for (int n = 0; host != NULL && (b = next_buffer(x, &n)) != NULL;)
        if (p >= b->low && p <= b->high)
            return (unsigned char *)b->twin + (p - b->low);
    return NULL;
}

static void make_call(device_call *x)
{
    const call_ready *c = x->c;
    x->call = c->call;
    x->call.slot = x->slot;
    x->call.workspace = on_device(x, c->call.workspace);
    x->call.stream = c->form.place == GUARD_START && !c->form.late ? NULL : x->d->stream;
    for (int i = 0; i < ASSAY_OP_SLOTS; i++) {
        x->tensor[i] = c->tensor[i];
        x->tensor[i].data = on_device(x, c->tensor[i].data);
        const bool integers = x->r->slot[i].dtype == ASSAY_I64 && x->r->slot[i].before != NULL;
        x->tensor[i].host = integers && c->form.place == GUARD_END ? c->tensor[i].data : NULL;
        x->slot[i] = c->slot[i] != NULL ? &x->tensor[i] : NULL;
        x->shadow_tensor[i] = c->shadow_tensor[i];
        x->shadow_tensor[i].data = on_device(x, c->shadow_tensor[i].data);
        x->shadow[i] = c->shadow[i] != NULL ? &x->shadow_tensor[i] : NULL;
    }
    x->call.shadow = c->call.shadow != NULL ? x->shadow : NULL;
}

/* --- what went wrong ------------------------------------------------------------------------------------------ */

/* The simulator names an allocation by its address: which buffer that is, as words. */
static bool name_twin(const device_call *x, const char *report, char *text, size_t capacity)
{
    const guard_buffer *b;
    char address[40];
    for (int n = 0; (b = next_buffer(x, &n)) != NULL;) {
        snprintf(address, sizeof address, " at %p ", b->twin);
        if (strstr(report, address) == NULL)
            continue;
        snprintf(text, capacity, " (%s is bytes %zu to %zu of it)", b->name, (size_t)(b->data - b->low),
                 (size_t)(b->data - b->low) + b->bytes);
        return true;
    }
    return false;
}

static void note_reports(const device_call *x, int64_t before)
{
    char report[320] = "", where[96] = "";
    if (x->d->reports == NULL)
        return;
    x->board->trial[CERTIFY_SIMULATOR].calls++;
    if (!device_reported(x->d, before, report, sizeof report))
        return;
    if (name_twin(x, report, where, sizeof where))
        certify_bad(x->board, CERTIFY_GUARDS, "%.250s%s, in %.140s", report, where, x->board->now);
    certify_bad(x->board, CERTIFY_SIMULATOR, "%.250s%s, in %.140s", report, where, x->board->now);
}

/* The device stopped with an error: nothing runs there any more, but in the simulator, which starts anew. */
static int32_t give_up(const device_call *x, int error, int64_t reports)
{
    note_reports(x, reports);
    certify_bad(x->board, CERTIFY_DEVICE, "the device failed with %.60s, in %s", x->d->error_name(error),
                x->board->now);
    if (x->d->reports == NULL) {
        (void)fflush(NULL);
        _exit(3);
    }
    (void)x->d->reset();
    return ASSAY_KERNEL_DEVICE;
}

/* The runtime's last error behind a call that said everything went well. */
static void note_error(const device_call *x, int32_t code)
{
    const int error = x->d->last_error();
    x->board->trial[CERTIFY_DEVICE].calls++;
    if (error != 0 && code == ASSAY_KERNEL_OK)
        certify_bad(
            x->board, CERTIFY_DEVICE,
            "run() returns 0, the runtime's last error is %.60s: a launch or a copy failed and nobody "
            "looked, in %s",
            x->d->error_name(error), x->board->now);
}

static void note_memory(const device_call *x, size_t before)
{
    size_t now = 0, all;
    if (x->d->reports == NULL || x->d->memory(&now, &all) != 0 || now == before)
        return; /* of a real device other processes take memory, too */
    certify_bad(x->board, CERTIFY_DEVICE,
                "run() took %lld bytes of device memory and did not give them back, in %s",
                (long long)before - (long long)now, x->board->now);
}

/* --- plain calls: everything is there before, everything is waited for behind ------------------------------------- */
static int copy_all(const device_call *x, int kind)
{
    const guard_buffer *b;
    int error = 0;
    for (int n = 0; error == 0 && (b = next_buffer(x, &n)) != NULL;)
        error = kind == TO_DEVICE ? x->d->copy(b->twin, b->low, span(b), TO_DEVICE)
                                  : x->d->copy(b->low, b->twin, span(b), TO_HOST);
    return error != 0 ? error : x->d->wait();
}

/* The kernel's code and what the description waits with. */
static int32_t run_kernel(const device_call *x, bool synchronize)
{
    const assay_kernel *k = x->r->kernel->k;
    if (x->d->set_private != NULL)
        x->d->set_private(1);
    int32_t code = k->run(&x->call);
    if (x->d->set_private != NULL)
        x->d->set_private(0);
    if (synchronize && k->synchronize != NULL && k->synchronize(x->call.stream) != 0 &&
        code == ASSAY_KERNEL_OK)
        code = ASSAY_KERNEL_DEVICE;
    return code;
}

static int run_plain(const device_call *x, int32_t *code)
{
    int error = copy_all(x, TO_DEVICE);
    if (error != 0)
        return error;
    (void)x->d->last_error();
    *code = run_kernel(x, true);
    error = x->d->wait();
    if (error != 0)
        return error;
    note_error(x, *code);
    return copy_all(x, TO_HOST);
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
    for (int n = 0; error == 0 && (b = next_buffer(x, &n)) != NULL; at += span(b)) {
        memcpy(d->staged + at, b->low, span(b));
        if (arrives_late(x, b))
            memset(b->low, x->c->form.fill, span(b));
        error = d->copy(b->twin, b->low, span(b), TO_DEVICE);
        memcpy(b->low, d->staged + at, span(b));
    }
    if (error == 0)
        error = d->wait();
    (void)d->last_error();
    if (error == 0)
        error = d->enqueue_host(d->stream, hold, own);
    if (error == 0)
        error = d->enqueue_host(d->other, hold, other);
    at = 0;
    for (int n = 0; error == 0 && (b = next_buffer(x, &n)) != NULL; at += span(b))
        if (arrives_late(x, b))
            error = d->copy_async(b->twin, d->staged + at, span(b), TO_DEVICE, d->stream);
    return error;
}

/* What the stream's end has left, into the buffers. */
static int fetch(const device_call *x)
{
    const certify_device *d = x->d;
    guard_buffer *b;
    int error = 0;
    size_t at = 0;
    for (int n = 0; error == 0 && (b = next_buffer(x, &n)) != NULL; at += span(b))
        error = d->copy_async(d->staged + at, b->twin, span(b), TO_HOST, d->stream);
    if (error == 0)
        error = d->stream_wait(d->stream);
    at = 0;
    for (int n = 0; error == 0 && (b = next_buffer(x, &n)) != NULL; at += span(b))
        memcpy(b->low, d->staged + at, span(b));
    return error;
}

/* Everything else that runs on the device may not change what the stream has left. */
static int look_again(const device_call *x, const char **late)
{
    const guard_buffer *b;
    int error = x->d->wait();
    size_t at = 0;
    for (int n = 0; error == 0 && (b = next_buffer(x, &n)) != NULL; at += span(b)) {
        error = x->d->copy(x->d->staged + at, b->twin, span(b), TO_HOST);
        if (error == 0 && *late == NULL && memcmp(x->d->staged + at, b->low, span(b)) != 0)
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
        *code = run_kernel(x, false);
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
    for (int n = 0; (b = next_buffer(x, &n)) != NULL;)
        bytes += span(b);
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
    note_error(x, *code);
    return 0;
}

/* --- a call ------------------------------------------------------------------------------------------------------ */
int32_t device_run(const call_record *r, const call_ready *c, certify_board *board)
{
    certify_device *d = r->kernel->device;
    device_call x = {.r = r, .c = c, .d = d, .board = board};
    guard_buffer *b;
    int error = 0;
    int32_t code = ASSAY_KERNEL_DEVICE;
    size_t unused = 0, all;
    for (int n = 0; error == 0 && (b = next_buffer(&x, &n)) != NULL;)
        error = make_twin(d, b);
    if (error == 0 && c->form.late)
        error = make_staged(d, staged_bytes(&x));
    if (error != 0) { /* nothing of the kernel's has run */
        snprintf(board->error, sizeof board->error, "device memory: %.60s, in %s", d->error_name(error),
                 board->now);
        (void)fflush(NULL);
        _exit(2);
    }
    make_call(&x);
    const int64_t reports = d->reports != NULL ? d->reports() : 0;
    (void)d->memory(&unused, &all);
    guard_inside(true);
    error = c->form.late ? run_late(&x, &code) : run_plain(&x, &code);
    guard_inside(false);
    if (error != 0)
        return give_up(&x, error, reports);
    note_reports(&x, reports);
    note_memory(&x, unused);
    return code;
}
