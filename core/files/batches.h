/* Batch files: token ids and labels of one forward and backward, or of a few optimizer steps, and how
 * data-parallel ranks share a step. */
#ifndef ASSAY_CORE_BATCHES_H
#define ASSAY_CORE_BATCHES_H

#include "core/files/tensorfile.h"

ASSAY_BEGIN_DECLS

/* The label of a position that does not count in the loss. */
#define ASSAY_IGNORE_INDEX ((int64_t)-100)

typedef struct assay_batches {
    assay_tensorfile *file;
    bool training; /* [steps, microbatches, b, s]; else [b, s], one forward and backward */
    /* Whose labels: false: Hugging Face (`input_ids`, `labels`), the target of position s is the label of s + 1;
     * true: Megatron-LM (`tokens`, `labels` already shifted), the target of s is the label of s, the last position
     * has one, too. */
    bool shifted;
    int64_t steps, microbatches, b, s;
    int64_t *input_ids; /* copied, aligned */
    int64_t *labels;    /* ASSAY_IGNORE_INDEX also where a `loss_mask` is 0 */
    /* NULL: every row is one document.  Else rows are packed: the position of each token in its document, 0 where one begins (a
     * token of padding is a document of its own). */
    int64_t *position_ids;
} assay_batches;
/* Opens and checks: dtypes, shapes equal, no other tensors, every input id in [0, vocab), every label in
 * [0, vocab) or -100, at least one target in every step (else the loss is 0/0).  Megatron-LM's form may have a `loss_mask` of
 * zeros and ones (BOOL, I64, F32, F64).  Both may have documents packed in their rows: `position_ids` that start again at 0,
 * Megatron-LM's also `cu_seqlens`, `cu_seqlens_padded` (docs/SEMANTICS.md).  Messages give tensor and index. */
assay_status assay_batches_open(assay_batches *out, const char *path, int64_t vocab);
void assay_batches_close(assay_batches *b);
const int64_t *assay_batches_ids(const assay_batches *b, int64_t step, int64_t microbatch);    /* [b,s] */
const int64_t *assay_batches_labels(const assay_batches *b, int64_t step, int64_t microbatch); /* [b,s] */

/* [b,s]; NULL where every row is one document. */
const int64_t *assay_batches_positions(const assay_batches *b, int64_t step, int64_t microbatch);

/* How data-parallel ranks share a step.  M = microbatches in the file.
 *  M % dp == 0: rank r runs microbatches [r*M/dp, (r+1)*M/dp), each whole (Megatron-LM).  rows_split = false.
 *  else b % dp == 0: every rank runs all M microbatches on rows [r*b/dp, (r+1)*b/dp).  rows_split = true: the
 * auxiliary loss of a microbatch then counts tokens over tp and dp. else ASSAY_INVALID_ARGUMENT.
 * all_rows: by rows, whatever M is: all dp ranks run the same microbatch at a time. */
typedef struct assay_batch_share {
    bool rows_split;
    int64_t first_microbatch, n_microbatches; /* of this rank, global numbers */
    int64_t first_row, n_rows;                /* rows of b */
} assay_batch_share;
assay_status assay_batch_share_make(bool all_rows, int64_t microbatches, int64_t b, int dp, int dp_rank,
                                    assay_batch_share *out);

ASSAY_END_DECLS

#endif
