/* One record of a request as a call of the kernel under trial.  Private to parity/certify/. */
#ifndef PARITY_CERTIFY_CALL_H
#define PARITY_CERTIFY_CALL_H

#include "parity/certify/comm.h"
#include "parity/certify/guard.h"

/* A slot of the record: shape, dtype, and the bytes that it holds before the call. */
typedef struct call_slot {
    bool present;
    assay_dtype dtype;
    int ndim;
    int64_t shape[ASSAY_KERNEL_MAX_DIMS];
    size_t bytes;
    const unsigned char *before; /* inputs and updated slots */
    unsigned char *after;        /* outputs: the bits of the first run; owned */
} call_slot;

typedef struct call_record {
    const certify_kernel *kernel;
    const assay_trace_op *asked;
    assay_dtype act;
    assay_op_binding binding;
    call_slot slot[ASSAY_OP_SLOTS];
    assay_kernel_attr attr[ASSAY_OP_ATTRS];
    int64_t list[ASSAY_OP_ATTRS][COMM_RANKS]; /* of attributes that are lists */
    const assay_kernel_comm *comm;            /* collectives */
    assay_declaration declared;               /* of this call */
    size_t workspace_bytes;
    bool taken; /* within the declared shapes */
} call_record;

/* How a call differs from the plain one. */
typedef struct call_form {
    guard_place place;
    unsigned char fill; /* garbage in outputs, in the workspace and around everything */
    bool locked;        /* inputs cannot be written */
    int64_t first, end; /* rows of slots whose first symbol is T; end 0: all */
    int64_t gap;        /* elements behind every row of what has at least two dimensions */
    int out, in;        /* this output is the memory of this input; -1 */
    bool shadow;
    bool pieces; /* a collective whose two tensors share memory: what is input and what is not, is its own */
    bool data_absent; /* NULL for slots without elements */
    bool late;        /* on a device: inputs arrive in the order of the stream, which alone is waited for */
    bool without;     /* outputs that may be absent are */
} call_form;

typedef struct call_ready {
    assay_kernel_call call;
    assay_kernel_tensor tensor[ASSAY_OP_SLOTS], shadow_tensor[ASSAY_OP_SLOTS];
    const assay_kernel_tensor *slot[ASSAY_OP_SLOTS], *shadow[ASSAY_OP_SLOTS];
    const assay_kernel_attr *attr[ASSAY_OP_ATTRS];
    call_form form;
    guard_arena *arena, *shadows;
} call_ready;

call_form call_plain(guard_place place, unsigned char fill);
/* Reads record `asked`; bytes stay those of the trace. */
assay_status call_read(call_record *r, const certify_kernel *k, const assay_trace *t,
                       const assay_trace_op *asked, assay_dtype act, const assay_kernel_comm *comm);
void call_forget(call_record *r);
bool call_is_output(const call_record *r, int slot);
/* An output that a caller may leave out whatever the inputs are. */
bool call_may_be_absent(const call_record *r, int slot);
/* Whether the rows of a slot are cut by call_form.first and end. */
bool call_has_rows(const call_record *r, int slot);
assay_status call_prepare(const call_record *r, call_form form, guard_arena *arena, guard_arena *shadows,
                          call_ready *c);
/* Protects the inputs of a form that is locked; runs and waits, by itself. */
void call_lock(const call_record *r, const call_ready *c, bool locked);
int32_t call_kernel(const call_record *r, const call_ready *c);
/* Runs and waits; the kernel's code. */
int32_t call_run(const call_record *r, const call_ready *c, certify_board *board);
/* Inputs, guards and gaps after a run: findings on the board. */
void call_inspect(const call_record *r, const call_ready *c, certify_board *board);
/* The elements of slot `i` without gaps, in `out` of the slot's bytes (of the cut rows). */
size_t call_collect(const call_record *r, const call_ready *c, int i, unsigned char *out);
/* Whether an output still holds garbage alone. */
bool call_untouched(const call_record *r, const call_ready *c);

#endif
