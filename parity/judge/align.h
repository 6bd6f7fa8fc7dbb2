/* Another framework's tensors beside ours: the pair that a name map names, brought into one shape.  Private to parity/. */
#ifndef PARITY_ALIGN_H
#define PARITY_ALIGN_H

#include "core/model/names.h"
#include "parity/judge/judge.h"

typedef struct parity_aligner {
    assay_model_config *config;
    assay_model_spec *spec;
    assay_names *names;
} parity_aligner;

/* folder: a model folder, or NULL or "": the model that `header` (of a trace) describes.  map: NULL, "" or a user's map file. */
assay_status parity_aligner_create(parity_aligner **out, const char *folder, const json_t *header,
                                   const char *map);
void parity_aligner_destroy(parity_aligner *a);

/* Whether the names of a trace are Hugging Face's. */
bool parity_names_are_foreign(const assay_trace *t);

/* The entry of ours that `theirs` corresponds to, and the row that says how; NULL: no row, or ours does not hold it (*row NULL:
 * no row). */
const parity_entry *parity_aligner_find(const parity_aligner *a, const parity_index *ours,
                                        const parity_entry *theirs, const assay_name_row **row);

/* Both in our order of axes and in one shape: [s,b,...] or rows; a fused tensor of ours is cut to the pieces that theirs holds.
 * targets: how many tokens a mean of losses is over; 0: unknown, those with a loss that is not zero.
 * *a and *b are the caller's also after a failure.  ASSAY_MISMATCH: sizes that cannot be that pair. */
assay_status parity_align(const assay_name_row *row, const parity_global *theirs, const parity_global *ours,
                          int64_t targets, parity_global *a, parity_global *b);
/* Ours alone in that shape; row NULL: as it is. */
assay_status parity_align_ours(const assay_name_row *row, const parity_global *ours, int64_t targets,
                               parity_global *out);
/* Theirs put in its place in a tensor of ours: `at` has our shape and dtype F64; held [count] gets 1 where an element was put.
 * Relation EQUAL alone. */
assay_status parity_align_into(const assay_name_row *row, const parity_global *theirs, parity_global *at,
                               unsigned char *held);

#endif
