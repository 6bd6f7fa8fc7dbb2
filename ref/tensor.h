/* Lockstep tensors: one array for each rank of a pipeline stage, and the arena they live in.
 *
 * All ranks are in one process.  A ref_tensor holds, for every rank of the stage, that rank's piece; an
 * operation loops over the pieces (ref/lockstep.h), a collective is a loop over the pieces of a group
 * (ref/parallel/).  With a world of 1 there is one piece and all of it is plain code. */
#ifndef REF_TENSOR_H
#define REF_TENSOR_H

#include "core/model/spec.h"

/* Memory of one pass: blocks are freed together. */
typedef struct ref_arena {
    struct ref_block *blocks;
} ref_arena;
/* Zeroed memory; ASSAY_OUT_OF_MEMORY.  0 elements give a valid pointer. */
assay_status ref_arena_alloc(ref_arena *a, int64_t n, size_t element_bytes, void **out);
void ref_arena_free(ref_arena *a);

/* [rows, cols] of one rank */
typedef struct ref_piece {
    double *x;
    int64_t rows, cols;
} ref_piece;
typedef struct ref_tensor {
    ref_piece *at;    /* [ranks of the stage]; NULL: no tensor */
    int n;            /* ranks of the stage */
    const char *name; /* canonical name: "decoder.layers.0.input_layernorm.y" */
    bool token_rows;  /* rows are tokens t = s*B + b (shape [S,B,...]); false: routed rows */
    int64_t heads;    /* > 0: columns are [heads, cols/heads] */
} ref_tensor;

/* The same for integers. */
typedef struct ref_int_piece {
    int64_t *x;
    int64_t rows, cols;
} ref_int_piece;
typedef struct ref_ints {
    ref_int_piece *at;
    int n;
} ref_ints;

/* A tensor of n pieces without data, and one piece (not cleared: every operation overwrites its outputs). */
assay_status ref_tensor_new(ref_arena *a, ref_tensor *t, int n, const char *name);
assay_status ref_piece_new(ref_arena *a, ref_piece *p, int64_t rows, int64_t cols);
assay_status ref_ints_new(ref_arena *a, ref_ints *t, int n);
assay_status ref_int_piece_new(ref_arena *a, ref_int_piece *p, int64_t rows, int64_t cols);

#endif
