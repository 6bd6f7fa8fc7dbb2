/* CUDA graphs of a microbatch (--enable-cuda-graph): what a forward or a backward enqueues is captured once and launched as one graph in
 * later steps.
 *
 * A graph is one microbatch's of the step, one direction's: all that it enqueues has the same addresses in every step, because arenas are
 * taken in the same order, and the same numbers but the weight of a target in the objective (loss_scale), which is compared: where it is
 * another, the microbatch is captured again.  The first forward and the first backward of a run are not captured (libraries load then),
 * nor is what waits for work outside: the first forward of a step with overlap_param_gather (and the first backward, where the loss is made piece by piece), the last backward with overlap_grad_reduce.
 * Tokens are copied, and reductions begin, outside of graphs.  What a forward leaves on the host for its backward it leaves when it is
 * launched, too: rows of the tables of experts.  assay_inputs_cuda_graph refuses what no graph can hold; a kernel that reads the counts of
 * experts in host memory is refused where it is called (gpu/call.c).  A run that is watched (gpu_run_is_watched) launches one by one. */
#ifndef GPU_GRAPH_H
#define GPU_GRAPH_H

#include "gpu/stage.h"

ASSAY_BEGIN_DECLS

typedef struct gpu_graphs gpu_graphs;
/* Of this rank's microbatches. */
assay_status gpu_graphs_create(gpu_model *m, gpu_graphs **out);
/* Waits for launches that are under way. */
void gpu_graphs_destroy(gpu_graphs *g, gpu_model *m);

/* gpu_stage_fwd or _bwd of a microbatch whose place is ready: as they are, captured and launched, or launched. */
assay_status gpu_graphs_run(gpu_graphs *g, gpu_model *m, gpu_chunk *chunk, bool forward, int64_t index);
/* What ran how: counts since the beginning. */
typedef struct gpu_graph_counts {
    int64_t one_by_one, captured, launched; /* launched: without a capture */
} gpu_graph_counts;
gpu_graph_counts gpu_graphs_counts(const gpu_graphs *g);

ASSAY_END_DECLS

#endif
