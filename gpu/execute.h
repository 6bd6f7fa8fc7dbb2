/* Runs one operation by name from named slots: the door for the judge's exact and per-operation checks
 * (`assay-gpu ops`). Slots and attributes are those of docs/OPS.md.  Inputs and outputs are host arrays; the
 * function copies to the device, surrounds every buffer with guard bytes, poisons outputs with NaN patterns,
 * runs, checks guards and that inputs are unchanged, copies back.
 *
 * Optional outputs may be left out, as training without a trace does: an operation that has some (without `like`) runs once more without
 * any of them, on the same rung and place, from the same inputs, with guards, poison and a workspace of its own, and every other output
 * has to have the same bits.  What is returned and declared is of the first run.
 *
 * Everything about an operation comes from its row of core/model/ops.h: slots, outputs' shapes and dtypes, attributes,
 * ranges of indices.  */
#ifndef GPU_EXECUTE_H
#define GPU_EXECUTE_H

#include "core/files/trace.h"
#include "gpu/operands.h"

ASSAY_BEGIN_DECLS

typedef struct gpu_slot {
    char slot[ASSAY_SLOT_NAME];
    assay_dtype dtype;
    int ndim;
    int64_t shape[GPU_MAX_DIMS];
    void *data; /* host; outputs are allocated by gpu_execute and freed by the caller */
} gpu_slot;

/* How a run differs from the plain one. */
typedef struct gpu_execute_form {
    gpu_place place;
    /* Breaks the operands behind the table's check, before the operation gets them; ctx holds the workspace.  NULL: nothing. */
    void (*spoil)(void *user, gpu_ctx *ctx, gpu_operands *o);
    /* Runs the operation in gpu_ladder_run's place, as often as it likes.  NULL: once. */
    assay_status (*run)(void *user, gpu_ctx *ctx, gpu_operands *o, int *variant);
    /* As spoil, of the run without optional outputs, which there is where spoil and run are NULL: stands for an operation that breaks its
     * law.  NULL: nothing. */
    void (*spoil_again)(void *user, gpu_ctx *ctx, gpu_operands *o);
    void *user;
} gpu_execute_form;

/* act: dtype of activations and parameters where a slot table leaves it open.  `outputs` has room for
 * ASSAY_MAX_SLOTS entries.  *declared (may be NULL): variant and arithmetic.  ASSAY_NOT_FOUND: unknown operation.
 * ASSAY_INVALID_ARGUMENT: what its row does not allow, an index outside its range, and what the operation itself refuses (it, ASSAY_LIMIT,
 * ASSAY_UNSUPPORTED). ASSAY_INTERNAL: the operation wrote into a guard or into an input, wrote anything although it refused the call, or asks for
 * another workspace when it sees no data (the message names the slot); without optional outputs it refuses the call, runs on another rung or
 * gives another output other bits (the message names that one, its element, and what was left out). On an error no output is returned. */
assay_status gpu_execute(gpu_ctx *ctx, const char *op, const json_t *attrs, assay_dtype act,
                         const gpu_slot *inputs, int n_inputs, gpu_slot *outputs, int *n_outputs,
                         gpu_declared *declared);
/* The same in another form. */
assay_status gpu_execute_as(gpu_ctx *ctx, const char *op, const json_t *attrs, assay_dtype act,
                            const gpu_slot *inputs, int n_inputs, const gpu_execute_form *form,
                            gpu_slot *outputs, int *n_outputs, gpu_declared *declared);
/* Inputs of a record of a request as host arrays of their own; slots has room for ASSAY_MAX_SLOTS, and the caller frees their data, on
 * an error, too. */
assay_status gpu_execute_read_inputs(const assay_trace *request, const assay_trace_op *op, int rank,
                                     gpu_slot *slots);
bool gpu_execute_knows(const char *op);

ASSAY_END_DECLS

#endif
