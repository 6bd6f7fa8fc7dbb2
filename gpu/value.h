/* Values: device tensors with a name and a place in the global tensor.
 *
 * A value is described first (dimensions, arena; no memory) and made by the call that writes it (gpu/call.h), which takes its
 * memory, its dtype from the table of operations and its name from instance and slot.  docs/TRACE.md, docs/OPS.md section 0. */
#ifndef GPU_VALUE_H
#define GPU_VALUE_H

#include "core/files/trace.h"
#include "core/model/grid.h"
#include "core/model/sequence.h"
#include "gpu/gpu.h"

ASSAY_BEGIN_DECLS

/* One dimension of a piece: the global extent is `blocks` equal blocks, and the piece holds [start,
 * start+length) of each.  length counts one block.  Positions of a sequence: its segments instead of `start`. */
typedef struct gpu_dim {
    int64_t global, start, length;
    int blocks;
    const assay_sequence *sequence; /* NULL: one range; else blocks is 1, and it lives as long as the model */
} gpu_dim;
gpu_dim gpu_dim_whole(int64_t n);
gpu_dim gpu_dim_positions(int64_t global, const assay_sequence *sequence);
gpu_dim gpu_dim_piece(int64_t global, int64_t start, int64_t length);
/* Piece `rank` of `parts` of each of `blocks` equal blocks. */
gpu_dim gpu_dim_split(int64_t global, int blocks, int parts, int rank);

/* Names of permuted rows: ids[i] = token_global * E + expert, -1 for a row of another microbatch.  Host
 * memory, filled only when tracing. */
typedef struct gpu_rows {
    int64_t n;
    int64_t *ids;
    int64_t record; /* id of the record that holds them, -1 before it was written */
} gpu_rows;

typedef struct gpu_value {
    gpu_tensor t; /* as the operations see it */
    char name[ASSAY_NAME];
    assay_phase phase; /* of the producer */
    int64_t microbatch;
    assay_piece_kind kind;
    assay_group partial; /* kind PARTIAL: the group to sum over */
    int ndim;
    gpu_dim dim[ASSAY_MAX_DIMS];
    const assay_shard *shard; /* parameters: replaces dim when not NULL */
    const gpu_rows *rows;     /* kind ROWS */
    gpu_arena *arena;         /* described only: the call that makes it takes its memory here; else NULL */
    int merge; /* index of the dimension S whose product with the next one (B) is the operations' T; -1 */
    const int64_t *host; /* the same integers in host memory, where they are known there; else NULL */
    int64_t *host_room;  /* where a call puts them whose kernel reads them there, once; NULL: it is refused */
} gpu_value;

/* Described: [length of each dim], memory from `arena`. */
gpu_value gpu_value_describe(gpu_arena *arena, int ndim, const gpu_dim *dim, int merge);
/* *v = description; returns v. */
gpu_value *gpu_value_set(gpu_value *v, gpu_value description);
/* Takes the memory of a described value as `dtype`. */
assay_status gpu_value_make(gpu_value *v, assay_dtype dtype);
/* The same in memory that is there already, and large enough; the caller names it. */
void gpu_value_place(gpu_value *v, assay_dtype dtype, void *data);
/* The place of the piece as shard. */
void gpu_value_shard(const gpu_value *v, assay_shard *s);
/* The same value as one dimension (the operations' view; the recorded dimensions stay). */
gpu_value gpu_value_flat(const gpu_value *v);

ASSAY_END_DECLS

#endif
