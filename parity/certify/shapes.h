/* The calls that a description takes: conditions on symbols and attributes of the operation's row.  Private to parity/certify/. */
#ifndef PARITY_CERTIFY_SHAPES_H
#define PARITY_CERTIFY_SHAPES_H

#include "core/model/ops.h"

/* "H%8=0", "score_function=softmax" */
typedef struct certify_condition {
    char name[48], value[48];
    int64_t modulus; /* 0: none */
    char sign;       /* '=', '<', '>' */
    bool equal;
} certify_condition;

/* Reads the condition at *at and goes on to the next; false: its text is none (of *at, why has it).  *at at the end: none is left. */
bool certify_condition_read(const char **at, certify_condition *out, char *why, size_t capacity);
/* Whether the condition is on an attribute of the row; NULL: on a symbol. */
const assay_op_attr *certify_condition_attr(const assay_op *op, const certify_condition *c);

/* Whether the conditions take these sizes and attributes: 1, 0; -1: one cannot be read, and `why` has it.  op NULL: symbols alone. */
int certify_shapes_take(const char *shapes, const assay_op *op, const assay_op_binding *binding,
                        const json_t *attrs, char *why, size_t capacity);
/* Whether they leave out more than empty tensors ("T>=1 H>=1" does not).  op NULL: symbols alone. */
bool certify_shapes_narrow(const char *shapes, const assay_op *op);
/* "--shapes: ...": every condition can be read, and is on a symbol or an attribute of the row with a value that it may have. */
assay_status certify_shapes_check(const char *shapes, const assay_op *op, const char *who);
/* Conditions on symbols, and those on attributes, each with spaces between. */
void certify_shapes_split(const char *shapes, const assay_op *op, char *symbols, char *attributes,
                          size_t capacity);
/* "T=300 H=264 eps=1e-06": the symbols of a call, and the attributes that are not what the row says of an absent one. */
void certify_call_text(const assay_op *op, const assay_op_binding *binding, const json_t *attrs, char *out,
                       size_t capacity);

#endif
