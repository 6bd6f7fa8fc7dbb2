/* Data: token streams and their order.  Order and masks are functions of global indices (Philox), so no
 * layout changes them. */
#ifndef ASSAY_CORE_DATASET_H
#define ASSAY_CORE_DATASET_H

#include "core/files/bpe.h"

ASSAY_BEGIN_DECLS

typedef struct assay_dataset assay_dataset;
/* `paths`: files (text), folders (every regular text file below, sorted by path) or PREFIX of a Megatron-LM
 * indexed dataset (PREFIX.idx + PREFIX.bin, index version 1).  An EOD token follows every text document;
 * indexed sequences are joined as they are.  Text and indexed datasets cannot be mixed.  In folders, names
 * that begin with a dot, symbolic links, empty and binary files (a NUL byte) are skipped; named directly, an
 * empty or a binary file is an error. */
assay_status assay_dataset_open(assay_dataset **out, const char *const *paths, int n_paths);
/* How text becomes tokens: bpe NULL: bytes; else its tokens, with what its post-processor adds around every document, and `eod`
 * behind each. */
typedef struct assay_text_tokens {
    const assay_bpe *bpe;
    int64_t eod;
} assay_text_tokens;
/* The same with another tokenizer for text, which must outlive this call.  ASSAY_INVALID_ARGUMENT for an indexed dataset with a
 * bpe: its tokens are made already. */
assay_status assay_dataset_open_tokens(assay_dataset **out, const char *const *paths, int n_paths,
                                       const assay_text_tokens *how);
void assay_dataset_close(assay_dataset *d);
int64_t assay_dataset_n_tokens(const assay_dataset *d);
/* Text documents, or sequences of indexed datasets. */
int64_t assay_dataset_n_documents(const assay_dataset *d);
/* 1 + largest token that there may be: the tokenizer's vocabulary; of indexed datasets 1 + largest token. */
int64_t assay_dataset_vocab(const assay_dataset *d);
/* Sample `index` of an endless epoch-wise shuffled order: `seq_length` consecutive tokens; labels in the
 * Hugging Face sense (same positions as the inputs, -100 ignored).  mask_probability: share of positions
 * whose label is masked (0 <= p < 1); the last label of a sample always counts.  ASSAY_INVALID_ARGUMENT:
 * fewer tokens than seq_length. */
assay_status assay_dataset_sample(const assay_dataset *d, uint64_t seed, int64_t index, int64_t seq_length,
                                  double mask_probability, int64_t *input_ids, int64_t *labels);
/* Writes a batch file [steps, microbatches, b, s] of consecutive samples 0, 1, 2, ...; s >= 2.  pack: with `position_ids` that
 * start again behind every end of a document, so that documents of a row do not see each other, and without their first tokens' labels (text
 * alone). */
assay_status assay_dataset_write_batches(const assay_dataset *d, const char *path, uint64_t seed,
                                         int64_t steps, int64_t microbatches, int64_t b, int64_t s,
                                         double mask_probability, bool pack);

ASSAY_END_DECLS

#endif
