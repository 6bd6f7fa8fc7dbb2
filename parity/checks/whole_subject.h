/* One tensor of the whole check and its slices.  Private to parity/checks/whole*.c. */
#ifndef PARITY_WHOLE_SUBJECT_H
#define PARITY_WHOLE_SUBJECT_H

#include "parity/checks/whole.h"

/* One tensor: the candidate's values, the reference's, the perturbed ones. */
typedef struct parity_whole_subject {
    const double *found, *truth, *perturbed[PARITY_WHOLE_RUNS];
    const double *wanted; /* the truth, or another run's values */
    double widen;
    int runs;
    int64_t count;
    const int64_t *shape;
    int ndim;
    assay_dtype stored;
    bool
        squares; /* exp_avg_sq: compared by square roots.  Where a gradient is less than its uncertainty, the errors of its square have
                     a tail that no standard deviation tells; those of its size have not */
    double jump, jump_rate; /* masters; else 0 */
    double cluster;         /* of jumps, in the whole tensor */
    double *clusters;       /* [shape[0]] of jumps, in a slice */
    double *allowance;      /* [count] out: of an element, its slice's share */
} parity_whole_subject;

/* Judges the whole tensor and its slices into *r: verdict, worst slice and what is allowed of it, a picture in the gallery where one fails.
 * name: as the model names it, which says what its slices are; than: what it is compared with, in words. */
assay_status parity_whole_judge(parity_whole_subject *s, const char *name, const assay_model_config *m,
                                const char *than, parity_gallery *gallery, const parity_scales *scales,
                                parity_result *r);

#endif
