/* A call of a kernel whose tensors lie in device memory.  Private to parity/certify/. */
#ifndef PARITY_CERTIFY_DEVICE_CALL_H
#define PARITY_CERTIFY_DEVICE_CALL_H

#include "parity/certify/device.h"

enum { TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3 }; /* cudaMemcpyKind */

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
/* run(), and what the description waits with. */
int32_t device_kernel(const device_call *x, bool synchronize);
/* Findings: what the simulator has reported since, the runtime's last error behind a call that returned `code`, memory that was kept. */
void device_note_reports(const device_call *x, int64_t before);
void device_note_error(const device_call *x, int32_t code);
void device_note_memory(const device_call *x, size_t before);
/* The device stopped with an error. */
int32_t device_give_up(const device_call *x, int error, int64_t reports);

#endif
