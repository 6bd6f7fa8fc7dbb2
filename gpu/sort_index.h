/* In which order the experts of this rank compute the rows that reach them, made on the device from the counts that are there: the
 * host need not know them.  docs/OPS.md 9.9 and 9.2 (Rows). */
#ifndef GPU_SORT_INDEX_H
#define GPU_SORT_INDEX_H

#include "gpu/gpu.h"

ASSAY_BEGIN_DECLS

/* Rows lie as [source, expert], or with `merged` the sources of every expert together, and go to [expert, source] with zeros behind
 * each expert's. */
typedef struct gpu_sort_index_args {
    const int64_t *counts; /* [sources,experts] */
    int sources;
    bool merged;
    int64_t experts;
    int64_t room;               /* rows that every expert computes; below 0: its own, raised to a multiple */
    int64_t multiple;           /* at least 1 */
    int64_t *tokens_per_expert; /* [experts] =: rows that each computes, zeros among them */
    int64_t *sort,
        padded; /* [padded] =: new row -> old row, -1: zeros, or a row that no expert has; NULL: no order is made */
    int64_t *unsort, gathered; /* [gathered] =: its inverse, -1: there is no such row */
} gpu_sort_index_args;

/* One launch; integers, exact.  Rows beyond an expert's room, which its count must not be, have no place; whatever the counts say,
 * nothing is written beside the outputs. */
cudaError_t gpu_sort_index(const gpu_sort_index_args *args, cudaStream_t stream);

ASSAY_END_DECLS

#endif
