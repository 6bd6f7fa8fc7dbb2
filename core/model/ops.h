/* The operations: one row for each, with its slots, attributes, sums and what may share memory.
 *
 * This is the only list.  docs/OPS.md says what each operation computes; its tables of slots are these rows, word for
 * word (tests/core/test_ops.c).  The engine's call and trace, the judge's refusal, its random requests and the `ops` verbs read it.
 *
 * Shapes are texts in symbols: "T,K", "El,N,K", "3,T", "T,(A+2*G)*D".  A symbol has one value in one call of an operation.
 * T, Tq, Tk, n and m fold: recorded values may hold several extents in their place ([S,B,H] for "T,H", [S,B,A] for a
 * "T" of heads).  A recorded piece may also merge neighbours ([S,B,A*D] for "T,A,D").  Dimensions in brackets
 * are absent as a whole in all slots of a call, or in none ("[tp,]3,T").  Nothing here computes an element's value. */
#ifndef ASSAY_CORE_OPS_H
#define ASSAY_CORE_OPS_H

#include "core/base/dtype.h"
#include "core/base/json.h"
#include "core/model/recipe.h"

ASSAY_BEGIN_DECLS

typedef enum {
    ASSAY_SLOT_IN,
    ASSAY_SLOT_OUT,
    ASSAY_SLOT_INOUT /* accumulated or updated: recorded as input `<slot>_in` before and output `<slot>` after */
} assay_slot_role;

typedef enum {
    ASSAY_CLASS_ACT,   /* the recipe's activation dtype */
    ASSAY_CLASS_PAR,   /* the recipe's parameter dtype (the same as act today) */
    ASSAY_CLASS_F32,   /* masters, gradients, statistics */
    ASSAY_CLASS_F64,   /* sums in double */
    ASSAY_CLASS_I64,   /* indices and counts */
    ASSAY_CLASS_SAME,  /* the dtype of slot `like`; any in that slot */
    ASSAY_CLASS_ATTR,  /* the dtype that attribute `like` names */
    ASSAY_CLASS_FLOAT, /* any floating-point dtype */
    ASSAY_CLASS_ANY
} assay_slot_class;

typedef struct assay_op_slot {
    const char *name;
    assay_slot_role role;
    assay_slot_class dtype;
    const char *shape;
    bool optional;
    bool numbered;     /* several pieces: "send" alone, or "send.0", "send.1", ... */
    const char *like;  /* SAME: a slot; ATTR: an attribute */
    const char *below; /* I64 that index: every value lies in [0, below), a symbol */
    bool or_minus_one; /* ... or is -1 */
    const char *alias; /* out: the input whose memory it may be */
    bool
        split; /* a dimension that is known may be recorded as several extents: [S,B,A,D] for "T,H", H = A*D */
} assay_op_slot;

typedef enum {
    ASSAY_ATTR_INT,
    ASSAY_ATTR_DOUBLE,
    ASSAY_ATTR_BOOL,
    ASSAY_ATTR_WORD,  /* one of `words` */
    ASSAY_ATTR_DTYPE, /* a safetensors dtype name */
    ASSAY_ATTR_INTS   /* a list of integers that are not negative */
} assay_attr_type;

typedef struct assay_op_attr {
    const char *name;
    assay_attr_type type;
    const char
        *otherwise;     /* value when absent: a number, a word, or another attribute's name; NULL: required */
    double min, max;    /* INT, DOUBLE; both 0: any finite number */
    const char *words;  /* WORD: "softmax|sigmoid" */
    const char *symbol; /* INT: the symbol that it defines */
} assay_op_attr;

enum {
    ASSAY_OP_SLOTS = 20,
    ASSAY_OP_ATTRS = 24,
    ASSAY_OP_SYMBOLS = 20,
    ASSAY_OP_DIMS = 8,
    ASSAY_OP_PARTS = 6
};

/* An operation that a fused one does.  `names`: "y=residual": the part's slot y is the whole's slot residual, an attribute likewise; slots
 * and attributes that are not listed have the same name in both.  "x_in=a x=b": an in-out slot whose two values have names of their own. */
typedef struct assay_op_part {
    const char *op, *names;
} assay_op_part;

typedef struct assay_op {
    const char *name;
    const char *family; /* the word of --variant */
    bool collective;
    bool
        foreign; /* of other programs' traces and kernels alone: no model of ours has it, our engines no kernel */
    const char *sums;  /* "y: K; rstd: H": which symbols each output sums over; "" */
    const char *flops; /* of one call, in symbols (core/model/ops_cost.h); "0": it only moves data */
    const char *
        model_flops; /* of them, what counts as FLOPs of the model: products, nothing computed twice; NULL: none */
    const char *
        touches; /* "weight: T*H": elements of a slot that a call reads or writes, where not all; NULL: all */
    const char *where; /* "Tq=B*Sq": symbols that follow from others; NULL */
    assay_op_slot slots[ASSAY_OP_SLOTS];
    assay_op_attr attrs[ASSAY_OP_ATTRS];
    assay_op_part parts[ASSAY_OP_PARTS]; /* of a fused operation: those that it does, in order; else none */
} assay_op;

/* NULL: no such operation. */
const assay_op *assay_op_find(const char *name);
/* Rows in the order of docs/OPS.md; NULL past the last. */
const assay_op *assay_op_at(int index);
/* The recipe's class of the operation. */
assay_op_class assay_op_class_of(const assay_op *op);
/* What a recipe stores in slots of class ACT, F32 (the recipe's F64 in fp64) or PAR of the operation; in the backward pass act
 * is a gradient.  Operations of the router and the loss read and make operands of products there. */
assay_dtype assay_op_dtype(const assay_op *op, const assay_recipe *r, assay_slot_class slot, bool backward);
int assay_op_n_slots(const assay_op *op);
int assay_op_n_attrs(const assay_op *op);
/* The row of a slot by its recorded name; output false: as an input ("dweight_in", "send.2").  NULL: none. */
const assay_op_slot *assay_op_slot_find(const assay_op *op, const char *recorded, bool output);
const assay_op_attr *assay_op_attr_find(const assay_op *op, const char *name);

/* --- fused operations (ops_parts.c): one launch that does what several operations say */
/* 0: not a fused one. */
int assay_op_n_parts(const assay_op *op);
const assay_op *assay_op_part_of(const assay_op *op, int part);
/* The whole's slot for a part's recorded one ("y" -> "residual", "dgamma_in" -> "dgamma"); NULL: the whole has none of that name. */
const char *assay_op_part_slot(const assay_op *op, int part, const char *recorded);
/* The whole's attribute for a part's; NULL: likewise. */
const char *assay_op_part_attr(const assay_op *op, int part, const char *own);
/* The last part before `part` whose output, or what it left in an in-out slot, is that recorded input of it ("dlogits_in"), and its name
 * there; -1: it comes from outside. */
int assay_op_part_source(const assay_op *op, int part, const char *input, const char **output);

/* One operand of a call: recorded slot name, dtype and shape. */
typedef struct assay_op_operand {
    const char *slot;
    assay_dtype dtype;
    int ndim;
    const int64_t *shape;
} assay_op_operand;

/* What a call makes of the symbols and dtypes of its row. */
typedef struct assay_op_binding {
    assay_dtype act, par; /* ASSAY_DTYPE_COUNT: not known */
    bool brackets;        /* the bracketed dimensions are there */
    int n;
    struct {
        char name[8];
        int64_t value;
    } symbols[ASSAY_OP_SYMBOLS];
} assay_op_binding;

/* Refuses a call that its row does not allow: an unknown or missing slot or attribute, a dtype of the wrong class, shapes
 * that contradict each other, an attribute out of range.  act and par: the recipe's dtypes, or ASSAY_DTYPE_COUNT: those of
 * the first slot of the class.  n_outputs < 0: outputs are not there yet.  binding may be NULL.
 * ASSAY_INVALID_ARGUMENT: "linear_fwd: slot x: expected ..., found ...". */
assay_status assay_op_check(const assay_op *op, const json_t *attrs, assay_dtype act, assay_dtype par,
                            const assay_op_operand *inputs, int n_inputs, const assay_op_operand *outputs,
                            int n_outputs, assay_op_binding *binding);
/* Shape and dtype of an output from what the inputs and attributes bound; folded symbols are one extent. */
assay_status assay_op_output(const assay_op *op, const assay_op_slot *slot, const json_t *attrs,
                             const assay_op_operand *inputs, int n_inputs, const assay_op_binding *binding,
                             assay_dtype *dtype, int *ndim, int64_t *shape);
/* Value of a symbol; false: not bound. */
bool assay_op_symbol(const assay_op_binding *binding, const char *name, int64_t *value);

/* For who makes operands from sizes, before there is a call: bind the symbols, then what follows from them, then ask. */
/* false: the symbol has another value already, or there is no room for one more. */
bool assay_op_bind(assay_op_binding *binding, const char *symbol, int64_t value);
/* The symbols of `where`.  ASSAY_INVALID_ARGUMENT: the others give them no value. */
assay_status assay_op_bind_where(const assay_op *op, assay_op_binding *binding);
/* Extents of a slot; shape has room for ASSAY_OP_DIMS.  ASSAY_INVALID_ARGUMENT: "linear_fwd: slot x: nothing says its extent K". */
assay_status assay_op_slot_shape(const assay_op *op, const assay_op_slot *slot,
                                 const assay_op_binding *binding, int *ndim, int64_t *shape);

/* The value of an attribute, or what the row says for an absent one.  ASSAY_INVALID_ARGUMENT: absent and required,
 * or of another type. */
assay_status assay_op_attr_int(const assay_op *op, const json_t *attrs, const char *name, int64_t *out);
assay_status assay_op_attr_double(const assay_op *op, const json_t *attrs, const char *name, double *out);
assay_status assay_op_attr_bool(const assay_op *op, const json_t *attrs, const char *name, bool *out);
/* WORD: index in `words`.  DTYPE: assay_dtype. */
assay_status assay_op_attr_word(const assay_op *op, const json_t *attrs, const char *name, int *out);

/* The row as a line of docs/OPS.md: "| `add` | a act [n], b act [n] | | y act [n] | | |". */
void assay_op_describe(const assay_op *op, char *out, size_t capacity);

ASSAY_END_DECLS

#endif
