/* A communication stream of its own for collectives of activations, beside the products that the compute stream has meanwhile: the
 * sum of an input's gradient over tp beside the product of the weight's (--async-tensor-model-parallel-allreduce).  Buckets have
 * another stream (comm_stream), behind whose long reductions nothing of a layer waits.  The order of calls is that of the host, the
 * same on all ranks.  Memory that a collective uses lives until the join.  A run that is watched has none. */
#ifndef GPU_BESIDE_H
#define GPU_BESIDE_H

#include "gpu/trace.h"

ASSAY_BEGIN_DECLS

/* Creates it where an option and the layout use it. */
assay_status gpu_beside_create(gpu_run *run);
void gpu_beside_destroy(gpu_run *run);
/* What is issued until end runs on it, behind everything that the stream of the context (the compute stream, or the side's) holds
 * now.  Every slot has events of its own: each is recorded again only behind what it was recorded behind before.  fault: the word
 * (gpu/fault.h) that takes this event away. */
assay_status gpu_beside_begin(gpu_run *run, int slot, const char *fault);
/* What was issued so far is what join(slot) waits for. */
assay_status gpu_beside_mark(gpu_run *run, int slot);
assay_status gpu_beside_end(gpu_run *run);
/* The compute stream waits for what was issued before mark(slot). */
assay_status gpu_beside_join(gpu_run *run, int slot, const char *fault);

ASSAY_END_DECLS

#endif
