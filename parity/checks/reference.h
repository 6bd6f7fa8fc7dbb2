/* The reference on the batch that a trace recorded: in double, and perturbed as the candidate's precision rounds.  Whole traces,
 * in a folder of their own that goes with them. */
#ifndef PARITY_REFERENCE_H
#define PARITY_REFERENCE_H

#include "parity/judge/align.h"

enum { PARITY_REFERENCE_RUNS = 16, PARITY_REFERENCE_FIRST = 4 };

typedef struct parity_reference {
    char folder[ASSAY_PATH]; /* "": none made yet */
    const assay_model_spec *spec;
    double **weights; /* owned */
    assay_batches batches;
    int64_t step; /* of the candidate's trace that was run again */
    assay_precision precision;
    double perturb; /* roundings of the candidate per rounding of the reference, in standard deviations */
    const parity_aligner *names;
    const parity_index *candidate; /* whose choices of experts are taken */
    int n;                         /* perturbed runs made */
    assay_trace *truth, *perturbed[PARITY_REFERENCE_RUNS];
    parity_index *truth_index, *index[PARITY_REFERENCE_RUNS];
} parity_reference;

/* Batch and step from the candidate's trace, weights from the folder.  ASSAY_UNSUPPORTED: a recorded batch that is none of one
 * causal row per sequence (padding, data-parallel ranks under one name). */
assay_status parity_reference_create(parity_reference **out, const parity_aligner *names, const char *folder,
                                     const parity_index *candidate, assay_precision precision);
void parity_reference_destroy(parity_reference *r);
/* Truth and at least n perturbed runs. */
assay_status parity_reference_run(parity_reference *r, int n);

#endif
