/* A request: a trace that holds operations with their inputs, for `assay-gpu ops` to answer.  Private to
 * parity/checks/.  Functions do nothing after the first error, which stays in `st`. */
#ifndef PARITY_REQUEST_H
#define PARITY_REQUEST_H

#include "core/model/ops.h"
#include "parity/parity.h"

typedef struct parity_ask {
    assay_trace_writer *w;
    assay_dtype act;
    int rank, world;
    const char *tier;  /* first word of the instances: "exact", or "local.zero_mean" */
    const char *only;  /* the one operation to write; NULL: all */
    bool off;          /* the one being built is another */
    int64_t n;         /* operations so far: seed of the next values */
    assay_trace_op op; /* the one being built, and below what its inputs look like */
    assay_op_operand operands[ASSAY_MAX_SLOTS];
    int64_t shapes[ASSAY_MAX_SLOTS][ASSAY_MAX_DIMS];
    json_t *attrs;
    int *ranks;
    const double *values; /* where a fill reads instead of drawing */
    assay_status st;
} parity_ask;

/* Whether a record has inputs on a lattice ("exact.adamw.7"), which are judged bit for bit, or random ones ("local.zero_mean.adamw.7"),
 * which are judged by bounds. */
bool parity_asked_on_lattice(const assay_trace_op *op);

/* Value of element i of the input that is being added. */
typedef double (*parity_fill)(const parity_ask *q, int64_t i);

void parity_ask_begin(parity_ask *q, const char *op);
void parity_ask_int(parity_ask *q, const char *key, int64_t value);
void parity_ask_real_attr(parity_ask *q, const char *key, double value);
void parity_ask_text(parity_ask *q, const char *key, const char *value);
void parity_ask_bytes(parity_ask *q, const char *slot, assay_dtype dtype, int ndim, const int64_t *shape,
                      const void *data);
/* Values are rounded to dtype (F32 or BF16). */
void parity_ask_real(parity_ask *q, const char *slot, assay_dtype dtype, int ndim, const int64_t *shape,
                     parity_fill value);
void parity_ask_2d(parity_ask *q, const char *slot, assay_dtype dtype, int64_t rows, int64_t columns,
                   parity_fill value);
void parity_ask_i64(parity_ask *q, const char *slot, int64_t n, const int64_t *values);
/* values [..] F32 that the activation dtype holds exactly. */
void parity_ask_floats(parity_ask *q, const char *slot, int ndim, const int64_t *shape, const float *values);
/* ASSAY_INTERNAL in q->st where the operation's row refuses the call: an engine would end there, and answer nothing behind it. */
void parity_ask_finish(parity_ask *q);

/* exact_backward.c: lattice inputs of what has no free bits although it divides, takes roots or exponentials. */
void parity_ask_lattice_backward(parity_ask *q);
/* What attention over several ranks is made of: exact_context.c. */
void parity_ask_lattice_context(parity_ask *q);
/* exact_attention.c, exact_collectives.c */
void parity_ask_lattice_attention(parity_ask *q);
void parity_ask_collectives(parity_ask *q, int64_t rows);
/* Attention over documents packed in rows: exact_documents.c. */
void parity_ask_lattice_documents(parity_ask *q);
/* What a query of attention sees of its keys: exact_sights.c. */
void parity_ask_lattice_sights(parity_ask *q);
/* exact_backward.c: rows of whole eights, for kernels that nothing before reaches. */
void parity_ask_lattice_eights(parity_ask *q);
/* Multi-latent attention: exact_mla.c. */
void parity_ask_lattice_mla(parity_ask *q);
/* Operations that our engines do not have. */
void parity_ask_lattice_foreign(parity_ask *q);
/* exact_request.c: the lattice requests of one rank, without collectives. */
void parity_ask_lattice(parity_ask *q);
/* random_request.c: every operation on random inputs of one data mode; the answers are judged by bounds.  `assay run` asks in
 * the first PARITY_MODE_RUN modes, `assay certify` in all. */
typedef enum {
    PARITY_ZERO_MEAN,
    PARITY_ONE_SIGNED,
    PARITY_HEAVY_TAILED,    /* magnitudes over 24 binary orders */
    PARITY_SIGN_STRUCTURED, /* signs alternate with the index */
    PARITY_CANCELLATION,    /* neighbours cancel but for their last bits */
    PARITY_SUBNORMAL,       /* half of the elements below the smallest normal number */
    PARITY_HUGE,            /* 2^30 */
    PARITY_NAN,             /* one element is no number */
    PARITY_INFINITY,        /* one element is infinite */
    PARITY_MODE_COUNT
} parity_data_mode;
enum { PARITY_MODE_RUN = PARITY_ONE_SIGNED + 1 };
/* An operation is asked: the one of `only`, or any that our engines have. */
bool parity_ask_wants(const parity_ask *q, const char *op);
/* Where the values of an input come from. */
typedef struct parity_draws {
    uint64_t seed;
    int input; /* number of the input: no two draw the same values */
} parity_draws;
/* Element i of an input on such data; planted: the one element that is no number or infinite. */
double parity_mode_value(parity_data_mode mode, const parity_draws *d, int64_t i, double scale, bool planted);
/* "zero_mean" */
const char *parity_data_mode_name(parity_data_mode mode);
/* Whether the operation has a meaning on such data: else why not, in words. */
const char *parity_data_mode_refusal(const char *op, parity_data_mode mode);
void parity_ask_random(parity_ask *q, parity_data_mode mode);
/* The same at the widths of real models, where sums are long (random_widths.c). */
void parity_ask_widths(parity_ask *q, parity_data_mode mode);
/* The same with each size of the operation once at every boundary (random_sweep.c). */
void parity_ask_sweep(parity_ask *q, parity_data_mode mode);

/* Sizes that are long in one direction, each in one mode that turns with the seed (random_long.c). */
void parity_ask_long(parity_ask *q, int64_t seed);

/* A call of a rotation: its shape is that of the size row `sizes`, but that `swept` ("T", "Sq,Sk"; NULL: nothing) is `size`. */
typedef struct parity_asked {
    const char *op, *sizes, *swept;
    int64_t size;
    parity_data_mode mode;
    int64_t shape; /* its number among all shapes of all operations */
} parity_asked;
typedef assay_status (*parity_on_asked)(void *user, const parity_asked *asked);
/* Every operation once at every shape, those of parity_ask_random and parity_ask_sweep and the ones around tiles, each in one data mode:
 * that of the shape's number plus `turn`, modulo the modes.  PARITY_MODE_COUNT turns ask every shape in every mode that has a meaning for
 * it.  What a call holds follows from q->n at the start, its shape's number and turn alone, whatever `only` leaves out.  `on` is told of each call
 * that was written; without a writer (q->w NULL) nothing is, and it is told of each shape's mode that has a meaning. */
void parity_ask_rotation(parity_ask *q, int64_t turn, parity_on_asked on, void *user);

/* --- value functions ---------------------------------------------------------------------------------------- */
/* Integers in [-4, 4]: a sum of up to 2^20 products stays exact in F32. */
double parity_lattice(const parity_ask *q, int64_t i);
/* A number of its own for every element, as far as the type can count; seldom a zero that is negative. */
double parity_unique(const parity_ask *q, int64_t i);
/* Half of them zeros, of either sign. */
double parity_zeros(const parity_ask *q, int64_t i);
double parity_sign(const parity_ask *q, int64_t i);
double parity_zero(const parity_ask *q, int64_t i);

#endif
