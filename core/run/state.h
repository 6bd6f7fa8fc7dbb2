/* state.json of a checkpoint: everything that is no tensor, written alike by both engines, and what a run that loads one holds
 * it to.  docs/CHECKPOINT.md. */
#ifndef ASSAY_CORE_STATE_H
#define ASSAY_CORE_STATE_H

#include "core/files/batches.h"
#include "core/files/checkpoint.h"
#include "core/model/layout.h"
#include "core/run/options.h"

ASSAY_BEGIN_DECLS

/* What a run's checkpoint holds: types by the precision, the optimizer's states. */
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

/* Opens o->load and holds the run to it: the model, the training options (core/run/training.h), the samples read, the keys.  With
 * o->finetune the model and the keys alone, and *step is 0; else (a weight that was frozen stays frozen: ASSAY_MISMATCH) the optimizer steps done.  Rank 0 says on stderr what options let pass.
 * The ranks share out the hashing: all must synchronize before they read. */
assay_status assay_state_load(const assay_train_options *o, const assay_model_spec *spec,
                              const assay_batches *b, int rank, int world, assay_checkpoint **out,
                              int64_t *step);
/* The family that holds its masters: weights where it was saved without. */
const char *assay_state_masters(const assay_checkpoint *c, const assay_param_spec *p);
/* The type to read it in: F64, F32 or BF16.  ASSAY_MISMATCH: it would have to be rounded, and o->round_checkpoint is not set. */
assay_status assay_state_dtype(const assay_train_options *o, const assay_checkpoint *c, const char *family,
                               const char *name, assay_dtype here, assay_dtype *there);

ASSAY_END_DECLS

#endif
