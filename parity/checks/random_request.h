/* The table of the random requests: for each operation its inputs, and sizes worth trying.  Private to parity/checks/. */
#ifndef PARITY_RANDOM_REQUEST_H
#define PARITY_RANDOM_REQUEST_H

#include "core/model/ops.h"
#include "parity/checks/request.h"

typedef enum {
    ASK_DEFAULT,  /* by the slot's class in the table of operations: ASK_ACT, ASK_F32 or ASK_F64 */
    ASK_ACT,      /* activation dtype, values of the data mode */
    ASK_F32,      /* F32, values of the data mode */
    ASK_F64,      /* F64, values of the data mode */
    ASK_POSITIVE, /* F32, or F64 where the slot is, never negative: second moments, probabilities */
    ASK_UNREAD,   /* F32: NaN, which a call must not read */
    ASK_TURN_COS, /* F32: cosine and sine of one random angle per element */
    ASK_TURN_SIN,
    ASK_BELOW, /* I64 in [0, symbol `of`) */
    ASK_IDS, /* I64 ids, some outside [vocab_start, vocab_start + V), a third padding_idx where a call has one */
    ASK_TARGETS,        /* ... and some -100 */
    ASK_COUNTS,         /* I64 [n] that sum to symbol `of`, some 0 */
    ASK_CHOICE,         /* I64 [T,K] ascending, below symbol `of` */
    ASK_SHUFFLE,        /* I64: a permutation of 0 .. n-1 */
    ASK_QUERY_POSITION, /* I64 [Sq*B]: the last Sq of Sk positions */
    ASK_KEY_POSITION,   /* I64 [Sk*B] */
    ASK_FIRST_KEY,      /* I64 [Sq*B]: the start of a document */
    ASK_FROM            /* `of` is "operation.slot": what the reference makes of the inputs before this one */
} parity_ask_fill;

typedef struct parity_ask_slot {
    const char *name;
    parity_ask_fill fill;
    const char *of;
    const char *shape; /* NULL: the slot's in the table of operations */
    const char *when;  /* only where this symbol is not 0; NULL: always */
    double scale;      /* of the values; 0 = 1 */
    bool absent; /* beside a NaN or an infinity every second index is -1: no row, whose values are nobody's */
    bool hidden; /* an input of the reference's derivation alone; it has a shape */
} parity_ask_slot;

enum { ASK_MAX_SLOTS = 16, ASK_MAX_SIZES = 40 };

/* A size row: symbols of the operation's row (core/model/ops.c) and of the shapes here; then after a bar the attributes: "T=3 K=5 | eps=1e-5 topk=K score_function=softmax".  The value of an
 * attribute is a symbol, an integer, a number with a point or exponent, true, false or a word.
 * Attributes that the operation does not have are for the derivations of ASK_FROM. */
typedef struct parity_ask_row {
    const char *op;
    parity_ask_slot slots[ASK_MAX_SLOTS];
    const char *sizes[ASK_MAX_SIZES];
} parity_ask_row;

/* A size that is tried at every boundary: symbols that get one value together ("Sq,Sk"; "+H": none of 0, "-D,Dv": from 1 to 256), the others as in the operation's first
 * size row. */
typedef struct parity_ask_sweep_row {
    const char *op;
    const char *symbols[4];
    const char *sizes; /* NULL: the operation's first size row */
} parity_ask_sweep_row;
extern const parity_ask_sweep_row parity_ask_sweep_table[]; /* ends with a row of op NULL */
/* Around other sizes, for a campaign (parity_ask_rotation) alone; ends with a row of op NULL. */
extern const parity_ask_sweep_row parity_ask_tile_table[];
/* Long in one direction (random_long.c): each of `swept` alone ("T=4097"), around the operation's first size row; none of them: `sizes` as
 * they stand.  Ends with a row of op NULL. */
typedef struct parity_ask_long_row {
    const char *op, *sizes, *swept[4];
} parity_ask_long_row;
extern const parity_ask_long_row parity_ask_long_table[];
/* Every shape that certify asks of an operation on random data: those of the table, the swept and the long ones. */
typedef void (*parity_on_shape)(void *user, const char *sizes, const char *symbols, int64_t value);
void parity_ask_each_shape(const char *op, parity_on_shape on, void *user);
/* The long ones alone. */
void parity_ask_each_long(const parity_ask_long_row *row, parity_on_shape on, void *user);
/* Sizes of a real model, the largest first: what a kernel is timed at.  Operations that are small in every model are not there. */
enum { ASK_LARGE_SIZES = 3 };
typedef struct parity_ask_large_row {
    const char *op;
    const char *sizes[ASK_LARGE_SIZES];
} parity_ask_large_row;
extern const parity_ask_large_row parity_ask_large_table[]; /* ends with a row of op NULL */
/* The symbols of a size row, and those that follow from them; those of `symbols` ("Sq,Sk") with this value instead. */
assay_status parity_ask_bind(const assay_op *op, const char *sizes, assay_op_binding *out);
assay_status parity_ask_bind_swept(const assay_op *op, const char *sizes, const char *symbols, int64_t value,
                                   assay_op_binding *out);
bool parity_ask_is_swept(const char *symbols, const char *key);
/* One call of the operation's first row in these sizes; its instance begins with the mode's tier. */
void parity_ask_one(parity_ask *q, parity_data_mode mode, const char *op, const char *sizes,
                    const char *symbols, int64_t value);
const char *parity_ask_first_sizes(const char *op);
/* One call of the operation's first row in these sizes, zero-mean data; its instance begins with `tier`. */
void parity_ask_size(parity_ask *q, const char *tier, const char *op, const char *sizes);

/* 0, 1, 2, primes, and both sides of every power of two that is a vector, a warp or a tile; ends with -1 */
extern const int64_t parity_ask_boundaries[];

/* Slots stand in the order in which they are made, so that ASK_FROM finds what it needs; none at all: every input of the
 * operation that is not optional, in the table's order.  Ends with a row of op NULL. */
extern const parity_ask_row parity_ask_table[];
/* Sizes of single operations at the widths of real models; slots are those of the operation's first row in
 * parity_ask_table.  Ends with a row of op NULL. */
typedef struct parity_ask_widths_row {
    const char *op;
    const char *sizes[4];
} parity_ask_widths_row;
extern const parity_ask_widths_row parity_ask_widths_table[];

#endif
