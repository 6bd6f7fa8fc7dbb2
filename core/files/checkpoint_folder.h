/* A folder of checkpoints, RUN/iter_0000010 and so on: which is the latest, which the best, which go.  docs/CHECKPOINT.md. */
#ifndef ASSAY_CORE_CHECKPOINT_FOLDER_H
#define ASSAY_CORE_CHECKPOINT_FOLDER_H

#include "core/base/status.h"
#include <stddef.h>
#include <stdint.h>

ASSAY_BEGIN_DECLS

/* "RUN/iter_0000010" */
void assay_checkpoint_folder_name(const char *run, int64_t step, char *out, size_t capacity);
/* RUN/iter_STEP has been published: RUN/latest names it, RUN/best too where its loss is the least of those that were told and
 * still lie there; then, keep > 0, all but the `keep` of the greatest steps and what the two name are removed.  One process at a
 * time. */
assay_status assay_checkpoint_folder_add(const char *run, int64_t step, double loss, int64_t keep);
/* The checkpoint that a path means: itself; of a folder of checkpoints that of the greatest step; of RUN/latest and RUN/best the
 * one that it names.  ASSAY_NOT_FOUND: none of these.  ASSAY_UNSUPPORTED: of torch.distributed.checkpoint. */
assay_status assay_checkpoint_folder_find(const char *path, char *out, size_t capacity);
/* torch.distributed.checkpoint's folders, Megatron-LM's torch_dist among them, say in a pickle what their tensors are: ASSAY_UNSUPPORTED, and
 * what to do.  ASSAY_OK of anything else. */
assay_status assay_checkpoint_refuse_torch(const char *dir);
/* ASSAY_INVALID_ARGUMENT, with `option` before the path: what is made as `path` would lie in a checkpoint's folder, or in one below it,
 * and the checkpoint would be a changed one.  Links are followed; `path` and folders on the way to it need not exist. */
assay_status assay_checkpoint_outside(const char *option, const char *path);

ASSAY_END_DECLS

#endif
