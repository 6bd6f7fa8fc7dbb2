/* Calls in device memory: of one kernel, or of all ranks of a collective at once. */
#include "parity/certify/device_call.h"

#include <string.h>

void device_name(const device_set *s, int i)
{
    if (s->name != NULL)
        s->name(s->user, i);
}

/* Everything is there before, everything is waited for behind. */
static int run_plain(const device_set *s)
{
    int error = 0;
    for (int i = 0; i < s->n && error == 0; i++)
        error = device_copy_all(s->call[i], TO_DEVICE);
    if (error != 0)
        return error;
    s->run(s->user, true);
    error = s->d->wait();
    for (int i = 0; i < s->n && error == 0; i++)
        error = device_copy_all(s->call[i], TO_HOST);
    return error;
}

void device_run_set(const device_set *s)
{
    size_t unused = 0, all;
    const int64_t reports = s->d->reports != NULL ? s->d->reports() : 0;
    (void)s->d->memory(&unused, &all);
    s->d->kept = 0;
    guard_inside(true);
    const int error = s->call[0]->c->form.late ? device_run_late(s) : run_plain(s);
    guard_inside(false);
    if (error != 0) {
        device_give_up(s, error, reports);
        for (int i = 0; i < s->n; i++)
            s->call[i]->code = ASSAY_KERNEL_DEVICE;
        return;
    }
    for (int i = 0; i < s->n; i++) {
        device_name(s, i);
        device_note_error(s->call[i]);
    }
    device_note_reports(s, reports);
    device_note_memory(s, unused);
}

static void run_one(void *user, bool synchronize)
{
    device_kernel(user, synchronize);
}

int32_t device_run(const call_record *r, const call_ready *c, certify_board *board)
{
    device_call x, *const one[] = {&x};
    device_make(&x, r, c, board, r->kernel->device->stream);
    const device_set s = {
        .d = r->kernel->device, .board = board, .n = 1, .call = one, .run = run_one, .user = &x};
    device_run_set(&s);
    return x.code;
}
