/* From an operation's name to its function: operands by slot, attributes by name, as the table of operations
 * (core/model/ops.h) has them.  The engine's call and the `ops` verb run every operation through here. */
#ifndef GPU_DISPATCH_H
#define GPU_DISPATCH_H

#include "core/model/ops.h"
#include "gpu/ops.h"

ASSAY_BEGIN_DECLS

/* The value of an attribute; which member counts is the row's type. */
typedef struct gpu_attr {
    const char *name;
    double number;    /* DOUBLE */
    int64_t integer;  /* INT, BOOL, and DTYPE */
    const char *word; /* WORD */
} gpu_attr;

/* Operands of one call.  Slots lie at their index in the row; an in-out slot is one tensor. */
typedef struct gpu_operands {
    const assay_op *op;
    gpu_tensor slot[ASSAY_OP_SLOTS];     /* absent: gpu_tensor_none() */
    const int64_t *host[ASSAY_OP_SLOTS]; /* the same integers in host memory, where they are known there */
    int n_attrs;
    gpu_attr attr[ASSAY_OP_ATTRS];
} gpu_operands;

void gpu_operands_init(gpu_operands *o, const assay_op *op);
/* Index of a slot by its name in the row; -1. */
int gpu_operands_index(const gpu_operands *o, const char *slot);
gpu_tensor gpu_operand(const gpu_operands *o, const char *slot);
/* Attributes as given, else what the row says for an absent one. */
double gpu_operand_double(const gpu_operands *o, const char *name);
int64_t gpu_operand_int(const gpu_operands *o, const char *name);
bool gpu_operand_bool(const gpu_operands *o, const char *name);
/* Index of a word in the row's list. */
int gpu_operand_word(const gpu_operands *o, const char *name);
const gpu_attr *gpu_operand_attr(const gpu_operands *o, const char *name);

/* Attributes of a request, with the row's values for absent ones. */
assay_status gpu_operands_from_json(gpu_operands *o, const json_t *attrs);

/* Whether the engine has a function for it (collectives have none here: gpu/call.c). */
bool gpu_dispatch_knows(const char *op);
/* Bytes of the call arena; shapes alone are read. */
size_t gpu_dispatch_workspace(const gpu_ctx *ctx, const gpu_operands *o);
/* Enqueues n calls of one operation (n > 1: adamw, sumsq, as one list) and says what they declare. */
assay_status gpu_dispatch(gpu_ctx *ctx, const gpu_operands *o, int64_t n, cudaStream_t stream,
                          gpu_declared *declared);

ASSAY_END_DECLS

#endif
