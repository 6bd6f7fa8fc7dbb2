/* Passes of one microbatch over a chunk of a pipeline stage: embedding (first stage), its layers, final norm, output layer and loss (last
 * stage). */
#ifndef REF_STAGE_H
#define REF_STAGE_H

#include "ref/layer.h"

typedef struct ref_stage_acts {
    ref_ints ids, targets;  /* [T] of every rank's microbatch; target(s,b) = label(s+1,b), the last -100 */
    ref_layer_acts *layers; /* [layers of the stage] */
    int64_t first_layer, n_layers;
    ref_tensor embedded;                         /* the embedding's output, before dropout */
    ref_tensor input, output;                    /* hidden that enters and leaves the stage */
    ref_tensor normed, rstd, whole, logits, lse; /* last stage */
} ref_stage_acts;

/* input: hidden received from the stage before (ignored on the first).  On the last stage the loss of every
 * rank becomes the microbatch's entry of its loss_sums. */
assay_status ref_stage_fwd(ref_pass *p, ref_stage_acts *a, const ref_tensor *input);
/* doutput: gradient received from the stage behind (ignored on the last); dinput: gradient by the received
 * hidden (not made on the first). */
assay_status ref_stage_bwd(ref_pass *p, ref_stage_acts *a, const ref_tensor *doutput, ref_tensor *dinput);

#endif
