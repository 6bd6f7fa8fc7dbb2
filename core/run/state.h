/* state.json of a checkpoint: everything that is no tensor, written alike by both engines, and what a run that loads one holds
 * it to.  docs/CHECKPOINT.md. */
#ifndef ASSAY_CORE_STATE_H
#define ASSAY_CORE_STATE_H

#include "core/files/batches.h"
#include "core/files/checkpoint.h"
#include "core/model/layout.h"
#include "core/run/options.h"

ASSAY_BEGIN_DECLS

/* What a run's checkpoint holds: types by the precision, the optimizer's states.  ASSAY_UNSUPPORTED: weights that are frozen. */
assay_status assay_state_content(const assay_model_spec *spec, const assay_train_options *o,
                                 assay_checkpoint_content *out);

typedef struct assay_state {
    const assay_train_options *options;
    const assay_parallel_config *layout;
    const assay_batches *batches;
    const char *engine, *run; /* run: its name in the metrics file, "": none */
    int64_t step;             /* optimizer steps done */
    double learning_rate;     /* of the next step, by the engine's own schedule */
} assay_state;
/* NULL: out of memory. */
json_t *assay_state_to_json(const assay_state *s);

/* Holds a run to the state of the checkpoint `dir`: the model, the training options (core/run/training.h), the samples read.
 * `say` gets what override_checkpoint_args lets pass (NULL: not said, for ranks other than 0).  *step: optimizer steps done. */
assay_status assay_state_check(const char *dir, const json_t *state, const assay_model_config *config,
                               const assay_train_options *o, const assay_batches *b, FILE *say,
                               int64_t *step);

ASSAY_END_DECLS

#endif
