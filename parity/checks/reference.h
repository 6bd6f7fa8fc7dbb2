/* The reference on the batch that a trace recorded: in double, and perturbed as the candidate's precision rounds.  Whole traces,
 * in a folder of their own that goes with them. */
#ifndef PARITY_REFERENCE_H
#define PARITY_REFERENCE_H

#include "parity/judge/align.h"

enum { PARITY_REFERENCE_RUNS = 16, PARITY_REFERENCE_FIRST = 4 };

/* Of one recorded microbatch. */
typedef struct parity_microbatch {
    int64_t targets; /* positions that are asked for a token */
    bool known;      /* what they are asked for is recorded: labels, or the targets of its cross entropy */
    bool from_call;  /* `labels` of the model's call, which the model moves by one */
    bool evaluation; /* a forward alone, where others have a backward: no part of the objective */
} parity_microbatch;

typedef struct parity_reference {
    char folder[ASSAY_PATH]; /* "": none made yet */
    const assay_model_spec *spec;
    double **weights; /* owned */
    assay_batches batches;
    parity_microbatch *microbatches; /* as many as the batch has */
    bool
        assumed; /* of a microbatch nobody recorded them: its input_ids are taken, which is known so far as its loss confirms it */
    bool known;  /* the targets of every microbatch that is no evaluation */
    bool
        means; /* the objective: the mean of the means of microbatches; false: the mean over the step's targets */
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
/* reference_batch.c: ids, labels and positions of the first recorded step. */
assay_status parity_reference_take_batch(parity_reference *r);
/* Whether the recorded position_ids of a microbatch start again in a row: documents that share it.  Positions that no packed row has
 * are an error of parity_reference_take_batch alone. */
assay_status parity_reference_packed(const parity_index *x, int64_t step, int64_t microbatch, bool *packed);
/* The only operation of its name in a microbatch that is no recomputation, on the first rank that has one; NULL: none, or several. */
const assay_trace_op *parity_reference_op(const assay_trace *t, const char *op, int64_t step,
                                          int64_t microbatch);
/* Truth and at least n perturbed runs. */
assay_status parity_reference_run(parity_reference *r, int n);

#endif
