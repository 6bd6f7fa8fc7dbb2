/* What the calls in device memory share: twins of the prepared buffers, what the kernel gets, what went wrong. */
#include "parity/certify/device_call.h"

#include <string.h>
#include <unistd.h>

/* --- twins --------------------------------------------------------------------------------------------------- */
size_t device_span(const guard_buffer *b)
{
    return (size_t)(b->high - b->low);
}

/* The n-th buffer that the call has taken, of tensors and of shadows; NULL behind the last. */
guard_buffer *device_next(const device_call *x, int *n)
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
    if (b->twin != NULL && b->twin_bytes == device_span(b))
        return 0;
    int error = b->twin != NULL ? d->release(b->twin) : 0;
    b->twin = NULL;
    b->twin_bytes = device_span(b);
    return error != 0 ? error : d->allocate(&b->twin, device_span(b));
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
    for (int n = 0; host != NULL && (b = device_next(x, &n)) != NULL;)
        if (p >= b->low && p <= b->high)
            return (unsigned char *)b->twin + (p - b->low);
    return NULL;
}

static void make_call(device_call *x, void *stream)
{
    const call_ready *c = x->c;
    x->call = c->call;
    x->call.slot = x->slot;
    x->call.workspace = on_device(x, c->call.workspace);
    x->call.stream = c->form.place == GUARD_START && !c->form.late ? NULL : stream;
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
    for (int n = 0; (b = device_next(x, &n)) != NULL;) {
        snprintf(address, sizeof address, " at %p ", b->twin);
        if (strstr(report, address) == NULL)
            continue;
        snprintf(text, capacity, " (%s is bytes %zu to %zu of it)", b->name, (size_t)(b->data - b->low),
                 (size_t)(b->data - b->low) + b->bytes);
        return true;
    }
    return false;
}

void device_note_reports(const device_set *s, int64_t before)
{
    char report[480] = "", where[96] = ""; /* a race has two sides */
    if (s->d->reports == NULL)
        return;
    s->board->trial[CERTIFY_SIMULATOR].calls++;
    if (!device_reported(s->d, before, report, sizeof report))
        return;
    for (int i = 0; i < s->n && where[0] == '\0'; i++)
        if (name_twin(s->call[i], report, where, sizeof where)) {
            device_name(s, i);
            certify_bad(s->board, CERTIFY_GUARDS, "%.440s%s, in %.400s", report, where, s->board->now);
        }
    certify_bad(s->board, CERTIFY_SIMULATOR, "%.440s%s, in %.400s", report, where, s->board->now);
}

/* Nothing runs there any more, but in the simulator, which starts anew. */
void device_give_up(const device_set *s, int error, int64_t reports)
{
    device_note_reports(s, reports);
    certify_bad(s->board, CERTIFY_DEVICE, "the device failed with %.60s, in %s", s->d->error_name(error),
                s->board->now);
    if (s->d->reports == NULL) {
        (void)fflush(NULL);
        _exit(3);
    }
    (void)s->d->reset();
}

void device_note_error(const device_call *x)
{
    x->board->trial[CERTIFY_DEVICE].calls++;
    if (x->error != 0 && x->code == ASSAY_KERNEL_OK)
        certify_bad(
            x->board, CERTIFY_DEVICE,
            "run() returns 0, the runtime's last error is %.60s: a launch or a copy failed and nobody "
            "looked, in %s",
            x->d->error_name(x->error), x->board->now);
}

void device_note_memory(const device_set *s, size_t before)
{
    size_t now = 0, all;
    if (s->d->reports == NULL || s->d->memory(&now, &all) != 0 || now + s->d->kept == before)
        return; /* of a real device other processes take memory, too */
    certify_bad(s->board, CERTIFY_DEVICE,
                "run() took %lld bytes of device memory and did not give them back, in %s",
                (long long)before - (long long)(now + s->d->kept), s->board->now);
}

int device_copy_all(const device_call *x, int kind)
{
    const guard_buffer *b;
    int error = 0;
    for (int n = 0; error == 0 && (b = device_next(x, &n)) != NULL;)
        error = kind == TO_DEVICE ? x->d->copy(b->twin, b->low, device_span(b), TO_DEVICE)
                                  : x->d->copy(b->low, b->twin, device_span(b), TO_HOST);
    return error != 0 ? error : x->d->wait();
}

void device_kernel(device_call *x, bool synchronize)
{
    certify_device *d = x->d;
    const assay_kernel *k = x->r->kernel->k;
    (void)d->last_error();
    if (d->set_private != NULL && d->inside++ == 0)
        d->set_private(1);
    x->code = k->run(&x->call);
    if (d->set_private != NULL && --d->inside == 0)
        d->set_private(0);
    if (synchronize && k->synchronize != NULL && k->synchronize(x->call.stream) != 0 &&
        x->code == ASSAY_KERNEL_OK)
        x->code = ASSAY_KERNEL_DEVICE;
    x->error = d->last_error();
}

/* --- a call on the device ---------------------------------------------------------------------------------------- */

/* Nothing of the kernel's has run. */
static void stop(const device_call *x, int error)
{
    snprintf(x->board->error, sizeof x->board->error, "device memory: %.60s, in %s", x->d->error_name(error),
             x->board->now);
    (void)fflush(NULL);
    _exit(2);
}

void device_make(device_call *x, const call_record *r, const call_ready *c, certify_board *board,
                 void *stream)
{
    guard_buffer *b;
    int error = 0;
    memset(x, 0, sizeof *x);
    *x = (device_call){.r = r, .c = c, .d = r->kernel->device, .board = board, .code = ASSAY_KERNEL_DEVICE};
    for (int n = 0; error == 0 && (b = device_next(x, &n)) != NULL;)
        error = make_twin(x->d, b);
    if (error != 0)
        stop(x, error);
    make_call(x, stream);
}

void device_stage(const device_call *x, size_t bytes)
{
    const int error = make_staged(x->r->kernel->device, bytes);
    if (error != 0)
        stop(x, error);
}
