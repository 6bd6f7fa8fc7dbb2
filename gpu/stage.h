/* Passes of one microbatch over a chunk of this pipeline stage: embedding (first), layers, final norm, output layer and loss
 * (last).  Same names as in ref/stage.h. */
#ifndef GPU_STAGE_H
#define GPU_STAGE_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* The place of microbatch `index` of this rank on a chunk. */
gpu_microbatch_state *gpu_stage_place(const gpu_chunk *chunk, int64_t index);
/* A whole microbatch in the file: [b,s] each. */
typedef struct gpu_batch_rows {
    const int64_t *ids, *labels, *positions; /* positions NULL: rows are one document */
    bool shifted;                            /* the labels are */
} gpu_batch_rows;
/* Readies the place for a new microbatch.  The chunk takes what it reads: ids on the first virtual stage, labels (shifted) on
 * the last, documents on all, of this rank's rows. */
assay_status gpu_stage_load_batch(gpu_model *m, const gpu_chunk *chunk, gpu_microbatch_state *mb,
                                  const gpu_batch_rows *rows);
/* mb->input: hidden states from the virtual stage before (made here on the first).  *output: hidden states that leave
 * the chunk, or the hidden state before the final norm on the last.  mb->staged is to be recorded behind it. */
assay_status gpu_stage_fwd(gpu_model *m, gpu_chunk *chunk, gpu_microbatch_state *mb, int64_t index,
                           gpu_value **output);
/* doutput: gradient of *output (unused on the last virtual stage), one of m->gradient.  *dinput: gradient of mb->input,
 * the other or the same. */
assay_status gpu_stage_bwd(gpu_model *m, gpu_chunk *chunk, gpu_microbatch_state *mb, gpu_value *doutput,
                           gpu_value **dinput);
/* The shape of the hidden states between stages: [S (or the sequence piece), B, H]. */
void gpu_model_hidden(const gpu_model *m, gpu_value *v);
/* Name of the hidden state that decoder layer `layer` reads (behind the last layer: the final norm). */
void gpu_hidden_name(const gpu_model *m, int64_t layer, char out[ASSAY_NAME]);

ASSAY_END_DECLS

#endif
