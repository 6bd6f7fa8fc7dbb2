/* Values of --substitute: what a whole tensor of the reference's trace is on this rank, in place of an operation's result.
 *
 * A value is found by its canonical name, phase, step and microbatch; an operation that only moves elements, or adds pieces up
 * (collectives, gather_rows), has the value of what it moves.  Pieces are cut by their segments, rows by their names.  Of a sum that is
 * still to be made over a group the first rank has the whole and the others have zeros; so have parameters' gradients, which count all
 * microbatches.  What is stored is the value rounded to the slot's type, to nearest even.  docs/DEBUG.md. */
#ifndef GPU_SUBSTITUTE_H
#define GPU_SUBSTITUTE_H

#include "gpu/model.h"

ASSAY_BEGIN_DECLS

/* Reads the rules and the trace that the options name, and takes run->rules, run->substitute.  Nothing without the option. */
assay_status gpu_substitute_open(gpu_model *m, const assay_train_options *o, bool first_rank);
void gpu_substitute_close(gpu_run *run);
/* x as a bfloat16, rounded once to nearest even. */
uint16_t gpu_round_bf16(double x);

ASSAY_END_DECLS

#endif
