/* The training recipe of a run: the options that decide the numbers of a step.  A checkpoint carries it, and a run that goes
 * on under another one says so. */
#ifndef ASSAY_CORE_TRAINING_H
#define ASSAY_CORE_TRAINING_H

#include "core/files/batches.h"
#include "core/run/options.h"

ASSAY_BEGIN_DECLS

/* Precision, optimizer and its constants, the schedule as it is used (lr_decay_iters 0 is train_iters, which must be filled
 * in; members that a schedule does not read are absent), loss coefficients, calculate_per_token_loss and gradient_accumulation_fusion where they are false, semantics where it is not the default, and the seed of drawn weights.  NULL: out of
 * memory. */
json_t *assay_training_to_json(const assay_train_options *o);

/* Holds the options of a run that loads the checkpoint `dir` to the member "training" of its header.  ASSAY_FORMAT: there
 * is none.  ASSAY_MISMATCH, with every difference: another optimizer, always (its states are others); anything else unless
 * override_checkpoint_args is set: then each difference goes to `say` (NULL: not said, for ranks other than 0) and the
 * options of this run hold.  draw_weights is compared where this run draws. */
assay_status assay_training_check(const char *dir, const json_t *header, const assay_train_options *o,
                                  FILE *say);

/* Rows of a microbatch are no option of an engine but the batch file's, and a run may go on with another number of them (Megatron-LM's
 * may, too).  Where that changes the numbers of a step `say` is told why: a loss of the router or an expert's capacity counts over a
 * microbatch, a mean of means weighs its targets, random draws are numbered by it.  A header without the number says nothing. */
void assay_training_say_rows(const char *dir, const json_t *header, const assay_train_options *o,
                             const assay_model_config *config, const assay_batches *b, FILE *say);

ASSAY_END_DECLS

#endif
