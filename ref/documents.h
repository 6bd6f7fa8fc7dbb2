/* Documents packed in the rows of a batch: positions that start again, and where each document begins.  docs/OPS.md 9.8. */
#ifndef REF_DOCUMENTS_H
#define REF_DOCUMENTS_H

#include "ref/engine.h"

/* p->position_ids of the pass's microbatch: positions in the row where rows are one document. */
assay_status ref_documents_load(ref_pass *p);
/* [T,1] of every rank: the position in the row at which the document of each token begins; no tensor where rows are one
 * document.  gathered: of the positions that the cp group gathers, else of the rank's own. */
assay_status ref_documents_start(ref_pass *p, ref_ints *out, bool gathered);

#endif
