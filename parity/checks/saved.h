/* What saved.c (checkpoints) and saved_out.c (result files) share. */
#ifndef PARITY_CHECKS_SAVED_H
#define PARITY_CHECKS_SAVED_H

#include "core/files/tensorfile.h"
#include "parity/judge/judge.h"

typedef struct saved {
    const assay_trace *trace;
    const parity_index *x;
    const assay_model_spec *spec;
    const assay_train_options *options;
    const assay_batches *batches;
    int64_t steps;      /* of the run, or those done when the checkpoint was written */
    const char *claim;  /* of the checkpoint's tensors */
    const char *result; /* of the result file's tensors */
    parity_report *report;
} saved;

/* A result of that claim at the run's last step, PASS so far. */
void saved_start(const saved *s, parity_check check, const char *claim, const char *instance,
                 const char *tensor, parity_result *r);
/* The global tensor of the trace; not complete: *r fails with the reason. */
assay_status saved_from_trace(const saved *s, const char *name, assay_phase phase, int64_t step,
                              int64_t microbatch, parity_global *g, parity_result *r);
/* The gradients of a result file, which are those of that step. */
assay_status saved_check_gradients(const saved *s, const assay_tensorfile *f, int64_t step);
/* Every tensor of a result file. */
assay_status saved_check_out(const saved *s, const assay_tensorfile *f);

#endif
