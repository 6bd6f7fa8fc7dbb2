/* The sequence map: which positions of a sequence a rank holds, in which order.  The one place that says so; both
 * engines ask it for positions, for rows of a piece and for where a piece lies.
 *
 * Context parallelism cuts the sequence for everything on a rank: S is cut in 2*CP chunks by assay_split and cp
 * rank i holds chunks i and 2*CP-1-i (zig-zag: under a causal mask every rank then has the same work).  Sequence
 * parallelism cuts what cp left over tp, in local order: assay_split(local length, TP, tp).  Pieces may be uneven
 * or empty; nothing is padded.  Source: Megatron-LM get_batch_on_this_cp_rank and
 * scatter_to_sequence_parallel_region, here without the demand that 2*CP*TP divides S. */
#ifndef ASSAY_CORE_SEQUENCE_H
#define ASSAY_CORE_SEQUENCE_H

#include "core/model/spec.h"

ASSAY_BEGIN_DECLS

/* An ordered list of ranges of global positions; neighbours that touch are one segment. */
typedef struct assay_sequence {
    int n_segments;
    int64_t length; /* sum of the segments */
    assay_segment segments[ASSAY_MAX_SEGMENTS];
} assay_sequence;

typedef struct assay_sequence_map {
    int64_t global_length; /* S */
    assay_sequence region; /* attention and the tensor-parallel regions: what the cp rank holds */
    assay_sequence shard;  /* sequence-parallel regions: this tp rank's piece of `region` */
    int64_t shard_first;   /* where the shard begins in the local order of `region` */
} assay_sequence_map;

/* ASSAY_INVALID_ARGUMENT: s < 0, rank outside the world. */
assay_status assay_sequence_map_make(const assay_grid *g, int rank, int64_t s, assay_sequence_map *out);
/* What a rank has after gathering the regions of its cp group: those of cp rank 0, 1, ... one after the other, at most
 * 2*CP-1 segments.  ASSAY_UNSUPPORTED: more than an assay_sequence holds. */
assay_status assay_sequence_gathered(const assay_grid *g, int64_t s, assay_sequence *out);
/* Length of the region of cp rank `cp`. */
int64_t assay_sequence_region_length(const assay_grid *g, int64_t s, int cp);
/* Global position of local row i, -1 outside [0, length). */
int64_t assay_sequence_position(const assay_sequence *q, int64_t i);
/* Local row of a global position, -1 when the piece does not hold it. */
int64_t assay_sequence_row(const assay_sequence *q, int64_t position);
/* Rows [first, first + length) of q in its local order, as far as it has them. */
void assay_sequence_cut(const assay_sequence *q, int64_t first, int64_t length, assay_sequence *out);
/* Writes the piece into dimension `dim` of a shard whose global extent there is S. */
void assay_sequence_place(const assay_sequence *q, int64_t global_length, assay_shard *shard, int dim);

ASSAY_END_DECLS

#endif
