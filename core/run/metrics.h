/* What a training run says of its steps: a line of text now and then, and a file with one JSON object for each.  docs/TRAIN.md. */
#ifndef ASSAY_RUN_METRICS_H
#define ASSAY_RUN_METRICS_H

#include "core/files/batches.h"
#include "core/run/options.h"

ASSAY_BEGIN_DECLS

enum { ASSAY_RUN_ID = 17 };
typedef struct assay_metrics {
    FILE *file; /* NULL: none */
    char run[ASSAY_RUN_ID];
    int64_t first, last, interval; /* steps [first, last), a line of text every interval (0: none) */
    int64_t samples, tokens;       /* of a step */
    double begin;
} assay_metrics;

/* Whether the options ask for either. */
bool assay_metrics_wanted(const assay_train_options *o);
/* The id of a new run. */
void assay_metrics_new_run(char run[ASSAY_RUN_ID]);
/* For steps [first, last) of `run`.  A run that begins at step 0 makes its file, which must not exist.  One that goes on appends:
 * ASSAY_MISMATCH unless every line is of this run, step behind step, up to `first` at least; lines of later steps, which no
 * checkpoint has, are cut off and made again. */
assay_status assay_metrics_open(assay_metrics *m, const assay_train_options *o, const char *run,
                                int64_t first, int64_t last, const assay_batches *b);
assay_status assay_metrics_step(assay_metrics *m, int64_t step, double loss, double grad_norm,
                                double learning_rate);
void assay_metrics_close(assay_metrics *m);

/* The data that `steps` steps have read, for the header of a checkpoint: samples, and SHA-256 of ids and labels.  NULL: out of
 * memory. */
json_t *assay_consumed_to_json(const assay_batches *b, int64_t steps);
/* Whether this run's data begin with what the checkpoint's run has read.  ASSAY_MISMATCH, unless override_checkpoint_args is set:
 * then it goes to `out` (NULL: nowhere). */
assay_status assay_consumed_check(const char *dir, const json_t *header, const assay_batches *b,
                                  const assay_train_options *o, int64_t steps, FILE *out);

ASSAY_END_DECLS

#endif
