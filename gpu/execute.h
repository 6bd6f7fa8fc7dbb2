/* Runs one operation by name from named slots: the door for the judge's exact and per-operation checks
 * (`assay-gpu ops`). Slots and attributes are those of docs/OPS.md.  Inputs and outputs are host arrays; the
 * function copies to the device, surrounds every buffer with guard bytes, poisons outputs with NaN patterns,
 * runs, checks guards and that inputs are unchanged, copies back.
 *
 * Where docs/OPS.md names no attribute for an output's size, these are read: rope_table `positions`,
 * qkv_split_fwd `heads`, `groups`, `head_dim`, permute_plan `experts`, cast and linear_fwd `dtype` (of y;
 * optional for linear_fwd, whose y is otherwise of dtype act). */
#ifndef GPU_EXECUTE_H
#define GPU_EXECUTE_H

#include "core/files/trace.h"
#include "gpu/ops.h"

ASSAY_BEGIN_DECLS

typedef struct gpu_slot {
    char slot[ASSAY_SLOT_NAME];
    assay_dtype dtype;
    int ndim;
    int64_t shape[GPU_MAX_DIMS];
    void *data; /* host; outputs are allocated by gpu_execute and freed by the caller */
} gpu_slot;

/* act: dtype of activations and parameters where a slot table leaves it open.  `outputs` has room for
 * ASSAY_MAX_SLOTS entries.  ASSAY_NOT_FOUND: unknown operation, or a missing slot or attribute.
 * ASSAY_INVALID_ARGUMENT: a slot that the operation does not have, an index outside its range, and what the
 * operation itself refuses. ASSAY_INTERNAL: the operation wrote into a guard or into an input (the message
 * names the slot). On an error no output is returned. */
assay_status gpu_execute(gpu_ctx *ctx, const char *op, const json_t *attrs, assay_dtype act,
                         const gpu_slot *inputs, int n_inputs, gpu_slot *outputs, int *n_outputs);
bool gpu_execute_knows(const char *op);

ASSAY_END_DECLS

#endif
