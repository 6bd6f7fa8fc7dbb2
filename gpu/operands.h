/* Operands of one call: tensors by slot, attributes by name, as the table of operations (core/model/ops.h) has them.  Every
 * kernel takes them so; the engine's call and the `ops` verb fill them. */
#ifndef GPU_OPERANDS_H
#define GPU_OPERANDS_H

#include "core/model/ops.h"
#include "gpu/gpu.h"

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
/* A slot of the row; another name changes nothing. */
void gpu_operands_put(gpu_operands *o, const char *slot, gpu_tensor t);
gpu_tensor gpu_operand(const gpu_operands *o, const char *slot);
/* The integers of a slot in host memory; NULL: not known there. */
const int64_t *gpu_operand_host(const gpu_operands *o, const char *slot);
/* Attributes as given, else what the row says for an absent one. */
double gpu_operand_double(const gpu_operands *o, const char *name);
int64_t gpu_operand_int(const gpu_operands *o, const char *name);
bool gpu_operand_bool(const gpu_operands *o, const char *name);
/* Index of a word in the row's list. */
int gpu_operand_word(const gpu_operands *o, const char *name);
const gpu_attr *gpu_operand_attr(const gpu_operands *o, const char *name);

/* Attributes of a request, with the row's values for absent ones. */
assay_status gpu_operands_from_json(gpu_operands *o, const json_t *attrs);

ASSAY_END_DECLS

#endif
