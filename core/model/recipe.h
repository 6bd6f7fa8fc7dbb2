/* Precision recipes: in which type every class of operation reads, computes and stores.  One row for each word of
 * --precision; the columns "act" and "par" of docs/OPS.md are `act` and `weight` here.  A recipe with scales (FP8)
 * says so per class; its scales travel in the trace as records of their own (docs/TRACE.md, member `scale`). */
#ifndef ASSAY_CORE_RECIPE_H
#define ASSAY_CORE_RECIPE_H

#include "core/base/dtype.h"
#include "core/base/status.h"

ASSAY_BEGIN_DECLS

typedef enum {
    ASSAY_PRECISION_FP64,
    ASSAY_PRECISION_FP32,
    ASSAY_PRECISION_BF16,
    ASSAY_PRECISION_COUNT
} assay_precision;

/* Classes of operations that a recipe may treat differently. */
typedef enum {
    ASSAY_OPS_LINEAR, /* matrix products with weights, dense and grouped; every parameter that is trained */
    ASSAY_OPS_ATTENTION,   /* core attention */
    ASSAY_OPS_ELEMENTWISE, /* norms, rope, activations, residuals, embedding, rows of experts, collectives */
    ASSAY_OPS_ROUTER,      /* logits, scores, combine weights, auxiliary losses */
    ASSAY_OPS_LOSS,        /* output logits, cross entropy */
    ASSAY_OPS_OPTIMIZER,   /* main gradients, masters, states, expert biases */
    ASSAY_OPS_COUNT
} assay_op_class;

/* What one scale of a stored tensor covers; a stored element times its scale is the value. */
typedef enum {
    ASSAY_SCALING_NONE,
    ASSAY_SCALING_TENSOR, /* one scale for each tensor */
    ASSAY_SCALING_BLOCK   /* one for each block; the scale tensor's shape says which */
} assay_scaling;

typedef struct assay_op_recipe {
    assay_dtype act;        /* activations that it stores */
    assay_dtype weight;     /* parameters as it reads them */
    assay_dtype grad;       /* gradients of activations that it stores */
    assay_dtype accumulate; /* sums, and the statistics that it keeps: rstd, lse */
    int operand_precision;  /* significand bits of an operand inside a product, 0: all (tf32: 11) */
    assay_scaling scaling;
} assay_op_recipe;

typedef struct assay_recipe {
    assay_precision precision;
    const char *name; /* word of --precision */
    assay_op_recipe op[ASSAY_OPS_COUNT];
} assay_recipe;

/* The row of a precision; lives as long as the program. */
const assay_recipe *assay_recipe_of(assay_precision precision);
/* ASSAY_UNSUPPORTED: "the gpu engine: recipe fp8: linear: ...", a class with scales or rounded operands; for an engine that
 * has neither. */
assay_status assay_recipe_check_plain(const assay_recipe *r, const char *engine);
/* "bf16"; "?" outside the enum. */
const char *assay_precision_name(assay_precision p);
/* "linear", "attention", ... */
const char *assay_op_class_name(assay_op_class which);

ASSAY_END_DECLS

#endif
