/* A second compute stream: operations that are issued between begin and end run there, beside what the compute stream is
 * given until join.  Their temporaries live as long as those of the layer.  A run that is watched has none. */
#ifndef GPU_SIDE_H
#define GPU_SIDE_H

#include "gpu/gpu.h"

ASSAY_BEGIN_DECLS

typedef struct gpu_side {
    cudaStream_t stream; /* NULL: there is none */
    cudaEvent_t begun, done;
    void *workspace; /* of the operations on this stream */
    size_t workspace_bytes;
    bool open; /* between begin and end: the context has this stream and workspace */
} gpu_side;

struct gpu_run;
/* After the workspace of the context has its size. */
assay_status gpu_side_create(struct gpu_run *run);
void gpu_side_destroy(struct gpu_run *run);
/* Behind everything that the compute stream holds now. */
assay_status gpu_side_begin(struct gpu_run *run);
assay_status gpu_side_end(struct gpu_run *run);
/* The compute stream waits for what was issued between them. */
assay_status gpu_side_join(struct gpu_run *run);

ASSAY_END_DECLS

#endif
