/* A call of a kernel whose tensors lie in device memory.  Private to parity/certify/. */
#ifndef PARITY_CERTIFY_DEVICE_CALL_H
#define PARITY_CERTIFY_DEVICE_CALL_H

#include "parity/certify/device.h"

enum { TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3 }; /* cudaMemcpyKind */

typedef struct device_call {
    const call_record *r;
    const call_ready *c;
    certify_device *d;
    certify_board *board;
    int32_t code; /* of run() */
    int error;    /* the runtime's last one behind it */
    /* What the kernel gets: the prepared call with addresses of the device. */
    assay_kernel_call call;
    assay_kernel_tensor tensor[ASSAY_OP_SLOTS], shadow_tensor[ASSAY_OP_SLOTS];
    const assay_kernel_tensor *slot[ASSAY_OP_SLOTS], *shadow[ASSAY_OP_SLOTS];
} device_call;

/* The n-th buffer that the call has taken, of tensors and of shadows, with its twin; NULL behind the last. */
guard_buffer *device_next(const device_call *x, int *n);
/* Bytes of a buffer with what is looked at around it. */
size_t device_span(const guard_buffer *b);
/* Twins, and the call with their addresses, on `stream` or, in the form that says so, on none.  Ends the process where the device has no
 * memory. */
void device_make(device_call *x, const call_record *r, const call_ready *c, certify_board *board,
                 void *stream);
/* So many bytes of pinned memory in d->staged; ends the process likewise. */
void device_stage(const device_call *x, size_t bytes);
/* All twins from the buffers or back, and waits; an error of the runtime. */
int device_copy_all(const device_call *x, int kind);
/* run(), what the description waits with, and the runtime's last error of this thread: x->code, x->error. */
void device_kernel(device_call *x, bool synchronize);

/* Calls that run together: one, or those of the ranks of a collective. */
typedef struct device_set {
    certify_device *d;
    certify_board *board;
    int n;
    device_call *const *call;
    void (*run)(void *user, bool synchronize); /* device_kernel of each */
    void (*name)(void *user, int i);           /* the board's `now` becomes that of call i; NULL: it is */
    void *user;
} device_set;
void device_name(const device_set *s, int i);
/* Prepared calls in their form, plain or late, and everything that is looked at. */
void device_run_set(const device_set *s);
/* device_late.c; an error of the runtime. */
int device_run_late(const device_set *s);
/* Findings: what the simulator has reported since, the runtime's last error behind a call that returned OK, memory that was kept. */
void device_note_reports(const device_set *s, int64_t before);
void device_note_error(const device_call *x);
void device_note_memory(const device_set *s, size_t before);
/* The device stopped with an error. */
void device_give_up(const device_set *s, int error, int64_t reports);

#endif
