/* CUDA graphs of a microbatch: capture, comparison of what they hold, launch. */
#include "gpu/graph.h"

#include "gpu/check.h"
#include "gpu/comm.h"
#include "gpu/fault.h"
#include "gpu/layer.h"
#include "gpu/parallel/expert.h"
#include <stdlib.h>

/* --- the graphs of a rank ----------------------------------------------------------------------------------- */
typedef struct graph {
    cudaGraphExec_t exec; /* NULL: not captured yet */
    double loss_scale;    /* of the microbatch that was captured */
    gpu_acts_mark left;   /* what the pass left of its place's arenas */
} graph;

struct gpu_graphs {
    int64_t n_microbatches;
    graph *graphs[2]; /* backward, forward: one for each microbatch */
    bool warm[2];     /* one of them has run */
    gpu_graph_counts counts;
};

assay_status gpu_graphs_create(gpu_model *m, gpu_graphs **out)
{
    const size_t n = (size_t)m->n_microbatches;
    gpu_graphs *g = calloc(1, sizeof *g);
    *out = NULL;
    if (g) {
        g->n_microbatches = m->n_microbatches;
        g->graphs[0] = calloc(n + 1, sizeof **g->graphs);
        g->graphs[1] = calloc(n + 1, sizeof **g->graphs);
    }
    if (g == NULL || g->graphs[0] == NULL || g->graphs[1] == NULL) {
        gpu_graphs_destroy(g, m);
        return ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "graphs of %zu microbatches", n);
    }
    *out = g;
    return ASSAY_OK;
}

void gpu_graphs_destroy(gpu_graphs *g, gpu_model *m)
{
    if (g == NULL)
        return;
    bool waited = false;
    for (int d = 0; d < 2; d++)
        for (int64_t i = 0; g->graphs[d] && i < g->n_microbatches; i++) {
            if (g->graphs[d][i].exec == NULL)
                continue;
            if (!waited)
                (void)cudaStreamSynchronize(m->run->ctx.stream);
            waited = true;
            (void)cudaGraphExecDestroy(g->graphs[d][i].exec);
        }
    free(g->graphs[0]);
    free(g->graphs[1]);
    free(g);
}

gpu_graph_counts gpu_graphs_counts(const gpu_graphs *g)
{
    return g->counts;
}

/* --- one pass ----------------------------------------------------------------------------------------------- */
static assay_status pass(gpu_model *m, gpu_chunk *chunk, bool forward, int64_t index)
{
    gpu_microbatch_state *mb = gpu_stage_place(chunk, index);
    gpu_value *unused;
    return forward ? gpu_stage_fwd(m, chunk, mb, index, &unused)
                   : gpu_stage_bwd(m, chunk, mb, &m->gradient[0], &unused);
}

/* What stands in this pass that a graph does not hold.  Where the loss is made piece by piece the backward is the first to read the output's
 * parameters, and waits for them. */
static bool waits_outside(const gpu_graphs *g, const gpu_model *m, bool forward, int64_t index)
{
    const assay_train_options *o = m->options;
    const bool gathers = o->overlap_param_gather && index == 0;
    return forward
               ? gathers
               : (gathers && m->loss_parts > 0) || (o->overlap_grad_reduce && index == g->n_microbatches - 1);
}

static assay_status capture(gpu_model *m, gpu_chunk *chunk, bool forward, int64_t index, graph *slot)
{
    const cudaStream_t stream = m->run->ctx.stream;
    cudaGraph_t made = NULL;
    if (slot->exec != NULL) { /* the old one may still be running */
        ASSAY_TRY(gpu_comm_wait(&m->run->comm, stream, "graph"));
        CUDA_TRY(cudaGraphExecDestroy(slot->exec));
        slot->exec = NULL;
    }
    CUDA_TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const assay_status st = pass(m, chunk, forward, index);
    const cudaError_t ended = cudaStreamEndCapture(stream, &made);
    if (st != ASSAY_OK) { /* its message is the cause */
        if (made != NULL)
            (void)cudaGraphDestroy(made);
        return st;
    }
    CUDA_TRY(ended);
    const cudaError_t e = cudaGraphInstantiate(&slot->exec, made, 0);
    (void)cudaGraphDestroy(made);
    CUDA_TRY(e);
    const gpu_microbatch_state *mb = gpu_stage_place(chunk, index);
    slot->loss_scale = mb->loss_scale;
    slot->left = (gpu_acts_mark){.arena = mb->arena.used, .host = mb->host.used};
    return ASSAY_OK;
}

/* What a pass leaves on the host, when the graph stands for it: where a backward that is not captured takes memory and finds the counts of
 * experts, that products have begun the gradients of the step, and, behind the last one, that these are complete. */
static assay_status passed(gpu_model *m, const gpu_chunk *chunk, bool forward, int64_t index,
                           const graph *slot)
{
    gpu_microbatch_state *mb = gpu_stage_place(chunk, index);
    mb->index = index;
    mb->arena.used = slot->left.arena;
    mb->host.used = slot->left.host;
    for (int64_t l = 0; forward && l < chunk->n_layers; l++)
        if (chunk->layers[l].mlp == &gpu_moe) {
            gpu_token_dispatch_at(m, &chunk->layers[l], &mb->layers[l].moe, index);
            gpu_balancing_at(m, &chunk->layers[l], &mb->layers[l].moe, index);
        }
    for (int64_t i = 0; !forward && i < m->n_params; i++)
        if (assay_param_needs_grad(m->params[i].spec))
            gpu_value_touch(m->run, &m->params[i].main_grad);
    if (forward || index != m->n_microbatches - 1)
        return ASSAY_OK;
    m->round = index;
    ASSAY_TRY(gpu_grads_ready(m, &m->output_unit));
    for (int64_t l = chunk->n_layers - 1; l >= 0; l--)
        ASSAY_TRY(gpu_grads_ready(m, &chunk->layers[l].unit));
    return gpu_grads_ready(m, &m->embedding_unit);
}

assay_status gpu_graphs_run(gpu_graphs *g, gpu_model *m, gpu_chunk *chunk, bool forward, int64_t index)
{
    graph *slot = &g->graphs[forward][index];
    const double scale = gpu_stage_place(chunk, index)->loss_scale;
    if (!g->warm[forward] || gpu_run_is_watched(m->run) || waits_outside(g, m, forward, index)) {
        g->warm[forward] = true;
        g->counts.one_by_one++;
        return pass(m, chunk, forward, index);
    }
    const bool other = slot->exec != NULL && !forward && slot->loss_scale != scale;
    if (slot->exec == NULL || (other && !gpu_fault_switch(m->run, GPU_SWITCH_STALE_GRAPH))) {
        ASSAY_TRY(capture(m, chunk, forward, index, slot));
        g->counts.captured++;
    } else {
        ASSAY_TRY(passed(m, chunk, forward, index, slot));
        g->counts.launched++;
    }
    CUDA_TRY(cudaGraphLaunch(slot->exec, m->run->ctx.stream));
    return ASSAY_OK;
}
