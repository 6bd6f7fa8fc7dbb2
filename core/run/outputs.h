/* What a run may write: nothing that it reads. */
#ifndef ASSAY_CORE_OUTPUTS_H
#define ASSAY_CORE_OUTPUTS_H

#include "core/run/options.h"

ASSAY_BEGIN_DECLS

/* Refuses at the beginning what could not be written, or would destroy an input, at the end: --out that is the batch
 * (same inode, whatever its name), a folder, or lies in the model's or the checkpoint's folder; --trace that is one of
 * those folders; --save that exists or lies in the checkpoint's; any of them, --metrics too, in any checkpoint; a folder that is not
 * there or not writable. */
assay_status assay_outputs_check(const assay_train_options *o);

/* The exit code of a program that ends with `code`: what could not be written to standard output was not said, so that 0
 * becomes 2, and stderr says why in the name of `program`. */
int assay_outputs_finish(const char *program, int code);

ASSAY_END_DECLS

#endif
