/* Data: token streams, their order, and batch files.  Order and masks are functions of global indices
 * (Philox), so no layout changes them. */
#ifndef ASSAY_CORE_DATASET_H
#define ASSAY_CORE_DATASET_H

#include "core/files/tensorfile.h"

ASSAY_BEGIN_DECLS

/* --- byte-level tokenizer: token = byte value, plus one end-of-document token 256; vocabulary 257 ----------- */
enum { ASSAY_BYTE_VOCAB = 257, ASSAY_BYTE_EOD = 256 };
#define ASSAY_IGNORE_INDEX ((int64_t)-100)
/* tokens must hold `bytes` entries. */
void assay_tokenize_bytes(const void *text, size_t bytes, int64_t *tokens);
/* Inverse; ASSAY_INVALID_ARGUMENT names the first token outside 0..255 (EOD is skipped). */
assay_status assay_detokenize_bytes(const int64_t *tokens, int64_t n, char *out, size_t capacity,
                                    size_t *bytes);

/* --- token source ------------------------------------------------------------------------------------------- */
typedef struct assay_dataset assay_dataset;
/* `paths`: files (text), folders (every regular text file below, sorted by path) or PREFIX of a Megatron-LM
 * indexed dataset (PREFIX.idx + PREFIX.bin, index version 1).  An EOD token follows every text document;
 * indexed sequences are joined as they are.  Text and indexed datasets cannot be mixed.  In folders, names
 * that begin with a dot, symbolic links, empty and binary files (a NUL byte) are skipped; named directly, an
 * empty or a binary file is an error. */
assay_status assay_dataset_open(assay_dataset **out, const char *const *paths, int n_paths);
void assay_dataset_close(assay_dataset *d);
int64_t assay_dataset_n_tokens(const assay_dataset *d);
/* 1 + largest token. */
int64_t assay_dataset_vocab(const assay_dataset *d);
/* Sample `index` of an endless epoch-wise shuffled order: `seq_length` consecutive tokens; labels in the
 * Hugging Face sense (same positions as the inputs, -100 ignored).  mask_probability: share of positions
 * whose label is masked (0 <= p < 1); the last label of a sample always counts.  ASSAY_INVALID_ARGUMENT:
 * fewer tokens than seq_length. */
assay_status assay_dataset_sample(const assay_dataset *d, uint64_t seed, int64_t index, int64_t seq_length,
                                  double mask_probability, int64_t *input_ids, int64_t *labels);
/* Writes a batch file [steps, microbatches, b, s] of consecutive samples 0, 1, 2, ...; s >= 2. */
assay_status assay_dataset_write_batches(const assay_dataset *d, const char *path, uint64_t seed,
                                         int64_t steps, int64_t microbatches, int64_t b, int64_t s,
                                         double mask_probability);

/* --- batch file --------------------------------------------------------------------------------------------- */
typedef struct assay_batches {
    assay_tensorfile *file;
    bool training; /* [steps, microbatches, b, s]; else [b, s], one forward and backward */
    int64_t steps, microbatches, b, s;
    int64_t *input_ids; /* copied, aligned */
    int64_t *labels;
} assay_batches;
/* Opens and checks: dtypes, shapes equal, no other tensors, every input id in [0, vocab), every label in
 * [0, vocab) or -100, at least one target in every step (else the loss is 0/0).  Messages give tensor and
 * index. */
assay_status assay_batches_open(assay_batches *out, const char *path, int64_t vocab);
void assay_batches_close(assay_batches *b);
const int64_t *assay_batches_ids(const assay_batches *b, int64_t step, int64_t microbatch);    /* [b,s] */
const int64_t *assay_batches_labels(const assay_batches *b, int64_t step, int64_t microbatch); /* [b,s] */
/* Labels that count in the loss of a microbatch: positions 1..s-1 of labels that are not -100. */
int64_t assay_batches_n_targets(const assay_batches *b, int64_t step, int64_t microbatch);

/* How data-parallel ranks share a step.  M = microbatches in the file.
 *  M % dp == 0: rank r runs microbatches [r*M/dp, (r+1)*M/dp), each whole (Megatron-LM).  rows_split = false.
 *  else b % dp == 0: every rank runs all M microbatches on rows [r*b/dp, (r+1)*b/dp).  rows_split = true: the
 * auxiliary loss of a microbatch then counts tokens over tp and dp. else ASSAY_INVALID_ARGUMENT. */
typedef struct assay_batch_plan {
    bool rows_split;
    int64_t first_microbatch, n_microbatches; /* of this rank, global numbers */
    int64_t first_row, n_rows;                /* rows of b */
} assay_batch_plan;
assay_status assay_batch_plan_make(int64_t microbatches, int64_t b, int dp, int dp_rank,
                                   assay_batch_plan *out);

ASSAY_END_DECLS

#endif
