/* `assay-gpu step`: one forward and backward, or optimizer steps, of a model folder on a batch file. */
#ifndef GPU_TRAIN_H
#define GPU_TRAIN_H

#include "core/files/checkpoint_async.h"
#include "core/run/metrics.h"
#include "gpu/optimizer.h"
#include "gpu/parallel/pipeline.h"

ASSAY_BEGIN_DECLS

typedef struct gpu_export gpu_export; /* train_export.c */

typedef struct gpu_engine {
    assay_rank_env env;
    assay_train_options options; /* train_iters filled in */
    assay_model_config config;
    assay_grid grid;
    assay_batches batches;
    assay_batch_share share;
    gpu_run run;
    gpu_model model;
    gpu_optimizer optimizer;
    gpu_schedule schedule;         /* of this pipeline stage, the same in every step */
    int64_t first_step, last_step; /* steps to run: [first, last) */
    int64_t *num_zeros;            /* [last_step], as the two below */
    double *loss, *grad_norm;  /* [last_step]; steps before first_step come from the checkpoint's run: 0 */
    gpu_export *export;        /* the file of options.out; NULL: none */
    char run_id[ASSAY_RUN_ID]; /* of rank 0, "" without metrics; a checkpoint carries it */
    assay_metrics metrics;     /* of rank 0 */
    assay_async_save *saving;  /* NULL: none is under way */
    bool stopped;              /* a signal asked for it: last_step is what was done */
    bool comm_ready, ctx_ready;
    bool repeat; /* steps beyond those that the batch file holds begin at its first again (bench) */
} gpu_engine;

/* Reads the inputs, opens the device, builds the model: ready for its first step.  *out is NULL on an error. */
assay_status gpu_engine_open(const assay_train_options *options, bool repeat, gpu_engine **out);
/* One step, first_step <= step < last_step, in order; returns when its loss is known, which is before all of it has run. */
assay_status gpu_engine_step(gpu_engine *e, int64_t step);
void gpu_engine_close(gpu_engine *e, bool failed);

/* Runs the whole verb on this rank.  Nothing is written when it fails. */
assay_status gpu_train(const assay_train_options *options);

/* --- train_export.c ----------------------------------------------------------------------------------------- */
/* Rank 0 collects whole tensors, one at a time, and writes options.out; every rank makes the same calls. */
assay_status gpu_export_open(gpu_engine *e);
/* Training: the gradients of the step that is being made, reduced, before the optimizer's. */
assay_status gpu_export_gradients(gpu_engine *e);
/* Training: the losses of the layers of a step that was made. */
assay_status gpu_export_step(gpu_engine *e, int64_t step);
/* What the steps left; the file has its name behind this. */
assay_status gpu_export_finish(gpu_engine *e);
void gpu_export_destroy(gpu_engine *e);
/* Bytes of the largest file set that a run writes: masters, two states and weights. */
double gpu_file_bytes(const gpu_engine *e);

/* --- checkpoint.c ------------------------------------------------------------------------------------------- */
/* Writes masters, states and expert biases after `step` steps into DIR, or below the folder that --save is; with --async-save it
 * returns when they are copied. */
assay_status gpu_checkpoint_save(gpu_engine *e, int64_t step);
/* Restores them in this layout and returns the number of steps done. */
assay_status gpu_checkpoint_load(gpu_engine *e, const char *dir, int64_t *step);

ASSAY_END_DECLS

#endif
