/* Parts of `assay diff` on traces.  Private to parity/run/diff*.c and the check of a trace against a model. */
#ifndef PARITY_DIFF_H
#define PARITY_DIFF_H

#include "parity/checks/noise.h"
#include "parity/judge/align.h"

/* How far two tensors lie apart, over elements that are finite in both. */
typedef struct diff_statistics {
    double max, mean; /* of |second - first| */
    double relative;  /* ||second - first|| / ||first|| */
    double cosine;    /* between the two; 1 where both are zero */
} diff_statistics;

/* index.json: gradient_scale (docs/TRACE.md); 1 where there is none. */
double diff_gradient_scale(const assay_trace *t);

typedef struct diff_pair {
    const parity_entry *e, *o; /* of the trace that is walked, and of the other */
    const assay_name_row *row; /* NULL: one name */
    bool walked_is_second;
    int64_t position; /* in order of execution */
    double factor;    /* what the walked trace's values are multiplied by first; 0: nothing */
    int64_t targets;  /* that the walked trace's mean of losses is over; 0: unknown */
} diff_pair;

typedef struct diff_compare {
    const parity_index *walked, *other;
    double tolerance;                /* < 0: bits */
    parity_noise *noise;             /* NULL: none */
    const parity_aligner *translate; /* both have Hugging Face's names, the noise's runs ours; else NULL */
    bool alike;                      /* same engine, layout and precision */
    double scale[2]; /* of gradients before their reduction, of the first and the second trace */
    parity_scales scales;
} diff_compare;

/* diff_compare.c: verdict, message, diagnosis in *r; bad (NULL, or the caller's to free): of every element of the global tensor,
 * in the walked trace's order where nothing was permuted; of local ones that of diff_compare_local. */
assay_status diff_compare_pair(const diff_compare *d, const diff_pair *p, parity_result *r,
                               diff_statistics *statistics, unsigned char **bad);

/* The same of two tensors as they are, the first trace's in a. */
assay_status diff_compare_globals(const diff_compare *d, const diff_pair *p, const parity_global *a,
                                  const parity_global *b, parity_result *r, diff_statistics *statistics,
                                  unsigned char **bad);

/* diff_local.c: tensors that mean something on their rank alone, of two runs that are alike: rank by rank.  *bad, the caller's to
 * free: of every piece, whether it fails. */
assay_status diff_compare_local(const diff_compare *d, const diff_pair *p, parity_result *r,
                                diff_statistics *statistics, unsigned char **bad);

/* diff_loss.c: what a recorded loss is multiplied by to be the mean over its targets, by the reduction of the cross entropy that
 * made it: 1, or 1 / targets of a sum; 0: there is a loss for every target.  *targets: how many these are, 0 where they are not recorded, or where
 * several ranks hold a loss each. */
assay_status diff_loss_factor(const assay_trace *t, const parity_entry *e, double *factor, int64_t *targets);
/* Of a failure of what stands behind an output under its name: adds that to the diagnosis. */
void diff_say_later(parity_result *r);

/* diff_ranks.c: what the pieces of an entry are beside the tensor that they should be (count elements in the global order), the
 * entry's values multiplied by factor; false: nothing to say. */
bool diff_say_ranks(const parity_index *x, const parity_entry *e, const double *expected, int64_t count,
                    double factor, char *out, size_t capacity);

/* diff_attributes.c: attributes of operations that ran in both, one row for each attribute of an operation. */
enum { DIFF_ATTRIBUTES = 12, DIFF_VALUE = 64 };
typedef struct diff_attribute {
    const assay_trace_op *op; /* the first that differs ... */
    int64_t position;         /* ... and where its outputs stand in order of execution */
    char name[DIFF_VALUE], first[DIFF_VALUE], second[DIFF_VALUE];
    int64_t count; /* operations */
} diff_attribute;
typedef struct diff_attributes {
    int n; /* in order of execution */
    diff_attribute row[DIFF_ATTRIBUTES];
    int64_t compared, total, more; /* operations; attributes that differ; those without a row */
} diff_attributes;
/* Of two traces with one vocabulary.  positions: of every entry of the walked one in order of execution. */
assay_status diff_compare_attributes(const diff_compare *d, const int64_t *positions, diff_attributes *out);
void diff_attribute_text(const diff_attribute *a, char *out, size_t capacity);
void diff_print_attributes(const diff_attributes *list, FILE *out);
/* New; its texts are clean. */
json_t *diff_attributes_json(const diff_attributes *list);

/* diff_sentence.c: the last line of a diff.  first: NULL when nothing differs; attribute: NULL, or what differs before it. */
void diff_sentence(const diff_pair *first, const parity_result *r, const diff_attribute *attribute,
                   int64_t failed, int64_t passed, char *out, size_t capacity);

#endif
