/* What `assay step` says of the file it wrote.  Private to parity/run/. */
#ifndef PARITY_STEP_SUMMARY_H
#define PARITY_STEP_SUMMARY_H

#include "core/run/options.h"
#include <stdio.h>

/* Loss and gradient norm of every step (of a [b,s] batch: the norm over all gradients of the file) and what was written,
 * to `out`; warns on stderr of a loss or norm that is not finite. */
assay_status parity_step_summary(const assay_train_options *o, FILE *out);

#endif
