/* The output of the last virtual stage: final norm, output layer and loss of a microbatch.  docs/OPS.md 9.1.
 *
 * Whole: the forward keeps the logits [S,B,V] for the backward.  In parts (--loss-subbatch-sequence-length): everything here runs in the backward,
 * and of a part of the positions the logits, their loss and their gradient are made and used up before the next part's, so that
 * logits of one part alone exist.  The weight of a target in the objective is known before, so nothing is scaled afterwards. */
#ifndef GPU_OUTPUT_H
#define GPU_OUTPUT_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* hidden: [S or its sequence piece, B, H], what the last layer leaves; entered: it has run the norm as well. */
assay_status gpu_output_fwd(gpu_model *m, gpu_microbatch_state *mb, gpu_value *hidden, bool entered);
/* dhidden: of the same shape, made. */
assay_status gpu_output_bwd(gpu_model *m, gpu_microbatch_state *mb, gpu_value *hidden, gpu_value *dhidden);
/* Both at once, m->loss_parts > 0; begins and ends in phase backward. */
assay_status gpu_output_parts(gpu_model *m, gpu_microbatch_state *mb, gpu_value *hidden, gpu_value *dhidden);

ASSAY_END_DECLS

#endif
