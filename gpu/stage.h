/* Passes of one microbatch over a chunk of this pipeline stage: embedding (first), layers, final norm, output layer and loss
 * (last).  Same names as in ref/stage.h. */
#ifndef GPU_STAGE_H
#define GPU_STAGE_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* ids, labels: [b,s] of the whole microbatch in the file; the rows of this rank are taken, labels are
 * shifted. */
assay_status gpu_stage_load_batch(gpu_model *m, int place, const int64_t *ids, const int64_t *labels);
/* input: hidden states from the stage before (NULL on the first).  *output: hidden states that leave the
 * chunk, or the hidden state before the final norm on the last stage. */
assay_status gpu_stage_fwd(gpu_model *m, int place, int64_t index, gpu_value *input, gpu_value **output);
/* doutput: gradient of *output (NULL on the last stage).  *dinput: gradient of the chunk's input (NULL on the
 * first stage). */
assay_status gpu_stage_bwd(gpu_model *m, int place, gpu_value *doutput, gpu_value **dinput);
/* The shape of the hidden states between stages: [S (or the sequence piece), B, H]. */
void gpu_model_hidden(const gpu_model *m, gpu_value *v);

ASSAY_END_DECLS

#endif
