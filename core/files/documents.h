/* Documents: several of them packed in a row of a batch.  Inside core/files, and for who writes batches.
 *
 * A row is cut into documents, one behind the other; its `position_ids` say where each token stands in its own: they start at
 * 0 and start again with every document.  A token of padding is a document of its own.  docs/SEMANTICS.md has the meaning. */
#ifndef ASSAY_CORE_DOCUMENTS_H
#define ASSAY_CORE_DOCUMENTS_H

#include "core/files/batches.h"

ASSAY_BEGIN_DECLS

/* Reads `position_ids`, `cu_seqlens` and `cu_seqlens_padded` of an open batch file whose ids and labels are read;
 * b->position_ids stays NULL where every row is one document.  `ids`: the tensor of token ids, for its shape. */
assay_status assay_documents_read(assay_batches *b, const char *path, const assay_tensor_info *ids);

/* position_ids [s] of row `row` of a made-up batch, a function of seed and row: documents of one token, of a few and of a large
 * part of the row, each filled up with padding to a multiple of `multiple` tokens (1: none).  The row is filled up, too. */
void assay_documents_draw(uint64_t seed, int64_t row, int64_t s, int64_t multiple, int64_t *position_ids);

ASSAY_END_DECLS

#endif
