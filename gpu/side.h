/* A second compute stream: operations that are issued between begin and end run there, beside what the compute stream is
 * given until join.  Their temporaries live as long as those of the layer.  A run that is watched has none. */
#ifndef GPU_SIDE_H
#define GPU_SIDE_H

#include "gpu/trace.h"

ASSAY_BEGIN_DECLS

/* After the workspace of the context has its size. */
assay_status gpu_side_create(gpu_run *run);
void gpu_side_destroy(gpu_run *run);
/* Behind everything that the compute stream holds now. */
assay_status gpu_side_begin(gpu_run *run);
assay_status gpu_side_end(gpu_run *run);
/* The compute stream waits for what was issued between them. */
assay_status gpu_side_join(gpu_run *run);

ASSAY_END_DECLS

#endif
