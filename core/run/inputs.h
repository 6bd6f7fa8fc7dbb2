/* What a run reads: where its weights come from, and whether options and data fit each other. */
#ifndef ASSAY_CORE_INPUTS_H
#define ASSAY_CORE_INPUTS_H

#include "core/model/spec.h"
#include "core/run/options.h"

ASSAY_BEGIN_DECLS

typedef enum assay_weights_source {
    ASSAY_WEIGHTS_STORED, /* in the model folder */
    ASSAY_WEIGHTS_DRAWN,  /* from the seed of --draw-weights: the folder holds a configuration alone */
    ASSAY_WEIGHTS_LOADED  /* such a folder and --load: the checkpoint holds them all */
} assay_weights_source;

/* The parameter table of a run: the model's, with what o->freeze names frozen. */
assay_status assay_inputs_spec(const assay_train_options *o, const assay_model_config *config,
                               assay_model_spec **out);
/* The checkpoint that holds all of the model's weights: o->load, "" where keys may be ignored, so that the model's own are needed. */
const char *assay_inputs_load(const assay_train_options *o);
/* Where the weights of the model in `folder` (NULL or "": none, they are drawn) come from.  Looks at names of files, not into
 * them.  ASSAY_INVALID_ARGUMENT: no weights and draw_weights is -1; weights and draw_weights is not.
 * ASSAY_UNSUPPORTED: weights of a form that is not read. */
assay_status assay_inputs_weights(const char *folder, const char *load, int64_t draw_weights,
                                  assay_weights_source *source);

/* What a config.json in Megatron-LM's form says about training, for every option that was not given.  ASSAY_MISMATCH: another
 * number of coefficients than of balancing losses; options of experts that contradict each other or the model are refused, too. */
assay_status assay_inputs_take_config(assay_train_options *o, const assay_model_config *config);

/* Whether the options fit a batch file of `steps` steps (training: with optimizer steps): train_iters, and warm-up and decay
 * where the number of steps is the file's. */
assay_status assay_inputs_steps(const assay_train_options *o, bool training, int64_t steps);

/* Whether balancing losses have a meaning where dp ranks share the rows of a microbatch (docs/MEGATRON.md). */
assay_status assay_inputs_rows(const assay_train_options *o, const assay_model_config *config,
                               bool rows_split);

/* Whether the model and steps of `microbatches` of b rows can be cut into a layout (text) under the options' meaning, and whether it has
 * what they ask of it (moe_alltoall_halves); messages name axis and size. */
assay_status assay_inputs_layout(const char *layout, const assay_train_options *o,
                                 const assay_model_config *config, int64_t microbatches, int64_t b);

/* Whether documents packed in rows (core/files/batches.h) mean something under the options and cp.  ASSAY_UNSUPPORTED:
 * semantics megatron with cp > 1 and numbers that depend on which tokens a rank has (means over its targets, capacities):
 * Megatron-LM cuts every document. */
assay_status assay_inputs_documents(const assay_train_options *o, bool packed, int cp);

/* Whether the passes of a microbatch can be launched as CUDA graphs; rows_split: dp ranks share its rows (core/files/batches.h).
 * ASSAY_UNSUPPORTED: what stands between their launches: a collective, a wait of the host, a number that every step draws, a trace. */
assay_status assay_inputs_cuda_graph(const assay_train_options *o, const assay_model_config *config,
                                     const assay_parallel_config *p, bool rows_split);

/* Whether the rows of experts can travel in halves (--moe-alltoall-halves).  ASSAY_UNSUPPORTED: why not. */
assay_status assay_inputs_halves(const assay_train_options *o, const assay_model_config *config,
                                 const assay_parallel_config *p);

/* Elements of a tensor that are not finite; first: flat index of the first of them. */
typedef struct assay_not_finite {
    int64_t nan, infinite, first;
} assay_not_finite;
/* "3 of 4096 elements are not finite (2 NaN, 1 infinite), the first at [0,17]". */
void assay_not_finite_text(const assay_not_finite *f, const int64_t *shape, int ndim, char *out,
                           size_t capacity);

ASSAY_END_DECLS

#endif
