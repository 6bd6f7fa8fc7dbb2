/* Tokens over tp in splits (--tp-comm-overlap): a collective of some rows runs on the communication stream of activations
 * (gpu/beside.h) while the product that feeds or follows it has the rows of another split.  The order of calls is the same on all
 * ranks, and so is every count.
 *
 * With sequence parallelism split c holds the c-th part of the rows of *every* rank's piece, so that each rank ends with the rows
 * that it has without splits: these rows are as many stretches of whole tokens as there are ranks.  Without, a split is one stretch.
 * Rows that splits do not divide evenly: the first splits have one more; fewer rows than splits: the last ones are empty and left
 * out.  docs/LAYOUTS.md 5. */
#ifndef GPU_PARALLEL_SPLITS_H
#define GPU_PARALLEL_SPLITS_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* Whether collectives over tp may run beside products: tp has company, there is a stream for them, and nobody watches.  A dry run
 * counts as one that may: it has the calls of the run that it stands for. */
bool gpu_tp_beside(const gpu_model *m);
/* Whether tokens travel in splits: that, and it was asked for. */
bool gpu_has_splits(const gpu_model *m);
/* How many: GPU_SPLITS; with sp, where a rank's rows of a split are a product of their own, 2 * GPU_SPLITS / tp, at least 2. */
int gpu_splits_count(const gpu_model *m, bool sp);
/* Stretches of a split: tp with sp, else 1. */
int gpu_split_stretches(const gpu_model *m, bool sp);

/* Rows of split c that lie one behind the other: with sp those of tp rank r. */
typedef struct gpu_stretch {
    int64_t whole; /* the first among whole tokens [S*B] */
    int64_t piece; /* among the rows of the rank's piece */
    int64_t rows;
} gpu_stretch;
gpu_stretch gpu_split_stretch(const gpu_model *m, bool sp, int c, int r);
/* These rows of a value, a view. */
gpu_value gpu_split_rows(const gpu_value *v, int64_t first, int64_t rows);

/* sp: rows of every rank's piece are on the way to their places in `whole`, which is made; behind `arrive` the stream of the context
 * has those of split c. */
assay_status gpu_splits_gather(gpu_model *m, gpu_value *whole, const gpu_value *piece);
assay_status gpu_splits_arrive(gpu_model *m, int c);
/* The sum over tp of `rows` (split c of partial sums, its stretches one behind the other) is on the way to its rows of `sum`: with sp
 * this rank's piece, else whole tokens.  Behind `join` the stream of the context has all. */
assay_status gpu_splits_reduce(gpu_model *m, bool sp, const char *at, int c, gpu_value *sum, gpu_value *rows);
assay_status gpu_splits_join(gpu_model *m);

ASSAY_END_DECLS

#endif
