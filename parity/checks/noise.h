/* What rounding can do to a tensor of a whole run: thresholds for comparing two runs, without a tolerance to type.
 *
 * With a model folder: from perturbed runs of the reference on the recorded batch (reference.h), the method of whole.c.
 * Without one, from the dtype: every stored tensor adds an error of half a unit in the last place (where the recipe adds in the
 * type that it stores, that of a sum of n terms: sqrt(n/3) such), errors of k tensors in a row add up like a random walk, and 4 of
 * these standard deviations are allowed. */
#ifndef PARITY_NOISE_H
#define PARITY_NOISE_H

#include "parity/checks/reference.h"
#include "parity/judge/align.h"

typedef struct parity_noise {
    assay_dtype unit;       /* the format that rounds: BF16 or F32 */
    double longest;         /* terms of the longest sum */
    parity_reference *runs; /* NULL: from the dtype alone */
    bool against_truth;     /* the first is the reference in double itself; else both runs have errors */
    int foreign_roundings;  /* how many times another framework rounds where the reference rounds once */
} parity_noise;

/* One tensor in the common shape. */
typedef struct parity_noise_subject {
    const double *first, *second;
    int64_t count, position; /* position: of the tensor in order of execution */
    const int64_t *shape;
    int ndim;
    const assay_name_row *row; /* from ours, whose key is: */
    const char *name;
    assay_phase phase;
    int64_t step, microbatch;
    int64_t targets; /* of a mean of losses; 0: unknown */
} parity_noise_subject;

/* Judges the whole tensor and its slices (rows of dimension 0); fills allowance [count] and verdict, message of *r.
 * ASSAY_NOT_FOUND: the runs of the reference hold no such tensor. */
assay_status parity_noise_judge(const parity_noise *n, const parity_noise_subject *s, double *allowance,
                                parity_result *r);

#endif
