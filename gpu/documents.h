/* Documents packed in the rows of a batch: positions that start again, and where each document begins.  docs/OPS.md 9.8. */
#ifndef GPU_DOCUMENTS_H
#define GPU_DOCUMENTS_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* mb->documents from the positions [b,s] of the whole microbatch in their documents; nothing where rows are one document. */
assay_status gpu_documents_load(gpu_model *m, gpu_microbatch_state *mb, const int64_t *positions);
/* What rotation reads: positions in the documents, in the row where that is one document. */
gpu_value *gpu_documents_position(gpu_model *m, gpu_documents *documents);
/* What attention reads as first_key, of this rank's queries or of all that its cp group gathers; NULL for NULL. */
gpu_value *gpu_documents_start(gpu_documents *documents, bool gathered);

ASSAY_END_DECLS

#endif
